//! Conversations to tokens, with what of them is trained.
//!
//! ```text
//! rows.rs       a record -> messages                          {"messages": [...]}, ShareGPT, Alpaca, prompt/completion, text
//! template.rs   messages -> text, as transformers renders it  "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nho<|im_end|>\n"
//! spans.rs      which characters are trained, and marks.rs                                                               ho<|im_end|>\n
//! encode.rs     text -> ids, control tokens of the template parsed, those in what people said kept text
//! ```
//!
//! Comes in: `[source.chat]` of the config, records. Goes out: ids, and the ranges that aren't trained. Holds: a row's ids and mask follow from
//! the record, the template, the tokenizer and the pinned clock alone; spans are proved or the row is an error, never a guess. Does not know: files, blocks.

mod clock;
mod encode;
mod marks;
mod python;
mod rows;
mod spans;
mod template;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

pub use clock::Clock;
pub use template::Template;

use crate::block::labels_of;
use crate::error::{Error, ErrorKind, Result};
use crate::packing::Overflow;
use crate::ranges::join;
use crate::shard::Columns;
use crate::tokenizer::{self, Tokenizer, TokenizerOptions};
use encode::Control;
use rows::{Conversation, Row};
pub use spans::Method;

/// The built-in template: ChatML, with tools and calls of them between the tags that Hermes models brought up.
const CHATML: &str = include_str!("chatml.jinja");

/// `[source.chat]` of the config: the source above holds conversations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ChatOptions {
    /// `"auto"`: what lies beside the tokenizer (`chat_template.jinja`, `tokenizer_config.json`); `"chatml"`; or the path of a `.jinja` file or
    /// of a `tokenizer_config.json`.
    pub template: String,
    /// What is trained.
    pub train_on: TrainOn,
    /// How records hold conversations.
    pub input: Input,
    /// Field of the messages.
    pub messages_field: String,
    /// Field of ShareGPT's turns.
    pub conversations_field: String,
    /// Field of the tools.
    pub tools_field: String,
    /// Field of the prompt.
    pub prompt_field: String,
    /// Field of the completion.
    pub completion_field: String,
    /// Field of Alpaca's instruction.
    pub instruction_field: String,
    /// Field of Alpaca's input.
    pub input_field: String,
    /// Field of Alpaca's output.
    pub output_field: String,
    /// Field of plain text.
    pub text_field: String,
    /// A Jinja template over the record's fields that gives its text, in place of all formats: `"{{ title }}\n\n{{ text }}"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_template: Option<String>,
    /// The time that templates see, as `"2026-01-31"`; default: that of the run's first start, which the state keeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub now: Option<String>,
    /// What happens to rows longer than a block; default: `"truncate"`. Only where rows are packed whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overflow: Option<Overflow>,
    /// A row for each assistant turn, which ends with it: for templates that write earlier turns differently.
    pub expand_turns: bool,
    /// More variables of the template.
    #[schemars(with = "BTreeMap<String, Json>")]
    pub template_kwargs: Map<String, Json>,
}

impl Default for ChatOptions {
    fn default() -> Self {
        ChatOptions {
            template: "auto".into(),
            train_on: TrainOn::Assistant,
            input: Input::Auto,
            messages_field: "messages".into(),
            conversations_field: "conversations".into(),
            tools_field: "tools".into(),
            prompt_field: "prompt".into(),
            completion_field: "completion".into(),
            instruction_field: "instruction".into(),
            input_field: "input".into(),
            output_field: "output".into(),
            text_field: "text".into(),
            text_template: None,
            now: None,
            overflow: None,
            expand_turns: false,
            template_kwargs: Map::new(),
        }
    }
}

/// What is trained.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrainOn {
    /// What the assistant says, with the tokens that end its turns.
    #[default]
    Assistant,
    /// The last of it.
    LastAssistant,
    /// The completion: of prompt and completion; else what comes after the last message that isn't the assistant's.
    Completion,
    /// Everything.
    All,
}

/// How records hold conversations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// Told by the fields of each record.
    #[default]
    Auto,
    /// A list of `{role, content}`.
    Messages,
    /// A list of `{from, value}`.
    Sharegpt,
    /// Instruction, input, output.
    Alpaca,
    /// Prompt and completion: strings, or lists of messages.
    Completion,
    /// Text, all of it trained.
    Text,
}

/// What a row gave: for reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowFacts {
    /// How its spans were found; `None` where it needed none.
    pub method: Option<Method>,
    /// How the record held it.
    pub input: Input,
    /// Tokens that reach over a span's edge; they are trained.
    pub straddling: u32,
    /// Literals of control tokens in what people said, kept text.
    pub control_in_content: u32,
    /// How the last trained turn ends; `None` where nothing is trained.
    pub end: Option<TurnEnd>,
    /// Whether the row begins with two BOS.
    pub double_bos: bool,
}

/// How a trained turn ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnEnd {
    /// With a control token that is trained: what a model ends its turn with.
    Control,
    /// With text that is trained: the tokenizer has no token for what the template writes there.
    Text,
    /// A control token follows that isn't trained: a model doesn't learn to end its turn.
    Untrained,
}

/// What turns a source's records into tokens.
pub struct Chat {
    options: ChatOptions,
    template: Template,
    text_template: Option<Template>,
    control: Control,
    bos: Option<u32>,
    /// `bos_token`, `eos_token` and the like, and `template_kwargs`.
    variables: Vec<(String, minijinja::Value)>,
    /// The generation prompt that the template writes whatever it is told; mostly none.
    standing_prompt: String,
    /// The generation prompt behind a user's message.
    usual_prompt: Option<String>,
    said: OnceLock<()>,
}

impl std::fmt::Debug for Chat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chat").field("options", &self.options).finish_non_exhaustive()
    }
}

/// A template's source, with the names that a `tokenizer_config.json` gives to special tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TemplateSource {
    /// The Jinja.
    pub source: String,
    /// `bos_token` and the like.
    pub tokens: BTreeMap<String, String>,
}

impl ChatOptions {
    /// Finds the template: `base` is the folder that relative paths are relative to. What lies beside a tokenizer of the hub is downloaded with it.
    ///
    /// # Errors
    /// `NotFound`, `Read` - it isn't there; `Config` - there is none in the files.
    pub fn find_template(&self, base: &Path, tokenizer: &TokenizerOptions) -> Result<TemplateSource> {
        if self.template == "chatml" || self.text_template.is_some() && self.template == "auto" {
            return Ok(TemplateSource { source: CHATML.into(), tokens: BTreeMap::new() });
        }
        if self.template != "auto" {
            return read_template(&base.join(&self.template));
        }
        if tokenizer::is_builtin(&tokenizer.path) {
            let detail = format!(
                "the built-in tokenizer {:?} has no chat template, expected chat.template: \"chatml\", or a path",
                tokenizer.path
            );
            return Err(Error::new(ErrorKind::Config, detail));
        }
        let tokenizer = match tokenizer.path.starts_with("hf://") {
            true => crate::storage::tokenizer_folder(&tokenizer.storage, &tokenizer.path)?,
            false => PathBuf::from(&tokenizer.path),
        };
        let folder = if tokenizer.is_dir() { &*tokenizer } else { tokenizer.parent().unwrap_or(Path::new("")) };
        let config = folder.join("tokenizer_config.json");
        let jinja = folder.join("chat_template.jinja");
        if jinja.is_file() {
            let mut found = read_template(&jinja)?;
            if config.is_file() {
                found.tokens = tokens_of(&read_json(&config)?);
            }
            return Ok(found);
        }
        if config.is_file() {
            return read_template(&config);
        }
        let detail = format!(
            "no chat template beside the tokenizer: found neither chat_template.jinja nor tokenizer_config.json in {}, expected \
             one of them, or chat.template",
            folder.display()
        );
        Err(Error::new(ErrorKind::Config, detail))
    }

    /// What happens to rows longer than a block, where they are packed whole.
    pub fn overflow(&self) -> Overflow {
        self.overflow.unwrap_or(Overflow::Truncate)
    }

    /// The columns of a Parquet file that records are made of.
    pub fn columns(&self) -> Columns {
        if self.text_template.is_some() {
            return Columns::All;
        }
        let fields = [
            &self.messages_field,
            &self.conversations_field,
            &self.tools_field,
            &self.prompt_field,
            &self.completion_field,
            &self.instruction_field,
            &self.input_field,
            &self.output_field,
            &self.text_field,
        ];
        let named = fields.into_iter().map(String::as_str).chain(["system", "documents"]);
        Columns::Named(named.map(str::to_owned).collect())
    }

    /// Hash of all that decides rows, the template's source included.
    pub fn hash(&self, template: &TemplateSource) -> String {
        let mut hasher = blake3::Hasher::new();
        let options = ChatOptions { template: String::new(), ..self.clone() };
        for part in [&serde_json::to_string(&options).expect("options are JSON"), &template.source] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        for (name, token) in &template.tokens {
            hasher.update(format!("{name}={token}\n").as_bytes());
        }
        hasher.finalize().to_hex()[..32].to_string()
    }
}

fn read_text(path: &PathBuf) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| {
        let kind = if error.kind() == std::io::ErrorKind::NotFound { ErrorKind::NotFound } else { ErrorKind::Read };
        Error::new(kind, format!("can't read the chat template {}", path.display())).because(error)
    })
}

fn read_json(path: &PathBuf) -> Result<Json> {
    serde_json::from_str(&read_text(path)?)
        .map_err(|error| Error::new(ErrorKind::Config, format!("{} isn't JSON", path.display())).because(error))
}

fn read_template(path: &PathBuf) -> Result<TemplateSource> {
    if path.extension().is_none_or(|extension| extension != "json") {
        return Ok(TemplateSource { source: read_text(path)?, tokens: BTreeMap::new() });
    }
    let config = read_json(path)?;
    let source = match &config["chat_template"] {
        Json::String(source) => Some(source.clone()),
        Json::Array(named) => named
            .iter()
            .find(|named| named["name"] == "default")
            .and_then(|named| named["template"].as_str())
            .map(str::to_owned),
        _ => None,
    };
    let detail = || format!("{} has no \"chat_template\", expected one", path.display());
    let source = source.ok_or_else(|| Error::new(ErrorKind::Config, detail()))?;
    Ok(TemplateSource { source, tokens: tokens_of(&config) })
}

/// The special tokens that a `tokenizer_config.json` names.
fn tokens_of(config: &Json) -> BTreeMap<String, String> {
    let names = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
    let mut tokens = BTreeMap::new();
    for name in names {
        let token = config[name].as_str().or_else(|| config[name]["content"].as_str());
        tokens.extend(token.map(|token| (name.to_owned(), token.to_owned())));
    }
    tokens
}

impl Chat {
    /// Compiles what `options` say; `clock` is the run's, unless `now` is set.
    ///
    /// # Errors
    /// `Config` - the template can't be used, or the tokenizer not with chats.
    pub fn new(options: ChatOptions, source: &TemplateSource, tokenizer: &Tokenizer, clock: Clock) -> Result<Chat> {
        let clock = options.now.as_deref().map_or(Ok(clock), Clock::parse)?;
        let template = Template::new(&source.source, clock)?;
        let text_template = options.text_template.as_deref().map(|source| Template::new(source, clock)).transpose()?;
        let literal = |id: Option<u32>| id.and_then(|id| tokenizer.token_bytes(id));
        let mut names = BTreeMap::new();
        for (name, id) in [("bos_token", tokenizer.bos()), ("eos_token", tokenizer.eos())] {
            let literal = literal(id).and_then(|bytes| String::from_utf8(bytes).ok());
            names.extend(literal.map(|literal| (name.to_owned(), literal)));
        }
        names.extend(source.tokens.clone());
        let mut variables: Vec<(String, minijinja::Value)> =
            names.into_iter().map(|(name, token)| (name, token.into())).collect();
        for (name, value) in &options.template_kwargs {
            variables.retain(|(known, _)| known != name);
            variables.push((name.clone(), template::value(value)));
        }
        let control = Control::new(tokenizer)?;
        let mut chat = Chat {
            bos: tokenizer.bos(),
            options,
            template,
            text_template,
            control,
            variables,
            standing_prompt: String::new(),
            usual_prompt: None,
            said: OnceLock::new(),
        };
        chat.standing_prompt = spans::standing_prompt(&chat);
        chat.usual_prompt = spans::usual_prompt(&chat);
        Ok(chat)
    }

    /// The options it was made of.
    pub fn options(&self) -> &ChatOptions {
        &self.options
    }

    /// Tries the template on small conversations, and says what it found, a sentence each.
    pub fn probe(&self, tokenizer: &Tokenizer) -> Vec<String> {
        let mut findings = Vec::new();
        let message = |role: &str, content: &str| serde_json::json!({"role": role, "content": content});
        let record = |messages: Vec<Json>| {
            let mut record = Map::new();
            record.insert(self.options.messages_field.clone(), messages.into());
            record
        };
        let plain =
            vec![message("user", "a1"), message("assistant", "b2"), message("user", "c3"), message("assistant", "d4")];
        let mut with_system = vec![message("system", "s0")];
        with_system.extend(plain.clone());
        if !self.standing_prompt.is_empty() {
            findings.push(format!(
                "it ends every text with a generation prompt, asked for or not, which isn't trained: {:?}",
                self.standing_prompt
            ));
        }
        findings.push(match self.template.has_generation() {
            true => "the template marks what the assistant says ({% generation %})".into(),
            false => {
                "the template has no {% generation %}: spans come from headers between marks, literal prefixes, or marks around what is said".into()
            }
        });
        let mut ids: Vec<Vec<u32>> = Vec::new();
        let as_messages = |messages| self.encode_as(tokenizer, &record(messages), Input::Messages);
        match as_messages(plain) {
            Err(error) => findings.push(format!("a plain conversation of four turns fails: {}", error.detail())),
            Ok(rows) => {
                let facts = rows.last().map(|row| row.facts).unwrap_or_default();
                ids = rows.into_iter().map(|row| row.ids).collect();
                if let Some(method) = facts.method {
                    findings.push(format!("spans by {}", method.name()));
                }
                findings.push(match facts.end {
                    Some(TurnEnd::Control) => "the token that ends the assistant's turn is trained".into(),
                    Some(TurnEnd::Text) => {
                        "the assistant's turn ends with text: the tokenizer has no token for what ends it".into()
                    }
                    Some(TurnEnd::Untrained) => "the token that ends the assistant's turn is NOT trained".into(),
                    None => "nothing is trained".into(),
                });
                if facts.double_bos {
                    findings.push("rows begin with two BOS".into());
                }
            }
        }
        findings.push(match as_messages(with_system) {
            Ok(rows) if rows.iter().map(|row| &row.ids).ne(&ids) => "it takes a system message".into(),
            Ok(_) => "it leaves a system message out".into(),
            Err(error) => format!("it refuses a system message: {}", error.detail()),
        });
        findings
    }

    /// A record's rows: one, or with `expand_turns` one for each assistant turn that is trained.
    ///
    /// # Errors
    /// `BadRecord` - the record is no conversation, the template refuses it, or its spans can't be proved.
    pub fn encode(&self, tokenizer: &Tokenizer, record: &Map<String, Json>) -> Result<Vec<EncodedRow>> {
        let input = match self.options.input {
            Input::Auto if self.text_template.is_some() => Input::Text,
            Input::Auto => rows::detect(record, &self.options).ok_or_else(|| {
                let fields: Vec<&String> = record.keys().take(12).collect();
                let detail = format!(
                    "found the fields {fields:?}, expected messages, conversations, prompt and completion, \
                     instruction and output, or text; set chat.messages_field or its like"
                );
                Error::new(ErrorKind::BadRecord, detail)
            })?,
            input => input,
        };
        self.said.get_or_init(|| tracing::info!(?input, "the first record's format"));
        self.encode_as(tokenizer, record, input)
    }

    fn encode_as(&self, tokenizer: &Tokenizer, record: &Map<String, Json>, input: Input) -> Result<Vec<EncodedRow>> {
        let mut rows = if let Some(template) = &self.text_template {
            let text = template.render(&template::value(&Json::Object(record.clone())))?;
            vec![self.encode_text(tokenizer, "", &text)?]
        } else {
            match rows::read(record, input, &self.options)? {
                Row::Text { prompt, text } => vec![self.encode_text(tokenizer, &prompt, &text)?],
                Row::Conversation(conversation) if self.options.expand_turns => {
                    let turns = spans::turns(&conversation, self.options.train_on);
                    let turns = turns.iter().map(|turn| self.encode_conversation(tokenizer, turn));
                    turns.collect::<Result<Vec<_>>>()?
                }
                Row::Conversation(conversation) => vec![self.encode_conversation(tokenizer, &conversation)?],
            }
        };
        rows.iter_mut().for_each(|row| row.facts.input = input);
        Ok(rows)
    }

    /// Text as documents have it, BOS and EOS as configured; the prompt isn't trained.
    fn encode_text(&self, tokenizer: &Tokenizer, prompt: &str, text: &str) -> Result<EncodedRow> {
        let mut row = EncodedRow::default();
        let whole = format!("{prompt}{text}");
        let edge = if self.options.train_on == TrainOn::All { 0 } else { prompt.len() };
        let encoded = self.control.encode_ordinary(tokenizer, &whole, &[edge])?;
        let eos = tokenizer.appended_eos();
        row.ids.extend(tokenizer.prepended_bos());
        let first = row.ids.len() as u32;
        row.text_bytes = whole.len() as u32;
        row.ids.extend(encoded.iter().map(|token| token.0));
        let mut at = first;
        if !prompt.is_empty() && self.options.train_on != TrainOn::All {
            // A token that reaches into the text is trained.
            at = first + encoded.iter().take_while(|token| token.1 as usize <= prompt.len()).count() as u32;
        }
        if at > 0 && (!prompt.is_empty() || first > 0) && self.options.train_on != TrainOn::All {
            row.untrained.push(0..at);
        }
        row.ids.extend(eos);
        row.facts.end = Some(if eos.is_some() { TurnEnd::Control } else { TurnEnd::Text });
        Ok(row)
    }

    fn encode_conversation(&self, tokenizer: &Tokenizer, conversation: &Conversation) -> Result<EncodedRow> {
        if let Some(found) = conversation.messages.iter().find_map(find_mark) {
            let detail = format!("found the noncharacter U+{:04X}, expected text without it", found as u32);
            return Err(Error::new(ErrorKind::BadRecord, detail));
        }
        let guarded = self.control.guard(conversation);
        let guarded_or_not = guarded.as_ref().map_or(conversation, |(guarded, _)| guarded);
        let rendered = spans::find(self, guarded_or_not)?;
        let text = spans::without_breaks(&rendered.text);
        if guarded.is_some() && text.text != self.render_plain(conversation, false)? {
            let detail = "the literal of a control token is in what is said, and the template changes it; expected that it is left as it is";
            return Err(Error::new(ErrorKind::BadRecord, detail));
        }
        let spans: Vec<Range<usize>> =
            rendered.spans.iter().map(|span| text.map(span.start)..text.map(span.end)).collect();
        let edges: Vec<usize> = spans.iter().flat_map(|span| [span.start, span.end]).collect();
        let encoded = self.control.encode(tokenizer, &text.text, &text.breaks, &edges)?;
        let mut row = EncodedRow { text_bytes: text.text.len() as u32, ..EncodedRow::default() };
        let facts = &mut row.facts;
        facts.method = rendered.method;
        facts.control_in_content = guarded.map_or(0, |(_, count)| count);
        let mut span = spans.iter().peekable();
        let (mut start, mut in_turn) = (0u32, false);
        for &(id, end) in &encoded {
            while span.next_if(|span| span.end <= start as usize).is_some() {}
            let trained = span.peek().is_some_and(|span| span.start < end as usize);
            let blank = text.text.as_bytes()[start as usize..end as usize].iter().all(u8::is_ascii_whitespace);
            // A turn's last token decides, white space behind it aside.
            if trained {
                if !blank || facts.end.is_none() {
                    let control = self.control.is_control(id);
                    facts.end = Some(if control { TurnEnd::Control } else { TurnEnd::Text });
                }
                in_turn = true;
                let span = span.peek().expect("it was there");
                if (start as usize) < span.start || end as usize > span.end {
                    facts.straddling += 1;
                }
            } else {
                if in_turn && !blank {
                    in_turn = false;
                    if facts.end == Some(TurnEnd::Text) && self.control.is_control(id) {
                        facts.end = Some(TurnEnd::Untrained);
                    }
                }
                let at = row.ids.len() as u32;
                join(&mut row.untrained, at..at + 1);
            }
            row.ids.push(id);
            start = end;
        }
        facts.double_bos =
            self.bos.is_some() && row.ids.len() > 1 && row.ids[..2].iter().all(|id| Some(*id) == self.bos);
        if facts.double_bos {
            // The template and something in the record both give one: models are trained with one.
            row.ids.remove(0);
            for range in &mut row.untrained {
                *range = range.start.saturating_sub(1)..range.end.saturating_sub(1);
            }
            row.untrained.retain(|range| !range.is_empty());
        }
        Ok(row)
    }

    /// Where the last message ends in the whole text.
    fn end(&self, whole: &str) -> usize {
        whole.strip_suffix(&*self.standing_prompt).map_or(whole.len(), str::len)
    }

    /// The text of a conversation.
    fn render_plain(&self, conversation: &Conversation, prompt: bool) -> Result<String> {
        let text = self.render(conversation, conversation.messages.len(), prompt)?;
        Ok(text.replace([template::OPEN, template::CLOSE], ""))
    }

    /// Renders the first `count` messages.
    fn render(&self, conversation: &Conversation, count: usize, prompt: bool) -> Result<String> {
        let messages = &conversation.messages[..count];
        let messages: minijinja::Value = messages.iter().map(template::value).collect();
        self.render_messages(conversation, messages, prompt)
    }

    fn render_messages(&self, conversation: &Conversation, messages: minijinja::Value, prompt: bool) -> Result<String> {
        let part = |part: &Option<Json>| part.as_ref().map_or(minijinja::Value::from(()), template::value);
        let mut variables = vec![
            ("messages".to_owned(), messages),
            ("tools".to_owned(), part(&conversation.tools)),
            ("documents".to_owned(), part(&conversation.documents)),
            ("add_generation_prompt".to_owned(), prompt.into()),
        ];
        variables.extend(self.variables.iter().cloned());
        self.template.render(&minijinja::Value::from_pairs(variables))
    }

    /// The text of a record, as the template gives it: for checks against other renderers.
    ///
    /// # Errors
    /// As [`Chat::encode`].
    pub fn render_record(&self, record: &Map<String, Json>, prompt: bool) -> Result<String> {
        match rows::read(record, rows::detect(record, &self.options).unwrap_or_default(), &self.options)? {
            Row::Text { prompt, text } => Ok(prompt + &text),
            Row::Conversation(conversation) => self.render_plain(&conversation, prompt),
        }
    }
}

fn find_mark(value: &Json) -> Option<char> {
    match value {
        Json::String(text) => text.chars().find(|c| ('\u{fdd0}'..='\u{fdd2}').contains(c)),
        Json::Array(items) => items.iter().find_map(find_mark),
        Json::Object(fields) => fields.values().find_map(find_mark),
        _ => None,
    }
}

/// A row's tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EncodedRow {
    /// Ids, BOS and EOS included.
    pub ids: Vec<u32>,
    /// Ranges of them that aren't trained: rising, none touching the next.
    pub untrained: Vec<Range<u32>>,
    /// Size of its text, in bytes.
    pub text_bytes: u32,
    /// What is to be said about it.
    pub facts: RowFacts,
}

impl EncodedRow {
    /// Its labels: its ids, -100 where nothing is trained.
    pub fn labels(&self) -> Vec<i64> {
        labels_of(&self.ids, &self.untrained)
    }

    /// Tokens that are trained.
    pub fn trained(&self) -> usize {
        self.ids.len() - self.untrained.iter().map(|range| range.len()).sum::<usize>()
    }
}
