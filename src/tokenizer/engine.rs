//! The engines, and which of them encodes.
//!
//! Comes in: a definition and the wish of the configuration. Goes out: an [`Encoder`] and a sentence that says why this one.
//! Holds: ids are the reference's; the fast engine is used only where it loads the definition, every feature of it is one the
//! fast engine honours, and its ids equal the reference's on the probe.
//! Does not know: where the definition comes from.
//!
//! Why a probe at load and not a list of known files: the list would be of yesterday's files. Why not trust the probe alone:
//! it can't show what is random, or needs a text made for the file at hand; such features go to the reference unasked.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::thread::{Scope, ScopedJoinHandle};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokenizers::Normalizer as _;
use tokenizers::models::bpe::BPE;

use super::definition::{self, Definition, merge_parts};
use super::{Encoder, EngineChoice, SpecialTokens, probe};
use crate::error::{Error, ErrorKind, Result};

fn failed(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::Tokenizer, detail)
}

/// Runs code of a foreign crate; its panic becomes an error.
fn guarded<T>(what: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(failed(format!("{what} panicked: {words}")))
    })
}

/// The reference: Hugging Face's `tokenizers`.
pub(super) struct Reference(tokenizers::Tokenizer);

impl Reference {
    /// Loads `definition`, and corrects in it the ids of added tokens to those which the reference gives them: it looks them
    /// up in the model or counts on from there, whatever id the file states.
    pub(super) fn load(definition: &mut Definition, special_tokens: SpecialTokens) -> Result<Reference> {
        let tokenizer = Self::build(&definition.json, special_tokens)?;
        for token in definition.json["added_tokens"].as_array_mut().into_iter().flatten() {
            let content = token["content"].as_str().unwrap_or_default();
            let Some(id) = tokenizer.token_to_id(content) else { continue };
            if token["id"].as_u64() != Some(u64::from(id)) {
                tracing::warn!(token = content, stated = %token["id"], id, "an added token's id differs from the stated one");
                token["id"] = id.into();
            }
        }
        Ok(Reference(tokenizer))
    }

    /// What deserializing the whole JSON at once gives, with BPE models built in place.
    ///
    /// Why not at once: the crate then copies the model three times on the way, which takes four times as long.
    fn build(json: &Value, special_tokens: SpecialTokens) -> Result<tokenizers::Tokenizer> {
        let refused = |error: String| failed(format!("tokenizers can't load it: {error}"));
        guarded("tokenizers", || {
            let model = &json["model"];
            let mut tokenizer = if model["type"] == "BPE" {
                let mut parts: Map<String, Value> = Map::new();
                for (key, value) in json.as_object().into_iter().flatten() {
                    if key != "model" && key != "added_tokens" {
                        parts.insert(key.clone(), value.clone());
                    }
                }
                parts.insert("model".into(), json!({"type": "BPE", "vocab": {}, "merges": []}));
                let mut tokenizer =
                    tokenizers::Tokenizer::deserialize(Value::Object(parts)).map_err(|e| refused(e.to_string()))?;
                tokenizer.with_model(bpe(model).map_err(refused)?);
                let added = match &json["added_tokens"] {
                    Value::Null => Vec::new(),
                    added => Vec::<tokenizers::AddedToken>::deserialize(added).map_err(|e| refused(e.to_string()))?,
                };
                tokenizer.add_tokens(added).map_err(|e| refused(e.to_string()))?;
                tokenizer
            } else {
                tokenizers::Tokenizer::deserialize(json).map_err(|e| refused(e.to_string()))?
            };
            tokenizer.set_encode_special_tokens(special_tokens == SpecialTokens::Text);
            Ok(tokenizer)
        })
    }
}

/// The crate's BPE model of a definition's `model`.
fn bpe(model: &Value) -> Result<BPE, String> {
    let vocab = model["vocab"].as_object().ok_or("expected model.vocab to be an object")?;
    let vocab: ahash::AHashMap<String, u32> =
        vocab.iter().map(|(token, id)| (token.clone(), id.as_u64().expect("ids were checked") as u32)).collect();
    let listed = model["merges"].as_array().ok_or("expected model.merges to be a list")?;
    let mut merges = Vec::with_capacity(listed.len());
    for merge in listed {
        match merge_parts(merge) {
            Some((left, right)) => merges.push((left.to_string(), right.to_string())),
            // The first line of a merges.txt.
            None if merge.as_str().is_some_and(|line| line.starts_with("#version")) => {}
            None => return Err(format!("found the merge {merge}, expected two parts")),
        }
    }
    let mut builder = BPE::builder().vocab_and_merges(vocab, merges);
    let text = |key: &str| match &model[key] {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        other => Err(format!("model.{key} is {other}, expected a string")),
    };
    let flag = |key: &str| match &model[key] {
        Value::Null => Ok(false),
        Value::Bool(flag) => Ok(*flag),
        other => Err(format!("model.{key} is {other}, expected true or false")),
    };
    match &model["dropout"] {
        Value::Null => {}
        Value::Number(dropout) => builder = builder.dropout(dropout.as_f64().unwrap_or(f64::NAN) as f32),
        other => return Err(format!("model.dropout is {other}, expected a number")),
    }
    if let Some(token) = text("unk_token")? {
        builder = builder.unk_token(token);
    }
    if let Some(prefix) = text("continuing_subword_prefix")? {
        builder = builder.continuing_subword_prefix(prefix);
    }
    if let Some(suffix) = text("end_of_word_suffix")? {
        builder = builder.end_of_word_suffix(suffix);
    }
    builder =
        builder.fuse_unk(flag("fuse_unk")?).byte_fallback(flag("byte_fallback")?).ignore_merges(flag("ignore_merges")?);
    builder.build().map_err(|error| error.to_string())
}

impl Encoder for Reference {
    fn ranges(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>> {
        let encoding = guarded("tokenizers", || {
            self.0.encode(text, false).map_err(|error| failed(format!("tokenizers can't encode: {error}")))
        })?;
        let ranges = encoding.get_offsets().iter().map(|&(start, end)| start..end);
        Ok(encoding.get_ids().iter().copied().zip(ranges).collect())
    }

    fn normalized(&self, text: &str) -> Result<String> {
        let Some(normalizer) = self.0.get_normalizer() else { return Ok(text.to_owned()) };
        let mut normalized = tokenizers::NormalizedString::from(text);
        guarded("tokenizers", || {
            normalizer
                .normalize(&mut normalized)
                .map_err(|error| failed(format!("tokenizers can't normalize: {error}")))
        })?;
        Ok(normalized.get().to_owned())
    }

    fn encode_into(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        let encoding = guarded("tokenizers", || {
            self.0.encode_fast(text, false).map_err(|error| failed(format!("tokenizers can't encode: {error}")))
        })?;
        ids.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    fn engine(&self) -> &'static str {
        "tokenizers"
    }
}

/// The fast engine, with the reference behind it for the texts on which the two are known to differ.
struct Fast {
    tokenizer: fastokens::Tokenizer,
    policy: fastokens::AddedTokenPolicy,
    /// Texts that one of these holds for are encoded by the reference.
    exceptions: Vec<&'static Exception>,
    /// The definition, compressed, from which the reference is loaded when the first such text comes, or one of which it is asked where tokens are: most
    /// runs see none, and a loaded reference takes 100 MB.
    packed: Vec<u8>,
    special_tokens: SpecialTokens,
    reference: OnceLock<Result<Reference>>,
}

/// A property of texts that the fast engine has been seen to read differently, for some definitions.
struct Exception {
    name: &'static str,
    holds: fn(&str) -> bool,
}

/// Each is used only for definitions on which the probe shows that difference.
const EXCEPTIONS: &[Exception] = &[
    // The patterns' `(?i:'s)` takes `'ſ` as well, since ſ is an s to Unicode; the fast scanner of o200k's family doesn't.
    Exception { name: "a long s", holds: |text| memchr::memmem::find(text.as_bytes(), "ſ".as_bytes()).is_some() },
];

/// Makes the fast engine encode on the thread that calls it alone, for the life of the process.
///
/// It would cut texts of 64 KB and more for threads of its own, one for each core: beyond `runtime.threads`, beside workers that are
/// busy already, with caches that know no word, and not there any more after a fork. It asks once how many there are to be, and takes no
/// more than the asking thread may run on; so the first to ask is a thread that may run on one core.
#[cfg(target_os = "linux")]
fn encode_on_the_calling_thread() {
    use std::sync::Once;
    static ASKED: Once = Once::new();
    ASKED.call_once(|| {
        let ask = || {
            // SAFETY: takes nothing and returns a number.
            let core = usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0);
            if core < libc::CPU_SETSIZE as usize {
                // SAFETY: a set is an array of integers, so zeros are one without cores; `core` is within it; the call reads as
                // many bytes as it is told, and changes this thread, which ends here, and no other.
                unsafe {
                    let mut cores: libc::cpu_set_t = std::mem::zeroed();
                    libc::CPU_SET(core, &mut cores);
                    libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &cores);
                }
            }
            fastokens::fanout::threads()
        };
        let threads = std::thread::Builder::new().spawn(ask).ok().and_then(|asking| asking.join().ok());
        if threads != Some(1) {
            tracing::warn!(?threads, "fastokens encodes long texts on threads of its own as well");
        }
    });
}

/// There is no way to ask for it here.
#[cfg(not(target_os = "linux"))]
fn encode_on_the_calling_thread() {}

impl Fast {
    fn load(mut definition: Definition, special_tokens: SpecialTokens) -> Result<Fast> {
        encode_on_the_calling_thread();
        fill_unused_ids(&mut definition)?;
        let tokenizer = guarded("fastokens", || {
            fastokens::Tokenizer::from_json(definition.json)
                .map_err(|error| failed(format!("fastokens can't load it: {error}")))
        })?;
        let policy = match special_tokens {
            SpecialTokens::Text => fastokens::AddedTokenPolicy::SkipSpecial,
            SpecialTokens::Parse => fastokens::AddedTokenPolicy::All,
        };
        Ok(Fast {
            tokenizer,
            policy,
            exceptions: Vec::new(),
            packed: Vec::new(),
            special_tokens,
            reference: OnceLock::new(),
        })
    }

    /// The reference, loaded at the first call.
    fn reference(&self) -> Result<&Reference> {
        let load = || {
            let json = unpack(&self.packed);
            tracing::info!(
                "the reference is loaded for a document that the fast engine would read differently, or can't place the tokens of"
            );
            Reference::build(&json, self.special_tokens).map(Reference)
        };
        self.reference.get_or_init(load).as_ref().map_err(Clone::clone)
    }
}

/// Gives unused ids below the largest one a token that no text can reach: the fast engine wants none unused.
fn fill_unused_ids(definition: &mut Definition) -> Result<()> {
    let unused = definition.unused_ids();
    if unused.len() > UNUSED_IDS_MAX {
        return Err(failed(format!(
            "{} ids are unused, fastokens is tried with at most {UNUSED_IDS_MAX}",
            unused.len()
        )));
    }
    if unused.is_empty() {
        return Ok(());
    }
    if !definition.has_step("pre_tokenizer", "ByteLevel") {
        // Only there is a character outside of the byte alphabet certain not to stand in what the model is given.
        return Err(failed("an id is unused, which fastokens is only tried with for byte-level definitions"));
    }
    if let Some(vocab) = definition.json["model"]["vocab"].as_object_mut() {
        vocab.extend(unused.into_iter().map(|id| (format!("\u{10fffd}{id}"), id.into())));
    }
    Ok(())
}

/// A vocabulary with more unused ids than this isn't an ordinary one.
const UNUSED_IDS_MAX: usize = 65_536;

impl Encoder for Fast {
    fn ranges(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>> {
        self.reference()?.ranges(text)
    }

    fn normalized(&self, text: &str) -> Result<String> {
        self.reference()?.normalized(text)
    }

    fn encode_into(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        if self.exceptions.iter().any(|exception| (exception.holds)(text)) {
            return self.reference()?.encode_into(text, ids);
        }
        let encoded = guarded("fastokens", || {
            self.tokenizer
                .encode_with_policy(text, false, self.policy)
                .map_err(|error| failed(format!("fastokens can't encode: {error}")))
        })?;
        ids.extend_from_slice(&encoded);
        Ok(())
    }

    fn engine(&self) -> &'static str {
        "fastokens"
    }
}

/// Each byte is its own id.
pub(super) struct Bytes;

impl Encoder for Bytes {
    fn ranges(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>> {
        Ok(text.bytes().map(u32::from).zip((0..).map(|at| at..at + 1)).collect())
    }

    fn normalized(&self, text: &str) -> Result<String> {
        Ok(text.to_owned())
    }

    fn encode_into(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        ids.extend(text.bytes().map(u32::from));
        Ok(())
    }

    fn engine(&self) -> &'static str {
        "bytes"
    }
}

/// The fast engine while it loads: on a thread of its own, since that takes several times as long as all that is made of the reference
/// and of the definition, which the caller does meanwhile; or at the end, where there is one core.
pub(super) struct Loading<'scope> {
    /// Or why it isn't tried; none is there yet if it is loaded at the end.
    engine: Result<Option<ScopedJoinHandle<'scope, Result<Fast>>>>,
    /// The added tokens, as it was given them.
    added_tokens: Value,
    special_tokens: SpecialTokens,
}

impl<'scope> Loading<'scope> {
    /// Begins to load `definition`, or a copy of it, unless the reference is demanded or no ids of the fast engine could be relied on.
    pub(super) fn begin(
        scope: &'scope Scope<'scope, '_>,
        choice: EngineChoice,
        special_tokens: SpecialTokens,
        definition: &Definition,
    ) -> Loading<'scope> {
        let against = match choice {
            EngineChoice::Tokenizers => Some("the configuration says so".into()),
            _ => beyond_the_fast_engine(definition).map(|feature| format!("fastokens doesn't honour {feature}")),
        };
        let engine = match against {
            Some(reason) => Err(failed(reason)),
            None => Ok(std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1).then(|| {
                let copy = definition.clone();
                scope.spawn(move || Fast::load(copy, special_tokens))
            })),
        };
        Loading { engine, added_tokens: definition.json["added_tokens"].clone(), special_tokens }
    }

    /// The engine for `definition`, which is what it was given but for corrected ids.
    fn end(self, definition: Definition) -> Result<Fast> {
        let same = self.added_tokens == definition.json["added_tokens"];
        match self.engine?.filter(|_| same) {
            Some(engine) => {
                drop(definition);
                engine.join().expect("panics of the engine are errors")
            }
            None => Fast::load(definition, self.special_tokens),
        }
    }
}

/// The encoder for `definition`, and why this one. `loading` was begun with it before the reference was loaded.
///
/// # Errors
/// * `Tokenizer` - the fast engine is demanded, and doesn't load the definition or differs from the reference.
pub(super) fn choose(
    choice: EngineChoice,
    loading: Loading,
    reference: Reference,
    definition: Definition,
) -> Result<(Box<dyn Encoder>, String)> {
    match fast(loading, &reference, definition) {
        Ok(fast) => {
            let names: Vec<&str> = fast.exceptions.iter().map(|exception| exception.name).collect();
            let mut reason = "fastokens: ids equal the reference's on the probe".to_string();
            if !names.is_empty() {
                reason.push_str(&format!(" (texts with {} go to the reference)", names.join(", ")));
            }
            Ok((Box::new(fast), reason))
        }
        Err(error) if choice == EngineChoice::Fastokens => {
            let detail = format!(
                "engine = \"fastokens\" can't be used: {}; expected \"auto\" or \"tokenizers\"",
                error.detail()
            );
            Err(failed(detail))
        }
        Err(error) => Ok((Box::new(reference), format!("tokenizers: {}", error.detail()))),
    }
}

fn fast(loading: Loading, reference: &Reference, definition: Definition) -> Result<Fast> {
    if let Err(reason) = &loading.engine {
        return Err(reason.clone());
    }
    let probes = probe::texts(&definition);
    let packed = pack(&definition.json)?;
    let encode = |probe: &String| {
        let mut ids = Vec::new();
        reference.encode_into(probe, &mut ids).map(|()| ids)
    };
    let expected = probes.iter().map(encode).collect::<Result<Vec<_>>>()?;
    let mut fast = loading.end(definition)?;
    let mut found = Vec::new();
    for (probe, expected) in probes.iter().zip(&expected) {
        found.clear();
        if fast.exceptions.iter().any(|exception| (exception.holds)(probe)) {
            continue;
        }
        fast.encode_into(probe, &mut found)?;
        if *expected == found {
            continue;
        }
        if let Some(exception) = EXCEPTIONS.iter().find(|exception| (exception.holds)(probe)) {
            fast.exceptions.push(exception);
            continue;
        }
        let at = expected.iter().zip(&found).take_while(|(a, b)| a == b).count();
        let shown: String = probe.chars().take(60).collect();
        return Err(failed(format!(
            "fastokens differs from the reference on the probe {shown:?}: token {at} is {}, expected {}",
            found.get(at).map_or("missing".into(), u32::to_string),
            expected.get(at).map_or("none".into(), u32::to_string),
        )));
    }
    fast.packed = packed;
    Ok(fast)
}

/// The JSON that [`pack`] compressed.
pub(super) fn unpack(packed: &[u8]) -> Value {
    let unpacked = zstd::decode_all(packed).expect("it was compressed by this process");
    definition::parse(&unpacked).expect("it was written by this process")
}

/// The JSON, compressed.
pub(super) fn pack(json: &Value) -> Result<Vec<u8>> {
    let failed =
        |error: std::io::Error| Error::new(ErrorKind::Internal, "a tokenizer can't be compressed").because(error);
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).map_err(failed)?;
    serde_json::to_writer(&mut encoder, json).map_err(|error| failed(error.into()))?;
    encoder.finish().map_err(failed)
}

/// The first feature of `definition` which the fast engine is not relied on for.
fn beyond_the_fast_engine(definition: &Definition) -> Option<String> {
    let model = &definition.json["model"];
    if model["type"] != "BPE" {
        return Some(format!("a model of type {}", model["type"]));
    }
    if model["dropout"].as_f64().is_some_and(|dropout| dropout != 0.0) {
        return Some("dropout".into());
    }
    for affix in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if model[affix].as_str().is_some_and(|affix| !affix.is_empty()) {
            return Some(affix.into());
        }
    }
    let tokens = definition.json["added_tokens"].as_array()?;
    tokens
        .iter()
        .find(|token| token["single_word"] == true)
        .map(|token| format!("single_word (token {})", token["content"]))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    /// A long text takes the caller's thread alone, however many cores there are: `runtime.threads` is all that a run uses.
    #[test]
    fn the_fast_engine_starts_no_threads() {
        super::encode_on_the_calling_thread();
        assert_eq!(fastokens::fanout::threads(), 1);
    }
}
