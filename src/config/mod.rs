//! The configuration: what was written, checked, with `--set` applied.
//!
//! Comes in: TOML text and overrides. Goes out: a [`Config`]. Holds: an unknown key is an error that names the nearest
//! known one; every number is in its range; what is not written has the documented default.
//! Does not know: files of the corpus, the tokenizer; see [`Plan`](crate::plan::Plan) for what will run.

mod keys;

pub use crate::size::{ByteSize, Seconds};

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::chat::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::packing::{PackingOptions, Strategy};
use crate::source::{ShuffleOptions, SourceOptions};
use crate::storage::{Environment, StorageOptions};
use crate::tokenizer::TokenizerOptions;

/// A run, as written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Seed of every order.
    pub seed: u64,
    /// Number of independent, deterministic sequences of blocks; fixed for the life of a run, every world size divides it.
    pub lanes: u32,
    /// Tokens in a block.
    pub block_size: u32,
    /// Blocks in a batch, on each rank.
    pub batch_size: u32,
    /// When a run whose sources have `max_epochs` ends.
    pub stop: Stop,
    /// The tokenizer.
    pub tokenizer: TokenizerOptions,
    /// The corpora.
    pub source: Vec<SourceOptions>,
    /// How documents are shuffled.
    pub shuffle: ShuffleOptions,
    /// How documents become blocks.
    pub packing: PackingOptions,
    /// What happens to bad records.
    pub errors: ErrorOptions,
    /// Options that never change the stream.
    pub runtime: RuntimeOptions,
    /// Where remote objects are and how they are read; never changes the stream.
    pub storage: StorageOptions,
    /// A saved listing of all sources' shards, in place of listing them; relative to the config file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// Folder that relative paths are relative to: the config file's. Not written in the file.
    #[serde(skip)]
    pub base: PathBuf,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            seed: 42,
            lanes: 32,
            block_size: 2048,
            batch_size: 8,
            stop: Stop::default(),
            tokenizer: TokenizerOptions::default(),
            source: Vec::new(),
            shuffle: ShuffleOptions::default(),
            packing: PackingOptions::default(),
            errors: ErrorOptions::default(),
            runtime: RuntimeOptions::default(),
            storage: StorageOptions::default(),
            manifest: None,
            base: PathBuf::new(),
        }
    }
}

/// When a run with finite sources ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// A lane ends when the first of its sources has used up its epochs.
    First,
    /// A lane ends when all its sources have; one that has leaves the mixture before.
    #[default]
    All,
}

/// `[errors]` of the config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ErrorOptions {
    /// What a record without usable text does, and a part of a shard that is damaged.
    pub bad_record: BadRecord,
    /// With `skip`: how many bad records and damaged parts a rank passes over before it fails.
    pub max_bad_records: u64,
}

impl Default for ErrorOptions {
    fn default() -> Self {
        ErrorOptions { bad_record: BadRecord::Fail, max_bad_records: 1000 }
    }
}

/// What a record without usable text does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BadRecord {
    /// It ends the run with an error that names it.
    #[default]
    Fail,
    /// It is passed over and counted.
    Skip,
}

/// `[runtime]` of the config: nothing here changes the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RuntimeOptions {
    /// Worker threads; 0 = one for each core.
    pub threads: u32,
    /// Bound on everything that is buffered; less means less is read ahead.
    pub memory: ByteSize,
    /// A wait that takes longer is an error that names what was waited for.
    pub stall_timeout: Seconds,
}

impl Default for RuntimeOptions {
    fn default() -> Self {
        RuntimeOptions {
            threads: 0,
            memory: ByteSize(4 << 30),
            stall_timeout: Seconds(std::time::Duration::from_secs(300)),
        }
    }
}

/// Most lanes a run may have.
pub const LANES_MAX: u32 = 1 << 16;
/// Most tokens in a block.
pub const BLOCK_SIZE_MAX: u32 = 1 << 24;

impl Config {
    /// Reads the file at `path` and applies `overrides` (`key.path=value`).
    ///
    /// # Errors
    /// `NotFound`, `Read`, and all of [`Config::parse`].
    pub fn load(path: &Path, overrides: &[String]) -> Result<Config> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            let kind = if error.kind() == std::io::ErrorKind::NotFound { ErrorKind::NotFound } else { ErrorKind::Read };
            Error::new(kind, format!("can't read the config {}", path.display())).because(error)
        })?;
        let base = path.parent().unwrap_or(Path::new("")).to_path_buf();
        Config::parse(&text, base, overrides)
            .map_err(|error| Error::new(error.kind(), format!("{} ({})", error.detail(), path.display())))
    }

    /// Parses TOML text; relative paths in it are relative to `base`.
    ///
    /// # Errors
    /// `Config`: not TOML, an unknown key (with the nearest known one), a wrong type, a value out of range.
    pub fn parse(text: &str, base: PathBuf, overrides: &[String]) -> Result<Config> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].lines().count().max(1));
            Error::new(ErrorKind::Config, format!("not TOML at line {line}: {}", error.message()))
        })?;
        Config::from_table(table, base, overrides)
    }

    /// Builds a config from a parsed table.
    ///
    /// # Errors
    /// As [`Config::parse`].
    pub fn from_table(mut table: toml::Table, base: PathBuf, overrides: &[String]) -> Result<Config> {
        for text in overrides {
            keys::apply_override(&mut table, text)?;
        }
        keys::refuse_unknown(&table, &Config::schema())?;
        let mut config: Config = toml::Value::Table(table).try_into().map_err(|error: toml::de::Error| {
            Error::new(ErrorKind::Config, error.to_string().trim().replace('\n', " "))
        })?;
        config.base = base;
        config.check()?;
        Ok(config)
    }

    /// The JSON Schema of the config file.
    pub fn schema() -> serde_json::Value {
        schemars::schema_for!(Config).to_value()
    }

    /// Checks every range and every combination.
    ///
    /// # Errors
    /// `Config`, naming key, found and expected value.
    pub fn check(&self) -> Result<()> {
        let wrong = |detail: String| Err(Error::new(ErrorKind::Config, detail));
        let in_range = |key: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(Error::new(ErrorKind::Config, format!("{key} is {value}, expected {least} to {most}")))
        };
        in_range("lanes", self.lanes.into(), 1, LANES_MAX.into())?;
        in_range("block_size", self.block_size.into(), 1, BLOCK_SIZE_MAX.into())?;
        in_range("batch_size", self.batch_size.into(), 1, 1 << 20)?;
        in_range("shuffle.span", self.shuffle.span.0, 1, 1 << 40)?;
        in_range("shuffle.window", self.shuffle.window.0, 1, 1 << 30)?;
        in_range("packing.window", self.packing.window.into(), 1, 1 << 24)?;
        in_range("packing.window_tokens", self.packing.window_tokens, 0, 1 << 30)?;
        in_range("runtime.threads", self.runtime.threads.into(), 0, 4096)?;
        in_range("runtime.memory", self.runtime.memory.0, 1 << 20, u64::MAX)?;
        if self.runtime.stall_timeout.0.is_zero() {
            return wrong("runtime.stall_timeout is 0, expected a time above it".into());
        }
        self.storage.check()?;
        if self.source.is_empty() {
            return wrong("there is no [[source]], expected at least one".into());
        }
        for (number, source) in self.source.iter().enumerate() {
            let name = &source.name;
            if name.is_empty() || name.len() > 128 {
                return wrong(format!("source {number} has the name {name:?}, expected 1 to 128 bytes"));
            }
            if self.source[..number].iter().any(|earlier| earlier.name == *name) {
                return wrong(format!("two sources have the name {name:?}, expected unique names"));
            }
            if source.paths.is_empty() {
                return wrong(format!("source {name:?} has no paths, expected at least one"));
            }
            if source.text_field.is_empty() {
                return wrong(format!("source {name:?} has an empty text_field, expected a field's name"));
            }
            if source.separator.as_deref() == Some("") {
                return wrong(format!("source {name:?} has an empty separator, expected text or no separator"));
            }
            if let Some(chat) = &source.chat {
                if let Some(now) = &chat.now {
                    Clock::parse(now).map_err(|error| {
                        Error::new(error.kind(), format!("source {name:?}: chat.{}", error.detail()))
                    })?;
                }
                if chat.overflow.is_some() && self.packing.strategy == Strategy::Concat {
                    return wrong(format!(
                        "source {name:?} has chat.overflow with packing.strategy \"concat\", which cuts rows at blocks and leaves out nothing; \
                         expected \"best_fit\" or \"greedy\", or no chat.overflow"
                    ));
                }
                if chat.expand_turns && self.packing.strategy == Strategy::Concat {
                    return wrong(format!(
                        "source {name:?} has chat.expand_turns with packing.strategy \"concat\", expected \"best_fit\" or \"greedy\""
                    ));
                }
            }
            if let Some(weight) = source.weight
                && !(weight.is_finite() && (0.0..=1e9).contains(&weight))
            {
                return wrong(format!("source {name:?} has the weight {weight}, expected 0 to 1e9"));
            }
        }
        if let (Some(with), Some(without)) =
            (self.source.iter().find(|s| s.weight.is_some()), self.source.iter().find(|s| s.weight.is_none()))
        {
            return wrong(format!(
                "source {:?} has a weight and {:?} has none, expected weights on all sources or on none",
                with.name, without.name
            ));
        }
        Ok(())
    }

    /// Whether labels are more than the ids without the padding: documents are packed whole, or a source has chats.
    pub fn has_masks(&self) -> bool {
        self.packing.strategy != Strategy::Concat || self.source.iter().any(|source| source.chat.is_some())
    }

    /// The tokenizer's options, its path made relative to the config file unless it is a built-in's name.
    pub fn tokenizer_options(&self) -> TokenizerOptions {
        let mut options = self.tokenizer.clone();
        options.storage = self.storage.clone();
        if !crate::tokenizer::is_builtin(&options.path) && !options.path.starts_with("hf://") {
            options.path = self.resolve(&options.path).to_string_lossy().into_owned();
        }
        options
    }

    /// The same with what the caller's environment says of storage.
    ///
    /// `lookup` gives the value of a variable, as `|name| std::env::var(name).ok()` does; see [`Environment`].
    pub fn with_environment(mut self, lookup: impl Fn(&str) -> Option<String>) -> Config {
        self.storage.environment = Environment::from_lookup(lookup);
        self
    }

    /// `path` as it is to be opened: relative ones are relative to the config file.
    pub fn resolve(&self, path: &str) -> PathBuf {
        self.base.join(path)
    }
}
