//! Records as conversations.
//!
//! Comes in: a record as JSON, and the names of its fields. Goes out: messages as OpenAI's API has them, with tools and whatever else
//! the template is to see; which of them are trained where the record says so. Does not know: templates, tokens.
//!
//! ```text
//! messages     {"messages": [{"role": "user", "content": "..."}, ...], "tools": [...]}
//! sharegpt     {"conversations": [{"from": "human", "value": "..."}, ...], "system": "..."}
//! alpaca       {"instruction": "...", "input": "...", "output": "..."}
//! completion   {"prompt": "..." or messages, "completion": "..." or messages}
//! text         {"text": "..."}
//! ```

use serde_json::{Map, Value as Json, json};

use super::{ChatOptions, Input};
use crate::error::{Error, ErrorKind, Result};

/// A conversation: messages, and what else a template sees.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Conversation {
    pub messages: Vec<Json>,
    pub tools: Option<Json>,
    pub documents: Option<Json>,
    /// `train` or `weight` of each message, where it says.
    pub train: Vec<Option<bool>>,
    /// Messages from here on are the completion.
    pub completion: usize,
}

/// What a record is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Row {
    /// To be rendered by the template.
    Conversation(Conversation),
    /// Text as it is: what isn't trained, then what is.
    Text { prompt: String, text: String },
}

fn bad(detail: String) -> Error {
    Error::new(ErrorKind::BadRecord, detail)
}

/// The format of a record by its fields.
pub(super) fn detect(record: &Map<String, Json>, options: &ChatOptions) -> Option<Input> {
    let has = |name: &str| record.contains_key(name);
    let list = |name: &str| record.get(name).is_some_and(|value| value.is_array() || value.is_string());
    if list(&options.messages_field) {
        // A list of {from, value} under the name of messages is ShareGPT's all the same.
        let first = as_list(&record[&options.messages_field]).and_then(|list| list.into_iter().next());
        return Some(match first {
            Some(first) if first.get("from").is_some() && first.get("role").is_none() => Input::Sharegpt,
            _ => Input::Messages,
        });
    }
    if list(&options.conversations_field) {
        let first = as_list(&record[&options.conversations_field]).and_then(|list| list.into_iter().next());
        return Some(match first {
            Some(first) if first.get("role").is_some() => Input::Messages,
            _ => Input::Sharegpt,
        });
    }
    if has(&options.prompt_field) && has(&options.completion_field) {
        return Some(Input::Completion);
    }
    if has(&options.instruction_field) && has(&options.output_field) {
        return Some(Input::Alpaca);
    }
    has(&options.text_field).then_some(Input::Text)
}

/// A list, also one that is written as JSON in a string.
fn as_list(value: &Json) -> Option<Vec<Json>> {
    match value {
        Json::Array(items) => Some(items.clone()),
        Json::String(text) => serde_json::from_str(text).ok(),
        _ => None,
    }
}

fn string(record: &Map<String, Json>, field: &str) -> Result<String> {
    match record.get(field) {
        Some(Json::String(text)) => Ok(text.clone()),
        Some(other) => Err(bad(format!("{field:?} is {}, expected a string", kind(other)))),
        None => Err(bad(format!("no {field:?} field"))),
    }
}

fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

/// Reads a record as `input`, which isn't `Auto`.
pub(super) fn read(record: &Map<String, Json>, input: Input, options: &ChatOptions) -> Result<Row> {
    let messages = |list: Vec<Json>| conversation(record, list, options).map(Row::Conversation);
    match input {
        Input::Messages | Input::Auto => {
            let field = if record.contains_key(&options.messages_field) {
                &options.messages_field
            } else {
                &options.conversations_field
            };
            messages(list_of(record, field)?)
        }
        Input::Sharegpt => {
            let field = if record.contains_key(&options.conversations_field) {
                &options.conversations_field
            } else {
                &options.messages_field
            };
            let mut list = Vec::new();
            if let Some(Json::String(system)) = record.get("system")
                && !system.is_empty()
            {
                list.push(json!({"role": "system", "content": system}));
            }
            for (index, turn) in list_of(record, field)?.into_iter().enumerate() {
                list.push(sharegpt(turn).map_err(|found| bad(format!("{field:?}, turn {index}: {found}")))?);
            }
            messages(list)
        }
        Input::Alpaca => {
            let instruction = string(record, &options.instruction_field)?;
            let input = match record.get(&options.input_field) {
                None | Some(Json::Null) => String::new(),
                Some(_) => string(record, &options.input_field)?,
            };
            let output = string(record, &options.output_field)?;
            let user = if input.is_empty() { instruction } else { format!("{instruction}\n\n{input}") };
            let mut list = Vec::new();
            if let Some(Json::String(system)) = record.get("system")
                && !system.is_empty()
            {
                list.push(json!({"role": "system", "content": system}));
            }
            list.extend([json!({"role": "user", "content": user}), json!({"role": "assistant", "content": output})]);
            messages(list)
        }
        Input::Completion => match (&record.get(&options.prompt_field), &record.get(&options.completion_field)) {
            (Some(Json::Array(prompt)), Some(Json::Array(completion))) => {
                let mut list = prompt.clone();
                list.extend(completion.iter().cloned());
                let mut conversation = conversation(record, list, options)?;
                conversation.completion = prompt.len();
                Ok(Row::Conversation(conversation))
            }
            _ => Ok(Row::Text {
                prompt: string(record, &options.prompt_field)?,
                text: string(record, &options.completion_field)?,
            }),
        },
        Input::Text => Ok(Row::Text { prompt: String::new(), text: string(record, &options.text_field)? }),
    }
}

fn list_of(record: &Map<String, Json>, field: &str) -> Result<Vec<Json>> {
    let value = record.get(field).ok_or_else(|| bad(format!("no {field:?} field")))?;
    as_list(value).ok_or_else(|| bad(format!("{field:?} is {}, expected a list of messages", kind(value))))
}

fn sharegpt(turn: Json) -> std::result::Result<Json, String> {
    let Json::Object(mut turn) = turn else { return Err(format!("found {}, expected an object", kind(&turn))) };
    let Some(Json::String(from)) = turn.shift_remove("from") else {
        return Err("no \"from\", expected who speaks".into());
    };
    let value = turn.shift_remove("value").ok_or("no \"value\", expected what is said")?;
    let role = match from.as_str() {
        "human" | "user" => "user",
        "gpt" | "chatgpt" | "bing" | "bard" | "assistant" | "model" | "function_call" => "assistant",
        "system" => "system",
        "tool" | "function" | "function_response" | "observation" => "tool",
        other => {
            return Err(format!("\"from\" is {other:?}, expected human, gpt, system or tool"));
        }
    };
    let mut message = Map::new();
    message.insert("role".into(), role.into());
    message.insert("content".into(), value);
    message.extend(turn);
    Ok(Json::Object(message))
}

fn conversation(record: &Map<String, Json>, list: Vec<Json>, options: &ChatOptions) -> Result<Conversation> {
    if list.is_empty() {
        return Err(bad("the conversation has no message, expected at least one".into()));
    }
    let mut train = Vec::with_capacity(list.len());
    let mut messages = Vec::with_capacity(list.len());
    for (index, message) in list.into_iter().enumerate() {
        let place = |found: String| bad(format!("message {index}: {found}"));
        let Json::Object(mut message) = message else {
            return Err(place(format!("found {}, expected an object", kind(&message))));
        };
        match message.get("role") {
            Some(Json::String(_)) => {}
            Some(other) => return Err(place(format!("\"role\" is {}, expected a string", kind(other)))),
            None => return Err(place("no \"role\" field".into())),
        }
        let said = match (message.shift_remove("train"), message.shift_remove("weight")) {
            (Some(Json::Bool(train)), _) => Some(train),
            (Some(Json::Null) | None, Some(Json::Number(weight))) => Some(match weight.as_f64() {
                Some(0.0) => false,
                Some(1.0) => true,
                _ => return Err(place(format!("\"weight\" is {weight}, expected 0 or 1"))),
            }),
            (Some(Json::Null) | None, Some(Json::Null) | None) => None,
            (Some(other), _) => return Err(place(format!("\"train\" is {}, expected true or false", kind(&other)))),
            (_, Some(other)) => return Err(place(format!("\"weight\" is {}, expected 0 or 1", kind(&other)))),
        };
        train.push(said);
        // Arguments as JSON in a string, as OpenAI's API gives them, are what templates expect as a dict.
        messages.push(Json::Object(message));
    }
    let part = |field: &str| match record.get(field) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(text)) if text.is_empty() => Ok(None),
        Some(Json::String(text)) => serde_json::from_str(text)
            .map(Some)
            .map_err(|error| bad(format!("{field:?} is a string that isn't JSON: {error}"))),
        Some(value) => Ok(Some(value.clone())),
    };
    Ok(Conversation {
        tools: part(&options.tools_field)?,
        documents: part("documents")?,
        completion: messages.len(),
        messages,
        train,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(record: Json) -> (Option<Input>, Result<Row>) {
        let options = ChatOptions::default();
        let record = record.as_object().expect("an object").clone();
        let input = detect(&record, &options);
        (input, read(&record, input.unwrap_or(Input::Text), &options))
    }

    /// One record of each format.
    #[test]
    fn formats() {
        let said = |record: Json, expected: Input| {
            let (input, row) = row(record);
            assert_eq!(input, Some(expected));
            match row.expect("a sound record") {
                Row::Conversation(conversation) => {
                    let text = |message: &Json| {
                        format!(
                            "{}:{}",
                            message["role"].as_str().expect("a role"),
                            message["content"].as_str().unwrap_or("?")
                        )
                    };
                    conversation.messages.iter().map(text).collect::<Vec<_>>().join(" ")
                }
                Row::Text { prompt, text } => format!("{prompt}|{text}"),
            }
        };
        let openai = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]});
        assert_eq!(said(openai, Input::Messages), "user:a assistant:b");
        let sharegpt =
            json!({"system": "s", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]});
        assert_eq!(said(sharegpt, Input::Sharegpt), "system:s user:a assistant:b");
        let alpaca = json!({"instruction": "a", "input": "c", "output": "b"});
        assert_eq!(said(alpaca, Input::Alpaca), "user:a\n\nc assistant:b");
        assert_eq!(said(json!({"prompt": "a", "completion": "b"}), Input::Completion), "a|b");
        assert_eq!(said(json!({"text": "a"}), Input::Text), "|a");
        let written = json!({"messages": "[{\"role\": \"user\", \"content\": \"a\"}]"});
        assert_eq!(said(written, Input::Messages), "user:a");
    }

    /// What can't be a conversation says where and why.
    #[test]
    fn bad_records() {
        let check = |record: Json, expected: &str| {
            let error = row(record).1.expect_err(expected);
            assert_eq!(error.kind(), ErrorKind::BadRecord);
            assert!(error.detail().contains(expected), "{error}");
        };
        check(json!({"messages": []}), "no message");
        check(json!({"messages": [{"content": "a"}]}), "message 0: no \"role\"");
        check(json!({"messages": [{"role": "user", "content": "a"}, 3]}), "message 1: found a number");
        check(json!({"messages": [{"role": "user", "weight": 0.5}]}), "expected 0 or 1");
        check(json!({"conversations": [{"from": "nobody", "value": "a"}]}), "turn 0: \"from\" is \"nobody\"");
        check(json!({"other": 1}), "no \"text\" field");
    }
}
