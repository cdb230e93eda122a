//! Whole documents in blocks: each once, resumed exactly from every batch, whatever the world size and the driver.
//!
//! Method: small corpora of the `bytes` tokenizer, windows of a dozen documents, so that there are many within few batches.

use crate::corpus::*;
use tokenmill::block::{Block, IGNORED};
use tokenmill::state::Checkpoint;

fn head(batch_size: u32, packing: &str) -> String {
    format!(
        "seed = 5\nlanes = 4\nblock_size = 64\nbatch_size = {batch_size}\n[shuffle]\nspan = 1500\nwindow = 400\n\
         [packing]\nwindow = 12\n{packing}\n"
    )
}

const STRATEGIES: [&str; 3] = [
    "strategy = \"best_fit\"",
    "strategy = \"greedy\"\noverflow = \"truncate\"",
    "strategy = \"best_fit\"\noverflow = \"drop\"\nwindow_tokens = 300",
];

fn corpus(extra: &str) -> Corpus {
    Corpus::new().source("big", Kind::Jsonl, 3, 80, 140, &format!("weight = 2.0\n{extra}")).source(
        "small",
        Kind::JsonlGzip,
        2,
        40,
        90,
        &format!("weight = 1.0\n{extra}"),
    )
}

/// From the state after any batch the rest is the same, in every field, serially and on threads.
#[test]
fn resumes_from_every_batch() {
    for packing in STRATEGIES {
        let corpus = corpus("");
        let plan = corpus.plan(&head(3, packing));
        let mut whole = start(&plan, SERIAL, None).expect("a fresh run");
        let (batches, states) = take_with_states(&mut whole, 90);
        assert!(whole.stats().iter().all(|stats| stats.epoch >= 1), "the run crosses epochs: {:?}", whole.stats());
        let threads = How { threads: 2, delays: Some(3), ..SERIAL };
        assert_eq!(take(&mut start(&plan, threads, None).expect("a fresh run"), 90), batches);
        for (step, state) in states.iter().enumerate() {
            let how = How { threads: if step % 5 == 0 { 2 } else { 0 }, ..SERIAL };
            let mut resumed = start(&plan, how, Some(state)).expect("the state fits");
            assert_eq!(resumed.checkpoint(), *state, "{packing}, step {step}: the state is the one loaded");
            for (expected, expected_state) in batches[step..].iter().zip(&states[step + 1..]).take(5) {
                assert_eq!(take(&mut resumed, 1)[..], *std::slice::from_ref(expected), "{packing}, from step {step}");
                assert_eq!(resumed.checkpoint(), *expected_state, "{packing}, from step {step}");
            }
        }
    }
}

/// Several stops at changing world sizes: the global sequence of blocks is one.
#[test]
fn world_size_changes_at_each_resume() {
    for packing in STRATEGIES {
        let corpus = corpus("");
        let expected = blocks(&take(&mut start(&corpus.plan(&head(4, packing)), SERIAL, None).expect("fresh"), 40));
        let mut found = Vec::new();
        let mut state: Option<Checkpoint> = None;
        for (turn, world_size) in [4u32, 1, 2, 4, 2].into_iter().enumerate() {
            let plan = corpus.plan(&head(4 / world_size, packing));
            let (mut parts, mut part_blocks) = (Vec::new(), Vec::new());
            for rank in 0..world_size {
                let how = How { rank, world_size, threads: (turn % 3) as u32, delays: None };
                let mut pipeline = start(&plan, how, state.as_ref()).expect("the state fits");
                part_blocks.extend(blocks(&take(&mut pipeline, turn + 3)));
                parts.push((format!("rank {rank}"), stored(&pipeline.checkpoint())));
            }
            part_blocks.sort_by_key(|block| block.index);
            found.extend(part_blocks);
            state = Some(Checkpoint::union(parts).expect("the ranks cover all lanes once"));
        }
        assert_eq!(found, expected[..found.len()]);
    }
}

/// What the header of `packing::windowed` holds of each block.
fn check_block(block: &Block) {
    let (labels, shifted, positions) = (block.labels(), block.shifted_labels(), block.position_ids());
    for (range, segment) in block.segment_ranges() {
        assert_eq!((labels[range.start], shifted[range.end - 1], positions[range.start]), (IGNORED, IGNORED, 0));
        for at in range.start + 1..range.end {
            assert_eq!(labels[at], i64::from(block.input_ids[at]));
            assert_eq!(shifted[at - 1], labels[at]);
        }
        assert!(segment.token == 0 || segment.token.is_multiple_of(64), "documents are cut at blocks only");
    }
    assert!(labels[block.tokens()..].iter().all(|label| *label == IGNORED));
    let ends: Vec<i32> = block.segments.iter().map(|segment| segment.end as i32).collect();
    assert_eq!(block.cu_seqlens()[1..=ends.len()], ends);
    assert_eq!(block.cu_seqlens().last(), Some(&64));
}

/// A finite run delivers each document once, whole; what overflow leaves out is counted.
#[test]
fn each_document_once() {
    for packing in STRATEGIES {
        let corpus = corpus("max_epochs = 2");
        let plan = corpus.plan(&head(3, packing));
        let mut pipeline = start(&plan, SERIAL, None).expect("a fresh run");
        let all = blocks(&take_all(&mut pipeline));
        all.iter().for_each(check_block);
        let documents = |source: &str| corpus.documents[source].iter();
        for (source, stats) in ["big", "small"].into_iter().zip(pipeline.stats()) {
            let long = documents(source).filter(|text| text.len() + 1 > 64).count() as u64;
            let beyond: usize = documents(source).map(|text| (text.len() + 1).saturating_sub(64)).sum();
            let t = stats.totals;
            assert!(long > 0, "the corpus has documents longer than a block");
            let expected = match packing {
                p if p.contains("drop") => [0, 2 * long, 0],
                p if p.contains("truncate") => [2 * long, 0, 0],
                _ => [0, 0, 2 * long],
            };
            assert_eq!([t.truncated, t.too_long, t.split], expected, "{packing}, {source}");
            if packing.contains("truncate") {
                assert_eq!(t.cut_tokens, 2 * beyond as u64);
            }
            assert_eq!(t.documents + t.too_long, 2 * documents(source).count() as u64, "{packing}, {source}");
            assert_eq!(t.tokens + t.padding, t.blocks * 64);
        }
        // Short documents are there twice each, in one segment.
        let mut found: Vec<String> = Vec::new();
        for block in &all {
            for (range, segment) in block.segment_ranges().filter(|(range, _)| block.input_ids[range.end - 1] == EOS) {
                if segment.token == 0 {
                    let bytes = block.input_ids[range.start..range.end - 1].iter().map(|id| *id as u8).collect();
                    found.push(String::from_utf8(bytes).expect("documents are UTF-8"));
                }
            }
        }
        let mut expected: Vec<String> = documents("big").chain(documents("small")).cloned().collect();
        expected.retain(|text| text.len() < 64);
        expected.extend(expected.clone());
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{packing}");
    }
}

/// Another packing window is another run.
#[test]
fn the_window_is_part_of_the_run() {
    let corpus = corpus("");
    let mut pipeline = start(&corpus.plan(&head(3, STRATEGIES[0])), SERIAL, None).expect("a fresh run");
    take(&mut pipeline, 5);
    let state = stored(&pipeline.checkpoint());
    let error = start(&corpus.plan(&head(3, STRATEGIES[2])), SERIAL, Some(&state)).err().expect("another run");
    assert!(error.to_string().contains("packing: found"), "{error}");
}
