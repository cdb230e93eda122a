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
