//! Concatenate-then-split packing: no padding, no token lost.
//!
//! ```text
//! documents   [a a a] [b b]    [c c c c c]          block = 4 tokens
//! stream       a a a E b b E c c c c c E
//! blocks      |a a a E|b b E c|c c c c|E            <- carry-over
//! ```
//!
//! Comes in: encoded documents of one lane and source, in order. Goes out: filled blocks; a cursor that names the first
//! token not yet delivered. Holds: the carry-over is the rest of one open document; every token is in exactly one
//! block. The cursor keeps the carry-over as a place and a CRC of the ids around the cut, so a resume re-tokenizes one
//! document and notices a tokenizer that drifted. Why not the CRC of the whole document: a book of 50 MB would be
//! summed again for each of its thousands of blocks. Does not know: files, tokenizers, threads.

use serde::{Deserialize, Serialize};

use crate::block::{Block, Segment};
use crate::document::{EncodedDocuments, WindowPlace};
use crate::error::{Error, ErrorKind, Result};

/// Ids on each side of the cut that the CRC covers.
pub(super) const CRC_TOKENS: usize = 256;

/// What one lane has delivered of one source: the place of the first token it has not, and running counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The open document's window.
    #[serde(flatten)]
    pub place: WindowPlace,
    /// The open document's index in its window's delivery order; may be one past the last.
    pub document: u32,
    /// Tokens of the open document that were delivered.
    pub token: u32,
    /// CRC-32 of up to 256 ids before and after the cut; 0 when `token` is 0.
    pub crc: u32,
    /// Blocks that were delivered of the window of documents which begins here, where whole documents are packed; `crc` is then that of the
    /// last one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub window_blocks: u32,
    /// True when all epochs are delivered and the source has left this lane.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    /// Counts since the run's first start.
    #[serde(flatten)]
    pub totals: Totals,
}

/// Running counts of one lane and source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Blocks delivered.
    pub blocks: u64,
    /// Documents delivered to their last token.
    pub documents: u64,
    /// Tokens delivered, padding not counted.
    pub tokens: u64,
    /// Bytes of text of the documents counted.
    pub text_bytes: u64,
    /// Bad records passed over.
    pub skipped: u64,
    /// Damaged parts of shards passed over.
    #[serde(skip_serializing_if = "is_zero")]
    pub skipped_parts: u64,
    /// Tokens of the partial block that `packing.tail = "drop"` left out.
    pub dropped_tokens: u64,
    /// Padding tokens in delivered blocks.
    pub padding: u64,
    /// Documents longer than a block of which the rest was left out.
    #[serde(skip_serializing_if = "is_zero")]
    pub truncated: u64,
    /// Documents longer than a block that were left out.
    #[serde(skip_serializing_if = "is_zero")]
    pub too_long: u64,
    /// Documents longer than a block that were split.
    #[serde(skip_serializing_if = "is_zero")]
    pub split: u64,
    /// Documents left out because they have no token to train.
    #[serde(skip_serializing_if = "is_zero")]
    pub untrained: u64,
    /// Tokens left out of documents longer than a block.
    #[serde(skip_serializing_if = "is_zero")]
    pub cut_tokens: u64,
}

impl Totals {
    /// Adds another lane's counts.
    pub fn add(&mut self, other: &Totals) {
        self.blocks += other.blocks;
        self.documents += other.documents;
        self.tokens += other.tokens;
        self.text_bytes += other.text_bytes;
        self.skipped += other.skipped;
        self.skipped_parts += other.skipped_parts;
        self.dropped_tokens += other.dropped_tokens;
        self.padding += other.padding;
        self.truncated += other.truncated;
        self.too_long += other.too_long;
        self.split += other.split;
        self.untrained += other.untrained;
        self.cut_tokens += other.cut_tokens;
    }
}

fn is_zero<T: Default + PartialEq>(count: &T) -> bool {
    *count == T::default()
}

/// How far [`Concat::fill`] came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filled {
    /// The block is full.
    Full,
    /// The documents ended before the block was full.
    Ended,
}

/// Packs the documents of one lane and source.
#[derive(Debug, Default)]
pub struct Concat {
    /// Where the packer stands while it has no documents: where it started, or behind the last ones.
    start: Cursor,
    totals: Totals,
    /// The documents being packed.
    piece: Option<EncodedDocuments>,
    /// The open document's index in `piece.documents`.
    open: usize,
    /// The first id of `piece.ids` not packed.
    offset: usize,
    /// True until the first documents arrive: their first one may be partly delivered.
    resuming: bool,
    /// Epoch of the documents being packed, and whether it has given a token; unknown before the first ones arrive.
    epoch: Option<(u32, bool)>,
    ended: bool,
}

impl Concat {
    /// A packer that goes on at `cursor`.
    pub fn new(cursor: Cursor) -> Self {
        Concat { start: cursor, totals: cursor.totals, resuming: true, ended: cursor.ended, ..Concat::default() }
    }

    /// Appends to `block` until it holds `block_size` ids, taking documents from `next` as needed; `next` gets the documents
    /// that are spent, to use their buffers again, and gives `None` after the last.
    ///
    /// After an error the block keeps what it has and the call may be repeated: nothing is lost between.
    ///
    /// # Errors
    /// * the documents' own error, after every token before it was packed;
    /// * `StateMismatch` - the open document's ids are not those the checkpoint was taken from.
    pub fn fill(
        &mut self,
        block: &mut Block,
        block_size: usize,
        next: &mut dyn FnMut(Option<EncodedDocuments>) -> Result<Option<EncodedDocuments>>,
    ) -> Result<Filled> {
        loop {
            if let Some(piece) = &self.piece {
                while self.open < piece.documents.len() {
                    let document = piece.documents[self.open];
                    let end = document.end as usize;
                    let taken = (end - self.offset).min(block_size - block.input_ids.len());
                    if taken > 0 {
                        let first = piece.start_of(self.open);
                        let at = block.input_ids.len();
                        block.input_ids.extend_from_slice(&piece.ids[self.offset..self.offset + taken]);
                        let ranges = piece.untrained_of(self.open).iter();
                        let ranges = ranges.map(|range| first + range.start as usize..first + range.end as usize);
                        block.mask_part(at, self.offset..self.offset + taken, ranges);
                        block.segments.push(Segment {
                            end: block.input_ids.len() as u32,
                            place: piece.place,
                            document: document.index,
                            token: (self.offset - first) as u32,
                        });
                        self.offset += taken;
                        self.totals.tokens += taken as u64;
                    }
                    if self.offset < end {
                        self.totals.blocks += 1;
                        return Ok(Filled::Full);
                    }
                    self.open += 1;
                    if document.skipped {
                        self.totals.skipped += 1;
                    } else if document.untrained {
                        self.totals.untrained += 1;
                    } else {
                        self.totals.documents += 1;
                        self.totals.text_bytes += u64::from(document.text_bytes);
                    }
                    if block.input_ids.len() == block_size {
                        self.totals.blocks += 1;
                        return Ok(Filled::Full);
                    }
                }
                if let Some(error) = &piece.error {
                    return Err(error.clone());
                }
            }
            // The place stays while there is no piece: asking for the next one may fail, or be interrupted.
            self.start = self.cursor();
            let spent = self.piece.take();
            (self.open, self.offset) = (0, 0);
            match next(spent)? {
                Some(piece) => self.take(piece)?,
                None => {
                    self.ended = true;
                    return Ok(Filled::Ended);
                }
            }
        }
    }

    /// Makes `piece` the one being packed; the first one is checked against the cursor.
    fn take(&mut self, piece: EncodedDocuments) -> Result<()> {
        self.totals.skipped_parts += piece.lost.len() as u64;
        if piece.documents.is_empty() && piece.error.is_none() {
            // What was lost behind the last document: it has no place of its own.
            return Ok(());
        }
        let from_the_start =
            self.epoch.is_some() || self.start.place == WindowPlace::default() && self.start.document == 0;
        let (epoch, gave_tokens) = self.epoch.unwrap_or((piece.place.epoch, !from_the_start));
        if epoch != piece.place.epoch && !gave_tokens {
            return Err(Error::new(
                ErrorKind::TooFewRecords,
                format!("epoch {epoch} of the source gave this lane no token, expected at least one"),
            ));
        }
        let tokens_before = epoch == piece.place.epoch && gave_tokens;
        self.epoch = Some((piece.place.epoch, tokens_before || !piece.ids.is_empty()));
        self.open = 0;
        self.offset = 0;
        if std::mem::take(&mut self.resuming) && self.start.token > 0 {
            let token = self.start.token as usize;
            let Some(first) = piece.documents.first() else {
                // The document itself failed; its error comes next.
                self.piece = Some(piece);
                return Ok(());
            };
            let ids = &piece.ids[..first.end as usize];
            if first.index != self.start.document || ids.len() < token {
                return Err(Error::new(
                    ErrorKind::StateMismatch,
                    format!(
                        "the open document has {} tokens, expected at least {token} that were delivered: \
                         data or tokenizer changed",
                        ids.len()
                    ),
                ));
            }
            let found = crc(ids, token);
            if found != self.start.crc {
                return Err(Error::new(
                    ErrorKind::StateMismatch,
                    format!(
                        "the open document's tokens have CRC {found:08x}, expected {:08x}: data or tokenizer changed",
                        self.start.crc
                    ),
                ));
            }
            self.offset = token;
        }
        self.piece = Some(piece);
        Ok(())
    }

    /// Ends the source: pads the partial `block` to `block_size` ids, or drops it. Returns whether the block counts.
    pub fn finish(&mut self, block: &mut Block, block_size: usize, pad: Option<u32>) -> bool {
        let tokens = block.input_ids.len() as u64;
        match pad {
            Some(pad) if tokens > 0 => {
                block.input_ids.resize(block_size, pad);
                self.totals.padding += block_size as u64 - tokens;
                self.totals.blocks += 1;
                true
            }
            _ => {
                self.totals.tokens -= tokens;
                self.totals.dropped_tokens += tokens;
                false
            }
        }
    }

    /// The place of the first token not packed, and the counts. Call it at a block's end: in between, the block under
    /// construction counts as delivered.
    pub fn cursor(&self) -> Cursor {
        let mut cursor = Cursor { totals: self.totals, ended: self.ended, ..self.start };
        if let Some(piece) = &self.piece {
            let first = piece.start_of(self.open);
            cursor.place = piece.place;
            cursor.token = (self.offset - first) as u32;
            cursor.crc = 0;
            cursor.document = match piece.documents.get(self.open) {
                Some(document) => document.index,
                None => piece.documents.last().map_or(self.start.document, |document| document.index + 1),
            };
            if cursor.token > 0 {
                let end = piece.documents[self.open].end as usize;
                cursor.crc = crc(&piece.ids[first..end], self.offset - first);
            }
        }
        cursor
    }
}

/// CRC-32 of the ids around the cut before `ids[token]`.
pub(super) fn crc(ids: &[u32], token: usize) -> u32 {
    let around = &ids[token.saturating_sub(CRC_TOKENS)..ids.len().min(token + CRC_TOKENS)];
    // One update for all bytes: the fast code of the crate needs more than four at a time.
    let mut bytes = [0; 2 * CRC_TOKENS * 4];
    for (to, id) in bytes.chunks_exact_mut(4).zip(around) {
        to.copy_from_slice(&id.to_le_bytes());
    }
    crc32fast::hash(&bytes[..around.len() * 4])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::EncodedDocument;

    /// Pieces of documents with the given ids; documents numbered on.
    fn pieces(pieces: &[&[&[u32]]]) -> Vec<EncodedDocuments> {
        let mut index = 0;
        pieces
            .iter()
            .map(|documents| {
                let mut piece = EncodedDocuments::default();
                for ids in *documents {
                    piece.ids.extend_from_slice(ids);
                    let end = piece.ids.len() as u32;
                    piece.documents.push(EncodedDocument { index, end, text_bytes: 1, ..EncodedDocument::default() });
                    index += 1;
                }
                piece
            })
            .collect()
    }

    fn fill(packer: &mut Concat, rest: &mut Vec<EncodedDocuments>, size: usize) -> (Vec<u32>, Vec<u32>, Filled) {
        let mut block = Block::new(0, 0, 0, size);
        let filled = packer
            .fill(&mut block, size, &mut |_| Ok(if rest.is_empty() { None } else { Some(rest.remove(0)) }))
            .expect("no error among the pieces");
        (block.input_ids.clone(), block.segment_ids(), filled)
    }

    /// The header's example, and the cursor after each block.
    #[test]
    fn packs_the_header_example() {
        let mut rest = pieces(&[&[&[1, 1, 1, 9], &[2, 2, 9]], &[&[3, 3, 3, 3, 3, 9]]]);
        let mut packer = Concat::new(Cursor::default());
        assert_eq!(fill(&mut packer, &mut rest, 4), (vec![1, 1, 1, 9], vec![1, 1, 1, 1], Filled::Full));
        assert_eq!((packer.cursor().document, packer.cursor().token), (1, 0));
        assert_eq!(fill(&mut packer, &mut rest, 4), (vec![2, 2, 9, 3], vec![1, 1, 1, 2], Filled::Full));
        assert_eq!((packer.cursor().document, packer.cursor().token), (2, 1));
        assert_eq!(fill(&mut packer, &mut rest, 4), (vec![3, 3, 3, 3], vec![1, 1, 1, 1], Filled::Full));
        assert_eq!((packer.cursor().document, packer.cursor().token), (2, 5));
        assert_eq!(fill(&mut packer, &mut rest, 4), (vec![9], vec![1], Filled::Ended));
    }

    /// A resume in the middle of a document delivers its rest; other ids there are an error that says so.
    #[test]
    fn resumes_inside_a_document_and_notices_drift() {
        let whole: &[&[&[u32]]] = &[&[&[1, 2, 3, 4, 5, 6, 7]]];
        let mut packer = Concat::new(Cursor::default());
        fill(&mut packer, &mut pieces(whole), 3);
        let cursor = packer.cursor();
        assert_eq!(cursor.token, 3);
        assert_eq!(fill(&mut Concat::new(cursor), &mut pieces(whole), 3).0, [4, 5, 6]);
        for drifted in [[1u32, 2, 3, 9, 5, 6, 7].as_slice(), &[1, 2, 4, 4, 5, 6, 7], &[1, 2]] {
            let mut rest = pieces(&[&[drifted]]);
            let error = Concat::new(cursor)
                .fill(&mut Block::new(0, 0, 0, 3), 3, &mut |_| Ok(rest.pop()))
                .expect_err("the ids changed");
            assert_eq!(error.kind(), ErrorKind::StateMismatch);
        }
    }

    /// Documents without a token make no segment, and the next one starts at position 0 of its own.
    #[test]
    fn empty_documents_leave_no_trace_in_the_block() {
        let mut rest = pieces(&[&[&[], &[1], &[], &[2, 2], &[]]]);
        let mut packer = Concat::new(Cursor::default());
        assert_eq!(fill(&mut packer, &mut rest, 3), (vec![1, 2, 2], vec![1, 2, 2], Filled::Full));
        assert_eq!(packer.cursor().totals.documents, 4);
    }
}
