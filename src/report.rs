//! The report of a run: JSON for machines, a summary for people.
//!
//! Comes in: batches as they are delivered, and the pipeline they come from. Goes out: a [`Report`]. Holds: counts are of one call,
//! from the meter's start, except where a field says otherwise. Does not know: where it is written.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::block::Batch;
use crate::packing::Totals;
use crate::pipeline::Pipeline;
use crate::storage::Traffic;
use serde::Serialize;

/// Counts of this call, as they grow.
pub struct Meter {
    started: Instant,
    ready: Instant,
    last_block: Instant,
    first_batch: Option<Instant>,
    /// Batches delivered.
    pub batches: u64,
    /// Blocks delivered.
    pub blocks: u64,
    /// Masked blocks, and batches passed over, before this call.
    padded_before: u64,
    skipped_before: u64,
    digest: blake3::Hasher,
    /// The ids of a batch, as they are hashed.
    bytes: Vec<u8>,
    /// Totals of the run before this call.
    before: Vec<Totals>,
}

/// What a run did.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Batches delivered.
    pub batches: u64,
    /// Blocks delivered.
    pub blocks: u64,
    /// Tokens in them, padding not counted.
    pub tokens: u64,
    /// Documents that ended in them.
    pub documents: u64,
    /// Bytes of text of these documents.
    pub text_bytes: u64,
    /// Time for config, tokenizer and plan.
    pub startup_seconds: f64,
    /// Time from then to the last block.
    pub seconds: f64,
    /// `text_bytes / seconds`.
    pub text_bytes_per_second: f64,
    /// `tokens / seconds`.
    pub tokens_per_second: f64,
    /// BLAKE3 of all ids delivered, in order, each as little-endian u32.
    pub digest: String,
    /// By name of the source.
    pub sources: BTreeMap<String, SourceReport>,
    /// The engine that encodes.
    pub engine: String,
    /// Why it does.
    pub engine_reason: String,
    /// Peak resident memory of the process; 0 where the system doesn't tell.
    pub peak_rss_bytes: u64,
    /// Time from the end of the start-up to the first batch.
    pub first_batch_seconds: Option<f64>,
    /// Batches of the run so far, from its first start, those passed over counted.
    pub step: u64,
    /// Batches passed over.
    pub skipped_batches: u64,
    /// Masked blocks added to end evenly with other ranks.
    pub padded_blocks: u64,
    /// Blocks left out to end evenly with other ranks.
    pub dropped_blocks: u64,
    /// The first few bad records and damaged parts that were skipped, with their places.
    pub bad_records: Vec<String>,
    /// What was asked of remote stores, listing included; all zero where there are none.
    pub storage: Traffic,
}

/// What a source gave.
#[derive(Debug, Clone, Serialize)]
pub struct SourceReport {
    /// Documents that ended in the blocks delivered.
    pub documents: u64,
    /// Tokens in the blocks delivered, padding not counted.
    pub tokens: u64,
    /// Share of all tokens.
    pub share: f64,
    /// Lowest epoch that a lane is in, from 0.
    pub epoch: u32,
    /// Bad records skipped.
    pub skipped: u64,
    /// Damaged parts of shards skipped.
    pub skipped_parts: u64,
    /// Bytes of text of `documents`.
    pub text_bytes: u64,
    /// Tokens of partial blocks that were dropped.
    pub dropped_tokens: u64,
    /// Tokens of padding.
    pub padding: u64,
    /// Documents longer than a block of which the rest was left out.
    pub truncated: u64,
    /// Documents longer than a block that were left out.
    pub too_long: u64,
    /// Documents longer than a block that were split.
    pub split: u64,
    /// Documents left out because they have no token to train.
    pub untrained: u64,
    /// Tokens left out of documents longer than a block.
    pub cut_tokens: u64,
    /// Lanes in which the source has used up its epochs.
    pub lanes_ended: u32,
}

impl Meter {
    /// Counts from here on; `started` is when the call began.
    pub fn new(started: Instant, pipeline: &Pipeline) -> Self {
        let now = Instant::now();
        Meter {
            started,
            ready: now,
            last_block: now,
            first_batch: None,
            batches: 0,
            blocks: 0,
            padded_before: pipeline.padded_blocks(),
            skipped_before: pipeline.skipped_batches(),
            digest: blake3::Hasher::new(),
            bytes: Vec::new(),
            before: pipeline.stats().iter().map(|stats| stats.totals).collect(),
        }
    }

    /// Counts a batch that is delivered. Cost: a hash of its ids.
    pub fn count(&mut self, batch: &Batch) {
        self.last_block = Instant::now();
        self.first_batch.get_or_insert(self.last_block);
        self.batches += 1;
        self.blocks += batch.blocks.len() as u64;
        // At once: the hash takes up to sixteen pieces of 1 KiB side by side, and a block may have fewer.
        let ids = batch.blocks.iter().map(|block| block.input_ids.len()).sum::<usize>();
        self.bytes.resize(ids * size_of::<u32>(), 0);
        let (mut places, _) = self.bytes.as_chunks_mut();
        for block in &batch.blocks {
            // Block by block, so that the loop within is one of slices and takes many ids at once.
            let (these, others) = places.split_at_mut(block.input_ids.len());
            for (place, id) in these.iter_mut().zip(&block.input_ids) {
                *place = id.to_le_bytes();
            }
            places = others;
        }
        self.digest.update(&self.bytes);
    }

    /// What there is to say by now.
    pub fn report(&self, pipeline: &Pipeline) -> Report {
        let stats = pipeline.stats();
        let since = |f: fn(&Totals) -> u64| -> Vec<u64> {
            stats.iter().zip(&self.before).map(|(now, before)| f(&now.totals) - f(before)).collect()
        };
        let (tokens, documents, text_bytes) = (since(|t| t.tokens), since(|t| t.documents), since(|t| t.text_bytes));
        let (skipped, dropped, padding) = (since(|t| t.skipped), since(|t| t.dropped_tokens), since(|t| t.padding));
        let (truncated, too_long, split) = (since(|t| t.truncated), since(|t| t.too_long), since(|t| t.split));
        let (untrained, cut_tokens) = (since(|t| t.untrained), since(|t| t.cut_tokens));
        let skipped_parts = since(|t| t.skipped_parts);
        let all_tokens: u64 = tokens.iter().sum();
        let seconds = (self.last_block - self.ready).as_secs_f64();
        let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let sources = pipeline.plan().sources.iter().enumerate().map(|(i, source)| {
            let report = SourceReport {
                documents: documents[i],
                tokens: tokens[i],
                share: if all_tokens == 0 { 0.0 } else { tokens[i] as f64 / all_tokens as f64 },
                epoch: stats[i].epoch,
                skipped: skipped[i],
                skipped_parts: skipped_parts[i],
                text_bytes: text_bytes[i],
                dropped_tokens: dropped[i],
                padding: padding[i],
                truncated: truncated[i],
                too_long: too_long[i],
                split: split[i],
                untrained: untrained[i],
                cut_tokens: cut_tokens[i],
                lanes_ended: stats[i].lanes_ended,
            };
            (source.name().to_owned(), report)
        });
        Report {
            batches: self.batches,
            blocks: self.blocks,
            tokens: all_tokens,
            documents: documents.iter().sum(),
            text_bytes: text_bytes.iter().sum(),
            startup_seconds: (self.ready - self.started).as_secs_f64(),
            seconds,
            text_bytes_per_second: rate(text_bytes.iter().sum()),
            tokens_per_second: rate(all_tokens),
            digest: self.digest.finalize().to_hex().to_string(),
            sources: sources.collect(),
            engine: pipeline.tokenizer().engine().to_owned(),
            engine_reason: pipeline.tokenizer().engine_reason().to_owned(),
            peak_rss_bytes: peak_rss_bytes(),
            first_batch_seconds: self.first_batch.map(|at| (at - self.ready).as_secs_f64()),
            step: pipeline.step(),
            skipped_batches: pipeline.skipped_batches() - self.skipped_before,
            padded_blocks: pipeline.padded_blocks() - self.padded_before,
            dropped_blocks: pipeline.dropped_blocks(),
            bad_records: pipeline.bad_records().iter().map(|error| error.to_string()).collect(),
            storage: pipeline.plan().store.traffic(),
        }
    }
}

impl Report {
    /// A few lines for people.
    pub fn summary(&self, out: Option<&str>) -> String {
        let mut text = format!(
            "{} blocks in {} batches, {} tokens, {} documents, {:.1} MB of text in {:.2} s: {:.1} MB/s, {:.0} tokens/s\n",
            self.blocks,
            self.batches,
            self.tokens,
            self.documents,
            self.text_bytes as f64 / 1e6,
            self.seconds,
            self.text_bytes_per_second / 1e6,
            self.tokens_per_second,
        );
        for (name, source) in &self.sources {
            text += &format!(
                "  {name}: {:.2} % of the tokens, {} documents, epoch {}",
                source.share * 100.0,
                source.documents,
                source.epoch
            );
            if source.lanes_ended > 0 {
                text += &format!(" (the last one, over in {} lanes)", source.lanes_ended);
            }
            for (count, words) in [
                (source.skipped, "bad records skipped"),
                (source.skipped_parts, "damaged parts of shards skipped"),
                (source.dropped_tokens, "tokens of partial blocks dropped"),
                (source.padding, "tokens of padding"),
                (source.truncated, "documents truncated"),
                (source.too_long, "documents longer than a block dropped"),
                (source.split, "documents longer than a block split"),
                (source.untrained, "documents with nothing to train dropped"),
                (source.cut_tokens, "tokens cut off"),
            ] {
                if count > 0 {
                    text += &format!(", {count} {words}");
                }
            }
            text += "\n";
        }
        for (count, words) in [
            (self.skipped_batches, "batches skipped"),
            (self.padded_blocks, "masked blocks added to end evenly with the other ranks"),
            (self.dropped_blocks, "blocks dropped to end evenly with the other ranks"),
        ] {
            if count > 0 {
                text += &format!("  {count} {words}\n");
            }
        }
        let Traffic { requests, bytes, retries, retries_by, cached_bytes } = &self.storage;
        if *requests > 0 || *cached_bytes > 0 {
            text += &format!("  storage: {requests} requests, {:.1} MB", *bytes as f64 / 1e6);
            if *cached_bytes > 0 {
                text += &format!(", {:.1} MB from the cache", *cached_bytes as f64 / 1e6);
            }
            if *retries > 0 {
                let by: Vec<String> = retries_by.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
                text += &format!(", {retries} retries ({})", by.join(", "));
            }
            text += "\n";
        }
        for place in &self.bad_records {
            text += &format!("  skipped: {place}\n");
        }
        text += &format!(
            "  engine {}, startup {:.2} s, first batch after {:.3} s, peak memory {:.0} MB\n",
            self.engine,
            self.startup_seconds,
            self.first_batch_seconds.unwrap_or(0.0),
            self.peak_rss_bytes as f64 / 1e6
        );
        if let Some(out) = out {
            text += &format!("  written to {out}\n");
        }
        text
    }
}

/// Peak resident memory of this process, from the operating system; 0 where it doesn't tell.
///
/// `VmHWM` and not `getrusage`: the latter starts from what the parent had when it forked.
pub fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).map_or(0, |kb| kb * 1024)
}
