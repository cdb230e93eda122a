//! Objects: where shards lie, read at any place.
//!
//! Comes in: paths and globs, as configured. Goes out: a sorted listing, and [`Object`]s that are read by offset.
//! Holds: an object's size is the one seen when it was opened; a read that finds less is an error, never a short read in
//! silence. A plan carries its [`Store`], so there is no global table of them; one that takes several schemes hands each
//! location on by its prefix. Does not know: formats, compression, records.
//!
//! ```text
//! stores.rs    every scheme behind one Store: listing, opening, putting
//! list.rs      globs of local files               local.rs   local files
//! address.rs   s3://, https://, hf://             hub.rs     listings of the hub, tokenizers from it
//! remote.rs    one remote object of one version   ahead.rs   what a reader will want next
//! cell.rs      a part that is read as it comes    cache.rs   blocks on a local disk
//! network.rs   a range fetched, all of it         retry.rs   when a request is tried again
//! s3.rs        http.rs                            options.rs [storage]
//! ```

mod address;
mod ahead;
mod cache;
mod cell;
mod http;
mod hub;
mod list;
mod local;
mod network;
mod options;
mod remote;
mod retry;
#[cfg_attr(not(feature = "s3"), path = "s3_absent.rs")]
mod s3;
mod stores;

use std::fmt::Debug;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use address::{scheme, shown};
pub(crate) use ahead::PARTS_MAX as READER_PARTS;
pub(crate) use hub::cached_tokenizer;
pub use hub::tokenizer_folder;
pub use list::{Listed, list};
pub use local::LocalFile;
pub use options::{
    CacheOptions, Environment, HttpOptions, HubOptions, RetryOptions, S3Options, Secret, StorageOptions,
};
pub use retry::Traffic;
pub use stores::{Stores, read_ahead_bytes};

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

    /// Opens the object of the size and version that were listed, which saves asking for them.
    ///
    /// # Errors
    /// As [`Store::open`]; that it is another version may come out at the first read only.
    fn open_version(&self, location: &str, _size: u64, _version: &Version) -> Result<Arc<dyn Object>> {
        self.open(location)
    }

    /// Says that the object will be opened soon, so that what is read of it before others may be on its way by then. What it costs is
    /// bounded; errors come out when it is read.
    fn expect(&self, _location: &str, _size: u64, _version: &Version, _wanted: Expected) {}

    /// Says that this process will read for `own` of `all` lanes, from which follows what is worth keeping.
    fn expect_lanes(&self, _own: u32, _all: u32) {}

    /// What was asked of remote servers so far.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

/// Which version of a remote object is meant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Version {
    /// The ETag as the server writes it, else `modified` and a time; `None` for local files, and where a server says neither.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// The server gives the object as a whole only, so it is copied before it is read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
}

/// What of an object will be read soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Its beginning, which says how it is to be read.
    Beginning,
    /// Its beginning and its end, which say so together.
    Ends,
    /// All of it.
    All,
    /// All of it, and it has to be gone through to know how it is to be read.
    AllToOpen,
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

    /// A view for one reader that will read `range` about in order, and then perhaps a little more; `None` where that is no
    /// better than the object itself.
    fn reader(&self, _range: Range<u64>, _how: Reading) -> Option<Arc<dyn Object>> {
        None
    }

    /// The same object read afresh, each byte until two reads agree: for who found damage that may have happened on the way.
    /// `None` where reading again would give the same.
    fn read_again(&self) -> Option<Arc<dyn Object>> {
        None
    }

    /// Whether all of it is in memory after the first read.
    fn in_memory(&self) -> bool {
        false
    }

    /// Whether bytes may come damaged and nothing would show it: then what everything else hangs on, as tables of frames and
    /// footers, is read by [`Object::read_again`]. `opened`: that has been read, and what is here of the object may show it now.
    fn is_doubtful(&self, _opened: bool) -> bool {
        false
    }
}

/// How a range is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// In order; what lies around it is for other readers of the process.
    Along,
    /// In order, and what lies around it is for nobody, as the other columns of a table. `steps`: parts of it are stepped
    /// over at first.
    Only {
        /// At first there are gaps.
        steps: bool,
    },
}

/// What reads `range` of `object` in order.
pub(crate) fn reader(object: &Arc<dyn Object>, range: Range<u64>, how: Reading) -> Arc<dyn Object> {
    object.reader(range, how).unwrap_or_else(|| object.clone())
}

/// Bytes as hex digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hex MD5 of all `parts` together, the sum that object stores keep.
fn md5_hex<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    use md5::Digest;
    let mut sum = md5::Md5::new();
    parts.into_iter().for_each(|part| sum.update(part));
    hex(&sum.finalize())
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

    fn reader(&self, range: Range<u64>, how: Reading) -> Option<Arc<dyn Object>> {
        Some(Arc::new(Checked(self.0.reader(range, how)?)))
    }

    fn read_again(&self) -> Option<Arc<dyn Object>> {
        Some(Arc::new(Checked(self.0.read_again()?)))
    }

    fn is_doubtful(&self, opened: bool) -> bool {
        self.0.is_doubtful(opened)
    }

    fn in_memory(&self) -> bool {
        self.0.in_memory()
    }
}
