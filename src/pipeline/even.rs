//! Where a finite run ends, so that all ranks give the same number of batches.
//!
//! Comes in: the number of blocks of every lane. Goes out: the step at which every rank ends. Holds: each rank computes
//! the same step from the same numbers, without asking another; what is left out or added is known and counted.
//! Does not know: how ranks talk; they don't have to.
//!
//! ```text
//! blocks left, 2 ranks, 3 blocks a batch     batches      drop: 3 batches    pad: 4 batches
//! rank 0: 11                                 3 and 2/3    2 blocks dropped   1 masked block
//! rank 1:  9                                 3            none dropped       3 masked blocks
//! ```
//!
//! How many blocks a lane has is known only after tokenizing all of it: bytes bound the number of tokens too loosely to
//! be of use (a token is one byte or ten). So the blocks of all lanes are counted by running them, once; [`BlockCounts`] keeps
//! the result, so that other ranks, resumes and runs over the same data need not. Why not let each rank find its own end and
//! stop the others: ranks can't talk, and one that waits in a collective for a rank that has ended hangs.
//!
//! Why not cut or pad each lane to the same number of blocks, which would make the end the same for every world size: lanes differ by
//! more than ranks do, so more would be lost.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Pipeline, RunOptions};
use crate::config::Stop;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Plan;
use crate::state::{Checkpoint, Fingerprint, MixtureStage};
use crate::tokenizer::Tokenizer;

/// How ranks of a finite run are made to give the same number of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Even {
    /// All end after the last step at which every rank has a full batch; what is left is counted as dropped.
    Drop,
    /// All end when the longest rank does; batches are filled up with masked blocks: padding ids, segment id 0, label -100.
    Pad,
}

/// The number of blocks that each lane of a run gives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlockCounts {
    /// [`crate::state::VERSION`].
    pub version: u32,
    /// What it was counted on.
    pub fingerprint: Fingerprint,
    /// The stages of weights it was counted with.
    pub mixture: Vec<MixtureStage>,
    /// Blocks of each lane, from the run's first start to its end, by lane.
    pub blocks: Vec<u64>,
    /// Tokens in them, padding not counted.
    pub tokens: u64,
    /// Documents that end in them.
    pub documents: u64,
}

/// Counts the blocks of all lanes, from the beginning or from a checkpoint of all lanes.
///
/// Cost: that of running all that is left, on all threads, as one rank would; nothing of it is kept.
///
/// # Errors
/// * `Config` - the run has no end.
/// * Whatever stops the run.
pub fn count_blocks(
    plan: &Arc<Plan>,
    tokenizer: &Arc<Tokenizer>,
    options: &RunOptions,
    from: Option<&Checkpoint>,
) -> Result<BlockCounts> {
    check_finite(plan)?;
    let mut whole = Plan::clone(plan);
    let ranks = u64::from(options.world_size.max(1));
    // The bound is one for each rank.
    whole.config.errors.max_bad_records = whole.config.errors.max_bad_records.saturating_mul(ranks);
    whole.config.batch_size = 64;
    let options = RunOptions { skip: Vec::new(), even: None, even_counts: None, ..options.clone() };
    let lanes: Vec<u32> = (0..plan.config.lanes).collect();
    let mut pipeline = Pipeline::of_lanes(Arc::new(whole), tokenizer.clone(), options, &lanes, from)?;
    // A checkpoint may be in the middle of batches to pass over; here they count as all others.
    pipeline.skip.clear();
    while pipeline.next_batch()?.is_some() {}
    let end = pipeline.checkpoint();
    let totals = || end.cursors.iter().flat_map(|lane| lane.sources.values()).map(|source| source.cursor.totals);
    Ok(BlockCounts {
        version: end.version,
        blocks: end.cursors.iter().map(|lane| lane.blocks).collect(),
        tokens: totals().map(|totals| totals.tokens).sum(),
        documents: totals().map(|totals| totals.documents).sum(),
        fingerprint: end.fingerprint,
        mixture: end.mixture,
    })
}

/// Whether the run ends by itself.
fn check_finite(plan: &Plan) -> Result<()> {
    let mut active = plan.sources.iter().filter(|source| source.weight > 0);
    let finite = match plan.config.stop {
        Stop::First => active.any(|source| source.options.max_epochs > 0),
        Stop::All => active.all(|source| source.options.max_epochs > 0),
    };
    if finite {
        return Ok(());
    }
    let endless: Vec<&str> =
        plan.sources.iter().filter(|s| s.weight > 0 && s.options.max_epochs == 0).map(|s| s.name()).collect();
    Err(Error::new(
        ErrorKind::Config,
        format!(
            "the run has no end to count to or to make even: sources {endless:?} repeat for ever, expected max_epochs above 0"
        ),
    ))
}

impl BlockCounts {
    /// Reads what [`BlockCounts::save`] wrote.
    ///
    /// # Errors
    /// `NotFound`, `Read`; `StateMismatch` when it isn't such a file.
    pub fn load(path: &Path) -> Result<BlockCounts> {
        let bytes = std::fs::read(path).map_err(|error| {
            let kind = if error.kind() == std::io::ErrorKind::NotFound { ErrorKind::NotFound } else { ErrorKind::Read };
            Error::new(kind, format!("can't read the block counts {}", path.display())).because(error)
        })?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Error::new(ErrorKind::StateMismatch, format!("{} holds no block counts", path.display())).because(error)
        })
    }

    /// Writes to `path`: beside, then renamed, so that ranks may write the same file at the same time.
    ///
    /// # Errors
    /// `Write`, naming the path.
    pub fn save(&self, path: &Path) -> Result<()> {
        let beside = path.with_added_extension(format!("{}.tmp", std::process::id()));
        let mut bytes = serde_json::to_vec(self).expect("counts have string keys and finite numbers only");
        bytes.push(b'\n');
        let write = || -> std::io::Result<()> {
            let mut file = std::fs::File::create(&beside)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            std::fs::rename(&beside, path)
        };
        write().map_err(|error| {
            let _ = std::fs::remove_file(&beside);
            Error::new(ErrorKind::Write, format!("can't write the block counts {}", path.display())).because(error)
        })
    }

    /// Checks that these are the counts of a run of this fingerprint and these weights.
    fn check(&self, run: &Fingerprint, mixture: &[MixtureStage]) -> Result<()> {
        let mut differences = run.differences(&self.fingerprint);
        let names = |print: &Fingerprint| print.sources.keys().cloned().collect::<Vec<_>>();
        if names(run) != names(&self.fingerprint) {
            differences.push(format!("sources: found {:?}, expected {:?}", names(run), names(&self.fingerprint)));
        }
        if mixture != self.mixture {
            differences.push(format!("weights: found {mixture:?}, expected {:?}", self.mixture));
        }
        if self.blocks.len() != run.lanes as usize {
            differences.push(format!("lanes: found {}, expected {} counts", run.lanes, self.blocks.len()));
        }
        if differences.is_empty() {
            return Ok(());
        }
        let detail = format!("the block counts are of another run: {}; count anew", differences.join("; "));
        Err(Error::new(ErrorKind::StateMismatch, detail))
    }
}

/// Where a rank ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    /// The step that is no longer delivered.
    pub step: u64,
    /// Blocks of this rank that lie beyond.
    pub dropped_blocks: u64,
}

impl End {
    /// The end of all ranks of `pipeline`'s run, which starts at `from`.
    pub fn find(even: Even, counts: &BlockCounts, pipeline: &Pipeline, from: Option<&Checkpoint>) -> Result<End> {
        let plan = &pipeline.plan;
        counts.check(&plan.fingerprint(&pipeline.tokenizer), &pipeline.mixture)?;
        let mut left = counts.blocks.clone();
        if let Some(from) = from {
            let missing: Vec<u32> =
                (0..plan.config.lanes).filter(|lane| from.cursors.iter().all(|state| state.lane != *lane)).collect();
            if !missing.is_empty() {
                let detail =
                    format!("the checkpoint lacks lanes {missing:?}, expected all, to know where other ranks end");
                return Err(Error::new(ErrorKind::StateMismatch, detail));
            }
            for state in &from.cursors {
                let left = &mut left[state.lane as usize];
                *left = left.checked_sub(state.blocks).ok_or_else(|| {
                    let detail = format!(
                        "lane {} has delivered {} blocks, expected at most the {left} that were counted: data or weights changed",
                        state.lane, state.blocks
                    );
                    Error::new(ErrorKind::StateMismatch, detail)
                })?;
            }
        }
        let world_size = pipeline.options.world_size as usize;
        let ranks: Vec<u64> = (0..world_size).map(|rank| left.iter().skip(rank).step_by(world_size).sum()).collect();
        let batch_size = u64::from(plan.config.batch_size);
        let own = ranks[pipeline.options.rank as usize];
        let steps = match even {
            Even::Drop => ranks.iter().map(|blocks| blocks / batch_size).min(),
            Even::Pad => ranks.iter().map(|blocks| blocks.div_ceil(batch_size)).max(),
        };
        let steps = steps.expect("there is at least one rank");
        if even == Even::Drop && steps == 0 && own > 0 {
            tracing::warn!(blocks = own, batch_size, "some rank has no full batch left: nothing is delivered");
        }
        Ok(End { step: pipeline.step + steps, dropped_blocks: own.saturating_sub(steps.saturating_mul(batch_size)) })
    }
}
