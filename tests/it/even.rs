//! Ranks of a finite run end together: the same number of batches, what is dropped or added counted, also after a resume.
//!
//! Method: run finite corpora at several world sizes, with and without `even`, and compare with the run as it is.

use std::sync::Arc;

use tokenmill::block::{Batch, Block};
use tokenmill::error::ErrorKind;
use tokenmill::pipeline::{BlockCounts, Even, Pipeline, RunOptions, count_blocks};
use tokenmill::plan::Plan;
use tokenmill::state::Checkpoint;
use tokenmill::tokenizer::Tokenizer;

use crate::corpus::*;

fn head(batch_size: u32, tail: &str) -> String {
    format!(
        "lanes = 4\nblock_size = 40\nbatch_size = {batch_size}\n[shuffle]\nspan = 1500\nwindow = 400\n[packing]\ntail = \"{tail}\"\n"
    )
}

fn corpora() -> Vec<Corpus> {
    let finite = "max_epochs = 1";
    vec![
        Corpus::new().source("a", Kind::Jsonl, 3, 70, 300, finite),
        Corpus::new().source("a", Kind::JsonlGzip, 2, 50, 500, finite).source("b", Kind::Parquet, 5, 60, 100, finite),
        Corpus::new().source("a", Kind::TextGzip, 17, 130, 200, "max_epochs = 2"),
    ]
}

fn counts(plan: &Arc<Plan>, from: Option<&Checkpoint>) -> BlockCounts {
    let tokenizer = Arc::new(Tokenizer::load(&plan.config.tokenizer_options()).expect("built in"));
    count_blocks(plan, &tokenizer, &RunOptions::default(), from).expect("a finite run")
}

fn how(rank: u32, world_size: u32) -> How {
    How { rank, world_size, threads: rank % 3, delays: None }
}

fn ranks(plan: &Arc<Plan>, world_size: u32, even: Option<Even>, from: Option<&Checkpoint>) -> Vec<Pipeline> {
    // Half of the runs count by themselves.
    let known = (even.is_some() && world_size != 2).then(|| Arc::new(counts(plan, from)));
    (0..world_size)
        .map(|rank| {
            let options = RunOptions { even, even_counts: known.clone(), ..RunOptions::default() };
            start_with(plan, how(rank, world_size), options, from).expect("a finite run")
        })
        .collect()
}

fn is_masked(block: &Block) -> bool {
    block.segments.is_empty()
}

#[test]
fn all_ranks_give_the_same_number_of_batches() {
    let mut uneven = 0;
    for (corpus, tail) in corpora().iter().zip(["drop", "pad", "drop"]) {
        for (world_size, batch_size) in [(1, 4), (2, 3), (4, 1), (4, 5)] {
            let plan = corpus.plan(&head(batch_size, tail));
            let run = |even| -> Vec<(Pipeline, Vec<Batch>)> {
                ranks(&plan, world_size, even, None)
                    .into_iter()
                    .map(|mut pipeline| {
                        let batches = take_all(&mut pipeline);
                        (pipeline, batches)
                    })
                    .collect()
            };
            let (plain, drop, pad) = (run(None), run(Some(Even::Drop)), run(Some(Even::Pad)));
            let lengths = |ranks: &[(Pipeline, Vec<Batch>)]| ranks.iter().map(|(_, b)| b.len()).collect::<Vec<_>>();
            let full = plain.iter().map(|(_, b)| b.iter().filter(|b| b.blocks.len() == batch_size as usize).count());
            let least = full.min().expect("a rank");
            let most = *lengths(&plain).iter().max().expect("a rank");
            assert_eq!(lengths(&drop), vec![least; world_size as usize]);
            assert_eq!(lengths(&pad), vec![most; world_size as usize]);
            uneven += u32::from(least < most);
            for ((plain, drop), pad) in plain.iter().zip(&drop).zip(&pad) {
                let (plain, dropped, padded) = (blocks(&plain.1), blocks(&drop.1), blocks(&pad.1));
                assert_eq!(dropped[..], plain[..dropped.len()]);
                assert_eq!(drop.0.dropped_blocks(), (plain.len() - dropped.len()) as u64);
                assert_eq!(padded[..plain.len()], plain[..]);
                let masked = &padded[plain.len()..];
                assert_eq!(pad.0.padded_blocks(), masked.len() as u64);
                assert_eq!(pad.0.delivered_blocks(), padded.len() as u64);
                assert!(pad.1.iter().all(|batch| batch.blocks.len() == batch_size as usize));
                for block in masked {
                    assert!(is_masked(block) && block.input_ids == [258; 40], "{block:?}");
                    assert_eq!(block.segment_ids(), [0; 40]);
                    assert_eq!(block.index % 4, u64::from(block.lane));
                }
                let mut numbers: Vec<u64> = padded.iter().map(|block| block.index).collect();
                numbers.sort_unstable();
                numbers.dedup();
                assert_eq!(numbers.len(), padded.len(), "each block has a number of its own");
            }
        }
    }
    assert!(uneven > 3, "some of the runs need it");
}

/// From the state after every step, the padded region included, the rest is that of the run never stopped; other world sizes
/// end together as well and lose nothing.
#[test]
fn resumes_end_together_too() {
    let corpus = &corpora()[1];
    let plan = corpus.plan(&head(2, "pad"));
    for even in [Even::Drop, Even::Pad] {
        let mut whole = ranks(&plan, 4, Some(even), None);
        let mut batches: Vec<Vec<Batch>> = vec![Vec::new(); 4];
        let mut states = Vec::new();
        loop {
            let parts = whole.iter().map(|p| (String::from("a rank"), stored(&p.checkpoint()))).collect();
            states.push(Checkpoint::union(parts).expect("the ranks cover all lanes once"));
            let next: Vec<Batch> =
                whole.iter_mut().filter_map(|p| p.next_batch().expect("no error in a sound corpus")).collect();
            if next.is_empty() {
                break;
            }
            assert_eq!(next.len(), 4, "all ranks end at the same step");
            next.into_iter().zip(&mut batches).for_each(|(batch, all)| all.push(batch));
        }
        let masked = batches.iter().flatten().flat_map(|b| &b.blocks).filter(|block| is_masked(block)).count();
        assert!((even == Even::Pad) == (masked > 2), "{masked}");
        let everything = counts(&plan, None);
        for (step, state) in states.iter().enumerate().rev().step_by(2) {
            assert_eq!(counts(&plan, Some(state)).blocks, everything.blocks, "counts don't depend on where one starts");
            for (rank, mut pipeline) in ranks(&plan, 4, Some(even), Some(state)).into_iter().enumerate() {
                assert_eq!(take_all(&mut pipeline), batches[rank][step..], "rank {rank}, resumed at step {step}");
                assert_eq!(pipeline.padded_blocks(), whole[rank].padded_blocks());
                assert_eq!(pipeline.dropped_blocks(), whole[rank].dropped_blocks());
            }
            let mut rest: Vec<Vec<Batch>> = ranks(&plan, 2, Some(even), Some(state)).iter_mut().map(take_all).collect();
            assert_eq!(rest[0].len(), rest[1].len());
            if even == Even::Pad {
                let mut all: Vec<Block> = batches.iter().flat_map(|b| blocks(&b[..step])).collect();
                all.extend(rest.drain(..).flat_map(|b| blocks(&b)));
                let real = all.iter().filter(|block| !is_masked(block)).count() as u64;
                assert_eq!(real, everything.blocks.iter().sum::<u64>());
            }
        }
    }
}

/// What has no end can't be made even; counts of another run are refused.
#[test]
fn what_cant_be_made_even_is_said() {
    let endless = Corpus::new().source("web", Kind::Jsonl, 2, 40, 100, "").plan_and_keep(&head(2, "drop")).1;
    let even = |counts| RunOptions { even: Some(Even::Drop), even_counts: counts, ..RunOptions::default() };
    let error = start_with(&endless, SERIAL, even(None), None).err().expect("no end");
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.detail().contains("\"web\""), "{error}");
    let corpora = corpora();
    let (plan, other) = (corpora[0].plan(&head(2, "drop")), corpora[1].plan(&head(2, "drop")));
    let error = start_with(&plan, SERIAL, even(Some(Arc::new(counts(&other, None)))), None).err().expect("another run");
    assert_eq!(error.kind(), ErrorKind::StateMismatch);
}
