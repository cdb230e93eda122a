//! zstd: frames one after the other, skippable frames between them (RFC 8878, section 3.1).
//!
//! A frame asks for a window, the memory its decoder needs; more than 128 MiB (`zstd --long=27`) is refused, as the zstd tool does
//! unless told otherwise. Where the frames' places are known beforehand, each is compared with what is found, since a seek table
//! that lies would lose or repeat records in silence. They are also where reading goes on behind a damaged frame.
//!
//! The decoder is given one block at a time, and only when all before it was handed out: libzstd drops what it decoded in the
//! call that fails, so the place of an error would else depend on how the input was cut.

use std::sync::Arc;

use zstd::zstd_safe::{self, DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

use super::{Codec, Decode, Input, corrupt};
use crate::error::{Error, ErrorKind, Result};
use crate::shard::frames::FrameTable;

pub(crate) const FRAME_MAGIC: u32 = 0xfd2f_b528;

const WINDOW_LOG_MAX: u32 = 27;

/// The largest window a frame may ask for, in bytes.
const WINDOW_SIZE_MAX: u64 = 1 << WINDOW_LOG_MAX;

pub(crate) fn is_skippable(magic: u32) -> bool {
    magic & 0xffff_fff0 == 0x184d_2a50
}

/// What a frame's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Size of the header, magic included.
    pub(crate) size: usize,
    /// Memory its decoder needs.
    pub(crate) window_size: u64,
    /// Size of the content, if it is told.
    pub(crate) content_size: Option<u64>,
    /// Four bytes of checksum follow the last block.
    pub(crate) checksum: bool,
}

impl FrameHeader {
    /// No header is longer.
    pub(crate) const SIZE_MAX: usize = 18;

    /// Reads the header at the beginning of `bytes`; `None` if it isn't one, or isn't all there.
    ///
    /// Source: RFC 8878, section 3.1.1.1.
    pub(crate) fn parse(bytes: &[u8]) -> Option<FrameHeader> {
        if bytes.get(..4)? != FRAME_MAGIC.to_le_bytes() {
            return None;
        }
        let descriptor = *bytes.get(4)?;
        let single_segment = descriptor & 0x20 != 0;
        let mut at = 5;
        let mut window_size = 0;
        if !single_segment {
            let byte = *bytes.get(at)?;
            let base = 1u64 << (10 + (byte >> 3));
            window_size = base + base / 8 * u64::from(byte & 7);
            at += 1;
        }
        at += [0, 1, 2, 4][usize::from(descriptor & 3)];
        let content_bytes = [usize::from(single_segment), 2, 4, 8][usize::from(descriptor >> 6)];
        let mut word = [0; 8];
        word[..content_bytes].copy_from_slice(bytes.get(at..at + content_bytes)?);
        let content_size = match content_bytes {
            0 => None,
            2 => Some(u64::from_le_bytes(word) + 256),
            _ => Some(u64::from_le_bytes(word)),
        };
        if single_segment {
            window_size = content_size.unwrap_or(0);
        }
        Some(FrameHeader { size: at + content_bytes, window_size, content_size, checksum: descriptor & 4 != 0 })
    }
}

pub(crate) struct Zstd {
    input: Input,
    context: DCtx<'static>,
    in_frame: bool,
    /// Uncompressed offset of the next byte.
    position: u64,
    /// Bytes handed out, and how many of them there were at the end of a frame.
    handed: u64,
    checked: u64,
    /// The frames as known beforehand, and the index of the next one.
    table: Option<(Arc<FrameTable>, usize)>,
    /// Offset in the object at which the unit ends.
    mark_at: Option<u64>,
    mark: Option<u64>,
    /// Input bytes of the frame's part under way (its header, a block, or the checksum) that the decoder wasn't given yet.
    part_left: usize,
    /// That part is the frame's last block, or behind it; and whether a checksum is still to come.
    part_is_last: bool,
    checksum: bool,
    /// The decoder may hold output for which there was no room.
    pending: bool,
    /// Uncompressed offset at which the frame ends, where that is known beforehand.
    frame_end: Option<u64>,
    /// What follows the bytes handed out last.
    failed: Option<Error>,
}

impl Zstd {
    pub(crate) fn new(input: Input) -> Result<Zstd> {
        let failed = |detail: &str| Error::new(ErrorKind::Limit, format!("zstd: {detail}"));
        let mut context = DCtx::try_create().ok_or_else(|| failed("no memory for a decoder"))?;
        context
            .set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX))
            .map_err(|code| failed(zstd_safe::get_error_name(code)))?;
        Ok(Zstd {
            input,
            context,
            in_frame: false,
            position: 0,
            handed: 0,
            checked: 0,
            table: None,
            mark_at: None,
            mark: None,
            part_left: 0,
            part_is_last: false,
            checksum: false,
            pending: false,
            frame_end: None,
            failed: None,
        })
    }

    /// A decoder from frame `first` on; with `end`, the place where that frame starts is marked.
    pub(crate) fn at_frame(
        object: Arc<dyn crate::storage::Object>,
        table: &Arc<FrameTable>,
        first: usize,
        position: u64,
        end: Option<usize>,
    ) -> Result<Zstd> {
        let mut decoder = Zstd::new(Input::new(object, table.frames[first].offset))?;
        decoder.position = position;
        decoder.mark_at = end.map(|end| table.frames[end].offset);
        decoder.table = Some((table.clone(), first));
        Ok(decoder)
    }

    /// Goes to the next frame; false at the end of the object.
    fn next_frame(&mut self) -> Result<bool> {
        loop {
            let offset = self.input.position();
            if self.mark.is_none() && self.mark_at.is_some_and(|mark_at| offset >= mark_at) {
                self.mark = Some(self.position);
            }
            let bytes = self.input.peek(FrameHeader::SIZE_MAX)?;
            let Some(magic) = bytes.first_chunk::<4>().map(|magic| u32::from_le_bytes(*magic)) else {
                if bytes.is_empty() {
                    self.compare(None)?;
                    return Ok(false);
                }
                let found = format!("{} bytes at offset {offset} after the last frame", bytes.len());
                return Err(corrupt(Codec::Zstd, found, "the end"));
            };
            if is_skippable(magic) {
                let Some(size) = bytes.get(4..8).and_then(|size| size.first_chunk::<4>()) else {
                    return Err(self.truncated());
                };
                let size = 8 + u64::from(u32::from_le_bytes(*size));
                if self.input.skip(size) < size {
                    return Err(self.truncated());
                }
                continue;
            }
            if magic != FRAME_MAGIC {
                let found = format!("the bytes {} at offset {offset}", hex(&bytes[..4]));
                return Err(corrupt(Codec::Zstd, found, "a frame (28 b5 2f fd)"));
            }
            let header = FrameHeader::parse(bytes);
            if let Some(header) = header
                && header.window_size > WINDOW_SIZE_MAX
            {
                let detail = format!(
                    "zstd: found a window of {} bytes in the frame at offset {offset}, expected at most {WINDOW_SIZE_MAX}",
                    header.window_size
                );
                return Err(Error::new(ErrorKind::Limit, detail));
            }
            // A header that isn't all there is the decoder's to refuse.
            self.part_left = header.map_or(bytes.len(), |header| header.size);
            self.checksum = header.is_some_and(|header| header.checksum);
            self.part_is_last = false;
            self.pending = false;
            self.compare(Some(offset))?;
            self.context.reset(ResetDirective::SessionOnly).map_err(|code| {
                Error::new(ErrorKind::Internal, format!("zstd: reset failed: {}", zstd_safe::get_error_name(code)))
            })?;
            self.in_frame = true;
            return Ok(true);
        }
    }

    /// Compares the frame that starts at `offset`, or the end, with what was known beforehand.
    fn compare(&mut self, offset: Option<u64>) -> Result<()> {
        let Some((table, next)) = &mut self.table else { return Ok(()) };
        // A seek table may list skippable frames, as frames without content.
        while let Some(frame) = table.frames.get(*next)
            && offset.is_none_or(|offset| frame.offset < offset)
            && frame.content_size == Some(0)
        {
            *next += 1;
        }
        let expected = table.frames.get(*next);
        if offset != expected.map(|frame| frame.offset) {
            let place =
                |offset: Option<u64>| offset.map_or("the end".to_owned(), |at| format!("a frame at offset {at}"));
            return Err(corrupt(Codec::Zstd, place(offset), place(expected.map(|frame| frame.offset))));
        }
        let content = if expected.is_some() { table.content_start(*next) } else { table.content_size() };
        if let Some(content) = content
            && content != self.position
        {
            let found = format!("{} uncompressed bytes before frame {next}", self.position);
            return Err(corrupt(Codec::Zstd, found, format!("{content}, as the seek table or the frame headers say")));
        }
        *next += 1;
        self.frame_end = table.content_start(*next);
        Ok(())
    }

    /// Looks at the header of the frame's next block.
    fn next_part(&mut self) -> Result<()> {
        let offset = self.input.position();
        if self.part_is_last && std::mem::take(&mut self.checksum) {
            self.part_left = 4;
            return Ok(());
        }
        if self.part_is_last {
            let found = format!("no end of the frame at offset {offset}");
            return Err(corrupt(Codec::Zstd, found, "it to end with its last block"));
        }
        let &[a, b, c, ..] = self.input.peek(3)? else { return Err(self.truncated()) };
        let header = u32::from_le_bytes([a, b, c, 0]);
        self.part_is_last = header & 1 != 0;
        let content = match (header >> 1) & 3 {
            0 | 2 => (header >> 3) as usize,
            1 => 1,
            // Reserved: the decoder says so.
            _ => 0,
        };
        self.part_left = 3 + content;
        Ok(())
    }

    fn truncated(&self) -> Error {
        let size = self.input.object.size();
        corrupt(Codec::Zstd, format!("the end of the object at offset {size}"), "the rest of a frame")
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

impl Decode for Zstd {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        loop {
            if !self.in_frame && !self.next_frame()? {
                return Ok(0);
            }
            if self.part_left == 0 && !self.pending {
                self.next_part()?;
            }
            let bytes: &[u8] = if self.part_left == 0 || self.pending { &[] } else { self.input.fill()? };
            let bytes = &bytes[..bytes.len().min(self.part_left)];
            let at_end = bytes.is_empty() && self.part_left > 0 && !self.pending;
            let mut source = InBuffer::around(bytes);
            let mut target = OutBuffer::around(&mut *out);
            let result = self.context.decompress_stream(&mut target, &mut source);
            let (consumed, count) = (source.pos(), target.pos());
            let left = result.map_err(|code| {
                let offset = self.input.position();
                let name = zstd_safe::get_error_name(code);
                corrupt(Codec::Zstd, format!("damaged data near offset {offset} ({name})"), "a block or checksum")
            })?;
            self.input.consume(consumed);
            self.part_left -= consumed;
            self.pending = count == out.len();
            let room = self.frame_end.map_or(u64::MAX, |end| end.saturating_sub(self.position));
            let taken = (count as u64).min(room) as usize;
            self.position += taken as u64;
            self.handed += taken as u64;
            if (count as u64) > room || left == 0 && self.frame_end.is_some_and(|end| end != self.position) {
                let found = if taken < count { "more".to_owned() } else { self.position.to_string() };
                let end = self.frame_end.unwrap_or(0);
                let found = format!("{found} uncompressed bytes up to a frame's end");
                self.failed =
                    Some(corrupt(Codec::Zstd, found, format!("{end}, as the seek table or the frame headers say")));
            } else if left == 0 {
                self.in_frame = false;
                self.checked = self.handed;
            } else if consumed == 0 && count == 0 && at_end {
                return Err(self.truncated());
            }
            if taken > 0 {
                return Ok(taken);
            }
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
        }
    }

    fn recover(&mut self) -> Option<u64> {
        let (table, next) = self.table.as_mut()?;
        // A frame that couldn't even be begun is passed over as well.
        if !self.in_frame && table.frames.get(*next).is_some_and(|frame| frame.offset <= self.input.position()) {
            *next += 1;
        }
        let frame = table.frames.get(*next)?;
        self.position = table.content_start(*next).unwrap_or(self.position);
        self.input = Input::new(self.input.object.clone(), frame.offset);
        self.in_frame = false;
        self.failed = None;
        Some(self.position)
    }

    fn mark(&self) -> Option<u64> {
        self.mark
    }

    fn checked(&self) -> u64 {
        self.checked
    }
}
