//! A rendered conversation to tokens, each with where it ends in the text.
//!
//! Comes in: text, and where literals of control tokens were broken because people wrote them. Goes out: `(id, end byte)`s. Holds: a control token that the
//! template wrote is its id, one that stands in what somebody said is ordinary text; the ids of a text without such are those of the reference with special
//! tokens parsed. Offsets follow from the tokens' own byte lengths where those add up to the text; else they are the reference's, verified by
//! decoding.
//!
//! The text is cut at control tokens, and each part between is encoded alone, as the reference does it. Does not know: messages, spans.

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value as Json;

use super::rows::Conversation;
use super::template::BREAK;
use crate::error::{Error, ErrorKind, Result};
use crate::tokenizer::{ControlToken, Tokenizer};

/// A token and the byte of the text where it ends.
pub(super) type Placed = (u32, u32);

/// The control tokens of a tokenizer.
pub(super) struct Control {
    tokens: Vec<ControlToken>,
    finder: Option<AhoCorasick>,
    ids: Vec<u32>,
}

impl Control {
    pub(super) fn new(tokenizer: &Tokenizer) -> Result<Control> {
        let tokens: Vec<ControlToken> =
            tokenizer.control_tokens().iter().filter(|token| !token.literal.is_empty()).cloned().collect();
        let finder = match tokens.is_empty() {
            true => None,
            false => Some(
                AhoCorasick::builder()
                    .match_kind(MatchKind::LeftmostLongest)
                    .build(tokens.iter().map(|token| &token.literal))
                    .map_err(|error| Error::new(ErrorKind::Tokenizer, "too many special tokens").because(error))?,
            ),
        };
        let mut ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        ids.sort_unstable();
        Ok(Control { tokens, finder, ids })
    }

    pub(super) fn is_control(&self, id: u32) -> bool {
        self.ids.binary_search(&id).is_ok()
    }

    /// The length of the control token that `text` begins with.
    pub(super) fn literal_at(&self, text: &str) -> Option<usize> {
        self.tokens.iter().filter(|token| text.starts_with(&token.literal)).map(|token| token.literal.len()).max()
    }

    /// The conversation with a break in each literal of a control token, and their number; `None` if there is none.
    pub(super) fn guard(&self, conversation: &Conversation) -> Option<(Conversation, u32)> {
        let finder = self.finder.as_ref()?;
        let parts = || conversation.messages.iter().chain(&conversation.tools).chain(&conversation.documents);
        if !parts().any(|part| holds(part, finder)) {
            return None;
        }
        let mut guarded = conversation.clone();
        let mut count = 0;
        for part in guarded.messages.iter_mut().chain(&mut guarded.tools).chain(&mut guarded.documents) {
            break_literals(part, finder, &mut count);
        }
        Some((guarded, count))
    }

    /// Encodes `text`; a literal with one of `breaks` inside of it is ordinary.
    pub(super) fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        breaks: &[usize],
        edges: &[usize],
    ) -> Result<Vec<Placed>> {
        let mut placed = Vec::with_capacity(text.len() / 3);
        let mut scratch = Vec::new();
        let mut start = 0;
        let Some(finder) = &self.finder else {
            ordinary(tokenizer, text, 0, edges, &mut scratch, &mut placed)?;
            return Ok(placed);
        };
        let mut at = 0;
        while let Some(found) = finder.find(&text[at..]) {
            let (begin, mut end) = (at + found.start(), at + found.end());
            let first = breaks.partition_point(|at| *at <= begin);
            if breaks.get(first).is_some_and(|at| *at < end) {
                // Another literal may begin inside of one that is kept text, but not in its first character.
                at = begin + text[begin..].chars().next().map_or(1, char::len_utf8);
                continue;
            }
            let token = &self.tokens[found.pattern().as_usize()];
            let mut before = &text[start..begin];
            if token.lstrip {
                before = before.trim_end();
            }
            ordinary(tokenizer, before, start, edges, &mut scratch, &mut placed)?;
            if token.rstrip {
                end = text.len() - text[end..].trim_start().len();
            }
            placed.push((token.id, end as u32));
            (start, at) = (end, end);
        }
        ordinary(tokenizer, &text[start..], start, edges, &mut scratch, &mut placed)?;
        Ok(placed)
    }

    /// Encodes text of which no part is a control token.
    pub(super) fn encode_ordinary(&self, tokenizer: &Tokenizer, text: &str, edges: &[usize]) -> Result<Vec<Placed>> {
        let mut placed = Vec::with_capacity(text.len() / 3);
        ordinary(tokenizer, text, 0, edges, &mut Vec::new(), &mut placed)?;
        Ok(placed)
    }
}

/// Encodes `text`, which begins at `start` of the whole.
fn ordinary(
    tokenizer: &Tokenizer,
    text: &str,
    start: usize,
    edges: &[usize],
    ids: &mut Vec<u32>,
    placed: &mut Vec<Placed>,
) -> Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    ids.clear();
    tokenizer.encode_part_into(text, start == 0, ids)?;
    let first = placed.len();
    let (mut size, mut same) = (0, true);
    for &id in ids.iter() {
        let token = tokenizer.token(id);
        same = same && text.as_bytes().get(size..).is_some_and(|rest| rest.starts_with(token));
        size += token.len();
        placed.push((id, (start + size) as u32));
    }
    if same && size == text.len() {
        return Ok(());
    }
    // Added tokens that stand for spaces are written with the mark that the definition replaces spaces by.
    if !text.contains('▁') {
        let marks = |id: u32| {
            let bytes = tokenizer.token(id);
            bytes.len() - 2 * memchr::memmem::find_iter(bytes, "▁".as_bytes()).count()
        };
        let sizes: Vec<usize> = ids.iter().map(|&id| marks(id)).collect();
        if sizes.iter().sum::<usize>() == text.len() {
            let mut end = start;
            for ((_, at), size) in placed[first..].iter_mut().zip(sizes) {
                end += size;
                *at = end as u32;
            }
            return Ok(());
        }
    }
    // A space that the definition puts before each part.
    let spaced = ids.first().is_some_and(|&id| tokenizer.token(id).starts_with(b" "));
    if size == text.len() + 1 && spaced {
        placed[first..].iter_mut().for_each(|(_, end)| *end -= 1);
        return Ok(());
    }
    let end = start + text.len();
    let inside = |range: &std::ops::Range<usize>| {
        edges.iter().find(|edge| **edge > start + range.start && **edge < start + range.end)
    };
    if inside(&(0..text.len())).is_none() {
        // All of it is on one side of every edge, so where a token ends inside doesn't matter.
        for (index, (_, at)) in placed[first..].iter_mut().enumerate() {
            *at = (start + index + 1).min(end) as u32;
        }
        if let Some((_, at)) = placed.last_mut() {
            *at = end as u32;
        }
        return Ok(());
    }
    let unproved = |edge: usize, why: &str| {
        let detail =
            format!("which tokens are trained around byte {edge} of the rendered conversation can't be proved: {why}");
        Error::new(ErrorKind::BadRecord, detail)
    };
    let groups = tokenizer.part_groups(text, start == 0)?;
    let Some(groups) =
        groups.filter(|groups| groups.iter().flat_map(|group| &group.tokens).map(|t| t.0).eq(ids.iter().copied()))
    else {
        let edge = inside(&(0..text.len())).copied().unwrap_or_default();
        return Err(unproved(edge, "the reference's offsets aren't those of the text that its tokens decode to"));
    };
    let mut ends = placed[first..].iter_mut();
    for group in &groups {
        if group.tokens.len() > 1
            && let Some(edge) = inside(&group.range)
        {
            return Err(unproved(*edge, "the tokenizer changes the text on both sides together"));
        }
        for (token, (_, at)) in group.tokens.iter().zip(&mut ends) {
            *at = (start + token.1) as u32;
        }
    }
    if let Some((_, at)) = placed.last_mut() {
        *at = end as u32;
    }
    Ok(())
}

fn holds(value: &Json, finder: &AhoCorasick) -> bool {
    match value {
        Json::String(text) => finder.is_match(text),
        Json::Array(items) => items.iter().any(|item| holds(item, finder)),
        Json::Object(fields) => fields.iter().any(|(key, field)| finder.is_match(key) || holds(field, finder)),
        _ => false,
    }
}

fn break_literals(value: &mut Json, finder: &AhoCorasick, count: &mut u32) {
    match value {
        Json::String(text) => *text = broken(text, finder, count),
        Json::Array(items) => items.iter_mut().for_each(|item| break_literals(item, finder, count)),
        Json::Object(fields) => {
            let taken = std::mem::take(fields);
            for (key, mut field) in taken {
                break_literals(&mut field, finder, count);
                fields.insert(broken(&key, finder, count), field);
            }
        }
        _ => {}
    }
}

fn broken(text: &str, finder: &AhoCorasick, count: &mut u32) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    let (mut at, mut from) = (0, 0);
    while let Some(found) = finder.find(&text[at..]) {
        let begin = at + found.start();
        let behind = begin + text[begin..].chars().next().map_or(1, char::len_utf8);
        out.push_str(&text[from..behind]);
        out.push(BREAK);
        *count += 1;
        (at, from) = (behind, behind);
    }
    out.push_str(&text[from..]);
    out
}
