//! A listing kept as a file: saved once, given to every rank, in place of listing a bucket a thousand times.
//!
//! Comes in: the manifests of a plan, or the file. Goes out: the file, or the manifests. Holds: what is read back gives the same plan;
//! a file that was saved for other sources or other paths is refused; a remote shard carries its version, so one that was
//! replaced since is an error when it is read. Does not know: where the file lies.
//!
//! ```json
//! {"tokenmill_manifest": 1, "sources": {"web": {"paths": ["s3://b/web/*"], "shards": [
//!   {"name": "0.jsonl", "location": "s3://b/web/0.jsonl", "size": 12, "tag": "\"9a…\""}]}}}
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Manifest, ManifestEntry, SourceOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::{Version, scheme, shown};

/// The version of the format.
const VERSION: u32 = 1;

/// Manifests by source, as they are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedManifests {
    tokenmill_manifest: u32,
    sources: BTreeMap<String, SavedSource>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedSource {
    /// The patterns that were listed.
    paths: Vec<String>,
    shards: Vec<SavedShard>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SavedShard {
    name: String,
    /// Of a local shard relative to the config's folder, where it lies below.
    location: String,
    size: u64,
    #[serde(flatten)]
    version: Version,
}

impl SavedManifests {
    /// The manifests of `sources`, local ones relative to `base`.
    ///
    /// # Errors
    /// `Config` - a URL with a query, which may hold a secret and so isn't stored.
    pub fn new<'a>(
        sources: impl Iterator<Item = (&'a SourceOptions, &'a Manifest)>,
        base: &Path,
    ) -> Result<SavedManifests> {
        let shard = |entry: &ManifestEntry| {
            if shown(&entry.location) != entry.location {
                return Err(Error::new(
                    ErrorKind::Config,
                    format!(
                        "{} has a query in its URL, which may hold a secret; expected none in a manifest that is saved",
                        shown(&entry.location)
                    ),
                ));
            }
            let below = Path::new(&entry.location).strip_prefix(base).ok().and_then(Path::to_str);
            let location = below.filter(|_| scheme(&entry.location).is_none()).unwrap_or(&entry.location);
            Ok(SavedShard {
                name: entry.name.to_string(),
                location: location.to_owned(),
                size: entry.size,
                version: entry.version.clone(),
            })
        };
        let sources = sources
            .map(|(options, manifest)| {
                let shards = manifest.shards.iter().map(shard).collect::<Result<_>>()?;
                Ok((options.name.clone(), SavedSource { paths: options.paths.clone(), shards }))
            })
            .collect::<Result<_>>()?;
        Ok(SavedManifests { tokenmill_manifest: VERSION, sources })
    }

    /// As it is kept.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("strings and numbers are JSON");
        bytes.push(b'\n');
        bytes
    }

    /// Reads what [`SavedManifests::to_bytes`] gave; `place` is for errors.
    ///
    /// # Errors
    /// `Config` - it isn't that, or of another version.
    pub fn parse(bytes: &[u8], place: &str) -> Result<SavedManifests> {
        let wrong = |detail: String| Error::new(ErrorKind::Config, format!("manifest {place}: {detail}"));
        let saved: SavedManifests = serde_json::from_slice(bytes)
            .map_err(|error| wrong("not one that `tokenmill plan --save-manifest` wrote".into()).because(error))?;
        if saved.tokenmill_manifest != VERSION {
            return Err(wrong(format!("found version {}, expected {VERSION}", saved.tokenmill_manifest)));
        }
        Ok(saved)
    }

    /// The manifest of a source; relative locations are below `base`, `place` is for errors.
    ///
    /// # Errors
    /// `Config` - the file is of other sources, or of other paths.
    pub fn manifest(&self, options: &SourceOptions, base: &Path, place: &str) -> Result<Manifest> {
        let wrong = |detail: String| {
            Error::new(ErrorKind::Config, format!("manifest {place}: {detail}; save it again, or leave it out"))
        };
        let Some(source) = self.sources.get(&options.name) else {
            let known: Vec<&str> = self.sources.keys().map(String::as_str).collect();
            return Err(wrong(format!("found the sources {known:?}, expected {:?} among them", options.name)));
        };
        if source.paths != options.paths {
            return Err(wrong(format!(
                "source {:?}: found shards of the paths {:?}, expected those of {:?}",
                options.name, source.paths, options.paths
            )));
        }
        let entry = |shard: &SavedShard| ManifestEntry {
            location: match scheme(&shard.location) {
                Some(_) => shard.location.clone(),
                None => base.join(&shard.location).to_string_lossy().into_owned(),
            },
            name: shard.name.as_str().into(),
            size: shard.size,
            version: shard.version.clone(),
        };
        let shards: Vec<ManifestEntry> = source.shards.iter().map(entry).collect();
        if !shards.is_sorted_by(|a, b| (&a.name, &a.location) < (&b.name, &b.location)) {
            return Err(wrong(format!("source {:?}: found shards out of order, or one twice", options.name)));
        }
        if shards.is_empty() {
            return Err(wrong(format!("source {:?}: found no shards", options.name)));
        }
        Ok(Manifest { shards })
    }
}
