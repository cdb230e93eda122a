//! Buffers of windows and pieces, used again.
//!
//! Comes in: buffers whose content is spent. Goes out: the same, empty. Holds: no more than a fixed number of bytes is
//! kept. Does not know: what was in them. Why: fresh memory of some hundred KB comes from the operating system a page at a
//! time, and it clears each one; that took a tenth of a run's time.

use std::ops::Range;
use std::sync::Mutex;

use crate::document::{EncodedDocument, EncodedDocuments, RecordRange, Window};

/// A buffer is kept if its size is no more than so many times what was in it, and [`ROOM_BYTES`] on top.
const ROOM_FACTOR: usize = 3;
const ROOM_BYTES: usize = 8 << 10;

/// A store of spent buffers.
pub(crate) struct Buffers {
    windows: Pool<(Window, Vec<RecordRange>)>,
    pieces: Pool<EncodedDocuments>,
}

impl Buffers {
    /// A store that keeps up to `bytes_max` bytes of each kind.
    pub fn new(bytes_max: usize) -> Self {
        Buffers { windows: Pool::new(bytes_max), pieces: Pool::new(bytes_max) }
    }

    /// An empty window and an empty list for its delivery order.
    pub fn window(&self) -> (Window, Vec<RecordRange>) {
        self.windows.take().unwrap_or_default()
    }

    /// Takes a window back.
    pub fn spent_window(&self, mut window: Window, mut order: Vec<RecordRange>) {
        let used = window.bytes.len() + (window.records.len() + order.len()) * size_of::<RecordRange>();
        window.bytes.clear();
        window.records.clear();
        order.clear();
        let bytes = window.bytes.capacity() + (window.records.capacity() + order.capacity()) * size_of::<RecordRange>();
        self.windows.give((window, order), used, bytes);
    }

    /// An empty piece.
    pub fn piece(&self) -> EncodedDocuments {
        self.pieces.take().unwrap_or_default()
    }

    /// Takes a piece back.
    pub fn spent_piece(&self, piece: EncodedDocuments) {
        // Named one by one, so that a piece that is used again can't bring anything along.
        let EncodedDocuments { mut ids, mut documents, mut untrained, .. } = piece;
        let bytes = |ids, documents, untrained| {
            ids * size_of::<u32>() + documents * size_of::<EncodedDocument>() + untrained * size_of::<Range<u32>>()
        };
        let used = bytes(ids.len(), documents.len(), untrained.len());
        ids.clear();
        documents.clear();
        untrained.clear();
        let bytes = bytes(ids.capacity(), documents.capacity(), untrained.capacity());
        self.pieces.give(EncodedDocuments { ids, documents, untrained, ..EncodedDocuments::default() }, used, bytes);
    }
}

/// Spent things with their sizes, the last one given first.
struct Pool<T> {
    bytes_max: usize,
    kept: Mutex<(Vec<(T, usize)>, usize)>,
}

impl<T> Pool<T> {
    fn new(bytes_max: usize) -> Self {
        Pool { bytes_max, kept: Mutex::default() }
    }

    fn take(&self) -> Option<T> {
        let mut kept = self.kept.lock().ok()?;
        let (thing, bytes) = kept.0.pop()?;
        kept.1 -= bytes;
        Some(thing)
    }

    /// Keeps a thing of `bytes` bytes of which `used` were needed. What is far larger isn't kept: each buffer meets the longest
    /// record at some time, and all would end up with room for it.
    fn give(&self, thing: T, used: usize, bytes: usize) {
        if (1..=ROOM_FACTOR * used + ROOM_BYTES).contains(&bytes)
            && let Ok(mut kept) = self.kept.lock()
            && kept.1 + bytes <= self.bytes_max
        {
            kept.1 += bytes;
            kept.0.push((thing, bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(used: usize, room: usize) -> EncodedDocuments {
        let mut ids = Vec::with_capacity(room);
        ids.resize(used, 0);
        EncodedDocuments { ids, ..EncodedDocuments::default() }
    }

    /// A buffer that once held far more than now, and one of no size, aren't kept.
    #[test]
    fn large_room_for_little_is_freed() {
        let buffers = Buffers::new(1 << 30);
        for (used, room) in [(1000, 1000), (1000, 1 << 20), (0, 0), (1 << 20, 1 << 20), (1, 2000)] {
            buffers.spent_piece(piece(used, room));
        }
        let rooms: Vec<usize> = (0..4).map(|_| buffers.piece().ids.capacity()).collect();
        assert_eq!(rooms, [2000, 1 << 20, 1000, 0]);
    }

    /// What is given comes back empty with its room; beyond the bound it is freed.
    #[test]
    fn keeps_up_to_the_bound() {
        let buffers = Buffers::new(1000);
        for room in [100, 150, 200] {
            buffers.spent_piece(piece(0, room));
        }
        let rooms: Vec<usize> = (0..3).map(|_| buffers.piece().ids.capacity()).collect();
        assert_eq!(rooms, [150, 100, 0]);
    }
}
