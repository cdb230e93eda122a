//! State: where a run stands, as a small piece of JSON that holds positions and no data.
//!
//! Comes in: cursors of lanes. Goes out: a [`Checkpoint`], and what of it a rank needs to go on.
//! Holds: a checkpoint describes what was *delivered*; it names what it fits; its size depends on lanes and sources, not on
//! shards or on how much was consumed. Does not know: how documents are read.
//!
//! # The format, version 2
//!
//! A checkpoint of W ranks is W files `step-SSSSSSSS/rank-RRRRR-of-WWWWW.json`, each with the lanes of its rank:
//!
//! ```json
//! { "version": 2, "step": 100, "rank": 2, "world_size": 4, "lanes": 32,
//!   "fingerprint": { "seed": 42, "tokenizer": { "name": "gpt2", "hash": "..." }, "sources": { ... }, ... },
//!   "mixture": [ { "from_block": 0, "from_step": 0, "weights": { "code": 300000, "web": 700000 } } ],
//!   "shard_stages": { "web": [ { "from_epoch": 0, "shards": 1000 }, { "from_epoch": 2, "shards": 1200 } ] },
//!   "cursors": [ { "lane": 2, "blocks": 25, "stage_from": 0, "sources": {
//!       "web": { "stage_blocks": 18, "epoch": 0, "walk": 3, "unit": 1, "window": 7, "byte": 14680064,
//!                "document": 41, "token": 311, "crc": 2774538110, "blocks": 18, ... } } }, ... ] }
//! ```
//!
//! * A reader MUST refuse another `version`, and a fingerprint that differs in anything but sources added or removed and
//!   shards appended; it SHOULD name all differences at once.
//! * A reader MUST have all lanes it is to deliver; it MAY take them from files of any number of ranks of one step. A file MUST
//!   be of the run, step, rank and world size that its name and the others say, with one exception: a rank whose
//!   lanes have all ended MAY be taken from its last file, which is then of an earlier step.
//! * A step counts when its files have each lane once. A reader that looks for the newest one MAY pass over steps that lack
//!   files; it MUST NOT pass over a damaged file.
//! * As long as no lane has ended, the lanes' `blocks` are those of a prefix of the global order: N or N + 1 each, the
//!   lowest lanes having N + 1. A reader MUST refuse others, unless the last stage of `mixture` is `apart`: then lanes that had
//!   ended went on, each from where it stood, when the stage began. A reader that has all lanes SHOULD take the mark away
//!   once they form a prefix.
//! * `blocks` of a lane is the number of blocks it has delivered; the lane's next block has the global number
//!   `blocks * lanes + lane`.
//! * A cursor names the first token not delivered: epoch, index of the shard in the lane's walk, unit in the lane's
//!   share of it, window in the unit, document in the window's delivery order, tokens of it that were delivered.
//!   `byte` (and `row`) say where the window begins; `row` MUST be kept where it stands.
//! * `crc` is the CRC-32 of up to 256 ids before and after the cut, little-endian u32; a reader MUST compare it.
//! * A reader MAY go on with other weights: it appends a stage to `mixture`, with its `step` as `from_step`, and sets each lane's `stage_from` to
//!   the lane's `blocks`, its `stage_blocks` to 0. The same holds when sources come or go: a new one starts from its
//!   beginning, one that is gone is forgotten. A writer MAY leave out the oldest stages beyond 16.
//! * `hash` of a source is over names and sizes of its shards, sorted by name, the folder that all have in common left out;
//!   `marks` are short hashes over about every eighth of them, which only serve error messages.
//! * A reader MAY go on with shards appended, if `hash` is that of as many shards of its own as there were: it MUST deal the old
//!   number in all epochs up to the highest that any lane of the run is in, and the new one from the next on, and say
//!   so in `shard_stages`. A stage holds up to the next one's `from_epoch`; a source that isn't there has one, of all its
//!   shards. Stages that no lane needs any more SHOULD be left out, the first one left being from epoch 0.
//! * `skipped`, where present, lists the batches `start..end` (numbers of steps, `end` may lie ahead) that are passed over instead of
//!   delivered; a reader MUST go on passing over those ahead. What was in them is in `passed_blocks` of a lane and in
//!   `passed` of a source; `blocks` and a cursor's counts include it.
//! * `padded` of a lane, where present, is the number of masked blocks that followed its last block to make ranks even; a reader that
//!   adds more MUST number them on: `(blocks + padded) * lanes + lane`.
//! * `window_blocks` of a cursor, where present, says that the cursor names the first document of a window that is packed as a whole, and that so many of the
//!   window's blocks were delivered; `crc` is then that of the last of them, and `token` is 0.
//! * `now`, where present, is the time that chat templates see; a reader MUST go on with it.
//! * All other numbers are counts for reports.

mod files;
mod objects;
mod shards;

pub use files::{Saved, check_folder, load, load_around, load_files, save};
pub use objects::{check_objects, load_object_files, load_objects, load_objects_around, save_object};
pub(crate) use shards::shard_stages;
pub use shards::{ShardStage, data_difference};

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::chat::Clock;
use crate::config::{LANES_MAX, Stop};
use crate::error::{Error, ErrorKind, Result};
use crate::packing::{Cursor, PackingOptions, Totals};
use crate::shard::Format;
use crate::source::ShuffleOptions;

/// Version of the format written here.
pub const VERSION: u32 = 2;

/// Everything that the stream is a function of, with readable parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// `seed`.
    pub seed: u64,
    /// `lanes`.
    pub lanes: u32,
    /// `block_size`.
    pub block_size: u32,
    /// `stop`.
    pub stop: Stop,
    /// The tokenizer's definition.
    pub tokenizer: TokenizerPrint,
    /// `[packing]`.
    pub packing: PackingOptions,
    /// `[shuffle]`.
    pub shuffle: ShuffleOptions,
    /// The sources by name.
    pub sources: BTreeMap<String, SourcePrint>,
}

/// The tokenizer's part of a fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizerPrint {
    /// As configured; not compared.
    pub name: String,
    /// Number of ids; not compared, the hash covers it.
    pub vocab_size: u32,
    /// Hash of all that decides ids.
    pub hash: String,
}

/// A source's part of a fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourcePrint {
    /// Number of shards.
    pub shards: u64,
    /// Bytes of all shards.
    pub bytes: u64,
    /// Hash of the shards' names and sizes.
    pub hash: String,
    /// Short hashes over about every eighth of the shards, see [`Manifest::marks`](crate::source::Manifest::marks).
    #[serde(default)]
    pub marks: String,
    /// `format`.
    pub format: Format,
    /// `text_field`.
    pub text_field: String,
    /// `separator`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub separator: Option<String>,
    /// `max_epochs`.
    pub max_epochs: u32,
    /// Hash of `chat` and the template, where the source holds conversations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat: Option<String>,
}

impl Fingerprint {
    /// What differs from the checkpoint's fingerprint `expected`, a sentence each: found (now) and expected (then).
    ///
    /// Sources that came or went are no difference; shards that were appended are, see
    /// [`Plan::differences`](crate::plan::Plan::differences).
    pub fn differences(&self, expected: &Fingerprint) -> Vec<String> {
        let show = |p: &SourcePrint| format!("{} shards of {} bytes, hash {}", p.shards, p.bytes, short(&p.hash));
        self.compare(expected, &mut |_, now, then| {
            (!now.same_data(then)).then(|| format!("found {}, expected {}", show(now), show(then)))
        })
    }

    /// As [`Fingerprint::differences`], `data` saying for a source, by name, how its shards of now differ from those of then.
    pub(crate) fn compare(
        &self,
        expected: &Fingerprint,
        data: &mut dyn FnMut(&str, &SourcePrint, &SourcePrint) -> Option<String>,
    ) -> Vec<String> {
        let mut list = Vec::new();
        let compare = |list: &mut Vec<String>, key: &str, found: String, then: String| {
            if found != then {
                list.push(format!("{key}: found {found}, expected {then}"));
            }
        };
        compare(&mut list, "seed", self.seed.to_string(), expected.seed.to_string());
        compare(&mut list, "lanes", self.lanes.to_string(), expected.lanes.to_string());
        compare(&mut list, "block_size", self.block_size.to_string(), expected.block_size.to_string());
        compare(&mut list, "stop", json(&self.stop), json(&expected.stop));
        compare(&mut list, "packing", json(&self.packing), json(&expected.packing));
        compare(&mut list, "shuffle", json(&self.shuffle), json(&expected.shuffle));
        if self.tokenizer.hash != expected.tokenizer.hash {
            let show = |t: &TokenizerPrint| format!("{:?} ({} ids, hash {})", t.name, t.vocab_size, short(&t.hash));
            compare(&mut list, "tokenizer", show(&self.tokenizer), show(&expected.tokenizer));
        }
        for (name, found) in &self.sources {
            let Some(then) = expected.sources.get(name) else { continue };
            let of = |key: &str| format!("source {name:?}, {key}");
            compare(&mut list, &of("format"), json(&found.format), json(&then.format));
            compare(&mut list, &of("text_field"), json(&found.text_field), json(&then.text_field));
            compare(&mut list, &of("separator"), json(&found.separator), json(&then.separator));
            compare(&mut list, &of("max_epochs"), found.max_epochs.to_string(), then.max_epochs.to_string());
            compare(&mut list, &of("chat and its template"), json(&found.chat), json(&then.chat));
            list.extend(data(name, found, then).map(|difference| format!("{}: {difference}", of("data"))));
        }
        list
    }
}

impl SourcePrint {
    /// Whether the shards are the same, as far as names and sizes tell.
    pub fn same_data(&self, other: &SourcePrint) -> bool {
        (self.shards, self.bytes, &self.hash) == (other.shards, other.bytes, &other.hash)
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

/// Most stages of weights that are kept; older ones only tell what was.
pub(crate) const MIXTURE_STAGES_MAX: usize = 16;

/// Weights that held from a block number on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MixtureStage {
    /// Lowest block number of a lane at which the stage began.
    pub from_block: u64,
    /// Step at which it began.
    #[serde(default)]
    pub from_step: u64,
    /// True when lanes that had ended went on, each from where it stood: since then the lanes' block numbers may lie apart.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub apart: bool,
    /// Integer weights by source.
    pub weights: BTreeMap<String, u64>,
}

/// One lane's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneState {
    /// The lane's number.
    pub lane: u32,
    /// Blocks it has delivered.
    pub blocks: u64,
    /// Masked blocks it has delivered after its end.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub padded: u64,
    /// Blocks, masked ones too, that were passed over instead of delivered.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub passed_blocks: u64,
    /// Its block number at which the weights it runs with began to hold.
    pub stage_from: u64,
    /// Its cursors by source.
    pub sources: BTreeMap<String, SourceState>,
}

impl LaneState {
    /// Whether the lane has delivered all that it will, with these weights.
    fn ended(&self, stop: Stop, weights: &BTreeMap<String, u64>) -> bool {
        let ended = |name: &String| self.sources.get(name).is_some_and(|source| source.cursor.ended);
        match stop {
            Stop::First => self.sources.keys().any(ended),
            Stop::All => weights.iter().filter(|(_, weight)| **weight > 0).all(|(name, _)| ended(name)),
        }
    }
}

/// Whether the lanes' block counts are those of a prefix of the global order, which any part of the lanes shows too.
pub(crate) fn is_prefix(lanes: &[LaneState]) -> bool {
    let Some(least) = lanes.iter().map(|lane| lane.blocks).min() else { return true };
    lanes.iter().all(|lane| lane.blocks - least <= 1) && lanes.is_sorted_by(|a, b| a.blocks >= b.blocks)
}

/// `0, 1, 5 and 12 more`.
pub(crate) fn lane_list(lanes: &[u32]) -> String {
    const SHOWN: usize = 16;
    let list: Vec<String> = lanes.iter().take(SHOWN).map(u32::to_string).collect();
    match lanes.len().saturating_sub(SHOWN) {
        0 => list.join(", "),
        more => format!("{} and {more} more", list.join(", ")),
    }
}

/// One lane's cursor in one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceState {
    /// Blocks the source gave since `stage_from`.
    pub stage_blocks: u64,
    /// What the batches passed over held of it.
    #[serde(default, skip_serializing_if = "Passed::is_nothing")]
    pub passed: Passed,
    /// Where it stands.
    #[serde(flatten)]
    pub cursor: Cursor,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Counts of what was passed over instead of delivered, of one source. A document counts where its last token lies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    /// Blocks.
    pub blocks: u64,
    /// Tokens, padding not counted.
    pub tokens: u64,
    /// Documents.
    pub documents: u64,
    /// Bytes of text of these documents.
    pub text_bytes: u64,
}

impl Passed {
    fn is_nothing(&self) -> bool {
        *self == Passed::default()
    }

    /// Adds another lane's counts.
    pub fn add(&mut self, other: &Passed) {
        self.blocks += other.blocks;
        self.tokens += other.tokens;
        self.documents += other.documents;
        self.text_bytes += other.text_bytes;
    }

    /// Adds what came between two counts.
    pub(crate) fn count(&mut self, before: &Totals, now: &Totals) {
        self.blocks += now.blocks - before.blocks;
        self.tokens += now.tokens - before.tokens;
        self.documents += now.documents - before.documents;
        self.text_bytes += now.text_bytes - before.text_bytes;
    }

    /// `totals` without this.
    pub(crate) fn left_out_of(&self, totals: &Totals) -> Totals {
        Totals {
            blocks: totals.blocks - self.blocks,
            tokens: totals.tokens - self.tokens,
            documents: totals.documents - self.documents,
            text_bytes: totals.text_bytes - self.text_bytes,
            ..*totals
        }
    }
}

/// The state of some lanes of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// [`VERSION`].
    pub version: u32,
    /// Batches delivered since the run's first start; of a union, by the rank that delivered most.
    pub step: u64,
    /// Rank that wrote it.
    pub rank: u32,
    /// Ranks of the run that wrote it.
    pub world_size: u32,
    /// Blocks in a batch of a rank; 0 when it isn't known.
    #[serde(default)]
    pub batch_size: u32,
    /// Lanes of the run.
    pub lanes: u32,
    /// What it fits.
    pub fingerprint: Fingerprint,
    /// The stages of weights so far, at most 16.
    pub mixture: Vec<MixtureStage>,
    /// The sources of which not all lanes deal all shards yet.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shard_stages: BTreeMap<String, Vec<ShardStage>>,
    /// Batches passed over, in order: ranges that have begun, of which the last may go on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<Range<u64>>,
    /// The time that chat templates see, where `now` isn't set: that of the run's first start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<String>,
    /// The lanes, by number.
    pub cursors: Vec<LaneState>,
}

impl Checkpoint {
    /// Parses and checks a checkpoint's bytes.
    ///
    /// # Errors
    /// `StateMismatch`: not JSON, another version, numbers that contradict each other.
    pub fn parse(bytes: &[u8]) -> Result<Checkpoint> {
        let wrong = |detail: String| Error::new(ErrorKind::StateMismatch, detail);
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = serde_json::from_slice(bytes)
            .map_err(|error| wrong("not a checkpoint: no readable JSON with a \"version\"".into()).because(error))?;
        if version != VERSION {
            return Err(wrong(format!(
                "the checkpoint has version {version}, expected {VERSION}: only a release of tokenmill that writes version {version} goes on \
                 with the same stream"
            )));
        }
        let checkpoint: Checkpoint = serde_json::from_slice(bytes)
            .map_err(|error| wrong(format!("not a checkpoint of version {VERSION}")).because(error))?;
        checkpoint.check()?;
        Ok(checkpoint)
    }

    /// Whether the numbers fit each other.
    fn check(&self) -> Result<()> {
        let wrong = |detail: String| Err(Error::new(ErrorKind::StateMismatch, detail));
        if self.lanes == 0 || self.lanes > LANES_MAX || self.lanes != self.fingerprint.lanes {
            return wrong(format!(
                "the checkpoint has {} lanes, its fingerprint {}",
                self.lanes, self.fingerprint.lanes
            ));
        }
        if self.world_size == 0 || self.rank >= self.world_size {
            return wrong(format!("the checkpoint is of rank {} of {}", self.rank, self.world_size));
        }
        if self.mixture.is_empty() {
            return wrong("the checkpoint has no mixture, expected at least one stage".into());
        }
        for (name, stages) in &self.shard_stages {
            let rising = stages.windows(2).all(|s| s[0].from_epoch < s[1].from_epoch && s[0].shards < s[1].shards);
            let print = self.fingerprint.sources.get(name);
            let whole = stages.last().is_some_and(|last| print.is_some_and(|print| print.shards == last.shards));
            if !rising || !whole || stages[0].from_epoch != 0 || stages[0].shards == 0 {
                return wrong(format!(
                    "the checkpoint's shard_stages of {name:?} contradict each other or its {} shards",
                    print.map_or(0, |print| print.shards)
                ));
            }
        }
        if let Some(now) = &self.now
            && Clock::parse(now).is_err()
        {
            return wrong(format!("the checkpoint's now is {now:?}, expected a date"));
        }
        if self.step > 1 << 48 {
            return wrong(format!("the checkpoint is of step {}, expected fewer", self.step));
        }
        for stage in &self.mixture {
            if stage.weights.values().try_fold(0u64, |sum, weight| sum.checked_add(*weight)).is_none() {
                return wrong(format!("the checkpoint's weights {:?} are out of range", stage.weights));
            }
        }
        let mut reached = 0;
        for range in &self.skipped {
            if range.is_empty() || range.start < reached || range.start >= self.step {
                return wrong(format!(
                    "the checkpoint of step {} has skipped the batches {}..{}, out of order or not begun",
                    self.step, range.start, range.end
                ));
            }
            reached = range.end;
        }
        let mut last = None;
        for lane in &self.cursors {
            if lane.lane >= self.lanes || last.is_some_and(|last| last >= lane.lane) {
                return wrong(format!(
                    "the checkpoint has lane {} twice, out of order or beyond {}",
                    lane.lane, self.lanes
                ));
            }
            last = Some(lane.lane);
            let in_stage = lane.sources.values().try_fold(0u64, |sum, s| sum.checked_add(s.stage_blocks));
            // A source that was removed took its count along, so the sum may be less.
            if in_stage.is_none_or(|sum| lane.stage_from.checked_add(sum).is_none_or(|reached| reached > lane.blocks)) {
                return wrong(format!(
                    "lane {} of the checkpoint has delivered {} blocks, but its stage from block {} has more",
                    lane.lane, lane.blocks, lane.stage_from
                ));
            }
            if lane.blocks > 1 << 48 {
                return wrong(format!(
                    "lane {} of the checkpoint has delivered {} blocks, expected fewer",
                    lane.lane, lane.blocks
                ));
            }
            if lane.padded > 1 << 48 || lane.passed_blocks > lane.blocks + lane.padded {
                return wrong(format!(
                    "lane {} of the checkpoint has {} masked blocks and {} passed over of {}, expected fewer",
                    lane.lane, lane.padded, lane.passed_blocks, lane.blocks
                ));
            }
            for (name, source) in &lane.sources {
                let (passed, totals) = (source.passed, source.cursor.totals);
                if passed.blocks > totals.blocks
                    || passed.tokens > totals.tokens
                    || passed.documents > totals.documents
                    || passed.text_bytes > totals.text_bytes
                {
                    return wrong(format!(
                        "lane {} of the checkpoint has passed over more of {name:?} than there was",
                        lane.lane
                    ));
                }
                let place = source.cursor.place;
                let counts = [
                    totals.blocks,
                    totals.documents,
                    totals.tokens,
                    totals.text_bytes,
                    totals.skipped,
                    totals.dropped_tokens,
                    totals.padding,
                ];
                // Sums over 2^16 lanes fit 64 bits, and so do products of places with numbers of lanes and windows.
                if [place.unit, place.window, place.byte, place.row.unwrap_or(0)].iter().any(|n| *n > 1 << 56)
                    || place.walk > 1 << 40
                    || place.epoch > 1 << 30
                    || counts.iter().any(|n| *n > 1 << 47)
                {
                    return wrong(format!(
                        "lane {} of the checkpoint has a cursor in {name:?} out of range",
                        lane.lane
                    ));
                }
            }
        }
        Ok(())
    }

    /// The bytes of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("a checkpoint has string keys and finite numbers only");
        bytes.push(b'\n');
        bytes
    }

    /// The lanes of the run that aren't in it.
    pub fn missing_lanes(&self) -> Vec<u32> {
        let mut cursors = self.cursors.iter().map(|cursor| cursor.lane).peekable();
        (0..self.lanes).filter(|lane| cursors.next_if_eq(lane).is_none()).collect()
    }

    /// Whether all of its lanes have ended: what comes after it is nothing.
    pub fn ended(&self) -> bool {
        let weights = self.mixture.last().map(|stage| &stage.weights);
        let stop = self.fingerprint.stop;
        weights.is_some_and(|weights| self.cursors.iter().all(|lane| lane.ended(stop, weights)))
    }

    /// Checks that the lanes stand at one place of the global order, where none has ended: files of ranks that went on by
    /// themselves don't.
    ///
    /// # Errors
    /// `StateMismatch`, naming the lanes with the blocks they have delivered.
    pub fn check_frontier(&self) -> Result<()> {
        let Some(stage) = self.mixture.last() else { return Ok(()) };
        let stop = self.fingerprint.stop;
        let least = self.cursors.iter().map(|lane| lane.blocks).min().unwrap_or(0);
        let apart = stage.apart || self.cursors.iter().any(|lane| lane.ended(stop, &stage.weights));
        if apart || is_prefix(&self.cursors) {
            return Ok(());
        }
        let mut by_blocks: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for lane in &self.cursors {
            by_blocks.entry(lane.blocks).or_default().push(lane.lane);
        }
        const SHOWN: usize = 8;
        let mut list: Vec<String> = by_blocks
            .iter()
            .take(SHOWN)
            .map(|(blocks, lanes)| format!("{blocks} blocks in lanes {}", lane_list(lanes)))
            .collect();
        if by_blocks.len() > SHOWN {
            list.push(format!("and {} other numbers", by_blocks.len() - SHOWN));
        }
        Err(Error::new(
            ErrorKind::StateMismatch,
            format!(
                "the lanes of the checkpoint (step {}) don't stand at one place of the global order: found {}, expected {least} \
                 or {} in each, the lowest lanes having {}: its parts are of different moments",
                self.step,
                list.join("; "),
                least + 1,
                least + 1
            ),
        ))
    }

    /// Joins the named parts of one step into the checkpoint of all lanes. A part whose lanes have all ended may be of
    /// an earlier step.
    ///
    /// # Errors
    /// `StateMismatch`: parts of different runs or steps, a lane in two of them or in none. One error lists all of it, the
    /// lanes not covered, and the parts.
    pub fn union(parts: Vec<(String, Checkpoint)>) -> Result<Checkpoint> {
        assemble(parts, Vec::new(), true)
    }

    /// Joins the named parts of one step as [`Checkpoint::union`] does, but not all lanes have to be there: the workers
    /// of one rank have those of the rank.
    ///
    /// # Errors
    /// As [`Checkpoint::union`].
    pub fn join(parts: Vec<(String, Checkpoint)>) -> Result<Checkpoint> {
        assemble(parts, Vec::new(), false)
    }
}

/// What says that `part` is of another run, or of another stretch of it, than `whole`.
fn run_differences(part: &Checkpoint, whole: &Checkpoint) -> Vec<String> {
    let mut differ = part.fingerprint.differences(&whole.fingerprint);
    let sources = |checkpoint: &Checkpoint| json(&checkpoint.fingerprint.sources.keys().collect::<Vec<_>>());
    let weights = |checkpoint: &Checkpoint| -> Vec<String> {
        checkpoint.mixture.iter().map(|stage| json(&stage.weights)).collect()
    };
    if sources(part) != sources(whole) {
        differ.push(format!("sources: found {}, expected {}", sources(part), sources(whole)));
    } else if weights(part) != weights(whole) {
        let (found, expected) = (weights(part).join(", "), weights(whole).join(", "));
        differ.push(format!("stages of weights: found {found}, expected {expected}"));
    }
    if part.now != whole.now {
        differ.push(format!("now: found {}, expected {}", json(&part.now), json(&whole.now)));
    }
    if part.skipped != whole.skipped {
        let (found, expected) = (json(&part.skipped), json(&whole.skipped));
        differ.push(format!("batches skipped: found {found}, expected {expected}"));
    }
    if part.shard_stages != whole.shard_stages {
        let (found, expected) = (json(&part.shard_stages), json(&whole.shard_stages));
        differ.push(format!("shard_stages: found {found}, expected {expected}"));
    }
    differ
}

/// Joins `parts`; `problems` are those that were met before, with files that gave no part.
fn assemble(parts: Vec<(String, Checkpoint)>, mut problems: Vec<String>, all: bool) -> Result<Checkpoint> {
    let wrong = |detail: String| Err(Error::new(ErrorKind::StateMismatch, detail));
    let names: Vec<String> = parts.iter().map(|(name, _)| name.clone()).collect();
    let newest = parts.iter().map(|(_, part)| part.step).max().unwrap_or(0);
    let newest_name = parts.iter().find(|(_, part)| part.step == newest).map_or("", |(name, _)| name).to_owned();
    let mut parts = parts.into_iter();
    let Some((first_name, mut whole)) = parts.next() else {
        problems.push("no checkpoint file, expected at least one".into());
        return wrong(problems.join("; "));
    };
    let mut from: BTreeMap<u32, String> = BTreeMap::new();
    let cursors = std::mem::take(&mut whole.cursors);
    let first = (first_name.clone(), Checkpoint { cursors, ..whole.clone() });
    for (name, part) in std::iter::once(first).chain(parts) {
        let differ = run_differences(&part, &whole);
        if !differ.is_empty() {
            problems.push(format!("{name} is of another run than {first_name}: {}", differ.join("; ")));
            continue;
        }
        if part.step != newest && !part.ended() {
            problems.push(format!("{name} is of step {}, expected {newest} as in {newest_name}", part.step));
        }
        for (whole, part) in whole.mixture.iter_mut().zip(&part.mixture) {
            // Parts that were resumed with lanes of their own only knew those.
            whole.from_block = whole.from_block.min(part.from_block);
            whole.apart |= part.apart;
        }
        let mut twice: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for cursor in part.cursors {
            match from.get(&cursor.lane) {
                Some(other) => twice.entry(other.clone()).or_default().push(cursor.lane),
                None => {
                    from.insert(cursor.lane, name.clone());
                    whole.cursors.push(cursor);
                }
            }
        }
        for (other, lanes) in twice {
            problems.push(format!("lanes {} are in {other} and in {name}, expected them once", lane_list(&lanes)));
        }
    }
    whole.step = newest;
    whole.cursors.sort_by_key(|cursor| cursor.lane);
    let missing = whole.missing_lanes();
    if problems.is_empty() && (missing.is_empty() || !all) {
        return Ok(whole);
    }
    const SHOWN: usize = 8;
    let more = problems.len().saturating_sub(SHOWN);
    problems.truncate(SHOWN);
    if more > 0 {
        problems.push(format!("and {more} more such files"));
    }
    if all && !missing.is_empty() {
        let count = format!("{} of {} lanes are not covered", missing.len(), whole.lanes);
        problems.push(format!("{count}: {}", lane_list(&missing)));
    }
    let more = names.len().saturating_sub(2 * SHOWN);
    let seen = names[..names.len() - more].join(", ");
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    wrong(format!(
        "the parts of the checkpoint don't fit together: {}; found {seen}{more}, expected each lane once, from all ranks of one step",
        problems.join("; ")
    ))
}
