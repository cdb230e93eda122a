//! How much memory a run will take, told before it runs, and the bounds that make it so.
//!
//! Comes in: a plan, a rank, a number of threads. Goes out: the driver's bounds, as large as `runtime.memory` allows, and an
//! upper bound of memory in parts that follows from them. Holds: windows, ids, decoders and what is kept for other lanes
//! stay within `runtime.memory` together; where even the least doesn't, that is an error and not a run. No shard and no
//! tokenizer is opened, so typical values stand for what only the data know. Measured peaks lie between half of the
//! prediction and all of it. Does not know: records longer than a window; each takes about [`RECORD_FACTOR`] times its
//! size while it passes. What callers keep of the batches is not in it.
//!
//! Why here and not beside the plan: the numbers are the parallel driver's own, and a copy of them would go stale.
//!
//! ```text
//! 32 lanes, 1 source, 2 threads, windows of 800 KiB             a strand     32 strands
//! windows   2.5 * 2 windows + 512 KiB ahead + a piece + buffers    4.8 MiB       153 MiB
//! ids       8/3 bytes a byte ahead and in use                      1.7 MiB        53 MiB
//! ```
//!
//! With less memory a strand runs less ahead; in the end it holds one window and one piece, and reads the next window when
//! that is used up.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;

use super::parallel::{PIECE_BYTES_MIN, ahead_bytes, piece_bytes};
use crate::config::ByteSize;
use crate::error::{Error, ErrorKind, Result};
use crate::packing::Strategy;
use crate::plan::{Plan, PlannedSource};
use crate::shard::{CHECKED_AHEAD, Format, compression_by_name};
use crate::storage::{READER_PARTS, read_ahead_bytes, scheme};

const MIB: u64 = 1 << 20;

/// What a byte of a record longer than a window takes while it passes: as read, as text, and as ids, with room to grow.
const RECORD_FACTOR: u64 = 16;

/// What a thread takes, the caller's included: its stack, and what the allocator has not given back yet of what was freed,
/// which on a busy machine is some 10 ms of all that passes.
const THREAD_BYTES: u64 = 32 * MIB;

/// Input and put-back buffers of one open shard in one strand.
const READER_BYTES: u64 = 192 << 10;

/// What will be taken, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct MemoryPrediction {
    /// Own lanes times sources.
    pub strands: u64,
    /// Records that all strands together have tokenized ahead, part of what follows.
    pub ahead: u64,
    /// Raw records: the windows in use, the next ones, buffers of readers.
    pub windows: u64,
    /// Token ids of documents that were tokenized ahead.
    pub ids: u64,
    /// Decoders, of typical compression levels.
    pub decoders: u64,
    /// Windows of shards that can't be seeked, decoded for lanes that did not ask yet.
    pub kept: u64,
    /// Parts of remote objects, read ahead or kept while a shard is open, and what is held until it was checked.
    pub remote: u64,
    /// The tokenizer, at the peak of its loading.
    pub tokenizer: u64,
    /// Shard names, cursors, one batch of blocks.
    pub rest: u64,
    /// Bytes of records a strand runs ahead, which `runtime.memory` allows.
    pub ahead_bytes: u64,
    /// What each byte of the largest record takes on top of it all, if that record is longer than a window.
    pub record_factor: u64,
    /// All of it: the sum, with a quarter of `tokenizer` given back after loading.
    pub total: u64,
}

/// Bounds of the parallel driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Bytes of records a strand may have encoded or encoding beyond the piece in use.
    pub ahead_bytes: usize,
    /// Bytes of windows kept for lanes that didn't ask yet, all passes together.
    pub kept_max: usize,
}

/// The bounds with which the lanes of a rank stay within `runtime.memory`, or the part of it that is left to each of `sharing` processes;
/// where that is too little, the least that they can do with.
///
/// # Errors
/// `Config`, naming what would be needed, when none do.
pub(super) fn bounds(plan: &Plan, lanes: &[u32], threads: usize, sharing: u32) -> Result<Bounds> {
    buffers(plan, lanes, threads, sharing).map(|(bounds, _)| bounds)
}

/// The largest bounds that fit, and the parts of the prediction that follow from them.
fn buffers(plan: &Plan, lanes: &[u32], threads: usize, sharing: u32) -> Result<(Bounds, MemoryPrediction)> {
    let whole = plan.config.runtime.memory.0;
    let share = whole / u64::from(sharing.max(1));
    let strands = lanes.len() * plan.sources.len();
    let most = ahead_bytes(threads, strands);
    let mut least = 0;
    for (ahead, memory) in [(most, share), (most.min(2 * PIECE_BYTES_MIN), share), (1, share), (1, whole)] {
        let mut prediction = parts(plan, lanes, ahead);
        let used = prediction.windows + prediction.ids + prediction.decoders + prediction.remote;
        least = used;
        // Without this much kept for each other, lanes of a group would decode their shard again and again.
        if used + prediction.kept <= memory {
            let kept_max = (memory / 4).max(prediction.kept).min(memory - used);
            prediction.kept = prediction.kept.min(kept_max);
            return Ok((Bounds { ahead_bytes: ahead, kept_max: kept_max as usize }, prediction));
        }
    }
    let kept = parts(plan, lanes, 1).kept;
    let needed = ByteSize((least + kept).next_multiple_of(MIB));
    Err(Error::new(
        ErrorKind::Config,
        format!(
            "runtime.memory is {}, expected at least {needed} for {} lanes of {} sources: raise it, or use more ranks, \
             fewer lanes, fewer sources or a smaller shuffle.window",
            plan.config.runtime.memory,
            lanes.len(),
            plan.sources.len()
        ),
    ))
}

/// What the strands take when each may run `ahead` bytes ahead; `kept` is what lanes of a group are likely to keep for each
/// other.
fn parts(plan: &Plan, lanes: &[u32], ahead: usize) -> MemoryPrediction {
    let own = lanes.len() as u64;
    let piece = piece_bytes(ahead) as u64;
    // Sources of weight 0 count as well, although they aren't read: a resume may give them a weight.
    let mut remote_ahead = 0;
    let mut parts = MemoryPrediction { strands: own * plan.sources.len() as u64, ..MemoryPrediction::default() };
    for source in &plan.sources {
        // Buffers grow by doubling and the allocator keeps some of what is freed, which makes two and a half times of a
        // window, measured.
        let window = windows_bytes(source, 1, 1, 0);
        let (windows, beyond) = if ahead < PIECE_BYTES_MIN {
            // The next window is read when the one before is used up, and no piece is larger than a window.
            (windows_bytes(source, own, 1, 0), piece.min(window))
        } else {
            (windows_bytes(source, own, 2, piece), ahead as u64 + piece)
        };
        parts.windows += windows * 5 / 2 + own * (beyond + READER_BYTES);
        // Room for an id in 3 bytes is taken at first, and doubled where that is too little.
        let per_byte = if plan.config.tokenizer.path == "bytes" { 20 } else { 8 };
        parts.ids += own * beyond * per_byte / 3;
        let packing = &plan.config.packing;
        if packing.strategy != Strategy::Concat {
            // A window's ids and the last document's, with room to grow.
            parts.ids += own * packing.window_tokens(plan.config.block_size) * 6;
        }
        let groups: BTreeSet<u32> = lanes.iter().map(|&lane| source.dealing.group(lane)).collect();
        let groups = groups.len() as u64;
        let (stream, alone) = decoder_bytes(source);
        // A decoder for each group; or one for each lane, where the shard can be seeked.
        parts.decoders += (groups * stream).max(own * alone);
        let (kept, ahead) = remote_bytes(plan, source);
        parts.remote += own * kept;
        remote_ahead += own * ahead;
        if stream > 0 && own > groups {
            // Lanes of a group advance at about the same pace, within some window of each other.
            parts.kept += own * window;
        }
    }
    // All readers of remote objects share one bound.
    parts.remote += remote_ahead.min(read_ahead_bytes(&plan.config.storage, plan.config.runtime.memory));
    parts
}

/// What each lane that reads a source's remote objects keeps, and what it may hold ahead; 0 where there are none.
fn remote_bytes(plan: &Plan, source: &PlannedSource) -> (u64, u64) {
    let mut most = (0, 0);
    for shard in &source.manifest.shards {
        let part = match scheme(&shard.location) {
            None => continue,
            Some("s3") => plan.config.storage.s3.part_size.0,
            Some(_) => plan.config.storage.http.part_size.0,
        };
        let held = if compression_by_name(&shard.name) == "none" { 0 } else { CHECKED_AHEAD as u64 };
        most = (most.0.max(part.min(shard.size) + held), most.1.max((READER_PARTS * part).min(shard.size)));
    }
    most
}

/// Predicts the peak of resident memory of a run on one rank with `threads` threads (0 = all cores).
///
/// Cost: O(shards), the size of the tokenizer's file is asked for; nothing is opened.
///
/// # Errors
/// `Config` when the world size doesn't divide the lanes, or `runtime.memory` is too small for them.
pub fn predict_memory(plan: &Plan, rank: u32, world_size: u32, threads: u32) -> Result<MemoryPrediction> {
    let lanes = plan.lanes_of(rank, world_size)?;
    let threads = match threads {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        threads => threads as usize,
    };
    let (bounds, mut prediction) = buffers(plan, &lanes, threads, 1)?;
    prediction.ahead_bytes = bounds.ahead_bytes as u64;
    for source in &plan.sources {
        let names: u64 = source.manifest.shards.iter().map(|s| 2 * s.location.len() as u64 + 96).sum();
        prediction.rest += names;
    }
    let block = u64::from(plan.config.block_size) * 4 + 4096;
    let batch = u64::from(plan.config.batch_size) * block * 2;
    prediction.rest += batch + prediction.strands * 2048 + (threads as u64 + 1) * THREAD_BYTES;
    prediction.tokenizer = tokenizer_bytes(plan);
    prediction.record_factor = RECORD_FACTOR;
    let MemoryPrediction { windows, ids, decoders, kept, remote, tokenizer, rest, .. } = prediction;
    // What loading took and gave back is used again.
    prediction.total = tokenizer.max(windows + ids + decoders + kept + remote + tokenizer / 4 * 3 + rest);
    Ok(prediction)
}

/// The most that `each` windows in each of `own` lanes can be together, in bytes, with at least `least` for each.
fn windows_bytes(source: &PlannedSource, own: u64, each: u64, least: u64) -> u64 {
    let (mut largest, mut whole) = (least.max(4 << 10), Vec::new());
    for shard in &source.manifest.shards {
        let (_, window) = source.dealing.parts(shard.size);
        let format = source.options.format.of_name(&shard.name);
        if format == Some(Format::Text) && source.options.separator.is_none() {
            // The file is one document, and one window of one lane.
            whole.push(if compression_by_name(&shard.name) == "none" { shard.size } else { 4 * shard.size });
        } else {
            let plain =
                compression_by_name(&shard.name) == "none" && matches!(format, Some(Format::Jsonl | Format::Text));
            // Text seldom shrinks to less than a sixteenth.
            largest = largest.max(window.min(if plain { shard.size } else { shard.size.saturating_mul(16) }));
        }
    }
    whole.sort_unstable_by(|a, b| b.cmp(a));
    let count = usize::try_from(own * each).unwrap_or(usize::MAX);
    let beyond: u64 = whole.iter().take(count).map(|size| size.saturating_sub(largest)).sum();
    own * each * largest + beyond
}

/// Bytes of a decoder that reads a shard from front to back, and of one that a lane has for itself; 0 where there is none.
fn decoder_bytes(source: &PlannedSource) -> (u64, u64) {
    let mut most = (0, 0);
    for shard in &source.manifest.shards {
        let (span, _) = source.dealing.parts(shard.size);
        let parquet = source.options.format.of_name(&shard.name) == Some(Format::Parquet);
        let (stream, alone) = match compression_by_name(&shard.name) {
            // A page of the column, packed and unpacked.
            _ if parquet => (4 * MIB, 4 * MIB),
            // Level 19 has windows of 8 MiB, level 3 of 2 MiB; many small frames have smaller ones.
            "zstd" => (9 * MIB, span.min(2 * MIB)),
            // Level 6.
            "xz" => (9 * MIB, 0),
            "bzip2" | "lz4" => (4 * MIB, 0),
            "gzip" => (MIB / 2, 0),
            _ => (0, 0),
        };
        most = (most.0.max(stream), most.1.max(alone));
    }
    most
}

/// Peak of loading the tokenizer, the bare process included. Measured on a dozen files of 32 000 to 262 000 ids.
fn tokenizer_bytes(plan: &Plan) -> u64 {
    let options = plan.config.tokenizer_options();
    match options.path.as_str() {
        "bytes" => 32 * MIB,
        "gpt2" => 160 * MIB,
        "cl100k_base" => 240 * MIB,
        "o200k_base" => 410 * MIB,
        path => {
            let size = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
            let cached = crate::storage::cached_tokenizer(&options.storage, path);
            let mut file = cached.unwrap_or_else(|| Path::new(path).to_path_buf());
            if file.is_dir() {
                let known =
                    ["tokenizer.json", "tekken.json", "tokenizer.model", "tiktoken.model"].map(|n| file.join(n));
                file = known.into_iter().find(|file| file.is_file()).unwrap_or(file);
            }
            tokenizer_file_bytes(&file.to_string_lossy(), size(&file))
        }
    }
}

/// Peak of loading a tokenizer of `size` bytes called `name`. Files without merges in them (tiktoken, SentencePiece) say
/// as much in fewer bytes.
fn tokenizer_file_bytes(name: &str, size: u64) -> u64 {
    let base = 40 * MIB;
    if name.ends_with(".json") {
        return base + 36 * size.min(10 * MIB) + 5 * size.saturating_sub(10 * MIB);
    }
    (base + 130 * size).min(512 * MIB)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn plan(shards: &[(&str, u64)], overrides: &[&str]) -> (tempfile::TempDir, Plan) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut text = String::from("[tokenizer]\npath = \"bytes\"\nappend_eos = false\n");
        for (index, (name, size)) in shards.iter().enumerate() {
            let file = std::fs::File::create(folder.path().join(name)).expect("a file");
            file.set_len(*size).expect("a size");
            text += &format!("[[source]]\nname = \"s{index}\"\npaths = [{name:?}]\n");
        }
        let overrides: Vec<String> = overrides.iter().map(|o| o.to_string()).collect();
        let config = Config::parse(&text, folder.path().to_path_buf(), &overrides).expect("a config");
        let plan = Plan::new(&config).expect("a plan");
        (folder, plan)
    }

    /// The header's example by hand: 32 lanes, one plain file of 100 MiB in windows of 800 KiB.
    #[test]
    fn predicts_the_header_example() {
        let (_folder, plan) = plan(&[("a.jsonl", 100 << 20)], &["tokenizer.path=gpt2"]);
        let got = predict_memory(&plan, 0, 1, 2).expect("a prediction");
        assert_eq!(got.strands, 32);
        assert_eq!(got.windows, 32 * (5 * (800 << 10) + (512 << 10) + (128 << 10) + READER_BYTES));
        assert_eq!(got.ids, 32 * (640 << 10) * 8 / 3);
        assert_eq!((got.decoders, got.kept), (0, 0));
        assert_eq!(got.total, got.windows + got.ids + got.tokenizer / 4 * 3 + got.rest);
    }

    /// Processes that share the memory are bounded by their parts together, and run with the least where a part is too little.
    #[test]
    fn processes_share_runtime_memory() {
        let shards = [("a.jsonl", 4096 << 20), ("b.jsonl.gz", 1024 << 20)];
        let (_folder, plan) = plan(&shards, &["runtime.memory=1800MiB", "tokenizer.path=gpt2"]);
        let lanes = plan.lanes_of(0, 1).expect("one rank");
        let of = |sharing: u32| {
            let (bounds, parts) = buffers(&plan, &lanes[..8], 32, sharing).expect("it fits");
            (bounds, parts.windows + parts.ids + parts.decoders + bounds.kept_max as u64)
        };
        let (alone, shared) = (of(1), of(4));
        assert!(shared.0.ahead_bytes < alone.0.ahead_bytes && shared.1 <= 450 << 20, "{alone:?} {shared:?}");
        let (least, takes) = of(1000);
        assert!(least.ahead_bytes == 1 && takes <= 1800 << 20, "{least:?} {takes}");
    }

    /// Less memory: less ahead, then one window a strand, then an error that names what would do; and that does.
    #[test]
    fn bounds_follow_runtime_memory() {
        let shards = [("a.jsonl", 4096 << 20), ("b.jsonl.gz", 1024 << 20)];
        let of = |memory: &str| {
            let (_folder, plan) = plan(&shards, &[&format!("runtime.memory={memory}"), "tokenizer.path=gpt2"]);
            let lanes = plan.lanes_of(0, 1).expect("one rank");
            (plan.config.runtime.memory.0, buffers(&plan, &lanes, 32, 1))
        };
        let within = |memory: &str| {
            let (bound, found) = of(memory);
            let (bounds, parts) = found.expect("it fits");
            assert!(
                parts.windows + parts.ids + parts.decoders + bounds.kept_max as u64 <= bound,
                "{memory}: {parts:?}"
            );
            bounds
        };
        let large = within("4GiB");
        assert_eq!((large.ahead_bytes, large.kept_max), (ahead_bytes(32, 64), 1 << 30));
        let medium = within("900MiB");
        assert_eq!(medium.ahead_bytes, 2 * PIECE_BYTES_MIN);
        let small = within("500MiB");
        assert_eq!(small.ahead_bytes, 1);
        let (_, error) = of("100MiB");
        let error = error.expect_err("too little");
        assert_eq!(error.kind(), ErrorKind::Config);
        let needed = error.detail().split("at least ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a size");
        within(needed);
    }

    /// Half the lanes take less, but more than half of it, as all share what may run ahead; more sources, more lanes and
    /// larger windows take more.
    #[test]
    fn follows_lanes_and_sources() {
        let shards = [("a.jsonl", 100 << 20), ("b.jsonl.gz", 50 << 20), ("c.parquet", 400 << 20)];
        let of = |count: usize, overrides: &[&str], world_size| {
            let (_folder, plan) = plan(&shards[..count], overrides);
            predict_memory(&plan, 0, world_size, 2).expect("a prediction")
        };
        let one = of(1, &[], 1);
        let half = of(1, &[], 2);
        assert!(half.windows < one.windows && half.windows * 2 > one.windows);
        assert_eq!(half.ahead_bytes, 2 * one.ahead_bytes);
        assert!(of(2, &[], 1).kept > 0, "gzip can't be seeked");
        assert!(of(3, &[], 1).decoders > of(2, &[], 1).decoders);
        assert!(of(1, &["lanes=64", "shuffle.window=1MiB"], 1).windows > one.windows);
        assert!(of(1, &["lanes=1"], 1).windows < one.windows);
    }
}
