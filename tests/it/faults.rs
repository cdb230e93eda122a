//! Damaged and odd input: every case has one defined outcome, with a place, and what comes before is delivered.

use tokenmill::error::{Error, ErrorKind};

use crate::corpus::*;

/// A corpus of one source with one shard of the given bytes.
fn shard(name: &str, bytes: &[u8], extra: &str) -> Corpus {
    let corpus = Corpus::new().source("a", Kind::Jsonl, 1, 0, 0, &format!("max_epochs = 1\n{extra}"));
    std::fs::remove_file(corpus.path("a").join("000.jsonl")).expect("the empty shard");
    std::fs::write(corpus.path("a").join(name), bytes).expect("the shard is written");
    corpus
}

const HEAD: &str =
    "lanes = 1\nblock_size = 16\nbatch_size = 1\n[shuffle]\nenabled = false\n[packing]\ntail = \"pad\"\n";

/// The documents delivered, and what ended the run.
fn outcome(corpus: &Corpus, extra: &str) -> (Vec<String>, Option<Error>) {
    let serial = run(corpus, extra, 0);
    let parallel = run(corpus, extra, 2);
    assert_eq!(serial.0, parallel.0, "both drivers deliver the same");
    assert_eq!(serial.1.as_ref().map(Error::to_string), parallel.1.as_ref().map(Error::to_string));
    serial
}

fn run(corpus: &Corpus, extra: &str, threads: u32) -> (Vec<String>, Option<Error>) {
    let plan = corpus.plan(&format!("{HEAD}{extra}"));
    let (blocks, error) = crate::corpus::outcome(&plan, threads);
    (documents_of(&blocks), error)
}

/// What is legal in JSONL, and what each oddity becomes.
#[test]
fn odd_jsonl_has_defined_outcomes() {
    let check = |bytes: &[u8], expected: &[&str]| {
        let (documents, error) = outcome(&shard("x.jsonl", bytes, ""), "");
        assert!(error.is_none(), "{error:?}");
        assert_eq!(documents, expected);
    };
    check(b"{\"text\":\"a\"}\r\n{\"text\":\"b\"}\r\n", &["a", "b"]);
    check(b"{\"text\":\"a\"}\n{\"text\":\"no line end\"}", &["a", "no line end"]);
    check(b"\n\n{\"text\":\"a\"}\n  \n\r\n{\"text\":\"b\"}\n\n", &["a", "b"]);
    check(b"\xef\xbb\xbf{\"text\":\"after a BOM\"}\n", &["after a BOM"]);
    check(
        "{\"text\":\"line\u{2028}and\u{85}next\u{2029}\"}\n{\"text\":\"b\"}\n".as_bytes(),
        &["line\u{2028}and\u{85}next\u{2029}", "b"],
    );
    check(b"{\"text\":\"\"}\n{\"text\":\"a\"}\n", &["", "a"]);
    check(b"{\"text\":\"first\",\"text\":\"last\"}\n", &["last"]);
    check(b"{\"text\":\"\\u00e9\\n\\ud83d\\ude00\"}\n", &["\u{e9}\n\u{1f600}"]);
    let long = "x".repeat(3 << 20);
    check(format!("{{\"text\":\"a\"}}\n{{\"text\":\"{long}\"}}\n{{\"text\":\"b\"}}\n").as_bytes(), &["a", &long, "b"]);
}

/// A dotted field, and a separator.
#[test]
fn fields_and_separators() {
    let nested = shard("x.jsonl", b"{\"a\":{\"b\":\"deep\"}}\n", "text_field = \"a.b\"");
    assert_eq!(outcome(&nested, "").0, ["deep"]);
    let pieces = shard("x.txt", b"one\n\ntwo\n\n\n\nthree", "separator = \"\\n\\n\"");
    assert_eq!(outcome(&pieces, "").0, ["one", "two", "three"]);
    let whole = shard("x.txt", b"one\n\ntwo\n", "");
    assert_eq!(outcome(&whole, "").0, ["one\n\ntwo\n"]);
}

/// A bad record ends the run at its place, after what comes before it; or it is passed over and counted.
#[test]
fn bad_records_fail_or_are_skipped() {
    let check = |line: &[u8], words: &str| {
        let good = |text: &str| format!("{{\"text\":\"{text} is long enough for a block\"}}\n").into_bytes();
        let bytes = [good("first"), b"\n".to_vec(), line.to_vec(), b"\n".to_vec(), good("second")].concat();
        let corpus = shard("x.jsonl", &bytes, "");
        let (_, error) = outcome(&corpus, "");
        let error = error.expect("a bad record");
        assert_eq!(error.kind(), ErrorKind::BadRecord, "{error}");
        let byte = good("first").len() as u64 + 1;
        assert_eq!((error.place().record, error.place().byte), (Some(2), Some(byte)), "{error}");
        assert!(error.place().shard.as_deref().is_some_and(|shard| shard.ends_with("a/x.jsonl")), "{error}");
        assert!(error.to_string().contains(words), "{error}");
        let (documents, error) = outcome(&corpus, "[errors]\nbad_record = \"skip\"\n");
        assert!(error.is_none(), "{error:?}");
        assert_eq!(documents.len(), 2);
        let (_, error) = outcome(&corpus, "[errors]\nbad_record = \"skip\"\nmax_bad_records = 0\n");
        assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::Limit));
    };
    check(b"{\"text\": \"cut off", "");
    check(b"not json", "");
    check(b"{\"text\": \"a\"} trailing", "");
    check(b"{\"other\": \"a\"}", "\"text\"");
    check(b"{\"text\": null}", "null");
    check(b"{\"text\": 7}", "number");
    check(b"[1, 2]", "");
    check(b"{\"text\": \"\xff\xfe\"}", "UTF-8");
    check(b"{\"text\": \"\\ud800\"}", "");
}

/// A skipped record counts, keeps its place for the report, and is skipped again after a resume.
#[test]
fn skipping_resumes_to_the_same_stream() {
    let mut lines = Vec::new();
    for i in 0..60 {
        lines.extend(match i % 7 {
            3 => b"broken\n".to_vec(),
            _ => format!("{{\"text\":\"document {i}\"}}\n").into_bytes(),
        });
    }
    let corpus = shard("x.jsonl", &lines, "");
    let head = "lanes = 2\nblock_size = 16\nbatch_size = 1\n[shuffle]\nwindow = 200\n[errors]\nbad_record = \"skip\"\n[packing]\ntail = \"pad\"\n";
    let plan = corpus.plan(head);
    let mut whole = start(&plan, SERIAL, None).expect("a fresh run");
    let (batches, states) = take_all_with_states(&mut whole);
    assert_eq!(whole.stats()[0].totals.skipped, 9);
    assert_eq!(whole.bad_records().len(), 5);
    assert!(whole.bad_records()[0].to_string().contains("record "), "{}", whole.bad_records()[0]);
    for (step, state) in states.iter().enumerate() {
        let mut resumed = start(&plan, SERIAL, Some(state)).expect("the state fits");
        assert_eq!(take_all(&mut resumed), batches[step..]);
        assert_eq!(resumed.stats()[0].totals, whole.stats()[0].totals);
    }
}

/// Each compression cut short and garbled: an error of kind `Corrupt` that names the shard.
#[test]
fn damaged_compression_is_an_error() {
    let documents: Vec<String> = (0..300).map(|i| document("a", i, 300)).collect();
    let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
    let compressed = [
        Kind::JsonlZstd,
        Kind::JsonlZstdFrames,
        Kind::JsonlZstdSeekable,
        Kind::JsonlGzip,
        Kind::JsonlGzipMembers,
        Kind::JsonlXz,
        Kind::JsonlBzip2,
        Kind::JsonlLz4,
        Kind::Parquet,
    ];
    for kind in compressed {
        let (bytes, ending) = shard_bytes(kind, &documents);
        let cut = bytes[..bytes.len() * 2 / 3].to_vec();
        let trailing = [bytes.clone(), b"garbage behind".to_vec()].concat();
        for (what, damaged) in [("cut", cut), ("trailing garbage", trailing)] {
            if what == "trailing garbage" && kind == Kind::Parquet {
                continue;
            }
            let (_, error) = outcome(&shard(&format!("x.{ending}"), &damaged, ""), "");
            let error = error.unwrap_or_else(|| panic!("{kind:?}, {what}: no error"));
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{kind:?}, {what}: {error}");
            assert!(error.to_string().contains("/x."), "{kind:?}, {what}: {error}");
        }
    }
    let (_, error) = outcome(&shard("x.jsonl.gz", b"\x1f\x8bthis is no gzip", ""), "");
    assert_eq!(error.expect("garbage").kind(), ErrorKind::Corrupt);
}

/// What comes before the damage is delivered, and the state stays at the last batch.
#[test]
fn what_comes_before_the_damage_is_delivered() {
    let lines: Vec<String> = (0..100).map(|i| format!("{{\"text\":\"document {i} of the shard\"}}\n")).collect();
    let mut bytes = lines.concat().into_bytes();
    let place = lines[..70].concat().len();
    bytes[place] = b'#';
    let corpus = shard("x.jsonl", &bytes, "");
    let (documents, error) = outcome(&corpus, "");
    assert_eq!(error.expect("a bad record").place().record, Some(70));
    assert!(documents.len() >= 69, "{}", documents.len());
    let mut pipeline = start(&corpus.plan(HEAD), SERIAL, None).expect("a fresh run");
    let mut last = pipeline.checkpoint();
    while let Ok(Some(_)) = pipeline.next_batch() {
        last = pipeline.checkpoint();
    }
    assert_eq!(pipeline.checkpoint(), last);
    assert!(pipeline.next_batch().is_err(), "the error stays");
}

/// Too few records for the lanes, and a pass without a token, are errors and no loops.
#[test]
fn starved_lanes_are_an_error() {
    let corpus = Corpus::new().source("a", Kind::Jsonl, 1, 3, 20, "");
    let plan = corpus.plan("lanes = 16\nblock_size = 16\nbatch_size = 16\n");
    let error = start(&plan, SERIAL, None).expect("a fresh run").next_batch().expect_err("3 records, 16 lanes");
    assert_eq!(error.kind(), ErrorKind::TooFewRecords);
    assert!(error.to_string().contains("lower `lanes`"), "{error}");
    let empty = shard("x.jsonl", b"{\"text\":\"\"}\n{\"text\":\"\"}\n", "");
    let config = HEAD.to_owned() + "[tokenizer]\npath = \"bytes\"\nappend_eos = false\n";
    let plan = std::sync::Arc::new(
        tokenmill::plan::Plan::new(&{
            let mut config = empty.config(&config);
            config.source[0].max_epochs = 0;
            config
        })
        .expect("the shard is there"),
    );
    for threads in [0, 2] {
        let mut pipeline = start(&plan, How { threads, ..SERIAL }, None).expect("a fresh run");
        assert_eq!(pipeline.next_batch().expect_err("no token").kind(), ErrorKind::TooFewRecords);
    }
}
