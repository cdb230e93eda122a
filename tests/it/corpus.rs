//! Small corpora made at test time: shards of every format and compression, with documents that can be told apart.
//!
//! The `bytes` tokenizer is used almost everywhere: its ids are the text's bytes, EOS is 256, so what was delivered can be
//! read back from the blocks without trusting any code under test.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use tokenmill::block::{Batch, Block};
use tokenmill::config::Config;
use tokenmill::error::{Error, Result};
use tokenmill::order::key;
use tokenmill::pipeline::{Pipeline, RunOptions};
use tokenmill::plan::Plan;
use tokenmill::state::Checkpoint;
use tokenmill::tokenizer::Tokenizer;

/// Id that ends a document with the `bytes` tokenizer.
pub const EOS: u32 = 256;

/// How a shard is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Jsonl,
    JsonlZstd,
    JsonlZstdFrames,
    JsonlZstdSeekable,
    JsonlGzip,
    JsonlGzipMembers,
    JsonlXz,
    JsonlBzip2,
    JsonlLz4,
    Text,
    TextGzip,
    Parquet,
}

pub const ALL_KINDS: [Kind; 12] = [
    Kind::Jsonl,
    Kind::JsonlZstd,
    Kind::JsonlZstdFrames,
    Kind::JsonlZstdSeekable,
    Kind::JsonlGzip,
    Kind::JsonlGzipMembers,
    Kind::JsonlXz,
    Kind::JsonlBzip2,
    Kind::JsonlLz4,
    Kind::Text,
    Kind::TextGzip,
    Kind::Parquet,
];

/// What stands between the documents of a text shard.
pub const SEPARATOR: &str = "\n<|end|>\n";

/// A random number below `bound`, from a seed and a counter.
pub fn random(seed: u64, counter: u64, bound: u64) -> u64 {
    key(seed, "test", "", &[counter]) % bound
}

/// Document `number` of a corpus: a unique head and some words, from a few bytes to about `size_max`.
pub fn document(name: &str, number: u64, size_max: u64) -> String {
    let seed = key(1, "document", name, &[number]);
    let mut text = format!("{name}#{number}:");
    let size = random(seed, 0, size_max.max(1)) as usize;
    let mut counter = 1;
    while text.len() < size {
        let words = ["alpha", "beta", "γάμμα", "delta", "éps", "\"quoted\"", "\\slash", "{brace}", "tab\t", "😀"];
        write!(text, " {}", words[random(seed, counter, 10) as usize]).expect("a String takes all");
        counter += 1;
    }
    text
}

/// A folder with sources and the config that reads them.
pub struct Corpus {
    pub folder: TempDir,
    /// The documents of each source.
    pub documents: BTreeMap<String, Vec<String>>,
    sources: String,
}

impl Corpus {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Corpus { folder, documents: BTreeMap::new(), sources: String::new() }
    }

    /// Adds a source of `shards` shards with `documents` documents in all; `extra` is more TOML for the source.
    pub fn source(mut self, name: &str, kind: Kind, shards: u64, documents: u64, size_max: u64, extra: &str) -> Self {
        let all: Vec<String> = (0..documents).map(|number| document(name, number, size_max)).collect();
        std::fs::create_dir_all(self.path(name)).expect("a folder for the source");
        for shard in 0..shards {
            let part: Vec<&str> =
                all.iter().enumerate().filter(|(i, _)| *i as u64 % shards == shard).map(|(_, d)| d.as_str()).collect();
            let (bytes, ending) = shard_bytes(kind, &part);
            std::fs::write(self.path(name).join(format!("{shard:03}.{ending}")), bytes).expect("a shard is written");
        }
        self.documents.insert(name.into(), all);
        self.add(name, extra, kind);
        self
    }

    fn add(&mut self, name: &str, extra: &str, kind: Kind) {
        let separator = match kind {
            Kind::Text | Kind::TextGzip => format!("separator = {SEPARATOR:?}\n"),
            _ => String::new(),
        };
        write!(self.sources, "[[source]]\nname = \"{name}\"\npaths = [\"{name}/*\"]\n{separator}{extra}\n")
            .expect("a String");
    }

    /// Writes shard `name` (without its ending) of `documents` more documents to the source's folder, and adds them to its list.
    pub fn append(&mut self, source: &str, name: &str, kind: Kind, documents: u64, size_max: u64) {
        let list = self.documents.get_mut(source).expect("the source is there");
        let first = list.len() as u64;
        let more: Vec<String> = (first..first + documents).map(|number| document(source, number, size_max)).collect();
        let (bytes, ending) = shard_bytes(kind, &more.iter().map(String::as_str).collect::<Vec<_>>());
        list.extend(more);
        std::fs::write(self.path(source).join(format!("{name}.{ending}")), bytes).expect("a shard is written");
    }

    /// Config with only the sources named, or all, and overrides.
    pub fn config_of(&self, head: &str, sources: &[&str], overrides: &[&str]) -> Config {
        let mut table: toml::Table = self.config_text(head).parse().expect("the config is TOML");
        let list = table.get_mut("source").and_then(toml::Value::as_array_mut).expect("there are sources");
        list.retain(|source| {
            source.get("name").and_then(toml::Value::as_str).is_some_and(|name| sources.contains(&name))
        });
        let overrides: Vec<String> = overrides.iter().map(|text| text.to_string()).collect();
        Config::from_table(table, self.folder.path().to_path_buf(), &overrides).expect("the config is right")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes `run.toml` with `head` before the sources and gives its path.
    pub fn config_file(&self, head: &str) -> PathBuf {
        let path = self.path("run.toml");
        std::fs::write(&path, self.config_text(head)).expect("the config is written");
        path
    }

    fn config_text(&self, head: &str) -> String {
        let tokenizer = if head.contains("[tokenizer]") { "" } else { "[tokenizer]\npath = \"bytes\"\n" };
        format!("{head}\n{tokenizer}\n{}", self.sources)
    }

    pub fn config(&self, head: &str) -> Config {
        Config::parse(&self.config_text(head), self.folder.path().to_path_buf(), &[]).expect("the config is right")
    }

    /// The plan, with the corpus that has to outlive it.
    pub fn plan_and_keep(self, head: &str) -> (Self, Arc<Plan>) {
        let plan = self.plan(head);
        (self, plan)
    }

    pub fn plan(&self, head: &str) -> Arc<Plan> {
        Arc::new(Plan::new(&self.config(head)).expect("the sources are there"))
    }
}

/// A shard's bytes and its name's ending.
pub fn shard_bytes(kind: Kind, documents: &[&str]) -> (Vec<u8>, &'static str) {
    let lines: Vec<String> = documents
        .iter()
        .enumerate()
        .map(|(i, text)| format!("{}\n", serde_json::json!({ "id": i, "text": text, "meta": { "n": [1, 2] } })))
        .collect();
    let jsonl = lines.concat().into_bytes();
    let middle = lines[..lines.len() / 2].concat().len();
    let text = documents.join(SEPARATOR).into_bytes();
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).expect("memory takes all");
        encoder.finish().expect("memory takes all")
    };
    match kind {
        Kind::Jsonl => (jsonl, "jsonl"),
        Kind::JsonlZstd => (zstd::encode_all(&jsonl[..], 3).expect("zstd"), "jsonl.zst"),
        Kind::JsonlZstdFrames => {
            // Frames cut records, and come with and without their content size.
            let mut bytes = Vec::new();
            for (i, part) in jsonl.chunks(230).enumerate() {
                if i % 2 == 0 {
                    bytes.extend(zstd::bulk::compress(part, 3).expect("zstd"));
                } else {
                    bytes.extend(zstd::encode_all(part, 3).expect("zstd"));
                }
            }
            (bytes, "jsonl.zst")
        }
        Kind::JsonlZstdSeekable => {
            let mut bytes = Vec::new();
            let options = zeekstd::EncodeOptions::new().frame_size_policy(zeekstd::FrameSizePolicy::Uncompressed(250));
            let mut encoder = zeekstd::Encoder::with_opts(&mut bytes, options).expect("zeekstd");
            encoder.write_all(&jsonl).expect("memory takes all");
            encoder.finish().expect("zeekstd");
            (bytes, "jsonl.zst")
        }
        Kind::JsonlGzip => (gzip(&jsonl), "jsonl.gz"),
        Kind::JsonlGzipMembers => ([gzip(&jsonl[..middle]), gzip(&jsonl[middle..])].concat(), "jsonl.gz"),
        Kind::JsonlXz => {
            let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
            encoder.write_all(&jsonl).expect("memory takes all");
            (encoder.finish().expect("xz"), "jsonl.xz")
        }
        Kind::JsonlBzip2 => {
            let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
            encoder.write_all(&jsonl).expect("memory takes all");
            (encoder.finish().expect("bzip2"), "jsonl.bz2")
        }
        Kind::JsonlLz4 => {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
            encoder.write_all(&jsonl).expect("memory takes all");
            (encoder.finish().expect("lz4"), "jsonl.lz4")
        }
        Kind::Text => (text, "txt"),
        Kind::TextGzip => (gzip(&text), "txt.gz"),
        Kind::Parquet => (parquet_bytes(documents, 9), "parquet"),
    }
}

/// A Parquet file with an `id` and a `text` column, `rows` rows a row group.
pub fn parquet_bytes(documents: &[&str], rows: usize) -> Vec<u8> {
    parquet_bytes_with(documents, rows, Default::default())
}

/// The same, written with other properties.
pub fn parquet_bytes_with(
    documents: &[&str],
    rows: usize,
    properties: parquet::file::properties::WriterPropertiesPtr,
) -> Vec<u8> {
    use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
    let schema = "message doc { required int64 id; optional binary text (STRING); }";
    let schema = Arc::new(parquet::schema::parser::parse_message_type(schema).expect("the schema is right"));
    let mut bytes = Vec::new();
    let mut writer = parquet::file::writer::SerializedFileWriter::new(&mut bytes, schema, properties).expect("parquet");
    for part in documents.chunks(rows) {
        let mut group = writer.next_row_group().expect("parquet");
        let mut ids = group.next_column().expect("parquet").expect("the id column");
        let numbers: Vec<i64> = (0..part.len() as i64).collect();
        ids.typed::<Int64Type>().write_batch(&numbers, None, None).expect("parquet");
        ids.close().expect("parquet");
        let mut texts = group.next_column().expect("parquet").expect("the text column");
        let values: Vec<ByteArray> = part.iter().map(|text| ByteArray::from(*text)).collect();
        let levels = vec![1i16; values.len()];
        texts.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).expect("parquet");
        texts.close().expect("parquet");
        group.close().expect("parquet");
    }
    writer.close().expect("parquet");
    bytes
}

/// How a test runs a plan.
#[derive(Debug, Clone, Copy)]
pub struct How {
    pub rank: u32,
    pub world_size: u32,
    /// 0: the serial driver.
    pub threads: u32,
    /// Seed of random delays in the workers.
    pub delays: Option<u64>,
}

pub const SERIAL: How = How { rank: 0, world_size: 1, threads: 0, delays: None };

/// Starts a pipeline; the tokenizer is loaded from the plan's config.
pub fn start(plan: &Arc<Plan>, how: How, from: Option<&Checkpoint>) -> Result<Pipeline> {
    start_with(plan, how, RunOptions::default(), from)
}

/// Starts a pipeline with more options; rank, threads and delays are `how`'s.
pub fn start_with(plan: &Arc<Plan>, how: How, options: RunOptions, from: Option<&Checkpoint>) -> Result<Pipeline> {
    let tokenizer = Arc::new(Tokenizer::load(&plan.config.tokenizer_options())?);
    let mut plan = Plan::clone(plan);
    plan.config.runtime.threads = how.threads;
    let options = RunOptions {
        rank: how.rank,
        world_size: how.world_size,
        serial: how.threads == 0,
        test_delays: how.delays,
        ..options
    };
    Pipeline::new(Arc::new(plan), tokenizer, options, from)
}

/// The blocks of a fresh run up to its end or an error.
pub fn outcome(plan: &Arc<Plan>, threads: u32) -> (Vec<Block>, Option<Error>) {
    let mut pipeline = match start(plan, How { threads, ..SERIAL }, None) {
        Ok(pipeline) => pipeline,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut found = Vec::new();
    loop {
        match pipeline.next_batch() {
            Ok(Some(batch)) => found.extend(batch.blocks),
            Ok(None) => return (found, None),
            Err(error) => return (found, Some(error)),
        }
    }
}

/// Delivers up to `count` batches.
pub fn take(pipeline: &mut Pipeline, count: usize) -> Vec<Batch> {
    (0..count).map_while(|_| pipeline.next_batch().expect("no error in a sound corpus")).collect()
}

/// Delivers all batches of a finite run.
pub fn take_all(pipeline: &mut Pipeline) -> Vec<Batch> {
    take(pipeline, 1 << 20)
}

/// A checkpoint as it comes back from its file.
pub fn stored(checkpoint: &Checkpoint) -> Checkpoint {
    let again = Checkpoint::parse(&checkpoint.to_bytes()).expect("what is written can be read");
    assert_eq!(&again, checkpoint, "a checkpoint equals itself after save and load");
    again
}

/// Delivers up to `count` batches, with the states before the first and after each.
pub fn take_with_states(pipeline: &mut Pipeline, count: usize) -> (Vec<Batch>, Vec<Checkpoint>) {
    let mut states = vec![stored(&pipeline.checkpoint())];
    let mut batches = Vec::new();
    while batches.len() < count {
        let Some(batch) = pipeline.next_batch().expect("no error in a sound corpus") else { break };
        batches.push(batch);
        states.push(stored(&pipeline.checkpoint()));
    }
    (batches, states)
}

/// Delivers all batches of a finite run, with the states before the first and after each.
pub fn take_all_with_states(pipeline: &mut Pipeline) -> (Vec<Batch>, Vec<Checkpoint>) {
    take_with_states(pipeline, 1 << 20)
}

/// The blocks of batches, in order.
pub fn blocks(batches: &[Batch]) -> Vec<Block> {
    batches.iter().flat_map(|batch| batch.blocks.iter().cloned()).collect()
}

/// The documents that the blocks of one lane and source hold, read back from the ids: what stands between two EOS.
/// The rest after the last EOS is dropped when it is cut by the end of the run.
pub fn documents_of<'a>(blocks: impl IntoIterator<Item = &'a Block>) -> Vec<String> {
    let mut documents = Vec::new();
    let mut open = Vec::new();
    for block in blocks {
        for &id in &block.input_ids[..block.tokens()] {
            if id == EOS {
                documents.push(String::from_utf8(std::mem::take(&mut open)).expect("the documents are UTF-8"));
            } else {
                open.push(u8::try_from(id).expect("a byte"));
            }
        }
    }
    documents
}

/// The documents of all blocks, by lane and source.
pub fn documents_by_lane(blocks: &[Block]) -> BTreeMap<(u32, u32), Vec<String>> {
    let mut by_lane: BTreeMap<(u32, u32), Vec<&Block>> = BTreeMap::new();
    for block in blocks {
        by_lane.entry((block.lane, block.source)).or_default().push(block);
    }
    by_lane.into_iter().map(|(key, blocks)| (key, documents_of(blocks))).collect()
}

/// The path of a file under `tests/`.
pub fn test_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}
