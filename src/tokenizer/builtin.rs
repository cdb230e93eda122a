//! The built-in vocabularies, by name: GPT-2's and OpenAI's later two.
//!
//! Comes in: a name. Goes out: a [`Definition`] that gives tiktoken's ids. The ranks come with the crate `tiktoken-rs`.
//! Does not know: files.

use super::definition::{Definition, Roles};
use super::tiktoken::{Ranks, Splitter};
use crate::error::{Error, ErrorKind, Result};

/// `cl100k_base`, as converted files have it.
///
/// tiktoken itself has `\s++$` before `\s*[\r\n]`, which takes the spaces after the last line break of a text along. The ids are
/// the same: no token of this vocabulary has a space after its last line break, so none spans that cut.
pub(super) const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// `o200k_base`.
pub(super) const O200K: &str = tiktoken_rs::O200K_BASE_PAT_STR;

/// The special tokens of `gpt2`.
pub(super) const GPT2_SPECIAL: &[(&str, u32)] = &[(tiktoken_rs::ENDOFTEXT, 50256)];
/// The special tokens of `cl100k_base`.
pub(super) const CL100K_SPECIAL: &[(&str, u32)] = &[
    (tiktoken_rs::ENDOFTEXT, 100_257),
    (tiktoken_rs::FIM_PREFIX, 100_258),
    (tiktoken_rs::FIM_MIDDLE, 100_259),
    (tiktoken_rs::FIM_SUFFIX, 100_260),
    (tiktoken_rs::ENDOFPROMPT, 100_276),
];
/// The special tokens of `o200k_base`.
pub(super) const O200K_SPECIAL: &[(&str, u32)] =
    &[(tiktoken_rs::ENDOFTEXT, 199_999), (tiktoken_rs::ENDOFPROMPT, 200_018)];

/// The definition named `name`; `None` if there is no built-in of this name.
pub(super) fn definition(name: &str) -> Result<Option<Definition>> {
    let (loaded, count, splitter, special) = match name {
        "gpt2" => (tiktoken_rs::r50k_base(), 50256, Splitter::Gpt2, GPT2_SPECIAL),
        "cl100k_base" => (tiktoken_rs::cl100k_base(), 100_256, Splitter::Pattern(CL100K), CL100K_SPECIAL),
        "o200k_base" => (tiktoken_rs::o200k_base(), 199_998, Splitter::Pattern(O200K), O200K_SPECIAL),
        _ => return Ok(None),
    };
    let core = loaded.map_err(|error| Error::new(ErrorKind::Tokenizer, format!("built-in {name}: {error}")))?;
    let mut tokens = Vec::with_capacity(count as usize);
    for rank in 0..count {
        let bytes = core.decode_bytes(&[rank]).map_err(|error| {
            Error::new(ErrorKind::Tokenizer, format!("built-in {name} has no rank {rank}: {error}"))
        })?;
        tokens.push((bytes, rank));
    }
    drop(core);
    let ranks = Ranks {
        tokens,
        special: special.iter().map(|&(token, id)| (token.to_string(), id)).collect(),
        splitter,
        nfc: false,
        roles: Roles { eos: Some(tiktoken_rs::ENDOFTEXT.into()), ..Roles::default() },
    };
    ranks.definition().map(Some)
}
