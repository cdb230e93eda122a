//! Resume is exact: from the state after any batch, the rest is that of the run that was not stopped, in every field.
//!
//! Method: run once, keeping the state after each batch as its file would hold it; then start anew from each of them and
//! compare. The corpora cross documents, windows, units, shards, sources and epochs within the batches compared.

use crate::corpus::*;

const HEAD: &str = "seed = 5\nlanes = 4\nblock_size = 48\nbatch_size = 4\n[shuffle]\nspan = 1500\nwindow = 400\n";

/// Every step of a mixture of two sources for a kind of shard; `steps` covers more than two epochs of the smaller.
fn resume_from_every_step(kind: Kind) {
    let corpus =
        Corpus::new().source("big", kind, 3, 80, 140, "weight = 2.0").source("small", kind, 2, 40, 90, "weight = 1.0");
    let plan = corpus.plan(HEAD);
    let steps = 70;
    let mut whole = start(&plan, SERIAL, None).expect("a fresh run");
    let (batches, states) = take_with_states(&mut whole, steps);
    let stats = whole.stats();
    assert!(stats.iter().all(|stats| stats.epoch >= 1), "the run crosses epochs of both sources: {stats:?}");
    for (step, state) in states.iter().enumerate() {
        // Most resumes are serial and compare the next batches; some run to the end, some ahead on threads.
        let how = How { threads: if step % 5 == 0 { 2 } else { 0 }, ..SERIAL };
        let count = if step % 7 == 0 { steps } else { 6 };
        let mut resumed = start(&plan, how, Some(state)).expect("the state fits");
        assert_eq!(resumed.checkpoint(), *state, "{kind:?}: the state before the first batch is the one loaded");
        for (expected, expected_state) in batches[step..].iter().zip(&states[step + 1..]).take(count) {
            let found = take(&mut resumed, 1);
            assert_eq!(found[..], *std::slice::from_ref(expected), "{kind:?}, resumed at step {step}");
            assert_eq!(resumed.checkpoint(), *expected_state, "{kind:?}, resumed at step {step}");
        }
    }
}

macro_rules! every_kind {
    ($($name:ident: $kind:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            resume_from_every_step(Kind::$kind);
        })*

        /// The list above names every kind there is.
        #[test]
        fn every_kind_is_tested() {
            assert_eq!([$(Kind::$kind),*], ALL_KINDS);
        }
    };
}

every_kind! {
    jsonl: Jsonl,
    jsonl_zstd: JsonlZstd,
    jsonl_zstd_frames: JsonlZstdFrames,
    jsonl_zstd_seekable: JsonlZstdSeekable,
    jsonl_gzip: JsonlGzip,
    jsonl_gzip_members: JsonlGzipMembers,
    jsonl_xz: JsonlXz,
    jsonl_bzip2: JsonlBzip2,
    jsonl_lz4: JsonlLz4,
    text: Text,
    text_gzip: TextGzip,
    parquet: Parquet,
}

/// Shards of every kind in one source, finite, to the very end: a resume at the end delivers nothing more.
#[test]
fn mixed_kinds_to_the_end() {
    let mut corpus = Corpus::new();
    for (i, kind) in ALL_KINDS.into_iter().enumerate() {
        corpus = corpus.source(&format!("s{i:02}"), kind, 1, 30, 120, "max_epochs = 2");
    }
    let plan = corpus.plan(
        "lanes = 2\nblock_size = 40\nbatch_size = 3\n[shuffle]\nspan = 900\nwindow = 300\n[packing]\ntail = \"pad\"\n",
    );
    let mut whole = start(&plan, SERIAL, None).expect("a fresh run");
    let (batches, states) = take_all_with_states(&mut whole);
    assert!(batches.len() > 60, "{}", batches.len());
    for step in (0..states.len()).step_by(9).chain([states.len() - 2, states.len() - 1]) {
        let threads = if step % 2 == 0 { 3 } else { 0 };
        let mut resumed = start(&plan, How { threads, ..SERIAL }, Some(&states[step])).expect("the state fits");
        assert_eq!(take_all(&mut resumed), batches[step..], "resumed at step {step}");
    }
}

/// Several stops in a row, each from the last one's state, at changing world sizes: the global sequence of blocks is one.
#[test]
fn world_size_changes_at_each_resume() {
    let corpus = Corpus::new().source("web", Kind::JsonlZstd, 2, 120, 200, "weight = 0.7").source(
        "code",
        Kind::Parquet,
        9,
        120,
        100,
        "weight = 0.3",
    );
    let head = |batch_size: u32| {
        format!("lanes = 8\nblock_size = 32\nbatch_size = {batch_size}\n[shuffle]\nspan = 2000\nwindow = 500\n")
    };
    let expected = blocks(&take(&mut start(&corpus.plan(&head(8)), SERIAL, None).expect("a fresh run"), 40));
    let mut found = Vec::new();
    let mut state: Option<tokenmill::state::Checkpoint> = None;
    for (turn, world_size) in [8u32, 2, 4, 1, 8, 4].into_iter().enumerate() {
        let plan = corpus.plan(&head(8 / world_size));
        let (steps, mut parts, mut part_blocks) = (turn + 3, Vec::new(), Vec::new());
        for rank in 0..world_size {
            let how = How { rank, world_size, threads: (turn % 3) as u32, delays: None };
            let mut pipeline = start(&plan, how, state.as_ref()).expect("the state fits");
            part_blocks.extend(blocks(&take(&mut pipeline, steps)));
            parts.push((format!("rank {rank}"), stored(&pipeline.checkpoint())));
        }
        part_blocks.sort_by_key(|block| block.index);
        found.extend(part_blocks);
        state = Some(tokenmill::state::Checkpoint::union(parts).expect("the ranks cover all lanes once"));
    }
    assert_eq!(found, expected[..found.len()]);
}

/// A state is small, whatever the number of shards and however much was consumed.
#[test]
fn state_stays_small() {
    let corpus =
        Corpus::new().source("few", Kind::Jsonl, 1, 60, 100, "").source("many", Kind::Jsonl, 300, 600, 100, "");
    let plan = corpus.plan("lanes = 4\nblock_size = 64\nbatch_size = 4\n[shuffle]\nspan = 2000\nwindow = 500\n");
    let mut pipeline = start(&plan, SERIAL, None).expect("a fresh run");
    for _ in 0..4 {
        take(&mut pipeline, 60);
        let bytes = pipeline.checkpoint().to_bytes().len();
        assert!(bytes <= 1024 * 4 * 2, "{bytes} bytes for 4 lanes and 2 sources");
    }
    // One lane and one source, where what is said of the run as a whole weighs most.
    let plan = Corpus::new()
        .source("many", Kind::Jsonl, 50, 600, 100, "")
        .plan_and_keep("lanes = 1\nblock_size = 64\nbatch_size = 4\n");
    let mut pipeline = start(&plan.1, SERIAL, None).expect("a fresh run");
    take(&mut pipeline, 400);
    let bytes = pipeline.checkpoint().to_bytes().len();
    assert!(bytes <= 1024, "{bytes} bytes for one lane and source");
}

/// What may not change says so, all differences in one error; what may change goes on.
#[test]
fn what_may_change_and_what_not() {
    let corpus = Corpus::new().source("web", Kind::Jsonl, 2, 80, 120, "weight = 1.0").source(
        "code",
        Kind::Jsonl,
        2,
        80,
        120,
        "weight = 1.0",
    );
    let head = "lanes = 4\nblock_size = 32\nbatch_size = 4\n";
    let mut pipeline = start(&corpus.plan(head), SERIAL, None).expect("a fresh run");
    take(&mut pipeline, 5);
    let state = stored(&pipeline.checkpoint());
    let refuse = |head: &str, expected: &[&str]| {
        let error = start(&corpus.plan(head), SERIAL, Some(&state)).err().expect("another run").to_string();
        for words in expected {
            assert!(error.contains(words), "{error}");
        }
    };
    refuse(
        "seed = 1\nlanes = 4\nblock_size = 64\nbatch_size = 4\n",
        &["seed: found 1, expected 42", "block_size: found 64, expected 32"],
    );
    refuse("lanes = 8\nblock_size = 32\n", &["lanes: found 8, expected 4"]);
    refuse(&format!("{head}[packing]\ntail = \"pad\"\n"), &["packing"]);
    refuse(&format!("{head}[shuffle]\nwindow = 100\n"), &["shuffle"]);
    refuse(&format!("{head}[tokenizer]\npath = \"bytes\"\nappend_eos = false\n"), &["tokenizer", "\"bytes\""]);
    // Runtime options and batch size are no part of the stream.
    let plan = corpus.plan("lanes = 4\nblock_size = 32\nbatch_size = 2\n[runtime]\nthreads = 3\nmemory = \"1GiB\"\n");
    let again = blocks(&take(&mut start(&plan, SERIAL, Some(&state)).expect("it may change"), 6));
    assert_eq!(again, blocks(&take(&mut pipeline, 3)));
    // Changed data is an error that names the source.
    let shard = corpus.path("web").join("000.jsonl");
    let mut bytes = std::fs::read(&shard).expect("the shard is there");
    bytes.extend_from_slice(b"{\"text\":\"one more\"}\n");
    std::fs::write(&shard, bytes).expect("the shard is written");
    refuse(head, &["source \"web\", data: found 2 shards"]);
}

/// Other weights begin a stage: each source's own sequence of blocks goes on as if nothing had happened.
#[test]
fn new_weights_keep_each_source_in_order() {
    let base = |weights: (f64, f64)| {
        let (a, b) = (format!("weight = {}", weights.0), format!("weight = {}", weights.1));
        Corpus::new().source("a", Kind::Jsonl, 2, 100, 100, &a).source("b", Kind::JsonlGzip, 2, 100, 100, &b)
    };
    let head = "lanes = 4\nblock_size = 32\nbatch_size = 4\n";
    let (first, second) = (base((3.0, 1.0)), base((1.0, 3.0)));
    let sequence = |blocks: &[tokenmill::block::Block], source: u32| -> Vec<(u32, Vec<u32>)> {
        let mut by_lane: Vec<_> =
            blocks.iter().filter(|b| b.source == source).map(|b| (b.lane, b.index, b.input_ids.clone())).collect();
        by_lane.sort();
        by_lane.into_iter().map(|(lane, _, ids)| (lane, ids)).collect()
    };
    let mut pipeline = start(&first.plan(head), SERIAL, None).expect("a fresh run");
    let mut changed = take(&mut pipeline, 20);
    let state = stored(&pipeline.checkpoint());
    let mut resumed = start(&second.plan(head), SERIAL, Some(&state)).expect("weights may change");
    changed.extend(take(&mut resumed, 20));
    assert_eq!(resumed.checkpoint().mixture.len(), 2);
    assert_eq!(resumed.checkpoint().mixture[1].from_block, 20);
    let late = blocks(&changed[20..]);
    let share = late.iter().filter(|block| block.source == 1).count() as f64 / late.len() as f64;
    assert!((share - 0.75).abs() <= 4.0 / 80.0, "{share}");
    let unchanged = blocks(&take(&mut start(&first.plan(head), SERIAL, None).expect("a fresh run"), 60));
    for source in 0..2 {
        for lane in 0..4 {
            let of = |all: &[(u32, Vec<u32>)]| -> Vec<Vec<u32>> {
                all.iter().filter(|(l, _)| *l == lane).map(|(_, ids)| ids.clone()).collect()
            };
            let (changed, unchanged) = (of(&sequence(&blocks(&changed), source)), of(&sequence(&unchanged, source)));
            let both = changed.len().min(unchanged.len());
            assert!(both > 5);
            assert_eq!(changed[..both], unchanged[..both]);
        }
    }
}

/// Numbers that no run can have reached are refused when a checkpoint is read; they made a resume overflow (found by fuzzing).
#[test]
fn numbers_out_of_range_are_refused() {
    let corpus = Corpus::new().source("web", Kind::Jsonl, 2, 80, 120, "");
    let mut pipeline = start(&corpus.plan(HEAD), SERIAL, None).expect("a fresh run");
    take(&mut pipeline, 5);
    let sound: serde_json::Value = serde_json::from_slice(&pipeline.checkpoint().to_bytes()).expect("JSON");
    let check = |pointer: &str, number: u64| {
        let mut state = sound.clone();
        *state.pointer_mut(pointer).expect("the number is there") = number.into();
        let error = tokenmill::state::Checkpoint::parse(state.to_string().as_bytes()).expect_err(pointer);
        assert_eq!(error.kind(), tokenmill::error::ErrorKind::StateMismatch, "{pointer}");
    };
    check("/step", u64::MAX);
    check("/cursors/0/blocks", u64::MAX);
    for (key, number) in [("walk", 1 << 50), ("epoch", 1 << 31), ("window", 1 << 60), ("tokens", u64::MAX)] {
        check(&format!("/cursors/0/sources/web/{key}"), number);
    }
}
