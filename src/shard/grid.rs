//! Windows on a grid of byte offsets: any window of a unit is found from its numbers alone.
//!
//! A record's *anchor* is the offset of the first byte of the separator before it; the shard's first record has none and counts
//! as lying at the shard's start. A record belongs to the unit whose range holds its anchor, and in it to the window
//! `(anchor - start of the unit) / window size`. So window k begins after the first separator at or behind its grid line and ends
//! with the record that the next such separator ends. No look-back is needed, which is what lets a reader enter at a zstd frame.
//!
//! ```text
//! offset      0   4   8   12  16        window = 8 bytes, unit = 0..16, separator = "\n"
//! bytes       aa\nbbbbbbb\ncc\nd\n
//! anchors     aa: none, b: 2, c: 10, d: 13
//! windows     0: aa, bbbbbbb    1: cc, d
//! ```
//!
//! A record longer than a window leaves the next windows without a record, and those are not delivered. The same holds for a
//! window of blank lines.
//!
//! Damage that is to be passed over (`GridPlan::skip`) cuts its window: the records that are whole before it, and, where the
//! codec can go on behind it, those after the next separator there. What was lost between is told as a [`Loss`]. Without
//! `skip` a window that can't be read as a whole isn't delivered at all, so that a state stays good for the mended file.
//!
//! Holds: one window, one record and the input buffers are all that is kept; bytes of a window that isn't wanted are
//! passed over, and searched for one separator only. Does not know: JSON, codecs.
//!
//! Why the separator's first byte and not its last: with the last, a separator of several bytes that lies across
//! the border of two frames would be seen only by who decoded the frame before.

use std::ops::Range;
use std::sync::Arc;

use crate::document::{Loss, RecordRange, Window};
use crate::error::{Error, ErrorKind, Result};
use crate::shard::codec::Decode;
use crate::shard::separator::Separator;

/// How far is read at first in search of a separator; doubled up to [`STEP_MAX`].
const STEP_MIN: usize = 16 << 10;
/// The same in windows that are shorter than that.
const STEP_LEAST: usize = 1 << 10;
const STEP_MAX: usize = 1 << 20;

/// Room that is made at once for what is read.
const ROOM: usize = 128 << 10;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Uncompressed bytes with a place to put back what was read too far.
struct Bytes {
    decoder: Box<dyn Decode>,
    /// Read, but not yet handed out: `ahead[ahead_start..]`.
    ahead: Vec<u8>,
    ahead_start: usize,
    /// Uncompressed offset of the next byte handed out.
    position: u64,
    ended: bool,
    failed: Option<Error>,
}

impl Bytes {
    fn new(decoder: Box<dyn Decode>, position: u64) -> Bytes {
        Bytes { decoder, ahead: Vec::new(), ahead_start: 0, position, ended: false, failed: None }
    }

    /// Appends up to `count` bytes to `out`; returns how many, 0 at the end. An error comes after all bytes before it.
    fn fill(&mut self, out: &mut Vec<u8>, count: usize) -> Result<usize> {
        let ahead = &self.ahead[self.ahead_start..];
        if !ahead.is_empty() {
            let count = ahead.len().min(count);
            out.extend_from_slice(&ahead[..count]);
            self.ahead_start += count;
            self.position += count as u64;
            return Ok(count);
        }
        let start = out.len();
        // Nothing that is handed out from here on can be put back by going back in `ahead`.
        self.ahead.clear();
        self.ahead_start = 0;
        if !self.ended && self.failed.is_none() {
            let mut filled = 0;
            while filled < count {
                if out.len() == start + filled {
                    // Room is zeroed a little at a time, so that it is still in the processor's cache when it is written to.
                    out.resize((out.len() + ROOM).min(start + count), 0);
                }
                match self.decoder.read(&mut out[start + filled..]) {
                    Ok(0) => {
                        self.ended = true;
                        break;
                    }
                    Ok(more) => filled += more,
                    Err(error) => {
                        self.failed = Some(error);
                        break;
                    }
                }
            }
            out.truncate(start + filled);
            self.position += filled as u64;
            if filled > 0 {
                return Ok(filled);
            }
        }
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => Ok(0),
        }
    }

    /// Puts the bytes handed out last back; they are the next ones again.
    fn put_back(&mut self, tail: &[u8]) {
        self.position -= tail.len() as u64;
        if self.ahead_start >= tail.len() {
            // They came from `ahead`, and are still there.
            self.ahead_start -= tail.len();
        } else {
            self.ahead.clear();
            self.ahead.extend_from_slice(tail);
            self.ahead_start = 0;
        }
    }

    /// After an error of damage: goes on at the next readable place, if there is one, and returns its offset.
    fn recover(&mut self) -> Option<u64> {
        let position = self.decoder.recover()?;
        self.failed = None;
        self.ahead.clear();
        self.ahead_start = 0;
        self.position = position;
        Some(position)
    }

    /// Whether there is another byte.
    fn more(&mut self) -> Result<bool> {
        if self.ahead_start < self.ahead.len() {
            return Ok(true);
        }
        let mut ahead = std::mem::take(&mut self.ahead);
        ahead.clear();
        self.ahead_start = 0;
        let filled = self.fill(&mut ahead, STEP_MIN);
        self.ahead = ahead;
        let filled = filled?;
        self.position -= filled as u64;
        Ok(filled > 0)
    }

    /// Passes over up to `count` bytes of which nothing needs to be seen; returns how many.
    fn skip(&mut self, count: u64) -> Option<u64> {
        let at_hand = (self.ahead.len() - self.ahead_start) as u64;
        if at_hand > 0 {
            let count = count.min(at_hand);
            self.ahead_start += count as usize;
            self.position += count;
            return Some(count);
        }
        if self.ended || self.failed.is_some() {
            return None;
        }
        let skipped = self.decoder.skip(count)?;
        self.position += skipped;
        Some(skipped)
    }
}

/// What a [`GridReader`] is to read.
pub(crate) struct GridPlan {
    pub(crate) shard: Arc<str>,
    pub(crate) separator: Arc<Separator>,
    /// Lines of JSON: `\r` before the line end and blank lines are no part of records.
    pub(crate) lines: bool,
    pub(crate) window: u64,
    pub(crate) record_max: u64,
    /// Where the grid begins.
    pub(crate) unit_start: u64,
    /// Where the unit ends, if it isn't the end of the shard and is known; else the decoder's mark.
    pub(crate) unit_end: Option<u64>,
    /// The unit begins with the shard.
    pub(crate) shard_start: bool,
    /// Index of the first window to deliver.
    pub(crate) first: u64,
    /// Damage is passed over.
    pub(crate) skip: bool,
}

/// Reads the windows of one unit.
pub(crate) struct GridReader {
    plan: GridPlan,
    bytes: Bytes,
    at: At,
    /// Index of the next window that can be delivered.
    next: u64,
    /// Index of the next line or piece, where all before were counted.
    first_record: Option<u64>,
    scratch: Vec<u8>,
    /// Ranges of the window's bytes that hold whole records; damage lies between them.
    parts: Vec<Range<usize>>,
    losses: Vec<Loss>,
    failed: Option<Error>,
}

enum At {
    /// The first separator at or behind this offset is still to be found.
    Before(u64),
    /// Behind a separator that lies there, or at the start of the shard.
    Behind(Option<u64>),
    End,
}

impl GridReader {
    /// `decoder` gives the bytes from the uncompressed offset `position` on.
    pub(crate) fn new(plan: GridPlan, decoder: Box<dyn Decode>, position: u64) -> GridReader {
        // Overlapping separators are found in order only, so everything is read from the start.
        let from_start = plan.shard_start && (plan.first == 0 || plan.separator.overlaps());
        let at = if from_start {
            At::Behind(None)
        } else {
            At::Before(plan.unit_start.saturating_add(plan.first.saturating_mul(plan.window)))
        };
        let first_record = from_start.then_some(0);
        GridReader {
            bytes: Bytes::new(decoder, position),
            at,
            next: plan.first,
            first_record,
            plan,
            scratch: Vec::new(),
            parts: Vec::new(),
            losses: Vec::new(),
            failed: None,
        }
    }

    pub(crate) fn take_losses(&mut self) -> Vec<Loss> {
        std::mem::take(&mut self.losses)
    }

    pub(crate) fn position(&self) -> u64 {
        self.next
    }

    pub(crate) fn next_window(&mut self, window: &mut Window, wanted: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = self.advance(window, wanted);
        result.map_err(|error| {
            let error = error.at_byte(self.bytes.position).in_shard(&self.plan.shard);
            self.failed = Some(error.clone());
            error
        })
    }

    /// Passes over damage, if that is wanted and `error` is of damage: returns where reading goes on, or `None` if nothing
    /// more of the unit can be read.
    fn pass_damage(&mut self, error: Error) -> Result<Option<u64>> {
        if !self.plan.skip || error.kind() != ErrorKind::Corrupt {
            return Err(error);
        }
        let (position, end) = (self.bytes.position, self.end());
        let next = self.bytes.recover();
        self.first_record = None;
        // Behind the unit's end only the rest of its last record is lost; the damage is met, and counted, by the next unit.
        if position < end {
            let window = position.saturating_sub(self.plan.unit_start) / self.plan.window;
            let what = match next {
                Some(next) => format!("passed over up to the record after byte {next}"),
                None => "the rest is passed over".to_owned(),
            };
            let error = error.and(&what).at_byte(position).in_shard(&self.plan.shard);
            self.losses.push(Loss { window, error });
        }
        Ok(next.filter(|&next| next < self.end()))
    }

    /// Where the unit ends, as far as is known.
    fn end(&self) -> u64 {
        self.plan.unit_end.or(self.bytes.decoder.mark()).unwrap_or(u64::MAX)
    }

    fn advance(&mut self, window: &mut Window, wanted: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
        loop {
            let anchor = match self.at {
                At::End => break,
                At::Before(offset) => {
                    self.pass_to(offset)?;
                    continue;
                }
                At::Behind(anchor) => anchor,
            };
            // The record behind the unit's end is the next unit's, and at the end of the bytes there is none.
            if anchor.is_some_and(|anchor| anchor >= self.end()) {
                self.at = At::End;
                break;
            }
            match self.bytes.more() {
                Ok(true) => {}
                Ok(false) => {
                    self.at = At::End;
                    break;
                }
                Err(error) => {
                    self.at = self.pass_damage(error)?.map_or(At::End, At::Before);
                    continue;
                }
            }
            let index = anchor.map_or(0, |anchor| (anchor - self.plan.unit_start) / self.plan.window);
            self.next = self.next.max(index);
            let grid_line = self.plan.unit_start.saturating_add((index + 1).saturating_mul(self.plan.window));
            let is_wanted = index >= self.plan.first && wanted(index);
            if !is_wanted && !self.plan.separator.overlaps() {
                self.first_record = None;
                self.pass_to(grid_line)?;
                continue;
            }
            let first_record = self.first_record;
            window.index = index;
            window.byte_start = self.bytes.position;
            window.first_record = first_record;
            window.records.clear();
            window.bytes.clear();
            self.take_to(grid_line, &mut window.bytes)?;
            if self.first_record.is_none() {
                // Lines were lost in it, or before.
                window.first_record = None;
            }
            self.split(window, anchor.is_none() && window.byte_start == 0)?;
            if is_wanted && !window.records.is_empty() {
                self.next = index + 1;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Goes behind the first separator at or behind `grid_line` (or the unit's end); what lies before is dropped.
    fn pass_to(&mut self, grid_line: u64) -> Result<()> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let result = self.pass(grid_line, &mut scratch);
        self.scratch = scratch;
        result
    }

    fn pass(&mut self, grid_line: u64, scratch: &mut Vec<u8>) -> Result<()> {
        loop {
            let target = grid_line.min(self.end());
            let Some(ahead) = target.checked_sub(self.bytes.position).filter(|&ahead| ahead > 0) else { break };
            if let Some(skipped) = self.bytes.skip(ahead) {
                if skipped == 0 {
                    break;
                }
                continue;
            }
            scratch.clear();
            let start = self.bytes.position;
            match self.bytes.fill(scratch, ahead.min(STEP_MIN as u64) as usize) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    if self.pass_damage(error)?.is_none() {
                        self.at = At::End;
                        return Ok(());
                    }
                    continue;
                }
            }
            // The unit may have been found to end among these bytes.
            if let Some(kept) = self.end().checked_sub(start)
                && self.end() < self.bytes.position
            {
                let tail = scratch.split_off(kept as usize);
                self.bytes.put_back(&tail);
            }
        }
        scratch.clear();
        let mut step = STEP_MIN;
        loop {
            // The end of what was searched is kept: a separator may begin there.
            let kept = scratch.len().min(self.plan.separator.size() - 1);
            scratch.drain(..scratch.len() - kept);
            let start = self.bytes.position - kept as u64;
            match self.bytes.fill(scratch, step) {
                Ok(0) => {
                    self.at = At::End;
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) => {
                    if self.pass_damage(error)?.is_none() {
                        self.at = At::End;
                        return Ok(());
                    }
                    scratch.clear();
                    continue;
                }
            }
            if let Some(found) = self.plan.separator.find(scratch) {
                let tail = scratch.split_off(found + self.plan.separator.size());
                self.bytes.put_back(&tail);
                self.at = At::Behind(Some(start + found as u64));
                return Ok(());
            }
            step = (step * 2).min(STEP_MAX);
        }
    }

    /// Takes everything up to the first separator at or behind `grid_line` (or the unit's end), and goes behind it. What can
    /// be split into records is in `parts` then.
    fn take_to(&mut self, grid_line: u64, bytes: &mut Vec<u8>) -> Result<()> {
        self.parts.clear();
        let start = self.bytes.position;
        let mut part = 0;
        loop {
            let Err(error) = self.take_part(start, part, grid_line, bytes) else {
                self.parts.push(part..bytes.len());
                return Ok(());
            };
            // The records before the damage that are whole: up to the last separator.
            let (mut searched, mut whole) = (part, None);
            while let Some(found) = self.plan.separator.find(&bytes[searched..]) {
                whole = Some(searched + found);
                searched += found + self.plan.separator.size();
            }
            let Some(next) = self.pass_damage(error)? else {
                self.parts.extend(whole.map(|end| part..end));
                self.at = At::End;
                return Ok(());
            };
            self.parts.extend(whole.map(|end| part..end));
            self.pass_to(next)?;
            match self.at {
                At::Behind(Some(anchor)) if anchor < grid_line.min(self.end()) => {
                    // The window goes on. Offsets in it stay those of the shard, which takes less than a window of nothing.
                    part = (self.bytes.position - start) as usize;
                    bytes.resize(part, 0);
                }
                _ => return Ok(()),
            }
        }
    }

    /// The part of a window whose first byte is to be `bytes[part]`, `start` being the offset of `bytes[0]`.
    fn take_part(&mut self, start: u64, part: usize, grid_line: u64, bytes: &mut Vec<u8>) -> Result<()> {
        let separator = self.plan.separator.clone();
        // Where the grid line lies in `bytes`.
        let line = |reader: &Self| grid_line.min(reader.end()).saturating_sub(start);
        let missing = line(self).saturating_sub(bytes.len() as u64).min(4 << 20) as usize;
        // What a record of a short window is searched by; a buffer of many times its size would be for nothing.
        let first_step = missing.clamp(STEP_LEAST, STEP_MIN);
        // Room for the record across the grid line as well, or the buffer would double for it.
        bytes.reserve_exact(missing + 2 * first_step);
        loop {
            let missing = line(self).saturating_sub(bytes.len() as u64);
            if missing == 0 {
                break;
            }
            // What is asked for is zeroed first, so a unit without a known end isn't asked for at once.
            if self.bytes.fill(bytes, missing.min(4 << 20) as usize)? == 0 {
                break;
            }
        }
        let mut searched = part;
        let mut step = first_step;
        loop {
            let line = usize::try_from(line(self)).unwrap_or(usize::MAX);
            if !separator.overlaps() {
                searched = searched.max(line.min(bytes.len()));
            }
            while let Some(found) = separator.find(&bytes[searched..]).map(|found| searched + found) {
                searched = found + separator.size();
                if found >= line {
                    let tail = bytes.len() - searched;
                    self.bytes.put_back(&bytes[bytes.len() - tail..]);
                    bytes.truncate(found);
                    self.at = At::Behind(Some(start + found as u64));
                    return Ok(());
                }
            }
            searched = searched.max((bytes.len() + 1).saturating_sub(separator.size()));
            if bytes.len().saturating_sub(line) as u64 > self.plan.record_max {
                // The record that lies across the grid line is too long; it is named by its start.
                let mut record = part;
                let _: Result<(), ()> = separator.split(&bytes[part..line.max(part)], |start, _| {
                    record = part + start;
                    Ok(())
                });
                return Err(self.too_long(None).at_byte(start + record as u64));
            }
            if self.bytes.fill(bytes, step)? == 0 {
                self.at = At::End;
                return Ok(());
            }
            step = (step * 2).min(STEP_MAX);
        }
    }

    /// Finds the records in the window's bytes.
    fn split(&mut self, window: &mut Window, shard_start: bool) -> Result<()> {
        let (lines, record_max) = (self.plan.lines, self.plan.record_max);
        let bytes = &window.bytes[..];
        let records = &mut window.records;
        let mut ordinal = 0u32;
        let mark = if shard_start && bytes.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
        let mut take = |part: usize, start: usize, end: usize| {
            let (start, end) = (part + start, part + end);
            let start = start.max(mark.min(end));
            let mut record = &bytes[start..end];
            if lines {
                record = record.strip_suffix(b"\r").unwrap_or(record);
            }
            let blank = if lines { record.iter().all(u8::is_ascii_whitespace) } else { record.is_empty() };
            if !blank {
                if record.len() as u64 > record_max {
                    return Err((start, record.len(), ordinal));
                }
                records.push(RecordRange { start: start as u32, len: record.len() as u32, ordinal, null: false });
            }
            ordinal += 1;
            Ok(())
        };
        let too_long = self.parts.iter().try_for_each(|part| {
            self.plan.separator.split(&bytes[part.clone()], |start, end| take(part.start, start, end))
        });
        if let Err((start, size, ordinal)) = too_long {
            let error = self.too_long(Some(size)).at_byte(window.byte_start + start as u64);
            return Err(match window.first_record {
                Some(first) => error.at_record(first + u64::from(ordinal)),
                None => error,
            });
        }
        self.first_record = window.first_record.map(|first| first + u64::from(ordinal));
        Ok(())
    }

    fn too_long(&self, size: Option<usize>) -> Error {
        let found = size.map_or("more".to_owned(), |size| format!("{size}"));
        let detail = format!("found a record of {found} bytes, expected at most {}", self.plan.record_max);
        Error::new(ErrorKind::Limit, detail)
    }
}

/// Reads a shard that is one document.
pub(crate) struct WholeReader {
    shard: Arc<str>,
    record_max: u64,
    bytes: Bytes,
    done: bool,
    skip: bool,
    losses: Vec<Loss>,
    failed: Option<Error>,
}

impl WholeReader {
    pub(crate) fn new(
        shard: Arc<str>,
        record_max: u64,
        decoder: Box<dyn Decode>,
        first: u64,
        skip: bool,
    ) -> WholeReader {
        let bytes = Bytes::new(decoder, 0);
        WholeReader { shard, record_max, bytes, done: first > 0, skip, losses: Vec::new(), failed: None }
    }

    pub(crate) fn take_losses(&mut self) -> Vec<Loss> {
        std::mem::take(&mut self.losses)
    }

    pub(crate) fn position(&self) -> u64 {
        u64::from(self.done)
    }

    pub(crate) fn next_window(&mut self, window: &mut Window, wanted: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if std::mem::replace(&mut self.done, true) || !wanted(0) {
            return Ok(false);
        }
        self.read(window).or_else(|error| {
            let error = error.at_byte(self.bytes.position).in_shard(&self.shard);
            if self.skip && error.kind() == ErrorKind::Corrupt {
                self.losses.push(Loss { window: 0, error: error.and("the document is passed over") });
                return Ok(false);
            }
            self.failed = Some(error.clone());
            Err(error)
        })
    }

    fn read(&mut self, window: &mut Window) -> Result<bool> {
        *window = Window { bytes: std::mem::take(&mut window.bytes), first_record: Some(0), ..Window::default() };
        window.bytes.clear();
        let mut step = STEP_MIN;
        while self.bytes.fill(&mut window.bytes, step)? > 0 {
            if window.bytes.len() as u64 > self.record_max + BYTE_ORDER_MARK.len() as u64 {
                let detail = format!("found a document of more bytes, expected at most {}", self.record_max);
                return Err(Error::new(ErrorKind::Limit, detail).at_record(0).at_byte(0));
            }
            step = (step * 2).min(STEP_MAX);
        }
        let start = if window.bytes.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
        let len = window.bytes.len() - start;
        if len == 0 {
            return Ok(false);
        }
        window.records.push(RecordRange { start: start as u32, len: len as u32, ordinal: 0, null: false });
        Ok(true)
    }
}

/// Counts the separators that begin before the uncompressed offset `byte` of the part that `decoder` marks the start of, or
/// of the shard.
pub(crate) fn count_before(separator: &Separator, decoder: Box<dyn Decode>, byte: u64, from_mark: bool) -> Result<u64> {
    let mut bytes = Bytes::new(decoder, 0);
    let mut buffer = Vec::new();
    let mut count = 0;
    // Offset of `buffer[0]`.
    let mut start = 0;
    loop {
        let filled = match bytes.fill(&mut buffer, STEP_MIN) {
            // Damage right at `byte`, or behind: what lies before was seen.
            Err(error) if error.kind() == ErrorKind::Corrupt && !from_mark && bytes.position >= byte => 0,
            filled => filled?,
        };
        let end = if from_mark { bytes.decoder.mark().map(|mark| mark.saturating_add(byte)) } else { Some(byte) };
        let mut at = 0;
        while let Some(found) = separator.find(&buffer[at..]).map(|found| at + found) {
            // A separator that begins before is whole before: a record begins at `byte`.
            if end.is_some_and(|end| start + found as u64 >= end) {
                return Ok(count);
            }
            count += 1;
            at = found + separator.size();
        }
        at = at.max((buffer.len() + 1).saturating_sub(separator.size()));
        start += at as u64;
        buffer.drain(..at);
        if filled == 0 || end.is_some_and(|end| start >= end) {
            return Ok(count);
        }
    }
}
