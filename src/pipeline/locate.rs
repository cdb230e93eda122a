//! Provenance: which documents a block is made of.
//!
//! Comes in: a block's global number, and checkpoints of the run if there are any. Goes out: its [`DocumentPart`]s. Holds: each part is
//! read again and tokenized again, and must give the block's ids; the same answer with any checkpoints, or an error.
//! Does not know: ranks; any process that can read the data can ask.
//!
//! Where a block begins depends on the token counts of all documents before it in its lane and source, so the lane is replayed
//! up to the block: from the nearest checkpoint before it, or from the beginning. Other lanes are not touched, and neither are
//! the lane's other sources, where none of them can end.

use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;

use super::reader::{Context, LaneReader, LoadedWindow};
use super::{Pipeline, RunOptions};
use crate::block::Block;
use crate::chat::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::mixture::{StageCounts, next_source};
use crate::packing::Cursor;
use crate::plan::Plan;
use crate::shard::Format;
use crate::state::{Checkpoint, MixtureStage};
use crate::tokenizer::Tokenizer;

/// The part of a document that lies in a block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DocumentPart {
    /// The source's name.
    pub source: String,
    /// The shard, as errors name it.
    pub shard: String,
    /// Pass over the source, from 0.
    pub epoch: u32,
    /// Index of the record in the shard, from 0: a line of JSONL, blank ones counted; a row of Parquet; a piece of text.
    pub record: u64,
    /// Where the record lies in the uncompressed shard, its line end or separator left out; `None` for Parquet.
    pub bytes: Option<Range<u64>>,
    /// Tokens of the document, BOS and EOS included.
    pub document_tokens: u64,
    /// The part's tokens in the document.
    pub tokens_in_document: Range<u64>,
    /// The part's tokens in the block.
    pub tokens_in_block: Range<u64>,
}

/// Finds the documents of a block that the run delivers, or passes over.
///
/// Of `checkpoints`, in any order, the nearest before the block is where the replay starts; with one after it as well, weights that
/// changed in between are noticed. Without any, the run is taken to have had the plan's weights from its beginning. Of
/// `options`, `serial` and `interrupt` count.
///
/// Cost: the lane's documents from there to the block are read and tokenized: of one source where none of the run can end, else
/// of all. With the newest of many checkpoints as start, a few seconds; from the beginning, as long as the lane's part of the run took.
/// To name the record's index, its shard is read up to it.
///
/// # Errors
/// * `NotFound` - the lane ends before the block.
/// * `StateMismatch` - a checkpoint is of another run; the weights that led to the block can't be told.
/// * Whatever stops a document on the way.
pub fn locate(
    plan: &Arc<Plan>,
    tokenizer: &Arc<Tokenizer>,
    block: u64,
    checkpoints: &[Checkpoint],
    options: &RunOptions,
) -> Result<Vec<DocumentPart>> {
    let lanes = u64::from(plan.config.lanes);
    let (lane, number) = ((block % lanes) as u32, block / lanes);
    let history = History::new(plan, tokenizer, lane, number, checkpoints)?;
    let plan = Arc::new(history.plan);
    let options = RunOptions { serial: options.serial, interrupt: options.interrupt.clone(), ..RunOptions::default() };
    let mut pipeline = Pipeline::of_lanes(plan.clone(), tokenizer.clone(), options, &[lane], history.from.as_ref())?;
    // The batches are the replay's own: nothing is passed over.
    pipeline.skip.clear();
    pipeline.unpacked = unneeded(&plan, &pipeline, number);
    let found = loop {
        match pipeline.next_block()? {
            Some(found) if found.index == block => break found,
            Some(found) => debug_assert!(found.index < block, "a lane's blocks come in order"),
            None => {
                let detail = format!(
                    "no block {block}: lane {lane} ends after {} blocks, expected more than {number}",
                    pipeline.lanes[0].blocks
                );
                return Err(Error::new(ErrorKind::NotFound, detail));
            }
        }
    };
    let now = pipeline.now.as_deref().map_or(Ok(Clock::from_unix(0)), Clock::parse)?;
    parts(&plan, tokenizer, &found, now)
}

/// Sources that needn't be packed to reach block `number`: all but the one it is of, if no source can end before.
fn unneeded(plan: &Plan, pipeline: &Pipeline, number: u64) -> Vec<bool> {
    let lane = &pipeline.lanes[0];
    let weights = plan.weights();
    let can_end = |i: usize| weights[i] > 0 && plan.sources[i].options.max_epochs > 0;
    if (0..weights.len()).any(can_end) {
        return Vec::new();
    }
    let mut stage: StageCounts = lane.stage.clone();
    let mut last = None;
    for _ in lane.blocks..=number {
        last = next_source(&weights, lane.lane, &stage);
        if let Some(source) = last {
            stage.blocks[source] += 1;
        }
    }
    (0..weights.len()).map(|source| Some(source) != last).collect()
}

/// What led to a block: where to start, with which weights.
struct History {
    /// The plan with the weights of that time.
    plan: Plan,
    from: Option<Checkpoint>,
}

impl History {
    fn new(plan: &Plan, tokenizer: &Tokenizer, lane: u32, number: u64, checkpoints: &[Checkpoint]) -> Result<History> {
        let found = plan.fingerprint(tokenizer);
        for checkpoint in checkpoints {
            let differences = found.differences(&checkpoint.fingerprint);
            if !differences.is_empty() {
                let detail = format!("the checkpoint is of another run: {}", differences.join("; "));
                return Err(Error::new(ErrorKind::StateMismatch, detail));
            }
        }
        let blocks = |checkpoint: &Checkpoint| {
            checkpoint.cursors.iter().find(|state| state.lane == lane).map(|state| state.blocks)
        };
        let with_lane = || checkpoints.iter().filter_map(|checkpoint| Some((blocks(checkpoint)?, checkpoint)));
        if !checkpoints.is_empty() && with_lane().next().is_none() {
            let detail = format!("no checkpoint has lane {lane}, expected the files of all ranks of a step");
            return Err(Error::new(ErrorKind::StateMismatch, detail));
        }
        let from = with_lane().filter(|(blocks, _)| *blocks <= number).max_by_key(|(blocks, c)| (*blocks, c.step));
        let after = with_lane().filter(|(blocks, _)| *blocks > number).min_by_key(|(blocks, c)| (*blocks, c.step));
        let from = from.map(|(_, checkpoint)| checkpoint);
        let after = after.map(|(_, checkpoint)| checkpoint);
        let weights = weights_at(plan, number, from, after)?;
        let mut plan = Plan::clone(plan);
        if let Some(gone) = weights.keys().find(|name| !found.sources.contains_key(*name)) {
            let detail = format!("the block's mixture has the source {gone:?}, which the config lacks");
            return Err(Error::new(ErrorKind::StateMismatch, detail));
        }
        // Sources that were added later had no part in it.
        plan.sources.retain(|source| weights.contains_key(source.name()));
        for source in &mut plan.sources {
            source.weight = weights[source.name()];
        }
        Ok(History { plan, from: from.cloned() })
    }
}

/// The weights that held from checkpoint `from`, or from the run's beginning, up to block `number` of a lane.
fn weights_at(
    plan: &Plan,
    number: u64,
    from: Option<&Checkpoint>,
    after: Option<&Checkpoint>,
) -> Result<std::collections::BTreeMap<String, u64>> {
    let unclear = |detail: String| {
        let hint = "expected a checkpoint from between that change and the block";
        Err(Error::new(ErrorKind::StateMismatch, format!("{detail}; {hint}")))
    };
    let planned = plan.sources.iter().map(|source| (source.name().to_owned(), source.weight)).collect();
    let Some(after) = after else {
        let Some(from) = from else { return Ok(planned) };
        let stage = from.mixture.last().expect("a checkpoint was checked to have a stage");
        if stage.weights != planned {
            let detail = format!(
                "found the weights {planned:?} in the config and {:?} in the checkpoint of step {}, so it isn't known which of \
                 them led to the block; expected the weights of that time, or a checkpoint after the block as well",
                stage.weights, from.step
            );
            return Err(Error::new(ErrorKind::StateMismatch, detail));
        }
        return Ok(planned);
    };
    let stages: &[MixtureStage] = &after.mixture;
    let begun = from.map_or(1, |from| from.mixture.len());
    if from.is_some_and(|from| from.mixture.len() > stages.len() || from.mixture[..] != stages[..from.mixture.len()]) {
        return unclear("the checkpoints before and after the block are of runs that went apart".into());
    }
    match &stages[begun..] {
        [] => Ok(stages[begun - 1].weights.clone()),
        // The change came right at the checkpoint.
        [next] if from.is_some_and(|from| from.step == next.from_step) => Ok(next.weights.clone()),
        // A stage begins at its lowest block number of a lane, so all before are of the stage before.
        [next, ..] if number < next.from_block => Ok(stages[begun - 1].weights.clone()),
        later => unclear(format!(
            "the weights changed at block {} of a lane, before block {number}",
            later.iter().map(|stage| stage.from_block.to_string()).collect::<Vec<_>>().join(" and ")
        )),
    }
}

/// The block's documents, read again.
fn parts(plan: &Arc<Plan>, tokenizer: &Arc<Tokenizer>, block: &Block, now: Clock) -> Result<Vec<DocumentPart>> {
    let context = Context::new(plan.clone(), tokenizer.clone(), now)?;
    let source = &plan.sources[block.source as usize];
    let mut window: Option<LoadedWindow> = None;
    let mut parts = Vec::new();
    for (range, segment) in block.segment_ranges() {
        if window.as_ref().is_none_or(|window| window.place != segment.place) {
            let cursor = Cursor { place: segment.place, ..Cursor::default() };
            window = LaneReader::new(block.source as usize, block.lane, &cursor).next(&context, None)?;
        }
        let lost = || Error::new(ErrorKind::Internal, format!("block {} has no document at {segment:?}", block.index));
        let window = window.as_ref().filter(|window| window.place == segment.place).ok_or_else(lost)?;
        let index = segment.document as usize;
        let record = window.order.get(index).ok_or_else(lost)?;
        let encoded = window.encode(&context, index..index + 1, &mut String::new());
        if let Some(error) = encoded.error {
            return Err(error);
        }
        let first = segment.token as usize;
        if encoded.ids.get(first..first + range.len()) != Some(&block.input_ids[range.clone()]) {
            return Err(lost());
        }
        let byte = window.window.byte_start + u64::from(record.start);
        let (record_index, bytes) = if window.shard.format() == Format::Parquet {
            (window.window.first_record.ok_or_else(lost)? + u64::from(record.ordinal), None)
        } else {
            let index = match window.window.first_record {
                Some(first) => first + u64::from(record.ordinal),
                None => window.shard.record_index(window.unit, byte)?,
            };
            let start = window.shard.byte_offset(window.unit, byte)?;
            (index, Some(start..start + u64::from(record.len)))
        };
        let first = u64::from(segment.token);
        parts.push(DocumentPart {
            source: source.name().to_owned(),
            shard: window.shard.name().to_string(),
            epoch: segment.place.epoch,
            record: record_index,
            bytes,
            document_tokens: encoded.ids.len() as u64,
            tokens_in_document: first..first + range.len() as u64,
            tokens_in_block: range.start as u64..range.end as u64,
        });
    }
    Ok(parts)
}
