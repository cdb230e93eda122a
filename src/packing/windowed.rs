//! Packing of whole documents: a bounded window of them at a time, into blocks that are filled up with padding.
//!
//! ```text
//! window      a=3  b=5  c=2  d=1  e=4                block = 6 tokens
//! best_fit    b 5, e 4, a 3, c 2, d 1                largest first, each where the least room is left
//!             |b b b b b d|  |e e e e c c|  |a a a . . .|
//! delivered   |a a a . . .|  |b b b b b d|  |e e e e c c|    by their oldest document
//! greedy      |a a a . . .|  |b b b b b .|  |c c d . . .|  |e e e e . .|    in order, a new block when one doesn't fit
//! ```
//!
//! Comes in: encoded documents of one lane and source, in order. Goes out: full blocks, and a cursor: the window's first
//! document, and how many of the window's blocks were delivered. Holds: which documents form a window, and how they are packed, follows
//! from the documents alone, so a resume replays one window and no more; no document is in two blocks, except where it is longer than
//! a block and `overflow` says to split it; the first token of a segment is never a target, so no target crosses a border.
//! Counts of what isn't delivered (bad records, documents dropped) come with the last block of their window. Does not know: files, tokenizers,
//! threads.
//!
//! Best fit is found in an ordered set of (room left, block), which costs O(log n) a document and takes the oldest of blocks
//! with the same room. Why not a segment tree over the room: it costs as much, and memory by the size of a block.

use std::collections::BTreeSet;

use super::concat::{CRC_TOKENS, Cursor, Filled, Totals, crc};
use super::{Overflow, Strategy};
use crate::block::{Block, Segment};
use crate::document::{EncodedDocuments, WindowPlace};
use crate::error::{Error, ErrorKind, Result};

/// How documents are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowedOptions {
    /// `BestFit` or `Greedy`.
    pub strategy: Strategy,
    /// Tokens in a block.
    pub block_size: usize,
    /// A window ends with the document that makes it so many.
    pub documents_max: usize,
    /// A window ends with the document that makes it so many tokens, or more.
    pub tokens_max: usize,
    /// What happens to documents longer than a block.
    pub overflow: Overflow,
    /// Whether a document, or the part of it that is left, without a trained token is dropped.
    pub drop_untrained: bool,
    /// The id that fills blocks up.
    pub pad: u32,
}

/// A document of the window, or a part of one.
#[derive(Debug, Clone, Copy)]
struct Item {
    place: WindowPlace,
    document: u32,
    /// Index in the document of its first token.
    token: u32,
    /// Its ids in the window's.
    start: usize,
    len: usize,
    /// The ranges in the window's `untrained` that may touch it.
    untrained: (usize, usize),
    /// Bytes of the document's text, where this is its last part.
    ends: Option<u32>,
}

/// Packs the documents of one lane and source, a window at a time.
#[derive(Debug)]
pub struct Windowed {
    options: WindowedOptions,
    /// The window's first document; a place behind the last one while no window is open.
    start: Cursor,
    /// Behind the last document that was taken.
    reached: (WindowPlace, u32),
    totals: Totals,
    /// What the window's documents count that aren't delivered.
    pending: Totals,
    ids: Vec<u32>,
    untrained: Vec<std::ops::Range<usize>>,
    items: Vec<Item>,
    /// Documents taken, whether or not they gave an item.
    documents: usize,
    /// Whether the next document is of the same record as the last.
    open_record: bool,
    /// The documents being taken, and the next of them.
    piece: Option<EncodedDocuments>,
    open: usize,
    /// The window's blocks: items, in order.
    blocks: Vec<Vec<u32>>,
    next_block: usize,
    /// CRC of the last block delivered.
    crc: u32,
    /// Blocks of the first window that were delivered before, with the CRC of the last.
    resume: Option<(u32, u32)>,
    /// Epoch of the documents, and whether it has given an item.
    epoch: Option<(u32, bool)>,
    exhausted: bool,
    ended: bool,
}

impl Windowed {
    /// A packer that goes on at `cursor`.
    pub fn new(options: WindowedOptions, cursor: Cursor) -> Self {
        Windowed {
            options,
            start: Cursor { window_blocks: 0, crc: 0, ..cursor },
            reached: (cursor.place, cursor.document),
            totals: cursor.totals,
            pending: Totals::default(),
            ids: Vec::new(),
            untrained: Vec::new(),
            items: Vec::new(),
            documents: 0,
            open_record: false,
            piece: None,
            open: 0,
            blocks: Vec::new(),
            next_block: 0,
            crc: 0,
            resume: (cursor.window_blocks > 0).then_some((cursor.window_blocks, cursor.crc)),
            epoch: None,
            exhausted: false,
            ended: cursor.ended,
        }
    }

    /// Fills `block`, which is empty, with `block_size` ids; see [`Concat::fill`](super::Concat::fill) for `next`.
    ///
    /// # Errors
    /// * a document's own error, after all blocks of the windows before its own;
    /// * `StateMismatch` - the window is not the one that the checkpoint was taken in;
    /// * `TooFewRecords` - an epoch gave nothing to pack.
    pub fn fill(
        &mut self,
        block: &mut Block,
        next: &mut dyn FnMut(Option<EncodedDocuments>) -> Result<Option<EncodedDocuments>>,
    ) -> Result<Filled> {
        loop {
            if self.next_block < self.blocks.len() {
                self.deliver(block);
                return Ok(Filled::Full);
            }
            if self.exhausted {
                self.end_window();
                self.ended = true;
                return Ok(Filled::Ended);
            }
            self.collect(next)?;
            self.pack();
            self.check_resumed()?;
            if self.blocks.is_empty() && !self.exhausted {
                // Nothing of the window is left: what it counts goes with the next one.
                self.begin_window();
            }
        }
    }

    /// Takes documents until the window is complete, or there are no more.
    fn collect(
        &mut self,
        next: &mut dyn FnMut(Option<EncodedDocuments>) -> Result<Option<EncodedDocuments>>,
    ) -> Result<()> {
        loop {
            if let Some(piece) = self.piece.take() {
                while self.open < piece.documents.len() {
                    let complete =
                        self.documents >= self.options.documents_max || self.ids.len() >= self.options.tokens_max;
                    if complete && !self.open_record {
                        self.piece = Some(piece);
                        return Ok(());
                    }
                    self.take(&piece, self.open);
                    self.open += 1;
                }
                if let Some(error) = &piece.error {
                    let error = error.clone();
                    self.piece = Some(piece);
                    return Err(error);
                }
                self.open = 0;
                let came = next(Some(piece))?;
                self.arrive(came)?;
            } else {
                let came = next(None)?;
                self.arrive(came)?;
            }
            if self.exhausted {
                return Ok(());
            }
        }
    }

    fn arrive(&mut self, came: Option<EncodedDocuments>) -> Result<()> {
        let Some(piece) = came else {
            self.exhausted = true;
            return Ok(());
        };
        self.pending.skipped_parts += piece.lost.len() as u64;
        if piece.documents.is_empty() && piece.error.is_none() {
            return Ok(());
        }
        let now = piece.place.epoch;
        let from_the_start = self.start.place == WindowPlace::default() && self.start.document == 0;
        let (epoch, gave) = self.epoch.unwrap_or((now, !from_the_start));
        if epoch != now && !gave {
            return Err(Error::new(
                ErrorKind::TooFewRecords,
                format!("epoch {epoch} of the source gave this lane nothing to pack, expected at least one document"),
            ));
        }
        self.epoch = Some((now, epoch == now && gave));
        self.open = 0;
        self.piece = Some(piece);
        Ok(())
    }

    /// Takes document `index` of a piece into the window.
    fn take(&mut self, piece: &EncodedDocuments, index: usize) {
        let document = piece.documents[index];
        self.documents += 1;
        self.open_record = document.continues;
        self.reached = (piece.place, document.index + 1);
        if document.skipped {
            self.pending.skipped += 1;
            return;
        }
        if document.untrained {
            self.pending.untrained += 1;
            return;
        }
        let ids = &piece.ids[piece.start_of(index)..document.end as usize];
        let size = self.options.block_size;
        let kept = match self.options.overflow {
            _ if ids.len() <= size => ids.len(),
            Overflow::Drop => {
                self.pending.too_long += 1;
                self.pending.cut_tokens += ids.len() as u64;
                return;
            }
            Overflow::Truncate => {
                self.pending.truncated += 1;
                self.pending.cut_tokens += (ids.len() - size) as u64;
                size
            }
            Overflow::Split => {
                self.pending.split += 1;
                ids.len()
            }
        };
        if kept == 0 {
            // It has no token, and nothing to deliver.
            self.pending.documents += 1;
            self.pending.text_bytes += u64::from(document.text_bytes);
            return;
        }
        self.take_parts(piece, index, &ids[..kept]);
    }

    /// Makes items of what is left of a document, each of a block at most.
    fn take_parts(&mut self, piece: &EncodedDocuments, index: usize, ids: &[u32]) {
        let size = self.options.block_size;
        let ranges = piece.untrained_of(index);
        let document = piece.documents[index];
        let base = self.ids.len();
        // Rows of one record count on.
        let same = piece.documents.partition_point(|other| other.index < document.index);
        let earlier = (piece.start_of(index) - piece.start_of(same)) as u32;
        let first_range = self.untrained.len();
        self.untrained.extend(ranges.iter().map(|range| base + range.start as usize..base + range.end as usize));
        let untrained = (first_range, self.untrained.len());
        self.ids.extend_from_slice(ids);
        let first_item = self.items.len();
        for start in (0..ids.len()).step_by(size) {
            let len = size.min(ids.len() - start);
            if self.options.drop_untrained && !has_target(ranges, start, len) {
                self.pending.cut_tokens += len as u64;
                continue;
            }
            self.items.push(Item {
                place: piece.place,
                document: document.index,
                token: earlier + start as u32,
                start: base + start,
                len,
                untrained,
                ends: None,
            });
        }
        match self.items[first_item..].last_mut() {
            Some(last) => {
                last.ends = Some(document.text_bytes);
                if let Some((_, gave)) = &mut self.epoch {
                    *gave = true;
                }
            }
            None => {
                self.pending.untrained += 1;
                self.ids.truncate(base);
                self.untrained.truncate(first_range);
            }
        }
    }

    /// Packs the window's items into blocks.
    fn pack(&mut self) {
        let sizes: Vec<usize> = self.items.iter().map(|item| item.len).collect();
        self.blocks = fit(self.options.strategy, &sizes, self.options.block_size);
        self.next_block = 0;
    }

    /// Goes on where the checkpoint says, in the first window.
    fn check_resumed(&mut self) -> Result<()> {
        let Some((delivered, crc)) = self.resume.take() else { return Ok(()) };
        let (delivered, blocks) = (delivered as usize, self.blocks.len());
        if delivered >= blocks {
            return Err(Error::new(
                ErrorKind::StateMismatch,
                format!(
                    "the open window gives {blocks} blocks, expected more than {delivered} that were delivered: \
                     data or tokenizer changed"
                ),
            ));
        }
        let found = self.block_crc(delivered - 1);
        if found != crc {
            return Err(Error::new(
                ErrorKind::StateMismatch,
                format!(
                    "block {} of the open window has CRC {found:08x}, expected {crc:08x}: data or tokenizer changed",
                    delivered - 1
                ),
            ));
        }
        self.crc = crc;
        self.next_block = delivered;
        Ok(())
    }

    /// CRC over the ends of each segment of a block.
    fn block_crc(&self, block: usize) -> u32 {
        let mut sum = crc32fast::Hasher::new();
        for &item in &self.blocks[block] {
            let item = self.items[item as usize];
            let ids = &self.ids[item.start..item.start + item.len];
            sum.update(&(item.len as u32).to_le_bytes());
            sum.update(&crc(ids, ids.len().min(CRC_TOKENS)).to_le_bytes());
            sum.update(&crc(ids, ids.len()).to_le_bytes());
        }
        sum.finalize()
    }

    /// Writes the next block.
    fn deliver(&mut self, block: &mut Block) {
        let size = self.options.block_size;
        for &item in &self.blocks[self.next_block] {
            let item = self.items[item as usize];
            let at = block.input_ids.len();
            block.input_ids.extend_from_slice(&self.ids[item.start..item.start + item.len]);
            block.segments.push(Segment {
                end: block.input_ids.len() as u32,
                place: item.place,
                document: item.document,
                token: item.token,
            });
            // No token before it in the segment: nothing predicts the first one.
            block.mask(at..at + 1);
            let ranges = self.untrained[item.untrained.0..item.untrained.1].iter().cloned();
            block.mask_part(at, item.start..item.start + item.len, ranges);
            self.totals.tokens += item.len as u64;
            if let Some(text_bytes) = item.ends {
                self.totals.documents += 1;
                self.totals.text_bytes += u64::from(text_bytes);
            }
        }
        self.totals.padding += (size - block.input_ids.len()) as u64;
        self.totals.blocks += 1;
        block.input_ids.resize(size, self.options.pad);
        self.crc = self.block_crc(self.next_block);
        self.next_block += 1;
        if self.next_block == self.blocks.len() {
            self.end_window();
        }
    }

    /// Counts what the window held beside its blocks, and begins the next one.
    fn end_window(&mut self) {
        self.totals.add(&std::mem::take(&mut self.pending));
        self.begin_window();
    }

    fn begin_window(&mut self) {
        (self.start.place, self.start.document) = self.reached;
        self.ids.clear();
        self.untrained.clear();
        self.items.clear();
        self.blocks.clear();
        (self.documents, self.next_block, self.crc) = (0, 0, 0);
    }

    /// The window's first document, the number of its blocks delivered, and the counts. Call it at a block's end.
    pub fn cursor(&self) -> Cursor {
        let (window_blocks, crc) = match self.resume {
            Some(resume) => resume,
            None => (self.next_block as u32, self.crc),
        };
        Cursor { token: 0, window_blocks, crc, totals: self.totals, ended: self.ended, ..self.start }
    }
}

/// Whether the part `start..start + len` of a document has a trained token behind its first.
fn has_target(untrained: &[std::ops::Range<u32>], start: usize, len: usize) -> bool {
    let mut at = start + 1;
    for range in untrained {
        if (range.start as usize) > at {
            break;
        }
        at = at.max(range.end as usize);
    }
    at < start + len
}

/// Blocks of a window's items, by their sizes: what `strategy`, `best_fit` or `greedy`, makes of them.
///
/// Cost: O(n log n). No size may be above `size`.
pub fn fit(strategy: Strategy, sizes: &[usize], size: usize) -> Vec<Vec<u32>> {
    match strategy {
        Strategy::Greedy => next_fit(sizes, size),
        _ => best_fit(sizes, size),
    }
}

/// Blocks as lists of items: sizes from the largest on, each into the block that it leaves the least room in; of such blocks
/// the oldest; ordered by their oldest item. Items of the same size are taken in order.
///
/// Cost: O(n log n). No size may be above `size`.
fn best_fit(sizes: &[usize], size: usize) -> Vec<Vec<u32>> {
    let mut order: Vec<u32> = (0..sizes.len() as u32).collect();
    order.sort_by_key(|&item| std::cmp::Reverse(sizes[item as usize]));
    let mut blocks: Vec<Vec<u32>> = Vec::new();
    let mut room: BTreeSet<(usize, usize)> = BTreeSet::new();
    for item in order {
        let need = sizes[item as usize];
        let (left, block) = match room.range((need, 0)..).next().copied() {
            Some(found) => {
                room.remove(&found);
                found
            }
            None => {
                blocks.push(Vec::new());
                (size, blocks.len() - 1)
            }
        };
        blocks[block].push(item);
        if left > need {
            room.insert((left - need, block));
        }
    }
    for block in &mut blocks {
        block.sort_unstable();
    }
    blocks.sort_unstable_by_key(|block| block[0]);
    blocks
}

/// Blocks of consecutive items: a new one begins where the next doesn't fit.
fn next_fit(sizes: &[usize], size: usize) -> Vec<Vec<u32>> {
    let mut blocks: Vec<Vec<u32>> = Vec::new();
    let mut left = 0;
    for (item, &need) in sizes.iter().enumerate() {
        if need > left || blocks.is_empty() {
            blocks.push(Vec::new());
            left = size;
        }
        blocks.last_mut().expect("one was pushed").push(item as u32);
        left -= need;
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::EncodedDocument;

    fn options(strategy: Strategy, block_size: usize, overflow: Overflow) -> WindowedOptions {
        WindowedOptions {
            strategy,
            block_size,
            documents_max: 5,
            tokens_max: 1000,
            overflow,
            drop_untrained: false,
            pad: 0,
        }
    }

    /// One piece of documents of the given lengths, document n having the ids n, n, ...; with ranges that aren't trained.
    fn piece(sizes: &[usize], untrained: &[&[std::ops::Range<u32>]]) -> EncodedDocuments {
        let mut piece = EncodedDocuments::default();
        for (index, &size) in sizes.iter().enumerate() {
            piece.ids.extend(std::iter::repeat_n(index as u32 + 1, size));
            piece.untrained.extend(untrained.get(index).into_iter().flat_map(|ranges| ranges.iter().cloned()));
            piece.documents.push(EncodedDocument {
                index: index as u32,
                end: piece.ids.len() as u32,
                untrained_end: piece.untrained.len() as u32,
                text_bytes: 1,
                ..EncodedDocument::default()
            });
        }
        piece
    }

    fn run(packer: &mut Windowed, piece: EncodedDocuments) -> Vec<Block> {
        let mut rest = Some(piece);
        let mut blocks = Vec::new();
        loop {
            let mut block = Block::new(0, 0, 0, 0);
            match packer.fill(&mut block, &mut |_| Ok(rest.take())).expect("no error in the piece") {
                Filled::Full => blocks.push(block),
                Filled::Ended => return blocks,
            }
        }
    }

    fn ids(blocks: &[Block]) -> Vec<&[u32]> {
        blocks.iter().map(|block| block.input_ids.as_slice()).collect()
    }

    /// The header's example, both ways, with what each block's labels are.
    #[test]
    fn packs_the_header_example() {
        let mut packer = Windowed::new(options(Strategy::BestFit, 6, Overflow::Split), Cursor::default());
        let blocks = run(&mut packer, piece(&[3, 5, 2, 1, 4], &[]));
        assert_eq!(ids(&blocks), [[1, 1, 1, 0, 0, 0], [2, 2, 2, 2, 2, 4], [3, 3, 5, 5, 5, 5]]);
        assert_eq!(blocks[1].labels(), [-100, 2, 2, 2, 2, -100]);
        assert_eq!(blocks[2].labels(), [-100, 3, -100, 5, 5, 5]);
        assert_eq!(blocks[2].shifted_labels(), [3, -100, 5, 5, 5, -100]);
        assert_eq!(blocks[0].cu_seqlens(), [0, 3, 6]);
        let totals = packer.cursor().totals;
        assert_eq!((totals.blocks, totals.documents, totals.tokens, totals.padding), (3, 5, 15, 3));
        let mut packer = Windowed::new(options(Strategy::Greedy, 6, Overflow::Split), Cursor::default());
        let blocks = run(&mut packer, piece(&[3, 5, 2, 1, 4], &[]));
        assert_eq!(ids(&blocks), [[1, 1, 1, 0, 0, 0], [2, 2, 2, 2, 2, 0], [3, 3, 4, 0, 0, 0], [5, 5, 5, 5, 0, 0]]);
    }

    /// Documents longer than a block, by each policy; ranges are cut with the ids.
    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "a list of one range is meant")]
    fn overflow_policies() {
        let check = |overflow, drop_untrained, expected: &[&[u32]], counts: [u64; 5]| {
            let options = WindowedOptions { drop_untrained, ..options(Strategy::BestFit, 4, overflow) };
            let mut packer = Windowed::new(options, Cursor::default());
            // Of document 1, ids 2..7 aren't trained; of document 2 all are.
            let blocks = run(&mut packer, piece(&[9, 2], &[&[2..7]]));
            assert_eq!(ids(&blocks), expected, "{overflow:?}");
            let t = packer.cursor().totals;
            assert_eq!([t.truncated, t.too_long, t.split, t.untrained, t.cut_tokens], counts, "{overflow:?}");
            blocks
        };
        let blocks = check(Overflow::Split, false, &[&[1, 1, 1, 1], &[1, 1, 1, 1], &[1, 2, 2, 0]], [0, 0, 1, 0, 0]);
        assert_eq!(blocks[0].labels(), [-100, 1, -100, -100]);
        assert_eq!(blocks[1].labels(), [-100, -100, -100, 1]);
        // The last part has one token, and nothing before it in its block: no target is left.
        check(Overflow::Split, true, &[&[1, 1, 1, 1], &[1, 1, 1, 1], &[2, 2, 0, 0]], [0, 0, 1, 0, 1]);
        check(Overflow::Truncate, false, &[&[1, 1, 1, 1], &[2, 2, 0, 0]], [1, 0, 0, 0, 5]);
        check(Overflow::Drop, false, &[&[2, 2, 0, 0]], [0, 1, 0, 0, 9]);
    }

    /// The set gives what looking at every block gives.
    #[test]
    fn best_fit_equals_the_naive_one() {
        for seed in 0..200u64 {
            let random = |counter: u64, bound: u64| crate::order::key(seed, "fit", "", &[counter]) % bound;
            let size = 1 + random(0, 40) as usize;
            let count = random(1, 60);
            let sizes: Vec<usize> = (0..count).map(|i| 1 + random(i + 2, size as u64) as usize).collect();
            let mut order: Vec<usize> = (0..sizes.len()).collect();
            order.sort_by(|&a, &b| sizes[b].cmp(&sizes[a]).then(a.cmp(&b)));
            let mut blocks: Vec<(usize, Vec<u32>)> = Vec::new();
            for item in order {
                let fits = blocks.iter_mut().filter(|(left, _)| *left >= sizes[item]).min_by_key(|(left, _)| *left);
                match fits {
                    Some((left, items)) => {
                        *left -= sizes[item];
                        items.push(item as u32);
                    }
                    None => blocks.push((size - sizes[item], vec![item as u32])),
                }
            }
            let mut expected: Vec<Vec<u32>> = blocks.into_iter().map(|(_, items)| items).collect();
            expected.iter_mut().for_each(|items| items.sort());
            expected.sort();
            assert_eq!(best_fit(&sizes, size), expected, "seed {seed}");
        }
    }

    /// From the cursor after each block, the rest is what it was; another window there is an error.
    #[test]
    fn resumes_in_the_middle_of_a_window() {
        let sizes = [3, 5, 2, 1, 4, 6, 6, 2, 2, 5, 3, 1];
        let new = |cursor| Windowed::new(options(Strategy::BestFit, 6, Overflow::Split), cursor);
        let whole = run(&mut new(Cursor::default()), piece(&sizes, &[]));
        let mut packer = new(Cursor::default());
        let mut rest = Some(piece(&sizes, &[]));
        for delivered in 1..=whole.len() {
            packer.fill(&mut Block::new(0, 0, 0, 0), &mut |_| Ok(rest.take())).expect("there is a block");
            let cursor = packer.cursor();
            let from = |sizes: &[usize]| {
                let mut piece = piece(sizes, &[]);
                // As a reader resumes: documents before the cursor's aren't read again.
                let first = cursor.document as usize;
                let start = piece.start_of(first);
                piece.ids.drain(..start);
                piece.documents.drain(..first);
                piece.documents.iter_mut().for_each(|document| document.end -= start as u32);
                piece
            };
            assert_eq!(run(&mut new(cursor), from(&sizes)), whole[delivered..], "after {delivered}");
            if cursor.window_blocks > 0 {
                let mut other = from(&sizes);
                other.ids.iter_mut().for_each(|id| *id += 100);
                let mut rest = Some(other);
                let error = new(cursor).fill(&mut Block::new(0, 0, 0, 0), &mut |_| Ok(rest.take()));
                assert_eq!(error.expect_err("the window changed").kind(), ErrorKind::StateMismatch);
            }
        }
    }

    /// Ten thousand documents of 1 to 3000 tokens, mostly short: less than 1 % of padding.
    #[test]
    fn pads_little() {
        let random = |counter: u64| (crate::order::key(3, "sizes", "", &[counter]) % 1_000_000) as f64 / 1e6;
        let sizes: Vec<usize> = (0..10_000).map(|i| 1 + (3000.0 * random(i).powi(3)) as usize).collect();
        let blocks = best_fit(&sizes, 4096).len() * 4096;
        let tokens: usize = sizes.iter().sum();
        assert!((blocks - tokens) * 100 < blocks, "{blocks} {tokens}");
    }
}
