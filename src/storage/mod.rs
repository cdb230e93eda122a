//! Objects: where shards lie, read at any place.
//!
//! Comes in: paths and globs, as configured. Goes out: a sorted listing, and [`Object`]s that are read by offset.
//! Holds: an object's size is the one seen when it was opened; a read that finds less is an error, never a short read in
//! silence. A plan carries its [`Store`], so there is no global table of them; one that takes several schemes hands each
//! location on by its prefix. Does not know: formats, compression, records.

mod list;
mod local;

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

pub use list::{Listed, list};
pub use local::LocalFile;

use crate::error::{Error, ErrorKind, Result, panic_message};

/// Where objects are found and opened.
pub trait Store: Debug + Send + Sync {
    /// Expands `patterns`, relative ones against `base`, into a listing sorted by name, each object once.
    ///
    /// # Errors
    /// * `NotFound` - nothing is there, or nothing matches; the pattern is named.
    /// * `Read` - it can't be listed, or is no object that can be read at any place.
    /// * `Config` - a pattern is malformed, or of a scheme that the store doesn't have.
    fn list(&self, patterns: &[String], base: &Path) -> Result<Vec<Listed>>;

    /// Opens the object at a listed `location`.
    ///
    /// # Errors
    /// * `NotFound` - nothing is there.
    /// * `Read` - it can't be opened.
    fn open(&self, location: &str) -> Result<Arc<dyn Object>>;
}

/// The files of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalStore;

impl Store for LocalStore {
    fn list(&self, patterns: &[String], base: &Path) -> Result<Vec<Listed>> {
        list(patterns, base)
    }

    fn open(&self, location: &str) -> Result<Arc<dyn Object>> {
        Ok(Arc::new(LocalFile::open(Path::new(location))?))
    }
}

/// Random access to the bytes of one object.
pub trait Object: Send + Sync {
    /// Size in bytes, fixed when the object was opened.
    fn size(&self) -> u64;

    /// Fills `buf` with the bytes from `offset` on; returns how many there were, which is less than `buf.len()` only where
    /// the object ends.
    ///
    /// # Errors
    /// * `Read` - the bytes can't be read, or the object ends before [`Object::size`].
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize>;
}

/// An object held to its promises: a short read and a panic become errors, so no decoder takes them for an end or for
/// damage.
pub(crate) struct Checked(pub(crate) Arc<dyn Object>);

impl Object for Checked {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let expected = self.size().saturating_sub(offset).min(buf.len() as u64) as usize;
        let found = catch_unwind(AssertUnwindSafe(|| self.0.read_at(offset, buf))).unwrap_or_else(|panic| {
            Err(Error::new(ErrorKind::Internal, format!("reading panicked: {}", panic_message(&*panic))))
        })?;
        if found != expected {
            let detail = format!("found {found} bytes at offset {offset}, expected {expected}: the object changed");
            return Err(Error::new(ErrorKind::Read, detail));
        }
        Ok(found)
    }
}
