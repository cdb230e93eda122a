//! Which characters of a rendered conversation are trained.
//!
//! Comes in: a conversation, and what renders it. Goes out: its text and byte ranges. Holds: each range is proved by what the template itself
//! does, in one of four ways, tried in this order; where none holds the row is an error:
//!
//! ```text
//! generation   the template says so: {% generation %} ... {% endgeneration %}
//! headers      marks around what others say come out around it, and between two of them every message has exactly one header, which begins
//!              with the control token that the generation prompt begins with; the span is between the prompt and the next header
//! prefixes     render(messages[..i], add_generation_prompt) and render(messages[..=i]) are literal prefixes of the whole; the span is
//!              between their ends, so it begins behind the header and holds what ends the turn
//! sentinels    marks around the content come out around it, and without them the text is the whole; the control token behind it belongs
//!              to the turn where it is shown to end turns, see `marks.rs`
//! ```
//!
//! Does not know: tokens.

use std::ops::Range;

use serde::Serialize;
use serde_json::Value as Json;

use super::rows::Conversation;
use super::template::{BREAK, CLOSE, OPEN};
use super::{Chat, TrainOn, marks};
use crate::error::{Error, ErrorKind, Result};
use crate::ranges::join;

/// How spans were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The template marks them.
    Generation,
    /// Literal prefixes.
    Prefixes,
    /// Headers between marks.
    Headers,
    /// Sentinels.
    Sentinels,
    /// All of the row is trained.
    Whole,
}

impl Method {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Method::Generation => "generation blocks",
            Method::Prefixes => "literal prefixes",
            Method::Headers => "headers between marks",
            Method::Sentinels => "sentinels",
            Method::Whole => "no need of spans",
        }
    }
}

/// A conversation's text, [`BREAK`]s included, and what of it is trained.
pub(super) struct Rendered {
    pub text: String,
    /// Byte ranges: rising, none touching the next.
    pub spans: Vec<Range<usize>>,
    pub method: Option<Method>,
}

pub(super) fn is_assistant(message: &Json) -> bool {
    matches!(message["role"].as_str(), Some("assistant" | "model"))
}

/// Which messages are trained, by what the config and the record say.
pub(super) fn wanted(conversation: &Conversation, train_on: TrainOn) -> Vec<bool> {
    let messages = &conversation.messages;
    let last = messages.iter().rposition(is_assistant);
    let completion = if conversation.completion < messages.len() {
        conversation.completion
    } else {
        messages.iter().rposition(|message| !is_assistant(message)).map_or(0, |at| at + 1)
    };
    let by_config = |index: usize| match train_on {
        TrainOn::Assistant => is_assistant(&messages[index]),
        TrainOn::LastAssistant => Some(index) == last,
        TrainOn::Completion => index >= completion && is_assistant(&messages[index]),
        TrainOn::All => true,
    };
    let said = conversation.train.iter().enumerate();
    said.map(|(index, said)| match said {
        // A message that is to be trained has to be one that the config means as well, or all that it means are the assistant's.
        Some(train) if train_on == TrainOn::Assistant => *train,
        Some(false) => false,
        _ => by_config(index),
    })
    .collect()
}

/// A conversation for each message that is trained, which ends with it and trains it alone.
pub(super) fn turns(conversation: &Conversation, train_on: TrainOn) -> Vec<Conversation> {
    let wanted = wanted(conversation, train_on);
    let turn = |index: usize| Conversation {
        messages: conversation.messages[..=index].to_vec(),
        train: (0..=index).map(|at| (at < index).then_some(false)).collect(),
        completion: index,
        ..conversation.clone()
    };
    (0..wanted.len()).filter(|&index| wanted[index] && is_assistant(&conversation.messages[index])).map(turn).collect()
}

/// A user's only message.
fn question() -> Conversation {
    let message = serde_json::json!({"role": "user", "content": "a"});
    Conversation { messages: vec![message], tools: None, documents: None, train: vec![None], completion: 1 }
}

/// What a template that isn't asked for a generation prompt writes all the same: found by rendering no messages, where asking for the prompt changes
/// nothing.
pub(super) fn standing_prompt(chat: &Chat) -> String {
    let asked = question();
    let render = |prompt| chat.render(&asked, 1, prompt).ok();
    let prompt = chat.render(&asked, 0, false).unwrap_or_default();
    match (render(false), render(true)) {
        (Some(without), Some(with)) if without == with && with.ends_with(&prompt) => prompt,
        _ => String::new(),
    }
}

/// The generation prompt behind a user's message.
pub(super) fn usual_prompt(chat: &Chat) -> Option<String> {
    marks::prompt(chat, &question(), 1)
}

/// Renders the conversation, and finds what is trained.
pub(super) fn find(chat: &Chat, conversation: &Conversation) -> Result<Rendered> {
    let wanted = wanted(conversation, chat.options.train_on);
    let count = conversation.messages.len();
    let marked = chat.render(conversation, count, false)?;
    let (whole, blocks) = take_marks(&marked);
    if wanted.iter().all(|wanted| *wanted) && chat.options.train_on == TrainOn::All {
        let spans = std::iter::once(0..whole.len()).collect();
        return Ok(Rendered { text: whole, spans, method: Some(Method::Whole) });
    }
    if !wanted.iter().any(|wanted| *wanted) {
        return Ok(Rendered { text: whole, spans: Vec::new(), method: None });
    }
    if chat.template.has_generation() {
        let assistants: Vec<usize> = (0..count).filter(|&index| is_assistant(&conversation.messages[index])).collect();
        let all = (0..count).all(|index| wanted[index] == is_assistant(&conversation.messages[index]));
        let only = (0..count).all(|index| !wanted[index] || is_assistant(&conversation.messages[index]));
        if all {
            return Ok(Rendered { text: whole, spans: joined(blocks), method: Some(Method::Generation) });
        }
        if only && assistants.len() == blocks.len() {
            let blocks = blocks.into_iter().zip(assistants).filter(|(_, index)| wanted[*index]);
            let spans = joined(blocks.map(|(block, _)| block).collect());
            return Ok(Rendered { text: whole, spans, method: Some(Method::Generation) });
        }
    }
    let mut reasons = Vec::new();
    let methods: [(Method, Find); 3] = [
        // Two renderings, however many turns there are.
        (Method::Headers, marks::by_headers),
        (Method::Prefixes, by_prefixes),
        (Method::Sentinels, marks::by_sentinels),
    ];
    for (method, find) in methods {
        match find(chat, conversation, &wanted, &whole) {
            Ok(spans) => return Ok(Rendered { text: whole, spans, method: Some(method) }),
            Err(reason) => reasons.push(reason),
        }
    }
    let detail = format!(
        "which characters the chat template gives for a message can't be proved: {}; expected a template with \
         {{% generation %}} blocks, or one that writes earlier messages the same whatever follows (see chat.expand_turns)",
        reasons.join("; ")
    );
    Err(Error::new(ErrorKind::BadRecord, detail))
}

/// Finds spans of the messages that are wanted in the whole text, or says why it can't.
type Find = fn(&Chat, &Conversation, &[bool], &str) -> std::result::Result<Vec<Range<usize>>, String>;

/// Joins spans that touch; empty ones are left out.
pub(super) fn joined(mut spans: Vec<Range<usize>>) -> Vec<Range<usize>> {
    spans.retain(|span| span.start < span.end);
    spans.sort_by_key(|span| span.start);
    let mut joined: Vec<Range<usize>> = Vec::with_capacity(spans.len());
    for span in spans {
        join(&mut joined, span);
    }
    joined
}

/// The text without marks, and what stood between them.
pub(super) fn take_marks(marked: &str) -> (String, Vec<Range<usize>>) {
    let mut text = String::with_capacity(marked.len());
    let mut spans = Vec::new();
    let (mut open, mut rest) = (None, marked);
    while let Some(at) = rest.find([OPEN, CLOSE]) {
        text.push_str(&rest[..at]);
        let mark = rest[at..].chars().next().unwrap_or(OPEN);
        match (mark, open) {
            (OPEN, None) => open = Some(text.len()),
            (CLOSE, Some(start)) => {
                spans.push(start..text.len());
                open = None;
            }
            _ => {}
        }
        rest = &rest[at + mark.len_utf8()..];
    }
    text.push_str(rest);
    (text, spans)
}

fn by_prefixes(
    chat: &Chat,
    conversation: &Conversation,
    wanted: &[bool],
    whole: &str,
) -> std::result::Result<Vec<Range<usize>>, String> {
    let mut spans = Vec::new();
    for index in (0..wanted.len()).filter(|&index| wanted[index]) {
        let message = &conversation.messages[index];
        let render = |count: usize, prompt: bool| {
            let text = if count == 0 && !prompt { Ok(String::new()) } else { chat.render(conversation, count, prompt) };
            let text = text.map_err(|error| format!("its first {count} messages fail: {}", error.detail()))?;
            let (text, _) = take_marks(&text);
            let text = if prompt { &text } else { text.strip_suffix(&*chat.standing_prompt).unwrap_or(&text) };
            if whole.starts_with(text) {
                Ok(text.len())
            } else {
                Err(format!("its first {count} messages give text that doesn't begin the whole"))
            }
        };
        let before = render(index, is_assistant(message))?;
        let end = if index + 1 == wanted.len() { chat.end(whole) } else { render(index + 1, false)? };
        let headed = is_assistant(message) && before > render(index, false).unwrap_or(before);
        if before > end {
            return Err(format!("message {index} gives no text"));
        }
        let content = message["content"].as_str().unwrap_or_default().trim();
        if !headed && is_assistant(message) {
            // Without a header of its own, the content itself has to be what begins there.
            let begins = whole[before..end].trim_start().starts_with(content);
            if content.is_empty() || !begins {
                return Err("the template has no generation prompt, so the end of the header isn't known".into());
            }
        }
        spans.push(before..end);
    }
    Ok(joined(spans))
}

/// A text without its [`BREAK`]s.
pub(super) struct Unbroken {
    pub text: String,
    /// Where breaks stood, as offsets in `text`, rising.
    pub breaks: Vec<usize>,
    /// The same in the text with breaks.
    places: Vec<usize>,
}

impl Unbroken {
    /// The offset in `text` of an offset in the text with breaks.
    pub fn map(&self, offset: usize) -> usize {
        offset - self.places.partition_point(|place| *place < offset) * BREAK.len_utf8()
    }
}

/// Takes the breaks out.
pub(super) fn without_breaks(text: &str) -> Unbroken {
    let mut unbroken = Unbroken { text: String::with_capacity(text.len()), breaks: Vec::new(), places: Vec::new() };
    let mut start = 0;
    for (at, mark) in text.match_indices(BREAK) {
        unbroken.text.push_str(&text[start..at]);
        unbroken.breaks.push(unbroken.text.len());
        unbroken.places.push(at);
        start = at + mark.len();
    }
    unbroken.text.push_str(&text[start..]);
    unbroken
}
