//! A test for each bug that was found, saying what went wrong, and for what a change of the order of work could break.

use std::time::Duration;

use crate::corpus::*;

const HEAD: &str = "lanes = 4\nblock_size = 48\nbatch_size = 4\n[shuffle]\nspan = 1500\nwindow = 400\n";

/// A source switched off by `weight = 0` was read ahead all the same, so a shard of it that is damaged, or gone since the
/// listing, kept threads and memory busy for nothing. Now it isn't opened, by either driver, and the others' blocks are those
/// of a run with a sound one.
#[test]
fn a_source_without_weight_is_not_read() {
    for threads in [0, 1, 3] {
        let how = How { threads, ..SERIAL };
        let make = || {
            Corpus::new().source("off", Kind::JsonlGzip, 2, 40, 60, "weight = 0.0\nmax_epochs = 1").source(
                "on",
                Kind::Jsonl,
                2,
                80,
                60,
                "weight = 1.0\nmax_epochs = 1",
            )
        };
        let expected = {
            let (_corpus, plan) = make().plan_and_keep(HEAD);
            take_all(&mut start(&plan, how, None).expect("it starts"))
        };
        assert!(!expected.is_empty());
        let (corpus, plan) = make().plan_and_keep(HEAD);
        std::fs::remove_dir_all(corpus.path("off")).expect("the source's folder goes");
        let mut pipeline = start(&plan, how, None).expect("it starts");
        assert!(take_all(&mut pipeline) == expected, "{threads} threads");
        let stats = pipeline.stats();
        assert_eq!((stats[0].totals.documents, stats[0].totals.tokens), (0, 0));
    }
}

/// A source that has a weight of one in a million is first needed long after the others. It is read late, and must be read: the
/// order of work looks only so many blocks ahead, and what lies beyond is not never.
#[test]
fn a_source_needed_late_comes_in_its_turn() {
    let corpus = Corpus::new().source("often", Kind::Jsonl, 2, 60, 60, "weight = 0.995").source(
        "rare",
        Kind::JsonlZstd,
        1,
        40,
        60,
        "weight = 0.005",
    );
    let (_corpus, plan) = corpus.plan_and_keep(HEAD);
    let of = |threads| blocks(&take(&mut start(&plan, How { threads, ..SERIAL }, None).expect("it starts"), 250));
    let expected = of(0);
    let rare: Vec<u64> = expected.iter().filter(|block| block.source == 1).map(|block| block.index / 4).collect();
    assert!(rare.len() >= 4 && rare.iter().any(|&at| at > 64), "the rare source comes late as well, found at {rare:?}");
    for threads in [1, 3] {
        assert!(of(threads) == expected, "{threads} threads");
    }
}

/// Where many lanes share what may run ahead, a piece is cut smaller than a record may be, down to one record a piece; neither
/// may change a block, and the run has to come to its end in bounded time.
#[test]
fn many_lanes_in_small_pieces_give_the_same_blocks() {
    let head = "lanes = 64\nblock_size = 48\nbatch_size = 64\n[runtime]\nstall_timeout = \"60s\"\n[shuffle]\nspan = \"1MiB\"\n";
    let corpus = Corpus::new().source("a", Kind::JsonlZstd, 1, 700, 400, "max_epochs = 1").source(
        "b",
        Kind::Jsonl,
        3,
        1500,
        60,
        "max_epochs = 1",
    );
    let (_corpus, plan) = corpus.plan_and_keep(head);
    assert!(plan.config.runtime.stall_timeout.0 == Duration::from_secs(60));
    let of = |threads| blocks(&take_all(&mut start(&plan, How { threads, ..SERIAL }, None).expect("it starts")));
    let expected = of(0);
    assert!(expected.len() > 200);
    for threads in [1, 2, 8] {
        assert!(of(threads) == expected, "{threads} threads");
    }
}

/// Where parts don't come out even, the same lanes had one more in each epoch, and fell behind the others by as much for ever: what a
/// shared decoder keeps for them grew with every epoch. Now all have as many in the long run, and stay together.
#[test]
fn lanes_stay_together_through_many_epochs() {
    for (kind, shards) in [(Kind::JsonlZstd, 1), (Kind::JsonlZstd, 9), (Kind::Parquet, 1), (Kind::Jsonl, 3)] {
        let head = "lanes = 8\nblock_size = 64\nbatch_size = 8\n[shuffle]\nspan = 400\nwindow = 400\n";
        let corpus = Corpus::new().source("a", kind, shards, 37 * shards, 400, "max_epochs = 120");
        let (_corpus, plan) = corpus.plan_and_keep(head);
        let mut pipeline = start(&plan, How { threads: 2, ..SERIAL }, None).expect("it starts");
        let mut most = 0;
        while pipeline.next_batch().expect("the corpus is sound").is_some() {
            let checkpoint = pipeline.checkpoint();
            let cursors: Vec<_> = checkpoint.cursors.iter().map(|lane| &lane.sources["a"].cursor).collect();
            if cursors.iter().any(|cursor| cursor.ended) {
                break;
            }
            let epochs = cursors.iter().map(|cursor| cursor.place.epoch);
            most = most.max(epochs.clone().max().expect("lanes") - epochs.min().expect("lanes"));
        }
        println!("{kind:?} x {shards}: {most} epochs apart");
        assert!(most <= 10, "{kind:?} x {shards}: {most} epochs apart");
    }
}
