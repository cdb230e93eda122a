//! The hot functions, one by one, on text made here: each checks its result, then is timed.
//!
//! `cargo bench --bench stages` prints bytes a second. For whole runs on real text use `tokenmill bench`; what was tried and
//! measured stands in LOG.md.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tokenmill::block::Block;
use tokenmill::document::{EncodedDocument, EncodedDocuments, Window};
use tokenmill::mixture::{StageCounts, next_source};
use tokenmill::order::{Permutation, key, shuffle};
use tokenmill::packing::{Concat, Cursor, Filled};
use tokenmill::shard::{Format, Shard, ShardOptions, Start};
use tokenmill::storage;
use tokenmill::tokenizer::{Tokenizer, TokenizerOptions};

/// About `size` bytes of English-like documents, with the escapes that real text has.
fn documents(size: usize) -> Vec<String> {
    let words =
        ["the", "shard", "is", "read", "once,", "and", "\"what\"", "follows", "from", "it", "stays\n", "in", "order."];
    let mut documents = Vec::new();
    let mut total = 0;
    for number in 0u64.. {
        let mut text = format!("Document {number}.");
        for word in 0..(50 + key(1, "bench", "size", &[number]) % 800) {
            text.push(' ');
            text.push_str(words[(key(1, "bench", "word", &[number, word]) % words.len() as u64) as usize]);
        }
        total += text.len();
        documents.push(text);
        if total >= size {
            break;
        }
    }
    documents
}

fn jsonl(documents: &[String]) -> Vec<u8> {
    documents.iter().flat_map(|text| (serde_json::json!({ "text": text }).to_string() + "\n").into_bytes()).collect()
}

fn shard_at(path: &std::path::Path) -> Shard {
    let object = storage::LocalFile::open(path).expect("the file was just written");
    let options = ShardOptions { format: Format::Jsonl, window: 256 << 10, span: 1 << 20, ..ShardOptions::default() };
    Shard::open(Arc::new(object), path.display().to_string().into(), &options).expect("it is JSONL")
}

/// All windows of a shard, and the number of their records.
fn read_all(shard: &Shard, mut each: impl FnMut(&Window)) -> usize {
    let mut window = Window::default();
    let mut records = 0;
    for unit in 0..shard.units() {
        let mut reader = shard.read_unit(unit, Start::default()).expect("the unit is there");
        while reader.next_window(&mut window, &mut |_| true).expect("the shard is sound") {
            records += window.records.len();
            each(&window);
        }
    }
    records
}

fn shards(c: &mut Criterion) {
    let documents = documents(8 << 20);
    let bytes = jsonl(&documents);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut group = c.benchmark_group("read");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    for (name, stored) in [("jsonl", bytes.clone()), ("jsonl.zst", zstd::encode_all(&bytes[..], 3).expect("zstd"))] {
        let path = folder.path().join(format!("x.{name}"));
        std::fs::write(&path, stored).expect("the shard is written");
        let shard = shard_at(&path);
        assert_eq!(read_all(&shard, |_| {}), documents.len());
        group.bench_function(name, |b| b.iter(|| read_all(&shard, |_| {})));
    }
    group.finish();

    let shard = shard_at(&folder.path().join("x.jsonl"));
    let mut records: Vec<Vec<u8>> = Vec::new();
    read_all(&shard, |window| records.extend(window.records.iter().map(|record| record.of(&window.bytes).to_vec())));
    let mut scratch = String::new();
    let mut found: Vec<String> =
        records.iter().map(|record| shard.text(record, &mut scratch).expect("it is JSON").to_owned()).collect();
    let mut expected = documents.clone();
    found.sort();
    expected.sort();
    assert!(found == expected, "the texts are those that were written");
    let mut group = c.benchmark_group("parse");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("json text", |b| {
        b.iter(|| records.iter().map(|record| shard.text(record, &mut scratch).map_or(0, str::len)).sum::<usize>())
    });
    group.finish();
}

fn tokenize(c: &mut Criterion) {
    let documents = documents(4 << 20);
    let size: usize = documents.iter().map(String::len).sum();
    let tokenizer = Tokenizer::load(&TokenizerOptions::default()).expect("gpt2 is built in");
    let mut ids = Vec::new();
    tokenizer.encode_into(&documents[0], &mut ids).expect("it is text");
    assert_eq!(tokenizer.decode(&ids), documents[0]);
    let mut group = c.benchmark_group("tokenize");
    group.throughput(Throughput::Bytes(size as u64));
    group.bench_function(format!("gpt2, {}", tokenizer.engine()), |b| {
        b.iter(|| {
            let mut count = 0;
            for text in &documents {
                ids.clear();
                tokenizer.encode_into(text, &mut ids).expect("it is text");
                count += ids.len();
            }
            count
        })
    });
    group.finish();
}

fn pack(c: &mut Criterion) {
    let piece = || {
        let mut piece = EncodedDocuments::default();
        for index in 0..200u32 {
            piece.ids.extend(0..400);
            let end = piece.ids.len() as u32;
            piece.documents.push(EncodedDocument { index, end, text_bytes: 1600, ..EncodedDocument::default() });
        }
        piece
    };
    let blocks = |mut pieces: Vec<EncodedDocuments>| {
        let mut packer = Concat::new(Cursor::default());
        let mut count = 0usize;
        loop {
            let mut block = Block::new(0, 0, 0, 2048);
            match packer.fill(&mut block, 2048, &mut |_| Ok(pieces.pop())).expect("there is no error among the pieces")
            {
                Filled::Full => count += 1,
                Filled::Ended => return (count, packer.cursor()),
            }
            black_box(&block);
        }
    };
    let tokens = 200 * 400 * 8;
    assert_eq!(blocks((0..8).map(|_| piece()).collect()).0, tokens / 2048);
    let mut group = c.benchmark_group("pack");
    group.throughput(Throughput::Elements(tokens as u64));
    group.bench_function("concat", |b| {
        b.iter_batched(|| (0..8).map(|_| piece()).collect(), blocks, BatchSize::LargeInput)
    });
    group.finish();
}

fn orders(c: &mut Criterion) {
    let permutation = Permutation::keyed(1_000_000, 7);
    assert_eq!((0..1000).map(|i| permutation.at(i)).collect::<std::collections::BTreeSet<_>>().len(), 1000);
    c.bench_function("order/permutation of a million, 1000 places", |b| {
        b.iter(|| (0..1000).map(|i| permutation.at(i)).fold(0, |a, b| a ^ b))
    });
    let mut items: Vec<u32> = (0..1000).collect();
    c.bench_function("order/shuffle of 1000", |b| b.iter(|| shuffle(black_box(&mut items), 7)));
    items.sort_unstable();
    assert!(items.iter().copied().eq(0..1000), "a shuffle keeps all");
    let weights = [5, 3, 2, 1, 1, 1, 1, 1];
    let mut counts = StageCounts { from_block: 0, blocks: vec![0; 8] };
    c.bench_function("mixture/next of 8 sources", |b| {
        b.iter(|| {
            let source = next_source(&weights, 3, &counts).expect("there are weights");
            counts.blocks[source] += 1;
        })
    });
    let total: u64 = counts.blocks.iter().sum();
    assert!(counts.blocks[0].abs_diff(total * 5 / 15) <= 1, "shares follow the weights");
}

criterion_group!(benches, shards, tokenize, pack, orders);
criterion_main!(benches);
