//! What will run: the config with everything filled in that can be known without reading a text.
//!
//! Comes in: a [`Config`]. Goes out: a [`Plan`]: sources by name with their manifests, integer weights and dealings,
//! and the [`Fingerprint`] that a checkpoint must fit. Holds: a function of config and listing; sources are in the
//! order of their names, so their order in the config means nothing. Does not know: contents of shards.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::chat::{Chat, Clock, TemplateSource};
use crate::config::{BadRecord, Config};
use crate::error::{Error, ErrorKind, Result};
use crate::mixture::WEIGHT_UNIT;
use crate::shard::{Shard, ShardOptions};
use crate::source::{Dealing, Manifest, ManifestEntry, SavedManifests, SourceOptions, common_folder};
use crate::state::{Fingerprint, ShardStage, SourcePrint, TokenizerPrint, data_difference};
use crate::storage::{Checked, Store, Stores, scheme, shown};
use crate::tokenizer::Tokenizer;

/// What will run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The config it comes from.
    pub config: Config,
    /// The sources, by name.
    pub sources: Vec<PlannedSource>,
    /// Where the shards are.
    pub store: Arc<dyn Store>,
}

/// One source with its shards.
#[derive(Debug, Clone)]
pub struct PlannedSource {
    /// As configured.
    pub options: SourceOptions,
    /// Its shards.
    pub manifest: Arc<Manifest>,
    /// Share of the blocks, relative to the other sources'; 0 = off.
    pub weight: u64,
    /// Who reads which shard.
    pub dealing: Dealing,
    /// Dealings of fewer shards, in a run to which shards were appended: each holds below the epoch it stands with.
    pub earlier: Vec<(u32, Dealing)>,
    /// The chat template, where the source holds conversations.
    pub template: Option<Arc<TemplateSource>>,
}

impl PlannedSource {
    /// Hash of all that decides rows, where the source holds conversations.
    fn chat_hash(&self) -> Option<String> {
        Some(self.options.chat.as_ref()?.hash(self.template.as_ref()?))
    }

    /// What turns its records into tokens, where it holds conversations; templates see the time `now`.
    ///
    /// # Errors
    /// `Config` - the template can't be used, or the tokenizer not with chats.
    pub fn chat(&self, tokenizer: &Tokenizer, now: Clock) -> Result<Option<Chat>> {
        let (Some(options), Some(template)) = (&self.options.chat, &self.template) else { return Ok(None) };
        Chat::new(options.clone(), template, tokenizer, now)
            .map(Some)
            .map_err(|e| Error::new(e.kind(), format!("source {:?}: {}", self.name(), e.detail())))
    }

    /// The source's name.
    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// Whether some of its shards aren't files of this machine. Cost: a look at each.
    pub fn is_remote(&self) -> bool {
        self.manifest.shards.iter().any(|shard| scheme(&shard.location).is_some())
    }

    /// The stage of an epoch: how many times shards were appended up to it, of those that still count.
    pub fn stage_at(&self, epoch: u32) -> usize {
        self.earlier.iter().take_while(|(until, _)| epoch >= *until).count()
    }

    /// The dealing that holds in a stage, from 0; the last one is [`PlannedSource::dealing`].
    pub fn stage(&self, stage: usize) -> &Dealing {
        self.earlier.get(stage).map_or(&self.dealing, |(_, dealing)| dealing)
    }

    /// Number of stages.
    pub fn stages(&self) -> usize {
        self.earlier.len() + 1
    }

    /// The dealing that holds in an epoch.
    pub fn dealing_at(&self, epoch: u32) -> &Dealing {
        self.stage(self.stage_at(epoch))
    }
}

impl Plan {
    /// A plan over local files and remote objects, as the paths say; see [`Plan::with_store`].
    ///
    /// # Errors
    /// As [`Plan::with_store`].
    pub fn new(config: &Config) -> Result<Plan> {
        let store = Stores::new(&config.storage, config.runtime.memory, &config.base)?;
        Plan::with_store(config, Arc::new(store))
    }

    /// Lists the shards of every source in `store`.
    ///
    /// Cost: one listing; no shard is opened.
    ///
    /// # Errors
    /// `Config` for the config's own mistakes, `NotFound` for a path or glob without a file, `Read` for a folder that
    /// can't be listed.
    pub fn with_store(config: &Config, store: Arc<dyn Store>) -> Result<Plan> {
        config.check()?;
        let saved = config.manifest.as_deref().map(|place| saved(config, &*store, place)).transpose()?;
        let mut sources = Vec::new();
        for options in &config.source {
            let manifest = Arc::new(match &saved {
                Some((saved, place)) => saved.manifest(options, &config.base, place)?,
                None => list(options, config, &*store)?,
            });
            let dealing =
                Dealing::new(config.seed, &options.name, config.lanes, manifest.shards.len() as u64, &config.shuffle);
            let weight = match options.weight {
                Some(weight) => (weight * WEIGHT_UNIT).round() as u64,
                None => manifest.bytes(),
            };
            let tokenizer = config.tokenizer_options();
            let template = options.chat.as_ref().map(|chat| chat.find_template(&config.base, &tokenizer));
            let template = template
                .transpose()
                .map_err(|e| Error::new(e.kind(), format!("source {:?}: {}", options.name, e.detail())))?
                .map(Arc::new);
            let options = options.clone();
            sources.push(PlannedSource { options, manifest, weight, dealing, earlier: Vec::new(), template });
        }
        sources.sort_by(|a, b| a.name().cmp(b.name()));
        if let Some(empty) = sources.iter().find(|source| source.weight > 0 && source.manifest.bytes() == 0) {
            return Err(Error::new(
                ErrorKind::TooFewRecords,
                format!("all {} shards of source {:?} are empty", empty.manifest.shards.len(), empty.name()),
            ));
        }
        if sources.iter().all(|source| source.weight == 0) {
            return Err(Error::new(
                ErrorKind::Config,
                "no source has a weight above 0 (without weights, the size is the weight), expected at least one",
            ));
        }
        Ok(Plan { config: config.clone(), sources, store })
    }

    /// The manifests of all sources, to be kept as a file; see `manifest` of the config.
    ///
    /// # Errors
    /// As [`SavedManifests::new`].
    pub fn save_manifests(&self) -> Result<SavedManifests> {
        let sources = self.sources.iter().map(|source| (&source.options, &*source.manifest));
        SavedManifests::new(sources, &self.config.base)
    }

    /// The sources' weights, in order.
    pub fn weights(&self) -> Vec<u64> {
        self.sources.iter().map(|source| source.weight).collect()
    }

    /// What a checkpoint of this run must fit.
    pub fn fingerprint(&self, tokenizer: &Tokenizer) -> Fingerprint {
        let config = &self.config;
        Fingerprint {
            seed: config.seed,
            lanes: config.lanes,
            block_size: config.block_size,
            stop: config.stop,
            tokenizer: TokenizerPrint {
                name: tokenizer.name().to_owned(),
                vocab_size: tokenizer.vocab_size(),
                hash: tokenizer.hash().to_owned(),
            },
            packing: config.packing.clone(),
            shuffle: config.shuffle.clone(),
            sources: self
                .sources
                .iter()
                .map(|source| {
                    let print = SourcePrint {
                        shards: source.manifest.shards.len() as u64,
                        bytes: source.manifest.bytes(),
                        hash: source.manifest.hash(source.manifest.shards.len()),
                        marks: source.manifest.marks(source.manifest.shards.len() as u64),
                        format: source.options.format,
                        text_field: source.options.text_field.clone(),
                        separator: source.options.separator.clone(),
                        max_epochs: source.options.max_epochs,
                        chat: source.chat_hash(),
                    };
                    (source.name().to_owned(), print)
                })
                .collect(),
        }
    }

    /// What differs from the fingerprint `then` of a checkpoint, a sentence each; `now` is this plan's. Shards may have been
    /// appended where `on_new_shards` allows it; else the sentence says where the shards first differ.
    pub fn differences(&self, now: &Fingerprint, then: &Fingerprint) -> Vec<String> {
        now.compare(then, &mut |name, now, then| {
            let source = self.sources.iter().find(|source| source.name() == name)?;
            data_difference(&source.manifest, source.options.on_new_shards, now, then)
        })
    }

    /// The plan of a run to which shards were appended: sources that are in `stages` deal as many as each stage says.
    pub fn with_shard_stages(&self, stages: &BTreeMap<String, Vec<ShardStage>>) -> Plan {
        let mut plan = self.clone();
        for source in &mut plan.sources {
            let Some(stages) = stages.get(&source.options.name) else { continue };
            let config = &plan.config;
            let deal = |shards| Dealing::new(config.seed, &source.options.name, config.lanes, shards, &config.shuffle);
            source.earlier = stages.windows(2).map(|pair| (pair[1].from_epoch, deal(pair[0].shards))).collect();
        }
        plan
    }

    /// Opens a shard of a source as every reader of it must: with the parts that the dealing says.
    ///
    /// # Errors
    /// What opening gives; `Read` when the shard is gone, or doesn't have the size it was listed with.
    pub fn open_shard(&self, source: usize, shard: u64) -> Result<Shard> {
        self.open_shard_in(source, shard, usize::MAX)
    }

    /// Opens a shard as [`Plan::open_shard`] does, with the parts that hold in a stage of the source.
    pub(crate) fn open_shard_in(&self, source: usize, shard: u64, stage: usize) -> Result<Shard> {
        let planned = &self.sources[source];
        let entry = &planned.manifest.shards[shard as usize];
        let dealing = planned.stage(stage);
        let (span, window) = dealing.parts(entry.size);
        let options = ShardOptions {
            format: planned.options.format,
            text_field: planned.options.text_field.clone(),
            columns: planned.options.chat.as_ref().map(|chat| chat.columns()),
            separator: planned.options.separator.clone(),
            span,
            window,
            record_max: (self.config.runtime.memory.0 / 4).clamp(1 << 20, 1 << 30),
            units_min: dealing.units_min(),
            skip_damage: self.config.errors.bad_record == BadRecord::Skip,
        };
        let name: Arc<str> = shown(&entry.location).into();
        let object = self.store.open_version(&entry.location, entry.size, &entry.version).map_err(|error| {
            let error = match error.kind() {
                ErrorKind::NotFound => {
                    Error::new(ErrorKind::Read, "the shard is gone since it was listed").because(error)
                }
                _ => error,
            };
            error.in_shard(&name)
        })?;
        if object.size() != entry.size {
            let detail = format!("found {} bytes, expected {} as listed: the file changed", object.size(), entry.size);
            return Err(Error::new(ErrorKind::Read, detail).in_shard(&name));
        }
        Shard::open(Arc::new(Checked(object)), name, &options)
    }

    /// The lanes of `rank` among `world_size` ranks: those congruent to the rank.
    ///
    /// # Errors
    /// `Config` when the world size doesn't divide the lanes, or the rank is not below it.
    pub fn lanes_of(&self, rank: u32, world_size: u32) -> Result<Vec<u32>> {
        let lanes = self.config.lanes;
        if world_size == 0 || !lanes.is_multiple_of(world_size) {
            let divisors: Vec<u32> = (1..=lanes.min(1024)).filter(|w| lanes.is_multiple_of(*w)).collect();
            return Err(Error::new(
                ErrorKind::Config,
                format!("world size {world_size} doesn't divide lanes = {lanes}, expected one of {divisors:?}"),
            ));
        }
        if rank >= world_size {
            return Err(Error::new(
                ErrorKind::Config,
                format!("rank {rank} of {world_size}, expected 0 to {}", world_size - 1),
            ));
        }
        Ok((rank..lanes).step_by(world_size as usize).collect())
    }
}

/// The shards of a source, listed.
fn list(options: &SourceOptions, config: &Config, store: &dyn Store) -> Result<Manifest> {
    let listed = store
        .list(&options.paths, &config.base)
        .map_err(|error| error.reworded(|detail| format!("source {:?}: {detail}", options.name)))?;
    let root = common_folder(listed.iter().map(|listed| listed.name.as_str()));
    let mut shards: Vec<ManifestEntry> = listed
        .into_iter()
        .map(|l| ManifestEntry { location: l.location, name: l.name[root..].into(), size: l.size, version: l.version })
        .collect();
    shards.sort_by(|a, b| (&a.name, &a.location).cmp(&(&b.name, &b.location)));
    Ok(Manifest { shards })
}

/// Largest saved manifest that is read.
const MANIFEST_MAX: u64 = 4 << 30;

/// The saved manifests that the config names, and where they lie, for errors.
fn saved(config: &Config, store: &dyn Store, place: &str) -> Result<(SavedManifests, String)> {
    let location = match scheme(place) {
        Some(_) => place.to_owned(),
        None => config.resolve(place).to_string_lossy().into_owned(),
    };
    let named = |error: Error| Error::new(error.kind(), format!("manifest {}: {}", shown(place), error.detail()));
    let object = store.open(&location).map_err(named)?;
    if object.size() > MANIFEST_MAX {
        let detail =
            format!("manifest {}: found {} bytes, expected at most {MANIFEST_MAX}", shown(place), object.size());
        return Err(Error::new(ErrorKind::Limit, detail));
    }
    let mut bytes = vec![0; object.size() as usize];
    object.read_at(0, &mut bytes).map_err(named)?;
    Ok((SavedManifests::parse(&bytes, shown(place))?, shown(place).to_owned()))
}
