//! Ranks of byte strings, as tiktoken keeps them, turned into a definition with merges.
//!
//! Comes in: a `*.tiktoken` file (a line a token: its bytes in base64, its rank), or ranks from elsewhere with their pattern
//! and special tokens. Goes out: a [`Definition`].
//! Holds: the definition gives tiktoken's ids; an id is the rank of the file. Does not know: engines.
//!
//! tiktoken joins the two neighbours whose joined bytes have the lowest rank, the leftmost first, wherever the cut between
//! them is. A definition lists for each token which two parts make it. Both come to the same with one pair a token: as long
//! as a token comes to be, no join crosses its ends, so the joins inside are those of encoding its bytes alone, and the last of
//! them is the pair. A token that its own bytes never join to is only found as a whole word: `ignore_merges`.
//!
//! ```text
//! ranks  a 0, b 1, c 2, bc 3, abc 4, ab 5     "abc": b+c, then a+bc   ->  merges  b c, a bc, a b
//! ```
//! Why not all pairs with both parts in the vocabulary, as converters write (Llama 3 has 280 147 merges for 127 744 tokens):
//! the others are never used, and cost memory and time to load.

use ahash::AHashMap;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

use super::builtin;
use super::definition::{Definition, ID_LIMIT, Roles, merge};
use super::vocabulary::char_of;
use crate::error::{Error, ErrorKind, Result};

/// How a tiktoken vocabulary splits text before it joins bytes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Splitter<'a> {
    /// GPT-2's pattern, which both engines know as a step of its own.
    Gpt2,
    /// A regular expression; text between its matches is kept as it is.
    Pattern(&'a str),
}

/// Qwen's pattern, and that of Llama 3 but for its `\p{N}{1,3}`.
const QWEN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A vocabulary file that is known by its name and its number of ranks: what the file doesn't say.
struct Known {
    /// The file's name holds this.
    name: &'static str,
    ranks: usize,
    splitter: Splitter<'static>,
    nfc: bool,
    special: fn() -> Vec<(String, u32)>,
    eos: &'static str,
    bos: Option<&'static str>,
}

fn listed(tokens: &[(&str, u32)]) -> Vec<(String, u32)> {
    tokens.iter().map(|&(token, id)| (token.to_string(), id)).collect()
}

const KNOWN: &[Known] = &[
    Known {
        name: "r50k",
        ranks: 50256,
        splitter: Splitter::Gpt2,
        nfc: false,
        special: || listed(builtin::GPT2_SPECIAL),
        eos: "<|endoftext|>",
        bos: None,
    },
    Known {
        name: "gpt2",
        ranks: 50256,
        splitter: Splitter::Gpt2,
        nfc: false,
        special: || listed(builtin::GPT2_SPECIAL),
        eos: "<|endoftext|>",
        bos: None,
    },
    Known {
        name: "p50k",
        ranks: 50280,
        splitter: Splitter::Gpt2,
        nfc: false,
        special: || listed(builtin::GPT2_SPECIAL),
        eos: "<|endoftext|>",
        bos: None,
    },
    Known {
        name: "cl100k",
        ranks: 100_256,
        splitter: Splitter::Pattern(builtin::CL100K),
        nfc: false,
        special: || listed(builtin::CL100K_SPECIAL),
        eos: "<|endoftext|>",
        bos: None,
    },
    Known {
        name: "o200k",
        ranks: 199_998,
        splitter: Splitter::Pattern(builtin::O200K),
        nfc: false,
        special: || listed(builtin::O200K_SPECIAL),
        eos: "<|endoftext|>",
        bos: None,
    },
    Known {
        name: "qwen",
        ranks: 151_643,
        splitter: Splitter::Pattern(QWEN),
        nfc: true,
        special: || {
            let extras = (0..205).map(|index| (format!("<|extra_{index}|>"), 151_646 + index));
            listed(&[("<|endoftext|>", 151_643), ("<|im_start|>", 151_644), ("<|im_end|>", 151_645)])
                .into_iter()
                .chain(extras)
                .collect()
        },
        eos: "<|endoftext|>",
        bos: None,
    },
    // Llama 3 ships its ranks as `tokenizer.model`.
    Known {
        name: "tokenizer.model",
        ranks: 128_000,
        splitter: Splitter::Pattern(builtin::CL100K),
        nfc: false,
        special: || {
            let named = [
                "<|begin_of_text|>",
                "<|end_of_text|>",
                "<|reserved_special_token_0|>",
                "<|reserved_special_token_1|>",
                "<|finetune_right_pad_id|>",
                "<|step_id|>",
                "<|start_header_id|>",
                "<|end_header_id|>",
                "<|eom_id|>",
                "<|eot_id|>",
                "<|python_tag|>",
            ];
            let reserved = (2..247).map(|index| format!("<|reserved_special_token_{index}|>"));
            named.into_iter().map(str::to_string).chain(reserved).zip(128_000..).collect()
        },
        eos: "<|end_of_text|>",
        bos: Some("<|begin_of_text|>"),
    },
];

/// Whether `bytes` start as a `*.tiktoken` file does: base64, a space, digits.
pub(super) fn is_ranks(bytes: &[u8]) -> bool {
    let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let Ok(line) = std::str::from_utf8(line) else { return false };
    line.trim_end().split_once(' ').is_some_and(|(token, rank)| {
        BASE64_STANDARD.decode(token).is_ok() && !rank.is_empty() && rank.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// The definition of a `*.tiktoken` file named `name`, split by `pattern` if one is given.
///
/// # Errors
/// * `Tokenizer` - malformed.
/// * `Config` - the file isn't a known one, and there is no `pattern`.
pub(super) fn definition(bytes: &[u8], name: &str, pattern: Option<&str>) -> Result<Definition> {
    let malformed = |line: usize, what: &str| Error::new(ErrorKind::Tokenizer, format!("line {line}: {what}"));
    let text = std::str::from_utf8(bytes)
        .map_err(|_| malformed(1, "found other than text, expected base64 and a rank in each line"))?;
    let mut tokens = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let line_number = index + 1;
        let (token, rank) =
            line.trim().split_once(' ').ok_or_else(|| malformed(line_number, "expected base64, a space and a rank"))?;
        let token =
            BASE64_STANDARD.decode(token).map_err(|error| malformed(line_number, &format!("not base64: {error}")))?;
        let rank: u32 = rank.trim().parse().map_err(|_| malformed(line_number, "the rank isn't a number"))?;
        tokens.push((token, rank));
    }
    tokens.sort_by_key(|token| token.1);
    let lower = name.to_lowercase();
    let known = KNOWN.iter().find(|known| lower.contains(known.name) && known.ranks == tokens.len());
    let (splitter, nfc) = match (pattern, known) {
        (Some(pattern), known) => (equivalent(pattern), known.is_some_and(|known| known.nfc)),
        (None, Some(known)) => (known.splitter, known.nfc),
        (None, None) => {
            let detail = format!(
                "{name} with {} ranks is no known vocabulary; set tokenizer.pattern to the regular expression that splits text",
                tokens.len()
            );
            return Err(Error::new(ErrorKind::Config, detail));
        }
    };
    let roles = Roles {
        eos: known.map(|known| known.eos.into()),
        bos: known.and_then(|known| known.bos).map(Into::into),
        pad: None,
    };
    Ranks { tokens, special: known.map(|known| (known.special)()).unwrap_or_default(), splitter, nfc, roles }
        .definition()
}

/// A pattern in the words of the reference's regex engine, where `$` is the end of a line and `{1,3}+` a repetition: tiktoken's own
/// patterns are written for another one.
fn equivalent(pattern: &str) -> Splitter<'_> {
    const GPT2: [&str; 2] = [
        r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    ];
    const CL100K: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s";
    match pattern {
        _ if GPT2.contains(&pattern) => Splitter::Gpt2,
        CL100K => Splitter::Pattern(builtin::CL100K),
        _ => Splitter::Pattern(pattern),
    }
}

/// A vocabulary to convert.
pub(super) struct Ranks<'a> {
    /// Each token's bytes and id; its rank is its place here.
    pub tokens: Vec<(Vec<u8>, u32)>,
    pub special: Vec<(String, u32)>,
    pub splitter: Splitter<'a>,
    pub nfc: bool,
    pub roles: Roles,
}

impl Ranks<'_> {
    /// The definition that gives tiktoken's ids.
    ///
    /// # Errors
    /// * `Tokenizer` - a single byte is missing, or a token stands twice.
    pub(super) fn definition(self) -> Result<Definition> {
        let mut ranks: AHashMap<&[u8], u32> = AHashMap::with_capacity(self.tokens.len());
        if self.tokens.len() as u64 >= ID_LIMIT {
            return Err(Error::new(
                ErrorKind::Tokenizer,
                format!("{} ranks, expected fewer than {ID_LIMIT}", self.tokens.len()),
            ));
        }
        for (rank, (token, _)) in self.tokens.iter().enumerate() {
            if token.len() > TOKEN_BYTES_MAX {
                let detail = format!("rank {rank} has {} bytes, expected at most {TOKEN_BYTES_MAX}", token.len());
                return Err(Error::new(ErrorKind::Tokenizer, detail));
            }
            if token.is_empty() || ranks.insert(token, rank as u32).is_some() {
                return Err(Error::new(
                    ErrorKind::Tokenizer,
                    format!("rank {rank} is empty or stands twice: {token:?}"),
                ));
            }
        }
        if let Some(byte) = (0..=255u8).find(|&byte| !ranks.contains_key(&[byte][..])) {
            return Err(Error::new(
                ErrorKind::Tokenizer,
                format!("no token for the byte {byte}, expected one for each byte"),
            ));
        }
        let written = |bytes: &[u8]| bytes.iter().map(|&byte| char_of(byte)).collect::<String>();
        let mut merges = Vec::with_capacity(self.tokens.len());
        for (token, _) in &self.tokens {
            if let Some(cut) = last_cut(token, &ranks) {
                let (left, right) = token.split_at(cut);
                merges.push(merge(&written(left), &written(right)));
            }
        }
        let mut vocab = Map::with_capacity(self.tokens.len() + self.special.len());
        for (token, id) in &self.tokens {
            vocab.insert(written(token), (*id).into());
        }
        // In the model's vocabulary as well: the reference takes an added token's id from there, else it counts on.
        for (token, id) in &self.special {
            vocab.insert(token.clone(), (*id).into());
        }
        let byte_level = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
        let pre_tokenizer = match self.splitter {
            Splitter::Gpt2 => byte_level(true),
            Splitter::Pattern(pattern) => json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
                byte_level(false),
            ]}),
        };
        let added: Vec<Value> = self
            .special
            .iter()
            .map(|(content, id)| {
                json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
            })
            .collect();
        let mut root = json!({
            "version": "1.0",
            "added_tokens": added,
            "normalizer": self.nfc.then(|| json!({"type": "NFC"})),
            "pre_tokenizer": pre_tokenizer,
            "post_processor": null,
            "decoder": byte_level(true),
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
                "fuse_unk": false, "byte_fallback": false, "ignore_merges": true},
        });
        let model = root["model"].as_object_mut().expect("made above");
        model.insert("vocab".into(), Value::Object(vocab));
        model.insert("merges".into(), Value::Array(merges));
        Definition::new(root, self.roles)
    }
}

/// Finding a token's merge is quadratic in its length; the longest of a known vocabulary has 1024 bytes.
const TOKEN_BYTES_MAX: usize = 4096;

/// Where the last join of `token` falls when its bytes are encoded alone; `None` if they don't join to it.
///
/// Cost: quadratic in the token's length.
fn last_cut(token: &[u8], ranks: &AHashMap<&[u8], u32>) -> Option<usize> {
    // The parts' starts; a part ends where the next starts.
    let mut starts: Vec<usize> = (0..=token.len()).collect();
    while starts.len() > 3 {
        let best = (0..starts.len() - 2)
            .filter_map(|index| ranks.get(&token[starts[index]..starts[index + 2]]).map(|&rank| (rank, index)))
            .min()?;
        starts.remove(best.1 + 1);
    }
    (starts.len() == 3).then(|| starts[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the header, after the 256 bytes.
    #[test]
    fn last_joins_are_found() {
        let tokens: [&[u8]; 6] = [b"a", b"b", b"c", b"bc", b"abc", b"ab"];
        let ranks: AHashMap<&[u8], u32> = tokens.into_iter().zip(0..).collect();
        let check = |token: &[u8], cut: Option<usize>| assert_eq!(last_cut(token, &ranks), cut, "{token:?}");
        check(b"abc", Some(1));
        check(b"ab", Some(1));
        check(b"a", None);
        // b+c joins before a+b, and then nothing joins c+bc.
        check(b"cbc", Some(1));
        check(b"abcb", Some(3));
        check(b"cccc", None);
    }

    #[test]
    fn files_are_known_by_name_and_size() {
        let byte_lines: String =
            (0..=255u8).map(|byte| format!("{} {byte}\n", BASE64_STANDARD.encode([byte]))).collect();
        let check = |name: &str, pattern: Option<&str>, expected: Result<u32, ErrorKind>| {
            let found = definition(byte_lines.as_bytes(), name, pattern)
                .map(|d| d.json["model"]["vocab"].as_object().map_or(0, Map::len) as u32);
            assert_eq!(found.map_err(|error| error.kind()), expected, "{name}");
        };
        check("mine.tiktoken", Some(r"\S+|\s+"), Ok(256));
        check("mine.tiktoken", None, Err(ErrorKind::Config));
        check("qwen.tiktoken", None, Err(ErrorKind::Config));
        for broken in ["IQ==", "IQ== x", "!! 0", "IQ== 0\nIQ== 1", "IQ== 0"] {
            let error = definition(broken.as_bytes(), "x.tiktoken", Some("a")).err().map(|error| error.kind());
            assert_eq!(error, Some(ErrorKind::Tokenizer), "{broken}");
        }
        assert!(is_ranks(b"IQ== 0\n") && !is_ranks(b"\n\x0a\x05<unk>") && !is_ranks(b"{}"));
    }
}
