//! `tokenmill inspect CHECKPOINT`: what a checkpoint says, and how large it is.

use std::path::{Path, PathBuf};

use serde::Serialize;
use tokenmill::error::Result;
use tokenmill::packing::Totals;
use tokenmill::state::Checkpoint;

use crate::places::Places;
use crate::table::{Table, count, series, size};
use crate::visible::safe;

pub fn inspect(path: &Path, places: &Places<'_>) -> Result<()> {
    let (checkpoint, files) = places.load_files(path)?;
    crate::print_stdout(&show(&checkpoint, &files))
}

fn word(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    safe(text.trim_matches('"'))
}

fn show(checkpoint: &Checkpoint, files: &[(PathBuf, u64)]) -> String {
    let print = &checkpoint.fingerprint;
    let lanes: Vec<u32> = checkpoint.cursors.iter().map(|cursor| cursor.lane).collect();
    let bytes: u64 = files.iter().map(|(_, bytes)| bytes).sum();
    let cursors: u64 = checkpoint.cursors.iter().map(|lane| lane.sources.len() as u64).sum();
    let mut text = format!(
        "checkpoint version {}, after step {} of {} rank{}\n",
        checkpoint.version,
        checkpoint.step,
        checkpoint.world_size,
        if checkpoint.world_size == 1 { "" } else { "s" }
    );
    if lanes.len() == checkpoint.lanes as usize {
        text += &format!("holds all {} lanes\n", checkpoint.lanes);
    } else {
        text += &format!("holds {} of {} lanes: {}\n", lanes.len(), checkpoint.lanes, series(&lanes));
    }
    text += &format!(
        "{} file{}, {} on disk, {} bytes a lane and source\n",
        files.len(),
        if files.len() == 1 { "" } else { "s" },
        size(bytes),
        bytes / cursors.max(1)
    );
    if let Some((first, _)) = files.first() {
        text +=
            &format!("  {}{}\n", safe(&first.display().to_string()), if files.len() > 1 { " and so on" } else { "" });
    }
    text += &format!(
        "\nfits a run with\n  seed {}, {} lanes, blocks of {} tokens, stop = {}\n",
        print.seed,
        print.lanes,
        count(print.block_size.into()),
        word(&print.stop)
    );
    text += &format!(
        "  tokenizer {}, {} ids, hash {}\n",
        safe(&print.tokenizer.name),
        count(print.tokenizer.vocab_size.into()),
        short(&print.tokenizer.hash)
    );
    text += &format!(
        "  packing {}, tail {}; shuffle {}, span {}, window {}\n\n",
        word(&print.packing.strategy),
        word(&print.packing.tail),
        if print.shuffle.enabled { "on" } else { "off" },
        print.shuffle.span,
        print.shuffle.window
    );
    text += &sources(checkpoint);
    text += "\nmixture\n";
    for stage in &checkpoint.mixture {
        let all: u64 = stage.weights.values().sum();
        let share = |weight: u64| weight as f64 / all.max(1) as f64 * 100.0;
        let shares = stage.weights.iter().map(|(name, &w)| format!("{} {:.2} %", safe(name), share(w)));
        text += &format!("  from block {} of a lane: {}\n", stage.from_block, shares.collect::<Vec<_>>().join(", "));
    }
    for (name, stages) in &checkpoint.shard_stages {
        text += &format!("\nshards of {} in use\n", safe(name));
        for stage in stages {
            text += &format!("  from epoch {}: {}\n", stage.from_epoch, count(stage.shards));
        }
    }
    for range in &checkpoint.skipped {
        text += &format!("\nskipped the batches {}..{}", range.start, range.end.min(checkpoint.step));
        if range.end > checkpoint.step {
            text += &format!(", and goes on to {}", range.end);
        }
        text += "\n";
    }
    let padded: u64 = checkpoint.cursors.iter().map(|lane| lane.padded).sum();
    if padded > 0 {
        text += &format!("\n{} masked blocks at the end\n", count(padded));
    }
    text += "\nwhere each lane stands: the first token not delivered\n";
    text + &places(checkpoint)
}

fn short(hash: &str) -> String {
    safe(&hash.chars().take(12).collect::<String>())
}

/// The sources, with the sums over their lanes.
fn sources(checkpoint: &Checkpoint) -> String {
    let mut sums: Vec<(&String, Totals, u32, u32)> = Vec::new();
    for name in checkpoint.fingerprint.sources.keys() {
        let (mut totals, mut epochs) = (Totals::default(), (u32::MAX, 0));
        for lane in &checkpoint.cursors {
            if let Some(source) = lane.sources.get(name) {
                totals.add(&source.cursor.totals);
                let epoch = source.cursor.place.epoch;
                epochs = (epochs.0.min(epoch), epochs.1.max(epoch));
            }
        }
        sums.push((name, totals, epochs.0, epochs.1));
    }
    let all: u64 = sums.iter().map(|(_, totals, ..)| totals.tokens).sum();
    let head = [
        "source",
        "format",
        "shards",
        "stored",
        "hash",
        "epochs",
        "in epoch",
        "blocks",
        "documents",
        "tokens",
        "share",
        "text",
        "skipped",
        "parts skipped",
        "dropped",
        "padding",
    ];
    let mut table = Table::new(head, &[0, 1, 4]);
    for (name, totals, least, most) in sums {
        let print = &checkpoint.fingerprint.sources[name];
        table.row([
            safe(name),
            word(&print.format),
            count(print.shards),
            size(print.bytes),
            short(&print.hash),
            if print.max_epochs == 0 { "no end".into() } else { print.max_epochs.to_string() },
            if least == most { least.to_string() } else { format!("{least} to {most}") },
            count(totals.blocks),
            count(totals.documents),
            count(totals.tokens),
            format!("{:.2} %", totals.tokens as f64 / all.max(1) as f64 * 100.0),
            size(totals.text_bytes),
            count(totals.skipped),
            count(totals.skipped_parts),
            count(totals.dropped_tokens),
            count(totals.padding),
        ]);
    }
    table.text("")
}

fn places(checkpoint: &Checkpoint) -> String {
    let head = [
        "lane",
        "source",
        "blocks",
        "documents",
        "tokens",
        "epoch",
        "shard of walk",
        "unit",
        "window",
        "byte",
        "document",
        "token",
        "",
    ];
    let mut table = Table::new(head, &[1, 12]);
    for lane in &checkpoint.cursors {
        for (name, source) in &lane.sources {
            let cursor = &source.cursor;
            let place = cursor.place;
            let number = |n: u64| n.to_string();
            table.row([
                lane.lane.to_string(),
                safe(name),
                count(cursor.totals.blocks),
                count(cursor.totals.documents),
                count(cursor.totals.tokens),
                place.epoch.to_string(),
                number(place.walk),
                number(place.unit),
                number(place.window),
                place.row.map_or(number(place.byte), |row| format!("row {row}")),
                cursor.document.to_string(),
                cursor.token.to_string(),
                if cursor.ended { "ended".into() } else { String::new() },
            ]);
        }
    }
    table.text("")
}
