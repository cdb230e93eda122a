//! A cache of remote objects on a local disk: blocks, by the version they are of.
//!
//! Comes in: a block that was fetched. Goes out: the same block later, of this process or another. Holds: a block is written beside and
//! renamed, so it is whole or absent; it carries the hash of its bytes, so one that is torn or damaged is found, dropped and fetched
//! again; the folder stays within its bound, and what wasn't used for longest goes first. Several processes may share it: only the
//! one that counts holds the lock, for as long as that takes. Does not know: what is in a block.
//!
//! ```text
//! DIR/tokenmill-cache              marks the folder; holds the count of bytes; is locked while that changes
//! DIR/ab/ab34…/00000012            block 12 of an object: 32 bytes of BLAKE3, then up to 1 MiB
//! DIR/ab/ab34…/.00000012.PID.N     one being written; removed after an hour if its writer died
//! ```
//!
//! The name of an object is the hash of its location, ETag and size: a new version has another name, and the old one's blocks go
//! when room is needed. A failure of the cache is never one of the run: it is logged, and the block comes from the network.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use super::address::Address;
use super::{CacheOptions, Version};
use crate::error::{Error, ErrorKind, Result};

/// Bytes of a block.
pub(super) const BLOCK: u64 = 1 << 20;
const HASH: usize = 32;
const MARK: &str = "tokenmill-cache";
/// A file being written for longer is nobody's any more.
const STALE: Duration = Duration::from_secs(3600);

/// The name of an object's version.
pub(super) struct CacheKey(String);

impl CacheKey {
    /// `None` for an object without a version: nothing would tell an old block from a new one.
    /// What was read `twice` is kept apart, so that nobody who wants to be sure gets what wasn't.
    pub(super) fn of(address: &Address, version: &Version, size: u64, twice: bool) -> Option<CacheKey> {
        let tag = version.tag.as_deref()?;
        let mut hasher = blake3::Hasher::new();
        for part in [&address.shown, tag] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.update(&size.to_le_bytes());
        hasher.update(&[u8::from(twice)]);
        Some(CacheKey(hasher.finalize().to_hex()[..40].to_owned()))
    }
}

/// A folder of blocks.
#[derive(Debug)]
pub(super) struct Cache {
    folder: PathBuf,
    max_size: u64,
    names: AtomicU64,
    /// A failure was logged.
    failed: AtomicBool,
}

impl Cache {
    /// Opens the folder, or makes it.
    ///
    /// # Errors
    /// `Config` - it can't be made or written to, or holds other things.
    pub(super) fn open(options: &CacheOptions, base: &Path) -> Result<Option<Cache>> {
        let Some(dir) = &options.dir else { return Ok(None) };
        let folder = base.join(dir);
        let cache =
            Cache { folder, max_size: options.max_size.0, names: AtomicU64::new(0), failed: AtomicBool::new(false) };
        let failed = |error: io::Error| {
            let detail = format!("storage.cache.dir = {:?}: the folder can't be used", cache.folder.display());
            Error::new(ErrorKind::Config, detail).because(error)
        };
        fs::create_dir_all(&cache.folder).map_err(failed)?;
        // Files are removed in there, so it has to be a folder for nothing else.
        if !cache.folder.join(MARK).exists() && fs::read_dir(&cache.folder).map_err(failed)?.next().is_some() {
            // Another process may have made it its own in between.
            if !cache.folder.join(MARK).exists() {
                let detail = format!(
                    "storage.cache.dir = {:?}: found a folder that holds other files, expected an empty or a new one",
                    cache.folder.display()
                );
                return Err(Error::new(ErrorKind::Config, detail));
            }
        }
        cache.counted(0, || Ok(())).map_err(failed)?;
        Ok(Some(cache))
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, key: &CacheKey, block: u64) -> PathBuf {
        self.folder.join(&key.0[..2]).join(&key.0).join(format!("{block:08}"))
    }

    /// The block, if it is there and whole.
    pub(super) fn read(&self, key: &CacheKey, block: u64) -> Option<Vec<u8>> {
        let path = self.path(key, block);
        let mut file = File::open(&path).ok()?;
        let mut hash = [0; HASH];
        let mut bytes = Vec::with_capacity(BLOCK as usize);
        let read = file.read_exact(&mut hash).and_then(|()| (&file).take(BLOCK + 1).read_to_end(&mut bytes));
        if read.is_err() || *blake3::hash(&bytes).as_bytes() != hash {
            tracing::warn!(path = %path.display(), "a damaged block of the cache is dropped");
            let _ = fs::remove_file(&path);
            return None;
        }
        // Used now; where that can't be written, it goes a little early.
        let _ = file.set_modified(SystemTime::now());
        Some(bytes)
    }

    /// Keeps a block.
    pub(super) fn write(&self, key: &CacheKey, block: u64, bytes: &[u8]) {
        if let Err(error) = self.try_write(key, block, bytes)
            && !self.failed.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(folder = %self.folder.display(), "the cache can't be written to: {error}");
        }
    }

    fn try_write(&self, key: &CacheKey, block: u64, bytes: &[u8]) -> io::Result<()> {
        let path = self.path(key, block);
        let folder = path.parent().expect("a block lies in its object's folder");
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        let beside = folder.join(format!(".{block:08}.{}.{number}", std::process::id()));
        let write = || -> io::Result<()> {
            fs::create_dir_all(folder)?;
            let mut file = File::create(&beside)?;
            file.write_all(blake3::hash(bytes).as_bytes())?;
            file.write_all(bytes)?;
            drop(file);
            fs::rename(&beside, &path)
        };
        let result = self.counted((HASH + bytes.len()) as u64, write);
        result.inspect_err(|_| {
            let _ = fs::remove_file(&beside);
        })
    }

    /// Adds to the count of all bytes, and has them written; makes room first where the bound would be passed. The lock is held
    /// all the while, so that the bound holds at every moment: who makes room sees all there is.
    fn counted(&self, more: u64, write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut mark =
            File::options().read(true).write(true).create(true).truncate(false).open(self.folder.join(MARK))?;
        mark.lock()?;
        let mut text = String::new();
        mark.read_to_string(&mut text)?;
        let counted = text.trim().parse::<u64>().ok();
        let total = match counted {
            Some(counted) if counted + more <= self.max_size => counted,
            // The count says more than there is after a block was replaced or a writer died: the files decide.
            _ => self.evict(self.max_size.saturating_sub(more))?,
        };
        write()?;
        mark.seek(SeekFrom::Start(0))?;
        mark.set_len(0)?;
        write!(mark, "{}", total + more)
        // Closing it gives the lock back.
    }

    /// Removes blocks until at most `most` bytes are left, with some room to spare; returns what is left.
    fn evict(&self, most: u64) -> io::Result<u64> {
        let mut files = BTreeSet::new();
        let mut total = 0;
        for object in folders(&self.folder)?.iter().flat_map(|folder| folders(folder).unwrap_or_default()) {
            for entry in fs::read_dir(&object).into_iter().flatten().flatten() {
                let Ok(metadata) = entry.metadata() else { continue };
                let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                let being_written = entry.file_name().to_string_lossy().starts_with('.');
                total += metadata.len();
                if !being_written {
                    files.insert((used, entry.path(), metadata.len()));
                } else if used.elapsed().is_ok_and(|age| age > STALE) {
                    total -= metadata.len();
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
        if total <= most {
            return Ok(total);
        }
        let target = most / 10 * 9;
        for (_, path, size) in files {
            if total <= target {
                break;
            }
            if fs::remove_file(&path).is_ok() {
                total -= size;
            }
            if let Some(folder) = path.parent() {
                // Gone only when it is empty.
                let _ = fs::remove_dir(folder);
            }
        }
        Ok(total)
    }
}

fn folders(folder: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(fs::read_dir(folder)?.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::ByteSize;

    fn cache(folder: &Path, blocks: u64) -> Cache {
        let dir = Some(folder.to_string_lossy().into_owned());
        let options = CacheOptions { dir, max_size: ByteSize(blocks * (BLOCK + HASH as u64)) };
        Cache::open(&options, Path::new("")).expect("a folder of its own").expect("there is a folder")
    }

    fn key(name: &str) -> CacheKey {
        let address = Address::new(&format!("s3://b/{name}")).expect("an address");
        CacheKey::of(&address, &Version { tag: Some("\"x\"".into()), whole: false }, 9, false).expect("it has a tag")
    }

    /// What another thread removes meanwhile doesn't count.
    fn bytes_in(folder: &Path) -> u64 {
        let within = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        let blocks = within(folder.to_owned()).flat_map(within).flat_map(within);
        blocks.filter_map(|path| fs::metadata(path).ok()).filter(fs::Metadata::is_file).map(|file| file.len()).sum()
    }

    /// What was written is read, by another process' view as well; torn and flipped blocks are dropped.
    #[test]
    fn reads_what_is_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = cache(folder.path(), 100);
        let block: Vec<u8> = (0..BLOCK).map(|i| (i % 251) as u8).collect();
        first.write(&key("a"), 3, &block);
        first.write(&key("a"), 4, b"the end");
        let second = cache(folder.path(), 100);
        assert_eq!(second.read(&key("a"), 3), Some(block.clone()));
        assert_eq!(second.read(&key("a"), 4).as_deref(), Some(&b"the end"[..]));
        assert_eq!(second.read(&key("b"), 3), None);
        for damage in ["torn", "flipped", "longer", "empty"] {
            first.write(&key("a"), 3, &block);
            let path = first.path(&key("a"), 3);
            let mut bytes = fs::read(&path).expect("it is there");
            match damage {
                "torn" => bytes.truncate(5000),
                "flipped" => bytes[7000] ^= 1,
                "longer" => bytes.push(0),
                _ => bytes.clear(),
            }
            fs::write(&path, bytes).expect("it can be written");
            assert_eq!(second.read(&key("a"), 3), None, "{damage}");
            assert!(!path.exists(), "{damage}");
        }
    }

    /// Two caches over one folder, from four threads: the bound holds all the time, and what is used stays.
    #[test]
    fn stays_within_its_bound() {
        let folder = tempfile::tempdir().expect("a folder");
        let most = 20;
        let caches = [cache(folder.path(), most), cache(folder.path(), most)];
        let block = vec![7; BLOCK as usize];
        caches[0].write(&key("kept"), 0, &block);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (caches, folder, block) = (&caches, folder.path(), &block);
                scope.spawn(move || {
                    for number in 0..30 {
                        caches[thread % 2].write(&key(&format!("{thread}-{number}")), number, block);
                        assert!(bytes_in(folder) <= most * (BLOCK + HASH as u64));
                        assert!(caches[thread % 2].read(&key("kept"), 0).is_some(), "{thread} {number}");
                    }
                });
            }
        });
        let count = fs::read_to_string(folder.path().join(MARK)).expect("it is there").parse::<u64>().expect("a count");
        assert!(count >= bytes_in(folder.path()) && count <= most * (BLOCK + HASH as u64));
        assert!(bytes_in(folder.path()) >= most / 2 * BLOCK);
    }

    /// A folder that holds something else is left alone.
    #[test]
    fn refuses_a_folder_in_use() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("thesis.txt"), "words").expect("a file");
        let dir = Some(folder.path().to_string_lossy().into_owned());
        let options = CacheOptions { dir, ..CacheOptions::default() };
        assert_eq!(Cache::open(&options, Path::new("")).expect_err("other files").kind(), ErrorKind::Config);
    }
}
