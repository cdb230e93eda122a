//! The pipeline: a plan, a tokenizer and perhaps a checkpoint in, batches of blocks out.
//!
//! ```text
//! reader.rs    a lane's windows of one source, shuffled           \
//! streams.rs   shards that can't be seeked, decoded once           > serial.rs, or ahead on threads: parallel.rs
//! encode       parse, tokenize -> EncodedDocuments                /
//! lane.rs      a lane: its packers and counts; resume.rs: from where a checkpoint says
//! mod.rs       mixture: which source -> packing -> lane by lane in the global order -> batches, state
//! even.rs      where a finite run ends, so that all ranks give the same number of batches
//! locate.rs    the documents of one block, by replaying its lane alone
//! ```
//!
//! Holds: what is delivered depends on plan and tokenizer only; [`Pipeline::checkpoint`] describes what was delivered to
//! the caller, whatever has been read ahead or packed since; after an error the state is that of the last batch
//! delivered, so nothing is lost. Does not know: where batches go, how checkpoints are stored.

mod buffers;
mod even;
mod lane;
mod locate;
mod memory;
mod parallel;
mod reader;
mod resume;
mod serial;
mod streams;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::block::{Batch, Block};
use crate::chat::Clock;
use crate::document::EncodedDocuments;
use crate::error::{Error, ErrorKind, Result};
use crate::mixture::{StageCounts, next_source};
use crate::packing::{Filled, Tail, Totals};
use crate::plan::Plan;
use crate::shard::Start;
use crate::state::{Checkpoint, Fingerprint, LaneState, MixtureStage, Passed, ShardStage, SourceState, VERSION};
use crate::tokenizer::Tokenizer;
use even::End;
pub use even::{BlockCounts, Even, count_blocks};
use lane::{Lane, first_turns, part_of};
pub use locate::{DocumentPart, locate};
pub use memory::{MemoryPrediction, predict_memory};
use parallel::Parallel;
pub use reader::read_ahead;
use reader::{Context, LaneReader};
use resume::{Resumed, resume, run_clock, skip_ranges};
use serial::Serial;
use streams::StreamPool;

/// Where a driver's encoded documents come from: strand by strand, a strand being one source in one lane.
trait Documents: Send {
    /// The strand's next documents, or `None` after its last.
    ///
    /// `spent` is a piece that was given before and isn't needed any more: its buffers are used again.
    fn next(&mut self, strand: usize, spent: Option<EncodedDocuments>) -> Result<Option<EncodedDocuments>>;
}

/// Damage passed over behind a strand's last document, if there is any.
fn lost(lost: Vec<Error>) -> Option<EncodedDocuments> {
    (!lost.is_empty()).then(|| EncodedDocuments { lost, ..EncodedDocuments::default() })
}

/// How a pipeline runs: its part of the run, and which batches of it are delivered; none of it changes a batch.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// This rank, from 0.
    pub rank: u32,
    /// Number of ranks; 0 is taken as 1.
    pub world_size: u32,
    /// Of this rank's lanes those that are delivered, rising: a part of the rank's work, as a worker process of a data loader has.
    /// `None`: all of them.
    pub lanes: Option<Vec<u32>>,
    /// Run on the caller's thread alone, with nothing read ahead.
    pub serial: bool,
    /// Worker threads, in place of `runtime.threads` of the config; 0: as the config says.
    pub threads: u32,
    /// Processes that do the rank's work together, and so have a part of `runtime.memory` each; 0 is taken as 1.
    pub sharing: u32,
    /// Batches that are passed over, by [`Pipeline::step`]: read, tokenized and packed as always, but not delivered, so the
    /// batches after them are what they would have been. Ranges begun are kept in the checkpoint, so a resume in the middle of
    /// one goes on passing over it; all ranks must be given the same.
    pub skip: Vec<Range<u64>>,
    /// Make all ranks of a finite run give the same number of batches. Without `even_counts`, [`Pipeline::new`] first
    /// counts the blocks of all lanes, which tokenizes all that the run has left.
    pub even: Option<Even>,
    /// What [`count_blocks`] gave for this run before.
    pub even_counts: Option<Arc<BlockCounts>>,
    /// Set it to make a waiting [`Pipeline::next_batch`] return an `Interrupted` error soon; the call may be repeated.
    pub interrupt: Arc<AtomicBool>,
    /// Asked about every 50 ms while [`Pipeline::next_batch`] waits.
    pub poll: Option<Poll>,
    /// Seed of random delays before each task: for tests, which show that timing changes nothing.
    #[doc(hidden)]
    pub test_delays: Option<u64>,
}

/// A question that a waiting pipeline asks on the caller's thread: whether to return an `Interrupted` error.
///
/// For callers who can't set [`RunOptions::interrupt`] from elsewhere: Python's signals wait for its main thread to look.
#[derive(Clone)]
pub struct Poll(pub Arc<dyn Fn() -> bool + Send + Sync>);

impl std::fmt::Debug for Poll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Poll")
    }
}

/// Counts of one source on this rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SourceStats {
    /// Counts since the run's first start, over the lanes of this rank, batches passed over left out.
    pub totals: Totals,
    /// What the batches passed over held.
    pub passed: Passed,
    /// Lowest epoch that a lane of this rank is in.
    pub epoch: u32,
    /// Lanes of this rank in which the source has used up its epochs.
    pub lanes_ended: u32,
}

/// A run on one rank.
pub struct Pipeline {
    plan: Arc<Plan>,
    tokenizer: Arc<Tokenizer>,
    options: RunOptions,
    documents: Box<dyn Documents>,
    lanes: Vec<Lane>,
    /// Lanes that go on, by `(next global block, index in lanes)`.
    order: BTreeSet<(u64, usize)>,
    /// Blocks of the batch under construction.
    batch: Vec<Block>,
    /// The block under construction, after an interrupt.
    filling: Option<Block>,
    /// States of the lanes as delivered; `(lane, source)`s whose state has changed since are in `touched`.
    delivered: Vec<LaneState>,
    touched: BTreeSet<(usize, usize)>,
    /// What the state says of the run as a whole.
    fingerprint: Fingerprint,
    mixture: Vec<MixtureStage>,
    shard_stages: BTreeMap<String, Vec<ShardStage>>,
    now: Option<String>,
    step: u64,
    /// Batches to pass over: in order, none touching the next.
    skip: Vec<Range<u64>>,
    /// Where the run ends, if all ranks are to end at the same step.
    end: Option<End>,
    /// Sources whose blocks are numbered but not packed; for finding one block of another source.
    unpacked: Vec<bool>,
    /// Bad records and damaged parts passed over before and in this run, for the bound.
    skipped: u64,
    bad_records: Vec<Error>,
    failed: Option<Error>,
}

/// Places of bad records that a pipeline keeps.
const BAD_RECORDS_KEPT: usize = 5;

impl Pipeline {
    /// Starts a run, afresh or from a checkpoint that holds at least the lanes of this rank.
    ///
    /// # Errors
    /// * `Config` - the world size doesn't divide the lanes; `runtime.memory` is too small for this rank's lanes and sources.
    /// * `Config` - `options.lanes` aren't rising lanes of the rank, or come with `options.even`.
    /// * `Config` - `options.even` for a run that has no end; `options.skip` names batches that were delivered.
    /// * `StateMismatch` - the checkpoint is of another run, or lacks lanes; the detail lists every difference.
    pub fn new(
        plan: Arc<Plan>,
        tokenizer: Arc<Tokenizer>,
        options: RunOptions,
        from: Option<&Checkpoint>,
    ) -> Result<Self> {
        let options = RunOptions { world_size: options.world_size.max(1), ..options };
        let owned = match &options.lanes {
            None => plan.lanes_of(options.rank, options.world_size)?,
            Some(lanes) => part_of(lanes, &plan.lanes_of(options.rank, options.world_size)?)?,
        };
        let Some(even) = options.even else {
            return Pipeline::of_lanes(plan, tokenizer, options, &owned, from);
        };
        if options.lanes.is_some() {
            let detail = "some of a rank's lanes can't be made even with other ranks, expected all";
            return Err(Error::new(ErrorKind::Config, detail));
        }
        // Counted before this rank's own readers run ahead.
        let counts = match &options.even_counts {
            Some(counts) => counts.clone(),
            None => Arc::new(count_blocks(&plan, &tokenizer, &options, from)?),
        };
        let mut pipeline = Pipeline::of_lanes(plan, tokenizer, options, &owned, from)?;
        pipeline.end = Some(End::find(even, &counts, &pipeline, from)?);
        Ok(pipeline)
    }

    /// A pipeline of the lanes `owned`, whatever the rank's are.
    fn of_lanes(
        plan: Arc<Plan>,
        tokenizer: Arc<Tokenizer>,
        options: RunOptions,
        owned: &[u32],
        from: Option<&Checkpoint>,
    ) -> Result<Self> {
        let weights: BTreeMap<String, u64> = plan.sources.iter().map(|s| (s.name().to_owned(), s.weight)).collect();
        let fresh = MixtureStage { from_block: 0, from_step: 0, apart: false, weights };
        let fingerprint = plan.fingerprint(&tokenizer);
        let Resumed { plan, lanes, mixture, shard_stages, step } = match from {
            None => Resumed {
                lanes: owned.iter().map(|&lane| Lane::fresh(&plan, lane, tokenizer.pad())).collect(),
                plan,
                mixture: vec![fresh],
                shard_stages: BTreeMap::new(),
                step: 0,
            },
            Some(checkpoint) => resume(plan, (&fingerprint, tokenizer.pad()), &options, owned, fresh, checkpoint)?,
        };
        let skip = skip_ranges(&options.skip, from, step)?;
        plan.store.expect_lanes(owned.len() as u32, plan.config.lanes);
        let now = run_clock(&plan, from)?;
        let context = Arc::new(Context::new(plan.clone(), tokenizer.clone(), now.unwrap_or(Clock::from_unix(0)))?);
        if from.is_none() && !options.serial {
            for (source, chat) in plan.sources.iter().zip(&context.chats) {
                for finding in chat.iter().flat_map(|chat| chat.probe(&tokenizer)) {
                    tracing::info!(source = source.name(), finding, "chat template");
                }
            }
        }
        let mut turns = first_turns(&plan, &lanes);
        let mut readers = Vec::new();
        let mut places = Vec::new();
        for lane in &lanes {
            for (source, packer) in lane.packers.iter().enumerate() {
                let cursor = packer.cursor();
                readers.push((turns.pop_front().unwrap_or(u64::MAX), LaneReader::new(source, lane.lane, &cursor)));
                let start = Start { window: cursor.place.window, record: cursor.place.row };
                places.push((source, lane.lane, (cursor.place.epoch, cursor.place.walk, start)));
            }
        }
        let documents: Box<dyn Documents> = if options.serial {
            Box::new(Serial::new(context, readers.into_iter().map(|(_, reader)| reader).collect()))
        } else {
            let threads = match [options.threads, plan.config.runtime.threads].into_iter().find(|&threads| threads > 0)
            {
                Some(threads) => threads as usize,
                None => std::thread::available_parallelism().map_or(1, |n| n.get()),
            };
            let bounds = memory::bounds(&plan, owned, threads, options.sharing)?;
            let streams = StreamPool::new(plan.clone(), context.buffers.clone(), bounds.kept_max, places);
            Box::new(Parallel::new(context, streams, readers, threads, bounds.ahead_bytes, &options)?)
        };
        let mut pipeline = Pipeline {
            order: BTreeSet::new(),
            delivered: lanes.iter().map(|lane| lane.state(&plan)).collect(),
            skipped: lanes
                .iter()
                .flat_map(|lane| &lane.packers)
                .map(|p| p.cursor().totals)
                .map(|t| t.skipped + t.skipped_parts)
                .sum(),
            plan,
            tokenizer,
            options,
            documents,
            lanes,
            batch: Vec::new(),
            filling: None,
            touched: BTreeSet::new(),
            fingerprint,
            mixture,
            shard_stages,
            now: now.map(Clock::to_text),
            step,
            skip,
            end: None,
            unpacked: Vec::new(),
            bad_records: Vec::new(),
            failed: None,
        };
        for index in 0..pipeline.lanes.len() {
            pipeline.enqueue(index);
        }
        Ok(pipeline)
    }

    /// What runs.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// What turns text into ids.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Batches delivered since the run's first start, those passed over counted.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The next batch, or `None` when every lane of this rank has ended, or the step is reached at which all ranks end.
    ///
    /// Batches of [`RunOptions::skip`] that come before it are passed over.
    ///
    /// # Errors
    /// Whatever stops a document on the way, in order: every batch before it was delivered. Repeating the call repeats
    /// the error, except after `Interrupted`, when it goes on.
    pub fn next_batch(&mut self) -> Result<Option<Batch>> {
        while self.pass_over()? {}
        let blocks = self.advance(false)?;
        Ok(blocks.map(|blocks| Batch { step: self.step - 1, blocks }))
    }

    /// Passes over the next batch if it is one of [`RunOptions::skip`]; returns whether it did. [`Pipeline::next_batch`] does
    /// this by itself; call it before, in a loop, to do something between.
    ///
    /// Cost: that of a batch. Where blocks end depends on the tokens before, so they have to be counted.
    ///
    /// # Errors
    /// As [`Pipeline::next_batch`].
    pub fn pass_over(&mut self) -> Result<bool> {
        if !self.skip.iter().any(|range| range.contains(&self.step)) {
            return Ok(false);
        }
        if self.options.interrupt.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Interrupted, "the run was asked to stop"));
        }
        Ok(self.advance(true)?.is_some())
    }

    /// Makes the next batch, and the state after it the one that stands.
    fn advance(&mut self, passing: bool) -> Result<Option<Vec<Block>>> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.end.as_ref().is_some_and(|end| self.step >= end.step) {
            return Ok(None);
        }
        let batch_size = self.plan.config.batch_size as usize;
        while self.batch.len() < batch_size {
            match self.next_block() {
                Ok(Some(block)) => self.batch.push(block),
                Ok(None) if self.options.even == Some(Even::Pad) => {
                    let block = self.masked_block();
                    self.batch.push(block);
                }
                Ok(None) => break,
                Err(error) => {
                    if error.kind() != ErrorKind::Interrupted {
                        self.failed = Some(error.clone());
                    }
                    return Err(error);
                }
            }
        }
        if passing {
            let lanes: BTreeSet<usize> = self.touched.iter().map(|(index, _)| *index).collect();
            for index in lanes {
                self.lanes[index].pass(&self.delivered[index], &self.plan);
            }
        }
        while let Some((index, source)) = self.touched.pop_first() {
            let (lane, state) = (&self.lanes[index], &mut self.delivered[index]);
            (state.blocks, state.stage_from) = (lane.blocks, lane.stage.from_block);
            (state.padded, state.passed_blocks) = (lane.padded, lane.passed_blocks);
            let name = self.plan.sources[source].name();
            *state.sources.get_mut(name).expect("a lane's state has all sources") = lane.source_state(source);
        }
        if self.batch.is_empty() {
            return Ok(None);
        }
        self.step += 1;
        Ok(Some(std::mem::replace(&mut self.batch, Vec::with_capacity(batch_size))))
    }

    /// A block of padding alone, after the end of all lanes: numbered as if its lane went on, in the global order.
    fn masked_block(&mut self) -> Block {
        let lanes = u64::from(self.plan.config.lanes);
        let number = |lane: &Lane| (lane.blocks + lane.padded) * lanes + u64::from(lane.lane);
        let numbers = self.lanes.iter().enumerate().map(|(index, lane)| (number(lane), index));
        let (number, index) = numbers.min().expect("each rank has a lane: the world size divides their number");
        let lane = &mut self.lanes[index];
        lane.padded += 1;
        self.touched.insert((index, 0));
        let block_size = self.plan.config.block_size as usize;
        let mut block = Block::new(number, lane.lane, 0, block_size);
        block.input_ids.resize(block_size, self.tokenizer.pad());
        block
    }

    /// The state after the last batch delivered: positions, no data.
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint {
            version: VERSION,
            step: self.step,
            rank: self.options.rank,
            world_size: self.options.world_size,
            batch_size: self.plan.config.batch_size,
            lanes: self.plan.config.lanes,
            fingerprint: self.fingerprint.clone(),
            mixture: self.mixture.clone(),
            shard_stages: self.shard_stages.clone(),
            skipped: self.skip.iter().filter(|range| range.start < self.step).cloned().collect(),
            now: self.now.clone(),
            cursors: self.delivered.clone(),
        }
    }

    /// Counts by source, in the order of [`Plan::sources`], of what was delivered.
    pub fn stats(&self) -> Vec<SourceStats> {
        let mut stats = vec![SourceStats { epoch: u32::MAX, ..SourceStats::default() }; self.plan.sources.len()];
        for lane in &self.delivered {
            for (source, stats) in self.plan.sources.iter().zip(&mut stats) {
                let SourceState { cursor, passed, .. } = &lane.sources[source.name()];
                stats.totals.add(&passed.left_out_of(&cursor.totals));
                stats.passed.add(passed);
                stats.epoch = stats.epoch.min(cursor.place.epoch);
                stats.lanes_ended += u32::from(cursor.ended);
            }
        }
        stats
    }

    /// Blocks delivered since the run's first start by the lanes of this rank: masked ones counted, those passed over not.
    pub fn delivered_blocks(&self) -> u64 {
        self.delivered.iter().map(|lane| lane.blocks + lane.padded - lane.passed_blocks).sum()
    }

    /// Masked blocks that [`Even::Pad`] added since the run's first start, in the lanes of this rank.
    pub fn padded_blocks(&self) -> u64 {
        self.delivered.iter().map(|lane| lane.padded).sum()
    }

    /// Batches passed over since the run's first start.
    pub fn skipped_batches(&self) -> u64 {
        self.skip.iter().map(|range| range.end.min(self.step).saturating_sub(range.start)).sum()
    }

    /// The step at which all ranks end, if `options.even` says that they do at the same one.
    pub fn end_step(&self) -> Option<u64> {
        self.end.as_ref().map(|end| end.step)
    }

    /// Blocks of this rank's lanes that [`Even::Drop`] leaves out, once the run is at its end; 0 before.
    pub fn dropped_blocks(&self) -> u64 {
        self.end.as_ref().filter(|end| self.step >= end.step).map_or(0, |end| end.dropped_blocks)
    }

    /// The first few bad records and damaged parts that were passed over, with their places.
    pub fn bad_records(&self) -> &[Error] {
        &self.bad_records
    }

    /// Puts a lane that goes on where its next block comes in the global order.
    fn enqueue(&mut self, index: usize) {
        let lane = &self.lanes[index];
        if !lane.ended(self.plan.config.stop) {
            self.order.insert((lane.blocks * u64::from(self.plan.config.lanes) + u64::from(lane.lane), index));
        }
    }

    fn next_block(&mut self) -> Result<Option<Block>> {
        let plan = self.plan.clone();
        let config = &plan.config;
        let block_size = config.block_size as usize;
        let pad = (config.packing.tail == Tail::Pad).then(|| self.tokenizer.pad());
        let weights = plan.weights();
        while let Some(&(global, index)) = self.order.first() {
            let lane = &mut self.lanes[index];
            let mut block = match self.filling.take() {
                Some(block) => block,
                None => {
                    let active: Vec<u64> =
                        weights.iter().zip(&lane.left).map(|(w, left)| if *left { 0 } else { *w }).collect();
                    let Some(source) = next_source(&active, lane.lane, &lane.stage) else {
                        self.order.pop_first();
                        continue;
                    };
                    Block::new(global, lane.lane, source as u32, block_size)
                }
            };
            let source = block.source as usize;
            if self.unpacked.get(source) == Some(&true) {
                self.order.pop_first();
                lane.blocks += 1;
                lane.stage.blocks[source] += 1;
                self.enqueue(index);
                continue;
            }
            let strand = index * weights.len() + source;
            self.touched.insert((index, source));
            let (documents, bad_records, skipped) = (&mut self.documents, &mut self.bad_records, &mut self.skipped);
            let filled = lane.packers[source].fill(&mut block, block_size, &mut |spent| {
                let piece = documents.next(strand, spent)?;
                if let Some(piece) = &piece {
                    let room = BAD_RECORDS_KEPT.saturating_sub(bad_records.len());
                    bad_records.extend(piece.lost.iter().chain(&piece.bad_records).take(room).cloned());
                    *skipped += piece.lost.len() as u64;
                    *skipped += piece.documents.iter().filter(|document| document.skipped).count() as u64;
                    if *skipped > config.errors.max_bad_records {
                        return Err(too_many(*skipped, config.errors.max_bad_records, bad_records));
                    }
                }
                Ok(piece)
            });
            let complete = match filled {
                Ok(Filled::Full) => true,
                Ok(Filled::Ended) => {
                    let padded = lane.packers[source].finish(&mut block, block_size, pad);
                    lane.left[source] = true;
                    padded
                }
                Err(error) => {
                    self.filling = Some(block);
                    return Err(error);
                }
            };
            self.order.pop_first();
            if complete {
                lane.blocks += 1;
                lane.stage.blocks[source] += 1;
            }
            if lane.left[source] {
                // The others share what comes by their weights, from here.
                lane.stage = StageCounts { from_block: lane.blocks, blocks: vec![0; weights.len()] };
                self.touched.extend((0..weights.len()).map(|source| (index, source)));
            }
            self.enqueue(index);
            if complete {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }
}

fn too_many(found: u64, most: u64, places: &[Error]) -> Error {
    let places: Vec<String> = places.iter().map(|error| error.to_string()).collect();
    let detail = format!(
        "{found} bad records and damaged parts, expected at most errors.max_bad_records = {most}; the first: {}",
        places.join("; ")
    );
    Error::new(ErrorKind::Limit, detail)
}
