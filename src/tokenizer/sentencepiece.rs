//! SentencePiece models, turned into a definition.
//!
//! Comes in: the bytes of a `*.model`. Goes out: a [`Definition`] that gives the ids of the sentencepiece library.
//! Holds: BPE and unigram models; a piece's id is its place in the file. Does not know: engines.
//!
//! Where Hugging Face's converters and the library differ, the library is followed:
//! * converters list every pair of pieces that makes a piece; here each piece has the one pair that the library joins last
//!   (see `tiktoken.rs`, whose argument holds for scores as it does for ranks);
//! * a control piece's literal in a text (`</s>`) is never that piece; in a unigram model its score is lowered below any other
//!   way to write the same text, where converters leave it at 0, the best of all;
//! * runs of spaces shrink to one only where the model says so, and the space before the first word is the model's wish.
//!
//! Not followed: a text that is nothing but a user-defined piece gets no space before it; the precompiled table of replacements is
//! applied as `tokenizers` does, to clusters of characters; a unigram model sums scores in 64 bits where the library has 32, so
//! of two ways to write a word whose scores are equal but for rounding it may take the other (in one document of 70, seen with
//! a vocabulary of 8000).
//!
//! Source: sentencepiece_model.proto, normalizer.cc, bpe_model.cc, unigram_model.cc of google/sentencepiece.

use std::collections::HashMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use prost::Message;
use serde_json::{Map, Value, json};

use super::definition::{Definition, ID_LIMIT, Roles, merge};
use crate::error::{Error, ErrorKind, Result};

#[derive(Clone, PartialEq, Message)]
struct Model {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<Trainer>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<Normalizer>,
}

#[derive(Clone, PartialEq, Message)]
struct Piece {
    #[prost(string, optional, tag = "1")]
    piece: Option<String>,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    #[prost(int32, optional, tag = "3", default = "1")]
    kind: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Trainer {
    #[prost(int32, optional, tag = "3", default = "1")]
    model_type: Option<i32>,
    #[prost(bool, optional, tag = "24")]
    treat_whitespace_as_suffix: Option<bool>,
    #[prost(bool, optional, tag = "35")]
    byte_fallback: Option<bool>,
    #[prost(int32, optional, tag = "41", default = "1")]
    bos_id: Option<i32>,
    #[prost(int32, optional, tag = "42", default = "2")]
    eos_id: Option<i32>,
    #[prost(int32, optional, tag = "43", default = "-1")]
    pad_id: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Normalizer {
    #[prost(bytes = "vec", optional, tag = "2")]
    precompiled_charsmap: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3", default = "true")]
    add_dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4", default = "true")]
    remove_extra_whitespaces: Option<bool>,
    #[prost(bool, optional, tag = "5", default = "true")]
    escape_whitespaces: Option<bool>,
}

/// Kinds of pieces.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// Kinds of models.
const UNIGRAM: i32 = 1;
const BPE: i32 = 2;

/// The space, as pieces write it.
const SPACE: char = '\u{2581}';

/// Finding a piece's merge is quadratic in its length; the library's default bound is 16 characters.
const PIECE_BYTES_MAX: usize = 4096;

fn malformed(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::Tokenizer, detail)
}

/// The definition of a SentencePiece model.
///
/// # Errors
/// * `Tokenizer` - malformed, or of a kind that isn't supported (word and character models, spaces as suffixes).
pub(super) fn definition(bytes: &[u8]) -> Result<Definition> {
    let model = Model::decode(bytes).map_err(|error| malformed(format!("not a SentencePiece model: {error}")))?;
    let trainer = model.trainer.clone().unwrap_or_default();
    let normalizer = model.normalizer.clone().unwrap_or_default();
    if model.pieces.is_empty() || model.pieces.len() as u64 >= ID_LIMIT {
        return Err(malformed(format!("{} pieces, expected 1 to {ID_LIMIT}", model.pieces.len())));
    }
    if trainer.treat_whitespace_as_suffix() {
        return Err(malformed("spaces are suffixes in this SentencePiece model, which isn't supported"));
    }
    let mut ids = HashMap::with_capacity(model.pieces.len());
    for (id, piece) in model.pieces.iter().enumerate() {
        if piece.piece().is_empty() || piece.piece().len() > PIECE_BYTES_MAX || piece.score.is_some_and(f32::is_nan) {
            return Err(malformed(format!("piece {id} is empty, too long or has no score")));
        }
        if ids.insert(piece.piece(), id as u32).is_some() {
            return Err(malformed(format!("piece {id} stands twice: {:?}", piece.piece())));
        }
    }
    let unknown = model.pieces.iter().position(|piece| piece.kind() == UNKNOWN);
    let unknown = unknown.ok_or_else(|| malformed("no piece is the unknown one"))?;
    let model_json = match trainer.model_type() {
        BPE => bpe(&model, &trainer, unknown)?,
        UNIGRAM => unigram(&model, &trainer, unknown),
        other => return Err(malformed(format!("SentencePiece model type {other}, expected unigram (1) or BPE (2)"))),
    };
    let added: Vec<Value> = model
        .pieces
        .iter()
        .enumerate()
        .filter(|(_, piece)| [UNKNOWN, CONTROL, USER_DEFINED].contains(&piece.kind()))
        .map(|(id, piece)| {
            let special = piece.kind() != USER_DEFINED;
            json!({"id": id, "content": piece.piece(), "single_word": false, "lstrip": false, "rstrip": false, "normalized": !special,
                "special": special})
        })
        .collect();
    let (normalizer_json, pre_tokenizer) = steps(&model, &trainer, &normalizer);
    let role = |id: i32| {
        let piece = model.pieces.get(usize::try_from(id).ok()?)?;
        (piece.kind() == CONTROL).then(|| piece.piece().to_string())
    };
    let roles = Roles { eos: role(trainer.eos_id()), bos: role(trainer.bos_id()), pad: role(trainer.pad_id()) };
    let root = json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": normalizer_json,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        ]},
        "model": model_json,
    });
    Definition::new(root, roles)
}

/// The normalizer and the pre-tokenizer.
fn steps(model: &Model, trainer: &Trainer, normalizer: &Normalizer) -> (Value, Value) {
    let mut steps = Vec::new();
    if let Some(table) = normalizer.precompiled_charsmap.as_ref().filter(|table| !table.is_empty()) {
        steps.push(json!({"type": "Precompiled", "precompiled_charsmap": BASE64_STANDARD.encode(table)}));
    }
    if normalizer.remove_extra_whitespaces() {
        steps.push(json!({"type": "Replace", "pattern": {"Regex": r"\A +|[ \u{2581}]+\z".replace(r"\u{2581}", "\u{2581}")}, "content": ""}));
        steps.push(json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}));
    }
    let mut pre_tokenizers = Vec::new();
    if normalizer.add_dummy_prefix() {
        let user_defined: Vec<String> = model
            .pieces
            .iter()
            .filter(|piece| piece.kind() == USER_DEFINED)
            .map(|piece| literal_regex(piece.piece()))
            .collect();
        if user_defined.is_empty() {
            steps.push(json!({"type": "Prepend", "prepend": "\u{2581}"}));
        } else {
            // A user-defined piece is looked for in the normalized text, as what the normalizer makes of its literal alone: so the
            // literal alone, and nothing else, must not get the space.
            let regex = format!(r"\A(?!\z)(?!(?:{})\z)", user_defined.join("|"));
            steps.push(json!({"type": "Replace", "pattern": {"Regex": regex}, "content": "\u{2581}"}));
        }
    }
    if normalizer.escape_whitespaces() {
        steps.push(json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}));
    }
    // A unigram model finds the best path through the whole text. No piece goes on after a space: then the parts between
    // spaces have best paths of their own.
    let inner_space =
        model.pieces.iter().any(|piece| piece.piece().chars().skip(1).any(|character| character == SPACE));
    if trainer.model_type() == UNIGRAM && !inner_space {
        pre_tokenizers.push(
            json!({"type": "Split", "pattern": {"String": "\u{2581}"}, "behavior": "MergedWithNext", "invert": false}),
        );
    }
    let all = |mut steps: Vec<Value>, key: &str| match steps.len() {
        0 => Value::Null,
        1 => steps.remove(0),
        _ => json!({"type": "Sequence", key: steps}),
    };
    (all(steps, "normalizers"), all(pre_tokenizers, "pretokenizers"))
}

/// A regular expression for `text` alone.
fn literal_regex(text: &str) -> String {
    let mut regex = String::new();
    for character in text.chars() {
        if character.is_ascii_punctuation() {
            regex.push('\\');
        }
        regex.push(character);
    }
    regex
}

fn bpe(model: &Model, trainer: &Trainer, unknown: usize) -> Result<Value> {
    if let Some(piece) = model.pieces.iter().find(|piece| piece.kind() == UNUSED) {
        return Err(malformed(format!(
            "piece {:?} is marked unused, which isn't supported in BPE models",
            piece.piece()
        )));
    }
    // What can be joined: neither control pieces nor bytes.
    let joined = model.pieces.iter().filter(|piece| piece.kind() == NORMAL || piece.kind() == USER_DEFINED);
    let scores: HashMap<&str, f32> = joined.map(|piece| (piece.piece(), piece.score())).collect();
    let mut merges: Vec<(f32, &str, usize)> = Vec::new();
    for piece in model.pieces.iter().filter(|piece| piece.kind() == NORMAL) {
        if let Some(cut) = last_cut(piece.piece(), &scores) {
            merges.push((piece.score(), piece.piece(), cut));
        }
    }
    // The best score first. Llama's runs of spaces share one score; the library then joins the leftmost pair first, so it makes one
    // run longer and longer, which the longer piece being first brings about here.
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.len().cmp(&a.1.len())));
    let merges: Vec<Value> = merges.into_iter().map(|(_, piece, cut)| merge(&piece[..cut], &piece[cut..])).collect();
    let vocab: Map<String, Value> =
        model.pieces.iter().enumerate().map(|(id, piece)| (piece.piece().to_string(), id.into())).collect();
    let mut json = json!({
        "type": "BPE", "dropout": null, "unk_token": model.pieces[unknown].piece(), "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": trainer.byte_fallback(), "ignore_merges": false,
    });
    let fields = json.as_object_mut().expect("made above");
    fields.insert("vocab".into(), Value::Object(vocab));
    fields.insert("merges".into(), Value::Array(merges));
    Ok(json)
}

/// Where the last join of `piece` falls when its characters are encoded alone; `None` if they don't join to it.
fn last_cut(piece: &str, scores: &HashMap<&str, f32>) -> Option<usize> {
    let mut starts: Vec<usize> = piece.char_indices().map(|(at, _)| at).chain([piece.len()]).collect();
    while starts.len() > 3 {
        let mut best: Option<(f32, usize)> = None;
        for index in 0..starts.len() - 2 {
            if let Some(&score) = scores.get(&piece[starts[index]..starts[index + 2]])
                && best.is_none_or(|(highest, _)| score > highest)
            {
                best = Some((score, index));
            }
        }
        starts.remove(best?.1 + 1);
    }
    (starts.len() == 3).then(|| starts[1])
}

fn unigram(model: &Model, trainer: &Trainer, unknown: usize) -> Value {
    let normal = model.pieces.iter().filter(|piece| piece.kind() == NORMAL);
    let lowest = normal.map(|piece| f64::from(piece.score())).fold(0.0, f64::min);
    let vocab: Vec<Value> = model
        .pieces
        .iter()
        .map(|piece| {
            let score = match piece.kind() {
                // Below the same text as characters, each of them unknown. That moves the score of unknown characters, which
                // `tokenizers` puts 10 below the lowest, down as well; they are the last resort either way.
                CONTROL | UNUSED => (lowest - 10.0) * (piece.piece().chars().count() + 1) as f64,
                _ => f64::from(piece.score()),
            };
            json!([piece.piece(), score])
        })
        .collect();
    json!({"type": "Unigram", "unk_id": unknown, "vocab": vocab, "byte_fallback": trainer.byte_fallback()})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(text: &str, score: f32, kind: i32) -> Piece {
        Piece { piece: Some(text.into()), score: Some(score), kind: Some(kind) }
    }

    fn encoded(model_type: i32, extra: Vec<Piece>) -> Vec<u8> {
        let mut pieces = vec![piece("<unk>", 0.0, UNKNOWN), piece("<s>", 0.0, CONTROL), piece("</s>", 0.0, CONTROL)];
        pieces.extend(extra);
        let trainer = Trainer { model_type: Some(model_type), ..Trainer::default() };
        let normalizer = Normalizer { remove_extra_whitespaces: Some(false), ..Normalizer::default() };
        Model { pieces, trainer: Some(trainer), normalizer: Some(normalizer) }.encode_to_vec()
    }

    /// The pair of a piece is the library's last join, and runs of spaces with one score grow from the left.
    #[test]
    fn merges_follow_the_library() {
        let pieces = [
            ("▁▁", -9.0),
            ("▁▁▁", -9.0),
            ("▁▁▁▁", -9.0),
            ("bc", -1.0),
            ("abc", -2.0),
            ("▁", -20.0),
            ("a", -21.0),
            ("b", -22.0),
            ("c", -23.0),
        ];
        let made = definition(&encoded(BPE, pieces.iter().map(|&(text, score)| piece(text, score, NORMAL)).collect()))
            .unwrap();
        let merges: Vec<&str> =
            made.json["model"]["merges"].as_array().unwrap().iter().map(|m| m.as_str().unwrap()).collect();
        assert_eq!(merges, ["b c", "a bc", "▁▁▁ ▁", "▁▁ ▁", "▁ ▁"]);
        assert_eq!(made.roles, Roles { eos: Some("</s>".into()), bos: Some("<s>".into()), pad: None });
    }

    /// A control piece is never the best way to write its own literal.
    #[test]
    fn control_pieces_score_below_characters() {
        let letters = ["▁", "<", "s", "/", ">"].map(|text| piece(text, -12.0, NORMAL));
        let made = definition(&encoded(UNIGRAM, letters.to_vec())).unwrap();
        let score = made.json["model"]["vocab"][2][1].as_f64().unwrap();
        assert!(score < 4.0 * (-12.0 - 10.0), "{score}");
    }

    #[test]
    fn malformed_models_are_errors() {
        let check =
            |bytes: &[u8]| assert_eq!(definition(bytes).err().map(|error| error.kind()), Some(ErrorKind::Tokenizer));
        check(b"");
        check(b"\xff\xff\xff\xff");
        check(&encoded(3, vec![]));
        check(&encoded(BPE, vec![piece("a", 0.0, NORMAL), piece("a", 0.0, NORMAL)]));
        check(&encoded(BPE, vec![piece("a", f32::NAN, NORMAL)]));
        let good = encoded(BPE, vec![piece("a", 0.0, NORMAL)]);
        check(&good[..good.len() - 3]);
    }
}
