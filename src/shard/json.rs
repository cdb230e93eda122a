//! One field out of one line of JSON, without building the rest.
//!
//! Comes in: a line and a dotted path. Goes out: the string there, borrowed from the line where it has no escapes. Holds: the
//! whole line is checked against RFC 8259, so a line damaged behind the field is an error too; of a key that occurs twice the
//! last one counts, as in Python's `json`; containers are passed over by a loop and not by recursion, so depth costs no stack.
//! A key that is literally the whole dotted path is looked for first, at the top. Does not know: where the line is from.
//!
//! UTF-8 is checked once for the whole line, with SIMD; strings are then searched for their end eight bytes at once.

use crate::error::{Error, ErrorKind, Result};
use crate::shard::escapes::{self, STANDS_FOR};

/// Objects and arrays within each other, the outermost included.
const DEPTH_MAX: u32 = 128;

/// The path to a field.
#[derive(Debug, Clone)]
pub(crate) struct FieldPath {
    whole: String,
    parts: Vec<String>,
}

impl FieldPath {
    pub(crate) fn new(path: &str) -> FieldPath {
        FieldPath { whole: path.to_owned(), parts: path.split('.').map(str::to_owned).collect() }
    }

    /// The string at this path in `line`; `scratch` holds it if it has escapes.
    ///
    /// # Errors
    /// * `BadRecord` - the line isn't UTF-8 or no JSON object, or has no string at the path.
    pub(crate) fn text<'a>(&self, line: &'a [u8], scratch: &'a mut String) -> Result<&'a str> {
        self.text_by(escapes::available(), line, scratch)
    }

    /// The same; `many_at_once` says how escapes are taken out.
    fn text_by<'a>(&self, many_at_once: bool, line: &'a [u8], scratch: &'a mut String) -> Result<&'a str> {
        let line = utf8(line)?;
        let mut parser = Parser {
            many_at_once,
            bytes: line.as_bytes(),
            at: 0,
            depth: 0,
            path: self,
            unescaped: Vec::new(),
            unescaped_size: 0,
            held: None,
            half: None,
        };
        parser.unescaped = std::mem::take(scratch).into_bytes();
        let value = parser.document()?;
        match value {
            Value::Missing { part } => {
                let name = self.parts[..=part].join(".");
                Err(bad(if part + 1 == self.parts.len() {
                    format!("no {:?} field", self.whole)
                } else {
                    format!("no {name:?} field, expected an object that holds {:?}", self.whole)
                }))
            }
            Value::NotAnObject { part, found } => {
                Err(bad(format!("{:?} is {found}, expected an object", self.parts[..=part].join("."))))
            }
            Value::Other(found) => Err(bad(format!("{:?} is {found}, expected a string", self.whole))),
            Value::Text { start, end, escaped: false } => Ok(&line[start..end]),
            Value::Text { start, escaped: true, .. } => {
                if parser.held != Some(start) {
                    parser.unescape(start)?;
                }
                if let Some((unit, byte)) = parser.half {
                    return Err(bad(format!(
                        "found half a surrogate pair, \\u{unit:04x}, at byte {byte} of the record, expected both halves"
                    )));
                }
                let mut unescaped = parser.unescaped;
                unescaped.truncate(parser.unescaped_size);
                debug_assert!(std::str::from_utf8(&unescaped).is_ok(), "characters of UTF-8 and escapes are UTF-8");
                // SAFETY: the line is UTF-8, as checked above. What is taken from it begins and ends at bytes of ASCII, so it holds
                // whole characters; what is put between is ASCII or a whole character. Looking again took 2 % of a run's time.
                *scratch = unsafe { String::from_utf8_unchecked(unescaped) };
                Ok(scratch)
            }
        }
    }
}

/// Checks that a record is UTF-8.
pub(crate) fn utf8(record: &[u8]) -> Result<&str> {
    if let Ok(text) = simdutf8::basic::from_utf8(record) {
        return Ok(text);
    }
    let valid = std::str::from_utf8(record).map_or_else(|error| error.valid_up_to(), str::len);
    let found = record.get(valid).copied().unwrap_or(0);
    Err(bad(format!("found the byte {found:#04x} at byte {valid} of the record, expected UTF-8")))
}

fn bad(detail: String) -> Error {
    Error::new(ErrorKind::BadRecord, detail)
}

/// What was found at the path.
#[derive(Clone, Copy)]
enum Value {
    /// The path ends before this part.
    Missing { part: usize },
    /// This part of the path is there, but can't hold the next.
    NotAnObject { part: usize, found: &'static str },
    /// There is something, but no string.
    Other(&'static str),
    /// A string: the bytes between its quotes.
    Text { start: usize, end: usize, escaped: bool },
}

struct Parser<'a> {
    /// True if escapes are taken out of many bytes at once.
    many_at_once: bool,
    bytes: &'a [u8],
    at: usize,
    depth: u32,
    path: &'a FieldPath,
    /// The last string that was unescaped, the offset in `bytes` at which it starts, and its first half of a surrogate pair
    /// without the other (which code unit, and where): an error only if this is the string that is looked for.
    /// The string is `unescaped[..unescaped_size]`. The buffer only grows: to zero it again for each key would cost the square
    /// of a line of many such keys.
    unescaped: Vec<u8>,
    unescaped_size: usize,
    held: Option<usize>,
    half: Option<(u32, usize)>,
}

impl Parser<'_> {
    fn document(&mut self) -> Result<Value> {
        self.space();
        if self.peek() != Some(b'{') {
            // What isn't JSON at all is said to be that.
            let found = self.kind();
            self.value()?;
            self.end()?;
            return Err(bad(format!("the record is {found}, expected an object")));
        }
        let value = self.object(0)?;
        self.end()?;
        Ok(value)
    }

    fn end(&mut self) -> Result<()> {
        self.space();
        if self.at < self.bytes.len() { Err(self.unexpected("the end of the record")) } else { Ok(()) }
    }

    /// Reads an object and looks for part `part` of the path in it; at the top also for the whole path as one key.
    fn object(&mut self, part: usize) -> Result<Value> {
        let path = self.path;
        let mut nested = Value::Missing { part };
        let mut literal = None;
        self.enter()?;
        self.at += 1;
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
        } else {
            loop {
                let (is_literal, is_part) = self.key(part)?;
                let last = part + 1 == path.parts.len();
                if is_literal || is_part && last {
                    let value = self.field()?;
                    if is_literal {
                        literal = Some(value);
                    } else {
                        nested = value;
                    }
                } else if is_part {
                    nested = if self.peek() == Some(b'{') {
                        self.object(part + 1)?
                    } else {
                        let found = self.kind();
                        self.value()?;
                        Value::NotAnObject { part, found }
                    };
                } else {
                    self.value()?;
                }
                self.space();
                match self.peek() {
                    Some(b',') => {
                        self.at += 1;
                        self.space();
                    }
                    Some(b'}') => {
                        self.at += 1;
                        break;
                    }
                    _ => return Err(self.unexpected("`,` or `}`")),
                }
            }
        }
        self.depth -= 1;
        Ok(literal.unwrap_or(nested))
    }

    /// Reads a key and the colon; returns whether it is the whole path (at the top), and whether it is part `part` of it.
    fn key(&mut self, part: usize) -> Result<(bool, bool)> {
        let (start, end, escaped) = self.string("a key")?;
        let path = self.path;
        if escaped {
            self.unescape(start)?;
        }
        let key = match (escaped, self.half) {
            (false, _) => &self.bytes[start..end],
            (true, None) => &self.unescaped[..self.unescaped_size],
            // A key with half a pair equals no path.
            (true, Some(_)) => b"\xff",
        };
        let is_part = key == path.parts[part].as_bytes();
        let is_literal = part == 0 && path.parts.len() > 1 && key == path.whole.as_bytes();
        self.space();
        if self.peek() != Some(b':') {
            return Err(self.unexpected("`:`"));
        }
        self.at += 1;
        self.space();
        Ok((is_literal, is_part))
    }

    /// Reads the value that is the field.
    fn field(&mut self) -> Result<Value> {
        if self.peek() == Some(b'"') {
            let start = self.at + 1;
            let end = plain_end(self.bytes, start);
            let escaped = self.bytes.get(end) != Some(&b'"');
            if escaped {
                self.unescape(start)?;
            } else {
                self.at = end + 1;
            }
            return Ok(Value::Text { start, end, escaped });
        }
        let found = self.kind();
        self.value()?;
        Ok(Value::Other(found))
    }

    fn enter(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            let at = self.at;
            return Err(bad(format!(
                "invalid JSON at byte {at} of the record: found more levels, expected at most {DEPTH_MAX}"
            )));
        }
        Ok(())
    }

    /// Passes over a value, whatever it is.
    fn value(&mut self) -> Result<()> {
        // Bit i tells whether level i, counted from here, is an object.
        let mut objects = 0u128;
        let mut level = 0u32;
        loop {
            // A value begins here.
            match self.peek() {
                Some(b'"') => {
                    self.string("a value")?;
                }
                Some(open @ (b'{' | b'[')) => {
                    self.enter()?;
                    self.at += 1;
                    self.space();
                    let close = if open == b'{' { b'}' } else { b']' };
                    if self.peek() == Some(close) {
                        self.at += 1;
                        self.depth -= 1;
                    } else {
                        let bit = 1u128 << level;
                        objects = if open == b'{' { objects | bit } else { objects & !bit };
                        level += 1;
                        if open == b'{' {
                            self.pass_key()?;
                        }
                        continue;
                    }
                }
                Some(b't') => self.word(b"true")?,
                Some(b'f') => self.word(b"false")?,
                Some(b'n') => self.word(b"null")?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                _ => return Err(self.unexpected("a value")),
            }
            // A value ended here.
            loop {
                if level == 0 {
                    return Ok(());
                }
                let in_object = objects >> (level - 1) & 1 != 0;
                self.space();
                match self.peek() {
                    Some(b',') => {
                        self.at += 1;
                        self.space();
                        if in_object {
                            self.pass_key()?;
                        }
                        break;
                    }
                    Some(b'}') if in_object => {}
                    Some(b']') if !in_object => {}
                    _ => return Err(self.unexpected(if in_object { "`,` or `}`" } else { "`,` or `]`" })),
                }
                self.at += 1;
                self.depth -= 1;
                level -= 1;
            }
        }
    }

    fn pass_key(&mut self) -> Result<()> {
        self.string("a key")?;
        self.space();
        if self.peek() != Some(b':') {
            return Err(self.unexpected("`:`"));
        }
        self.at += 1;
        self.space();
        Ok(())
    }

    /// Reads a string; returns where it starts and ends between its quotes, and whether it has escapes.
    fn string(&mut self, expected: &str) -> Result<(usize, usize, bool)> {
        if self.peek() != Some(b'"') {
            return Err(self.unexpected(expected));
        }
        self.at += 1;
        let start = self.at;
        let mut escaped = false;
        loop {
            self.at = plain_end(self.bytes, self.at);
            match self.peek() {
                Some(b'"') => {
                    let end = self.at;
                    self.at += 1;
                    return Ok((start, end, escaped));
                }
                Some(b'\\') => {
                    escaped = true;
                    self.at += 1;
                    match self.peek() {
                        Some(b'u') => {
                            self.at += 1;
                            self.code_unit()?;
                        }
                        Some(byte) if STANDS_FOR[usize::from(byte)] != 0 => self.at += 1,
                        _ => return Err(self.unexpected("an escape")),
                    }
                }
                Some(_) => return Err(self.unexpected("an escape in place of a control character")),
                None => return Err(self.unexpected("the end of a string")),
            }
        }
    }

    /// Reads four hexadecimal digits.
    fn code_unit(&mut self) -> Result<u32> {
        let mut unit = 0;
        for _ in 0..4 {
            let Some(digit) = self.peek().and_then(|byte| char::from(byte).to_digit(16)) else {
                return Err(self.unexpected("four hexadecimal digits"));
            };
            unit = unit * 16 + digit;
            self.at += 1;
        }
        Ok(unit)
    }

    /// Reads the string whose first byte, behind the quote, is at `start`, and puts what it stands for into `unescaped`.
    ///
    /// Checking and copying in one pass: two would take twice the time, since what takes it is not knowing where the next
    /// escape comes.
    fn unescape(&mut self, start: usize) -> Result<()> {
        let bytes = self.bytes;
        let mut unescaped = std::mem::take(&mut self.unescaped);
        (self.held, self.half) = (Some(start), None);
        // No escape is shorter than what it stands for. A block is copied where less may be meant, hence the room.
        let room = bytes.len() - start + BLOCK.max(escapes::BLOCK);
        if unescaped.len() < room {
            unescaped.resize(room, 0);
        }
        let (mut at, mut end) = (start, 0);
        loop {
            if self.many_at_once {
                (at, end) = escapes::unescape(bytes, at, &mut unescaped, end);
            }
            while let Some(block) = bytes[at..].first_chunk() {
                unescaped[end..end + BLOCK].copy_from_slice(block);
                let count = plain_block_count(block);
                (at, end) = (at + count, end + count);
                if count < BLOCK {
                    break;
                }
            }
            self.at = at;
            match self.peek() {
                Some(b'\\') => {
                    let stands_for = bytes.get(at + 1).map_or(0, |&byte| STANDS_FOR[usize::from(byte)]);
                    if stands_for != 0 {
                        unescaped[end] = stands_for;
                        (at, end) = (at + 2, end + 1);
                        continue;
                    }
                    self.at = at + 1;
                    if self.peek() != Some(b'u') {
                        return Err(self.unexpected("an escape"));
                    }
                    self.at += 1;
                    let char = self.escaped_char(at)?;
                    at = self.at;
                    end += char.encode_utf8(&mut unescaped[end..]).len();
                }
                Some(b'"') => break,
                Some(0..0x20) => return Err(self.unexpected("an escape in place of a control character")),
                // Less than a block is left.
                Some(byte) => {
                    unescaped[end] = byte;
                    (at, end) = (at + 1, end + 1);
                }
                None => return Err(self.unexpected("the end of a string")),
            }
        }
        self.at += 1;
        self.unescaped_size = end;
        self.unescaped = unescaped;
        Ok(())
    }

    /// Reads the digits of an escape that begins at `escape`, and the escape after it if the two are a pair.
    fn escaped_char(&mut self, escape: usize) -> Result<char> {
        let first = self.code_unit()?;
        let after = self.at;
        if (0xd800..=0xdbff).contains(&first) && self.bytes[after..].starts_with(b"\\u") {
            self.at += 2;
            let second = self.code_unit()?;
            if (0xdc00..=0xdfff).contains(&second) {
                let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return Ok(char::from_u32(code).expect("a pair is a character"));
            }
            // The second is on its own.
            self.at = after;
        }
        Ok(char::from_u32(first).unwrap_or_else(|| {
            self.half.get_or_insert((first, escape));
            char::REPLACEMENT_CHARACTER
        }))
    }

    fn number(&mut self) -> Result<()> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<()> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start { Err(self.unexpected("a digit")) } else { Ok(()) }
    }

    fn word(&mut self, word: &'static [u8]) -> Result<()> {
        if !self.bytes[self.at..].starts_with(word) {
            return Err(self.unexpected("a value"));
        }
        self.at += word.len();
        Ok(())
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// What the value that begins here is, in words.
    fn kind(&self) -> &'static str {
        match self.peek() {
            Some(b'"') => "a string",
            Some(b'{') => "an object",
            Some(b'[') => "an array",
            Some(b't' | b'f') => "a boolean",
            Some(b'n') => "null",
            _ => "a number",
        }
    }

    fn unexpected(&self, expected: &str) -> Error {
        let at = self.at;
        let rest =
            std::str::from_utf8(&self.bytes[at.min(self.bytes.len())..]).ok().and_then(|rest| rest.chars().next());
        let found = match (self.peek(), rest) {
            (None, _) => "the end of the record".to_owned(),
            (Some(_), Some(char)) if !char.is_control() => format!("`{char}`"),
            (Some(byte), _) => format!("the byte {byte:#04x}"),
        };
        bad(format!("invalid JSON at byte {at} of the record: found {found}, expected {expected}"))
    }
}

/// A byte in each of eight places.
const fn each(byte: u8) -> u64 {
    0x0101_0101_0101_0101 * byte as u64
}

/// The top bit of each place of `word` that holds `byte`; exact up to the first such place.
fn places_of(word: u64, byte: u8) -> u64 {
    let zero = word ^ each(byte);
    zero.wrapping_sub(each(1)) & !zero & each(0x80)
}

/// Eight bytes from `at` on; the first is the lowest.
fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// How many bytes of `word` come before the first quote, backslash or control character; 8 if there is none.
fn plain_count(word: u64) -> usize {
    let control = word.wrapping_sub(each(0x20)) & !word & each(0x80);
    (places_of(word, b'"') | places_of(word, b'\\') | control).trailing_zeros() as usize / 8
}

/// Bytes looked at together.
const BLOCK: usize = 32;

/// How many bytes of `block` come before the first quote, backslash or control character; all if there is none.
#[cfg(target_arch = "x86_64")]
fn plain_block_count(block: &[u8; BLOCK]) -> usize {
    use std::arch::x86_64::{
        __m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8,
    };
    let half = |at: usize| {
        // SAFETY: SSE2 is part of every x86-64; the load reads 16 of the block's 32 bytes, at 0 or at 16, and may be
        // unaligned.
        unsafe {
            let bytes = _mm_loadu_si128(block.as_ptr().add(at).cast::<__m128i>());
            let quote = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'"' as i8));
            let backslash = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'\\' as i8));
            let control = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1f)), bytes);
            _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quote, backslash), control)) as u32
        }
    };
    ((half(16) << 16) | half(0)).trailing_zeros() as usize
}

/// How many bytes of `block` come before the first quote, backslash or control character; all if there is none.
#[cfg(not(target_arch = "x86_64"))]
fn plain_block_count(block: &[u8; BLOCK]) -> usize {
    let mut count = 0;
    for word in block.chunks_exact(8) {
        let plain = plain_count(u64::from_le_bytes(word.try_into().expect("eight bytes")));
        count += plain;
        if plain < 8 {
            break;
        }
    }
    count
}

/// Where the plain part of a string that starts at `at` ends: at a quote, a backslash, a control character, or the end.
///
/// Many bytes at once and inline. Why not `memchr`: text has an escape every 40 bytes or so, where the call takes longer than
/// the search.
fn plain_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(block) = bytes[at..].first_chunk() {
        let count = plain_block_count(block);
        at += count;
        if count < BLOCK {
            return at;
        }
    }
    while let Some(word) = word_at(bytes, at) {
        let count = plain_count(word);
        at += count;
        if count < 8 {
            return at;
        }
    }
    while at < bytes.len() && !matches!(bytes[at], b'"' | b'\\' | 0..0x20) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;
    use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};

    use super::*;

    fn text(path: &str, line: &[u8]) -> Result<String> {
        let find = |many_at_once| {
            let mut scratch = String::new();
            FieldPath::new(path).text_by(many_at_once, line, &mut scratch).map(str::to_owned)
        };
        let found = find(false);
        if escapes::available() {
            let same = find(true);
            assert_eq!(found.as_ref().map_err(Error::detail), same.as_ref().map_err(Error::detail), "by many at once");
        }
        found
    }

    /// Paths and lines against the text, or a part of the error.
    #[test]
    fn finds_the_field() {
        let check = |path: &str, line: &str, expected: std::result::Result<&str, &str>| match (
            text(path, line.as_bytes()),
            expected,
        ) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{path} in {line}"),
            (Err(error), Err(part)) => {
                assert_eq!(error.kind(), ErrorKind::BadRecord);
                assert!(error.detail().contains(part), "{path} in {line}: {error}, expected {part}");
            }
            (found, expected) => panic!("{path} in {line}: found {found:?}, expected {expected:?}"),
        };
        check("text", r#"{"text": "a"}"#, Ok("a"));
        check("text", " \t{\"id\": 1, \"text\": \"a\\n\\u00e9\\ud83d\\ude00\\u0000\\/\"} \r", Ok("a\né😀\0/"));
        check("text", r#"{"text": "a", "text": "b"}"#, Ok("b"));
        check("text", r#"{"text": 1, "text": "b"}"#, Ok("b"));
        check("text", r#"{"text": "b", "text": 1}"#, Err("\"text\" is a number, expected a string"));
        check("text", r#"{"te\u0078t": "b"}"#, Ok("b"));
        check("text", r#"{"\ud800": 1, "text": "b"}"#, Ok("b"));
        check("text", "{\"text\": \"a\u{2028}\u{85}b\"}", Ok("a\u{2028}\u{85}b"));
        check("text", r#"{"text": ""}"#, Ok(""));
        check("text", r#"{"text": "\ud800", "text": "b"}"#, Ok("b"));
        check("text", r#"{"text": "\n", "\u0041\u0042": 1}"#, Ok("\n"));
        check("text", r#"{"text": "\n", "\ud800": 1}"#, Ok("\n"));
        check("a.b", r#"{"a.b": "\n", "a": {"b": "\t"}}"#, Ok("\n"));
        check("text", r#"{"text": "ab\n"}"#, Ok("ab\n"));
        check("a.b.c", r#"{"a": {"b": {"c": "x"}}}"#, Ok("x"));
        check("a.b", r#"{"a": {"b": "x"}, "a.b": "y"}"#, Ok("y"));
        check("a.b", r#"{"a.b": "y", "a": {"b": "x"}}"#, Ok("y"));
        check("a.b", r#"{"a": {"b": "x"}, "a": {"c": "x"}}"#, Err("no \"a.b\" field"));
        check("a.b", r#"{"a": {"b": "x"}, "a": 3}"#, Err("\"a\" is a number, expected an object"));
        check("a.b", r#"{"b": "x"}"#, Err("no \"a\" field"));
        check("text", r#"{"body": "x"}"#, Err("no \"text\" field"));
        check("text", r#"{"text": null}"#, Err("\"text\" is null, expected a string"));
        check("text", r#"{"text": ["a"]}"#, Err("\"text\" is an array"));
        check("text", r#"{"text": {"a": 1}}"#, Err("\"text\" is an object"));
        check("text", r#"{"text": true}"#, Err("\"text\" is a boolean"));
        check("text", r#"["text"]"#, Err("the record is an array, expected an object"));
        check("text", r#""text""#, Err("the record is a string"));
        check("text", r#"{"text": "\ud800"}"#, Err("half a surrogate pair"));
        check("text", r#"{"text": "\ud800\ud800"}"#, Err("half a surrogate pair"));
        check("text", r#"{"text": "\udc00\ud800"}"#, Err("half a surrogate pair"));
        check("text", r#"{"text": "\ud800\\udc00"}"#, Err("half a surrogate pair"));
        check("text", r#"{"text": "a", "x": 01}"#, Err("expected `,` or `}`"));
        check("text", r#"{"text": "a"} x"#, Err("found `x`, expected the end of the record"));
        check("text", r#"{"text": "a"}{"text": "b"}"#, Err("expected the end of the record"));
        check("text", r#"{"text": "a""#, Err("found the end of the record, expected `,` or `}`"));
        check("text", r#"{"text": "a"#, Err("found the end of the record, expected the end of a string"));
        check("text", r#"{"text": "a",}"#, Err("found `}`, expected a key"));
        check("text", "{\"text\": \"a\tb\"}", Err("found the byte 0x09"));
        check("text", r#"{"text": "\x41"}"#, Err("found `x`, expected an escape"));
        check("text", r#"{"text": "a", "n": NaN}"#, Err("found `N`, expected a value"));
        check("text", "hello", Err("invalid JSON at byte 0"));
        check("text", "\u{feff}{}", Err("invalid JSON at byte 0"));
    }

    #[test]
    fn says_where_utf8_ends() {
        let error = text("text", b"{\"text\": \"a\xffb\"}").expect_err("not UTF-8");
        assert_eq!(error.detail(), "found the byte 0xff at byte 11 of the record, expected UTF-8");
        text("text", b"{\"text\": \"\xed\xa0\x80\"}").expect_err("a surrogate in UTF-8");
    }

    /// Depth is bounded by a number and not by the stack.
    #[test]
    fn bounds_the_depth() {
        let nested = |depth: usize| format!("{{\"text\": \"a\", \"x\": {}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(text("text", nested(127).as_bytes()).expect("just deep enough"), "a");
        for depth in [128, 1_000_000] {
            let error = text("text", nested(depth).as_bytes()).expect_err("too deep");
            assert!(error.detail().contains("expected at most 128"), "{error}");
        }
        let path = vec!["a"; 200].join(".");
        let line = format!("{}1{}", "{\"a\":".repeat(200), "}".repeat(200));
        text(&path, line.as_bytes()).expect_err("too deep");
    }

    /// What `serde_json` makes of a line: the last string under `text`, other values passed over.
    fn oracle(line: &[u8]) -> Option<String> {
        struct Field;
        impl<'de> Visitor<'de> for Field {
            type Value = Option<String>;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Option<String>, A::Error> {
                let mut text = None;
                while let Some(key) = map.next_key::<std::borrow::Cow<str>>()? {
                    if key == "text" {
                        text = Some(map.next_value::<serde_json::Value>()?.as_str().map(str::to_owned));
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(text.flatten())
            }
        }
        impl<'de> DeserializeSeed<'de> for Field {
            type Value = Option<String>;
            fn deserialize<D: serde::Deserializer<'de>>(
                self,
                deserializer: D,
            ) -> std::result::Result<Option<String>, D::Error> {
                deserializer.deserialize_map(self)
            }
        }
        std::str::from_utf8(line).ok()?;
        let mut deserializer = serde_json::Deserializer::from_slice(line);
        let text = Field.deserialize(&mut deserializer).ok()?;
        deserializer.end().ok()?;
        text
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            any::<String>().prop_map(Into::into),
            "[a-z \"\\\\\n]{0,200}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                prop::collection::vec(("text|[a-c]|\\PC{0,3}", inner), 0..4)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        /// Objects as written, and with a few bytes changed, give what `serde_json` gives: the same text, or an error both.
        #[test]
        fn agrees_with_serde_json(
            fields in prop::collection::vec(("text|[a-c]|\\PC{0,3}", value()), 0..5),
            text_value in prop_oneof![any::<String>(), "[a-z \"\\\\\n\u{1}é]{0,300}"],
            pretty in any::<bool>(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(b"\"\\{}[],:0123e.-+tfnul \t\n\x01\x80\xc3\xff\x7fud8".to_vec()), 0..3u8), 0..4),
        ) {
            let mut map: serde_json::Map<String, serde_json::Value> = fields.into_iter().collect();
            map.insert("text".into(), text_value.into());
            let map = serde_json::Value::Object(map);
            let mut line = if pretty { serde_json::to_vec_pretty(&map) } else { serde_json::to_vec(&map) }.expect("plain values");
            prop_assert_eq!(text("text", &line).ok(), oracle(&line), "{:?}", String::from_utf8_lossy(&line));
            for (index, byte, what) in changes {
                if line.is_empty() {
                    break;
                }
                let at = index.index(line.len());
                match what {
                    0 => line[at] = byte,
                    1 => line.insert(at, byte),
                    _ => {
                        line.remove(at);
                    }
                }
            }
            let (found, expected) = (text("text", &line).ok(), oracle(&line));
            // The oracle reads keys and the field as Rust types: half a pair in a key, or a number out of range in the field.
            if found != expected && found.is_some() {
                let line = String::from_utf8_lossy(&line).into_owned();
                prop_assert!(line.contains("\\u") || line.contains(['e', 'E']), "{line}: {found:?}, {expected:?}");
            } else {
                prop_assert_eq!(found, expected, "{:?}", String::from_utf8_lossy(&line));
            }
        }
    }

    /// Strings of escapes, well formed or not, are read as `serde_json` reads them.
    #[test]
    fn agrees_on_escapes() {
        let mut random = 1u64;
        for round in 0..200_000 {
            let even = round % 2 == 0;
            let mut line = b"{\"text\":\"".to_vec();
            for _ in 0..6 {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let parts: [&[u8]; 12] = [
                    b"\\ud83d",
                    b"\\ude00",
                    b"\\",
                    b"\\\\",
                    b"u",
                    b"\\u00E9",
                    b"\\n",
                    b"a",
                    b"\"",
                    b"d83d",
                    b"\\uDC",
                    b"\xc3\xa9",
                ];
                line.extend_from_slice(parts[(random >> 33) as usize % parts.len()]);
                // Half of the lines are long enough to be taken many bytes at once.
                line.extend(std::iter::repeat_n(b'x', if even { 0 } else { (random >> 40) as usize % 40 }));
            }
            line.extend_from_slice(b"\"}");
            let expected = String::from_utf8(line.clone()).ok().and_then(|line| {
                #[derive(Deserialize)]
                struct Line {
                    text: String,
                }
                serde_json::from_str::<Line>(&line).ok().map(|line| line.text)
            });
            assert_eq!(text("text", &line).ok(), expected, "{:?}", String::from_utf8_lossy(&line));
        }
    }
}
