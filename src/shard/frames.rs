//! Where the frames of a zstd shard lie, so that it can be entered in the middle.
//!
//! A seek table at the end (the zstd seekable format) tells all at once. Without one, the frames are found by stepping from block
//! header to block header, three bytes each, without reading what lies between. That costs a small read for about 100 KiB, so
//! it is bounded; a shard beyond the bound, or of one frame, is read front to back.
//!
//! Holds: a frame that can't be stepped over (truncated, or garbage) reaches to the end of the object, and its decoder says what is
//! wrong after everything before it was delivered. A seek table that lies is found out by the decoder.
//!
//! Source: RFC 8878, section 3.1.1; contrib/seekable_format/zstd_seekable_compression_format.md of zstd.

use std::sync::Arc;

use crate::error::Result;
use crate::shard::codec::{FRAME_MAGIC, FrameHeader, is_skippable};
use crate::storage::{Object, Reading, reader};

const SEEK_TABLE_MAGIC: u32 = 0x184d_2a5e;
const SEEKABLE_MAGIC: u32 = 0x8f92_eab1;

/// A first frame that doesn't end within so many bytes makes a stream of the shard.
const FIRST_FRAME_SIZE_MAX: u64 = 64 << 20;

/// A seek table of more entries isn't used, whatever the object's size allows.
const ENTRIES_MAX: u32 = 1 << 21;

/// So many headers are read at most.
const HEADERS_MAX: usize = 1 << 20;

/// One frame with content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Offset in the object.
    pub(crate) offset: u64,
    /// Size in the object, up to the next frame.
    pub(crate) size: u64,
    /// Uncompressed size, if it is told.
    pub(crate) content_size: Option<u64>,
}

/// All frames of a shard, in order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FrameTable {
    pub(crate) frames: Vec<Frame>,
    /// Uncompressed offset of each frame, and of the end; empty where a size isn't told.
    starts: Vec<u64>,
}

impl FrameTable {
    fn new(frames: Vec<Frame>) -> FrameTable {
        let mut starts = vec![0u64];
        for frame in &frames {
            let end = frame.content_size.and_then(|size| starts[starts.len() - 1].checked_add(size));
            let Some(end) = end else {
                return FrameTable { frames, starts: Vec::new() };
            };
            starts.push(end);
        }
        FrameTable { frames, starts }
    }

    /// Finds the frames of `object`; `None` where it has to be read front to back.
    pub(crate) fn find(object: &Arc<dyn Object>) -> Result<Option<FrameTable>> {
        let frames = match seek_table(&**object)? {
            Some(frames) => Some(frames),
            // Block headers lie so close that all between is read along, where reading has a price for each.
            None => walk(&*reader(object, 0..object.size(), Reading::Along))?,
        };
        Ok(frames.filter(|frames| frames.len() > 1).map(FrameTable::new))
    }

    /// Uncompressed offset in the shard of frame `index`, where known.
    pub(crate) fn content_start(&self, index: usize) -> Option<u64> {
        self.starts.get(index).copied()
    }

    /// Uncompressed size of the shard, where known.
    pub(crate) fn content_size(&self) -> Option<u64> {
        self.starts.last().copied()
    }

    /// The last frame that starts at or before the uncompressed `offset`.
    pub(crate) fn frame_at(&self, offset: u64) -> Option<usize> {
        if self.starts.is_empty() {
            return None;
        }
        let after = self.starts[..self.frames.len()].partition_point(|&start| start <= offset);
        Some(after.saturating_sub(1))
    }

    /// Groups the frames into units of about `span` uncompressed bytes; returns each unit's first frame.
    ///
    /// Where sizes aren't told, text is taken to shrink to a third.
    pub(crate) fn units(&self, span: u64) -> Vec<usize> {
        let mut units = Vec::new();
        let mut filled = u64::MAX;
        for (index, frame) in self.frames.iter().enumerate() {
            if filled >= span {
                units.push(index);
                filled = 0;
            }
            let size = if self.starts.is_empty() { Some(frame.size.saturating_mul(3)) } else { frame.content_size };
            filled = filled.saturating_add(size.unwrap_or(0));
        }
        units
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The frames as the seek table at the end says; `None` if there is none, or it doesn't describe this object.
fn seek_table(object: &dyn Object) -> Result<Option<Vec<Frame>>> {
    let size = object.size();
    let mut foot = [0; 9];
    if size < 17
        || object.read_at(size - 9, &mut foot)? < 9
        || word(&foot, 5) != SEEKABLE_MAGIC
        || foot[4] & 0x7c != 0
        || word(&foot, 0) > ENTRIES_MAX
    {
        return Ok(None);
    }
    let entry_size: u64 = if foot[4] & 0x80 != 0 { 12 } else { 8 };
    let table_size = u64::from(word(&foot, 0)) * entry_size + 17;
    if table_size > size {
        return Ok(None);
    }
    let start = size - table_size;
    let mut head = [0; 8];
    if object.read_at(start, &mut head)? < 8
        || word(&head, 0) != SEEK_TABLE_MAGIC
        || u64::from(word(&head, 4)) != table_size - 8
    {
        return Ok(None);
    }
    // Read in pieces, and only as much as the object has: the number of frames is bounded by its size.
    let mut frames = Vec::new();
    let mut buffer = vec![0; (entry_size * 4096) as usize];
    let (mut at, mut offset) = (start + 8, 0u64);
    while at < size - 9 {
        let piece = (size - 9 - at).min(buffer.len() as u64) as usize;
        let count = object.read_at(at, &mut buffer[..piece])?;
        if count < piece {
            return Ok(None);
        }
        for entry in buffer[..piece].chunks_exact(entry_size as usize) {
            let frame =
                Frame { offset, size: u64::from(word(entry, 0)), content_size: Some(u64::from(word(entry, 4))) };
            offset += frame.size;
            // An empty entry has no place of its own.
            if frame.size > 0 {
                frames.push(frame);
            }
        }
        at += piece as u64;
    }
    Ok((offset == start).then_some(frames))
}

/// Reads a few bytes here and there, with a small buffer for those that lie close together.
struct Glance<'a> {
    object: &'a dyn Object,
    buffer: [u8; 512],
    start: u64,
    len: usize,
}

impl Glance<'_> {
    /// Up to `count` bytes at `offset`, fewer at the end.
    fn at(&mut self, offset: u64, count: usize) -> Result<&[u8]> {
        let end = self.start + self.len as u64;
        if offset < self.start || offset.saturating_add(count as u64) > end {
            self.start = offset;
            self.len = 0;
            self.len = self.object.read_at(offset, &mut self.buffer)?;
        }
        let from = (offset - self.start) as usize;
        Ok(&self.buffer[from.min(self.len)..self.len.min(from + count)])
    }
}

/// The frames found by stepping over them; `None` if that takes too long.
fn walk(object: &dyn Object) -> Result<Option<Vec<Frame>>> {
    let size = object.size();
    let mut glance = Glance { object, buffer: [0; 512], start: 0, len: 0 };
    let mut frames: Vec<Frame> = Vec::new();
    let mut offset = 0;
    let mut headers = 0;
    // What can't be stepped over reaches to the end.
    let rest = |offset: u64| Frame { offset, size: size - offset, content_size: None };
    'frames: while offset < size {
        headers += 1;
        let bytes = glance.at(offset, FrameHeader::SIZE_MAX)?;
        if bytes.len() >= 8 && is_skippable(word(bytes, 0)) {
            let end = offset + 8 + u64::from(word(bytes, 4));
            if end > size {
                frames.push(rest(offset));
                break;
            }
            offset = end;
            if headers > HEADERS_MAX {
                return Ok(None);
            }
            continue;
        }
        let Some(header) = FrameHeader::parse(bytes) else {
            frames.push(rest(offset));
            break;
        };
        debug_assert_eq!(word(bytes, 0), FRAME_MAGIC);
        let mut at = offset + header.size as u64;
        loop {
            headers += 1;
            if headers > HEADERS_MAX || frames.is_empty() && at - offset > FIRST_FRAME_SIZE_MAX {
                return Ok(None);
            }
            let block = glance.at(at, 3)?;
            let &[a, b, c] = block else {
                frames.push(rest(offset));
                break 'frames;
            };
            let block = u32::from_le_bytes([a, b, c, 0]);
            at += 3 + match (block >> 1) & 3 {
                1 => 1,
                3 => {
                    frames.push(rest(offset));
                    break 'frames;
                }
                _ => u64::from(block >> 3),
            };
            if block & 1 != 0 {
                break;
            }
        }
        at += if header.checksum { 4 } else { 0 };
        if at > size {
            frames.push(rest(offset));
            break;
        }
        frames.push(Frame { offset, size: at - offset, content_size: header.content_size });
        offset = at;
    }
    Ok(Some(frames))
}
