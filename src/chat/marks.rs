//! Spans where prefixes of a conversation don't give prefixes of its text: by marks around what is said.
//!
//! Comes in: a conversation, its text, what renders it. Goes out: spans, or why there are none. Holds: a rendering with marks counts only if
//! it is the text once the marks are taken out. Marks are noncharacters, so no text has them, and literals of control tokens in what is said are broken,
//! so a control token between marks is the template's. Does not know: tokens, which method comes first.

use std::ops::Range;

use serde_json::Value as Json;

use super::rows::Conversation;
use super::spans::{is_assistant, joined, take_marks};
use super::template::{CLOSE, OPEN};
use super::{Chat, template};

type Spans = std::result::Result<Vec<Range<usize>>, String>;

/// How content may have to be trimmed for marks to stand within what the template keeps of it: at its start, at its end.
const TRIMS: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

/// The messages, those of `indices` with marks.
fn marked(conversation: &Conversation, indices: &[usize], trims: (bool, bool)) -> Vec<minijinja::Value> {
    let messages = conversation.messages.iter().enumerate();
    let messages = messages.map(|(index, message)| match indices.contains(&index) {
        true => template::value(&with_marks(message, trims)),
        false => template::value(message),
    });
    messages.collect()
}

/// Where the marks of `count` messages come out, if they do and the text is `whole`.
fn places(
    chat: &Chat,
    conversation: &Conversation,
    messages: &[minijinja::Value],
    whole: &str,
    count: usize,
) -> Option<Vec<Range<usize>>> {
    let marked = chat.render_messages(conversation, messages.iter().cloned().collect(), false).ok()?;
    let (text, spans) = match chat.template.has_generation() {
        // Generation blocks would add marks of their own.
        true => return None,
        false => take_marks(&marked),
    };
    (text == whole && spans.len() == count).then_some(spans)
}

/// Headers between marks: of messages that aren't the assistant's, the content is found by marks; between two of those, each message has to have one
/// control token of the kind that the generation prompt begins with.
///
/// ```text
/// prompt       <|im_start|>assistant\n
/// text         ..«hi»<|im_end|>\n<|im_start|>assistant\n<tool_call>..<|im_end|>\n<|im_start|>tool\n«sunny»..
/// headers                        1                                             2
/// span                                               <tool_call>..<|im_end|>\n
/// ```
pub(super) fn by_headers(chat: &Chat, conversation: &Conversation, wanted: &[bool], whole: &str) -> Spans {
    let indices: Vec<usize> = (0..wanted.len()).filter(|&index| wanted[index]).collect();
    if let Some(index) = indices.iter().find(|&&index| !is_assistant(&conversation.messages[index])) {
        return Err(format!("message {index} isn't the assistant's, so it has no generation prompt"));
    }
    // Nearly always it is the usual one, which saves two renderings.
    let usual = chat.usual_prompt.as_deref().map(|prompt| between_headers(chat, conversation, wanted, whole, prompt));
    if let Some(Ok(spans)) = usual {
        return Ok(spans);
    }
    let own = indices.iter().find_map(|&index| prompt(chat, conversation, index));
    match (own, usual) {
        (Some(own), Some(usual)) if Some(&own) == chat.usual_prompt.as_ref() => usual,
        (Some(own), _) => between_headers(chat, conversation, wanted, whole, &own),
        (None, Some(usual)) => usual,
        (None, None) => Err("the template has no generation prompt".into()),
    }
}

/// The same for one generation prompt.
fn between_headers(chat: &Chat, conversation: &Conversation, wanted: &[bool], whole: &str, prompt: &str) -> Spans {
    let indices: Vec<usize> = (0..wanted.len()).filter(|&index| wanted[index]).collect();
    let header = chat.control.literal_at(prompt).map(|len| &prompt[..len]);
    let header = header.ok_or("the generation prompt doesn't begin with a control token")?;
    // A prompt of several lines may begin what the model is to say as well (`<think>`): earlier turns have its first line.
    let line = prompt.split_inclusive('\n').next().unwrap_or(prompt);
    // Content that is blank may matter to the template, so it is tried with and without.
    let others = |blank: bool| -> Vec<usize> {
        let has = |message: &Json| says(message) || blank && message["content"].is_string();
        let messages = conversation.messages.iter().enumerate();
        messages.filter(|(_, message)| !is_assistant(message) && has(message)).map(|(index, _)| index).collect()
    };
    let found = [true, false].into_iter().find_map(|blank| {
        let others = others(blank);
        let found = TRIMS
            .iter()
            .find_map(|&trims| places(chat, conversation, &marked(conversation, &others, trims), whole, others.len()));
        found.map(|found| (others, found))
    });
    let (others, found) = found.ok_or("marks around what others say don't come out as they went in")?;
    // The stretches between what others say: after which message, and where.
    let mut spans = Vec::new();
    let mut wanted_after = indices.iter().peekable();
    for at in 0..=others.len() {
        let (after, start) = if at == 0 { (None, 0) } else { (Some(others[at - 1]), found[at - 1].end) };
        let (before, end) = match others.get(at) {
            Some(&other) => (other, found[at].start),
            None => (wanted.len(), chat.end(whole)),
        };
        let first = after.map_or(0, |after| after + 1);
        if wanted_after.peek().is_none_or(|index| **index >= before) {
            continue;
        }
        if after.is_none() {
            return Err("the assistant speaks before anybody else".into());
        }
        let headers: Vec<usize> = whole[start..end].match_indices(header).map(|(offset, _)| start + offset).collect();
        // Each message between has one, and the one that ends the stretch.
        let expected = before - first + usize::from(at < others.len());
        if headers.len() != expected {
            return Err(format!("found {} headers from message {first} on, expected {expected}", headers.len()));
        }
        while let Some(&index) = wanted_after.next_if(|index| **index < before) {
            let own = headers[index - first];
            let begins = [prompt, line].into_iter().find(|header| whole[own..].starts_with(header));
            let begins = begins.ok_or_else(|| format!("message {index} doesn't begin with the generation prompt"))?;
            let next = headers.get(index - first + 1).copied().unwrap_or(end);
            spans.push(own + begins.len()..next);
        }
    }
    Ok(joined(spans))
}

/// What the template writes for the assistant to go on from, in place of message `index`.
pub(super) fn prompt(chat: &Chat, conversation: &Conversation, index: usize) -> Option<String> {
    let render = |prompt| chat.render(conversation, index, prompt).map(|text| take_marks(&text).0);
    let with = (index > 0).then(|| render(true).ok())??;
    let without = render(false).ok()?;
    let prompt = with.strip_prefix(without.strip_suffix(&*chat.standing_prompt).unwrap_or(&without))?;
    (!prompt.trim().is_empty()).then(|| prompt.to_owned())
}

/// Marks around what is said itself.
pub(super) fn by_sentinels(chat: &Chat, conversation: &Conversation, wanted: &[bool], whole: &str) -> Spans {
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
    for trims in TRIMS {
        let messages = marked(conversation, &indices, trims);
        let Some(spans) = places(chat, conversation, &messages, whole, indices.len()) else { continue };
        // Where everybody's words end, if that can be shown as well.
        let said: Vec<usize> = (0..wanted.len()).filter(|&index| says(&conversation.messages[index])).collect();
        let all = places(chat, conversation, &marked(conversation, &said, trims), whole, said.len());
        let ends: Vec<(usize, usize)> =
            all.into_iter().flatten().zip(said).map(|(span, index)| (index, span.end)).collect();
        let turns = Turns { chat, conversation, messages: &messages, whole, ends: &ends };
        let prompt = indices.iter().find_map(|&index| prompt(chat, conversation, index)).unwrap_or_default();
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
fn with_marks(message: &Json, (trim_start, trim_end): (bool, bool)) -> Json {
    let mut message = message.clone();
    let content = message["content"].as_str().unwrap_or_default();
    let start = if trim_start { content.len() - content.trim_start().len() } else { 0 };
    let end = if trim_end { content.trim_end().len().max(start) } else { content.len() };
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
            return self.chat.end(whole);
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
