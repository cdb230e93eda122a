//! Damaged shards with `errors.bad_record = "skip"`: what can be read is delivered, what is lost is counted once, and stops,
//! threads and ranks still don't show.
//!
//! Method: damage shards of every kind at random places; run serially; run again on threads, on two ranks, and from the
//! state after each step, and compare blocks and counts. The seed is in the message.

use std::collections::BTreeMap;

use tokenmill::block::Block;
use tokenmill::error::{Error, ErrorKind};
use tokenmill::packing::Totals;
use tokenmill::state::Checkpoint;

use crate::corpus::*;

const SKIP: &str = "[errors]\nbad_record = \"skip\"\n[packing]\ntail = \"pad\"\n";

/// A run to its end or its error, with the state and the counts after each batch.
struct Whole {
    blocks: Vec<Vec<Block>>,
    states: Vec<Checkpoint>,
    totals: Vec<Totals>,
    end: Option<Error>,
    places: Vec<Error>,
}

fn run(plan: &std::sync::Arc<tokenmill::plan::Plan>, how: How, from: Option<&Checkpoint>) -> Whole {
    let mut pipeline = start(plan, how, from).expect("the state fits");
    let totals = |pipeline: &tokenmill::pipeline::Pipeline| {
        let mut sum = Totals::default();
        pipeline.stats().iter().for_each(|stats| sum.add(&stats.totals));
        sum
    };
    let mut whole = Whole {
        blocks: Vec::new(),
        states: vec![stored(&pipeline.checkpoint())],
        totals: vec![totals(&pipeline)],
        end: None,
        places: Vec::new(),
    };
    loop {
        match pipeline.next_batch() {
            Ok(Some(batch)) => whole.blocks.push(batch.blocks),
            Ok(None) => break,
            Err(error) => {
                whole.end = Some(error);
                break;
            }
        }
        whole.states.push(stored(&pipeline.checkpoint()));
        whole.totals.push(totals(&pipeline));
    }
    // What ended the lanes without a block is in the last state.
    whole.states.push(stored(&pipeline.checkpoint()));
    whole.totals.push(totals(&pipeline));
    whole.places = pipeline.bad_records().to_vec();
    whole
}

fn last(whole: &Whole) -> Totals {
    *whole.totals.last().expect("there is a first one")
}

/// A corpus of one source whose shards are `kind`, the first one changed by `damage`.
fn damaged(kind: Kind, shards: u64, documents: u64, damage: impl FnOnce(&mut Vec<u8>)) -> Corpus {
    let corpus = Corpus::new().source("a", kind, shards, documents, 150, "max_epochs = 1");
    let mut paths: Vec<_> = std::fs::read_dir(corpus.path("a"))
        .expect("the source's folder")
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.sort();
    let mut bytes = std::fs::read(&paths[0]).expect("the shard");
    damage(&mut bytes);
    std::fs::write(&paths[0], bytes).expect("the shard is written");
    corpus
}

fn head(lanes: u32, batch_size: u32) -> String {
    format!("lanes = {lanes}\nblock_size = 40\nbatch_size = {batch_size}\n[shuffle]\nspan = 1500\nwindow = 400\n{SKIP}")
}

/// Everything else equals the serial run.
fn check_all_ways(corpus: &Corpus, lanes: u32, what: &str) -> Whole {
    let plan = corpus.plan(&head(lanes, 1));
    let whole = run(&plan, SERIAL, None);
    for (threads, delays) in [(1, None), (3, Some(7))] {
        let parallel = run(&plan, How { threads, delays, ..SERIAL }, None);
        assert!(parallel.blocks == whole.blocks, "{what}: {threads} threads");
        let ends = (&parallel.end, &whole.end);
        assert_eq!(parallel.end.as_ref().map(Error::kind), whole.end.as_ref().map(Error::kind), "{what}: {ends:?}");
        assert_eq!(parallel.totals, whole.totals, "{what}: {threads} threads");
    }
    for step in 0..whole.states.len() - 1 {
        let how = How { threads: if step % 4 == 1 { 2 } else { 0 }, ..SERIAL };
        let resumed = run(&plan, how, Some(&whole.states[step]));
        assert!(resumed.blocks == whole.blocks[step..], "{what}: resumed at step {step}");
        assert_eq!(resumed.totals, whole.totals[step..], "{what}: resumed at step {step}");
        assert_eq!(resumed.end.map(|e| e.kind()), whole.end.as_ref().map(Error::kind), "{what}: step {step}");
    }
    if whole.end.is_none() && lanes.is_multiple_of(2) {
        let mut sum = Totals::default();
        let mut found: Vec<Block> = Vec::new();
        for rank in 0..2 {
            let part = run(&plan, How { rank, world_size: 2, threads: 2, delays: None }, None);
            sum.add(&last(&part));
            found.extend(part.blocks.into_iter().flatten());
        }
        found.sort_by_key(|block| block.index);
        let mut expected: Vec<Block> = whole.blocks.iter().flatten().cloned().collect();
        expected.sort_by_key(|block| block.index);
        assert!(found == expected, "{what}: two ranks");
        assert_eq!(sum, last(&whole), "{what}: two ranks count as one");
    }
    whole
}

/// The documents delivered, all lanes.
fn delivered(whole: &Whole) -> Vec<String> {
    let blocks: Vec<Block> = whole.blocks.iter().flatten().cloned().collect();
    documents_by_lane(&blocks).into_values().flatten().collect()
}

/// Bytes overwritten at random places in shards of every compressed kind: all ways of running agree.
#[test]
fn damage_is_the_same_for_all() {
    let kinds = ALL_KINDS.into_iter().filter(|kind| !matches!(kind, Kind::Jsonl | Kind::Text));
    let mut parts: BTreeMap<String, u64> = BTreeMap::new();
    for kind in kinds {
        for seed in 0..8 {
            let what = format!("{kind:?}, seed {seed}");
            let corpus = damaged(kind, 1 + seed % 3, 70, |bytes| {
                let at = random(seed, 1, bytes.len() as u64) as usize;
                match seed % 4 {
                    0 => bytes[at] ^= 1 << random(seed, 2, 8),
                    1 => bytes.truncate(at),
                    2 => {
                        let end = (at + 40).min(bytes.len());
                        bytes[at..end].fill(0);
                    }
                    _ => {
                        for turn in 0..3 {
                            let at = random(seed, 3 + turn, bytes.len() as u64) as usize;
                            bytes[at] = !bytes[at];
                        }
                    }
                }
            });
            let whole = check_all_ways(&corpus, [1, 2, 3, 4][seed as usize / 2], &what);
            if let Some(error) = &whole.end {
                assert_eq!(error.kind(), ErrorKind::TooFewRecords, "{what}: {error}");
            }
            *parts.entry(format!("{kind:?}")).or_default() += last(&whole).skipped_parts;
        }
    }
    assert!(parts.values().all(|&parts| parts > 0), "every kind lost something: {parts:?}");
}

/// One damaged frame of many: the records around it come, in the order of the shard, and one part is counted.
#[test]
fn a_damaged_frame_costs_its_records() {
    for kind in [Kind::JsonlZstdFrames, Kind::JsonlZstdSeekable] {
        for lanes in [1, 2, 40] {
            // Many lanes make a stream of a shard that has fewer frames than they need.
            let corpus = damaged(kind, 2, 300, |bytes| {
                // The 20th frame's content: behind its header, and before the next frame's.
                let starts: Vec<usize> =
                    memchr_all(bytes, &[0x28, 0xb5, 0x2f, 0xfd]).into_iter().chain([bytes.len()]).collect();
                let (start, end) = (starts[20], starts[21]);
                bytes[start + 16..end - 8].fill(0x55);
            });
            let what = format!("{kind:?}, {lanes} lanes");
            let whole = if lanes < 40 {
                check_all_ways(&corpus, lanes, &what)
            } else {
                let plan = corpus.plan(&head(lanes, 1));
                let (serial, parallel) = (run(&plan, SERIAL, None), run(&plan, How { threads: 2, ..SERIAL }, None));
                assert!(serial.blocks == parallel.blocks && serial.totals == parallel.totals, "{what}");
                serial
            };
            assert!(whole.end.is_none(), "{what}: {:?}", whole.end);
            let found = delivered(&whole);
            let lost = 300 - found.len();
            assert!((1..=8).contains(&lost), "{what}: lost {lost} documents");
            assert!(found.iter().all(|text| corpus.documents["a"].contains(text)), "{what}");
            let distinct: std::collections::BTreeSet<&String> = found.iter().collect();
            assert_eq!(distinct.len(), found.len(), "{what}: none comes twice");
            assert_eq!((last(&whole).skipped_parts, last(&whole).skipped), (1, 0), "{what}");
            let place = whole.places[0].to_string();
            for word in ["corrupt shard", "passed over up to the record after byte", "/a/000", "byte "] {
                assert!(place.contains(word), "{what}: {place}");
            }
        }
    }
}

fn memchr_all(bytes: &[u8], magic: &[u8]) -> Vec<usize> {
    bytes.windows(magic.len()).enumerate().filter(|(_, window)| *window == magic).map(|(at, _)| at).collect()
}

/// A damaged value costs the rest of its row group, and a damaged dictionary all of it.
#[test]
fn a_damaged_page_costs_its_row_group() {
    for (dictionary, first, lanes) in [(false, 31, 1), (false, 31, 2), (true, 27, 1), (true, 27, 2)] {
        let documents: Vec<String> = (0..90).map(|i| document("a", i, 150)).collect();
        let texts: Vec<&str> = documents.iter().map(String::as_str).collect();
        let properties = parquet::file::properties::WriterProperties::builder().set_dictionary_enabled(dictionary);
        let corpus = damaged(Kind::Parquet, 1, 90, |bytes| {
            *bytes = parquet_bytes_with(&texts, 9, properties.build().into());
            // The length before the text.
            let at = memchr_all(bytes, b"a#31:")[0];
            bytes[at - 4..at].fill(0x7f);
        });
        let whole = check_all_ways(&corpus, lanes, &format!("{lanes} lanes"));
        assert!(whole.end.is_none(), "{:?}", whole.end);
        let mut found = delivered(&whole);
        let mut expected: Vec<String> = corpus.documents["a"].clone();
        // Row groups are of nine rows; 31 is in 27 to 35.
        expected.drain(first..36);
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
        assert_eq!(last(&whole).skipped_parts, 1);
        let place = &whole.places[0];
        assert_eq!(place.place().record, Some(first as u64), "{place}");
        assert!(place.detail().contains(&format!("rows {first} to 35 are passed over")), "{place}");
    }
}

/// A shard that can't be entered loses its rest, for all lanes that share it, and counts once.
#[test]
fn a_damaged_stream_loses_its_rest() {
    for kind in [Kind::JsonlZstd, Kind::JsonlGzip, Kind::JsonlXz, Kind::JsonlBzip2, Kind::JsonlLz4, Kind::TextGzip] {
        let corpus = damaged(kind, 2, 160, |bytes| bytes.truncate(bytes.len() * 3 / 4));
        for lanes in [1, 4] {
            let what = format!("{kind:?}, {lanes} lanes");
            let whole = check_all_ways(&corpus, lanes, &what);
            assert!(whole.end.is_none(), "{what}: {:?}", whole.end);
            assert_eq!(last(&whole).skipped_parts, 1, "{what}");
            assert!(whole.places[0].detail().contains("the rest is passed over"), "{what}: {}", whole.places[0]);
            let found = delivered(&whole);
            assert!(found.len() >= 80 && found.len() < 160, "{what}: {} documents", found.len());
            assert!(found.iter().all(|text| corpus.documents["a"].contains(text)), "{what}");
        }
    }
}

/// A shard that can't be opened is passed over and counted, or is the error; so is one part too many.
#[test]
fn unreadable_shards_are_passed_over() {
    for (name, bytes, words) in [
        ("garbage.parquet", &b"this is no parquet"[..], "PAR1"),
        ("short.parquet", b"PAR1", "parquet"),
        ("noise", b"\x00\x01\x02\x03", "format"),
        ("utf16.txt", b"\xff\xfea\0", "UTF-16"),
    ] {
        let corpus = Corpus::new().source("a", Kind::Jsonl, 2, 60, 100, "max_epochs = 1");
        std::fs::write(corpus.path("a").join(name), bytes).expect("the shard is written");
        for lanes in [1, 2] {
            let whole = check_all_ways(&corpus, lanes, name);
            assert!(whole.end.is_none(), "{name}: {:?}", whole.end);
            assert_eq!((last(&whole).skipped_parts, delivered(&whole).len()), (1, 60), "{name}");
            let place = whole.places[0].to_string();
            assert!(place.contains(words) && place.contains(name) && place.contains("passed over"), "{place}");
        }
        let fails = head(1, 1).replace("\"skip\"", "\"fail\"");
        let end = run(&corpus.plan(&fails), SERIAL, None).end.expect("an error");
        assert!(end.to_string().contains(words), "{end}");
        let limited = head(1, 1).replace("[packing]", "max_bad_records = 0\n[packing]");
        let end = run(&corpus.plan(&limited), SERIAL, None).end.expect("an error");
        assert_eq!(end.kind(), ErrorKind::Limit, "{end}");
        assert!(end.to_string().contains(name), "{end}");
    }
}

/// Without `skip`, damage is an error with shard, record and byte in both drivers, after every window before it.
#[test]
fn damage_fails_with_its_place() {
    for kind in [
        Kind::JsonlZstd,
        Kind::JsonlZstdFrames,
        Kind::JsonlZstdSeekable,
        Kind::JsonlGzip,
        Kind::JsonlXz,
        Kind::JsonlBzip2,
        Kind::JsonlLz4,
        Kind::Parquet,
    ] {
        let corpus = damaged(kind, 1, 3000, |bytes| {
            let at = bytes.len() / 2;
            match kind {
                Kind::Parquet => {
                    let at = memchr_all(bytes, b"a#1500:")[0];
                    bytes[at - 4..at].fill(0x7f);
                }
                // Their checksums come after what they are of, if there are any.
                Kind::JsonlGzip | Kind::JsonlBzip2 | Kind::JsonlLz4 => bytes.truncate(at),
                _ => bytes[at..at + 60].fill(0x55),
            }
        });
        let head =
            "lanes = 1\nblock_size = 40\nbatch_size = 1\n[shuffle]\nenabled = false\nspan = 1500\nwindow = 400\n";
        let plan = corpus.plan(head);
        let whole = run(&plan, SERIAL, None);
        let parallel = run(&plan, How { threads: 2, ..SERIAL }, None);
        let error = whole.end.as_ref().unwrap_or_else(|| panic!("{kind:?}: no error"));
        assert_eq!(parallel.end.as_ref().map(Error::to_string), Some(error.to_string()));
        assert!(parallel.blocks == whole.blocks, "{kind:?}");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{kind:?}: {error}");
        let place = error.place();
        assert!(place.shard.as_deref().is_some_and(|shard| shard.contains("/a/000")), "{kind:?}: {error}");
        let record = place.record.unwrap_or_else(|| panic!("{kind:?}: no record: {error}"));
        assert_eq!(place.byte.is_some(), kind != Kind::Parquet, "{kind:?}: {error}");
        let found = delivered(&whole).len() as u64;
        // All but the window in which the damage lies, and the block that isn't full.
        assert!(found <= record && record <= found + 12, "{kind:?}: {found} documents before: {error}");
    }
}

/// A record that is too large is never passed over.
#[test]
fn limits_are_not_skipped() {
    let corpus = Corpus::new().source("a", Kind::Jsonl, 1, 20, 100, "max_epochs = 1");
    let path = corpus.path("a").join("000.jsonl");
    let mut bytes = std::fs::read(&path).expect("the shard");
    bytes.extend(format!("{{\"text\":\"{}\"}}\n", "x".repeat(20 << 20)).into_bytes());
    std::fs::write(&path, bytes).expect("written");
    let plan = corpus.plan(&format!("{}[runtime]\nmemory = \"64MiB\"\n", head(1, 1)));
    for threads in [0, 2] {
        let end = run(&plan, How { threads, ..SERIAL }, None).end.expect("the record is larger than 16 MiB");
        assert_eq!(end.kind(), ErrorKind::Limit, "{end}");
        assert!(end.place().byte.is_some(), "{end}");
    }
}
