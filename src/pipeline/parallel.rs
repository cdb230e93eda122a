//! The parallel driver: reading, decompressing, parsing and tokenizing run ahead on a pool of our own.
//!
//! Comes in: readers of all strands (a strand is one source in one lane). Goes out: each strand's encoded documents, in its
//! order. Holds: what comes out is what the serial driver gives; everything ahead is bounded in bytes; an error, also a
//! panic, comes at its place in the order; a wait is never longer than the stall timeout. Does not know: blocks, mixture.
//!
//! ```text
//!                     caller's thread                                 pool (rayon), or loaders
//!  next(strand) -> pops the strand's first piece          load:   read, decompress, find records, shuffle -> window
//!               -> schedules what may run ahead  --task-->  encode: parse, tokenize a piece of a window  -> ids
//!               <- takes what is done           <-channel--
//! ```
//!
//! Decisions are the caller's thread's, so there are no locks but the queues of tasks and, in shards that can't be
//! seeked, the shared decoder; a piece is some 100 KB of text, so neither shows. Tasks are taken by need: what
//! will be delivered first is first. Why not a rayon scope or parallel iterators: the order of need crosses strands and
//! changes as blocks are delivered. Loads of one group of lanes run one at a time while the group reads shards that
//! can't be seeked: they share a decoder, and a worker that waits for another's decoder tokenizes nothing. For the same
//! reason loads of sources with remote shards have threads of their own: those mostly wait. They aren't rayon's, whose threads
//! go round all queues some thirty times before they sleep.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use super::reader::{Context, LaneReader, LoadedWindow};
use super::streams::StreamPool;
use super::{Documents, Poll, RunOptions, lost};
use crate::document::EncodedDocuments;
use crate::error::{Error, ErrorKind, Result, panic_message};

/// Bytes of records in a piece, about: enough that handing it over doesn't show, few enough that pieces of many lanes
/// fit the caches.
const PIECE_BYTES: usize = 128 << 10;
/// The same where many strands share what may run ahead.
pub(super) const PIECE_BYTES_MIN: usize = 16 << 10;
/// Bytes of records that all strands together run ahead, for each thread, where `runtime.memory` allows it.
const AHEAD_BYTES_A_THREAD: usize = 8 << 20;
/// Threads that load from remote objects, at most.
const LOADERS_MAX: usize = 32;
/// How often a wait looks at the interrupt flag.
const TICK: Duration = Duration::from_millis(50);

pub(super) struct Parallel {
    strands: Vec<Strand>,
    shared: Arc<Shared>,
    pool: rayon::ThreadPool,
    results: Receiver<Done>,
    /// Bytes of records each strand may have encoded or encoding, beyond the piece in use.
    ahead_bytes: usize,
    /// Bytes of records in a piece, about.
    piece_bytes: usize,
    /// Where the pool gets shards from that can't be seeked: whether a group's last load was from one.
    on_stream: BTreeMap<Group, bool>,
    stall_timeout: Duration,
    interrupt: Arc<AtomicBool>,
    poll: Option<Poll>,
    /// When it was last called.
    asked: Instant,
}

/// What tasks share.
struct Shared {
    context: Arc<Context>,
    streams: StreamPool,
    tasks: Mutex<BinaryHeap<Task>>,
    /// Those of the loaders, the threads for sources with remote shards.
    loads: Mutex<BinaryHeap<Task>>,
    /// Wakes a loader; they end when it is dropped.
    wake_loader: Sender<()>,
    /// Loads of a group that wait for the one that runs; present while one runs.
    loading: Mutex<BTreeMap<Group, VecDeque<Task>>>,
    results: Sender<Done>,
    /// Set when the driver is dropped: tasks not begun are not run.
    closed: AtomicBool,
    /// For tests: seed of delays, and a counter of tasks.
    delays: Option<(u64, AtomicU64)>,
    /// What the threads are at: for the message of a stall.
    running: Mutex<BTreeMap<Thread, Running>>,
}

/// Who runs tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Crew {
    /// The pool: all tasks, but for loads that loaders do.
    Workers,
    /// The threads for sources with remote shards.
    Loaders,
}

/// One of a crew, by its number.
type Thread = (Crew, usize);

struct Running {
    strand: usize,
    since: Instant,
    /// The shard of the documents that are tokenized; else something is read.
    tokenizing: Option<Arc<str>>,
}

/// `(source, stage, group)`: lanes that share a decoder, in the epochs of a stage.
type Group = (usize, usize, u32);

struct Strand {
    lane: u32,
    /// Some of the source's shards are remote.
    is_remote: bool,
    /// The global block for which it is first needed.
    turn: u64,
    /// The group that the last load was for.
    group: Group,
    /// The shard that the reader is at, wherever the reader is.
    reading: Arc<AtomicU64>,
    /// The reader; away while a load runs, gone after the last window.
    reader: Option<Box<LaneReader>>,
    loading: bool,
    /// Windows with pieces not yet handed out.
    windows: VecDeque<PiecesLeft>,
    /// Bytes of records in `windows` not yet handed out.
    unscheduled: usize,
    /// Pieces handed out, in order.
    slots: VecDeque<Slot>,
    /// Number of the first slot.
    first_slot: u64,
    /// Bytes of records in `slots`.
    ahead: usize,
    /// What comes after all slots and windows, when that is known: the end, or an error.
    end: Option<Result<()>>,
    /// Damage passed over before the end.
    lost: Option<EncodedDocuments>,
}

struct PiecesLeft {
    window: Arc<LoadedWindow>,
    pieces: VecDeque<(Range<usize>, usize)>,
}

struct Slot {
    bytes: usize,
    shard: Arc<str>,
    encoded: Option<EncodedDocuments>,
}

/// A task with its need: pieces of its strand that are delivered before it (0 for a load), then the strand's turn, then
/// age.
struct Task {
    need: Reverse<(usize, u64, u64)>,
    strand: usize,
    work: Work,
}

enum Work {
    /// `group`: the one whose loads go one by one.
    Load {
        reader: Box<LaneReader>,
        group: Option<Group>,
    },
    Encode {
        window: Arc<LoadedWindow>,
        range: Range<usize>,
        slot: u64,
    },
}

enum Done {
    /// The reader is gone after a panic.
    Loaded {
        strand: usize,
        reader: Option<Box<LaneReader>>,
        window: Box<Result<Option<LoadedWindow>>>,
    },
    Encoded {
        strand: usize,
        slot: u64,
        encoded: EncodedDocuments,
    },
}

impl PartialEq for Task {
    fn eq(&self, other: &Self) -> bool {
        self.need == other.need
    }
}
impl Eq for Task {}
impl PartialOrd for Task {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Task {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.need.cmp(&other.need)
    }
}

impl Parallel {
    /// A driver of `strands`: `(turn, reader)`, each of which may have so many bytes of records encoded ahead. The turn is the
    /// global block for which a strand is first needed; none that is never needed is read before it is asked for.
    ///
    /// # Errors
    /// `Internal` when threads can't be started.
    pub fn new(
        context: Arc<Context>,
        streams: StreamPool,
        strands: Vec<(u64, LaneReader)>,
        threads: usize,
        ahead_bytes: usize,
        options: &RunOptions,
    ) -> Result<Self> {
        let pool =
            rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("tokenmill-{i}")).build();
        let pool = pool.map_err(|error| cannot_start(threads).because(error))?;
        let (sender, results) = unbounded();
        let (wake_loader, woken) = unbounded();
        let plan = &context.plan;
        let remote = &context.remote;
        let loaders = strands.iter().filter(|(_, reader)| remote[reader.source()]).count().min(LOADERS_MAX);
        let stall_timeout = plan.config.runtime.stall_timeout.0;
        let strands: Vec<Strand> = strands
            .into_iter()
            .map(|(turn, reader)| Strand {
                lane: reader.lane(),
                is_remote: remote[reader.source()],
                turn,
                group: reader.group(plan),
                reading: reader.reading.clone(),
                reader: Some(Box::new(reader)),
                loading: false,
                windows: VecDeque::new(),
                unscheduled: 0,
                slots: VecDeque::new(),
                first_slot: 0,
                ahead: 0,
                end: None,
                lost: None,
            })
            .collect();
        let shared = Shared {
            context,
            streams,
            tasks: Mutex::default(),
            loads: Mutex::default(),
            wake_loader,
            loading: Mutex::default(),
            results: sender,
            closed: AtomicBool::new(false),
            delays: options.test_delays.map(|seed| (seed, AtomicU64::new(0))),
            running: Mutex::default(),
        };
        let shared = Arc::new(shared);
        start_loaders(loaders, &shared, &woken)?;
        let mut driver = Parallel {
            strands,
            shared,
            pool,
            results,
            ahead_bytes,
            piece_bytes: piece_bytes(ahead_bytes),
            on_stream: BTreeMap::new(),
            stall_timeout,
            interrupt: options.interrupt.clone(),
            poll: options.poll.clone(),
            asked: Instant::now(),
        };
        let mut first: Vec<usize> = (0..driver.strands.len()).collect();
        first.retain(|&strand| driver.strands[strand].turn != u64::MAX);
        first.sort_by_key(|&strand| driver.strands[strand].turn);
        for strand in first {
            driver.schedule(strand);
        }
        Ok(driver)
    }

    /// Hands out what the strand may run ahead.
    fn schedule(&mut self, index: usize) {
        let strand = &mut self.strands[index];
        while strand.ahead < self.ahead_bytes
            && let Some(left) = strand.windows.front_mut()
        {
            let (range, bytes) = left.pieces.pop_front().expect("a window without pieces isn't kept");
            let window = left.window.clone();
            if left.pieces.is_empty() {
                strand.windows.pop_front();
            }
            let slot = strand.first_slot + strand.slots.len() as u64;
            let need = Reverse((strand.ahead / self.piece_bytes, strand.turn, slot));
            strand.unscheduled -= bytes;
            strand.ahead += bytes;
            let shard = window.shard.name().clone();
            strand.slots.push_back(Slot { bytes, shard, encoded: None });
            let task = Task { need, strand: index, work: Work::Encode { window, range, slot } };
            self.shared.spawn(Some(&self.pool), Crew::Workers, task);
        }
        let short = strand.ahead + strand.unscheduled < 2 * self.ahead_bytes && strand.unscheduled < self.ahead_bytes;
        if short && strand.end.is_none() && !strand.loading {
            strand.loading = true;
            let reader = strand.reader.take().expect("a strand that isn't at its end has its reader between loads");
            strand.group = reader.group(&self.shared.context.plan);
            // A group's loads go one by one while they share a decoder, or may: the first load tells.
            let group = self.on_stream.get(&strand.group).copied().unwrap_or(true).then_some(strand.group);
            // Before all but what is waited for: lanes come to the ends of their windows at about the same time, and where they
            // share a decoder, one thread has to be at it while the others still have something to encode.
            let need = Reverse((0, strand.turn, 0));
            let task = Task { need, strand: index, work: Work::Load { reader, group } };
            if let Some(task) = self.shared.waits(task) {
                let crew = if strand.is_remote { Crew::Loaders } else { Crew::Workers };
                self.shared.spawn(Some(&self.pool), crew, task);
            }
        }
    }

    /// Takes in one result.
    fn take(&mut self, done: Done) {
        match done {
            Done::Encoded { strand, slot, encoded } => {
                let strand = &mut self.strands[strand];
                let at = (slot - strand.first_slot) as usize;
                strand.slots[at].encoded = Some(encoded);
            }
            Done::Loaded { strand: index, reader, window } => {
                let strand = &mut self.strands[index];
                strand.loading = false;
                let group = strand.group;
                if let Some(reader) = &reader {
                    self.on_stream.insert(group, reader.on_stream);
                }
                match *window {
                    Ok(Some(window)) => {
                        let mut pieces: VecDeque<_> = window.pieces(self.piece_bytes).into();
                        // However short, it takes its buffers.
                        pieces.iter_mut().for_each(|(_, bytes)| *bytes = (*bytes).max(PIECE_BYTES_MIN));
                        strand.unscheduled += pieces.iter().map(|(_, bytes)| bytes).sum::<usize>();
                        if !pieces.is_empty() {
                            strand.windows.push_back(PiecesLeft { window: Arc::new(window), pieces });
                        }
                        strand.reader = reader;
                    }
                    Ok(None) => {
                        strand.lost = reader.and_then(|mut reader| lost(reader.take_lost()));
                        strand.end = Some(Ok(()));
                    }
                    Err(error) => strand.end = Some(Err(error)),
                }
                self.schedule(index);
            }
        }
    }

    /// Asks the caller whether to end, once a [`TICK`] at most; also between results that come faster than that.
    fn ask(&mut self) -> Result<()> {
        let Some(poll) = &self.poll else { return Ok(()) };
        if self.asked.elapsed() < TICK {
            return Ok(());
        }
        self.asked = Instant::now();
        match (poll.0)() {
            true => Err(Error::new(ErrorKind::Interrupted, "the caller asked the wait to end")),
            false => Ok(()),
        }
    }

    /// Waits for one result, as long as something can still come.
    fn wait(&mut self, index: usize) -> Result<()> {
        let begin = Instant::now();
        loop {
            if self.interrupt.load(Ordering::Relaxed) {
                return Err(Error::new(ErrorKind::Interrupted, "the run was asked to stop"));
            }
            match self.results.recv_timeout(TICK.min(self.stall_timeout)) {
                Ok(done) => {
                    self.take(done);
                    return Ok(());
                }
                Err(RecvTimeoutError::Timeout) if begin.elapsed() < self.stall_timeout => self.ask()?,
                Err(_) => return Err(self.stalled(index, begin.elapsed())),
            }
        }
    }

    /// What the strand waits for: what a thread does for it, or for another lane whose shard it shares, or else what keeps
    /// the threads from it.
    fn stalled(&self, index: usize, waited: Duration) -> Error {
        let strand = &self.strands[index];
        let plan = &self.shared.context.plan;
        let running = self.shared.running.lock().expect("no panic happens while the table is held");
        let group = |running: &&Running| self.strands[running.strand].group == strand.group;
        let found = running
            .values()
            .find(|running| running.strand == index)
            .or_else(|| running.values().filter(group).min_by_key(|running| running.since))
            .or_else(|| running.values().min_by_key(|running| running.since));
        let name = |strand: &Strand| plan.sources[strand.group.0].name().to_owned();
        let mut detail = format!(
            "nothing came for {} s (runtime.stall_timeout = {}) for source {:?}, lane {}",
            waited.as_secs(),
            plan.config.runtime.stall_timeout,
            name(strand),
            strand.lane
        );
        let mut shard = strand.slots.front().map(|slot| slot.shard.clone());
        match found {
            Some(running) => {
                let at = &self.strands[running.strand];
                let stage = if running.tokenizing.is_some() { "tokenizing" } else { "reading" };
                detail += &format!(": stage {stage} since {} s", running.since.elapsed().as_secs());
                if running.strand != index {
                    detail += &format!(", for source {:?}, lane {}, which comes first", name(at), at.lane);
                }
                let location = |number: u64| plan.sources[at.group.0].manifest.shards.get(number as usize);
                let read = location(at.reading.load(Ordering::Relaxed)).map(|entry| entry.location.as_str().into());
                shard = running.tokenizing.clone().or(read).or(shard);
            }
            None => detail += ": no thread is at work",
        }
        if shard.is_none() {
            let next = strand.reader.as_ref().and_then(|reader| reader.next_shard_index(plan));
            let entry = next.map(|next| &plan.sources[strand.group.0].manifest.shards[next as usize]);
            shard = entry.map(|entry| entry.location.as_str().into());
        }
        let error = Error::new(ErrorKind::Stall, detail);
        match shard {
            Some(shard) => error.in_shard(&shard),
            None => error,
        }
    }
}

fn cannot_start(threads: usize) -> Error {
    Error::new(ErrorKind::Internal, format!("can't start {threads} threads"))
}

/// Starts the threads that take from the queue of loads.
fn start_loaders(threads: usize, shared: &Arc<Shared>, woken: &Receiver<()>) -> Result<()> {
    for thread in 0..threads {
        let (shared, woken) = (Arc::downgrade(shared), woken.clone());
        let loader = std::thread::Builder::new().name(format!("tokenmill-load-{thread}"));
        let started = loader.spawn(move || {
            while let Ok(()) = woken.recv()
                && let Some(shared) = shared.upgrade()
            {
                shared.run_one((Crew::Loaders, thread));
            }
        });
        started.map_err(|error| cannot_start(threads).because(error))?;
    }
    Ok(())
}

/// Bytes of records one of `strands` strands should run ahead.
///
/// With fewer than a piece, a strand has a single piece under way, and the next window is read when the last one is used up.
pub(super) fn ahead_bytes(threads: usize, strands: usize) -> usize {
    (threads * AHEAD_BYTES_A_THREAD / strands.max(1)).max(2 * PIECE_BYTES_MIN)
}

/// Bytes of records in a piece, about, where a strand may have so many ahead.
pub(super) fn piece_bytes(ahead_bytes: usize) -> usize {
    (ahead_bytes / 2).clamp(PIECE_BYTES_MIN, PIECE_BYTES)
}

impl Documents for Parallel {
    fn next(&mut self, index: usize, spent: Option<EncodedDocuments>) -> Result<Option<EncodedDocuments>> {
        if let Some(spent) = spent {
            self.shared.context.buffers.spent_piece(spent);
        }
        self.ask()?;
        loop {
            while let Ok(done) = self.results.try_recv() {
                self.take(done);
            }
            let strand = &mut self.strands[index];
            if let Some(front) = strand.slots.front_mut() {
                if let Some(encoded) = front.encoded.take() {
                    strand.ahead -= front.bytes;
                    strand.slots.pop_front();
                    strand.first_slot += 1;
                    self.schedule(index);
                    return Ok(Some(encoded));
                }
            } else if strand.windows.is_empty()
                && let Some(end) = &strand.end
            {
                if let Some(lost) = strand.lost.take() {
                    return Ok(Some(lost));
                }
                return end.clone().map(|()| None);
            }
            self.schedule(index);
            self.wait(index)?;
        }
    }
}

impl Drop for Parallel {
    fn drop(&mut self) {
        // Tasks not begun are dropped; the pool's threads end by themselves, and nobody waits for one that is stuck.
        self.shared.closed.store(true, Ordering::Relaxed);
        for tasks in [&self.shared.tasks, &self.shared.loads] {
            if let Ok(mut tasks) = tasks.lock() {
                tasks.clear();
            }
        }
        if let Ok(mut loading) = self.shared.loading.lock() {
            loading.clear();
        }
    }
}

impl Shared {
    fn tasks(&self, crew: Crew) -> MutexGuard<'_, BinaryHeap<Task>> {
        let tasks = match crew {
            Crew::Workers => &self.tasks,
            Crew::Loaders => &self.loads,
        };
        tasks.lock().expect("no panic happens while the queue is held")
    }

    /// Has a thread run a task; `pool` is given where this isn't one of its threads.
    fn spawn(self: &Arc<Self>, pool: Option<&rayon::ThreadPool>, crew: Crew, task: Task) {
        self.tasks(crew).push(task);
        if crew == Crew::Loaders {
            // Loaders live as long as this does.
            let _ = self.wake_loader.send(());
            return;
        }
        let shared = self.clone();
        let run = move || shared.run_one((Crew::Workers, rayon::current_thread_index().unwrap_or(0)));
        match pool {
            Some(pool) => pool.spawn_fifo(run),
            None => rayon::spawn_fifo(run),
        }
    }

    fn loading(&self) -> MutexGuard<'_, BTreeMap<Group, VecDeque<Task>>> {
        self.loading.lock().expect("no panic happens while the table is held")
    }

    /// Gives a load back that can run now; one of a group whose load runs waits for it.
    fn waits(&self, task: Task) -> Option<Task> {
        let Work::Load { group: Some(group), .. } = task.work else { return Some(task) };
        let mut loading = self.loading();
        if let Some(waiting) = loading.get_mut(&group) {
            waiting.push_back(task);
            return None;
        }
        loading.insert(group, VecDeque::new());
        Some(task)
    }

    /// Runs the task that is needed first. Of a group whose loads go one by one, those that wait follow on the same thread: what they want
    /// was mostly decoded on the way, and for a thread to become free takes longer.
    fn run_one(self: &Arc<Self>, thread: Thread) {
        let (crew, _) = thread;
        let mut next = self.tasks(crew).pop();
        while let Some(Task { strand, work, .. }) = next {
            if self.closed.load(Ordering::Relaxed) {
                return;
            }
            let group = match &work {
                Work::Load { group, .. } => *group,
                Work::Encode { .. } => None,
            };
            let done = self.run_task(thread, strand, work);
            let shares = !matches!(&done, Done::Loaded { reader: Some(reader), .. } if !reader.on_stream);
            // The driver may be gone.
            let _ = self.results.send(done);
            next = group.and_then(|group| self.next_load(crew, group, shares));
        }
    }

    /// What follows a load of a group, on this thread. Where the lanes turn out not to share a decoder, all that wait are let go.
    fn next_load(self: &Arc<Self>, crew: Crew, group: Group, shares: bool) -> Option<Task> {
        let mut loading = self.loading();
        let waiting = loading.get_mut(&group)?;
        if shares && let Some(next) = waiting.pop_front() {
            if crew == Crew::Loaders || rayon::current_num_threads() > 1 {
                return Some(next);
            }
            // Nobody else encodes meanwhile, so what is needed first comes first.
            drop(loading);
            let mut tasks = self.tasks(crew);
            tasks.push(next);
            return tasks.pop();
        }
        let waiting = loading.remove(&group)?;
        drop(loading);
        for mut task in waiting {
            if let Work::Load { group, .. } = &mut task.work {
                *group = None;
            }
            self.spawn(None, crew, task);
        }
        None
    }

    fn run_task(&self, thread: Thread, strand: usize, work: Work) -> Done {
        if let Some((seed, counter)) = &self.delays {
            let random = crate::order::key(*seed, "delay", "", &[counter.fetch_add(1, Ordering::Relaxed)]);
            std::thread::sleep(Duration::from_micros(random % 800));
        }
        let tokenizing = match &work {
            Work::Encode { window, .. } => Some(window.shard.name().clone()),
            Work::Load { .. } => None,
        };
        let running = || self.running.lock().expect("no panic happens while the table is held");
        running().insert(thread, Running { strand, since: Instant::now(), tokenizing });
        let done = self.run(strand, work);
        running().remove(&thread);
        done
    }

    fn run(&self, strand: usize, work: Work) -> Done {
        match work {
            Work::Load { mut reader, .. } => {
                let (lane, reading) = (reader.lane(), reader.reading.clone());
                let source = reader.source();
                let loaded = catch_unwind(AssertUnwindSafe(move || {
                    let window = reader.next(&self.context, Some(&self.streams));
                    (reader, window)
                }));
                match loaded {
                    Ok((reader, window)) => Done::Loaded { strand, reader: Some(reader), window: Box::new(window) },
                    Err(panic) => {
                        let shards = &self.context.plan.sources[source].manifest.shards;
                        let shard = shards.get(reading.load(Ordering::Relaxed) as usize);
                        let shard = shard.map(|entry| entry.location.as_str().into());
                        let error = panicked("reading", &*panic, lane, shard.as_ref());
                        Done::Loaded { strand, reader: None, window: Box::new(Err(error)) }
                    }
                }
            }
            Work::Encode { window, range, slot } => {
                thread_local! {
                    static SCRATCH: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
                }
                let encoded = catch_unwind(AssertUnwindSafe(|| {
                    SCRATCH.with_borrow_mut(|scratch| window.encode(&self.context, range, scratch))
                }));
                let encoded = encoded.unwrap_or_else(|panic| {
                    let error = panicked("tokenizing", &*panic, window.lane, Some(window.shard.name()));
                    EncodedDocuments { place: window.place, error: Some(error), ..EncodedDocuments::default() }
                });
                Done::Encoded { strand, slot, encoded }
            }
        }
    }
}

/// A worker's panic as an error: our own bug, with what it was at.
fn panicked(stage: &str, panic: &(dyn std::any::Any + Send), lane: u32, shard: Option<&Arc<str>>) -> Error {
    let detail = format!("{stage} panicked in lane {lane}: {}", panic_message(panic));
    let error = Error::new(ErrorKind::Internal, detail);
    match shard {
        Some(shard) => error.in_shard(shard),
        None => error,
    }
}
