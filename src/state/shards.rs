//! A source's shards then and now: what may have been appended, and what an error says of everything else.
//!
//! Comes in: the listing of now, what a checkpoint keeps of the one of then. Goes out: a sentence, or the stages that say
//! how many shards are dealt in which epoch. Holds: what is kept doesn't grow with the number of shards. Does not know:
//! how shards are dealt.
//!
//! ```text
//! run with 10 shards, lanes in epochs 1 and 2; 4 shards appended; resume     [{from_epoch 0, shards 10}, {from_epoch 3, shards 14}]
//! all lanes in epoch 3 or later; resume                                      [] (14 from the beginning, as far as anyone needs to know)
//! ```
//!
//! All lanes change over at one epoch, which none of them has reached: an epoch is dealt in one way, so each of its records is
//! delivered exactly once. Why not at once: lanes share shards, and those that were dealt in the old way are half read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Checkpoint, SourcePrint};
use crate::error::{Error, ErrorKind, Result};
use crate::source::{Manifest, OnNewShards};

/// A number of shards that is dealt from an epoch on, until the next stage's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardStage {
    /// The first epoch that is dealt so; 0 in the first stage.
    pub from_epoch: u32,
    /// The first so many shards of the manifest are dealt.
    pub shards: u64,
}

/// What differs between a source's shards `then` and `now`, in a sentence; `manifest` is that of now.
///
/// Cost: O(shards), a hash of their names and sizes.
pub fn data_difference(
    manifest: &Manifest,
    on_new_shards: OnNewShards,
    now: &SourcePrint,
    then: &SourcePrint,
) -> Option<String> {
    if now.same_data(then) {
        return None;
    }
    let counts =
        format!("found {} shards of {} bytes, expected {} of {}", now.shards, now.bytes, then.shards, then.bytes);
    let name = |shard: u64| format!("{:?}", manifest.shards[shard as usize].name);
    if now.shards > then.shards && manifest.hash(then.shards as usize) == then.hash {
        let first = then.shards;
        return match on_new_shards {
            OnNewShards::NextEpoch => None,
            OnNewShards::Error => Some(format!(
                "{counts}: the last {} were appended, from {} on; on_new_shards = \"next_epoch\" takes them",
                now.shards - first,
                name(first)
            )),
        };
    }
    let Some(difference) = manifest.first_difference(then.shards, &then.marks) else {
        return Some(format!("{counts}, hash {} instead of {}", now.hash, then.hash));
    };
    let (first, last) = difference.shards;
    let what = match (now.shards.cmp(&then.shards), difference.names, difference.sizes) {
        (std::cmp::Ordering::Less, ..) => "shards are gone",
        (std::cmp::Ordering::Greater, ..) => "shards came that don't sort after all others",
        (_, false, true) => "names are the same, a size changed",
        (_, true, false) => "sizes are the same, a name changed",
        _ => "names and sizes changed",
    };
    let last_now = now.shards - 1;
    let place = match first {
        first if first > last_now => format!("after the last one, {}", name(last_now)),
        first if first == last => format!("at {} (number {first} from 0)", name(first)),
        first if last > last_now => format!("after {} (number {first} from 0) or at it", name(first)),
        first => format!("from {} to {} (numbers {first} to {last} from 0)", name(first), name(last)),
    };
    Some(format!("{counts}: {what}; the first difference is {place}"))
}

/// How many shards each source deals in which epochs: the stages of the checkpoint, with one more where `shards_now` says
/// that shards were appended, and without those that no lane needs any more. Only sources with several stages are in it.
///
/// # Errors
/// `StateMismatch` when shards were appended and the checkpoint doesn't have all lanes: nobody knows then which epoch
/// none has reached.
pub(crate) fn shard_stages(
    from: &Checkpoint,
    shards_now: &BTreeMap<&str, u64>,
) -> Result<BTreeMap<String, Vec<ShardStage>>> {
    let mut all = BTreeMap::new();
    for (&name, &shards) in shards_now {
        let Some(then) = from.fingerprint.sources.get(name) else { continue };
        let mut stages = match from.shard_stages.get(name) {
            Some(stages) => stages.clone(),
            None => vec![ShardStage { from_epoch: 0, shards: then.shards }],
        };
        let missing = from.missing_lanes();
        let epochs = from.cursors.iter().filter_map(|lane| Some(lane.sources.get(name)?.cursor.place.epoch));
        if shards > then.shards {
            if !missing.is_empty() {
                return Err(Error::new(
                    ErrorKind::StateMismatch,
                    format!(
                        "shards were appended to source {name:?}, and the checkpoint lacks lanes {}; expected all lanes, \
                         as new shards begin after the last epoch that any of them is in",
                        super::lane_list(&missing)
                    ),
                ));
            }
            let from_epoch = epochs.clone().max().map_or(0, |epoch| epoch + 1);
            // One that no lane has reached yet is overtaken.
            stages.retain(|stage| stage.from_epoch < from_epoch);
            stages.push(ShardStage { from_epoch, shards });
            tracing::info!(
                source = name,
                from_epoch,
                appended = shards - then.shards,
                "shards appended since the checkpoint: all lanes read them from one epoch on"
            );
        }
        if missing.is_empty() {
            let slowest = epochs.min().unwrap_or(0);
            while stages.len() > 1 && stages[1].from_epoch <= slowest {
                stages.remove(0);
            }
            stages[0].from_epoch = 0;
        }
        if stages.len() > 1 {
            all.insert(name.to_owned(), stages);
        }
    }
    Ok(all)
}
