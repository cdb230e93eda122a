//! What the fuzz targets share: shards in memory, read to their end within bounds, and split the slow way.

use std::sync::Arc;

use tokenmill::config::Config;
use tokenmill::document::Window;
use tokenmill::error::{ErrorKind, Result};
use tokenmill::pipeline::{Pipeline, RunOptions};
use tokenmill::plan::Plan;
use tokenmill::shard::{Shard, ShardOptions, Start};
use tokenmill::state::Checkpoint;
use tokenmill::storage::Object;
use tokenmill::tokenizer::Tokenizer;

/// An object in memory.
pub struct Memory(pub Vec<u8>);

impl Object for Memory {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let rest = &self.0[(offset.min(self.0.len() as u64)) as usize..];
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// Opens `bytes` as a shard.
pub fn open(bytes: &[u8], options: &ShardOptions) -> Result<Shard> {
    Shard::open(Arc::new(Memory(bytes.to_vec())), "fuzz".into(), options)
}

/// Windows that are read of one shard: a bomb of a few bytes may hold more than anybody can wait for.
const WINDOWS_MAX: usize = 2000;

/// The records of all units, as `(offset of the record as its window gives it, bytes)`; `None` when there is more than one reads, or
/// the shard is damaged, which has to be an error that says so.
pub fn records(shard: &Shard) -> Option<Vec<(u64, Vec<u8>)>> {
    let mut records = Vec::new();
    let mut windows = 0;
    for unit in 0..shard.units() {
        let mut reader = shard.read_unit(unit, Start::default()).ok()?;
        let mut window = Window::default();
        loop {
            match reader.next_window(&mut window, &mut |_| true) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    let kinds = [ErrorKind::Corrupt, ErrorKind::Read, ErrorKind::Limit, ErrorKind::BadRecord];
                    assert!(kinds.contains(&error.kind()), "{error}");
                    return None;
                }
            }
            for record in &window.records {
                let offset = window.byte_start + u64::from(record.start);
                records.push((offset, record.of(&window.bytes).to_vec()));
            }
            windows += 1;
            if windows > WINDOWS_MAX {
                return None;
            }
        }
    }
    Some(records)
}

/// The records of plain content, the slow way, as `(offset, bytes)`.
pub fn naive(content: &[u8], separator: &[u8], lines: bool) -> Vec<(u64, Vec<u8>)> {
    let mut pieces = Vec::new();
    let (mut start, mut at) = (0, 0);
    while at < content.len() {
        if content[at..].starts_with(separator) {
            pieces.push((start, at));
            at += separator.len();
            start = at;
        } else {
            at += 1;
        }
    }
    pieces.push((start, content.len()));
    let mut records = Vec::new();
    for (mut start, mut end) in pieces {
        if start == 0 && content.starts_with(b"\xef\xbb\xbf") {
            start = 3.min(end);
        }
        if lines && content[start..end].ends_with(b"\r") {
            end -= 1;
        }
        let record = &content[start..end];
        let blank = if lines { record.iter().all(|byte| b" \t\r\n\x0c".contains(byte)) } else { record.is_empty() };
        if !blank {
            records.push((start as u64, record.to_vec()));
        }
    }
    records
}

/// Small spans and windows out of one byte.
pub fn options(byte: u8) -> ShardOptions {
    ShardOptions {
        span: 1 + u64::from(byte >> 4) * 17,
        window: 1 + u64::from(byte & 15) * 5,
        record_max: 64 << 10,
        ..ShardOptions::default()
    }
}

/// A small run of two sources, and its state after some batches, some of them skipped.
pub fn run() -> (Arc<Plan>, Arc<Tokenizer>, Checkpoint) {
    // The folder stays, so it is one for all; who runs at the same time writes the same.
    let folder = std::env::temp_dir().join("tokenmill-fuzz");
    std::fs::create_dir_all(&folder).expect("a folder for the corpus");
    let write = |name: &str, bytes: &[u8]| {
        let beside = folder.join(format!("{name}.{}.tmp", std::process::id()));
        std::fs::write(&beside, bytes)
            .and_then(|()| std::fs::rename(&beside, folder.join(name)))
            .expect("a shard is written");
    };
    let lines: Vec<String> =
        (0..60).map(|i| format!("{{\"text\":\"document {i} {}\"}}\n", "word ".repeat(i % 9))).collect();
    write("a.jsonl", lines.concat().as_bytes());
    let packed = zstd::encode_all(lines.concat().as_bytes(), 3).expect("zstd");
    write("b.jsonl.zst", &packed);
    let text = "seed = 1\nlanes = 2\nblock_size = 32\nbatch_size = 2\n[tokenizer]\npath = \"bytes\"\n[shuffle]\nspan = 300\nwindow = 150\n\
                [[source]]\nname = \"a\"\npaths = [\"a.jsonl\"]\nmax_epochs = 2\n[[source]]\nname = \"b\"\npaths = [\"b.jsonl.zst\"]\n";
    let config = Config::parse(text, folder, &[]).expect("the config is right");
    let plan = Arc::new(Plan::new(&config).expect("the shards are there"));
    let tokenizer = Arc::new(Tokenizer::load(&config.tokenizer_options()).expect("it is built in"));
    let options = RunOptions { serial: true, skip: std::iter::once(3..5).collect(), ..RunOptions::default() };
    let mut pipeline = Pipeline::new(plan.clone(), tokenizer.clone(), options, None).expect("a fresh run");
    for _ in 0..20 {
        pipeline.next_batch().expect("no error in a sound corpus");
    }
    let checkpoint = pipeline.checkpoint();
    (plan, tokenizer, checkpoint)
}
