//! From documents' tokens to blocks.
//!
//! Comes in: [`EncodedDocuments`](crate::document::EncodedDocuments) of one lane and source, in order. Goes out: filled
//! [`Block`](crate::block::Block)s and a [`Cursor`] that says what was delivered. Does not know: files, tokenizers,
//! threads, other lanes.

mod concat;

pub use concat::{Concat, Cursor, Filled, Totals};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[packing]` of the config.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PackingOptions {
    /// How documents become blocks.
    pub strategy: Strategy,
    /// What happens to the last, partial block of a finite run.
    pub tail: Tail,
}

/// How documents become blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Documents end to end, cut every `block_size` tokens.
    #[default]
    Concat,
}

/// What happens to the last, partial block of a finite run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tail {
    /// It is not delivered; its tokens are counted as dropped.
    #[default]
    Drop,
    /// It is filled up with padding: segment id 0, label -100.
    Pad,
}
