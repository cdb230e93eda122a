//! The stream is a function of config, data, tokenizer and seed: not of threads, timing or the number of ranks.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokenmill::error::Result;
use tokenmill::pipeline::RunOptions;
use tokenmill::plan::Plan;
use tokenmill::storage::{Listed, LocalStore, Object, Store};

use crate::corpus::*;

const HEAD: &str = "lanes = 8\nblock_size = 64\nbatch_size = 8\n[shuffle]\nspan = 4000\nwindow = 900\n";

fn corpus() -> Corpus {
    Corpus::new()
        .source("a", Kind::Jsonl, 3, 300, 300, "weight = 5.0")
        .source("b", Kind::JsonlZstd, 1, 200, 200, "weight = 3.0")
        .source("c", Kind::Parquet, 35, 300, 200, "weight = 2.0")
}

/// 1, 2 and 8 threads, with and without random delays in the workers, against the serial driver.
#[test]
fn threads_and_delays_change_nothing() {
    let plan = corpus().plan_and_keep(HEAD);
    let expected = take(&mut start(&plan.1, SERIAL, None).expect("a fresh run"), 120);
    for threads in [1, 2, 8] {
        for delays in [None, Some(1), Some(2)] {
            let mut pipeline = start(&plan.1, How { threads, delays, ..SERIAL }, None).expect("a fresh run");
            for expected in &expected {
                assert_eq!(
                    take(&mut pipeline, 1),
                    std::slice::from_ref(expected),
                    "{threads} threads, delays {delays:?}"
                );
            }
        }
    }
}

/// World sizes 1, 2, 4 and 8 with 8 lanes: the same global batches, and the same once more.
#[test]
fn world_size_changes_nothing() {
    let corpus = corpus();
    let head = |batch_size: u32| HEAD.replace("batch_size = 8", &format!("batch_size = {batch_size}"));
    let expected = take(&mut start(&corpus.plan(&head(8)), SERIAL, None).expect("a fresh run"), 60);
    for world_size in [1u32, 2, 4, 8] {
        let plan = corpus.plan(&head(8 / world_size));
        let mut ranks: Vec<_> = (0..world_size)
            .map(|rank| start(&plan, How { rank, world_size, threads: 2, delays: None }, None).expect("a fresh run"))
            .collect();
        for expected in &expected {
            let mut global: Vec<_> = ranks.iter_mut().flat_map(|rank| blocks(&take(rank, 1))).collect();
            global.sort_by_key(|block| block.index);
            assert_eq!(global, expected.blocks, "world size {world_size}, step {}", expected.step);
        }
    }
}

/// Parts of a rank's lanes, as workers of a data loader have, deliver together what the rank does; lanes of others are refused.
#[test]
fn parts_of_a_rank_make_the_rank() {
    let plan = corpus().plan_and_keep(&HEAD.replace("batch_size = 8", "batch_size = 2"));
    let rank = How { rank: 1, world_size: 2, threads: 2, delays: None };
    let expected = take(&mut start(&plan.1, rank, None).expect("a fresh run"), 40);
    let part = |lanes: &[u32]| {
        start_with(&plan.1, rank, RunOptions { lanes: Some(lanes.to_vec()), ..RunOptions::default() }, None)
    };
    let mut parts = [part(&[1, 3]).expect("lanes of the rank"), part(&[5, 7]).expect("lanes of the rank")];
    for (number, expected) in expected.iter().enumerate() {
        assert_eq!(blocks(&take(&mut parts[number % 2], 1)), expected.blocks, "batch {number}");
    }
    for wrong in [&[1, 2][..], &[], &[3, 1], &[3, 3], &[9]] {
        let error = part(wrong).err().expect("not lanes of the rank, rising");
        assert!(error.to_string().contains("expected some of 1, 3, 5, 7"), "{error}");
    }
}

/// Over all ranks each record comes exactly once an epoch, for every kind of shard, shuffled or not.
#[test]
fn every_record_once_an_epoch() {
    for (enabled, world_size) in [(true, 2u32), (false, 1)] {
        let mut corpus = Corpus::new();
        for (i, kind) in ALL_KINDS.into_iter().enumerate() {
            corpus = corpus.source(&format!("s{i:02}"), kind, 1 + i as u64 % 3, 60, 150, "max_epochs = 2");
        }
        let plan = corpus.plan(&format!(
            "lanes = 2\nblock_size = 50\nbatch_size = 4\n[shuffle]\nenabled = {enabled}\nspan = 1500\nwindow = 300\n[packing]\ntail = \"pad\"\n"
        ));
        let mut all = Vec::new();
        for rank in 0..world_size {
            all.extend(blocks(&take_all(
                &mut start(&plan, How { rank, world_size, threads: 2, delays: None }, None).expect("a fresh run"),
            )));
        }
        let mut found: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for ((_, source), documents) in documents_by_lane(&all) {
            found.entry(source).or_default().extend(documents);
        }
        for (source, (name, documents)) in corpus.documents.iter().enumerate() {
            let mut expected = [documents.clone(), documents.clone()].concat();
            expected.sort();
            let mut found = found.remove(&(source as u32)).unwrap_or_default();
            found.sort();
            assert_eq!(found, expected, "source {name}, shuffle {enabled}");
        }
    }
}

/// The order differs from epoch to epoch and from seed to seed, and is that of the shard when shuffling is off.
#[test]
fn orders_differ_where_they_should() {
    let corpus = Corpus::new().source("a", Kind::Jsonl, 1, 200, 60, "max_epochs = 2");
    let run = |extra: &str| {
        let plan = corpus.plan(&format!("lanes = 1\nblock_size = 64\nbatch_size = 4\n{extra}"));
        documents_of(&blocks(&take_all(&mut start(&plan, SERIAL, None).expect("a fresh run"))))
    };
    let tail = "[packing]\ntail = \"pad\"\n";
    let shuffled = run(tail);
    assert_ne!(shuffled[..200], shuffled[200..]);
    assert_ne!(shuffled, run(&format!("seed = 43\n{tail}")));
    assert_eq!(shuffled, run(tail));
    let plain = run(&format!("[shuffle]\nenabled = false\n{tail}"));
    assert_eq!(plain[..200], corpus.documents["a"]);
    assert_eq!(plain[200..], corpus.documents["a"]);
}

/// Shares of the tokens follow the weights to within one block a lane, at every batch.
#[test]
fn shares_follow_the_weights() {
    let corpus = corpus();
    let plan = corpus.plan(HEAD);
    let mut pipeline = start(&plan, How { threads: 2, ..SERIAL }, None).expect("a fresh run");
    let mut given = [0f64; 3];
    for step in 1..=150 {
        for block in blocks(&take(&mut pipeline, 1)) {
            given[block.source as usize] += 1.0;
        }
        for (found, weight) in given.iter().zip([0.5, 0.3, 0.2]) {
            let error = found - weight * 8.0 * f64::from(step);
            assert!(error.abs() <= 8.0, "step {step}: {given:?}");
        }
    }
}

/// A store that lists what it has in the order in which it happens to have it, and another at each call.
#[derive(Debug, Default)]
struct Unsorted(AtomicU64);

impl Store for Unsorted {
    fn list(&self, patterns: &[String], base: &Path) -> Result<Vec<Listed>> {
        let mut listed = LocalStore.list(patterns, base)?;
        tokenmill::order::shuffle(&mut listed, self.0.fetch_add(1, Ordering::Relaxed));
        Ok(listed)
    }

    fn open(&self, location: &str) -> Result<Arc<dyn Object>> {
        LocalStore.open(location)
    }
}

/// The order in which a store lists its objects, and that of sources in the config, are not in the stream.
#[test]
fn order_of_a_listing_changes_nothing() {
    let corpus = corpus();
    let plan = corpus.plan(HEAD);
    let names: Vec<&str> = plan.sources[2].manifest.shards.iter().map(|shard| &*shard.name).collect();
    assert!(names.len() == 35 && names.is_sorted(), "{names:?}");
    let expected = take(&mut start(&plan, SERIAL, None).expect("a fresh run"), 40);
    let store = Arc::new(Unsorted::default());
    for round in 0..3 {
        let mut config = corpus.config(HEAD);
        config.source.rotate_left(round);
        let plan = Arc::new(Plan::with_store(&config, store.clone()).expect("the sources are there"));
        assert!(take(&mut start(&plan, SERIAL, None).expect("a fresh run"), 40) == expected, "round {round}");
    }
}
