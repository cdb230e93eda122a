//! Batches are passed over exactly: what comes after them is what would have come, and states, counts and files know of it.
//!
//! Method: run once as it is; run again with ranges passed over, stopping at every step, also inside a range; compare.

use tokenmill::block::Batch;
use tokenmill::error::ErrorKind;
use tokenmill::pipeline::RunOptions;

use crate::corpus::*;

const HEAD: &str = "seed = 3\nlanes = 4\nblock_size = 40\nbatch_size = 3\n[shuffle]\nspan = 1500\nwindow = 400\n";

fn skip(ranges: &[std::ops::Range<u64>]) -> RunOptions {
    RunOptions { skip: ranges.to_vec(), ..RunOptions::default() }
}

#[test]
fn the_rest_is_as_without_skipping() {
    for kind in [Kind::Jsonl, Kind::JsonlGzip, Kind::Parquet] {
        let corpus = Corpus::new().source("a", kind, 3, 80, 140, "max_epochs = 1\nweight = 2.0").source(
            "b",
            kind,
            2,
            40,
            90,
            "max_epochs = 1\nweight = 1.0",
        );
        let plan = corpus.plan(HEAD);
        let mut plain = start(&plan, SERIAL, None).expect("a fresh run");
        let all = take_all(&mut plain);
        let ranges = [7..9, 20..33, 9..11];
        let expected: Vec<Batch> =
            all.iter().filter(|batch| !ranges.iter().any(|range| range.contains(&batch.step))).cloned().collect();
        assert!(all.len() > 40 && expected.len() == all.len() - 17);

        let mut skipping = start_with(&plan, SERIAL, skip(&ranges), None).expect("a fresh run");
        assert_eq!(take_all(&mut skipping), expected);
        assert_eq!(skipping.step(), all.len() as u64, "steps keep counting");
        assert_eq!(skipping.skipped_batches(), 17);
        assert_eq!(skipping.delivered_blocks(), blocks(&expected).len() as u64);
        for (now, whole) in skipping.stats().iter().zip(plain.stats()) {
            assert_eq!(now.totals.tokens + now.passed.tokens, whole.totals.tokens);
            assert_eq!(now.totals.documents + now.passed.documents, whole.totals.documents);
            assert_eq!(now.totals.dropped_tokens, whole.totals.dropped_tokens);
        }
        let tokens: u64 = skipping.stats().iter().map(|stats| stats.totals.tokens).sum();
        assert_eq!(tokens, blocks(&expected).iter().map(|block| block.tokens() as u64).sum::<u64>());

        // Stopped at every step, in the ranges too, and resumed without being told again.
        let mut running = start_with(&plan, SERIAL, skip(&ranges), None).expect("a fresh run");
        while running.step() < 40 {
            if !running.pass_over().expect("no error in a sound corpus") {
                take(&mut running, 1);
            }
            let state = stored(&running.checkpoint());
            let how = How { threads: (state.step % 3) as u32, ..SERIAL };
            // A range that hasn't begun is no part of the state yet.
            let ahead: Vec<_> = ranges.iter().filter(|range| range.start >= state.step).cloned().collect();
            let mut resumed = start_with(&plan, how, skip(&ahead), Some(&state)).expect("the state fits");
            let rest: Vec<Batch> = expected.iter().filter(|batch| batch.step >= state.step).cloned().collect();
            assert_eq!(take_all(&mut resumed), rest, "resumed at step {}", state.step);
            assert_eq!(resumed.skipped_batches(), 17);
            assert_eq!(resumed.stats(), skipping.stats());
            assert_eq!(resumed.checkpoint(), skipping.checkpoint());
        }
    }
}

/// Batches that were delivered can't be skipped any more; those that were skipped may be named again.
#[test]
fn what_was_delivered_cant_be_skipped() {
    let corpus = Corpus::new().source("a", Kind::Jsonl, 3, 80, 140, "");
    let plan = corpus.plan(HEAD);
    let mut pipeline = start_with(&plan, SERIAL, skip(std::slice::from_ref(&(3..5))), None).expect("a fresh run");
    take(&mut pipeline, 8);
    let state = stored(&pipeline.checkpoint());
    assert_eq!(state.step, 10);
    assert_eq!(state.skipped.len(), 1);
    for (range, fits) in [(3..5, true), (4..5, true), (10..12, true), (2..5, false), (9..12, false), (4..12, false)] {
        let started = start_with(&plan, SERIAL, skip(std::slice::from_ref(&range)), Some(&state));
        assert_eq!(started.is_ok(), fits, "{range:?}");
        if let Err(error) = started {
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.detail().contains("was delivered"), "{error}");
        }
    }
}
