//! Every scheme behind one store: local paths, `s3://`, `http(s)://` and `hf://`.
//!
//! Comes in: patterns of the config. Goes out: one sorted listing, objects opened by where they are, objects put. Holds: a listing depends
//! on the objects and not on the order in which a server tells them; globs mean the same everywhere (see `list`): of a bucket,
//! what begins with the pattern's fixed part is listed, and the rest matched here. Does not know: who reads.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use globset::{GlobBuilder, GlobMatcher};

use super::address::{Address, Target, scheme, shown};
use super::ahead::Budget;
use super::cache::Cache;
use super::list::dot_is_spelled;
use super::network::Network;
use super::remote::{Remote, Shared, Spooled};
use super::{Expected, Listed, LocalStore, Object, StorageOptions, Store, Traffic, Version, http, hub, list, s3};
use crate::error::{Error, ErrorKind, Result};
use crate::size::ByteSize;

/// Most that is read ahead where nothing else is configured.
const READ_AHEAD: u64 = 512 << 20;
/// Questions for sizes that are under way at once.
const STATS_AT_ONCE: usize = 32;

/// The bound on what is read ahead: as configured, else what follows from `runtime.memory`.
pub fn read_ahead_bytes(options: &StorageOptions, memory: ByteSize) -> u64 {
    options.read_ahead.map_or((memory.0 / 8).min(READ_AHEAD), |bytes| bytes.0)
}

/// Local files and all remote stores, as configured.
#[derive(Debug)]
pub struct Stores {
    shared: Shared,
    /// Objects that will be opened soon, by location.
    expected: Mutex<BTreeMap<String, Arc<Remote>>>,
}

/// Objects that are begun before they are opened, at most.
const EXPECTED_MAX: usize = 4096;

impl Stores {
    /// The stores of a config; `base` is the folder that relative paths are relative to. Nothing is connected to yet.
    ///
    /// # Errors
    /// `Config` - the cache's folder can't be used.
    pub fn new(options: &StorageOptions, memory: ByteSize, base: &Path) -> Result<Stores> {
        Ok(Stores {
            shared: Shared {
                network: Arc::new(Network::new(options.clone())),
                budget: Arc::new(Budget::new(read_ahead_bytes(options, memory))),
                cache: Cache::open(&options.cache, base)?.map(Arc::new),
            },
            expected: Mutex::default(),
        })
    }

    fn expected(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Remote>>> {
        self.expected.lock().expect("no panic happens while it is held")
    }

    fn remote(&self, location: &str, size: u64, version: &Version) -> Result<Arc<Remote>> {
        let address = Arc::new(Address::new(location)?);
        let options = &self.network().options;
        let part_size = match address.target {
            Target::S3 { .. } => options.s3.part_size.0,
            _ => options.http.part_size.0,
        };
        Ok(Remote::new(self.shared.clone(), address, version.clone(), size, part_size, false))
    }

    fn network(&self) -> &Arc<Network> {
        &self.shared.network
    }

    /// Most bytes of remote objects that were held ahead of their readers at any time.
    pub fn read_ahead_peak(&self) -> u64 {
        self.shared.budget.peak()
    }

    /// Size and version of the object at a remote `location`, and the location to read it from.
    fn stat(&self, location: &str) -> Result<Pending> {
        let address = Arc::new(Address::new(location)?);
        let network = self.network().clone();
        let task = async move {
            let live = network.live()?;
            match &address.target {
                Target::S3 { bucket, key } => {
                    let (size, version) = s3::stat(&network, &live, bucket, key).await?;
                    Ok((size, version, None))
                }
                Target::Http(_) => {
                    let stat = http::stat(&network, &live, &address).await?;
                    Ok((stat.size, stat.version, None))
                }
                Target::Hub(path) => {
                    let stat = http::stat(&network, &live, &address).await?;
                    let pinned = stat.commit.map(|commit| path.at_revision(&commit).to_string());
                    Ok((stat.size, stat.version, pinned))
                }
            }
        };
        Ok(Pending(self.network().spawn(task)?.0))
    }

    /// Expands one remote pattern.
    fn expand(&self, pattern: &str, found: &mut BTreeMap<String, Listed>) -> Result<bool> {
        let wild = pattern.contains(['*', '?', '[', '{']);
        match scheme(pattern) {
            Some("s3") if wild => {
                let (bucket, key) = pattern["s3://".len()..].split_once('/').unwrap_or_default();
                if bucket.is_empty() || bucket.contains(['*', '?', '[', '{']) {
                    let detail =
                        format!("found the path {pattern:?}, expected s3://bucket/key with a bucket spelled out");
                    return Err(Error::new(ErrorKind::Config, detail));
                }
                let matcher = KeyMatcher::new(key, pattern)?;
                let (network, owned) = (self.network().clone(), (bucket.to_owned(), matcher.prefix.clone()));
                let entries = self.network().run(async move {
                    let live = network.live()?;
                    s3::list(&network, &live, &owned.0, &owned.1).await
                })?;
                let mut any = false;
                for (key, size, tag) in entries.into_iter().filter(|(key, _, _)| matcher.matches(key)) {
                    any = true;
                    let location = format!("s3://{bucket}/{key}");
                    let listed =
                        Listed { name: location.clone(), location, size, version: Version { tag, whole: false } };
                    found.entry(listed.name.clone()).or_insert(listed);
                }
                Ok(any)
            }
            Some("hf") if wild => {
                let network = self.network().clone();
                let owned = pattern.to_owned();
                let entries = self.network().run(async move {
                    let live = network.live()?;
                    hub::list(&network, &live, &owned).await
                })?;
                let any = !entries.is_empty();
                found.extend(entries.into_iter().map(|listed| (listed.name.clone(), listed)));
                Ok(any)
            }
            Some("http" | "https") if shown(pattern).contains('*') => {
                let detail = format!(
                    "found the path {:?}, expected a URL without *: HTTP has no listings, so each file is named",
                    shown(pattern)
                );
                Err(Error::new(ErrorKind::Config, detail))
            }
            _ => Ok(false),
        }
    }

    /// Puts an object, as a whole: readers see the old one or the new one.
    ///
    /// # Errors
    /// * `Config` - not an `s3://` location.
    /// * `Write` - it can't be written.
    pub fn put(&self, location: &str, bytes: Vec<u8>) -> Result<()> {
        let (bucket, key) = s3_place(location)?;
        let network = self.network().clone();
        self.network().run(async move {
            let live = network.live()?;
            s3::put(&network, &live, &bucket, &key, bytes.into()).await
        })
    }

    /// Puts a file as an object; see [`Stores::put`]. A large one goes in parts.
    ///
    /// # Errors
    /// As [`Stores::put`].
    pub fn put_file(&self, location: &str, file: &std::fs::File) -> Result<()> {
        let (bucket, key) = s3_place(location)?;
        let failed = |error| Error::new(ErrorKind::Write, "can't read what is to be uploaded").because(error);
        let size = file.metadata().map_err(failed)?.len();
        let file = file.try_clone().map_err(failed)?;
        let network = self.network().clone();
        self.network().run(async move {
            let live = network.live()?;
            s3::put_file(&network, &live, &bucket, &key, &file, size).await
        })
    }

    /// The names and sizes of all objects whose locations begin with `location`, sorted; there may be none.
    ///
    /// # Errors
    /// * `Config` - not an `s3://` location.
    /// * `NotFound`, `Read` - it can't be listed.
    pub fn list_below(&self, location: &str) -> Result<Vec<(String, u64)>> {
        let (bucket, prefix) = s3_place(location)?;
        let network = self.network().clone();
        let below = bucket.clone();
        let entries = self.network().run(async move {
            let live = network.live()?;
            s3::list(&network, &live, &below, &prefix).await
        })?;
        let mut all: Vec<(String, u64)> =
            entries.into_iter().map(|(key, size, _)| (format!("s3://{bucket}/{key}"), size)).collect();
        all.sort();
        Ok(all)
    }

    /// All bytes of an object, of its newest version.
    ///
    /// # Errors
    /// `NotFound`, `Read`; `Limit` above `most` bytes.
    pub fn read_all(&self, location: &str, most: u64) -> Result<Vec<u8>> {
        self.newest(location, |object| {
            if object.size() > most {
                let detail = format!("{} has {} bytes, expected at most {most}", shown(location), object.size());
                return Err(Error::new(ErrorKind::Limit, detail));
            }
            let mut bytes = vec![0; object.size() as usize];
            object.read_at(0, &mut bytes)?;
            Ok(bytes)
        })
    }

    /// Copies an object, of its newest version, to a file that is made anew.
    ///
    /// # Errors
    /// `NotFound`, `Read`; `Write` for the file.
    pub fn copy_to(&self, location: &str, path: &Path) -> Result<()> {
        const STEP: u64 = 4 << 20;
        self.newest(location, |object| {
            let failed = |error| Error::new(ErrorKind::Write, format!("can't copy {}", shown(location))).because(error);
            let mut file = std::fs::File::create(path).map_err(failed)?;
            let object = super::reader(object, 0..object.size(), super::Reading::Along);
            let mut buffer = vec![0; STEP.min(object.size()) as usize];
            let mut offset = 0;
            while offset < object.size() {
                let count = object.read_at(offset, &mut buffer)?;
                std::io::Write::write_all(&mut file, &buffer[..count]).map_err(failed)?;
                offset += count as u64;
            }
            Ok(())
        })
    }

    /// Reads an object that may be replaced meanwhile: begins anew where it was, as after a writer that was killed and whose last
    /// request the server still carries out.
    fn newest<T>(&self, location: &str, read: impl Fn(&Arc<dyn Object>) -> Result<T>) -> Result<T> {
        let mut result = self.open(location).and_then(|object| read(&object));
        for _ in 0..4 {
            match &result {
                Err(error) if error.kind() == ErrorKind::Read && error.detail().contains(http::CHANGED) => {
                    result = self.open(location).and_then(|object| read(&object));
                }
                _ => break,
            }
        }
        result
    }
}

/// Bucket and key of a place that can be written to.
fn s3_place(location: &str) -> Result<(String, String)> {
    match Target::parse(location)? {
        Target::S3 { bucket, key } => Ok((bucket, key)),
        _ => {
            let detail = format!("found {:?}, expected a local path or s3://bucket/key to write to", shown(location));
            Err(Error::new(ErrorKind::Config, detail))
        }
    }
}

/// An answer that is under way: size, version, and another location where that is the better one.
struct Pending(std::sync::mpsc::Receiver<Result<(u64, Version, Option<String>)>>);

impl Pending {
    fn wait(self) -> Result<(u64, Version, Option<String>)> {
        let gone = || Error::new(ErrorKind::Internal, "a task of the network panicked");
        self.0.recv().unwrap_or_else(|_| Err(gone()))
    }
}

/// Matches keys of a bucket, or paths of a repository, as `list` matches local paths.
pub(super) struct KeyMatcher {
    /// Where all matches begin.
    pub(super) prefix: String,
    pattern: String,
    matcher: GlobMatcher,
}

impl KeyMatcher {
    pub(super) fn new(key: &str, pattern: &str) -> Result<KeyMatcher> {
        let malformed =
            |error| Error::new(ErrorKind::Config, format!("malformed pattern {:?}", shown(pattern))).because(error);
        let glob = GlobBuilder::new(key).literal_separator(true).build().map_err(malformed)?;
        let fixed = key.find(['*', '?', '[', '{', '\\']).unwrap_or(key.len());
        Ok(KeyMatcher { prefix: key[..fixed].to_owned(), pattern: key.to_owned(), matcher: glob.compile_matcher() })
    }

    pub(super) fn matches(&self, key: &str) -> bool {
        // A name that happens to hold `[` is found by its plain name; what ends with a slash is a folder's mark.
        if key == self.pattern {
            return true;
        }
        if key.ends_with('/') || !self.matcher.is_match(key) {
            return false;
        }
        let folder = self.prefix.rfind('/').map_or(0, |slash| slash + 1);
        let mut hidden = key[folder..].split('/').filter(|part| part.starts_with('.'));
        hidden.all(|part| dot_is_spelled(&self.pattern, part))
    }
}

impl Store for Stores {
    fn list(&self, patterns: &[String], base: &Path) -> Result<Vec<Listed>> {
        let (remote, local): (Vec<&String>, Vec<&String>) = patterns.iter().partition(|path| scheme(path).is_some());
        let mut found: BTreeMap<String, Listed> = BTreeMap::new();
        if !local.is_empty() {
            let local: Vec<String> = local.into_iter().cloned().collect();
            found.extend(list(&local, base)?.into_iter().map(|listed| (listed.name.clone(), listed)));
        }
        let mut single = Vec::new();
        for pattern in remote {
            if self.expand(pattern, &mut found)? {
                continue;
            }
            if pattern.contains(['*', '[', '{']) && !matches!(scheme(pattern), Some("http" | "https")) {
                return Err(Error::new(ErrorKind::NotFound, format!("no object matches {pattern:?}")));
            }
            single.push(pattern);
        }
        for some in single.chunks(STATS_AT_ONCE) {
            let pending =
                some.iter().map(|location| Ok((*location, self.stat(location)?))).collect::<Result<Vec<_>>>()?;
            for (location, pending) in pending {
                let (size, version, pinned) = pending.wait()?;
                let name = match Target::parse(location)? {
                    Target::Hub(path) => path.name(),
                    _ => shown(location).to_owned(),
                };
                let location = pinned.unwrap_or_else(|| location.clone());
                found.entry(name.clone()).or_insert(Listed { location, name, size, version });
            }
        }
        Ok(found.into_values().collect())
    }

    fn open(&self, location: &str) -> Result<Arc<dyn Object>> {
        if scheme(location).is_none() {
            return LocalStore.open(location);
        }
        let (size, version, pinned) = self.stat(location)?.wait()?;
        self.open_version(pinned.as_deref().unwrap_or(location), size, &version)
    }

    fn open_version(&self, location: &str, size: u64, version: &Version) -> Result<Arc<dyn Object>> {
        if scheme(location).is_none() {
            return LocalStore.open(location);
        }
        if version.whole {
            let address = Arc::new(Address::new(location)?);
            return Ok(Arc::new(Spooled::new(self.shared.clone(), address, version.clone(), size)));
        }
        if let Some(begun) = self.expected().remove(location).filter(|begun| begun.is(size, version)) {
            return Ok(begun);
        }
        let object = self.remote(location, size, version)?;
        Ok(object)
    }

    fn expect(&self, location: &str, size: u64, version: &Version, wanted: Expected) {
        if scheme(location).is_none() || version.whole || size == 0 {
            return;
        }
        let mut expected = self.expected();
        if expected.len() >= EXPECTED_MAX || expected.contains_key(location) {
            return;
        }
        let Ok(object) = self.remote(location, size, version) else { return };
        if self.shared.budget.has_room(object.wanted_bytes(wanted)) {
            object.want(wanted);
            expected.insert(location.to_owned(), object);
        }
    }

    fn expect_lanes(&self, own: u32, all: u32) {
        self.shared.budget.expect_lanes(own, all);
    }

    fn traffic(&self) -> Traffic {
        self.network().counters.traffic()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Globs of keys as those of files: stars stay within a folder, hidden names have to be spelled, odd names are found.
    #[test]
    fn keys_match_as_files_do() {
        let check = |pattern: &str, prefix: &str, yes: &[&str], no: &[&str]| {
            let matcher = KeyMatcher::new(pattern, pattern).expect("a pattern");
            assert_eq!(matcher.prefix, prefix, "{pattern}");
            for key in yes {
                assert!(matcher.matches(key), "{pattern} {key}");
            }
            for key in no {
                assert!(!matcher.matches(key), "{pattern} {key}");
            }
        };
        check("web/*.jsonl", "web/", &["web/a.jsonl", "web/ü ñ.jsonl"], &["web/x/a.jsonl", "web/.a.jsonl", "a.jsonl"]);
        check("web/**/*.zst", "web/", &["web/a.zst", "web/x/y/a.zst"], &["web/.x/a.zst", "web/a.gz", "web/x/"]);
        check("w?b/{a,b}.txt", "w", &["wab/a.txt", "w+b/b.txt"], &["w/b/a.txt", "wab/c.txt"]);
        check("web/.h*/*", "web/.h", &["web/.hidden/a"], &["web/.hidden/.a"]);
        check("a[1].jsonl", "a", &["a[1].jsonl", "a1.jsonl"], &["a2.jsonl"]);
        check("日本/*.jsonl", "日本/", &["日本/100%+&.jsonl"], &["日/a.jsonl"]);
    }
}
