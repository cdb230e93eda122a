//! One packed sequence of tokens, and the batches that blocks are delivered in.
//!
//! Comes in: ids from packing. Goes out: ids, segment ids, position ids and labels, as trainers want them.
//! Holds: segments cover the block from its start without gaps; what follows the last one is padding.
//! Does not know: files, tokenizers, lanes.

use std::ops::Range;

use crate::document::WindowPlace;
use crate::ranges::join;

/// The label of a token that is not trained: the index that PyTorch's cross-entropy ignores by default.
pub const IGNORED: i64 = -100;

/// One packed block of training input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Global number: the block belongs to lane `index % lanes` and is that lane's block `index / lanes`.
    pub index: u64,
    /// The lane it comes from.
    pub lane: u32,
    /// The source it comes from, as its place in the config.
    pub source: u32,
    /// Token ids, shape `[block_size]`.
    pub input_ids: Vec<u32>,
    /// The documents of the block, in order, each from where the one before ends.
    pub segments: Vec<Segment>,
    /// Ranges of tokens that aren't trained: rising, none touching the next. Padding isn't in it, and never trained.
    pub untrained: Vec<Range<u32>>,
}

/// The part of one document that lies in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// End of the segment in the block, in tokens.
    pub end: u32,
    /// The document's window.
    pub place: WindowPlace,
    /// The document's index in its window's delivery order.
    pub document: u32,
    /// Index in the document of the segment's first token, BOS included.
    pub token: u32,
}

impl Block {
    /// An empty block with room for `block_size` ids.
    pub fn new(index: u64, lane: u32, source: u32, block_size: usize) -> Self {
        Block {
            index,
            lane,
            source,
            input_ids: Vec::with_capacity(block_size),
            segments: Vec::new(),
            untrained: Vec::new(),
        }
    }

    /// Tokens that are not padding.
    pub fn tokens(&self) -> usize {
        self.segments.last().map_or(0, |segment| segment.end as usize)
    }

    /// The segments with their start: `(range in the block, segment)`.
    pub fn segment_ranges(&self) -> impl Iterator<Item = (Range<usize>, &Segment)> {
        let mut start = 0;
        self.segments.iter().map(move |segment| {
            let range = start..segment.end as usize;
            start = range.end;
            (range, segment)
        })
    }

    /// Document of each token, shape `[block_size]`: 1-based in this block, 0 for padding.
    pub fn segment_ids(&self) -> Vec<u32> {
        let mut ids = vec![0; self.input_ids.len()];
        for (number, (range, _)) in self.segment_ranges().enumerate() {
            ids[range].fill(number as u32 + 1);
        }
        ids
    }

    /// Position of each token in its segment, shape `[block_size]`, from 0; 0 for padding.
    pub fn position_ids(&self) -> Vec<u32> {
        let mut ids = vec![0; self.input_ids.len()];
        for (range, _) in self.segment_ranges() {
            for (position, id) in ids[range].iter_mut().enumerate() {
                *id = position as u32;
            }
        }
        ids
    }

    /// Training target of each token, shape `[block_size]`, unshifted as Hugging Face models expect: the token's own id, and
    /// [`IGNORED`] where nothing is trained: padding, what a conversation's mask says, and the first token of a segment where
    /// documents are packed whole.
    pub fn labels(&self) -> Vec<i64> {
        let mut labels = labels_of(&self.input_ids, &self.untrained);
        labels[self.tokens()..].fill(IGNORED);
        labels
    }

    /// The labels of the next tokens, shape `[block_size]`: what the model is to say after each token. Where documents are packed whole the last one
    /// of a segment is [`IGNORED`]; that of the block always is.
    pub fn shifted_labels(&self) -> Vec<i64> {
        let mut labels = self.labels();
        if !labels.is_empty() {
            labels.remove(0);
            labels.push(IGNORED);
        }
        labels
    }

    /// Where segments begin and end, as attention kernels for sequences of different lengths take it: 0, the end of each segment, and
    /// the end of the padding where there is some, as if it were one more segment.
    pub fn cu_seqlens(&self) -> Vec<i32> {
        let ends = self.segments.iter().map(|segment| segment.end);
        let size = self.input_ids.len() as u32;
        let padding = (self.tokens() < size as usize).then_some(size);
        std::iter::once(0).chain(ends).chain(padding).map(|end| end as i32).collect()
    }

    /// Marks tokens as not trained; ranges come in rising order and may touch or overlap the one before.
    pub(crate) fn mask(&mut self, range: Range<usize>) {
        join(&mut self.untrained, range.start as u32..range.end as u32);
    }

    /// Marks what of `ranges` lies in `part`, which begins at `at` in the block.
    pub(crate) fn mask_part(&mut self, at: usize, part: Range<usize>, ranges: impl Iterator<Item = Range<usize>>) {
        for range in ranges {
            let (from, to) = (range.start.max(part.start), range.end.min(part.end));
            if from < to {
                self.mask(at + from - part.start..at + to - part.start);
            }
        }
    }
}

/// The ids as labels, [`IGNORED`] in the ranges that aren't trained.
pub(crate) fn labels_of(ids: &[u32], untrained: &[Range<u32>]) -> Vec<i64> {
    let mut labels: Vec<i64> = ids.iter().map(|id| i64::from(*id)).collect();
    for range in untrained {
        labels[range.start as usize..range.end as usize].fill(IGNORED);
    }
    labels
}

/// `batch_size` blocks of one rank; fewer only at the end of a finite run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Number of the batch on this rank since the run's first start, from 0.
    pub step: u64,
    /// The blocks, by rising global number.
    pub blocks: Vec<Block>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two documents and padding: ids and labels by hand.
    #[test]
    fn segment_and_position_ids() {
        let mut block = Block::new(0, 0, 0, 6);
        block.input_ids = vec![9; 6];
        let segment = |end| Segment { end, place: WindowPlace::default(), document: 0, token: 0 };
        block.segments = vec![segment(2), segment(5)];
        assert_eq!(block.segment_ids(), [1, 1, 2, 2, 2, 0]);
        assert_eq!(block.position_ids(), [0, 1, 0, 1, 2, 0]);
        assert_eq!(block.labels(), [9, 9, 9, 9, 9, IGNORED]);
        assert_eq!(block.tokens(), 5);
    }
}
