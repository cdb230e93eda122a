//! A part of an object that is read while it comes.
//!
//! Comes in: pieces, in order, from one task of the network. Goes out: the same bytes to any number of readers, each of which waits
//! no longer than until what it asked for is there. Holds: what was given once never changes: where a part has to come once more, it is
//! compared with what was given, and another byte is an error; a task that ends without a word leaves an error, so that nobody
//! waits for ever. Does not know: requests, offsets in the object.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};

/// A reader is woken for so many bytes at least, or for all that it asked for.
const WAKE_MIN: usize = 64 << 10;

/// A part that is there, or under way.
pub(super) struct Cell {
    size: usize,
    state: Mutex<State>,
    filled: Condvar,
}

struct State {
    /// What has come, while it comes.
    bytes: Vec<u8>,
    /// How much of it has come this time.
    at: usize,
    /// All of it, or why there is no more.
    end: Option<Result<Bytes>>,
    /// The least that somebody waits for.
    awaited: usize,
}

impl Cell {
    pub(super) fn new(size: usize) -> Cell {
        let state = State { bytes: Vec::new(), at: 0, end: None, awaited: usize::MAX };
        Cell { size, state: Mutex::new(state), filled: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic happens while it is held")
    }

    fn wait<'a>(&'a self, mut state: MutexGuard<'a, State>, count: usize) -> MutexGuard<'a, State> {
        state.awaited = state.awaited.min(count);
        self.filled.wait(state).expect("no panic happens while it is held")
    }

    /// Fills the beginning of `buf`, at least a byte of it, with what lies at `from`, which is before the part's end.
    pub(super) fn read(&self, from: usize, buf: &mut [u8]) -> Result<usize> {
        let count = buf.len().min(self.size - from);
        let enough = from + count.min(WAKE_MIN);
        let mut state = self.lock();
        loop {
            if let Some(end) = &state.end {
                let bytes = end.clone()?;
                drop(state);
                buf[..count].copy_from_slice(&bytes[from..from + count]);
                return Ok(count);
            }
            if state.bytes.len() >= enough {
                let count = count.min(state.bytes.len() - from);
                buf[..count].copy_from_slice(&state.bytes[from..from + count]);
                return Ok(count);
            }
            state = self.wait(state, enough);
        }
    }

    /// All of it, if it is there.
    pub(super) fn there(&self) -> Option<Bytes> {
        self.lock().end.as_ref()?.as_ref().ok().cloned()
    }

    /// All of it.
    pub(super) fn whole(&self) -> Result<Bytes> {
        let mut state = self.lock();
        loop {
            if let Some(end) = &state.end {
                return end.clone();
            }
            state = self.wait(state, usize::MAX);
        }
    }
}

/// The one that fills a cell; what it has not said when it is dropped is an error.
pub(super) struct Filler(Arc<Cell>);

impl Filler {
    pub(super) fn new(cell: Arc<Cell>) -> Filler {
        Filler(cell)
    }

    /// Adds a piece; `None`: all of it comes once more.
    ///
    /// # Errors
    /// `Read` - other bytes came than the time before.
    pub(super) fn push(&self, piece: Option<&[u8]>) -> Result<()> {
        let state = &mut *self.0.lock();
        let Some(piece) = piece else {
            state.at = 0;
            return Ok(());
        };
        if state.bytes.capacity() == 0 {
            state.bytes.reserve_exact(self.0.size);
        }
        let again = (state.bytes.len() - state.at).min(piece.len());
        if state.bytes[state.at..state.at + again] != piece[..again] {
            let detail =
                "found different bytes in two reads, expected the same; the network or the server damages them";
            return Err(Error::new(ErrorKind::Read, detail));
        }
        state.bytes.extend_from_slice(&piece[again..]);
        state.at += piece.len();
        if state.bytes.len() >= state.awaited {
            state.awaited = usize::MAX;
            self.0.filled.notify_all();
        }
        Ok(())
    }

    /// After the last piece.
    pub(super) fn close(&self, result: Result<()>) {
        let bytes = std::mem::take(&mut self.0.lock().bytes);
        self.end(result.map(|()| Bytes::from(bytes)));
    }

    /// Gives all of it, or says why it can't be had.
    pub(super) fn end(&self, result: Result<Bytes>) {
        self.0.lock().end.get_or_insert(result);
        self.0.filled.notify_all();
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.end(Err(Error::new(ErrorKind::Internal, "a task of the network panicked, or was ended")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What has come can be read before the rest has; a part that comes twice has to be the same.
    #[test]
    fn is_read_as_it_comes() {
        let cell = Arc::new(Cell::new(200_000));
        let filler = Filler::new(cell.clone());
        let bytes: Vec<u8> = (0..200_000u32).map(|i| i.wrapping_mul(2654435761) as u8).collect();
        filler.push(Some(&bytes[..70_000])).expect("the first");
        let mut buf = vec![0; 200_000];
        assert_eq!(cell.read(0, &mut buf).expect("it is there"), 70_000);
        assert_eq!(cell.read(69_000, &mut buf[..1000]).expect("it is there"), 1000);
        let other = cell.clone();
        let reader = std::thread::spawn(move || {
            let (mut buf, mut filled) = (vec![0; 200_000], 0);
            while filled < buf.len() {
                filled += other.read(filled, &mut buf[filled..])?;
            }
            Ok::<_, Error>(buf)
        });
        filler.push(None).expect("again");
        for piece in bytes.chunks(16_384) {
            filler.push(Some(piece)).expect("the same");
        }
        filler.close(Ok(()));
        assert!(reader.join().expect("no panic").expect("all of it") == bytes);
        assert!(cell.whole().expect("all of it") == bytes);

        let cell = Arc::new(Cell::new(10));
        let filler = Filler::new(cell.clone());
        filler.push(Some(b"abcde")).expect("the first");
        filler.push(None).expect("again");
        assert_eq!(filler.push(Some(b"abcdX")).expect_err("another byte").kind(), ErrorKind::Read);
        drop(filler);
        assert_eq!(cell.read(9, &mut [0]).expect_err("nobody fills it").kind(), ErrorKind::Internal);
    }
}
