//! Where a run goes on: a checkpoint against the plan.
//!
//! Comes in: a plan, its fingerprint, a checkpoint, the lanes of this rank. Goes out: the lanes as they stood, or one error that lists every
//! difference. Holds: what may change at a resume is logged, and anything else is refused before anything is read. Does not know: documents, threads.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::RunOptions;
use super::lane::{Lane, packer};
use crate::chat::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::{Plan, PlannedSource};
use crate::ranges::join;
use crate::state::{
    Checkpoint, Fingerprint, LaneState, MIXTURE_STAGES_MAX, MixtureStage, ShardStage, is_prefix, lane_list,
    shard_stages,
};

/// The time that chat templates see, where one may ask for it and its source doesn't set it: that of the run's first start, which is the one thing
/// of a run that comes from outside of it; the state keeps it.
pub(super) fn run_clock(plan: &Plan, from: Option<&Checkpoint>) -> Result<Option<Clock>> {
    let asks = |source: &PlannedSource| {
        let asks = source.template.as_ref().is_some_and(|template| template.source.contains("strftime_now"));
        asks && source.options.chat.as_ref().is_some_and(|chat| chat.now.is_none())
    };
    if !plan.sources.iter().any(asks) {
        return Ok(None);
    }
    if let Some(now) = from.and_then(|from| from.now.as_deref()) {
        return Clock::parse(now).map(Some);
    }
    Ok(Some(Clock::now()))
}

/// Where a run goes on.
pub(super) struct Resumed {
    /// The plan, with the stages of shards.
    pub(super) plan: Arc<Plan>,
    /// The lanes of this rank.
    pub(super) lanes: Vec<Lane>,
    pub(super) mixture: Vec<MixtureStage>,
    pub(super) shard_stages: BTreeMap<String, Vec<ShardStage>>,
    pub(super) step: u64,
}

/// Goes on from a checkpoint, `found` and `now` being the fingerprint and the weights that the run has now, `pad` the id that fills blocks up.
pub(super) fn resume(
    plan: Arc<Plan>,
    (found, pad): (&Fingerprint, u32),
    options: &RunOptions,
    owned: &[u32],
    now: MixtureStage,
    from: &Checkpoint,
) -> Result<Resumed> {
    let differences = plan.differences(found, &from.fingerprint);
    if !differences.is_empty() {
        return Err(Error::new(
            ErrorKind::StateMismatch,
            format!("the checkpoint is of another run: {}", differences.join("; ")),
        ));
    }
    let by_lane: BTreeMap<u32, &LaneState> = from.cursors.iter().map(|state| (state.lane, state)).collect();
    let missing: Vec<u32> = owned.iter().copied().filter(|lane| !by_lane.contains_key(lane)).collect();
    if !missing.is_empty() {
        return Err(Error::new(
            ErrorKind::StateMismatch,
            format!(
                "the checkpoint (step {}, rank {} of {}) lacks lanes {} of this rank, expected the files of all ranks of \
                 the step",
                from.step,
                from.rank,
                from.world_size,
                lane_list(&missing)
            ),
        ));
    }
    from.check_frontier()?;
    let shards = plan.sources.iter().map(|source| (source.name(), source.manifest.shards.len() as u64)).collect();
    let shard_stages = shard_stages(from, &shards)?;
    let plan = if shard_stages.is_empty() { plan } else { Arc::new(plan.with_shard_stages(&shard_stages)) };
    log_changes(&plan, found, options, from);
    let mut mixture = from.mixture.clone();
    let restart = mixture.last().is_none_or(|last| last.weights != now.weights);
    if restart {
        let from_block = from.cursors.iter().map(|state| state.blocks).min().unwrap_or(0);
        // Lanes that ended earlier than others may go on now, from where they ended.
        let apart = !is_prefix(&from.cursors);
        tracing::info!(from_block, weights = ?now.weights, "weights changed since the checkpoint: a new stage begins");
        mixture.push(MixtureStage { from_block, from_step: from.step, apart, ..now });
        mixture.drain(..mixture.len().saturating_sub(MIXTURE_STAGES_MAX));
    } else if let Some(last) = mixture.last_mut() {
        last.apart &= !(from.missing_lanes().is_empty() && is_prefix(&from.cursors));
    }
    let mut lanes = Vec::new();
    for &number in owned {
        let state = by_lane[&number];
        let mut lane = Lane {
            blocks: state.blocks,
            padded: state.padded,
            passed_blocks: state.passed_blocks,
            ..Lane::fresh(&plan, number, pad)
        };
        lane.stage.from_block = if restart { state.blocks } else { state.stage_from };
        for (index, source) in plan.sources.iter().enumerate() {
            if let Some(saved) = state.sources.get(source.name()) {
                lane.packers[index] = packer(&plan, source, pad, saved.cursor);
                lane.left[index] = saved.cursor.ended;
                lane.passed[index] = saved.passed;
                if !restart {
                    lane.stage.blocks[index] = saved.stage_blocks;
                }
            }
        }
        lanes.push(lane);
    }
    Ok(Resumed { plan, lanes, mixture, shard_stages, step: from.step })
}

/// Says what is allowed to differ from the checkpoint, and does.
fn log_changes(plan: &Plan, found: &Fingerprint, options: &RunOptions, from: &Checkpoint) {
    for name in found.sources.keys().filter(|name| !from.fingerprint.sources.contains_key(*name)) {
        tracing::info!(source = name, "source added since the checkpoint: it starts from its beginning");
    }
    for name in from.fingerprint.sources.keys().filter(|name| !found.sources.contains_key(*name)) {
        tracing::info!(source = name, "source removed since the checkpoint: its position is forgotten");
    }
    if options.world_size != from.world_size {
        tracing::info!(from = from.world_size, to = options.world_size, "world size changed since the checkpoint");
    }
    let batch_size = plan.config.batch_size;
    if from.batch_size != 0 && batch_size != from.batch_size {
        tracing::info!(from = from.batch_size, to = batch_size, "batch size changed since the checkpoint");
    }
    for source in &plan.sources {
        let (most, last) = (source.options.max_epochs, source.earlier.last());
        if let Some((from_epoch, _)) = last.filter(|(from_epoch, _)| most > 0 && *from_epoch >= most) {
            tracing::warn!(
                source = source.name(),
                from_epoch,
                max_epochs = most,
                "the shards appended come after the source's last epoch: they will not be delivered"
            );
        }
    }
}

/// The batches to pass over: what `asked` says and what the checkpoint has begun to, in order, joined where they touch.
pub(super) fn skip_ranges(asked: &[Range<u64>], from: Option<&Checkpoint>, step: u64) -> Result<Vec<Range<u64>>> {
    let begun: &[Range<u64>] = from.map_or(&[], |from| &from.skipped);
    for range in asked {
        if range.is_empty() {
            let detail =
                format!("the batches to skip are {}..{}, expected a begin below the end", range.start, range.end);
            return Err(Error::new(ErrorKind::Config, detail));
        }
        let delivered =
            (range.start..range.end.min(step)).find(|batch| !begun.iter().any(|begun| begun.contains(batch)));
        if let Some(batch) = delivered {
            let detail = format!(
                "the batches to skip are {}..{}, but batch {batch} was delivered: the checkpoint is of step {step}, expected \
                 one of step {batch} or before",
                range.start, range.end
            );
            return Err(Error::new(ErrorKind::Config, detail));
        }
    }
    let mut ranges: Vec<Range<u64>> = begun.iter().chain(asked).cloned().collect();
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        join(&mut joined, range);
    }
    Ok(joined)
}
