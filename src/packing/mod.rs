//! From documents' tokens to blocks.
//!
//! Comes in: [`EncodedDocuments`](crate::document::EncodedDocuments) of one lane and source, in order. Goes out: filled
//! [`Block`](crate::block::Block)s and a [`Cursor`] that says what was delivered. Does not know: files, tokenizers,
//! threads, other lanes.

mod concat;
mod windowed;

pub use concat::{Concat, Cursor, Filled, Totals};
pub use windowed::{Windowed, WindowedOptions, fit};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::block::Block;
use crate::document::EncodedDocuments;
use crate::error::Result;

/// `[packing]` of the config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PackingOptions {
    /// How documents become blocks.
    pub strategy: Strategy,
    /// What happens to the last, partial block of a finite run, with `concat`.
    pub tail: Tail,
    /// Documents that are packed together, at most, with `best_fit` and `greedy`: more means less padding, and a longer replay at a resume.
    pub window: u32,
    /// Tokens that are packed together, about at most, with `best_fit` and `greedy`; 0 = 256 blocks.
    pub window_tokens: u64,
    /// What happens to documents longer than a block, with `best_fit` and `greedy`.
    pub overflow: Overflow,
}

impl Default for PackingOptions {
    fn default() -> Self {
        PackingOptions {
            strategy: Strategy::default(),
            tail: Tail::default(),
            window: 8192,
            window_tokens: 0,
            overflow: Overflow::default(),
        }
    }
}

impl PackingOptions {
    /// Tokens that are packed together, about at most.
    pub fn window_tokens(&self, block_size: u32) -> u64 {
        match self.window_tokens {
            0 => 256 * u64::from(block_size),
            tokens => tokens,
        }
    }
}

/// How documents become blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Documents end to end, cut every `block_size` tokens.
    #[default]
    Concat,
    /// Whole documents, a window of them at a time, where they leave the least room; the rest is padding.
    BestFit,
    /// Whole documents in order; a block is padded where the next one doesn't fit.
    Greedy,
}

/// What happens to a document longer than a block, where documents are packed whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overflow {
    /// It is cut into parts of a block, each a segment of its own.
    #[default]
    Split,
    /// What is beyond a block is left out, and counted.
    Truncate,
    /// It is left out, and counted.
    Drop,
}

/// The packer of one lane and source, by strategy.
#[derive(Debug)]
pub enum Packer {
    /// Documents end to end.
    Concat(Box<Concat>),
    /// Whole documents, a window at a time.
    Windowed(Box<Windowed>),
}

impl Packer {
    /// The packer that `options` name, going on at `cursor`. `overflow` is that of the source; `pad` fills blocks up;
    /// `drop_untrained` leaves out documents that have nothing to train.
    pub fn new(
        options: &PackingOptions,
        block_size: u32,
        overflow: Overflow,
        drop_untrained: bool,
        pad: u32,
        cursor: Cursor,
    ) -> Self {
        if options.strategy == Strategy::Concat {
            return Packer::Concat(Box::new(Concat::new(cursor)));
        }
        let windowed = WindowedOptions {
            strategy: options.strategy,
            block_size: block_size as usize,
            documents_max: options.window as usize,
            tokens_max: options.window_tokens(block_size) as usize,
            overflow,
            drop_untrained,
            pad,
        };
        Packer::Windowed(Box::new(Windowed::new(windowed, cursor)))
    }

    /// Fills `block` up to `block_size` ids, as [`Concat::fill`] and [`Windowed::fill`] say.
    ///
    /// # Errors
    /// As theirs.
    pub fn fill(
        &mut self,
        block: &mut Block,
        block_size: usize,
        next: &mut dyn FnMut(Option<EncodedDocuments>) -> Result<Option<EncodedDocuments>>,
    ) -> Result<Filled> {
        match self {
            Packer::Concat(packer) => packer.fill(block, block_size, next),
            Packer::Windowed(packer) => packer.fill(block, next),
        }
    }

    /// Ends the source, as [`Concat::finish`] says; whole documents leave no partial block.
    pub fn finish(&mut self, block: &mut Block, block_size: usize, pad: Option<u32>) -> bool {
        match self {
            Packer::Concat(packer) => packer.finish(block, block_size, pad),
            Packer::Windowed(_) => false,
        }
    }

    /// What was delivered.
    pub fn cursor(&self) -> Cursor {
        match self {
            Packer::Concat(packer) => packer.cursor(),
            Packer::Windowed(packer) => packer.cursor(),
        }
    }
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
