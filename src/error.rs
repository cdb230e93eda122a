//! The one public error type: what kind, where, what was found and what was expected.
//!
//! Comes in: a kind, a detail and, where there is one, the error underneath. Goes out: one line such as
//! `bad record: no "text" field (in web/003.jsonl.zst, record 1204, byte 88210)`.
//! Holds: details start in lower case, end without a full stop and name the found and the expected value.
//! Does not know: how it is shown; the command prints the chain, Python makes an exception of it.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// What a caller can match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The configuration can't be used: unknown key, value out of range, options that contradict each other.
    Config,
    /// A path or a glob matches nothing.
    NotFound,
    /// Bytes could not be read: permission, I/O, a file that shrank.
    Read,
    /// Bytes were read, but the container is damaged: codec checksum, truncated stream, broken Parquet page.
    Corrupt,
    /// One record is unusable: bad JSON, bad UTF-8, no text field.
    BadRecord,
    /// The tokenizer can't be loaded, or it failed on a document.
    Tokenizer,
    /// A checkpoint doesn't fit this run, or isn't one.
    StateMismatch,
    /// A source has fewer records than lanes that read it, or none that gives a token.
    TooFewRecords,
    /// A bound was exceeded: record size, memory, number of bad records.
    Limit,
    /// A wait took longer than `runtime.stall_timeout`.
    Stall,
    /// Output or a checkpoint could not be written.
    Write,
    /// The caller asked a wait to end; the call may be repeated.
    Interrupted,
    /// A worker panicked: our own bug.
    Internal,
}

impl ErrorKind {
    /// The words an error of this kind starts with.
    pub fn words(self) -> &'static str {
        match self {
            ErrorKind::Config => "bad configuration",
            ErrorKind::NotFound => "not found",
            ErrorKind::Read => "read failed",
            ErrorKind::Corrupt => "corrupt shard",
            ErrorKind::BadRecord => "bad record",
            ErrorKind::Tokenizer => "tokenizer error",
            ErrorKind::StateMismatch => "state mismatch",
            ErrorKind::TooFewRecords => "too few records",
            ErrorKind::Limit => "limit exceeded",
            ErrorKind::Stall => "stalled",
            ErrorKind::Write => "write failed",
            ErrorKind::Interrupted => "interrupted",
            ErrorKind::Internal => "internal error",
        }
    }

    /// The kind's name as other languages see it: `"bad_record"`.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Config => "config",
            ErrorKind::NotFound => "not_found",
            ErrorKind::Read => "read",
            ErrorKind::Corrupt => "corrupt",
            ErrorKind::BadRecord => "bad_record",
            ErrorKind::Tokenizer => "tokenizer",
            ErrorKind::StateMismatch => "state_mismatch",
            ErrorKind::TooFewRecords => "too_few_records",
            ErrorKind::Limit => "limit",
            ErrorKind::Stall => "stall",
            ErrorKind::Write => "write",
            ErrorKind::Interrupted => "interrupted",
            ErrorKind::Internal => "internal",
        }
    }
}

/// Where an error happened; every part is optional.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// Path of the shard, as in the manifest.
    pub shard: Option<Arc<str>>,
    /// Index of the record in the shard, from 0 (a line of JSONL, blank ones counted; a row of Parquet).
    pub record: Option<u64>,
    /// Offset in the uncompressed shard at which the record starts.
    pub byte: Option<u64>,
}

/// An error with its kind, detail, place and cause.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    detail: String,
    place: Place,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`; `detail` says what was found and what was expected.
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Error(Arc::new(Inner { kind, detail: detail.into(), place: Place::default(), source: None }))
    }

    fn with(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Adds the error underneath.
    pub fn because(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.with(|inner| inner.source = Some(Arc::new(source)))
    }

    /// The same in other words: `words` gets the detail and gives the new one; kind, place and cause stay.
    pub fn reworded(self, words: impl FnOnce(&str) -> String) -> Self {
        self.with(|inner| inner.detail = words(&inner.detail))
    }

    /// Names the shard, unless one is named already: the innermost place is the most exact.
    pub fn in_shard(self, shard: &Arc<str>) -> Self {
        self.with(|inner| {
            inner.place.shard.get_or_insert_with(|| shard.clone());
        })
    }

    /// Names the record (index from 0), unless one is named already.
    pub fn at_record(self, record: u64) -> Self {
        self.with(|inner| {
            inner.place.record.get_or_insert(record);
        })
    }

    /// Names the uncompressed byte, unless one is named already.
    pub fn at_byte(self, byte: u64) -> Self {
        self.with(|inner| {
            inner.place.byte.get_or_insert(byte);
        })
    }

    /// Appends to the detail what was made of it.
    pub(crate) fn and(self, more: &str) -> Self {
        self.with(|inner| {
            inner.detail += "; ";
            inner.detail += more;
        })
    }

    /// What kind of error this is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The detail alone, without kind and place.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// Where it happened.
    pub fn place(&self) -> &Place {
        &self.0.place
    }
}

/// What a caught panic said.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string()).or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "without a message".into())
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind.words(), self.0.detail)?;
        let place = &self.0.place;
        let mut separator = " (";
        if let Some(shard) = &place.shard {
            write!(f, "{separator}in {shard}")?;
            separator = ", ";
        }
        if let Some(record) = place.record {
            write!(f, "{separator}record {record}")?;
            separator = ", ";
        }
        if let Some(byte) = place.byte {
            write!(f, "{separator}byte {byte}")?;
            separator = ", ";
        }
        if separator == ", " { f.write_str(")") } else { Ok(()) }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("detail", &self.0.detail)
            .field("place", &self.0.place)
            .field("source", &self.0.source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The one line a person reads: kind, detail, place, in that order, parts left out where unknown.
    #[test]
    fn shows_kind_detail_and_place() {
        let shard: Arc<str> = "web/003.jsonl.zst".into();
        let error =
            Error::new(ErrorKind::BadRecord, "no \"text\" field").in_shard(&shard).at_record(1204).at_byte(88210);
        assert_eq!(error.to_string(), "bad record: no \"text\" field (in web/003.jsonl.zst, record 1204, byte 88210)");
        assert_eq!(Error::new(ErrorKind::Config, "lanes is 0").to_string(), "bad configuration: lanes is 0");
        assert_eq!(error.in_shard(&"other".into()).place().shard.as_deref(), Some("web/003.jsonl.zst"));
    }
}
