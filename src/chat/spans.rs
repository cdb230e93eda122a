//! Which characters of a rendered conversation are trained.
//!
//! Comes in: a conversation, and what renders it. Goes out: its text and byte ranges. Holds: each range is proved by what the template itself
//! does, in one of three ways, tried in this order; where none holds the row is an error:
//!
//! ```text
//! generation   the template says so: {% generation %} ... {% endgeneration %}
//! prefixes     render(messages[..i], add_generation_prompt) and render(messages[..=i]) are literal prefixes of the whole; the span is
//!              between their ends, so it begins behind the header and holds what ends the turn
//! sentinels    marks around the content come out around it, and without them the text is the whole; the control token behind it belongs
//!              to the turn where it is shown to end turns, see `Turns`
//! ```
//!
//! Does not know: tokens.

use std::ops::Range;

use serde::Serialize;
use serde_json::Value as Json;

use super::rows::Conversation;
use super::template::{BREAK, CLOSE, OPEN};
use super::{Chat, TrainOn, template};
use crate::error::{Error, ErrorKind, Result};

/// How spans were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The template marks them.
    Generation,
    /// Literal prefixes.
    Prefixes,
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

fn is_assistant(message: &Json) -> bool {
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
    let prefixes = by_prefixes(chat, conversation, &wanted, &whole);
    let reason = match prefixes {
        Ok(spans) => return Ok(Rendered { text: whole, spans, method: Some(Method::Prefixes) }),
        Err(reason) => reason,
    };
    match by_sentinels(chat, conversation, &wanted, &whole) {
        Ok(spans) => Ok(Rendered { text: whole, spans, method: Some(Method::Sentinels) }),
        Err(other) => {
            let detail = format!(
                "which characters the chat template gives for a message can't be proved: {reason}; {other}; expected a template with \
                 {{% generation %}} blocks, or one that writes earlier messages the same whatever follows (see chat.expand_turns)"
            );
            Err(Error::new(ErrorKind::BadRecord, detail))
        }
    }
}

/// Joins spans that touch; empty ones are left out.
fn joined(mut spans: Vec<Range<usize>>) -> Vec<Range<usize>> {
    spans.retain(|span| span.start < span.end);
    spans.sort_by_key(|span| span.start);
    let mut joined: Vec<Range<usize>> = Vec::with_capacity(spans.len());
    for span in spans {
        match joined.last_mut() {
            Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
            _ => joined.push(span),
        }
    }
    joined
}

/// The text without marks, and what stood between them.
fn take_marks(marked: &str) -> (String, Vec<Range<usize>>) {
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
            if whole.starts_with(&text) {
                Ok(text.len())
            } else {
                Err(format!("its first {count} messages give text that doesn't begin the whole"))
            }
        };
        let before = render(index, is_assistant(message))?;
        let end = if index + 1 == wanted.len() { whole.len() } else { render(index + 1, false)? };
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

fn by_sentinels(
    chat: &Chat,
    conversation: &Conversation,
    wanted: &[bool],
    whole: &str,
) -> std::result::Result<Vec<Range<usize>>, String> {
    let indices: Vec<usize> = (0..wanted.len()).filter(|&index| wanted[index]).collect();
    for &index in &indices {
        let message = &conversation.messages[index];
        let more = ["tool_calls", "reasoning_content", "thinking", "reasoning", "function_call"];
        if let Some(field) = more.into_iter().find(|field| message.get(*field).is_some_and(|value| !value.is_null())) {
            return Err(format!("message {index} has {field:?}, which marks around the content don't show"));
        }
        if !says(message) {
            return Err(format!("message {index} has no text to put marks around"));
        }
    }
    // Templates may trim what is said: marks then have to stand within.
    for (trim_start, trim_end) in [(false, false), (false, true), (true, false), (true, true)] {
        let marked_by = |wanted: &dyn Fn(usize) -> bool| -> Vec<minijinja::Value> {
            let messages = conversation.messages.iter().enumerate();
            messages
                .map(|(index, message)| match wanted(index) {
                    true => template::value(&with_marks(message, trim_start, trim_end)),
                    false => template::value(message),
                })
                .collect()
        };
        let render = |messages: &[minijinja::Value]| {
            let marked = chat.render_messages(conversation, messages.iter().cloned().collect(), false);
            // Generation blocks would add marks of their own.
            marked.ok().map(|marked| take_marks(&marked)).filter(|(text, _)| text == whole).map(|(_, spans)| spans)
        };
        let messages = marked_by(&|index| indices.contains(&index));
        let Some(spans) = render(&messages).filter(|spans| spans.len() == indices.len()) else { continue };
        // Where everybody's words end, if that can be shown as well.
        let said: Vec<usize> = (0..wanted.len()).filter(|&index| says(&conversation.messages[index])).collect();
        let all = render(&marked_by(&|index| said.contains(&index))).filter(|spans| spans.len() == said.len());
        let ends: Vec<(usize, usize)> =
            all.into_iter().flatten().zip(said).map(|(span, index)| (index, span.end)).collect();
        let turns = Turns { chat, conversation, messages: &messages, whole, ends: &ends };
        let prompt = indices.iter().find_map(|&index| turns.prompt(index)).unwrap_or_default();
        let mut proved: Vec<&str> = Vec::new();
        let spans = spans.into_iter().zip(&indices).map(|(span, &index)| {
            turns.start(index, span.start, &prompt)..turns.end(index, span.end, &prompt, &mut proved)
        });
        return Ok(joined(spans.collect()));
    }
    Err("marks around the content don't come out as they went in".into())
}

/// Whether there is content to put marks around.
fn says(message: &Json) -> bool {
    message["content"].as_str().is_some_and(|content| !content.trim().is_empty())
}

/// The message with marks around its content, which says something.
fn with_marks(message: &Json, trim_start: bool, trim_end: bool) -> Json {
    let mut message = message.clone();
    let content = message["content"].as_str().unwrap_or_default();
    let start = if trim_start { content.len() - content.trim_start().len() } else { 0 };
    let end = if trim_end { content.trim_end().len() } else { content.len() };
    let marked = format!("{}{OPEN}{}{CLOSE}{}", &content[..start], &content[start..end], &content[end..]);
    message["content"] = marked.into();
    message
}

/// A conversation of which marks have shown where the content of messages is.
struct Turns<'a> {
    chat: &'a Chat,
    conversation: &'a Conversation,
    /// The messages, with marks.
    messages: &'a [minijinja::Value],
    whole: &'a str,
    /// Messages of which it is known where their content ends.
    ends: &'a [(usize, usize)],
}

impl<'a> Turns<'a> {
    /// What the template writes for the assistant to go on from, in place of message `index`.
    fn prompt(&self, index: usize) -> Option<String> {
        let render = |prompt| self.chat.render(self.conversation, index, prompt).map(|text| take_marks(&text).0);
        let with = (index > 0).then(|| render(true).ok())??;
        let prompt = with.strip_prefix(&render(false).ok()?)?;
        (!prompt.trim().is_empty()).then(|| prompt.to_owned())
    }

    fn literal(&self, text: &'a str) -> Option<&'a str> {
        self.chat.control.literal_at(text).map(|len| &text[..len])
    }

    /// Where the turn begins of message `index`, of which the content begins at `start`: behind the generation prompt, where it stands between the message
    /// before and the content, and has a control token, so that it is the template's.
    fn start(&self, index: usize, start: usize, prompt: &str) -> usize {
        let before = self.ends.iter().find(|(other, _)| other + 1 == index);
        let Some(&(_, floor)) = before.filter(|(_, end)| *end <= start) else { return start };
        let own = prompt.char_indices().any(|(at, _)| self.chat.control.literal_at(&prompt[at..]).is_some());
        match self.whole[floor..start].rfind(prompt) {
            Some(at) if own => floor + at + prompt.len(),
            _ => start,
        }
    }

    /// Where the turn ends of message `index`, of which the content ends at `end`: the last one with the text; another behind the control token that
    /// comes next, if that is shown to end turns and not to begin the next header, and behind the white space that follows it.
    ///
    /// It is shown in one of two ways. The message, rendered as the last one, ends with the same token. Or the token has that one behind
    /// it which the generation prompt begins with, so the next header begins there. `proved` holds the tokens shown to end turns of this
    /// text.
    fn end(&self, index: usize, end: usize, prompt: &str, proved: &mut Vec<&'a str>) -> usize {
        let whole = self.whole;
        if index + 1 == self.messages.len() {
            return whole.len();
        }
        let blank = |text: &str| text.len() - text.trim_start().len();
        let at = end + blank(&whole[end..]);
        let Some(ender) = self.literal(&whole[at..]) else { return end };
        let behind = at + ender.len();
        let next = behind + blank(&whole[behind..]);
        let header = self.literal(&whole[next..]);
        if !proved.contains(&ender) {
            let alone = self.messages[..=index].iter().cloned().collect();
            let ends_alone = self.chat.render_messages(self.conversation, alone, false).is_ok_and(|alone| {
                let rest = alone.rfind(CLOSE).map_or("", |at| &alone[at + CLOSE.len_utf8()..]);
                rest.trim_start().starts_with(ender)
            });
            let before_header = header.is_some_and(|header| header != ender && prompt.trim_start().starts_with(header));
            if !ends_alone && !before_header {
                return end;
            }
            proved.push(ender);
        }
        if header.is_some() { next } else { behind }
    }
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
