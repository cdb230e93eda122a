//! Mistral's `tekken.json`, turned into a definition.
//!
//! Comes in: the file's bytes. Goes out: a [`Definition`] that gives mistral-common's ids.
//! Holds: special tokens have the first ids, and a token's id is its rank after them; of the ranks, only the first
//! `default_vocab_size` less the special tokens are used, as the models were trained. Does not know: engines.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;

use super::definition::{Definition, ID_LIMIT, Roles};
use super::tiktoken::{Ranks, Splitter};
use crate::error::{Error, ErrorKind, Result};

#[derive(Deserialize)]
struct File {
    config: Config,
    vocab: Vec<Token>,
    special_tokens: Option<Vec<Special>>,
}

#[derive(Deserialize)]
struct Config {
    pattern: String,
    default_vocab_size: usize,
    #[serde(default = "default_special")]
    default_num_special_tokens: usize,
}

fn default_special() -> usize {
    1000
}

#[derive(Deserialize)]
struct Token {
    rank: usize,
    token_bytes: String,
}

#[derive(Deserialize)]
struct Special {
    rank: usize,
    token_str: String,
}

/// The special tokens of files that list none, by rank.
const SPECIAL: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// The definition of a `tekken.json`.
///
/// # Errors
/// * `Tokenizer` - malformed.
pub(super) fn definition(bytes: &[u8]) -> Result<Definition> {
    let malformed = |detail: String| Error::new(ErrorKind::Tokenizer, detail);
    let file: File = serde_json::from_slice(bytes).map_err(|error| malformed(format!("not a tekken.json: {error}")))?;
    let (size, special_count) = (file.config.default_vocab_size, file.config.default_num_special_tokens);
    if special_count > size || size as u64 >= ID_LIMIT || size - special_count > file.vocab.len() {
        let found = file.vocab.len();
        return Err(malformed(format!(
            "default_vocab_size {size} doesn't fit {special_count} special tokens and {found} ranks"
        )));
    }
    let mut special: Vec<String> = (0..special_count).map(|id| format!("<SPECIAL_{id}>")).collect();
    match file.special_tokens {
        None => special.iter_mut().zip(SPECIAL).for_each(|(name, known)| *name = known.to_string()),
        Some(listed) => {
            for token in listed {
                match special.get_mut(token.rank) {
                    Some(name) => *name = token.token_str,
                    None => {
                        return Err(malformed(format!(
                            "special token {:?} has the rank {}, expected less than {special_count}",
                            token.token_str, token.rank
                        )));
                    }
                }
            }
        }
    }
    let mut tokens = Vec::with_capacity(size - special_count);
    for (index, token) in file.vocab.into_iter().take(size - special_count).enumerate() {
        if token.rank != index {
            return Err(malformed(format!("rank {} at place {index}, expected the ranks in order", token.rank)));
        }
        let bytes = BASE64_STANDARD
            .decode(&token.token_bytes)
            .map_err(|error| malformed(format!("rank {index} isn't base64: {error}")))?;
        tokens.push((bytes, (index + special_count) as u32));
    }
    let role = |name: &str| special.iter().any(|token| token == name).then(|| name.to_string());
    let roles = Roles { eos: role("</s>"), bos: role("<s>"), pad: role("<pad>") };
    let special = special.into_iter().zip(0..).collect();
    Ranks { tokens, special, splitter: Splitter::Pattern(&file.config.pattern), nfc: false, roles }.definition()
}
