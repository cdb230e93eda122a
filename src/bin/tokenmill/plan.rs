//! `tokenmill plan`: what would run, told from names and sizes. Opens no shard and reads no text.

use std::collections::BTreeMap;

use serde::Serialize;
use tokenmill::error::Result;
use tokenmill::pipeline::{MemoryPrediction, predict_memory};
use tokenmill::plan::{Plan, PlannedSource};
use tokenmill::shard::{Format, compression_by_name};
use tokenmill::storage::scheme;

use crate::args::PlanArguments;
use crate::places::Places;
use crate::run::load_config;
use crate::table::{Table, binary, count, range, series, size};

#[derive(Serialize)]
struct Report {
    seed: u64,
    lanes: u32,
    block_size: u32,
    batch_size: u32,
    rank: u32,
    world_size: u32,
    /// The lanes of this rank.
    rank_lanes: Vec<u32>,
    blocks_per_global_batch: u64,
    tokens_per_global_batch: u64,
    tokenizer: String,
    shuffle: bool,
    sources: Vec<SourceReport>,
    memory: MemoryPrediction,
    memory_bound: u64,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct SourceReport {
    name: String,
    shards: u64,
    bytes: u64,
    /// Sizes of the smallest and the largest shard.
    shard_bytes: (u64, u64),
    /// By name, with the number of shards: `jsonl`, `unknown`.
    formats: BTreeMap<String, u64>,
    /// By name, with the number of shards: `none`, `zstd`.
    compressions: BTreeMap<&'static str, u64>,
    groups: u32,
    lanes_per_group: u32,
    /// Smallest and largest over the shards.
    span: (u64, u64),
    window: (u64, u64),
    weight: u64,
    share: f64,
    max_epochs: u32,
}

pub fn plan(arguments: &PlanArguments) -> Result<()> {
    let config = load_config(&arguments.config, arguments.threads)?;
    let plan = Plan::new(&config)?;
    if let Some(path) = &arguments.save_manifest {
        Places::new(&config).write(path, plan.save_manifests()?.to_bytes())?;
    }
    let (rank, world_size) = (arguments.ranks.rank, arguments.ranks.world_size);
    let rank_lanes = plan.lanes_of(rank, world_size)?;
    let memory = predict_memory(&plan, rank, world_size, config.runtime.threads)?;
    let all: u64 = plan.weights().iter().sum();
    let blocks = u64::from(config.batch_size) * u64::from(world_size);
    let report = Report {
        seed: config.seed,
        lanes: config.lanes,
        block_size: config.block_size,
        batch_size: config.batch_size,
        rank,
        world_size,
        blocks_per_global_batch: blocks,
        tokens_per_global_batch: blocks * u64::from(config.block_size),
        tokenizer: config.tokenizer.path.clone(),
        shuffle: config.shuffle.enabled,
        sources: plan.sources.iter().map(|source| describe(source, all)).collect(),
        warnings: warnings(&plan, world_size, &memory),
        memory,
        memory_bound: config.runtime.memory.0,
        rank_lanes,
    };
    if arguments.json {
        let text = serde_json::to_string_pretty(&report).expect("a report is JSON");
        return crate::print_stdout(&format!("{text}\n"));
    }
    crate::print_stdout(&show(&report))
}

fn describe(source: &PlannedSource, all_weights: u64) -> SourceReport {
    let shards = &source.manifest.shards;
    let mut formats = BTreeMap::new();
    let mut compressions = BTreeMap::new();
    let sizes = || shards.iter().map(|shard| shard.size);
    let mut span = (u64::MAX, 0);
    let mut window = (u64::MAX, 0);
    let widen = |range: &mut (u64, u64), value: u64| *range = (range.0.min(value), range.1.max(value));
    for shard in shards {
        let format = match source.options.format.of_name(&shard.name) {
            Some(Format::Jsonl) => "jsonl",
            Some(Format::Text) => "text",
            Some(Format::Parquet) => "parquet",
            Some(Format::Auto) | None => "unknown",
        };
        *formats.entry(format.to_owned()).or_default() += 1;
        *compressions.entry(compression_by_name(&shard.name)).or_default() += 1;
        let (shard_span, shard_window) = source.dealing.parts(shard.size);
        widen(&mut span, shard_span);
        widen(&mut window, shard_window);
    }
    SourceReport {
        name: source.name().to_owned(),
        shards: shards.len() as u64,
        bytes: source.manifest.bytes(),
        shard_bytes: (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0)),
        formats,
        compressions,
        groups: source.dealing.groups(),
        lanes_per_group: source.dealing.members(),
        span,
        window,
        weight: source.weight,
        share: source.weight as f64 / all_weights.max(1) as f64,
        max_epochs: source.options.max_epochs,
    }
}

/// What a user would rather know before a run of weeks.
fn warnings(plan: &Plan, world_size: u32, memory: &MemoryPrediction) -> Vec<String> {
    let config = &plan.config;
    let mut list = Vec::new();
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for source in &plan.sources {
        let name = source.name();
        let shards = &source.manifest.shards;
        let (lanes, bytes) = (u64::from(config.lanes), source.manifest.bytes());
        let members = source.dealing.members();
        if source.weight == 0 {
            list.push(format!("source {name:?} has weight 0: it gives no block, but is opened and read ahead"));
        }
        let empty = shards.iter().filter(|shard| shard.size == 0).count();
        if empty > 0 {
            list.push(format!("source {name:?}: {empty} of {} shards are empty", shards.len()));
        }
        let whole = shards.iter().filter(|shard| shard.version.whole);
        let (count_whole, bytes_whole) = whole.fold((0u64, 0), |(n, bytes), shard| (n + 1, bytes + shard.size));
        if count_whole > 0 {
            list.push(format!(
                "source {name:?}: {} of {} shards ({}) are on a server without range requests: each is copied as a whole to a \
                 temporary file before it is read",
                count(count_whole),
                count(shards.len() as u64),
                size(bytes_whole)
            ));
        }
        let untagged = shards.iter().filter(|s| scheme(&s.location).is_some() && s.version.tag.is_none()).count();
        if untagged > 0 {
            list.push(format!(
                "source {name:?}: of {untagged} shards the server says neither ETag nor time: a change during the run is found by \
                 its size only"
            ));
        }
        let compressed = shards.iter().any(|shard| compression_by_name(&shard.name) != "none");
        // About 4 bytes of text a token; compressed text is about three times what is stored.
        let text = bytes * if compressed { 3 } else { 1 };
        let least = lanes * u64::from(config.block_size) * 4;
        if text < least {
            list.push(format!(
                "source {name:?} has about {} of text, less than one block for each of {lanes} lanes (about {}): blocks \
                 mix epochs; lower `lanes` or `block_size`",
                size(text),
                size(least)
            ));
        }
        let tight = shards.iter().filter(|shard| shard.size > 0 && shard.size < u64::from(members) * 1024).count();
        if members > 1 && tight > 0 {
            list.push(format!(
                "source {name:?}: {tight} shards are smaller than 1 KiB for each of the {members} lanes that share them: \
                 some lanes get nothing of them"
            ));
        }
        let streams = shards.iter().filter(|s| !matches!(compression_by_name(&s.name), "none" | "zstd")).count();
        let packed = shards.iter().filter(|s| compression_by_name(&s.name) == "zstd").count();
        let readers = world_size / gcd(world_size, source.dealing.groups());
        if readers > 1 && streams + packed > 0 {
            let which = match streams {
                0 => "zstd shards of one frame",
                _ => "shards that can't be seeked",
            };
            list.push(format!(
                "source {name:?}: the lanes of a group are spread over {readers} ranks, and each of those decompresses the \
                 group's {which} as a whole; {} or more shards would give each lane shards of its own",
                count(4 * lanes)
            ));
        }
        let mut shared = shards.iter().filter_map(|shard| Some((shard, seen.insert(&shard.location, name)?)));
        if let Some((shard, other)) = shared.next() {
            let more = match shared.count() {
                0 => String::new(),
                more => format!(" and {more} more shards"),
            };
            list.push(format!(
                "source {name:?}: {}{more} also in {other:?}, so each document is delivered for both",
                shard.location
            ));
        }
    }
    if let Some(available) = memory_available()
        && memory.total > available
    {
        list.push(format!(
            "the prediction of {} is above the {} that are free here",
            size(memory.total),
            size(available)
        ));
    }
    list
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Memory that the machine could give, where it tells.
fn memory_available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}

fn show(report: &Report) -> String {
    let mut text = format!(
        "seed {}, {} lanes, blocks of {} tokens, tokenizer {}{}\n",
        report.seed,
        report.lanes,
        count(report.block_size.into()),
        report.tokenizer,
        if report.shuffle { "" } else { ", not shuffled" }
    );
    text += &format!(
        "rank {} of {} has lanes {} ({})\n",
        report.rank,
        report.world_size,
        series(&report.rank_lanes),
        report.rank_lanes.len()
    );
    text += &format!(
        "global batch: {} a rank x {} = {} blocks, {} tokens\n\n",
        report.batch_size,
        report.world_size,
        count(report.blocks_per_global_batch),
        count(report.tokens_per_global_batch)
    );
    let head =
        ["source", "share", "epochs", "shards", "stored", "a shard", "by name", "groups x lanes", "span", "window"];
    let mut table = Table::new(head, &[0, 6, 7]);
    let pair = |(least, most): (u64, u64), show: fn(u64) -> String| range(show(least), show(most));
    for source in &report.sources {
        table.row([
            source.name.clone(),
            format!("{:.2} %", source.share * 100.0),
            if source.max_epochs == 0 { "no end".into() } else { source.max_epochs.to_string() },
            count(source.shards),
            size(source.bytes),
            pair(source.shard_bytes, size),
            kinds(source),
            format!("{} x {}", source.groups, source.lanes_per_group),
            pair(source.span, binary),
            pair(source.window, binary),
        ]);
    }
    if report.sources.len() > 1 {
        let (shards, bytes) =
            report.sources.iter().fold((0, 0), |(s, b), source| (s + source.shards, b + source.bytes));
        table.row(["all".into(), String::new(), String::new(), count(shards), size(bytes)]);
    }
    text += &table.text("");
    let memory = &report.memory;
    text += &format!(
        "\nmemory of this rank: at most about {} ({} strands; runtime.memory = {})\n",
        size(memory.total),
        count(memory.strands),
        binary(report.memory_bound)
    );
    let mut table = Table::new(["part", "bytes"], &[0]);
    for (part, bytes) in [
        ("windows of records", memory.windows),
        ("tokens ahead", memory.ids),
        ("decoders", memory.decoders),
        ("kept for other lanes", memory.kept),
        ("remote objects", memory.remote),
        ("tokenizer", memory.tokenizer),
        ("rest", memory.rest),
    ] {
        table.row([part.to_owned(), size(bytes)]);
    }
    text += &table.text("  ");
    for warning in &report.warnings {
        text += &format!("\nwarning: {warning}");
    }
    if !report.warnings.is_empty() {
        text += "\n";
    }
    text
}

/// `jsonl, zstd`, with numbers where shards differ.
fn kinds(source: &SourceReport) -> String {
    let list = |kinds: Vec<(&str, u64)>| -> String {
        if let [(kind, _)] = kinds[..] {
            return kind.to_owned();
        }
        kinds.iter().map(|(kind, shards)| format!("{shards} {kind}")).collect::<Vec<_>>().join(" + ")
    };
    let formats = list(source.formats.iter().map(|(kind, shards)| (kind.as_str(), *shards)).collect());
    let compressions = list(source.compressions.iter().map(|(kind, shards)| (*kind, *shards)).collect());
    if compressions == "none" { formats } else { format!("{formats}, {compressions}") }
}
