//! Shards that can't be seeked, decoded once for all lanes of the process.
//!
//! Comes in: a lane asking for its next window of a shard. Goes out: the window. Holds: each byte is decoded once, as
//! long as the lanes stay within the bound of what is kept; a lane that asks for a window that was dropped gets it
//! from a decoder of its own. What a lane gets never depends on what others asked, also in the case of an error or of damage:
//! each lane meets it at its place. Does not know: what windows hold.
//!
//! A *pass* is one shard on one group's walk in one epoch. Its decoder runs when a lane asks, up to that lane's next
//! window; windows it passes that other lanes of this process will want are kept for them.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::buffers::Buffers;
use super::reader::locate_damage;
use crate::document::{Loss, RecordRange, Window};
use crate::error::{Error, ErrorKind, Result, panic_message};
use crate::plan::Plan;
use crate::shard::{Shard, Start, UnitReader};
use crate::source::Share;

/// `(source, stage, group)`: the lanes that share shards, in the epochs of a stage.
type GroupKey = (usize, usize, u32);

/// The group, epoch and walk.
type PassKey = (GroupKey, u32, u64);

/// Where a lane stands in a source: epoch, index in the walk, next window.
type LanePlace = (u32, u64, Start);

pub(crate) struct StreamPool {
    plan: Arc<Plan>,
    buffers: Arc<Buffers>,
    /// Most bytes of windows kept for lanes that didn't ask yet, and how many there are, over all passes.
    kept_max: usize,
    kept: Arc<AtomicUsize>,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    passes: BTreeMap<PassKey, Arc<Mutex<Pass>>>,
    /// The lanes of this process by group. A lane is in a group of every stage, wherever it stands: what it will want has to
    /// be known to those ahead of it.
    lanes: BTreeMap<GroupKey, BTreeMap<u32, LanePlace>>,
}

struct Pass {
    reader: Option<UnitReader>,
    /// Windows decoded for lanes that didn't ask yet.
    kept: BTreeMap<u64, Window>,
    kept_bytes: Arc<AtomicUsize>,
    /// Windows that were decoded and dropped, because too much was kept.
    dropped: BTreeSet<u64>,
    /// A second decoder, for lanes that want what was dropped.
    behind: Option<UnitReader>,
    ended: bool,
    /// Damage passed over, for lanes that didn't ask yet.
    losses: Vec<Loss>,
    /// What the reader ended with.
    failed: Option<Error>,
}

/// Bytes that a window takes, with the room it has to grow.
fn room(window: &Window) -> usize {
    window.bytes.capacity() + window.records.capacity() * size_of::<RecordRange>()
}

impl Pass {
    fn new(kept_bytes: Arc<AtomicUsize>) -> Pass {
        Pass {
            reader: None,
            kept: BTreeMap::new(),
            kept_bytes,
            dropped: BTreeSet::new(),
            behind: None,
            ended: false,
            losses: Vec::new(),
            failed: None,
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let bytes = self.kept.values().map(room).sum();
        self.kept_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl StreamPool {
    /// A pool for lanes that stand at the given places: `(source, lane, place)`.
    pub fn new(
        plan: Arc<Plan>,
        buffers: Arc<Buffers>,
        kept_max: usize,
        places: impl IntoIterator<Item = (usize, u32, LanePlace)>,
    ) -> Self {
        let mut state = PoolState::default();
        for (source, lane, place) in places {
            let planned = &plan.sources[source];
            for stage in 0..planned.stages() {
                let key = (source, stage, planned.stage(stage).group(lane));
                state.lanes.entry(key).or_default().insert(lane, place);
            }
        }
        StreamPool { plan, buffers, kept_max, kept: Arc::default(), state: Mutex::new(state) }
    }

    /// Puts the lane's next window from `from` on into `window`; false when its share of the shard is at its end. With it goes
    /// the damage in the lane's windows that was passed over and not yet told, all that lies up to that window at least.
    ///
    /// Cost: decodes up to that window; the caller waits while another lane's call decodes in the same pass.
    pub fn take(
        &self,
        source: usize,
        lane: u32,
        share: &Share,
        shard: &Arc<Shard>,
        from: Start,
        window: &mut Window,
    ) -> Result<(bool, Vec<Loss>)> {
        let planned = &self.plan.sources[source];
        let now = planned.stage_at(share.epoch);
        let dealing = planned.stage(now);
        let group = (source, now, dealing.group(lane));
        let (pass, wanting) = {
            let mut state = self.state.lock().expect("no panic happens while the pool is held");
            for stage in 0..planned.stages() {
                let key = (source, stage, planned.stage(stage).group(lane));
                let lanes = state.lanes.entry(key).or_default();
                lanes.insert(lane, (share.epoch, share.walk, from));
                // A pass that every lane has gone beyond is over.
                let slowest = lanes.values().map(|&(epoch, walk, _)| (epoch, walk)).min().expect("this lane is one");
                state.passes.retain(|&(group, epoch, walk), _| group != key || (epoch, walk) >= slowest);
            }
            let wanting: Vec<(Share, LanePlace)> = state.lanes[&group]
                .iter()
                .filter_map(|(&lane, &place)| Some((dealing.share(lane, share.epoch, share.walk)?, place)))
                .collect();
            let fresh = || Arc::new(Mutex::new(Pass::new(self.kept.clone())));
            let pass = state.passes.entry((group, share.epoch, share.walk)).or_insert_with(fresh);
            (pass.clone(), wanting)
        };
        let mut pass = pass.lock().expect("panics are caught while a pass is held");
        let key = (share.epoch, share.walk);
        let wanted = |window: u64| {
            wanting.iter().any(|(share, (epoch, walk, next))| {
                share.has_window(window) && (*epoch, *walk, next.window) <= (key.0, key.1, window)
            })
        };
        // The decoder starts where the first window begins that a lane still wants.
        let start = |(_, (epoch, walk, next)): &(Share, LanePlace)| match (*epoch, *walk) == key {
            true => *next,
            false => Start::default(),
        };
        let start = wanting.iter().map(start).min_by_key(|start| start.window).unwrap_or_default();
        let found =
            catch_unwind(AssertUnwindSafe(|| pass.take(share, shard, (start, from.window), &wanted, self, window)))
                .unwrap_or_else(|panic| {
                    // Its lanes get this from here on, whatever else the reader would do.
                    let detail = format!("decoding panicked: {}", panic_message(&*panic));
                    let error = Error::new(ErrorKind::Internal, detail).in_shard(shard.name());
                    pass.failed = Some(error.clone());
                    pass.reader = None;
                    pass.behind = None;
                    Err(error)
                })?;
        let losses = pass.losses.extract_if(.., |loss| share.has_window(loss.window)).collect();
        Ok((found, losses))
    }
}

impl Pass {
    fn take(
        &mut self,
        share: &Share,
        shard: &Shard,
        (start, from): (Start, u64),
        wanted: &dyn Fn(u64) -> bool,
        pool: &StreamPool,
        window: &mut Window,
    ) -> Result<bool> {
        let mine = |window: &u64| share.has_window(*window);
        let kept = self.kept.range(from..).map(|(index, _)| *index).find(mine);
        let dropped = self.dropped.range(from..).copied().find(mine);
        match (kept, dropped) {
            (Some(kept), dropped) if dropped.is_none_or(|dropped| kept < dropped) => {
                let kept = self.kept.remove(&kept).expect("found above");
                self.kept_bytes.fetch_sub(room(&kept), Ordering::Relaxed);
                pool.buffers.spent_window(std::mem::replace(window, kept), Vec::new());
                return Ok(true);
            }
            (_, Some(dropped)) => {
                self.dropped.remove(&dropped);
                return self.read_behind(shard, dropped, window).map(|()| true);
            }
            _ => {}
        }
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.ended {
            return Ok(false);
        }
        if self.reader.is_none() {
            self.reader = Some(shard.read_unit(0, start)?);
        }
        let reader = self.reader.as_mut().expect("opened above");
        loop {
            let found = reader.next_window(window, &mut |index| wanted(index));
            self.losses.extend(reader.take_losses());
            let found = found.map_err(|error| {
                let error = locate_damage(error, shard, 0);
                self.failed = Some(error.clone());
                error
            });
            if !found? {
                self.ended = true;
                self.reader = None;
                return Ok(false);
            }
            if share.has_window(window.index) && window.index >= from {
                return Ok(true);
            }
            self.kept_bytes.fetch_add(room(window), Ordering::Relaxed);
            self.kept.insert(window.index, std::mem::replace(window, pool.buffers.window().0));
            while self.kept_bytes.load(Ordering::Relaxed) > pool.kept_max
                // What lies furthest ahead is wanted last. Where other passes have it all, nothing is kept here.
                && let Some((index, window)) = self.kept.pop_last()
            {
                self.kept_bytes.fetch_sub(room(&window), Ordering::Relaxed);
                self.dropped.insert(index);
            }
        }
    }

    /// Decodes a dropped window once more.
    fn read_behind(&mut self, shard: &Shard, index: u64, window: &mut Window) -> Result<()> {
        if self.behind.as_ref().is_none_or(|reader| reader.position() > index) {
            self.behind = Some(shard.read_unit(0, Start::default())?);
        }
        let reader = self.behind.as_mut().expect("opened above");
        let found = reader.next_window(window, &mut |w| w == index)?;
        if !found {
            let detail = format!("window {index} was there before and is gone: the file changed");
            return Err(Error::new(ErrorKind::Read, detail).in_shard(shard.name()));
        }
        Ok(())
    }
}
