//! What each id stands for: its bytes, and whether it is a special token.
//!
//! Comes in: a definition. Goes out: bytes by id, ids by literal text.
//! Holds: one block of bytes and one table of ends, so that 128 000 tokens take some 2 MB, not an allocation each.
//! Does not know: how text becomes ids.
//!
//! ```text
//! byte level         "Ġhello" -> " hello"     (GPT-2: each byte is written as a printable character)
//! byte fallback      "<0x0A>" -> "\n",  "▁a" -> " a"
//! word pieces        "##ing"  -> "ing",  "word" -> " word"
//! ```

use std::collections::BTreeMap;

use super::definition::Definition;
use crate::error::{Error, ErrorKind, Result};

/// The tokens by id.
pub(super) struct Vocabulary {
    bytes: Vec<u8>,
    /// Where each id's bytes end; they start where those of the id before end. No bytes: no token.
    ends: Vec<u32>,
    /// Ids of the added tokens by literal text, with whether each is special.
    added: BTreeMap<String, (u32, bool)>,
    style: Style,
}

/// How a definition writes bytes as text.
#[derive(Clone, Copy, PartialEq)]
enum Style {
    ByteLevel,
    Metaspace { byte_fallback: bool },
    WordPiece,
    Plain,
}

impl Vocabulary {
    /// The tokens of `definition`.
    pub(super) fn new(definition: &Definition) -> Result<Vocabulary> {
        let style = Style::of(definition);
        let mut tokens: Vec<(u32, &str, bool)> = Vec::new();
        definition.for_each_token(|token, id| tokens.push((id, token, false)));
        let mut added = BTreeMap::new();
        for token in definition.added_tokens() {
            tokens.push((token.id, token.content, true));
            added.insert(token.content.to_string(), (token.id, token.special));
        }
        // Stable, so an added token comes after the model's token of the same id, and is the one that is kept.
        tokens.sort_by_key(|token| token.0);
        let mut bytes = Vec::new();
        let mut ends: Vec<u32> = Vec::new();
        for (index, &(id, token, is_added)) in tokens.iter().enumerate() {
            if tokens.get(index + 1).is_some_and(|next| next.0 == id) {
                continue;
            }
            ends.resize(id as usize, bytes.len() as u32);
            match is_added {
                true => bytes.extend_from_slice(token.as_bytes()),
                false => style.write_bytes(token, &mut bytes),
            }
            if bytes.len() > u32::MAX as usize {
                return Err(Error::new(ErrorKind::Tokenizer, "the tokens have more than 4 GiB of text"));
            }
            ends.push(bytes.len() as u32);
        }
        Ok(Vocabulary { bytes, ends, added, style })
    }

    /// The 256 bytes, then EOS, BOS and padding.
    pub(super) fn of_bytes() -> Vocabulary {
        let mut bytes: Vec<u8> = (0..=255).collect();
        let mut ends: Vec<u32> = (1..=256).collect();
        let mut added = BTreeMap::new();
        for (id, token) in (256..).zip(["<eos>", "<bos>", "<pad>"]) {
            bytes.extend_from_slice(token.as_bytes());
            ends.push(bytes.len() as u32);
            added.insert(token.to_string(), (id, true));
        }
        Vocabulary { bytes, ends, added, style: Style::Plain }
    }

    /// One more than the largest id.
    pub(super) fn size(&self) -> u32 {
        self.ends.len() as u32
    }

    /// The bytes of `id`.
    pub(super) fn bytes(&self, id: u32) -> Option<&[u8]> {
        let end = *self.ends.get(id as usize)? as usize;
        let start = if id == 0 { 0 } else { self.ends[id as usize - 1] as usize };
        (start < end).then(|| &self.bytes[start..end])
    }

    /// The id of a token by its literal text: added tokens first, then the model's. Cost: a walk over the vocabulary.
    pub(super) fn id(&self, literal: &str) -> Option<u32> {
        if let Some((id, _)) = self.added.get(literal) {
            return Some(*id);
        }
        let mut as_token = Vec::new();
        self.style.write_bytes(literal, &mut as_token);
        let find =
            |bytes: &[u8]| (!bytes.is_empty()).then(|| (0..self.size()).find(|&id| self.bytes(id) == Some(bytes)))?;
        find(literal.as_bytes()).or_else(|| find(&as_token))
    }

    /// The id of a special token.
    pub(super) fn special_id(&self, literal: &str) -> Option<u32> {
        self.added.get(literal).filter(|(_, special)| *special).map(|(id, _)| *id)
    }

    /// Ids of the special tokens, rising.
    pub(super) fn special_ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.added.values().filter(|(_, special)| *special).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// Words for an error that a token was not found: the nearest special tokens.
    pub(super) fn suggest(&self, literal: &str) -> String {
        let mut special: Vec<&str> =
            self.added.iter().filter(|(_, (_, special))| *special).map(|(token, _)| token.as_str()).collect();
        if special.is_empty() {
            return "it has no special tokens".into();
        }
        if !literal.is_empty() {
            special.sort_by_key(|token| strsim::levenshtein(token, literal));
        }
        let shown: Vec<String> = special.iter().take(8).map(|token| format!("{token:?}")).collect();
        let more = special.len().saturating_sub(shown.len());
        let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("special tokens: {}{tail}", shown.join(", "))
    }
}

impl Style {
    fn of(definition: &Definition) -> Style {
        let parts = ["decoder", "pre_tokenizer", "normalizer"];
        let any = |kind: &str| parts.iter().any(|part| definition.has_step(part, kind));
        if any("ByteLevel") {
            return Style::ByteLevel;
        }
        let model = &definition.json["model"];
        let byte_fallback = model["byte_fallback"].as_bool().unwrap_or(false) || any("ByteFallback");
        if byte_fallback || any("Metaspace") || model["type"] == "Unigram" {
            return Style::Metaspace { byte_fallback };
        }
        if model["type"] == "WordPiece" { Style::WordPiece } else { Style::Plain }
    }

    fn write_bytes(self, token: &str, out: &mut Vec<u8>) {
        match self {
            Style::ByteLevel => {
                let start = out.len();
                for character in token.chars() {
                    match byte_of(character) {
                        Some(byte) => out.push(byte),
                        // Not written in the byte alphabet, so it stands for itself.
                        None => {
                            out.truncate(start);
                            out.extend_from_slice(token.as_bytes());
                            return;
                        }
                    }
                }
            }
            Style::Metaspace { byte_fallback } => {
                if byte_fallback && let Some(byte) = fallback_byte(token) {
                    return out.push(byte);
                }
                for (index, part) in token.split('\u{2581}').enumerate() {
                    if index > 0 {
                        out.push(b' ');
                    }
                    out.extend_from_slice(part.as_bytes());
                }
            }
            Style::WordPiece => match token.strip_prefix("##") {
                Some(rest) => out.extend_from_slice(rest.as_bytes()),
                None => {
                    out.push(b' ');
                    out.extend_from_slice(token.as_bytes());
                }
            },
            Style::Plain => out.extend_from_slice(token.as_bytes()),
        }
    }
}

/// The byte of `<0x0A>`.
fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}

/// The character that GPT-2 writes for `byte`: itself where it is printable, else the next from U+0100 on.
pub(super) fn char_of(byte: u8) -> char {
    let code = match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => u32::from(byte),
        0..=b' ' => 0x100 + u32::from(byte),
        0x7f..=0xa0 => 0x100 + 33 + u32::from(byte - 0x7f),
        0xad => 0x143,
    };
    char::from_u32(code).expect("all are below U+0144")
}

/// The byte that GPT-2 writes as `character`.
fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => Some(code as u8),
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The byte alphabet is a bijection, with the values everyone knows by sight.
    #[test]
    fn byte_alphabet_round_trips() {
        for byte in 0..=255u8 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(b'a')), ('Ġ', 'Ċ', 'a'));
        assert_eq!(byte_of('語'), None);
    }

    /// Each way of writing bytes as text, and back.
    #[test]
    fn tokens_become_bytes() {
        let check = |style: Style, token: &str, expected: &[u8]| {
            let mut bytes = Vec::new();
            style.write_bytes(token, &mut bytes);
            assert_eq!(bytes, expected, "{token:?}");
        };
        check(Style::ByteLevel, "ĠhÃ©", " hé".as_bytes());
        check(Style::ByteLevel, "<｜語｜>", "<｜語｜>".as_bytes());
        check(Style::Metaspace { byte_fallback: true }, "<0x0A>", b"\n");
        check(Style::Metaspace { byte_fallback: true }, "▁a▁", b" a ");
        check(Style::Metaspace { byte_fallback: false }, "<0x0A>", b"<0x0A>");
        check(Style::WordPiece, "##ing", b"ing");
        check(Style::WordPiece, "word", b" word");
    }

    #[test]
    fn bytes_have_three_tokens_more() {
        let vocabulary = Vocabulary::of_bytes();
        assert_eq!(vocabulary.size(), 259);
        assert_eq!(vocabulary.bytes(10), Some(&b"\n"[..]));
        assert_eq!(vocabulary.id("<eos>"), Some(256));
        assert_eq!(vocabulary.bytes(259), None);
    }
}
