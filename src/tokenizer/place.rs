//! Where a text's tokens are in it, for definitions that change text before they cut it.
//!
//! Comes in: the tokens that the reference gives, with the ranges of bytes that it says they come from. Goes out: groups of tokens, each with a range that was
//! verified. Holds: a group's tokens, decoded, are the group's part of the text as the definition normalizes it, white space and the mark for it aside;
//! groups follow each other and don't overlap. Mostly a group is one token; where letters are joined or split it is a few.
//!
//! ```text
//! text      c a f e ◌́   x      (NFC makes é of two characters)
//! tokens    [caf][é ][x]       "é" is not "e◌́", but normalized it is
//! ```
//!
//! Does not know: what the ranges are for.

use std::ops::Range;

use super::vocabulary::Vocabulary;

/// Tokens more than this that can't be verified together aren't tried.
const GROUP_MAX: usize = 64;

/// Consecutive tokens and the bytes of the text that they stand for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Their ids, with the byte where each ends: of all but the last, as far as is known.
    pub tokens: Vec<(u32, usize)>,
    /// Bytes of the text.
    pub range: Range<usize>,
}

/// Groups the tokens of `text`; `None` where some can't be verified.
pub(super) fn groups(
    text: &str,
    tokens: &[(u32, Range<usize>)],
    vocabulary: &Vocabulary,
    unknown: Option<u32>,
    normalize: &dyn Fn(&str) -> Option<String>,
) -> Option<Vec<Group>> {
    let mut groups: Vec<Group> = Vec::with_capacity(tokens.len());
    let (mut start, mut floor) = (0, 0);
    while start < tokens.len() {
        let (mut found, mut range) = (None, tokens[start].1.clone());
        for end in start..tokens.len().min(start + GROUP_MAX) {
            range = range.start.min(tokens[end].1.start)..range.end.max(tokens[end].1.end);
            // What an unknown token stands for can't be decoded; its neighbours say where it ends.
            let is_unknown = end == start && Some(tokens[end].0) == unknown;
            let apart = tokens.get(end + 1).is_none_or(|next| next.1.start >= range.end);
            let part = text.get(range.clone());
            if range.start >= floor
                && apart
                && part.is_some_and(|part| is_unknown || same(part, &tokens[start..=end], vocabulary, normalize))
            {
                found = Some(end + 1);
                break;
            }
        }
        let end = found?;
        let mut last = range.start;
        let ends = tokens[start..end].iter().map(|(id, token)| {
            last = last.max(token.end.min(range.end));
            (*id, last)
        });
        let mut group = Group { tokens: ends.collect(), range: range.clone() };
        if let Some(token) = group.tokens.last_mut() {
            token.1 = range.end;
        }
        groups.push(group);
        (start, floor) = (end, range.end);
    }
    Some(groups)
}

/// Whether tokens are what `part` is normalized to.
fn same(
    part: &str,
    tokens: &[(u32, Range<usize>)],
    vocabulary: &Vocabulary,
    normalize: &dyn Fn(&str) -> Option<String>,
) -> bool {
    let mut decoded = Vec::new();
    tokens.iter().for_each(|(id, _)| decoded.extend_from_slice(vocabulary.bytes(*id).unwrap_or_default()));
    let Ok(decoded) = String::from_utf8(decoded) else { return false };
    let bare = |text: &str| text.chars().filter(|c| !c.is_whitespace() && *c != '\u{2581}').collect::<String>();
    let decoded = bare(&decoded);
    bare(part) == decoded || normalize(part).is_some_and(|part| bare(&part) == decoded)
}
