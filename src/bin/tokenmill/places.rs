//! Where checkpoints and outputs go: folders and files of this machine, or `s3://bucket/prefix`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tokenmill::config::Config;
use tokenmill::error::{Error, ErrorKind, Result};
use tokenmill::state::{self, Checkpoint, Fingerprint};
use tokenmill::storage::{Store, Stores, Traffic, scheme};

/// Bytes of a small file, at most.
const SMALL_MAX: u64 = 1 << 20;

/// The stores of a config, set up when something is not on this machine.
pub struct Places<'a> {
    config: &'a Config,
    stores: OnceLock<Arc<Stores>>,
}

/// A path as text, if it names a store.
pub fn remote(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| scheme(text).is_some())
}

impl<'a> Places<'a> {
    pub fn new(config: &'a Config) -> Places<'a> {
        Places { config, stores: OnceLock::new() }
    }

    pub fn stores(&self) -> Result<&Arc<Stores>> {
        if let Some(stores) = self.stores.get() {
            return Ok(stores);
        }
        let config = self.config;
        let stores = Stores::new(&config.storage, config.runtime.memory, &config.base)?;
        Ok(self.stores.get_or_init(|| Arc::new(stores)))
    }

    /// What was asked of stores through this.
    pub fn traffic(&self) -> Traffic {
        self.stores.get().map(|stores| stores.traffic()).unwrap_or_default()
    }

    pub fn load(&self, path: &Path) -> Result<Checkpoint> {
        match remote(path) {
            Some(location) => state::load_objects(self.stores()?, location),
            None => state::load(path),
        }
    }

    /// A checkpoint with its files and their sizes.
    pub fn load_files(&self, path: &Path) -> Result<(Checkpoint, Vec<(PathBuf, u64)>)> {
        if let Some(location) = remote(path) {
            return state::load_object_files(self.stores()?, location);
        }
        let (checkpoint, files) = state::load_files(path)?;
        let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |file| file.len());
        Ok((checkpoint, files.into_iter().map(|path| (path.clone(), size(&path))).collect()))
    }

    /// Checkpoints around block number `blocks` of a lane, or the one that is named.
    pub fn load_around(&self, path: &Path, lane: u32, blocks: u64) -> Result<Vec<Checkpoint>> {
        match remote(path) {
            Some(location) => state::load_objects_around(self.stores()?, location, lane, blocks),
            None => state::load_around(path, lane, blocks),
        }
    }

    pub fn check_folder(&self, folder: &Path, run: &Fingerprint, rank: u32, world_size: u32) -> Result<()> {
        match remote(folder) {
            Some(location) => state::check_objects(self.stores()?, location, run, rank, world_size),
            None => state::check_folder(folder, run, rank, world_size),
        }
    }

    pub fn save(&self, folder: &Path, checkpoint: &Checkpoint) -> Result<()> {
        let saved = match remote(folder) {
            Some(location) => state::save_object(self.stores()?, location, checkpoint)?,
            None => state::save(folder, checkpoint)?,
        };
        tracing::debug!(path = %saved.path.display(), bytes = saved.bytes, "checkpoint written");
        Ok(())
    }

    /// Writes a small file.
    pub fn write(&self, path: &Path, bytes: Vec<u8>) -> Result<()> {
        match remote(path) {
            Some(location) => self.stores()?.put(location, bytes),
            None => {
                // Beside, and renamed: another rank may be about to read it.
                let beside = path.with_extension(format!("{}.tmp", std::process::id()));
                let write = || {
                    std::fs::write(&beside, bytes)?;
                    std::fs::rename(&beside, path)
                };
                write().map_err(|error| {
                    let _ = std::fs::remove_file(&beside);
                    Error::new(ErrorKind::Write, format!("can't write {}", path.display())).because(error)
                })
            }
        }
    }

    /// What a small file holds, if it is there; of a larger one on this machine, its beginning.
    pub fn read(&self, path: &Path) -> Result<Option<Vec<u8>>> {
        let read = match remote(path) {
            Some(location) => self.stores()?.read_all(location, SMALL_MAX),
            None => read_beginning(path).map_err(|error| {
                let kind = match error.kind() {
                    std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                    _ => ErrorKind::Read,
                };
                Error::new(kind, format!("can't read {}", path.display())).because(error)
            }),
        };
        match read {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    /// Copies an object to `path`, if it is there.
    pub fn copy(&self, location: &str, path: &Path) -> Result<()> {
        match self.stores()?.copy_to(location, path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            copied => copied,
        }
    }
}

fn read_beginning(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(SMALL_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}
