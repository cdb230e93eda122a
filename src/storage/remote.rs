//! A remote object as the shards read it: at any place, by several readers, always of one version.
//!
//! Comes in: an address, the size and version that were listed. Goes out: an [`Object`]. Holds: a small object is fetched once, as a
//! whole, and compared with its checksum; of a large one the first and last bytes, where formats keep what they need to be opened, are
//! fetched once. What was fetched is looked up in the local cache first, and kept there. Does not know: formats.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::address::Address;
use super::ahead::{Ahead, Budget, Held};
use super::cache::{BLOCK, Cache, CacheKey};
use super::network::{Network, Wanted};
use super::{LocalFile, Object, Version};
use crate::error::{Error, ErrorKind, Result};

/// What is fetched of a large object's beginning at once, and of its end.
const HEAD: u64 = 256 << 10;
const TAIL: u64 = 64 << 10;

/// What the objects of a plan share.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) network: Arc<Network>,
    pub(super) budget: Arc<Budget>,
    pub(super) cache: Option<Arc<Cache>>,
}

/// A remote object of a known version.
pub(super) struct Remote {
    shared: Shared,
    address: Arc<Address>,
    version: Version,
    size: u64,
    part_size: u64,
    /// All of it, or its beginning; and its end.
    head: Mutex<Option<(Bytes, Held)>>,
    tail: Mutex<Option<(Bytes, Held)>>,
    /// Each fetch is made until two agree.
    twice: bool,
    /// To hand itself to its readers.
    me: std::sync::Weak<Remote>,
}

impl Remote {
    pub(super) fn new(
        shared: Shared,
        address: Arc<Address>,
        version: Version,
        size: u64,
        part_size: u64,
        twice: bool,
    ) -> Arc<Remote> {
        Arc::new_cyclic(|me| Remote {
            shared,
            address,
            version,
            size,
            part_size,
            head: Mutex::new(None),
            tail: Mutex::new(None),
            twice,
            me: me.clone(),
        })
    }

    pub(super) fn network(&self) -> &Arc<Network> {
        &self.shared.network
    }

    pub(super) fn part_size(&self) -> u64 {
        self.part_size
    }

    fn wanted(&self, range: Range<u64>) -> Wanted {
        Wanted { address: self.address.clone(), version: self.version.clone(), size: self.size, range }
    }

    /// The bytes of a range, out of the cache or fetched.
    pub(super) async fn fetch(&self, range: Range<u64>) -> Result<Bytes> {
        let key = |twice| CacheKey::of(&self.address, &self.version, self.size, twice);
        let Some(((cache, key), plain)) = self.shared.cache.as_ref().zip(key(self.twice)).zip(key(false)) else {
            return self.fetch_direct(range).await.map(Bytes::from);
        };
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        let all = blocks.start * BLOCK..(blocks.end * BLOCK).min(self.size);
        let mut bytes = Vec::with_capacity((all.end - all.start) as usize);
        let mut missing: Option<u64> = None;
        for block in blocks.start..=blocks.end {
            let there = match block < blocks.end {
                true => tokio::task::block_in_place(|| cache.read(&key, block)),
                false => None,
            };
            if block < blocks.end && there.is_none() {
                missing.get_or_insert(block);
                continue;
            }
            if let Some(first) = missing.take() {
                let fetched = self.fetch_direct(first * BLOCK..(block * BLOCK).min(self.size)).await?;
                tokio::task::block_in_place(|| {
                    for (index, piece) in fetched.chunks(BLOCK as usize).enumerate() {
                        cache.write(&key, first + index as u64, piece);
                        if self.twice {
                            // In place of what may have been kept damaged.
                            cache.write(&plain, first + index as u64, piece);
                        }
                    }
                });
                bytes.extend_from_slice(&fetched);
            }
            if let Some(there) = there {
                self.network().counters.cached_bytes.fetch_add(there.len() as u64, Ordering::Relaxed);
                bytes.extend_from_slice(&there);
            }
        }
        let bytes = Bytes::from(bytes);
        Ok(bytes.slice((range.start - all.start) as usize..(range.end - all.start) as usize))
    }

    async fn fetch_direct(&self, range: Range<u64>) -> Result<Vec<u8>> {
        let network = self.network();
        let live = network.live()?;
        let wanted = self.wanted(range);
        let result = match self.twice {
            true => network.fetch_twice(&live, &wanted).await,
            false => network.fetch(&live, &wanted).await,
        };
        result.map_err(gone)
    }

    /// Fetches a range and waits for it.
    fn fetch_now(&self, range: Range<u64>) -> Result<Bytes> {
        let me = self.me.upgrade().expect("whoever calls holds it");
        self.network().run(async move { me.fetch(range).await })
    }

    /// What is kept in `slot`, fetched the first time.
    fn kept(&self, slot: &Mutex<Option<(Bytes, Held)>>, range: Range<u64>) -> Result<Bytes> {
        let mut slot = slot.lock().expect("no panic happens while it is held");
        if let Some((bytes, _)) = &*slot {
            return Ok(bytes.clone());
        }
        let held = Held::take(&self.shared.budget, range.end - range.start);
        let bytes = self.fetch_now(range)?;
        *slot = Some((bytes.clone(), held));
        Ok(bytes)
    }

    fn head_range(&self) -> Range<u64> {
        0..if self.is_small() { self.size } else { HEAD.min(self.size) }
    }

    fn is_small(&self) -> bool {
        self.size <= self.part_size.max(HEAD)
    }

    /// The bytes, if they are kept.
    pub(super) fn at_hand(&self, offset: u64, count: usize) -> Option<Bytes> {
        let within = |slot: &Mutex<Option<(Bytes, Held)>>, start: u64| {
            let slot = slot.lock().expect("no panic happens while it is held");
            let (bytes, _) = slot.as_ref()?;
            let from = usize::try_from(offset.checked_sub(start)?).ok()?;
            bytes.len().checked_sub(count).filter(|&last| from <= last)?;
            Some(bytes.slice(from..from + count))
        };
        within(&self.head, 0).or_else(|| within(&self.tail, self.size.saturating_sub(TAIL)))
    }
}

/// Of an object that was listed, "not found" means that it is gone.
fn gone(error: Error) -> Error {
    if error.kind() != ErrorKind::NotFound {
        return error;
    }
    Error::new(ErrorKind::Read, format!("{}; it was there when it was listed", error.detail()))
}

impl Object for Remote {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let count = self.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        if count == 0 {
            return Ok(0);
        }
        let end = offset + count as u64;
        let head = self.head_range();
        let tail = self.size - TAIL.min(self.size);
        let (bytes, start) = if end <= head.end {
            (self.kept(&self.head, head)?, 0)
        } else if offset >= tail {
            (self.kept(&self.tail, tail..self.size)?, tail)
        } else {
            (self.fetch_now(offset..end)?, offset)
        };
        let from = (offset - start) as usize;
        buf[..count].copy_from_slice(&bytes[from..from + count]);
        Ok(count)
    }

    fn reader(&self, range: Range<u64>, steps: bool) -> Option<Arc<dyn Object>> {
        if self.is_small() {
            return None;
        }
        let range = range.start.min(self.size)..range.end.min(self.size);
        let me = self.me.upgrade().expect("whoever calls holds it");
        Some(Arc::new(Ahead::new(me, self.shared.budget.clone(), range, steps)))
    }

    fn read_again(&self) -> Option<Arc<dyn Object>> {
        if self.twice {
            return None;
        }
        let Remote { shared, address, version, size, part_size, .. } = self;
        Some(Remote::new(shared.clone(), address.clone(), version.clone(), *size, *part_size, true))
    }

    fn in_memory(&self) -> bool {
        self.is_small()
    }

    fn is_doubtful(&self) -> bool {
        // With TLS it would show, and in a small object with a sum as well.
        let network = self.network();
        !self.twice
            && network.is_plain(&self.address)
            && !(self.is_small() && network.has_sum(&self.wanted(0..self.size)))
    }
}

/// An object of a server without ranges: copied to a file of its own at the first read.
pub(super) struct Spooled {
    shared: Shared,
    wanted: Wanted,
    file: Mutex<Option<Arc<LocalFile>>>,
    twice: bool,
}

impl Spooled {
    pub(super) fn new(shared: Shared, address: Arc<Address>, version: Version, size: u64) -> Spooled {
        let wanted = Wanted { address, version, size, range: 0..size };
        Spooled { shared, wanted, file: Mutex::new(None), twice: false }
    }

    fn file(&self) -> Result<Arc<LocalFile>> {
        let mut file = self.file.lock().expect("no panic happens while it is held");
        if let Some(file) = &*file {
            return Ok(file.clone());
        }
        let mut earlier = Vec::new();
        let there = loop {
            let (copy, hash) = self.copy()?;
            if !self.twice || earlier.contains(&hash) {
                break copy;
            }
            if earlier.len() == 4 {
                let detail = format!(
                    "{}: found different bytes in each of 5 reads, expected the same",
                    self.wanted.address.shown
                );
                return Err(Error::new(ErrorKind::Read, detail));
            }
            earlier.push(hash);
        };
        Ok(file.insert(Arc::new(LocalFile::of(there, &self.wanted.address.shown)?)).clone())
    }

    /// Copies the object to a file that nobody else sees.
    fn copy(&self) -> Result<(std::fs::File, blake3::Hash)> {
        use std::io::{Seek, Write};
        let failed =
            |error: std::io::Error| Error::new(ErrorKind::Write, "can't keep a copy of a remote object").because(error);
        let file = match &self.shared.cache {
            Some(cache) => tempfile::tempfile_in(cache.folder()),
            None => tempfile::tempfile(),
        };
        let file = file.map_err(failed)?;
        let (network, wanted) = (self.shared.network.clone(), self.wanted.clone());
        self.shared.network.run(async move {
            let live = network.live()?;
            let mut writer = std::io::BufWriter::with_capacity(1 << 20, file);
            let mut hasher = blake3::Hasher::new();
            network
                .fetch_to(&live, &wanted, &mut |piece| match piece {
                    Some(piece) => {
                        hasher.update(piece);
                        writer.write_all(piece).map_err(failed)
                    }
                    None => {
                        hasher = blake3::Hasher::new();
                        writer.rewind().map_err(failed)
                    }
                })
                .await
                .map_err(gone)?;
            let file = writer.into_inner().map_err(|error| failed(error.into_error()))?;
            Ok((file, hasher.finalize()))
        })
    }
}

impl Object for Spooled {
    fn size(&self) -> u64 {
        self.wanted.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file()?.read_at(offset, buf)
    }

    fn read_again(&self) -> Option<Arc<dyn Object>> {
        let (shared, wanted) = (self.shared.clone(), self.wanted.clone());
        (!self.twice)
            .then(|| Arc::new(Spooled { shared, wanted, file: Mutex::new(None), twice: true }) as Arc<dyn Object>)
    }
}
