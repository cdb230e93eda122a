//! Decompression: an object's bytes in, the shard's uncompressed bytes out, front to back.
//!
//! The codec is told by the first bytes, never by a name. Holds: output is handed out before the error that follows it, so
//! what lies before the damage is still delivered, and where that is doesn't depend on how much was asked for at once; a stream that ends in the middle, or is followed by bytes that are no stream,
//! is an error; memory is the input buffer and the codec's state, whatever a header claims. Does not know: records.

mod again;
mod bzip2;
mod gzip;
mod lz4;
mod xz;
mod zstd;

use std::sync::Arc;

pub(crate) use self::again::{Again, HELD};
pub(crate) use self::zstd::{FRAME_MAGIC, FrameHeader, Zstd, is_skippable};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::Object;

/// How much is read from the object at once.
const INPUT_SIZE: usize = 256 << 10;

/// A way of compressing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codec {
    None,
    Gzip,
    Zstd,
    Xz,
    Bzip2,
    Lz4,
}

impl Codec {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Codec::None => "none",
            Codec::Gzip => "gzip",
            Codec::Zstd => "zstd",
            Codec::Xz => "xz",
            Codec::Bzip2 => "bzip2",
            Codec::Lz4 => "lz4",
        }
    }

    /// Tells the codec by the object's first bytes; skippable frames, which zstd and lz4 share, are stepped over.
    pub(crate) fn detect(object: &dyn Object) -> Result<Codec> {
        let mut offset = 0u64;
        let mut skipped = 0;
        loop {
            let mut head = [0; 10];
            let count = object.read_at(offset, &mut head)?;
            let head = &head[..count];
            let codec = match head {
                [0x28, 0xb5, 0x2f, 0xfd, ..] => Codec::Zstd,
                [0x04, 0x22, 0x4d, 0x18, ..] => Codec::Lz4,
                [low, 0x2a, 0x4d, 0x18, size @ ..] if low & 0xf0 == 0x50 && size.len() >= 4 && skipped < 1024 => {
                    let size = u32::from_le_bytes([size[0], size[1], size[2], size[3]]);
                    offset += 8 + u64::from(size);
                    skipped += 1;
                    continue;
                }
                _ if skipped > 0 => Codec::Zstd,
                [0x1f, 0x8b, ..] => Codec::Gzip,
                [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Codec::Xz,
                [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, 0x53, 0x59]
                | [b'B', b'Z', b'h', b'1'..=b'9', 0x17, 0x72, 0x45, 0x38, 0x50, 0x90] => Codec::Bzip2,
                _ => Codec::None,
            };
            return Ok(codec);
        }
    }

    /// A decoder from the beginning of the object.
    pub(crate) fn decoder(self, object: Arc<dyn Object>) -> Result<Box<dyn Decode>> {
        let input = Input::new(object, 0);
        Ok(match self {
            Codec::None => Box::new(Plain::new(input.object, 0)),
            Codec::Gzip => Box::new(gzip::Gzip::new(input)),
            Codec::Zstd => Box::new(Zstd::new(input)?),
            Codec::Xz => Box::new(xz::Xz::new(input)?),
            Codec::Bzip2 => Box::new(bzip2::Bzip2::new(input)),
            Codec::Lz4 => Box::new(lz4::Lz4::new(input)),
        })
    }
}

/// Uncompressed bytes, front to back.
pub(crate) trait Decode: Send {
    /// Puts the next bytes at the beginning of `out`, which isn't empty; returns how many, 0 at the end.
    ///
    /// After an error the decoder isn't used again, unless [`Decode::recover`] says so.
    fn read(&mut self, out: &mut [u8]) -> Result<usize>;

    /// Passes over up to `count` bytes without reading them; returns how many, or `None` if the codec can't.
    fn skip(&mut self, _count: u64) -> Option<u64> {
        None
    }

    /// How many of the bytes handed out so far were checked, as far as the format checks them.
    fn checked(&self) -> u64 {
        0
    }

    /// After an error of kind `Corrupt`: goes to the next place that can be read alone; returns its uncompressed offset, which
    /// is at or behind what was handed out, or `None` if there is no such place.
    fn recover(&mut self) -> Option<u64> {
        None
    }

    /// The uncompressed offset of the place at which the unit ends, where that became known only on reaching it.
    fn mark(&self) -> Option<u64> {
        None
    }
}

/// A damaged stream: `found` against `expected`.
pub(crate) fn corrupt(codec: Codec, found: impl std::fmt::Display, expected: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{}: found {found}, expected {expected}", codec.name()))
}

/// An uncompressed object.
pub(crate) struct Plain {
    object: Arc<dyn Object>,
    offset: u64,
}

impl Plain {
    pub(crate) fn new(object: Arc<dyn Object>, offset: u64) -> Plain {
        Plain { object, offset }
    }
}

impl Decode for Plain {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        let count = self.object.read_at(self.offset, out)?;
        self.offset += count as u64;
        Ok(count)
    }

    fn skip(&mut self, count: u64) -> Option<u64> {
        let count = count.min(self.object.size().saturating_sub(self.offset));
        self.offset += count;
        Some(count)
    }
}

/// Buffered bytes of an object, front to back.
pub(crate) struct Input {
    object: Arc<dyn Object>,
    /// Offset in the object of the byte after the buffer.
    offset: u64,
    buffer: Vec<u8>,
    /// The bytes of `buffer` not yet consumed.
    start: usize,
    len: usize,
}

impl Input {
    pub(crate) fn new(object: Arc<dyn Object>, offset: u64) -> Input {
        Input { object, offset, buffer: Vec::new(), start: 0, len: 0 }
    }

    /// Offset in the object of the next byte.
    pub(crate) fn position(&self) -> u64 {
        self.offset - (self.len - self.start) as u64
    }

    /// The bytes at hand, at least `wanted` (at most [`INPUT_SIZE`]) unless the object ends before.
    pub(crate) fn peek(&mut self, wanted: usize) -> Result<&[u8]> {
        if self.len - self.start < wanted {
            self.buffer.copy_within(self.start..self.len, 0);
            self.len -= self.start;
            self.start = 0;
            // A small object needs no large buffer.
            let room = (self.object.size().saturating_sub(self.offset)).min((INPUT_SIZE - self.len) as u64) as usize;
            if self.buffer.len() < self.len + room {
                self.buffer.resize(self.len + room, 0);
            }
            let count = self.object.read_at(self.offset, &mut self.buffer[self.len..self.len + room])?;
            self.offset += count as u64;
            self.len += count;
        }
        Ok(&self.buffer[self.start..self.len])
    }

    /// The bytes at hand, at least one unless the object ends here.
    pub(crate) fn fill(&mut self) -> Result<&[u8]> {
        self.peek(1)
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        assert!(self.start <= self.len, "consumed more bytes than were there");
    }

    /// Passes over `count` bytes, or what is left of the object; returns how many.
    pub(crate) fn skip(&mut self, count: u64) -> u64 {
        let at_hand = (self.len - self.start) as u64;
        if count <= at_hand {
            self.start += count as usize;
            return count;
        }
        let count = count.min(at_hand + self.object.size().saturating_sub(self.offset));
        self.offset += count - at_hand;
        self.start = 0;
        self.len = 0;
        count
    }
}
