//! What may change at a resume, and what may not: shards appended, sources added and removed, weights; everything else is one
//! error with all differences.
//!
//! Method: run to a state, change corpus or config, resume and keep the state after every batch; then resume from each of
//! those, with another driver, and compare. What was delivered is read back from the blocks and compared with what was written.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokenmill::block::{Batch, Block};
use tokenmill::plan::Plan;
use tokenmill::state::{Checkpoint, ShardStage};

use crate::corpus::*;

const HEAD: &str = "lanes = 4\nblock_size = 48\nbatch_size = 4\n[shuffle]\nspan = 1500\nwindow = 400\n";

/// A block with its source by name, since numbers change with the sources.
fn named(plan: &Plan, blocks: &[Block]) -> Vec<(String, Block)> {
    let name = |block: &Block| plan.sources[block.source as usize].name().to_owned();
    blocks.iter().map(|block| (name(block), Block { source: 0, ..block.clone() })).collect()
}

/// Ids of the blocks of each lane and source, in order.
fn sequences(blocks: &[(String, Block)]) -> BTreeMap<(String, u32), Vec<Vec<u32>>> {
    let mut all: BTreeMap<(String, u32), Vec<Vec<u32>>> = BTreeMap::new();
    for (name, block) in blocks {
        all.entry((name.clone(), block.lane)).or_default().push(block.input_ids.clone());
    }
    all
}

/// Runs `steps` batches, keeping the state before each and after the last.
fn run_keeping_states(plan: &Arc<Plan>, from: Option<&Checkpoint>, steps: usize) -> (Vec<Batch>, Vec<Checkpoint>) {
    let mut pipeline = start(plan, SERIAL, from).expect("the state fits");
    let mut states = vec![stored(&pipeline.checkpoint())];
    let mut batches = Vec::new();
    for _ in 0..steps {
        let batch = take(&mut pipeline, 1);
        if batch.is_empty() {
            break;
        }
        batches.extend(batch);
        states.push(stored(&pipeline.checkpoint()));
    }
    (batches, states)
}

/// From each of `states` a resume gives the rest of `batches`; every third runs ahead on threads with random delays.
fn resumes_exactly(plan: &Arc<Plan>, batches: &[Batch], states: &[Checkpoint], what: &str) {
    for (step, state) in states.iter().enumerate() {
        let threads = if step % 3 == 0 { 3 } else { 0 };
        let how = How { threads, delays: (step % 6 == 0).then_some(step as u64), ..SERIAL };
        let count = if step % 9 == 0 { batches.len() } else { 5 };
        let mut resumed = start(plan, how, Some(state)).unwrap_or_else(|e| panic!("{what}, step {step}: {e}"));
        for (i, expected) in batches.iter().enumerate().skip(step).take(count) {
            let found = take(&mut resumed, 1);
            assert!(found == std::slice::from_ref(expected), "{what}: batch {i} after a resume at step {step}");
        }
    }
}

/// Documents by epoch of their first token, over the blocks.
fn by_epoch(blocks: &[Block]) -> BTreeMap<u32, Vec<String>> {
    let mut lanes: BTreeMap<u32, Vec<&Block>> = BTreeMap::new();
    for block in blocks {
        lanes.entry(block.lane).or_default().push(block);
    }
    let mut epochs: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for blocks in lanes.values() {
        let mut open: Vec<u8> = Vec::new();
        for block in blocks {
            for (range, segment) in block.segment_ranges() {
                for &id in &block.input_ids[range] {
                    match u8::try_from(id) {
                        Ok(byte) => open.push(byte),
                        Err(_) => {
                            let text = String::from_utf8(std::mem::take(&mut open)).expect("the documents are UTF-8");
                            epochs.entry(segment.place.epoch).or_default().push(text);
                        }
                    }
                }
            }
        }
    }
    epochs.values_mut().for_each(|documents| documents.sort());
    epochs
}

fn sorted(documents: &[String]) -> Vec<String> {
    let mut documents = documents.to_vec();
    documents.sort();
    documents
}

/// Appended shards: each epoch delivers exactly the shards of its stage, over all lanes, and every state on the way resumes
/// exactly, for shards that can be seeked and others, and where the number of groups changes with the number of shards.
#[test]
fn appended_shards_come_at_one_epoch() {
    for (kind, appended) in [(Kind::Jsonl, 2u64), (Kind::JsonlGzip, 2), (Kind::JsonlGzip, 18), (Kind::Parquet, 18)] {
        let what = format!("{kind:?}, {appended} appended");
        let mut corpus = Corpus::new().source("a", kind, 2, 60, 120, "max_epochs = 5\non_new_shards = \"next_epoch\"");
        let head = HEAD.replace("block_size = 48", "block_size = 25") + "[packing]\ntail = \"pad\"\n";
        let old = sorted(&corpus.documents["a"]);
        let (mut all, states) = run_keeping_states(&corpus.plan(&head), None, 45);
        let state = states.last().expect("states");
        let epochs: Vec<u32> = state.cursors.iter().map(|lane| lane.sources["a"].cursor.place.epoch).collect();
        let last = *epochs.iter().max().expect("lanes");
        assert!(last < 3, "{what}: {epochs:?}");
        for shard in 0..appended {
            corpus.append("a", &format!("1{shard:02}"), kind, 12, 120);
        }
        let plan = corpus.plan(&head);
        let (rest, states) = run_keeping_states(&plan, Some(state), 1 << 20);
        let stages =
            [ShardStage { from_epoch: 0, shards: 2 }, ShardStage { from_epoch: last + 1, shards: 2 + appended }];
        assert_eq!(states[0].shard_stages["a"], stages, "{what}");
        all.extend(rest.clone());
        let found = by_epoch(&blocks(&all));
        let new = sorted(&corpus.documents["a"]);
        for epoch in 0..5 {
            let expected = if epoch <= last { &old } else { &new };
            assert!(found[&epoch] == *expected, "{what}, epoch {epoch}");
        }
        resumes_exactly(&plan, &rest, &states, &what);
        // Once all lanes are past the change, the state forgets it.
        let end = start(&plan, SERIAL, states.last()).expect("the state fits").checkpoint();
        assert!(end.shard_stages.is_empty(), "{what}: {:?}", end.shard_stages);
    }
}

/// Appended twice, before any lane has reached the first change and after some have; ranks change on the way. The state keeps
/// a stage for each number of shards that a lane may need.
#[test]
fn shards_may_be_appended_again_and_again() {
    let extra = "max_epochs = 7\non_new_shards = \"next_epoch\"";
    let mut corpus = Corpus::new().source("a", Kind::JsonlGzip, 3, 40, 90, extra);
    let head = |batch_size: u32| {
        HEAD.replace("batch_size = 4", &format!("batch_size = {batch_size}")) + "[packing]\ntail = \"pad\"\n"
    };
    let mut documents: Vec<(u32, Vec<String>)> = vec![(0, sorted(&corpus.documents["a"]))];
    let mut state: Option<Checkpoint> = None;
    let mut all = Vec::new();
    for (turn, world_size) in [1u32, 2, 4, 1, 2, 1].into_iter().enumerate() {
        if turn > 0 {
            corpus.append("a", &format!("{turn}00"), Kind::JsonlGzip, 8, 90);
            let most = |lane: &tokenmill::state::LaneState| lane.sources["a"].cursor.place.epoch;
            let from_epoch = state.as_ref().expect("a state").cursors.iter().map(most).max().expect("lanes") + 1;
            documents.retain(|(epoch, _)| *epoch < from_epoch);
            documents.push((from_epoch, sorted(&corpus.documents["a"])));
        }
        let plan = corpus.plan(&head(4 / world_size));
        let steps = if turn == 5 { 1 << 20 } else { [4, 16, 3, 25, 9][turn] };
        let mut parts = Vec::new();
        for rank in 0..world_size {
            let how = How { rank, world_size, threads: (turn % 3) as u32, delays: Some(turn as u64) };
            let mut pipeline = start(&plan, how, state.as_ref()).expect("the state fits");
            all.extend(blocks(&take(&mut pipeline, steps)));
            parts.push((format!("rank {rank}"), stored(&pipeline.checkpoint())));
        }
        let whole = Checkpoint::union(parts).expect("the ranks cover all lanes once");
        let stages = whole.shard_stages.get("a").map_or(1, Vec::len);
        assert!(stages <= 4, "{stages} stages in turn {turn}");
        state = Some(whole);
    }
    all.sort_by_key(|block| (block.lane, block.index));
    let found = by_epoch(&all);
    assert_eq!(found.len(), 7);
    for (epoch, found) in found {
        let (_, expected) = documents.iter().rfind(|(from, _)| *from <= epoch).expect("the first is from 0");
        assert!(found == *expected, "epoch {epoch}");
    }
    assert!(documents.len() > 3, "several changes were seen");
}

/// A part of a run's lanes can't know which epoch no lane has reached.
#[test]
fn appending_needs_all_lanes() {
    let mut corpus = Corpus::new().source("a", Kind::Jsonl, 2, 60, 120, "on_new_shards = \"next_epoch\"");
    let mut pipeline = start(&corpus.plan(HEAD), How { rank: 1, world_size: 2, ..SERIAL }, None).expect("a fresh run");
    take(&mut pipeline, 3);
    let state = stored(&pipeline.checkpoint());
    corpus.append("a", "100", Kind::Jsonl, 12, 120);
    let how = How { rank: 1, world_size: 2, ..SERIAL };
    let error = start(&corpus.plan(HEAD), how, Some(&state)).err().expect("lanes are missing").to_string();
    assert!(error.contains("lacks lanes 0, 2") && error.contains("\"a\""), "{error}");
}

/// Every other change of a source's shards is refused, and the error says about where and what.
#[test]
fn other_changes_of_shards_are_refused() {
    let check = |change: &dyn Fn(&mut Corpus), words: &[&str]| {
        for mode in ["error", "next_epoch"] {
            let extra = format!("on_new_shards = \"{mode}\"");
            let mut corpus = Corpus::new().source("a", Kind::Jsonl, 20, 60, 120, &extra);
            let mut pipeline = start(&corpus.plan(HEAD), SERIAL, None).expect("a fresh run");
            take(&mut pipeline, 3);
            let state = stored(&pipeline.checkpoint());
            change(&mut corpus);
            let error = start(&corpus.plan(HEAD), SERIAL, Some(&state)).err().expect("the data changed");
            assert_eq!(error.kind(), tokenmill::error::ErrorKind::StateMismatch);
            let text = error.to_string();
            for word in words.iter().copied().chain(["source \"a\", data: found ", "expected 20 of "]) {
                assert!(text.contains(word), "{word}: {text}");
            }
        }
    };
    let path = |corpus: &Corpus, name: &str| corpus.path("a").join(name);
    // Numbers 8 and 9 are the fourth eighth of 20.
    check(
        &|c| std::fs::write(path(c, "009.jsonl"), "{\"text\":\"x\"}\n").expect("written"),
        &["found 20 shards", "a size changed", "from \"008.jsonl\" to \"009.jsonl\" (numbers 8 to 9"],
    );
    check(
        &|c| std::fs::rename(path(c, "009.jsonl"), path(c, "009b.jsonl")).expect("renamed"),
        &["found 20 shards", "a name changed", "from \"008.jsonl\" to \"009b.jsonl\""],
    );
    check(
        &|c| std::fs::remove_file(path(c, "009.jsonl")).expect("removed"),
        &["found 19 shards", "are gone", "from \"008.jsonl\" to \"010.jsonl\""],
    );
    check(
        &|c| std::fs::remove_file(path(c, "019.jsonl")).expect("removed"),
        &["found 19 shards", "are gone", "\"018.jsonl\""],
    );
    check(
        &|c| c.append("a", "004b", Kind::Jsonl, 3, 50),
        &["found 21 shards", "don't sort after", "from \"004b.jsonl\" to \"006.jsonl\""],
    );
    // Appended and something else besides is something else.
    check(
        &|c| {
            c.append("a", "900", Kind::Jsonl, 3, 50);
            std::fs::remove_file(path(c, "000.jsonl")).expect("removed");
        },
        &["found 20 shards", "from \"001.jsonl\" to \"003.jsonl\""],
    );
}

/// Without `on_new_shards` appended shards are refused, and the error names them and the key.
#[test]
fn appended_shards_are_refused_by_default() {
    let mut corpus = Corpus::new().source("a", Kind::Jsonl, 2, 60, 120, "");
    let mut pipeline = start(&corpus.plan(HEAD), SERIAL, None).expect("a fresh run");
    take(&mut pipeline, 3);
    let state = stored(&pipeline.checkpoint());
    corpus.append("a", "100", Kind::Jsonl, 12, 120);
    let error = start(&corpus.plan(HEAD), SERIAL, Some(&state)).err().expect("the data changed").to_string();
    for words in ["found 3 shards", "expected 2 of", "the last 1 were appended, from \"100.jsonl\" on", "on_new_shards"]
    {
        assert!(error.contains(words), "{error}");
    }
}

/// Sources come and go, weights change, in one resume and again in the next: the others' own blocks go on unchanged, a new source
/// starts from its beginning, one that was away as well; every state on the way resumes exactly.
#[test]
fn sources_come_and_go() {
    let mut corpus = Corpus::new();
    for (name, kind) in [("a", Kind::Jsonl), ("b", Kind::JsonlGzip), ("c", Kind::Parquet), ("d", Kind::JsonlZstdFrames)]
    {
        corpus = corpus.source(name, kind, 2, 90, 120, "weight = 1.0");
    }
    let plan = |sources: &[&str], overrides: &[&str]| {
        Arc::new(Plan::new(&corpus.config_of(HEAD, sources, overrides)).expect("the sources are there"))
    };
    let turns: [(&[&str], &[&str]); 6] = [
        (&["a", "b", "c"], &[]),
        // One goes, one comes.
        (&["a", "b", "d"], &[]),
        // Only weights; and runtime options, which are no stage of their own.
        (&["a", "b", "d"], &["source.a.weight=3", "runtime.threads=2", "runtime.memory=1GiB"]),
        // Back again, after it was forgotten.
        (&["a", "c", "d"], &["source.a.weight=3"]),
        (&["a", "c", "d"], &["source.a.weight=3", "batch_size=2"]),
        (&["c"], &[]),
    ];
    let stages = [1usize, 2, 3, 4, 4, 5];
    // What each source gives a lane when nothing ever changes.
    let mut alone = BTreeMap::new();
    for name in ["a", "b", "c", "d"] {
        let plan = plan(&[name], &[]);
        let run = take(&mut start(&plan, SERIAL, None).expect("a fresh run"), 120);
        alone.extend(sequences(&named(&plan, &blocks(&run))));
    }
    let mut state: Option<Checkpoint> = None;
    let mut given: BTreeMap<(String, u32), usize> = BTreeMap::new();
    for (turn, (sources, overrides)) in turns.into_iter().enumerate() {
        let plan = plan(sources, overrides);
        given.retain(|(name, _), _| sources.contains(&name.as_str()));
        let (batches, states) = run_keeping_states(&plan, state.as_ref(), 18);
        for ((name, lane), found) in sequences(&named(&plan, &blocks(&batches))) {
            let before = given.entry((name.clone(), lane)).or_default();
            let expected = &alone[&(name.clone(), lane)][*before..*before + found.len()];
            assert!(found == expected, "turn {turn}: source {name} in lane {lane}");
            *before += found.len();
        }
        assert_eq!(states[0].mixture.len(), stages[turn], "turn {turn}: {:?}", states[0].mixture);
        let weights: Vec<&String> = states[0].mixture.last().expect("a stage").weights.keys().collect();
        assert_eq!(weights, sources, "turn {turn}");
        // Shares follow the weights from the change on.
        let sum: u64 = plan.weights().iter().sum();
        for source in &plan.sources {
            let found =
                blocks(&batches).iter().filter(|b| plan.sources[b.source as usize].name() == source.name()).count();
            let share = source.weight as f64 / sum as f64 * blocks(&batches).len() as f64;
            assert!((found as f64 - share).abs() <= 4.0, "turn {turn}, {}: {found}, expected {share}", source.name());
        }
        resumes_exactly(&plan, &batches, &states, &format!("turn {turn}"));
        state = states.last().cloned();
    }
}

/// A source added to a run that has ended in some lanes or all: those go on from where they ended, and catch up; states in
/// between are whole.
#[test]
fn ended_lanes_go_on_with_a_new_source() {
    let corpus = Corpus::new().source("a", Kind::Jsonl, 1, 40, 300, "max_epochs = 1\nweight = 1.0").source(
        "b",
        Kind::Jsonl,
        2,
        90,
        120,
        "weight = 1.0",
    );
    let plan = |sources: &[&str]| Arc::new(Plan::new(&corpus.config_of(HEAD, sources, &[])).expect("sources"));
    let (_, states) = run_keeping_states(&plan(&["a"]), None, 1 << 20);
    for state in [states.last().expect("states"), &states[states.len() - 3]] {
        let counts: Vec<u64> = state.cursors.iter().map(|lane| lane.blocks).collect();
        assert!(counts.iter().max() > counts.iter().min().map(|n| n + 1).as_ref(), "lanes lie apart: {counts:?}");
        let both = plan(&["a", "b"]);
        let (batches, states) = run_keeping_states(&both, Some(state), 30);
        assert_eq!(batches.len(), 30);
        assert!(states[0].mixture[1].apart);
        resumes_exactly(&both, &batches, &states, "after the end");
        // Two ranks deliver the same number of blocks a step, so they stay apart, and what each lane gives is the same.
        let expected = sequences(&named(&both, &blocks(&batches)));
        let config = corpus.config_of(HEAD, &["a", "b"], &["batch_size=2"]);
        let (half, mut state, mut all) = (Arc::new(Plan::new(&config).expect("sources")), state.clone(), Vec::new());
        for steps in [9, 40, 3] {
            let mut parts = Vec::new();
            for rank in 0..2 {
                let how = How { rank, world_size: 2, ..SERIAL };
                let mut pipeline = start(&half, how, Some(&state)).expect("the state fits");
                all.extend(blocks(&take(&mut pipeline, steps)));
                parts.push((format!("rank {rank}"), stored(&pipeline.checkpoint())));
            }
            state = Checkpoint::union(parts).expect("the ranks cover all lanes once");
        }
        let found = sequences(&named(&half, &all));
        for (lane, expected) in expected {
            let both = expected.len().min(found[&lane].len());
            assert!(both > 0 && found[&lane][..both] == expected[..both], "{lane:?}");
        }
    }
}

/// Stages of weights are kept for the last 16 changes, so the state stays small.
#[test]
fn stages_of_weights_are_bounded() {
    let corpus = Corpus::new().source("a", Kind::Jsonl, 2, 90, 120, "weight = 1.0").source(
        "b",
        Kind::Jsonl,
        2,
        90,
        120,
        "weight = 1.0",
    );
    let mut state: Option<Checkpoint> = None;
    for turn in 0..40 {
        let weight = format!("source.a.weight={}", turn + 1);
        let config = corpus.config_of(HEAD, &["a", "b"], &[&weight]);
        let plan = Arc::new(Plan::new(&config).expect("the sources are there"));
        let mut pipeline = start(&plan, SERIAL, state.as_ref()).expect("the state fits");
        take(&mut pipeline, 2);
        state = Some(stored(&pipeline.checkpoint()));
    }
    let state = state.expect("a state");
    assert_eq!((state.mixture.len(), state.mixture[15].from_block), (16, 78));
}

/// Parts of different moments: lanes that don't stand at one place of the global order are refused, and named.
#[test]
fn parts_of_different_moments_are_refused() {
    let corpus = Corpus::new().source("a", Kind::Jsonl, 2, 90, 120, "");
    let plan = corpus.plan(HEAD);
    let part = |rank: u32, steps: usize| {
        let mut pipeline = start(&plan, How { rank, world_size: 2, ..SERIAL }, None).expect("a fresh run");
        take(&mut pipeline, steps);
        stored(&pipeline.checkpoint())
    };
    let union = |parts: Vec<Checkpoint>| {
        Checkpoint::union(parts.into_iter().enumerate().map(|(i, part)| (format!("part{i}"), part)).collect())
    };
    let error = union(vec![part(0, 5), part(1, 6)]).expect_err("different steps").to_string();
    assert!(error.contains("part0 is of step 5, expected 6 as in part1"), "{error}");
    let error = union(vec![part(0, 5), part(0, 5)]).expect_err("the same lanes").to_string();
    for words in ["lanes 0, 2 are in part0 and in part1", "2 of 4 lanes are not covered: 1, 3", "found part0, part1"] {
        assert!(error.contains(words), "{error}");
    }
    let error = union(vec![part(1, 5)]).expect_err("half of it").to_string();
    assert!(error.contains("2 of 4 lanes are not covered: 0, 2"), "{error}");
    assert_eq!(Checkpoint::join(vec![("part".into(), part(1, 5))]).expect("a part is enough").cursors.len(), 2);
    // A step number proves nothing: the lanes themselves are compared.
    let mut late = part(1, 6);
    late.step = 5;
    let whole = union(vec![part(0, 5), late]).expect("the steps agree");
    let error = start(&plan, SERIAL, Some(&whole)).err().expect("different moments").to_string();
    assert!(error.contains("10 blocks in lanes 0, 2; 12 blocks in lanes 1, 3, expected 10 or 11"), "{error}");
    let whole = union(vec![part(1, 5), part(0, 5)]).expect("in any order");
    assert_eq!(blocks(&take(&mut start(&plan, SERIAL, Some(&whole)).expect("it fits"), 1))[0].index, 40);
}
