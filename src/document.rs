//! A record's bytes and a document's tokens, with where they come from.
//!
//! What the stages hand to each other: a shard gives [`Window`]s, tokenizing turns their records into
//! [`EncodedDocument`]s, packing reads those. Does not know: files, tokenizers, packing.

/// Consecutive records of one unit of a shard: what is read, shuffled and handed to a worker as one piece.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Window {
    /// Index in the unit, from 0, rising; windows that hold no record have no `Window`.
    pub index: u64,
    /// Raw bytes of the records (JSONL lines, Parquet values, text), as read and decompressed.
    pub bytes: Vec<u8>,
    /// The records, as ranges of `bytes`, in the order of the shard; never blank lines.
    pub records: Vec<RecordRange>,
    /// Uncompressed offset of `bytes[0]`: in the shard where that is known, else in the unit. 0 for Parquet, whose
    /// rows are named by their index.
    pub byte_start: u64,
    /// Index in the shard of the line or row at which `bytes` begins, where counting was free.
    pub first_record: Option<u64>,
}

/// Where one record lies in its window's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordRange {
    /// Offset of the first byte in [`Window::bytes`].
    pub start: u32,
    /// Size in bytes, without the line end.
    pub len: u32,
    /// Lines or rows of the window before this one, blank lines counted.
    pub ordinal: u32,
    /// A null of a Parquet column: there is no text, not even an empty one.
    pub null: bool,
}

impl RecordRange {
    /// The record's bytes.
    pub fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start as usize..self.start as usize + self.len as usize]
    }
}

/// A part of a shard that was passed over because it is damaged.
#[derive(Debug, Clone)]
pub struct Loss {
    /// Index of the window in which the damage lies: it counts for who reads that window, whether or not it holds a record.
    pub window: u64,
    /// What was found, where, and what was passed over.
    pub error: crate::error::Error,
}

/// The place of a window in a lane's walk over a source; with a document's index, the place of a document.
///
/// All numbers are positions in orders that are pure functions of config, data and seed, so a place is enough to
/// find the document again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct WindowPlace {
    /// Pass over the source, from 0.
    pub epoch: u32,
    /// Index of the shard in the walk of the lane's group through this epoch.
    pub walk: u64,
    /// Index of the unit among those of that shard that are dealt to the lane.
    pub unit: u64,
    /// Index of the window in the unit.
    pub window: u64,
    /// Row at which the window begins, for shards whose windows are counted in rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row: Option<u64>,
    /// Uncompressed byte at which the window begins.
    #[serde(default)]
    pub byte: u64,
}

/// Token ids of consecutive documents of a window, in delivery order: what a worker hands to packing.
#[derive(Debug, Default)]
pub struct EncodedDocuments {
    /// Where the window stands.
    pub place: WindowPlace,
    /// Ids of all documents, end to end, BOS and EOS as configured.
    pub ids: Vec<u32>,
    /// The documents, in order.
    pub documents: Vec<EncodedDocument>,
    /// Ranges of tokens that aren't trained, of all documents, end to end: indices in their document, rising, none touching the next.
    /// Documents of plain text have none.
    pub untrained: Vec<std::ops::Range<u32>>,
    /// The first few of the bad records that were passed over, with their places.
    pub bad_records: Vec<crate::error::Error>,
    /// Damaged parts of shards that were passed over before these documents.
    pub lost: Vec<crate::error::Error>,
    /// What stopped the worker: the document after the last one failed.
    pub error: Option<crate::error::Error>,
}

impl EncodedDocuments {
    /// Where the ids of document `index`, counted here, begin.
    pub fn start_of(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(0, |before| self.documents[before].end as usize)
    }

    /// The ranges of document `index`, counted here, that aren't trained.
    pub fn untrained_of(&self, index: usize) -> &[std::ops::Range<u32>] {
        let start = index.checked_sub(1).map_or(0, |before| self.documents[before].untrained_end as usize);
        &self.untrained[start..self.documents[index].untrained_end as usize]
    }
}

/// One document's part of [`EncodedDocuments`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EncodedDocument {
    /// Index in the window's delivery order, from 0.
    pub index: u32,
    /// End of its ids in [`EncodedDocuments::ids`].
    pub end: u32,
    /// Size of its text, in bytes.
    pub text_bytes: u32,
    /// True for a bad record that `errors.bad_record = "skip"` passes over; it has no ids.
    pub skipped: bool,
    /// End of its ranges in [`EncodedDocuments::untrained`].
    pub untrained_end: u32,
    /// True for a conversation that has nothing to train; it has no ids.
    pub untrained: bool,
    /// True when the next document is of the same record, and goes into the same window.
    pub continues: bool,
}
