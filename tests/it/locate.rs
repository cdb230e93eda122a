//! Provenance is exact: what `locate` names is where the block's tokens come from.
//!
//! Method: deliver blocks of corpora of every kind, locate them, read the named bytes of the uncompressed shard (or the named row)
//! without the library, encode them by hand, and compare with the block's ids; then again from checkpoints.

use std::path::Path;
use std::sync::Arc;

use tokenmill::block::Block;
use tokenmill::error::ErrorKind;
use tokenmill::pipeline::{DocumentPart, RunOptions, locate};
use tokenmill::plan::Plan;
use tokenmill::state::Checkpoint;
use tokenmill::tokenizer::Tokenizer;

use crate::corpus::*;

const HEAD: &str = "seed = 9\nlanes = 4\nblock_size = 48\nbatch_size = 4\n[shuffle]\nspan = 1500\nwindow = 400\n";

fn find(plan: &Arc<Plan>, block: u64, checkpoints: &[Checkpoint]) -> tokenmill::error::Result<Vec<DocumentPart>> {
    let tokenizer = Arc::new(Tokenizer::load(&plan.config.tokenizer_options())?);
    locate(
        plan,
        &tokenizer,
        block,
        checkpoints,
        &RunOptions { serial: block.is_multiple_of(2), ..RunOptions::default() },
    )
}

/// Holds `parts` against `block`, by the documents of the shards of `kind` alone.
fn check(corpus: &Corpus, kind: Kind, shards: u64, block: &Block, parts: &[DocumentPart]) {
    let mut ids: Vec<u32> = Vec::new();
    for part in parts {
        let shard = Path::new(&part.shard).file_name().and_then(|name| name.to_str()).expect("a name");
        let shard: u64 = shard[..3].parse().expect("shards are numbered");
        let documents: Vec<&str> = corpus.documents[&part.source]
            .iter()
            .enumerate()
            .filter(|(i, _)| *i as u64 % shards == shard)
            .map(|(_, document)| document.as_str())
            .collect();
        let text = match kind {
            Kind::Parquet => {
                assert_eq!(part.bytes, None);
                documents[part.record as usize].to_owned()
            }
            _ => {
                let bytes = part.bytes.clone().expect("a range of bytes");
                let bytes = bytes.start as usize..bytes.end as usize;
                if matches!(kind, Kind::Text | Kind::TextGzip) {
                    let whole = shard_bytes(Kind::Text, &documents).0;
                    String::from_utf8(whole[bytes].to_vec()).expect("UTF-8")
                } else {
                    let whole = shard_bytes(Kind::Jsonl, &documents).0;
                    let record: serde_json::Value = serde_json::from_slice(&whole[bytes]).expect("one record");
                    record["text"].as_str().expect("a text").to_owned()
                }
            }
        };
        assert_eq!(text, documents[part.record as usize], "the record's index names the same document");
        let mut encoded: Vec<u32> = text.bytes().map(u32::from).collect();
        encoded.push(EOS);
        assert_eq!(part.document_tokens, encoded.len() as u64);
        assert_eq!(part.tokens_in_block.start, ids.len() as u64);
        ids.extend(&encoded[part.tokens_in_document.start as usize..part.tokens_in_document.end as usize]);
        assert_eq!(part.tokens_in_block.end, ids.len() as u64);
    }
    assert_eq!(ids, block.input_ids[..block.tokens()], "block {}", block.index);
}

/// Every kind, over epochs of two sources, from the beginning and from states before and around the block.
#[test]
fn names_what_the_block_is_made_of() {
    for (number, kind) in ALL_KINDS.into_iter().enumerate() {
        // Finite and endless sources take different ways.
        let extra = if number % 2 == 0 { "max_epochs = 9\n" } else { "" };
        let corpus = Corpus::new().source("big", kind, 3, 80, 140, &format!("{extra}weight = 2.0")).source(
            "small",
            kind,
            3,
            40,
            90,
            &format!("{extra}weight = 1.0"),
        );
        let plan = corpus.plan(HEAD);
        let mut pipeline = start(&plan, SERIAL, None).expect("a fresh run");
        let mut states = Vec::new();
        let mut delivered = Vec::new();
        for _ in 0..60 {
            states.push(stored(&pipeline.checkpoint()));
            delivered.extend(blocks(&take(&mut pipeline, 1)));
        }
        for block in delivered.iter().step_by(7) {
            let parts = find(&plan, block.index, &[]).expect("the block is there");
            check(&corpus, kind, 3, block, &parts);
            let step = (block.index / 4) as usize;
            for around in [&states[step / 2..=step / 2], &states[step..=step], &states[59..], &states[step / 3..]] {
                assert_eq!(find(&plan, block.index, around).expect("the block is there"), parts, "{kind:?}");
            }
        }
    }
}

/// After weights changed, a block is found with those that led to it, or it is said why that can't be told.
#[test]
fn knows_the_weights_of_the_time() {
    let corpus = |a: f64, b: f64| {
        let (a, b) = (format!("weight = {a}"), format!("weight = {b}"));
        Corpus::new().source("a", Kind::Jsonl, 2, 90, 100, &a).source("b", Kind::JsonlGzip, 2, 90, 100, &b)
    };
    let ((first, before), (second, after)) = (
        corpus(3.0, 1.0).plan_and_keep(HEAD),
        corpus(1.0, 3.0).plan_and_keep(&HEAD.replace("batch_size = 4", "batch_size = 3")),
    );
    let mut pipeline = start(&before, SERIAL, None).expect("a fresh run");
    let mut states = vec![pipeline.checkpoint()];
    let mut delivered = Vec::new();
    for step in 0..60 {
        if step == 31 {
            pipeline = start(&after, SERIAL, Some(&states[31])).expect("weights may change");
        }
        delivered.extend(blocks(&take(&mut pipeline, 1)));
        states.push(pipeline.checkpoint());
    }
    let history: Vec<&Checkpoint> = [0, 20, 31, 45, 60].iter().map(|step| &states[*step]).collect();
    let history: Vec<Checkpoint> = history.into_iter().cloned().collect();
    for block in &delivered {
        let corpus = if block.index < 124 { &first } else { &second };
        let kind = if block.source == 0 { Kind::Jsonl } else { Kind::JsonlGzip };
        // Whatever the config says now, what was delivered is what is found.
        for plan in [&before, &after] {
            let parts = find(plan, block.index, &history).expect("the states tell");
            check(corpus, kind, 2, block, &parts);
        }
    }
    for (block, states) in [(200, [&states[20], &states[60]]), (130, [&states[20], &states[60]])] {
        let error = find(&after, block, &states.map(Clone::clone)).expect_err("it can't be told");
        assert_eq!(error.kind(), ErrorKind::StateMismatch);
        assert!(error.detail().contains("weights changed at block 31"), "{error}");
    }
    let error = find(&after, 80, &states[10..11]).expect_err("other weights, and no state after it");
    assert!(error.detail().contains("not known") || error.detail().contains("isn't known"), "{error}");
}

/// Past the end, and with another run's state, it says so.
#[test]
fn what_isnt_there_is_said() {
    let corpus = Corpus::new().source("a", Kind::Jsonl, 2, 60, 100, "max_epochs = 1");
    let plan = corpus.plan(HEAD);
    let error = find(&plan, 4000, &[]).expect_err("a short run");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.detail().contains("lane 0 ends after"), "{error}");
    let other = start(&corpus.plan(&HEAD.replace("seed = 9", "seed = 8")), SERIAL, None).expect("a fresh run");
    let error = find(&plan, 4, &[other.checkpoint()]).expect_err("another run");
    assert!(error.detail().contains("seed: found 9, expected 8"), "{error}");
}
