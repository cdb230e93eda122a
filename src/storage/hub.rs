//! The hub: listings of a repository, and tokenizers taken from it into the folder that Hugging Face's libraries share.
//!
//! Comes in: `hf://datasets/owner/name/data/*.parquet@revision`, or `hf://owner/model@revision` and where the folder is. Goes out: a
//! listing whose locations are pinned to a commit; a folder with a tokenizer's files. Holds: the folder is laid out as `huggingface_hub`
//! has it (`models--owner--name`, with `refs`, `blobs` and `snapshots`), so what either has downloaded serves both; a file is
//! written beside and renamed, after two reads of it agreed. Does not know: what is in a tokenizer.
//!
//! Why not the crate hf-hub: it would bring a second client with retries and environment of its own; of the hub's protocol this
//! needs three requests.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use reqwest::Url;
use serde::Deserialize;

use super::address::{Address, HubPath, Target};
use super::network::{Live, Network, Wanted};
use super::stores::KeyMatcher;
use super::{Listed, StorageOptions, Version, http};
use crate::error::{Error, ErrorKind, Result};

/// A tokenizer is in the first of these that is there.
const TOKENIZERS: [&str; 6] =
    ["tokenizer.json", "tekken.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tiktoken.model"];
/// What else is taken where it is there.
const BESIDE: [&str; 3] = ["tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"];
/// Larger files are refused, as when they are loaded.
const FILE_BYTES_MAX: u64 = 512 << 20;

/// One entry of a repository's tree.
#[derive(Deserialize)]
struct Entry {
    r#type: String,
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    oid: String,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// The files of a repository that match `pattern`.
pub(super) async fn list(network: &Network, live: &Live, pattern: &str) -> Result<Vec<Listed>> {
    let malformed = || {
        let detail = format!("found the path {pattern:?}, expected hf://datasets/owner/name/path@revision");
        Error::new(ErrorKind::Config, detail)
    };
    let path = HubPath::parse(&pattern["hf://".len()..]).filter(|path| !path.path.is_empty()).ok_or_else(malformed)?;
    let matcher = KeyMatcher::new(&path.path, pattern)?;
    let endpoint = http::hub_endpoint(&network.options);
    let commit = commit(network, live, endpoint, &path).await?;
    let folder = matcher.prefix.rfind('/').map_or("", |slash| &matcher.prefix[..slash]);
    let tree = HubPath { path: folder.to_owned(), ..path.at_revision(&commit) };
    let mut listed = Vec::new();
    for entry in tree_entries(network, live, tree.tree_url(endpoint)?, pattern).await? {
        if entry.r#type != "file" || !matcher.matches(&entry.path) {
            continue;
        }
        let (size, oid) = entry.lfs.map_or((entry.size, entry.oid), |lfs| (lfs.size, lfs.oid));
        let file = HubPath { path: entry.path, ..tree.clone() };
        let version = Version { tag: (!oid.is_empty()).then(|| format!("\"{oid}\"")), whole: false };
        listed.push(Listed { location: file.to_string(), name: file.name(), size, version });
    }
    Ok(listed)
}

async fn tree_entries(network: &Network, live: &Live, url: Url, shown: &str) -> Result<Vec<Entry>> {
    let (mut all, mut next) = (Vec::new(), Some(url));
    while let Some(url) = next {
        let (bytes, more) = http::page(network, live, url, &format!("{shown}, its listing")).await?;
        let page: Vec<Entry> = serde_json::from_slice(&bytes).map_err(|error| {
            Error::new(ErrorKind::Read, format!("{shown}: the listing isn't what the hub gives")).because(error)
        })?;
        all.extend(page);
        next = more;
    }
    Ok(all)
}

/// The commit that a revision is.
async fn commit(network: &Network, live: &Live, endpoint: &str, path: &HubPath) -> Result<String> {
    if is_commit(&path.revision) {
        return Ok(path.revision.clone());
    }
    #[derive(Deserialize)]
    struct Revision {
        sha: String,
    }
    let mut url = HubPath { path: String::new(), ..path.clone() }.tree_url(endpoint)?;
    url.set_query(None);
    let text = url.path().replacen("/tree/", "/revision/", 1);
    url.set_path(&text);
    let (bytes, _) = http::page(network, live, url, &format!("hf://{}/{}", path.kind, path.repository)).await?;
    let revision: Revision = serde_json::from_slice(&bytes).map_err(|error| {
        let detail = format!("hf://{}/{}: the hub tells no commit of {:?}", path.kind, path.repository, path.revision);
        Error::new(ErrorKind::Read, detail).because(error)
    })?;
    Ok(revision.sha)
}

fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The folder that holds the tokenizer of `hf://owner/model@revision`: out of the local cache, or downloaded into it.
///
/// A revision that is a commit is taken from the cache without asking anybody, and so is any that is there when
/// `storage.hub.offline` is set. Else the hub is asked which commit the revision is; where it can't be reached, what is there is
/// taken with a warning.
///
/// # Errors
/// * `Config` - malformed, or there is no folder to keep files in.
/// * `NotFound` - no such repository or revision, or it holds no tokenizer; offline, and it isn't in the cache.
/// * `Read` - it can't be downloaded. `Write` - it can't be kept.
pub fn tokenizer_folder(options: &StorageOptions, path: &str) -> Result<PathBuf> {
    let malformed = || Error::new(ErrorKind::Config, format!("tokenizer {path:?}: expected hf://owner/model@revision"));
    let parsed = path.strip_prefix("hf://").and_then(HubPath::parse).filter(|path| path.path.is_empty());
    let parsed = parsed.ok_or_else(malformed)?;
    let repository = kept_in(options, &parsed).ok_or_else(|| {
        let detail = format!("tokenizer {path:?}: no folder to keep it in; set storage.hub.cache, HF_HOME or HOME");
        Error::new(ErrorKind::Config, detail)
    })?;
    let offline = options.hub.offline.unwrap_or(options.environment.hub_offline);
    let there = cached(&repository, &parsed.revision);
    if let Some(there) = &there
        && (offline || is_commit(&parsed.revision))
    {
        return Ok(there.clone());
    }
    if offline {
        let detail = format!(
            "tokenizer {path:?} isn't in {}, and HF_HUB_OFFLINE (or storage.hub.offline) forbids to download it",
            repository.display()
        );
        return Err(Error::new(ErrorKind::NotFound, detail));
    }
    let network = Arc::new(Network::new(options.clone()));
    let task = Download { network: network.clone(), repository, path: parsed };
    match network.run(task.run()) {
        Err(error) if error.kind() == ErrorKind::Read && there.is_some() => {
            tracing::warn!("{error}; what was downloaded before is taken");
            Ok(there.expect("just looked at"))
        }
        folder => folder,
    }
}

/// The folder that [`tokenizer_folder`] would give without asking anybody, if there is one.
pub(crate) fn cached_tokenizer(options: &StorageOptions, path: &str) -> Option<PathBuf> {
    let parsed = path.strip_prefix("hf://").and_then(HubPath::parse)?;
    cached(&kept_in(options, &parsed)?, &parsed.revision)
}

/// The folder of a repository in the local cache, if there is a cache.
fn kept_in(options: &StorageOptions, path: &HubPath) -> Option<PathBuf> {
    let cache = options.hub.cache.as_ref().map(PathBuf::from).or_else(|| options.environment.hub_cache.clone())?;
    Some(cache.join(format!("{}--{}", path.kind, path.repository.replace('/', "--"))))
}

/// The snapshot of a revision that is in the cache, if it holds a tokenizer.
fn cached(repository: &Path, revision: &str) -> Option<PathBuf> {
    let commit = match is_commit(revision) {
        true => revision.to_owned(),
        false => std::fs::read_to_string(repository.join("refs").join(revision)).ok()?.trim().to_owned(),
    };
    let folder = repository.join("snapshots").join(commit);
    let files = std::fs::read_dir(&folder).ok()?.flatten();
    let mut names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    names.any(|name| TOKENIZERS.contains(&name.as_str()) || is_tokenizer(&name)).then_some(folder)
}

fn is_tokenizer(name: &str) -> bool {
    name.ends_with(".tiktoken") || name.ends_with(".model")
}

/// A tokenizer on its way from the hub into the cache.
struct Download {
    network: Arc<Network>,
    repository: PathBuf,
    path: HubPath,
}

impl Download {
    async fn run(self) -> Result<PathBuf> {
        let live = self.network.live()?;
        let mut path = self.path.clone();
        let mut folder = None;
        let mut found = None;
        for name in TOKENIZERS {
            if let Some(there) = self.take(&live, &mut path, name).await? {
                (found, folder) = (Some(name.to_owned()), Some(there));
                break;
            }
        }
        if found.is_none() {
            let endpoint = http::hub_endpoint(&self.network.options);
            let url = path.tree_url(endpoint)?;
            for entry in tree_entries(&self.network, &live, url, &path.to_string()).await? {
                if entry.r#type == "file" && !entry.path.contains('/') && is_tokenizer(&entry.path) {
                    folder = self.take(&live, &mut path, &entry.path).await?;
                    found = Some(entry.path);
                    break;
                }
            }
        }
        let (Some(_), Some(folder)) = (found, folder) else {
            let detail =
                format!("{}: found no tokenizer, expected {}, or *.tiktoken", self.path, TOKENIZERS.join(", "));
            return Err(Error::new(ErrorKind::NotFound, detail));
        };
        for name in BESIDE {
            self.take(&live, &mut path, name).await?;
        }
        if path.revision != self.path.revision {
            let reference = self.repository.join("refs").join(&self.path.revision);
            write_whole(&reference, path.revision.as_bytes())?;
        }
        Ok(folder)
    }

    /// Takes the file `name` of the repository, if it is there; returns the snapshot's folder. The first file pins the revision.
    async fn take(&self, live: &Arc<Live>, path: &mut HubPath, name: &str) -> Result<Option<PathBuf>> {
        let file = HubPath { path: name.to_owned(), ..path.clone() };
        let address = Arc::new(Address {
            shown: file.to_string(),
            target: Target::Hub(file.clone()),
            sent_on: std::sync::Mutex::new(None),
        });
        let stat = match http::stat(&self.network, live, &address).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            stat => stat?,
        };
        if stat.size > FILE_BYTES_MAX {
            let detail = format!("{}: found {} bytes, expected at most {FILE_BYTES_MAX}", address.shown, stat.size);
            return Err(Error::new(ErrorKind::Limit, detail));
        }
        if let Some(commit) = &stat.commit {
            *path = path.at_revision(commit);
        }
        let folder = self.repository.join("snapshots").join(path.revision.replace('/', "--"));
        let link = folder.join(name);
        let tag = stat.version.tag.as_deref().unwrap_or_default().trim_start_matches("W/").trim_matches('"');
        let plain = !tag.is_empty() && tag.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
        let blob = self.repository.join("blobs").join(if plain {
            tag.to_owned()
        } else {
            format!("{}-{name}", path.revision)
        });
        let whole = |path: &Path| std::fs::metadata(path).is_ok_and(|file| file.len() == stat.size);
        if whole(&link) {
            return Ok(Some(folder));
        }
        if !whole(&blob) {
            let wanted = Wanted { address, version: stat.version.clone(), size: stat.size, range: 0..stat.size };
            let bytes = self.network.fetch_twice(live, &wanted).await?;
            write_whole(&blob, &bytes)?;
            tracing::info!("downloaded {file} ({} bytes)", stat.size);
        }
        let failed = |error| Error::new(ErrorKind::Write, format!("can't write {}", link.display())).because(error);
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let _ = std::fs::remove_file(&link);
        #[cfg(unix)]
        let made =
            std::os::unix::fs::symlink(Path::new("../../blobs").join(blob.file_name().expect("it has a name")), &link);
        #[cfg(not(unix))]
        let made = std::fs::copy(&blob, &link).map(drop);
        match made {
            // Another process was as fast.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(Some(folder)),
            made => made.map(|()| Some(folder)).map_err(failed),
        }
    }
}

/// Writes a file beside, and renames it.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let beside = path.with_extension(format!("{}.incomplete", std::process::id()));
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(path.parent().expect("it lies in a folder"))?;
        std::fs::write(&beside, bytes)?;
        std::fs::rename(&beside, path)
    };
    write().map_err(|error| Error::new(ErrorKind::Write, format!("can't write {}", path.display())).because(error))
}
