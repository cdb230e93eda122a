//! Reading ahead: one reader's way through a remote object, fetched in parts before it asks.
//!
//! Comes in: reads about in order, and where they will end. Goes out: the bytes. Holds: parts are fetched side by side and handed out in
//! order; one reader holds less than 64 MiB, and all together what [`Budget`] allows, or a small part each where that is less;
//! nothing beyond the reader's end is fetched ahead. A reader that jumps starts with small parts again, so that stepping over
//! what isn't wanted costs little. Does not know: what is read.
//!
//! ```text
//! reader at 5, part = 4, end = 22      |4..8 in use|8..12 there|12..16 under way|16..20 under way|  20..22 not yet
//! ```

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::Object;
use super::cell::Cell;
use super::remote::Remote;
use crate::error::Result;

/// The first part after a jump, and the smallest.
pub(super) const PART_MIN: u64 = 64 << 10;
/// A gap of so many bytes is read through: asking anew would take longer.
const GAP_MAX: u64 = 256 << 10;
/// Parts that one reader holds, and their bytes, at most.
pub(crate) const PARTS_MAX: u64 = 5;
const READER_MAX: u64 = 48 << 20;

/// What all readers hold together.
#[derive(Debug)]
pub(super) struct Budget {
    pub(super) most: u64,
    held: AtomicU64,
    readers: AtomicU64,
    /// The most that was held at any time.
    peak: AtomicU64,
    /// Room taken for objects that are held as a whole while they are open.
    whole: AtomicU64,
    /// Lanes of this process, and of the run.
    lanes: AtomicU64,
    all_lanes: AtomicU64,
}

/// What a process' lanes hold each of whole objects, at most.
const WHOLE_A_LANE: u64 = 32 << 20;

impl Budget {
    pub(super) fn new(most: u64) -> Budget {
        Budget {
            most,
            held: AtomicU64::new(0),
            readers: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            whole: AtomicU64::new(0),
            lanes: AtomicU64::new(0),
            all_lanes: AtomicU64::new(0),
        }
    }

    pub(super) fn expect_lanes(&self, own: u32, all: u32) {
        self.lanes.store(own.into(), Ordering::Relaxed);
        self.all_lanes.store(all.into(), Ordering::Relaxed);
    }

    /// Room for an object of which this process will read most, so that its parts are fetched once for all readers.
    pub(super) fn take_whole(self: &Arc<Self>, size: u64) -> Option<Whole> {
        let own = self.lanes.load(Ordering::Relaxed);
        if own == 0 || own * 2 <= self.all_lanes.load(Ordering::Relaxed) {
            return None;
        }
        let most = (self.most / 2).min(own * WHOLE_A_LANE);
        let taken = self
            .whole
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |whole| Some(whole + size).filter(|&now| now <= most));
        taken.ok().map(|_| Whole { _held: Held::take(self, size), budget: self.clone(), size })
    }

    /// The largest part that leaves each reader two of them.
    fn part(&self, wanted: u64) -> u64 {
        let readers = self.readers.load(Ordering::Relaxed).max(1);
        wanted.min(self.most / (2 * readers)).max(PART_MIN)
    }

    /// Whether so much may be fetched for objects that aren't open yet: half of it all is left to those that are.
    pub(super) fn has_room(&self, size: u64) -> bool {
        self.held.load(Ordering::Relaxed) + size <= self.most / 2
    }

    pub(super) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

/// Bytes that are held, until it is dropped.
pub(super) struct Held {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Held {
    pub(super) fn take(budget: &Arc<Budget>, bytes: u64) -> Held {
        let now = budget.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        budget.peak.fetch_max(now, Ordering::Relaxed);
        Held { budget: budget.clone(), bytes }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Room for a whole object, until it is dropped.
pub(super) struct Whole {
    _held: Held,
    budget: Arc<Budget>,
    size: u64,
}

impl Drop for Whole {
    fn drop(&mut self) {
        self.budget.whole.fetch_sub(self.size, Ordering::Relaxed);
    }
}

/// A part that is there, or under way.
struct Part {
    range: Range<u64>,
    cell: Arc<Cell>,
    abort: tokio::task::AbortHandle,
    _held: Held,
}

impl Drop for Part {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

/// One reader's view of a remote object.
pub(super) struct Ahead {
    object: Arc<Remote>,
    budget: Arc<Budget>,
    /// Where the reader is expected to end.
    end: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// In order, without gaps.
    parts: VecDeque<Part>,
    /// Offset of the next part to fetch.
    next: u64,
    /// Its size, as far as the budget allows.
    size: u64,
}

impl Ahead {
    /// A reader that is expected to read `range`, from its start on; `steps`: with jumps at first.
    pub(super) fn new(object: Arc<Remote>, budget: Arc<Budget>, range: Range<u64>, steps: bool) -> Ahead {
        budget.readers.fetch_add(1, Ordering::Relaxed);
        let size = if steps { PART_MIN } else { object.part_size() };
        let state = State { next: range.start, size, ..State::default() };
        Ahead { object, budget, end: range.end, state: Mutex::new(state) }
    }

    /// Starts to fetch the next part, which doesn't have to lie before the reader's end; `needed` is what is asked for now.
    fn request(&self, state: &mut State, needed: u64) -> Result<()> {
        let size = self.budget.part(state.size);
        let start = state.next;
        // What lies behind the end is the rest of a record, or another reader's.
        let end = match start < self.end {
            true => (start + size).min(self.end),
            false => start + needed.clamp(1, size),
        };
        let range = start..end.min(self.object.size());
        let held = Held::take(&self.budget, range.end - range.start);
        let (cell, abort) = self.object.fetch_ahead(range.clone())?;
        state.next = range.end;
        state.size = (state.size * 2).min(self.object.part_size());
        state.parts.push_back(Part { range, cell, abort, _held: held });
        Ok(())
    }

    /// Fetches ahead what the bounds allow.
    fn top_up(&self, state: &mut State) -> Result<()> {
        let full = self.object.part_size();
        let most = READER_MAX.min(PARTS_MAX * full);
        while state.next < self.end && state.size == full {
            let size = self.budget.part(full).min(self.end - state.next);
            let own =
                state.parts.back().map_or(0, |back| back.range.end) - state.parts.front().map_or(0, |f| f.range.start);
            let all = self.budget.held.load(Ordering::Relaxed);
            if own + size > most || all + size > self.budget.most {
                break;
            }
            self.request(state, 0)?;
        }
        Ok(())
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.budget.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Object for Ahead {
    fn size(&self) -> u64 {
        self.object.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let wanted = self.size().saturating_sub(offset).min(buf.len() as u64) as usize;
        if wanted == 0 {
            return Ok(0);
        }
        if let Some(there) = self.object.at_hand(offset, wanted) {
            buf[..wanted].copy_from_slice(&there);
            return Ok(wanted);
        }
        let mut state = self.state.lock().expect("a reader that panicked isn't used again");
        let state = &mut *state;
        while state.parts.front().is_some_and(|part| part.range.end <= offset) {
            state.parts.pop_front();
        }
        let follows = match state.parts.front() {
            Some(part) => part.range.start <= offset,
            None => state.next <= offset && offset - state.next <= GAP_MAX,
        };
        if !follows {
            state.parts.clear();
            state.next = offset;
            state.size = PART_MIN.min(self.object.part_size());
        }
        let mut filled = 0;
        while filled < wanted {
            let at = offset + filled as u64;
            while state.next <= at {
                self.request(state, offset + wanted as u64 - state.next)?;
                // Of a gap that is read through, nothing is kept.
                while state.parts.front().is_some_and(|part| part.range.end <= offset) {
                    if let Some(part) = state.parts.pop_front() {
                        part.cell.whole()?;
                    }
                }
            }
            self.top_up(state)?;
            let part = state.parts.iter().find(|part| part.range.contains(&at)).expect("parts have no gaps");
            let from = (at - part.range.start) as usize;
            filled += part.cell.read(from, &mut buf[filled..wanted])?;
        }
        self.top_up(state)?;
        Ok(filled)
    }
}
