//! The canonical definition of a tokenizer: the JSON that both engines load, and the roles its files state.
//!
//! Comes in: the JSON value of a `tokenizer.json`, read or made. Goes out: the value both engines understand, its digest.
//! Holds: `model.type` is there; `truncation` and `padding` are not; ids are below [`ID_LIMIT`].
//! Does not know: which engine loads it.
//!
//! Older files have no `model.type`. Hugging Face takes the first of BPE, WordPiece, WordLevel and Unigram whose fields
//! fit; [`model_type`] does the same by the fields that tell them apart.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::error::{Error, ErrorKind, Result};

/// Ids are below this: engines allocate tables as long as the largest id, which a malformed file must not choose.
pub(super) const ID_LIMIT: u64 = 1 << 24;

/// Literal texts of the tokens with a role, where a file states them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Roles {
    pub eos: Option<String>,
    pub bos: Option<String>,
    pub pad: Option<String>,
}

impl Roles {
    /// Fills what is unknown here from `other`.
    pub(super) fn or(self, other: Roles) -> Roles {
        Roles { eos: self.eos.or(other.eos), bos: self.bos.or(other.bos), pad: self.pad.or(other.pad) }
    }
}

/// What a tokenizer is: its JSON and its roles.
#[derive(Clone)]
pub(super) struct Definition {
    pub json: Value,
    pub roles: Roles,
}

/// An added token, as far as this crate looks at it.
pub(super) struct AddedToken<'a> {
    pub id: u32,
    pub content: &'a str,
    pub special: bool,
}

fn malformed(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::Tokenizer, detail)
}

/// Reads the JSON of a `tokenizer.json`, merges as `"a b"` where neither part holds a space, however they are written.
///
/// Why not a plain `Value`: Gemma 3 has 514 906 merges, each a list of two strings, which take 200 MB as such.
pub(super) fn parse(bytes: &[u8]) -> serde_json::Result<Value> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Part::Root.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// A merge as the definition keeps it.
pub(super) fn merge(left: &str, right: &str) -> Value {
    if left.contains(' ') || right.contains(' ') {
        Value::Array(vec![left.into(), right.into()])
    } else {
        Value::String(format!("{left} {right}"))
    }
}

/// The two parts of a merge.
pub(super) fn merge_parts(merge: &Value) -> Option<(&str, &str)> {
    match merge {
        Value::String(text) => text.split_once(' ').filter(|(_, right)| !right.contains(' ')),
        Value::Array(parts) if parts.len() == 2 => parts[0].as_str().zip(parts[1].as_str()),
        _ => None,
    }
}

/// Where in the file the reader is: on the way to the merges, or at them.
#[derive(Clone, Copy)]
enum Part {
    Root,
    Model,
    Merges,
    Merge,
    Other,
}

impl<'de> DeserializeSeed<'de> for Part {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self {
            Part::Other => serde::Deserialize::deserialize(deserializer),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Part {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Root | Part::Model => "an object",
            Part::Merges => "a list of merges",
            Part::Merge | Part::Other => "a merge: \"a b\" or [\"a\", \"b\"]",
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        if !matches!(self, Part::Root | Part::Model) {
            return Err(A::Error::custom("found an object in the merges, expected \"a b\" or [\"a\", \"b\"]"));
        }
        let mut object = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            let part = match (self, key.as_str()) {
                (Part::Root, "model") => Part::Model,
                (Part::Model, "merges") => Part::Merges,
                _ => Part::Other,
            };
            let value = fields.next_value_seed(part)?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        match self {
            Part::Merges => {
                let mut merges = Vec::new();
                while let Some(merge) = items.next_element_seed(Part::Merge)? {
                    merges.push(merge);
                }
                Ok(Value::Array(merges))
            }
            Part::Merge => {
                let (left, right) = (items.next_element::<String>()?, items.next_element::<String>()?);
                match (left, right, items.next_element::<serde::de::IgnoredAny>()?) {
                    (Some(left), Some(right), None) => Ok(merge(&left, &right)),
                    _ => Err(A::Error::custom("found a merge that isn't of two parts")),
                }
            }
            _ => Err(A::Error::custom("found a list, expected an object")),
        }
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        match self {
            Part::Merge => Ok(Value::String(text.to_string())),
            _ => Err(E::custom(format!(
                "found the string {text:?}, expected {}",
                if matches!(self, Part::Merges) { "a list" } else { "an object" }
            ))),
        }
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

impl Definition {
    /// Makes the canonical definition of `json`.
    ///
    /// # Errors
    /// * `Tokenizer` - it isn't an object with a model, or an id is out of bounds.
    pub(super) fn new(mut json: Value, roles: Roles) -> Result<Definition> {
        let Some(root) = json.as_object_mut() else {
            return Err(malformed(format!("expected a JSON object, found {}", kind_of(&json))));
        };
        for key in ["truncation", "padding"] {
            if root.remove(key).is_some_and(|value| !value.is_null()) {
                tracing::info!(
                    key,
                    "the tokenizer file's setting is ignored: documents are neither cropped nor padded"
                );
            }
        }
        let Some(model) = root.get_mut("model").and_then(Value::as_object_mut) else {
            return Err(malformed("expected a \"model\" object in the tokenizer, found none"));
        };
        if model.get("type").is_none_or(Value::is_null) {
            let inferred = model_type(model)?;
            model.insert("type".into(), inferred.into());
        }
        let definition = Definition { json, roles };
        definition.check_ids()?;
        let stated = definition.template_roles();
        Ok(Definition { roles: definition.roles.or(stated), json: definition.json })
    }

    fn check_ids(&self) -> Result<()> {
        let check = |token: &str, id: &Value| match id.as_u64() {
            Some(id) if id < ID_LIMIT => Ok(()),
            _ => Err(malformed(format!("token {token:?} has the id {id}; expected a number below {ID_LIMIT}"))),
        };
        match &self.json["model"]["vocab"] {
            Value::Object(vocab) => vocab.iter().try_for_each(|(token, id)| check(token, id))?,
            Value::Array(pieces) if (pieces.len() as u64) < ID_LIMIT => {}
            other => {
                return Err(malformed(format!(
                    "expected model.vocab to be an object or a list, found {}",
                    kind_of(other)
                )));
            }
        }
        match &self.json["added_tokens"] {
            Value::Null => Ok(()),
            Value::Array(tokens) => {
                for token in tokens {
                    match token["content"].as_str() {
                        Some(content) => check(content, &token["id"])?,
                        None => return Err(malformed(format!("added token {token} has no \"content\" string"))),
                    }
                }
                Ok(())
            }
            other => Err(malformed(format!("expected added_tokens to be a list, found {}", kind_of(other)))),
        }
    }

    /// The added tokens in the order of the file.
    pub(super) fn added_tokens(&self) -> impl Iterator<Item = AddedToken<'_>> {
        self.json["added_tokens"].as_array().into_iter().flatten().map(|token| AddedToken {
            id: token["id"].as_u64().expect("ids were checked") as u32,
            content: token["content"].as_str().expect("contents were checked"),
            special: token["special"].as_bool().unwrap_or(false),
        })
    }

    /// Calls `visit` with each token of the model and its id.
    pub(super) fn for_each_token<'a>(&'a self, mut visit: impl FnMut(&'a str, u32)) {
        match &self.json["model"]["vocab"] {
            Value::Object(vocab) => {
                vocab.iter().for_each(|(token, id)| visit(token, id.as_u64().expect("ids were checked") as u32));
            }
            Value::Array(pieces) => pieces.iter().enumerate().for_each(|(id, piece)| {
                if let Some(token) = piece[0].as_str() {
                    visit(token, id as u32);
                }
            }),
            _ => {}
        }
    }

    /// Whether a step of `type` stands anywhere in the part `key` (`"decoder"`, `"pre_tokenizer"`, ...).
    pub(super) fn has_step(&self, key: &str, kind: &str) -> bool {
        fn find(value: &Value, kind: &str) -> bool {
            match value {
                Value::Object(fields) => {
                    fields.get("type").and_then(Value::as_str) == Some(kind) || fields.values().any(|v| find(v, kind))
                }
                Value::Array(steps) => steps.iter().any(|v| find(v, kind)),
                _ => false,
            }
        }
        find(&self.json[key], kind)
    }

    /// The ids below the largest id of the model that no token of the model has.
    pub(super) fn unused_ids(&self) -> Vec<u32> {
        let mut used = BTreeSet::new();
        self.for_each_token(|_, id| {
            used.insert(id);
        });
        let mut unused = Vec::new();
        let mut next = 0;
        for id in used {
            unused.extend(next..id);
            next = id + 1;
        }
        unused
    }

    /// What the post-processor puts before and after a sequence.
    fn template_roles(&self) -> Roles {
        fn template(processor: &Value) -> Option<&Value> {
            match processor["type"].as_str()? {
                "TemplateProcessing" => Some(processor),
                "Sequence" => processor["processors"].as_array()?.iter().find_map(template),
                _ => None,
            }
        }
        let mut roles = Roles::default();
        let Some(template) = template(&self.json["post_processor"]) else { return roles };
        let Some(single) = template["single"].as_array() else { return roles };
        let sequence = single.iter().position(|piece| !piece["Sequence"].is_null()).unwrap_or(single.len());
        let token = |piece: &Value| {
            let name = piece["SpecialToken"]["id"].as_str()?;
            // The template's name for the token may differ from its literal text.
            Some(template["special_tokens"][name]["tokens"][0].as_str().unwrap_or(name).to_string())
        };
        roles.bos = single[..sequence].first().and_then(token);
        roles.eos = single.get(sequence + 1..).and_then(<[Value]>::last).and_then(token);
        // BERT's [CLS] and [SEP] stand around a sequence as well: that they begin and end it is what is asked here.
        roles
    }

    /// BLAKE3 of what decides ids. Key order, nulls and the two ways to write merges make no difference.
    pub(super) fn digest(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for key in ["added_tokens", "normalizer", "pre_tokenizer", "model"] {
            feed(&mut hasher, key.as_bytes());
            if key == "model" {
                let model = self.json[key].as_object().expect("new checks it");
                digest_object(&mut hasher, model, true);
            } else {
                digest_value(&mut hasher, &self.json[key]);
            }
        }
        hasher.finalize()
    }
}

/// Feeds bytes with their count before them, so that no two sequences of calls feed the same.
fn feed(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

fn digest_object(hasher: &mut blake3::Hasher, fields: &Map<String, Value>, is_model: bool) {
    let mut fields: Vec<_> = fields.iter().filter(|(_, value)| !value.is_null()).collect();
    fields.sort_unstable_by_key(|(key, _)| key.as_str());
    hasher.update(b"{");
    feed(hasher, &(fields.len() as u64).to_le_bytes());
    for (key, value) in fields {
        feed(hasher, key.as_bytes());
        match value {
            Value::Array(merges) if is_model && key == "merges" => {
                feed(hasher, &(merges.len() as u64).to_le_bytes());
                for merge in merges {
                    match merge_parts(merge) {
                        Some((left, right)) => {
                            feed(hasher, left.as_bytes());
                            feed(hasher, right.as_bytes());
                        }
                        None => digest_value(hasher, merge),
                    }
                }
            }
            _ => digest_value(hasher, value),
        }
    }
}

fn digest_value(hasher: &mut blake3::Hasher, value: &Value) {
    match value {
        Value::Null => {
            hasher.update(b"n");
        }
        Value::Bool(value) => {
            hasher.update(if *value { b"t" } else { b"f" });
        }
        Value::Number(number) => {
            hasher.update(b"#");
            feed(hasher, number.to_string().as_bytes());
        }
        Value::String(text) => {
            hasher.update(b"s");
            feed(hasher, text.as_bytes());
        }
        Value::Array(items) => {
            hasher.update(b"[");
            hasher.update(&(items.len() as u64).to_le_bytes());
            items.iter().for_each(|item| digest_value(hasher, item));
        }
        Value::Object(fields) => digest_object(hasher, fields, false),
    }
}

fn model_type(model: &Map<String, Value>) -> Result<&'static str> {
    let has = |key: &str| model.get(key).is_some_and(|value| !value.is_null());
    match () {
        () if has("merges") => Ok("BPE"),
        () if model.get("vocab").is_some_and(Value::is_array) => Ok("Unigram"),
        () if has("continuing_subword_prefix") || has("max_input_chars_per_word") => Ok("WordPiece"),
        () if has("unk_token") && has("vocab") => Ok("WordLevel"),
        () => Err(malformed("the model has no \"type\", and its fields are those of no known model")),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a bool",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(json: &str) -> blake3::Hash {
        Definition::new(parse(json.as_bytes()).unwrap(), Roles::default()).unwrap().digest()
    }

    /// What changes no id changes no digest; what does, does.
    #[test]
    fn digest_is_of_what_decides_ids() {
        let plain = digest(r#"{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}}"#);
        let same = [
            r#"{"model":{"vocab":{"b":1,"ab":2,"a":0},"merges":["a b"]}}"#,
            r#"{"model":{"type":"BPE","dropout":null,"vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]},"decoder":{"type":"Fuse"}}"#,
            r#"{"truncation":{"max_length":3},"padding":null,"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}}"#,
        ];
        for json in same {
            assert_eq!(digest(json), plain, "{json}");
        }
        let other = [
            r#"{"model":{"type":"BPE","vocab":{"a":1,"b":0,"ab":2},"merges":["a b"]}}"#,
            r#"{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":[]}}"#,
            r#"{"normalizer":{"type":"NFC"},"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}}"#,
        ];
        for json in other {
            assert_ne!(digest(json), plain, "{json}");
        }
    }

    #[test]
    fn malformed_definitions_are_errors() {
        let cases = [
            "[]",
            "{}",
            r#"{"model":3}"#,
            r#"{"model":{}}"#,
            r#"{"model":{"type":"BPE","vocab":{"a":99999999999},"merges":[]}}"#,
            r#"{"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}}"#,
            r#"{"model":{"type":"BPE","vocab":{"a":0},"merges":[["a","b","c"]]}}"#,
            r#"{"model":{"type":"BPE","vocab":{"a":0},"merges":[{}]}}"#,
            r#"{"added_tokens":[{"id":0}],"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}"#,
            r#"{"added_tokens":7,"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}"#,
        ];
        for json in cases {
            let made = parse(json.as_bytes()).map_err(|_| ErrorKind::Tokenizer);
            let made = made.and_then(|json| Definition::new(json, Roles::default()).map_err(|error| error.kind()));
            assert_eq!(made.err(), Some(ErrorKind::Tokenizer), "{json}");
        }
    }
}
