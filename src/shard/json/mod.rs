//! One field out of one line of JSON, without building the rest.
//!
//! Comes in: a line and a dotted path. Goes out: the string there, borrowed from the line where it has no escapes. Holds: the
//! whole line is checked against RFC 8259, so a line damaged behind the field is an error too; of a key that occurs twice the
//! last one counts, as in Python's `json`; containers are passed over by a loop and not by recursion, so depth costs no stack.
//! A key that is literally the whole dotted path is looked for first, at the top. Does not know: where the line is from.
//!
//! UTF-8 is checked once for the whole line, with SIMD; strings are then searched for their end many bytes at once (`plain`), and
//! escapes are taken out of many bytes at once where the processor can (`escapes`).

mod escapes;
mod plain;
#[cfg(test)]
mod tests;

use crate::error::{Error, ErrorKind, Result};

use escapes::STANDS_FOR;
use plain::{plain_block_count, plain_end};

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
        let room = bytes.len() - start + plain::BLOCK.max(escapes::BLOCK);
        if unescaped.len() < room {
            unescaped.resize(room, 0);
        }
        let (mut at, mut end) = (start, 0);
        loop {
            if self.many_at_once {
                (at, end) = escapes::unescape(bytes, at, &mut unescaped, end);
            }
            while let Some(block) = bytes[at..].first_chunk::<{ plain::BLOCK }>() {
                unescaped[end..end + plain::BLOCK].copy_from_slice(block);
                let count = plain_block_count(block);
                (at, end) = (at + count, end + count);
                if count < plain::BLOCK {
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
