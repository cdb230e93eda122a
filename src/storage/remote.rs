//! A remote object as the shards read it: at any place, by several readers, always of one version.
//!
//! Comes in: an address, the size and version that were listed. Goes out: an [`Object`]. Holds: a small object is fetched once, as a
//! whole, and compared with its checksum; one of which this process reads most, and for which there is room, is fetched in parts that
//! stay while it is open, each once for all readers; of a larger one the first and last bytes, where formats keep what they need to be opened, are
//! fetched once. What was fetched is looked up in the local cache first, and kept there. Does not know: formats.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;

use super::address::Address;
use super::ahead::{Ahead, Budget, Held, Whole};
use super::cache::{BLOCK, Cache, CacheKey};
use super::cell::{Cell, Filler};
use super::network::{Network, Wanted};
use super::{Expected, LocalFile, Object, Reading, Version};
use crate::error::{Error, ErrorKind, Result};

/// What is fetched of a large object's beginning at once, and of its end.
const HEAD: u64 = 256 << 10;
const TAIL: u64 = 64 << 10;

/// Whether an object is fetched as a whole.
fn is_small(size: u64, part_size: u64) -> bool {
    size <= part_size.max(HEAD)
}

/// What the objects of a plan share.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) network: Arc<Network>,
    pub(super) budget: Arc<Budget>,
    pub(super) cache: Option<Arc<Cache>>,
}

/// What is kept, or on its way.
type Slot = Mutex<Option<(Arc<Cell>, Held)>>;

/// A remote object of a known version.
pub(super) struct Remote {
    shared: Shared,
    address: Arc<Address>,
    version: Version,
    size: u64,
    part_size: u64,
    /// All of it, or its beginning; and its end.
    head: Slot,
    tail: Slot,
    /// Each fetch is made until two agree.
    twice: bool,
    /// All of its parts, where there is room for them. Of one that is read afresh it is taken when a part is asked for: most are
    /// made for damage that never comes.
    grid: OnceLock<Option<Grid>>,
    /// The same, read afresh, where that was begun before it was asked for.
    again: OnceLock<Arc<Remote>>,
    /// To hand itself to its readers.
    me: std::sync::Weak<Remote>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Remote({})", self.address.shown)
    }
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
        let remote = Arc::new_cyclic(|me| Remote {
            grid: OnceLock::new(),
            again: OnceLock::new(),
            shared,
            address,
            version,
            size,
            part_size,
            head: Mutex::new(None),
            tail: Mutex::new(None),
            twice,
            me: me.clone(),
        });
        if !twice {
            remote.take_grid();
        }
        remote
    }

    /// Its parts, for which room is taken the first time.
    fn take_grid(&self) -> Option<&Grid> {
        let take = || {
            let room = if self.is_small() { None } else { self.shared.budget.take_whole(self.size) };
            room.map(|room| Grid { parts: Mutex::default(), checked: OnceLock::new(), _room: room })
        };
        self.grid.get_or_init(take).as_ref()
    }

    /// Its parts, if room was taken for them.
    fn grid(&self) -> Option<&Grid> {
        self.grid.get()?.as_ref()
    }

    /// Whether it is of this size and version.
    pub(super) fn is(&self, size: u64, version: &Version) -> bool {
        self.size == size && self.version == *version
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
    fn kept(&self, slot: &Slot, range: Range<u64>) -> Result<Bytes> {
        let cell = self.ask(slot, range)?;
        cell.whole().inspect_err(|_| {
            let mut slot = slot.lock().expect("no panic happens while it is held");
            // The next reader tries once more.
            slot.take_if(|(failed, _)| Arc::ptr_eq(failed, &cell));
        })
    }

    /// What is to be kept in `slot`, asked for if it wasn't.
    fn ask(&self, slot: &Slot, range: Range<u64>) -> Result<Arc<Cell>> {
        let mut slot = slot.lock().expect("no panic happens while it is held");
        if let Some((cell, _)) = &*slot {
            return Ok(cell.clone());
        }
        let held = Held::take(&self.shared.budget, range.end - range.start);
        let (cell, _) = self.fetch_ahead(range)?;
        *slot = Some((cell.clone(), held));
        Ok(cell)
    }

    /// Starts to fetch what readers will want first; all of it only where all is held while it is open.
    pub(super) fn want(self: &Arc<Self>, wanted: Expected) {
        // Of a doubtful one, what it is opened with is read twice.
        let opened = match self.is_doubtful(false) {
            true => self.again.get_or_init(|| self.afresh()),
            false => self,
        };
        // What can't be asked for is said by who reads it.
        let _ = opened.ask(&opened.head, opened.head_range());
        if self.is_small() {
            return;
        }
        let from = match wanted {
            Expected::Beginning => return,
            Expected::Ends => {
                let _ = opened.ask(&opened.tail, opened.tail_range());
                return;
            }
            Expected::All => self,
            Expected::AllToOpen => opened,
        };
        if let Some(grid) = from.take_grid() {
            let _ = (0..self.size.div_ceil(self.part_size)).try_for_each(|n| from.part(grid, n).map(drop));
        }
    }

    /// Bytes that [`Remote::want`] would have fetched ahead, beyond what room was taken for.
    pub(super) fn wanted_bytes(&self, wanted: Expected) -> u64 {
        let end = matches!(wanted, Expected::Ends) && !self.is_small();
        self.head_range().end + if end { TAIL } else { 0 }
    }

    /// The same object, each byte of which is fetched until two reads agree.
    fn afresh(&self) -> Arc<Remote> {
        let Remote { shared, address, version, size, part_size, .. } = self;
        Remote::new(shared.clone(), address.clone(), version.clone(), *size, *part_size, true)
    }

    fn head_range(&self) -> Range<u64> {
        0..if self.is_small() { self.size } else { HEAD.min(self.size) }
    }

    fn tail_range(&self) -> Range<u64> {
        self.size.saturating_sub(TAIL)..self.size
    }

    fn is_small(&self) -> bool {
        is_small(self.size, self.part_size)
    }

    /// The bytes, if they are kept.
    pub(super) fn at_hand(&self, offset: u64, count: usize) -> Option<Bytes> {
        let within = |slot: &Slot, start: u64| {
            let slot = slot.lock().expect("no panic happens while it is held");
            let bytes = slot.as_ref()?.0.there()?;
            let from = usize::try_from(offset.checked_sub(start)?).ok()?;
            bytes.len().checked_sub(count).filter(|&last| from <= last)?;
            Some(bytes.slice(from..from + count))
        };
        within(&self.head, 0).or_else(|| within(&self.tail, self.tail_range().start))
    }
}

/// Parts of an object that were asked for, by their number.
struct Grid {
    parts: Mutex<BTreeMap<u64, Arc<Cell>>>,
    /// Whether all parts together have the sum that the object's version is.
    checked: OnceLock<bool>,
    _room: Whole,
}

/// Parts that are fetched before they are asked for.
const PARTS_AHEAD: u64 = 2;

impl Remote {
    /// The part of that number, asked for if it wasn't.
    fn part(&self, grid: &Grid, number: u64) -> Result<Arc<Cell>> {
        let mut parts = grid.parts.lock().expect("no panic happens while it is held");
        if let Some(cell) = parts.get(&number) {
            return Ok(cell.clone());
        }
        let start = number * self.part_size;
        let range = start..(start + self.part_size).min(self.size);
        let (cell, _) = self.fetch_ahead(range)?;
        parts.insert(number, cell.clone());
        Ok(cell)
    }

    /// Starts to fetch a range, which can be read as it comes, until it is there or the handle is used.
    pub(super) fn fetch_ahead(&self, range: Range<u64>) -> Result<(Arc<Cell>, tokio::task::AbortHandle)> {
        let cell = Arc::new(Cell::new((range.end - range.start) as usize));
        let (me, filler) = (self.me.upgrade().expect("whoever calls holds it"), Filler::new(cell.clone()));
        let (_, abort) = self.network().spawn(async move { me.fill(range, filler).await })?;
        Ok((cell, abort))
    }

    async fn fill(&self, range: Range<u64>, filler: Filler) {
        // What is checked or kept as a whole is given when it is whole.
        if self.shared.cache.is_some() || self.twice || range == (0..self.size) {
            filler.end(self.fetch(range).await);
            return;
        }
        let network = self.network();
        let result = match network.live() {
            Ok(live) => network.fetch_to(&live, &self.wanted(range), &mut |piece| filler.push(piece)).await,
            Err(error) => Err(error),
        };
        filler.close(result.map(drop).map_err(gone));
    }

    /// Asks for the parts from `number` on that will be wanted soon.
    fn ask_ahead(&self, grid: &Grid, number: u64) -> Result<()> {
        let end = self.size.div_ceil(self.part_size);
        (number..(number + PARTS_AHEAD + 1).min(end)).try_for_each(|number| self.part(grid, number).map(drop))
    }

    fn read_grid(&self, grid: &Grid, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < buf.len() {
            let at = offset + filled as u64;
            let number = at / self.part_size;
            self.ask_ahead(grid, number)?;
            let from = (at - number * self.part_size) as usize;
            filled += self.part(grid, number)?.read(from, &mut buf[filled..])?;
        }
        Ok(())
    }

    /// Whether all of it is here and has the sum that its version is.
    fn is_checked(&self) -> bool {
        let Some(grid) = self.grid() else { return false };
        if !self.network().has_sum(&self.wanted(0..self.size)) {
            return false;
        }
        let cells: Vec<Arc<Cell>> =
            grid.parts.lock().expect("no panic happens while it is held").values().cloned().collect();
        let parts: Option<Vec<Bytes>> = cells.iter().map(|cell| cell.there()).collect();
        let Some(parts) = parts.filter(|parts| parts.len() as u64 == self.size.div_ceil(self.part_size)) else {
            return false;
        };
        *grid.checked.get_or_init(|| self.network().has_this_sum(&self.version, &parts))
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
        let (head, tail) = (self.head_range(), self.tail_range());
        let (bytes, start) = if end <= head.end {
            (self.kept(&self.head, head)?, 0)
        } else if offset >= tail.start {
            let start = tail.start;
            (self.kept(&self.tail, tail)?, start)
        } else {
            (self.fetch_now(offset..end)?, offset)
        };
        let from = (offset - start) as usize;
        buf[..count].copy_from_slice(&bytes[from..from + count]);
        Ok(count)
    }

    fn reader(&self, range: Range<u64>, how: Reading) -> Option<Arc<dyn Object>> {
        if self.is_small() {
            return None;
        }
        let range = range.start.min(self.size)..range.end.min(self.size);
        let me = self.me.upgrade().expect("whoever calls holds it");
        if how == Reading::Along
            && let Some(grid) = self.take_grid()
        {
            // What can't be asked for is said by who reads it.
            let _ = self.part(grid, (range.start / self.part_size).min((self.size - 1) / self.part_size));
            return Some(Arc::new(Along(me)));
        }
        Some(Arc::new(Ahead::new(me, self.shared.budget.clone(), range, how == Reading::Only { steps: true })))
    }

    fn read_again(&self) -> Option<Arc<dyn Object>> {
        if self.twice {
            return None;
        }
        Some(self.again.get().cloned().unwrap_or_else(|| self.afresh()))
    }

    fn in_memory(&self) -> bool {
        let parts = |grid: &Grid| grid.parts.lock().expect("no panic happens while it is held").len() as u64;
        self.is_small() || self.grid().is_some_and(|grid| 2 * parts(grid) > self.size.div_ceil(self.part_size))
    }

    fn is_doubtful(&self, opened: bool) -> bool {
        // With TLS it would show, and in what has a sum as well, when all of it is here.
        let network = self.network();
        let has_sum = || (self.is_small() || self.grid().is_some()) && network.has_sum(&self.wanted(0..self.size));
        let checked = || has_sum() && (!opened || self.is_small() || self.is_checked());
        !self.twice && network.is_plain(&self.address) && !checked()
    }
}

/// A reader of parts that all readers share.
struct Along(Arc<Remote>);

impl Object for Along {
    fn size(&self) -> u64 {
        self.0.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let count = self.0.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let grid = self.0.grid().expect("it is what makes a reader like this");
        self.0.read_grid(grid, offset, &mut buf[..count]).map(|()| count)
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
