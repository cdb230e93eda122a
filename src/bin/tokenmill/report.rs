//! The report of a run: JSON for machines, a summary for people.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;
use tokenmill::block::Batch;
use tokenmill::packing::Totals;
use tokenmill::pipeline::Pipeline;

/// Counts of this call, as they grow.
pub struct Meter {
    pub started: Instant,
    pub ready: Instant,
    pub last_block: Instant,
    pub first_batch: Option<Instant>,
    pub batches: u64,
    pub blocks: u64,
    /// Masked blocks, and batches passed over, before this call.
    padded_before: u64,
    skipped_before: u64,
    digest: blake3::Hasher,
    /// Totals of the run before this call.
    before: Vec<Totals>,
}

#[derive(Serialize)]
pub struct Report {
    pub batches: u64,
    pub blocks: u64,
    pub tokens: u64,
    pub documents: u64,
    pub text_bytes: u64,
    pub startup_seconds: f64,
    pub seconds: f64,
    pub text_bytes_per_second: f64,
    pub tokens_per_second: f64,
    pub digest: String,
    pub sources: BTreeMap<String, SourceReport>,
    pub engine: String,
    pub engine_reason: String,
    pub peak_rss_bytes: u64,
    pub first_batch_seconds: Option<f64>,
    pub step: u64,
    pub skipped_batches: u64,
    pub padded_blocks: u64,
    pub dropped_blocks: u64,
    pub bad_records: Vec<String>,
}

#[derive(Serialize)]
pub struct SourceReport {
    pub documents: u64,
    pub tokens: u64,
    pub share: f64,
    pub epoch: u32,
    pub skipped: u64,
    pub skipped_parts: u64,
    pub text_bytes: u64,
    pub dropped_tokens: u64,
    pub padding: u64,
    pub lanes_ended: u32,
}

impl Meter {
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
            before: pipeline.stats().iter().map(|stats| stats.totals).collect(),
        }
    }

    pub fn count(&mut self, batch: &Batch) {
        self.last_block = Instant::now();
        self.first_batch.get_or_insert(self.last_block);
        self.batches += 1;
        self.blocks += batch.blocks.len() as u64;
        for block in &batch.blocks {
            if cfg!(target_endian = "little") {
                // SAFETY: any u32 slice is readable as bytes; the length is its size.
                let bytes = unsafe {
                    std::slice::from_raw_parts(block.input_ids.as_ptr().cast::<u8>(), block.input_ids.len() * 4)
                };
                self.digest.update(bytes);
            } else {
                block.input_ids.iter().for_each(|id| {
                    self.digest.update(&id.to_le_bytes());
                });
            }
        }
    }

    pub fn report(&self, pipeline: &Pipeline) -> Report {
        let stats = pipeline.stats();
        let since = |f: fn(&Totals) -> u64| -> Vec<u64> {
            stats.iter().zip(&self.before).map(|(now, before)| f(&now.totals) - f(before)).collect()
        };
        let (tokens, documents, text_bytes) = (since(|t| t.tokens), since(|t| t.documents), since(|t| t.text_bytes));
        let (skipped, dropped, padding) = (since(|t| t.skipped), since(|t| t.dropped_tokens), since(|t| t.padding));
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
