//! From a path to a definition: which file it is, and what the files beside it say.
//!
//! Comes in: a path to a file or folder. Goes out: a [`Definition`].
//! Holds: every error names the file; no file above [`FILE_BYTES_MAX`] is read.
//! Does not know: engines.

use std::fs;
use std::io::ErrorKind as IoKind;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::definition::{self, Definition, Roles};
use super::{sentencepiece, tekken, tiktoken};
use crate::error::{Error, ErrorKind, Result};

/// Larger files are refused: the largest known tokenizer has 35 MB.
const FILE_BYTES_MAX: u64 = 512 << 20;

/// The definition that `path` holds.
///
/// # Errors
/// * `NotFound` - there is nothing, or the folder holds no tokenizer.
/// * `Tokenizer` - malformed, or too large.
/// * `Config` - a `*.tiktoken` file that needs `pattern`.
pub(super) fn definition(path: &str, pattern: Option<&str>) -> Result<Definition> {
    let given = Path::new(path);
    let file = if given.is_dir() { in_folder(given)? } else { given.to_path_buf() };
    let bytes = read(&file)?;
    let beside = roles_beside(&file)?;
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let made = match file.extension().and_then(|extension| extension.to_str()) {
        Some("tiktoken") => tiktoken::definition(&bytes, &name, pattern),
        // Llama 3 calls its ranks tokenizer.model.
        Some("model") if tiktoken::is_ranks(&bytes) => tiktoken::definition(&bytes, &name, pattern),
        Some("model") => sentencepiece::definition(&bytes),
        _ if name == "tekken.json" => tekken::definition(&bytes),
        _ => definition::parse(&bytes)
            .map_err(|error| Error::new(ErrorKind::Tokenizer, format!("not a tokenizer.json: {error}")))
            .and_then(|json| {
                if is_tekken(&json) { tekken::definition(&bytes) } else { Definition::new(json, Roles::default()) }
            }),
    };
    match made {
        Ok(made) => Ok(Definition { roles: beside.or(made.roles), json: made.json }),
        Err(error) => Err(Error::new(error.kind(), format!("{}: {}", file.display(), error.detail()))),
    }
}

/// Whether this is a `tekken.json` under another name.
fn is_tekken(json: &Value) -> bool {
    json["model"].is_null() && json["config"]["default_vocab_size"].is_u64()
}

/// The tokenizer of a folder: `tokenizer.json`, else `tekken.json`, else the only `*.model`, else the only `*.tiktoken`.
fn in_folder(folder: &Path) -> Result<PathBuf> {
    for name in ["tokenizer.json", "tekken.json"] {
        let file = folder.join(name);
        if file.is_file() {
            return Ok(file);
        }
    }
    let read_failed = |error| Error::new(ErrorKind::Read, format!("folder {}", folder.display())).because(error);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(read_failed)? {
        files.push(entry.map_err(read_failed)?.path());
    }
    files.sort();
    for extension in ["model", "tiktoken"] {
        let mut found = files.iter().filter(|file| file.extension().is_some_and(|found| found == extension));
        if let Some(file) = found.next() {
            if let Some(other) = found.next() {
                let detail = format!("{} and {} are both tokenizers; name one", file.display(), other.display());
                return Err(Error::new(ErrorKind::Config, detail));
            }
            return Ok(file.clone());
        }
    }
    let detail = format!(
        "no tokenizer in folder {}: expected tokenizer.json, tekken.json, *.model or *.tiktoken",
        folder.display()
    );
    Err(Error::new(ErrorKind::NotFound, detail))
}

fn read(file: &Path) -> Result<Vec<u8>> {
    let failed = |error: std::io::Error| {
        let kind = if error.kind() == IoKind::NotFound { ErrorKind::NotFound } else { ErrorKind::Read };
        let hint = if kind == ErrorKind::NotFound {
            " (neither a file nor one of the built-ins gpt2, cl100k_base, o200k_base, bytes)"
        } else {
            ""
        };
        Error::new(kind, format!("tokenizer {}{hint}", file.display())).because(error)
    };
    let size = fs::metadata(file).map_err(failed)?.len();
    if size > FILE_BYTES_MAX {
        let detail = format!("{} has {size} bytes, expected at most {FILE_BYTES_MAX}", file.display());
        return Err(Error::new(ErrorKind::Tokenizer, detail));
    }
    fs::read(file).map_err(failed)
}

/// What the configuration files beside `file` say: `tokenizer_config.json` and `special_tokens_map.json`, and for `x.json`
/// first `x_config.json`.
fn roles_beside(file: &Path) -> Result<Roles> {
    let mut roles = Roles::default();
    let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    for name in [format!("{stem}_config.json"), "tokenizer_config.json".into(), "special_tokens_map.json".into()] {
        let beside = file.with_file_name(name);
        if beside == file || !beside.is_file() {
            continue;
        }
        let json: Value = serde_json::from_slice(&read(&beside)?)
            .map_err(|error| Error::new(ErrorKind::Tokenizer, format!("{}: {error}", beside.display())))?;
        let token = |role: &str| {
            let value = &json[role];
            value.as_str().or_else(|| value["content"].as_str()).map(str::to_string)
        };
        roles = roles.or(Roles { eos: token("eos_token"), bos: token("bos_token"), pad: token("pad_token") });
    }
    Ok(roles)
}
