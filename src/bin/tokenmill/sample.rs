//! The documents that the first batches of a run are made of, in memory: what `bench` measures stages on.
//!
//! The pipeline is run once and its cursors say which windows it took; those are read again here, stage by stage, with
//! the library's public parts. So the whole and the stages have the same text, and packing the stages' ids must
//! give the whole's blocks, id for id. A figure of stages that did other work than the pipeline would mean nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use tokenmill::block::Block;
use tokenmill::document::{EncodedDocument, EncodedDocuments, RecordRange, Window, WindowPlace};
use tokenmill::error::{Error, ErrorKind, Result};
use tokenmill::packing::{Concat, Cursor, Filled};
use tokenmill::pipeline::{Pipeline, RunOptions};
use tokenmill::plan::Plan;
use tokenmill::shard::{Shard, Start, UnitReader};
use tokenmill::source::Share;
use tokenmill::tokenizer::Tokenizer;

/// `(lane, source)`.
pub type StrandKey = (u32, usize);

/// The first batches of a run.
pub struct Calibration {
    /// Batches to run.
    pub batches: u64,
    /// Batches of them after which buffers are full and the clock starts.
    pub warm: u64,
    /// Of all ids, in order.
    pub checksum: u64,
    pub tokens: u64,
    /// Blocks of each strand, and the BLAKE3 of their ids.
    strands: BTreeMap<StrandKey, (u64, blake3::Hash)>,
    /// Where each strand stands at the end.
    cursors: BTreeMap<StrandKey, Cursor>,
}

/// Adds a block's ids to a checksum that depends on their order.
///
/// It is part of the time of the whole, so it has to be cheap: sixteen sums side by side, since one would wait for the multiplication before
/// at each id, which took 4 % of it.
pub fn add_ids(checksum: u64, ids: &[u32]) -> u64 {
    let mut sums = [0_u32; 16];
    let (rows, rest) = ids.as_chunks::<16>();
    for row in rows {
        for (sum, id) in sums.iter_mut().zip(row) {
            *sum = sum.wrapping_mul(0x9E37_79B1) ^ id;
        }
    }
    let add = |checksum: u64, &id: &u32| (checksum.rotate_left(7) ^ u64::from(id)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    sums.iter().chain(rest).fold(checksum, add)
}

/// BLAKE3 of ids as little-endian u32.
fn hash_ids(hasher: &mut blake3::Hasher, ids: &[u32], bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
    hasher.update(bytes);
}

/// Runs the pipeline until it has delivered about `text_bytes` of text.
pub fn calibrate(plan: &Arc<Plan>, tokenizer: &Arc<Tokenizer>, text_bytes: u64) -> Result<Calibration> {
    let mut pipeline = Pipeline::new(plan.clone(), tokenizer.clone(), RunOptions::default(), None)?;
    let (mut warm, mut checksum, mut tokens, mut buffer) = (None, 0, 0, Vec::new());
    let mut hashers: BTreeMap<StrandKey, (u64, blake3::Hasher)> = BTreeMap::new();
    let delivered = |pipeline: &Pipeline| pipeline.stats().iter().map(|s| s.totals.text_bytes).sum::<u64>();
    while delivered(&pipeline) < text_bytes {
        let Some(batch) = pipeline.next_batch()? else { break };
        for block in &batch.blocks {
            let (blocks, hasher) = hashers.entry((block.lane, block.source as usize)).or_default();
            *blocks += 1;
            hash_ids(hasher, &block.input_ids, &mut buffer);
            checksum = add_ids(checksum, &block.input_ids);
            tokens += block.tokens() as u64;
        }
        if warm.is_none() && delivered(&pipeline) >= text_bytes / 4 {
            warm = Some(pipeline.step());
        }
    }
    let mut cursors = BTreeMap::new();
    for lane in &pipeline.checkpoint().cursors {
        for (source, planned) in plan.sources.iter().enumerate() {
            cursors.insert((lane.lane, source), lane.sources[planned.name()].cursor);
        }
    }
    let batches = pipeline.step();
    let warm = warm.unwrap_or(0).min(batches.saturating_sub(1));
    if batches == 0 {
        return Err(Error::new(ErrorKind::TooFewRecords, "the run gave no batch, expected at least one to measure"));
    }
    Ok(Calibration {
        batches,
        warm,
        checksum,
        tokens,
        strands: hashers.into_iter().map(|(key, (blocks, hasher))| (key, (blocks, hasher.finalize()))).collect(),
        cursors,
    })
}

/// One unit of a shard, and which of its windows are read.
struct Job {
    shard: Arc<Shard>,
    unit: u64,
    wants: Vec<Want>,
}

/// What one lane wants of a unit.
struct Want {
    strand: StrandKey,
    share: Share,
    /// Index of the unit in the lane's share.
    nth: u64,
    /// The last window that is wanted, where that isn't the unit's last.
    last: Option<u64>,
}

impl Job {
    fn wants(&self, window: u64) -> Option<&Want> {
        let dealt = |want: &&Want| !self.shard.is_stream() || want.share.has_window(window);
        self.wants.iter().filter(dealt).find(|want| want.last.is_none_or(|last| window <= last))
    }

    /// Reads the wanted windows.
    fn read(&self, window: &mut Window, take: &mut dyn FnMut(&Want, &mut Window)) -> Result<()> {
        let last = if self.wants.iter().all(|want| want.last.is_some()) {
            self.wants.iter().filter_map(|want| want.last).max()
        } else {
            None
        };
        let mut reader: UnitReader = self.shard.read_unit(self.unit, Start::default())?;
        while reader.next_window(window, &mut |index| self.wants(index).is_some())? {
            let index = window.index;
            take(self.wants(index).expect("only wanted windows come"), window);
            if Some(index) == last {
                break;
            }
        }
        Ok(())
    }
}

/// A window in memory with its documents' texts and ids.
struct Held {
    strand: StrandKey,
    place: WindowPlace,
    shard: Arc<Shard>,
    window: Window,
    /// Records in delivery order.
    order: Vec<RecordRange>,
    /// The texts of the usable ones, end to end, and where each ends; `None` for a bad record that is skipped.
    text: String,
    ends: Vec<Option<usize>>,
    encoded: Vec<u32>,
    documents: Vec<EncodedDocument>,
}

/// The documents of some windows, at every stage.
pub struct Sample {
    jobs: Vec<Job>,
    held: Vec<Held>,
    /// Bytes of the windows, uncompressed.
    pub raw_bytes: u64,
    pub text_bytes: u64,
    /// Ids of the engine alone, without BOS and EOS.
    pub engine_tokens: u64,
    /// Ids as packed.
    pub tokens: u64,
    pub documents: u64,
    /// Blocks that were found equal to the pipeline's.
    pub blocks_checked: u64,
}

impl Sample {
    /// Collects what the calibration took, and checks that its blocks come out of it.
    pub fn collect(plan: &Plan, tokenizer: &Tokenizer, calibration: &Calibration) -> Result<Sample> {
        let jobs = jobs(plan, calibration)?;
        let mut held = Vec::new();
        for job in &jobs {
            job.read(&mut Window::default(), &mut |want, window| {
                let window = std::mem::take(window);
                let mut order = window.records.clone();
                let dealing = &plan.sources[want.strand.1].dealing;
                dealing.shuffle_window(&want.share, job.unit, window.index, &mut order);
                let Share { epoch, walk, .. } = want.share;
                let place = WindowPlace { epoch, walk, unit: want.nth, window: window.index, ..WindowPlace::default() };
                held.push(Held {
                    strand: want.strand,
                    place,
                    shard: job.shard.clone(),
                    window,
                    order,
                    text: String::new(),
                    ends: Vec::new(),
                    encoded: Vec::new(),
                    documents: Vec::new(),
                });
            })?;
        }
        held.sort_by_key(|held| (held.strand, held.place));
        let mut sample = Sample {
            jobs,
            held,
            raw_bytes: 0,
            text_bytes: 0,
            engine_tokens: 0,
            tokens: 0,
            documents: 0,
            blocks_checked: 0,
        };
        let mut scratch = String::new();
        for held in &mut sample.held {
            sample.raw_bytes += held.window.bytes.len() as u64;
            for (index, record) in held.order.iter().enumerate() {
                let text = match record.null {
                    true => None,
                    // The pipeline went over the same record; what it can't use was skipped there by the config's leave.
                    false => held.shard.text(record.of(&held.window.bytes), &mut scratch).ok(),
                };
                if let Some(text) = text {
                    tokenizer.encode_document(text, &mut held.encoded)?;
                    held.text.push_str(text);
                    sample.documents += 1;
                }
                held.ends.push(text.map(|_| held.text.len()));
                held.documents.push(EncodedDocument {
                    index: index as u32,
                    end: held.encoded.len() as u32,
                    text_bytes: text.map_or(0, str::len) as u32,
                    skipped: text.is_none(),
                    ..EncodedDocument::default()
                });
            }
            sample.text_bytes += held.text.len() as u64;
            sample.tokens += held.encoded.len() as u64;
        }
        sample.engine_tokens = sample.tokenize(tokenizer, 1)?.tokens;
        sample.check(plan, calibration)?;
        Ok(sample)
    }

    /// The blocks of the stages against those of the pipeline.
    fn check(&mut self, plan: &Plan, calibration: &Calibration) -> Result<()> {
        let block_size = plan.config.block_size as usize;
        let mut pieces = self.pieces();
        let mut buffer = Vec::new();
        for (key, (blocks, expected)) in &calibration.strands {
            let mut pieces = pieces.remove(key).unwrap_or_default().into_iter();
            let mut packer = Concat::new(Cursor::default());
            let mut hasher = blake3::Hasher::new();
            for number in 0..*blocks {
                let mut block = Block::new(number, key.0, key.1 as u32, block_size);
                packer.fill(&mut block, block_size, &mut |_| Ok(pieces.next()))?;
                hash_ids(&mut hasher, &block.input_ids, &mut buffer);
            }
            if hasher.finalize() != *expected {
                return Err(differ(format!(
                    "the {blocks} blocks of lane {} of source {:?} differ between the pipeline and its stages",
                    key.0,
                    plan.sources[key.1].name()
                )));
            }
            self.blocks_checked += blocks;
        }
        Ok(())
    }

    /// Packed ids for each byte of text.
    pub fn tokens_per_byte(&self) -> f64 {
        self.tokens as f64 / self.text_bytes.max(1) as f64
    }

    /// Encoded documents by strand, in order, as packing wants them.
    pub fn pieces(&self) -> BTreeMap<StrandKey, Vec<EncodedDocuments>> {
        let mut pieces: BTreeMap<StrandKey, Vec<EncodedDocuments>> = BTreeMap::new();
        for held in &self.held {
            pieces.entry(held.strand).or_default().push(EncodedDocuments {
                place: held.place,
                ids: held.encoded.clone(),
                documents: held.documents.clone(),
                ..EncodedDocuments::default()
            });
        }
        pieces
    }

    /// Reads the windows out of their shards again; gives their bytes.
    pub fn read(&self) -> Result<u64> {
        let mut window = Window::default();
        let mut bytes = 0;
        for job in &self.jobs {
            job.read(&mut window, &mut |_, window| bytes += window.bytes.len() as u64)?;
        }
        Ok(bytes)
    }

    /// Takes the text out of each record; gives its bytes.
    pub fn parse(&self) -> Result<u64> {
        let mut scratch = String::new();
        let mut bytes = 0;
        for held in &self.held {
            for record in held.order.iter().filter(|record| !record.null) {
                // A bad record costs what it costs.
                bytes += held.shard.text(record.of(&held.window.bytes), &mut scratch).map_or(0, str::len) as u64;
            }
        }
        Ok(bytes)
    }

    /// The texts of one window.
    fn texts(held: &Held) -> impl Iterator<Item = &str> {
        let mut start = 0;
        held.ends.iter().flatten().map(move |&end| {
            let text = &held.text[start..end];
            start = end;
            text
        })
    }

    /// The texts in order, and where to cut them into runs of about 64 KB.
    fn runs(&self) -> (Vec<&str>, Vec<std::ops::Range<usize>>) {
        let texts: Vec<&str> = self.held.iter().flat_map(Self::texts).collect();
        let mut runs = Vec::new();
        let (mut start, mut bytes) = (0, 0);
        for (index, text) in texts.iter().enumerate() {
            bytes += text.len();
            if bytes >= 64 << 10 || index + 1 == texts.len() {
                runs.push(start..index + 1);
                (start, bytes) = (index + 1, 0);
            }
        }
        (texts, runs)
    }

    /// Tokenizes every text once, on `threads` threads, each into a buffer that is used again. The clock starts after a
    /// quarter of the runs, as the whole's does.
    pub fn tokenize(&self, tokenizer: &Tokenizer, threads: u32) -> Result<Tokenized> {
        let (texts, runs) = self.runs();
        let (warm, measured) = runs.split_at(runs.len() / 4);
        let next = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let work = |runs: &[std::ops::Range<usize>], next: &AtomicUsize| -> Result<u64> {
            let mut ids = Vec::new();
            let mut tokens = 0;
            while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                for text in &texts[run.clone()] {
                    ids.clear();
                    tokenizer.encode_into(text, &mut ids)?;
                    tokens += ids.len() as u64;
                }
            }
            Ok(tokens)
        };
        let barrier = Barrier::new(threads as usize + 1);
        let (tokens, seconds) = std::thread::scope(|scope| {
            let both = || {
                let before = work(warm, &next[0]);
                barrier.wait();
                Ok::<_, Error>(before? + work(measured, &next[1])?)
            };
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(both)).collect();
            barrier.wait();
            let begin = Instant::now();
            let tokens: Result<u64> =
                running.into_iter().map(|thread| thread.join().expect("an engine's panic is an error")).sum();
            (tokens, begin.elapsed().as_secs_f64())
        });
        let text_bytes = measured.iter().flat_map(|run| &texts[run.clone()]).map(|text| text.len() as u64).sum();
        Ok(Tokenized { tokens: tokens?, text_bytes, seconds })
    }

    /// `count` parts of about `bytes` each, of texts from all over the sample; no text is in two of them.
    pub fn parts(&self, count: usize, bytes: u64) -> Vec<Vec<&str>> {
        let (texts, _) = self.runs();
        let strides = ((self.text_bytes / bytes.max(1)) as usize).max(count);
        (0..count).map(|part| texts.iter().skip(part).step_by(strides).copied().collect()).collect()
    }
}

/// What [`Sample::tokenize`] measured.
pub struct Tokenized {
    /// Ids of all texts.
    pub tokens: u64,
    /// Bytes of the texts that were timed.
    pub text_bytes: u64,
    pub seconds: f64,
}

/// Packs all pieces; gives the number of ids in blocks.
pub fn pack(pieces: BTreeMap<StrandKey, Vec<EncodedDocuments>>, block_size: usize) -> Result<u64> {
    let mut tokens = 0;
    for ((lane, source), pieces) in pieces {
        let mut pieces = pieces.into_iter();
        let mut packer = Concat::new(Cursor::default());
        let mut filled = Filled::Full;
        while filled == Filled::Full {
            let mut block = Block::new(0, lane, source as u32, block_size);
            filled = packer.fill(&mut block, block_size, &mut |_| Ok(pieces.next()))?;
            tokens += std::hint::black_box(&block).input_ids.len() as u64;
        }
    }
    Ok(tokens)
}

/// An error about results that should be equal: nothing was measured.
pub fn differ(detail: String) -> Error {
    Error::new(ErrorKind::Internal, format!("{detail}, expected the same: no figure of it can be trusted"))
}

/// The windows that the calibration's strands took, by unit, each to be read once.
fn jobs(plan: &Plan, calibration: &Calibration) -> Result<Vec<Job>> {
    let mut open: BTreeMap<(usize, u64), Arc<Shard>> = BTreeMap::new();
    let mut jobs: BTreeMap<(usize, u32, u64, u64), Job> = BTreeMap::new();
    for (&strand, cursor) in &calibration.cursors {
        if !calibration.strands.contains_key(&strand) {
            continue;
        }
        let (lane, source) = strand;
        let dealing = &plan.sources[source].dealing;
        let end = cursor.place;
        let (mut epoch, mut walk) = (0, 0);
        while (epoch, walk) <= (end.epoch, end.walk) {
            let Some(share) = dealing.share(lane, epoch, walk) else {
                (epoch, walk) = (epoch + 1, 0);
                continue;
            };
            let shard = match open.get(&(source, share.shard)) {
                Some(shard) => shard.clone(),
                None => {
                    let shard = Arc::new(plan.open_shard(source, share.shard)?);
                    open.insert((source, share.shard), shard.clone());
                    shard
                }
            };
            let in_last = (epoch, walk) == (end.epoch, end.walk);
            for nth in 0.. {
                let unit = match shard.is_stream() {
                    true => (nth == 0).then_some(0),
                    false => dealing.unit(&share, shard.units(), nth),
                };
                let Some(unit) = unit.filter(|_| !in_last || nth <= end.unit) else { break };
                let last = (in_last && nth == end.unit).then_some(end.window);
                let want = Want { strand, share, nth, last };
                let job = jobs.entry((source, epoch, share.shard, unit));
                job.or_insert_with(|| Job { shard: shard.clone(), unit, wants: Vec::new() }).wants.push(want);
            }
            walk += 1;
        }
    }
    Ok(jobs.into_values().collect())
}
