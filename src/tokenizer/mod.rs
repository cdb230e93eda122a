//! Text to token ids: one definition, two engines, the ids of Hugging Face `tokenizers`.
//!
//! ```text
//! gpt2, cl100k_base ...   builtin.rs  --\
//! *.tiktoken             tiktoken.rs  ---\
//! SentencePiece *.model  sentencepiece.rs -> Definition  -> engine.rs: fastokens, or tokenizers
//! tekken.json            tekken.rs    ---/   (one JSON)     vocabulary.rs: id -> bytes
//! tokenizer.json, folder files.rs     --/                   its hash: the fingerprint of a run
//! ```
//! Comes in: [`TokenizerOptions`]. Goes out: a [`Tokenizer`], which appends ids to the caller's buffer.
//! Holds: the ids are those of Hugging Face `tokenizers` 0.23 for the definition, whichever engine runs; encoding a document
//! depends on nothing but the document; a file is never cropped or padded by what it says about truncation.
//! Does not know: documents, blocks, threads.
//!
//! Everything that can be loaded is first turned into what a `tokenizer.json` would say. Why not an encoder for each format:
//! two engines that read the same definition can be held against each other, and the fingerprint has one form.

mod builtin;
mod definition;
mod engine;
mod files;
mod parts;
mod place;
mod probe;
mod sentencepiece;
mod tekken;
mod tiktoken;
mod vocabulary;

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use definition::{Definition, Roles};
use engine::Loading;
use parts::Inside;
pub use place::Group;
use vocabulary::Vocabulary;

/// Which tokenizer, and how documents become ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TokenizerOptions {
    /// A built-in (`gpt2`, `cl100k_base`, `o200k_base`, `bytes`), or the path of a `tokenizer.json`, `*.tiktoken`,
    /// SentencePiece `*.model` or `tekken.json`, or of a folder that holds one; or `hf://owner/model@revision`, which is taken
    /// from the hub, or from where Hugging Face's libraries keep what they took from it.
    pub path: String,
    /// Which engine encodes. The ids are the same with each.
    pub engine: EngineChoice,
    /// Whether the end-of-sequence token follows each document.
    pub append_eos: bool,
    /// Whether the beginning-of-sequence token precedes each document.
    pub prepend_bos: bool,
    /// How the literals of special tokens in documents are read.
    pub special_tokens: SpecialTokens,
    /// Literal text of the end-of-sequence token; default: what the tokenizer's files say.
    pub eos_token: Option<String>,
    /// Literal text of the beginning-of-sequence token; default: what the tokenizer's files say.
    pub bos_token: Option<String>,
    /// Literal text of the padding token; default: what the tokenizer's files say, else the end-of-sequence token.
    pub pad_token: Option<String>,
    /// The regular expression that splits text for a `*.tiktoken` file that isn't a known one.
    pub pattern: Option<String>,
    /// How to reach the hub. Not written here in the file.
    #[serde(skip)]
    #[schemars(skip)]
    pub storage: crate::storage::StorageOptions,
}

impl Default for TokenizerOptions {
    fn default() -> Self {
        TokenizerOptions {
            path: "gpt2".into(),
            engine: EngineChoice::Auto,
            append_eos: true,
            prepend_bos: false,
            special_tokens: SpecialTokens::Text,
            eos_token: None,
            bos_token: None,
            pad_token: None,
            pattern: None,
            storage: Default::default(),
        }
    }
}

/// Which engine encodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EngineChoice {
    /// `fastokens` where it loads the definition and its ids equal the reference's on the probe, else `tokenizers`.
    #[default]
    Auto,
    /// The fast engine, or an error.
    Fastokens,
    /// The reference.
    Tokenizers,
}

/// How the literals of special tokens in documents are read, as `<|endoftext|>` in a page about tokenizers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SpecialTokens {
    /// As any other text: a document can't forge a boundary.
    #[default]
    Text,
    /// As the token: for documents that were written with them, such as rendered chats.
    Parse,
}

/// Whether `path` is the name of a tokenizer that needs no file.
pub fn is_builtin(path: &str) -> bool {
    matches!(path, "bytes" | "gpt2" | "cl100k_base" | "o200k_base")
}

/// What turns text into ids.
pub trait Encoder: Send + Sync {
    /// Appends the ids of `text` to `ids`: no BOS, no EOS. Never depends on what was encoded before.
    ///
    /// # Errors
    /// * `Tokenizer` - the engine refused the text; `ids` is then as it was.
    fn encode_into(&self, text: &str, ids: &mut Vec<u32>) -> Result<()>;

    /// The engine's name: `"fastokens"`, `"tokenizers"` or `"bytes"`.
    fn engine(&self) -> &'static str;
    /// The ids of `text`, each with the range of bytes that the reference says it comes from.
    ///
    /// # Errors
    /// As [`Encoder::encode_into`].
    fn ranges(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>>;
    /// `text` as it is before it is cut into tokens.
    ///
    /// # Errors
    /// As [`Encoder::encode_into`].
    fn normalized(&self, text: &str) -> Result<String>;
}

/// A loaded tokenizer. It is shared between threads by reference.
pub struct Tokenizer {
    name: String,
    encoder: Box<dyn Encoder>,
    reason: String,
    vocabulary: Vocabulary,
    hash: String,
    eos: Option<u32>,
    bos: Option<u32>,
    pad: Option<u32>,
    append_eos: bool,
    prepend_bos: bool,
    control: Vec<ControlToken>,
    unknown: Option<u32>,
    /// What encodes a part of a text that isn't its first, where that differs.
    inside: Option<Inside>,
}

/// A special token as a template writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlToken {
    /// Its text.
    pub literal: String,
    /// Its id.
    pub id: u32,
    /// Whether it takes in the whitespace before it.
    pub lstrip: bool,
    /// Whether it takes in the whitespace behind it.
    pub rstrip: bool,
}

/// The special tokens of a definition.
fn control_tokens(definition: &Definition) -> Vec<ControlToken> {
    let tokens = definition.json["added_tokens"].as_array().into_iter().flatten();
    let special = tokens.filter(|token| token["special"] == true);
    special
        .filter_map(|token| {
            Some(ControlToken {
                literal: token["content"].as_str()?.to_owned(),
                id: u32::try_from(token["id"].as_u64()?).ok()?,
                lstrip: token["lstrip"] == true,
                rstrip: token["rstrip"] == true,
            })
        })
        .collect()
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("name", &self.name)
            .field("engine", &self.engine())
            .field("vocab_size", &self.vocab_size())
            .field("hash", &self.hash)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Loads what `options` names; a relative path is relative to the current folder.
    ///
    /// Cost: about a second of up to two threads and, for as long as it takes, some 300 MB for a vocabulary of 128 000 tokens.
    ///
    /// # Errors
    /// * `NotFound` - the path matches nothing, or a folder holds no tokenizer.
    /// * `Tokenizer` - the file is malformed, or `engine = "fastokens"` can't give the reference's ids for it.
    /// * `Config` - an EOS or BOS is wanted and none is known, a named token isn't in the vocabulary, a `*.tiktoken` file
    ///   needs a `pattern`.
    pub fn load(options: &TokenizerOptions) -> Result<Tokenizer> {
        if options.path == "bytes" {
            return Self::bytes(options);
        }
        let mut definition = match builtin::definition(&options.path)? {
            Some(definition) => definition,
            None if options.path.starts_with("hf://") => {
                let folder = crate::storage::tokenizer_folder(&options.storage, &options.path)?;
                files::definition(&folder.to_string_lossy(), options.pattern.as_deref())?
            }
            None => files::definition(&options.path, options.pattern.as_deref())?,
        };
        let choice = options.engine;
        std::thread::scope(|scope| {
            let loading = Loading::begin(scope, choice, options.special_tokens, &definition);
            let reference = engine::Reference::load(&mut definition, options.special_tokens)
                .map_err(|error| named(error, &options.path))?;
            let vocabulary = Vocabulary::new(&definition)?;
            let roles = roles(options, &definition, &vocabulary)?;
            let hash = hash(options, definition.digest(), roles);
            let (control, unknown) = (control_tokens(&definition), parts::unknown(&definition, &vocabulary));
            let inside = Inside::of(&definition, options)?;
            let (encoder, reason) =
                engine::choose(choice, loading, reference, definition).map_err(|error| named(error, &options.path))?;
            tracing::info!(tokenizer = options.path, engine = encoder.engine(), reason, "tokenizer loaded");
            Ok(Tokenizer {
                name: options.path.clone(),
                encoder,
                reason,
                vocabulary,
                hash,
                eos: roles.eos,
                bos: roles.bos,
                pad: roles.pad,
                append_eos: options.append_eos,
                prepend_bos: options.prepend_bos,
                control,
                unknown,
                inside,
            })
        })
    }

    fn bytes(options: &TokenizerOptions) -> Result<Tokenizer> {
        if options.engine != EngineChoice::Auto {
            let detail =
                "engine is set, but the built-in \"bytes\" has an engine of its own; expected engine = \"auto\"";
            return Err(Error::new(ErrorKind::Config, detail));
        }
        let vocabulary = Vocabulary::of_bytes();
        let own = Roles { eos: Some("<eos>".into()), bos: Some("<bos>".into()), pad: Some("<pad>".into()) };
        let roles = RoleIds {
            eos: named_token(options.eos_token.as_ref().or(own.eos.as_ref()), "eos_token", &vocabulary)?,
            bos: named_token(options.bos_token.as_ref().or(own.bos.as_ref()), "bos_token", &vocabulary)?,
            pad: named_token(options.pad_token.as_ref().or(own.pad.as_ref()), "pad_token", &vocabulary)?,
        };
        // The literals of the three are always text here, so both modes are one.
        let as_text = TokenizerOptions { special_tokens: SpecialTokens::Text, ..options.clone() };
        Ok(Tokenizer {
            name: options.path.clone(),
            encoder: Box::new(engine::Bytes),
            reason: "bytes: the built-in has an engine of its own".into(),
            vocabulary,
            hash: hash(&as_text, blake3::hash(b"tokenmill bytes"), roles),
            eos: roles.eos,
            bos: roles.bos,
            pad: roles.pad,
            append_eos: options.append_eos,
            prepend_bos: options.prepend_bos,
            control: [("<eos>", 256), ("<bos>", 257), ("<pad>", 258)]
                .map(|(literal, id)| ControlToken { literal: literal.into(), id, lstrip: false, rstrip: false })
                .into(),
            unknown: None,
            inside: None,
        })
    }

    /// Appends the ids of `text` alone.
    ///
    /// # Errors
    /// * `Tokenizer` - the engine refused the text; `ids` is then as it was.
    pub fn encode_into(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        self.encoder.encode_into(text, ids)
    }

    /// Appends BOS (if `prepend_bos`), the ids of `text`, EOS (if `append_eos`).
    ///
    /// # Errors
    /// * `Tokenizer` - the engine refused the text; `ids` is then as it was.
    pub fn encode_document(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        let before = ids.len();
        if self.prepend_bos {
            ids.push(self.bos.expect("load refuses prepend_bos without a BOS"));
        }
        if let Err(error) = self.encode_into(text, ids) {
            ids.truncate(before);
            return Err(error);
        }
        if self.append_eos {
            ids.push(self.eos.expect("load refuses append_eos without an EOS"));
        }
        Ok(())
    }

    /// The special tokens as templates write them.
    pub fn control_tokens(&self) -> &[ControlToken] {
        &self.control
    }

    /// The EOS that follows each document, if one does.
    pub fn appended_eos(&self) -> Option<u32> {
        self.eos.filter(|_| self.append_eos)
    }

    /// The BOS that precedes each document, if one does.
    pub fn prepended_bos(&self) -> Option<u32> {
        self.bos.filter(|_| self.prepend_bos)
    }

    /// The bytes one token stands for; none for an id without a token.
    pub fn token(&self, id: u32) -> &[u8] {
        self.vocabulary.bytes(id).unwrap_or_default()
    }

    /// The engine that encodes: `"fastokens"`, `"tokenizers"` or `"bytes"`.
    pub fn engine(&self) -> &'static str {
        self.encoder.engine()
    }

    /// Why this engine, in one sentence.
    pub fn engine_reason(&self) -> &str {
        &self.reason
    }

    /// The end-of-sequence token.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The beginning-of-sequence token.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The padding token; without one EOS, and without that 0.
    pub fn pad(&self) -> u32 {
        self.pad.or(self.eos).unwrap_or(0)
    }

    /// One more than the largest id, so the rows an embedding needs. Ids below it may be unused.
    pub fn vocab_size(&self) -> u32 {
        self.vocabulary.size()
    }

    /// BLAKE3, in hex, of everything that decides ids: the definition, BOS, EOS and padding, and the options that use them.
    /// Neither the engine nor the path is in it.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The path or name as it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text of `ids`, special tokens shown as their literals, broken UTF-8 and unknown ids as U+FFFD.
    ///
    /// The ids may be any part of a document, so a space that a definition puts before each document (Llama 2) stays.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::new();
        for &id in ids {
            match self.vocabulary.bytes(id) {
                Some(token) => bytes.extend_from_slice(token),
                None => bytes.extend_from_slice("\u{fffd}".as_bytes()),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Ids of the special tokens, rising.
    pub fn special_ids(&self) -> Vec<u32> {
        self.vocabulary.special_ids()
    }

    /// The bytes one token stands for; `None` for an id without a token.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.vocabulary.bytes(id).map(<[u8]>::to_vec)
    }
}

/// Ids of the tokens with a role.
#[derive(Debug, Clone, Copy, Default)]
struct RoleIds {
    eos: Option<u32>,
    bos: Option<u32>,
    pad: Option<u32>,
}

/// Puts the path in front of an error's detail.
fn named(error: Error, path: &str) -> Error {
    Error::new(error.kind(), format!("{path}: {}", error.detail()))
}

/// Names that mean one thing only, tried in this order where no file says which token ends a document.
const EOS_NAMES: &[&str] = &[
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "[EOS]",
    "<｜end▁of▁sentence｜>",
    "<|eot_id|>",
    "<|im_end|>",
];
const BOS_NAMES: &[&str] =
    &["<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>", "<|bos|>", "[BOS]", "<｜begin▁of▁sentence｜>"];
const PAD_NAMES: &[&str] = &["<pad>", "<|pad|>", "[PAD]", "<|padding|>"];

/// Which tokens end, begin and pad: the options first, then the files beside the definition and the definition itself,
/// then a well-known name if it is a special token.
fn roles(options: &TokenizerOptions, definition: &Definition, vocabulary: &Vocabulary) -> Result<RoleIds> {
    let find = |role: &str, wanted: bool, chosen: &Option<String>, stated: &Option<String>, names: &[&str]| {
        if chosen.is_some() {
            return named_token(chosen.as_ref(), role, vocabulary);
        }
        if let Some(token) = stated {
            if let Some(id) = vocabulary.id(token) {
                return Ok(Some(id));
            }
            if wanted {
                let detail = format!(
                    "the tokenizer's files give the {role} {token:?}, which isn't in its vocabulary; set tokenizer.{role} ({})",
                    vocabulary.suggest(token)
                );
                return Err(Error::new(ErrorKind::Config, detail));
            }
            tracing::warn!(tokenizer = options.path, role, token, "the tokenizer's files name a token it doesn't have");
            return Ok(None);
        }
        let known = names.iter().find_map(|name| vocabulary.special_id(name).map(|id| (name, id)));
        if let Some((name, id)) = known {
            tracing::info!(tokenizer = options.path, role, token = name, id, "taken by its well-known name");
        }
        Ok(known.map(|(_, id)| id))
    };
    let stated = &definition.roles;
    let eos = find("eos_token", options.append_eos, &options.eos_token, &stated.eos, EOS_NAMES)?;
    let bos = find("bos_token", options.prepend_bos, &options.bos_token, &stated.bos, BOS_NAMES)?;
    let pad = find("pad_token", false, &options.pad_token, &stated.pad, PAD_NAMES)?;
    for (missing, option, role) in [
        (options.append_eos && eos.is_none(), "append_eos", "eos_token"),
        (options.prepend_bos && bos.is_none(), "prepend_bos", "bos_token"),
    ] {
        if missing {
            let detail = format!(
                "tokenizer {:?} names no {role}, but {option} is true; set tokenizer.{role}, or {option} = false ({})",
                options.path,
                vocabulary.suggest("")
            );
            return Err(Error::new(ErrorKind::Config, detail));
        }
    }
    Ok(RoleIds { eos, bos, pad })
}

fn named_token(token: Option<&String>, role: &str, vocabulary: &Vocabulary) -> Result<Option<u32>> {
    let Some(token) = token else { return Ok(None) };
    match vocabulary.id(token) {
        Some(id) => Ok(Some(id)),
        None => {
            let detail =
                format!("tokenizer.{role} is {token:?}, which isn't in the vocabulary ({})", vocabulary.suggest(token));
            Err(Error::new(ErrorKind::Config, detail))
        }
    }
}

fn hash(options: &TokenizerOptions, definition: blake3::Hash, roles: RoleIds) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"tokenmill tokenizer 1\n");
    hasher.update(definition.as_bytes());
    for (used, id) in [(options.append_eos, roles.eos), (options.prepend_bos, roles.bos), (true, roles.pad)] {
        hasher.update(&[u8::from(used)]);
        // An id is a u32, so the largest u64 means that there is none.
        hasher.update(&id.map_or(u64::MAX, u64::from).to_le_bytes());
    }
    hasher.update(&[u8::from(options.special_tokens == SpecialTokens::Parse)]);
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Bytes, two merges, a special token and one that isn't special.
    fn small(extra: &str) -> String {
        let mut vocab: Vec<String> = (0..=255u8)
            .map(|byte| format!("{}:{byte}", serde_json::to_string(&vocabulary::char_of(byte)).unwrap()))
            .collect();
        vocab.extend(["\"he\":256", "\"hey\":257", "\"<end>\":258", "\"<tool>\":259"].map(String::from));
        let token = |id: u32, content: &str, special: bool, single_word: bool| {
            format!(
                r#"{{"id":{id},"content":"{content}","single_word":{single_word},"lstrip":false,"rstrip":false,"normalized":false,"special":{special}}}"#
            )
        };
        format!(
            r#"{{"version":"1.0","truncation":{{"max_length":2,"strategy":"LongestFirst","stride":0,"direction":"Right"}},
            "added_tokens":[{},{}],
            "pre_tokenizer":{{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}},
            "model":{{{extra}"vocab":{{{}}},"merges":["h e",["he","y"]]}}}}"#,
            token(258, "<end>", true, false),
            token(259, "<tool>", false, extra.contains("single")),
            vocab.join(",")
        )
    }

    fn load_from(
        folder: &tempfile::TempDir,
        json: &str,
        change: impl FnOnce(&mut TokenizerOptions),
    ) -> Result<Tokenizer> {
        let path = folder.path().join("tokenizer.json");
        fs::write(&path, json).unwrap();
        let mut options =
            TokenizerOptions { path: path.to_str().unwrap().into(), append_eos: false, ..Default::default() };
        change(&mut options);
        Tokenizer::load(&options)
    }

    fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        tokenizer.encode_into(text, &mut ids).unwrap();
        ids
    }

    /// The built-ins' ids are tiktoken's, on what the probe holds, with both engines.
    #[test]
    fn built_ins_equal_tiktoken() {
        let texts = probe::texts(&builtin::definition("gpt2").unwrap().unwrap());
        for (name, core) in [
            ("gpt2", tiktoken_rs::r50k_base().unwrap()),
            ("cl100k_base", tiktoken_rs::cl100k_base().unwrap()),
            ("o200k_base", tiktoken_rs::o200k_base().unwrap()),
        ] {
            for engine in [EngineChoice::Fastokens, EngineChoice::Tokenizers] {
                let tokenizer =
                    Tokenizer::load(&TokenizerOptions { path: name.into(), engine, ..Default::default() }).unwrap();
                for text in texts.iter().map(String::as_str).chain(["I'ſ it'ſx", "a\n  ", "a \n \n\t "]) {
                    assert_eq!(ids(&tokenizer, text), core.encode_ordinary(text), "{name} {engine:?} {text:?}");
                    assert_eq!(tokenizer.decode(&ids(&tokenizer, text)), text);
                }
                let mut document = vec![7];
                tokenizer.encode_document("hi", &mut document).unwrap();
                assert_eq!(*document.last().unwrap(), tokenizer.eos().unwrap());
                assert_eq!(tokenizer.token_bytes(tokenizer.eos().unwrap()).unwrap(), b"<|endoftext|>");
            }
        }
    }

    /// Both ways to read literals, both engines, one hash; a file without `model.type`, and with truncation, loads whole.
    #[test]
    fn literals_are_text_or_tokens() {
        let folder = tempfile::tempdir().unwrap();
        for engine in [EngineChoice::Auto, EngineChoice::Tokenizers] {
            let text = load_from(&folder, &small(""), |options| options.engine = engine).unwrap();
            assert_eq!(ids(&text, "hey<end><tool>he"), [257, 60, 101, 110, 100, 62, 259, 256]);
            let parsed = load_from(&folder, &small(""), |options| {
                options.engine = engine;
                options.special_tokens = SpecialTokens::Parse;
            });
            let parsed = parsed.unwrap();
            assert_eq!(ids(&parsed, "hey<end><tool>he"), [257, 258, 259, 256]);
            assert_ne!(text.hash(), parsed.hash());
            assert_eq!(
                text.engine(),
                if engine == EngineChoice::Auto { "fastokens" } else { "tokenizers" },
                "{}",
                text.engine_reason()
            );
            assert_eq!((text.vocab_size(), text.decode(&[257, 258, 400])), (260, "hey<end>\u{fffd}".into()));
        }
    }

    /// An added token has the id that the reference gives it, whatever the file states, with both engines.
    #[test]
    fn stated_ids_are_corrected() {
        let folder = tempfile::tempdir().unwrap();
        let stated = small("").replace("\"id\":259", "\"id\":300");
        assert_ne!(stated, small(""));
        for (engine, name) in [(EngineChoice::Auto, "fastokens"), (EngineChoice::Tokenizers, "tokenizers")] {
            let found = load_from(&folder, &stated, |options| options.engine = engine).unwrap();
            assert_eq!(found.engine(), name, "{}", found.engine_reason());
            assert_eq!(ids(&found, "<tool>he"), [259, 256]);
            assert_eq!(found.hash(), load_from(&folder, &small(""), |_| {}).unwrap().hash());
        }
    }

    /// The fast engine is not relied on for what it doesn't honour, and can't be forced then.
    #[test]
    fn features_beyond_the_fast_engine_go_to_the_reference() {
        let folder = tempfile::tempdir().unwrap();
        let json = small(r#""single":1,"#);
        assert_eq!(load_from(&folder, &json, |_| {}).unwrap().engine(), "tokenizers");
        let error = load_from(&folder, &json, |options| options.engine = EngineChoice::Fastokens).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Tokenizer);
        assert!(error.detail().contains("single_word"), "{error}");
    }

    /// Where the end of a document comes from: the option, else the file beside, else an error that says what to do.
    #[test]
    fn roles_come_from_options_then_files() {
        let folder = tempfile::tempdir().unwrap();
        let eos = |options: &mut TokenizerOptions| options.append_eos = true;
        let error = load_from(&folder, &small(""), eos).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.detail().contains("set tokenizer.eos_token"), "{error}");
        fs::write(
            folder.path().join("tokenizer_config.json"),
            r#"{"eos_token":{"content":"<end>"},"pad_token":"hey"}"#,
        )
        .unwrap();
        let found = load_from(&folder, &small(""), eos).unwrap();
        assert_eq!((found.eos(), found.bos(), found.pad()), (Some(258), None, 257));
        let chosen = load_from(&folder, &small(""), |options| options.eos_token = Some("<tool>".into())).unwrap();
        assert_eq!(chosen.eos(), Some(259));
        let error = load_from(&folder, &small(""), |options| options.eos_token = Some("<ned>".into())).unwrap_err();
        assert!(error.kind() == ErrorKind::Config && error.detail().contains("\"<end>\""), "{error}");
        let whole = TokenizerOptions { path: folder.path().to_str().unwrap().into(), ..Default::default() };
        assert_eq!(Tokenizer::load(&whole).unwrap().hash(), found.hash());
    }

    /// Files cut off anywhere, or with bytes that don't belong there, are errors that name the file.
    #[test]
    fn damaged_files_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let json = small("");
        for cut in (0..json.len()).step_by(97) {
            let mut end = cut;
            while !json.is_char_boundary(end) {
                end -= 1;
            }
            let error = load_from(&folder, &json[..end], |_| {}).unwrap_err();
            assert!(error.kind() == ErrorKind::Tokenizer && error.detail().contains("tokenizer.json"), "{error}");
        }
        for (from, to) in [
            ("\"h e\"", "\"h x y\""),
            ("\"h e\"", "7"),
            ("\"he\":256", "\"hx\":256"),
            ("ByteLevel", "ByteLevels"),
            ("\"id\":258", "\"id\":\"a\""),
        ] {
            let error = load_from(&folder, &json.replace(from, to), |_| {}).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Tokenizer, "{from} {to}: {error}");
        }
        let missing = TokenizerOptions { path: "no/such/file".into(), ..Default::default() };
        assert_eq!(Tokenizer::load(&missing).unwrap_err().kind(), ErrorKind::NotFound);
        let empty = tempfile::tempdir().unwrap();
        let missing = TokenizerOptions { path: empty.path().to_str().unwrap().into(), ..Default::default() };
        assert_eq!(Tokenizer::load(&missing).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn bytes_are_ids() {
        let options = TokenizerOptions { path: "bytes".into(), prepend_bos: true, ..Default::default() };
        let tokenizer = Tokenizer::load(&options).unwrap();
        let mut ids = Vec::new();
        tokenizer.encode_document("é<eos>", &mut ids).unwrap();
        assert_eq!(ids, [257, 0xc3, 0xa9, 60, 101, 111, 115, 62, 256]);
        assert_eq!((tokenizer.pad(), tokenizer.vocab_size(), tokenizer.engine()), (258, 259, "bytes"));
        assert_eq!(tokenizer.decode(&ids), "<bos>é<eos><eos>");
    }
}
