//! One lane under way: what it has delivered of each source, and how each source is packed.
//!
//! Comes in: the plan; where a checkpoint says the lane stands, through `resume.rs`. Goes out: packers to be filled, the lane's state. Holds: a lane's
//! state is that of its packers and counts, nothing else. Does not know: other lanes, documents.

use std::collections::VecDeque;

use crate::config::Stop;
use crate::error::{Error, ErrorKind, Result};
use crate::mixture::{StageCounts, next_source};
use crate::packing::{Cursor, Packer};
use crate::plan::{Plan, PlannedSource};
use crate::state::{LaneState, Passed, SourceState, lane_list};

/// One lane under way.
pub(super) struct Lane {
    pub(super) lane: u32,
    pub(super) blocks: u64,
    /// Masked blocks given after its end.
    pub(super) padded: u64,
    /// Blocks and masked blocks that were passed over, and what of each source was in them.
    pub(super) passed_blocks: u64,
    pub(super) passed: Vec<Passed>,
    pub(super) stage: StageCounts,
    pub(super) packers: Vec<Packer>,
    /// Sources that have used up their epochs in this lane.
    pub(super) left: Vec<bool>,
}

/// The packer of a source in a lane, from `cursor` on.
pub(super) fn packer(plan: &Plan, source: &PlannedSource, pad: u32, cursor: Cursor) -> Packer {
    let packing = &plan.config.packing;
    let chat = source.options.chat.as_ref();
    let overflow = chat.map_or(packing.overflow, |chat| chat.overflow());
    Packer::new(packing, plan.config.block_size, overflow, chat.is_some(), pad, cursor)
}

impl Lane {
    pub(super) fn fresh(plan: &Plan, lane: u32, pad: u32) -> Self {
        let sources = plan.sources.len();
        Lane {
            lane,
            blocks: 0,
            padded: 0,
            passed_blocks: 0,
            passed: vec![Passed::default(); sources],
            stage: StageCounts { from_block: 0, blocks: vec![0; sources] },
            packers: plan.sources.iter().map(|source| packer(plan, source, pad, Cursor::default())).collect(),
            left: vec![false; sources],
        }
    }

    pub(super) fn ended(&self, stop: Stop) -> bool {
        match stop {
            Stop::First => self.left.iter().any(|left| *left),
            Stop::All => self.left.iter().all(|left| *left),
        }
    }

    /// Counts all since `before` as passed over.
    pub(super) fn pass(&mut self, before: &LaneState, plan: &Plan) {
        self.passed_blocks += self.blocks - before.blocks + self.padded - before.padded;
        for ((source, packer), passed) in plan.sources.iter().zip(&self.packers).zip(&mut self.passed) {
            passed.count(&before.sources[source.name()].cursor.totals, &packer.cursor().totals);
        }
    }

    pub(super) fn state(&self, plan: &Plan) -> LaneState {
        let sources = plan.sources.iter().enumerate();
        LaneState {
            lane: self.lane,
            blocks: self.blocks,
            padded: self.padded,
            passed_blocks: self.passed_blocks,
            stage_from: self.stage.from_block,
            sources: sources.map(|(i, source)| (source.name().to_owned(), self.source_state(i))).collect(),
        }
    }

    pub(super) fn source_state(&self, source: usize) -> SourceState {
        SourceState {
            stage_blocks: self.stage.blocks[source],
            passed: self.passed[source],
            cursor: self.packers[source].cursor(),
        }
    }
}

/// The global block for which each strand is first needed, lane by lane and source by source; `u64::MAX` for one that
/// isn't. Beyond the next blocks the exact number doesn't matter: it is an order of work, not of what is delivered.
pub(super) fn first_turns(plan: &Plan, lanes: &[Lane]) -> VecDeque<u64> {
    const BLOCKS: u64 = 64;
    let weights = plan.weights();
    let count = u64::from(plan.config.lanes);
    let mut turns = VecDeque::new();
    for lane in lanes {
        let number = |block: u64| block * count + u64::from(lane.lane);
        let active: Vec<u64> = weights.iter().zip(&lane.left).map(|(w, left)| if *left { 0 } else { *w }).collect();
        let later = |weight: &u64| if *weight > 0 { number(lane.blocks + BLOCKS) } else { u64::MAX };
        let mut first: Vec<u64> = active.iter().map(later).collect();
        let mut stage = lane.stage.clone();
        for block in lane.blocks..lane.blocks + BLOCKS {
            let Some(source) = next_source(&active, lane.lane, &stage) else { break };
            stage.blocks[source] += 1;
            first[source] = first[source].min(number(block));
        }
        turns.extend(first);
    }
    turns
}

/// `lanes`, if they are some of the rank's.
pub(super) fn part_of(lanes: &[u32], owned: &[u32]) -> Result<Vec<u32>> {
    let rising = lanes.windows(2).all(|pair| pair[0] < pair[1]);
    if lanes.is_empty() || !rising || !lanes.iter().all(|lane| owned.binary_search(lane).is_ok()) {
        let detail = format!("the lanes to deliver are {}, expected some of {}", lane_list(lanes), lane_list(owned));
        return Err(Error::new(ErrorKind::Config, detail));
    }
    Ok(lanes.to_vec())
}
