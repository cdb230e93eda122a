//! Parts of a text: what is cut at special tokens is encoded part by part, as the reference does it.
//!
//! Comes in: a part, and whether the text begins with it. Goes out: ids, and where they are in the part. Holds: the ids are those that the reference gives the part
//! within the whole text, also where it puts a space before the first part alone. Does not know: where texts are cut.

use std::sync::OnceLock;

use super::definition::Definition;
use super::engine::Loading;
use super::vocabulary::Vocabulary;
use super::{Encoder, EngineChoice, Group, SpecialTokens, Tokenizer, TokenizerOptions, engine, place};
use crate::error::Result;

impl Tokenizer {
    /// Appends the ids of a part of a text that was cut at its special tokens; `first` says that the text begins with it.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_into`].
    pub fn encode_part_into(&self, part: &str, first: bool, ids: &mut Vec<u32>) -> Result<()> {
        self.part_encoder(first)?.encode_into(part, ids)
    }

    /// Where the tokens of such a part are in it, in groups that decoding verifies; `None` where it can't.
    ///
    /// Cost: some ten times that of encoding, and at the first call loading the reference.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_into`].
    pub fn part_groups(&self, part: &str, first: bool) -> Result<Option<Vec<Group>>> {
        let encoder = self.part_encoder(first)?;
        let ranges = encoder.ranges(part)?;
        Ok(place::groups(part, &ranges, &self.vocabulary, self.unknown, &|part| encoder.normalized(part).ok()))
    }

    fn part_encoder(&self, first: bool) -> Result<&dyn Encoder> {
        match &self.inside {
            Some(inside) if !first => inside.encoder(),
            _ => Ok(&*self.encoder),
        }
    }
}

/// The definition, compressed, without the space that it puts before a text; and its encoder, loaded when it is first wanted: only
/// conversations do.
pub(super) struct Inside {
    packed: Vec<u8>,
    choice: EngineChoice,
    special_tokens: SpecialTokens,
    encoder: OnceLock<Result<Box<dyn Encoder>>>,
}

impl Inside {
    /// `None` where all parts are encoded alike.
    ///
    /// # Errors
    /// `Internal` - the definition can't be compressed.
    pub(super) fn of(definition: &Definition, options: &TokenizerOptions) -> Result<Option<Inside>> {
        let Some(json) = inside(definition) else { return Ok(None) };
        let (choice, special_tokens) = (options.engine, options.special_tokens);
        Ok(Some(Inside { packed: engine::pack(&json)?, choice, special_tokens, encoder: OnceLock::new() }))
    }

    fn encoder(&self) -> Result<&dyn Encoder> {
        let load = || {
            let json = engine::unpack(&self.packed);
            let mut definition = Definition { json, roles: Default::default() };
            std::thread::scope(|scope| {
                let loading = Loading::begin(scope, self.choice, self.special_tokens, &definition);
                let reference = engine::Reference::load(&mut definition, self.special_tokens)?;
                engine::choose(self.choice, loading, reference, definition).map(|(encoder, _)| encoder)
            })
        };
        self.encoder.get_or_init(load).as_deref().map_err(Clone::clone)
    }
}

/// The definition for parts of a text that aren't its first, where one step puts a space before the first alone
/// (`prepend_scheme = "first"`).
fn inside(definition: &Definition) -> Option<serde_json::Value> {
    // The number of places that were changed.
    fn never(value: &mut serde_json::Value) -> usize {
        match value {
            serde_json::Value::Object(fields) => {
                let first = fields.get_mut("prepend_scheme").filter(|scheme| *scheme == "first");
                let here = usize::from(first.map(|scheme| *scheme = "never".into()).is_some());
                here + fields.values_mut().map(never).sum::<usize>()
            }
            serde_json::Value::Array(items) => items.iter_mut().map(never).sum(),
            _ => 0,
        }
    }
    let mut pre_tokenizer = definition.json["pre_tokenizer"].clone();
    (never(&mut pre_tokenizer) > 0).then(|| {
        let mut json = definition.json.clone();
        json["pre_tokenizer"] = pre_tokenizer;
        json
    })
}

/// The id of the token for what isn't in the vocabulary.
pub(super) fn unknown(definition: &Definition, vocabulary: &Vocabulary) -> Option<u32> {
    let model = &definition.json["model"];
    let by_name = || vocabulary.id(model["unk_token"].as_str()?);
    model["unk_id"].as_u64().and_then(|id| u32::try_from(id).ok()).or_else(by_name)
}
