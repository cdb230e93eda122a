//! The peak of a real process stays within what `plan` predicts, and `runtime.memory` bounds what is buffered.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::corpus::*;

/// `(prediction, report)` of the config with more options.
fn measure(config: &Path, options: &[&str]) -> (serde_json::Value, serde_json::Value) {
    measure_with(config, options, "10")
}

/// The same, the allocator giving back what is freed after so many milliseconds.
fn measure_with(config: &Path, options: &[&str], delay_ms: &str) -> (serde_json::Value, serde_json::Value) {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tokenmill"));
        command.env_remove("RANK").env_remove("WORLD_SIZE").stdin(Stdio::null());
        command.env("MIMALLOC_PURGE_DELAY", delay_ms);
        let output = command.args(arguments).output().expect("the command starts");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let config = config.to_str().expect("UTF-8");
    let set: Vec<&str> = options.iter().flat_map(|option| ["--set", *option]).collect();
    let plan = run(&[&["plan", config, "--json"], &set[..]].concat());
    let report = run(&[&["run", config, "--quiet", "--report", "-"], &set[..]].concat());
    (plan, report)
}

/// Runs and compares; `record` is the size of the largest record, where it is longer than a window.
fn check(what: &str, config: &Path, options: &[&str], record: u64) {
    let (plan, report) = measure(config, options);
    let memory = &plan["memory"];
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let predicted = number(&memory["total"]) + record * number(&memory["record_factor"]);
    let peak = number(&report["peak_rss_bytes"]);
    println!("{what} {options:?}: peak {} MB, predicted {} MB", peak / 1_000_000, predicted / 1_000_000);
    assert!(peak <= predicted, "{what} {options:?}: peak {peak}, predicted {predicted}: {memory}");
    let buffered: u64 = ["windows", "ids", "decoders", "kept"].iter().map(|part| number(&memory[*part])).sum();
    assert!(buffered <= number(&plan["memory_bound"]), "{what}: {memory}");
}

fn lines(path: &Path, texts: impl Iterator<Item = String>) {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).expect("a file"));
    for text in texts {
        writeln!(file, "{{\"text\":\"{text}\"}}").expect("there is room");
    }
}

/// One document of 50 MB among small ones.
#[test]
fn one_large_document() {
    let corpus = Corpus::new().source("a", Kind::Jsonl, 1, 2000, 300, "max_epochs = 1");
    let large = "many words of one document ".repeat(50_000_000 / 27);
    let size = large.len() as u64;
    let small = (0..1000).map(|i| format!("document {i}"));
    let small_too = (1000..2000).map(|i| format!("document {i}"));
    lines(&corpus.path("a").join("001.jsonl"), small.chain(std::iter::once(large)).chain(small_too));
    let config = corpus.config_file("lanes = 4\nblock_size = 1024\n");
    check("50 MB document, bytes", &config, &[], size);
    check("50 MB document, gpt2", &config, &["tokenizer.path=gpt2"], size);
}

/// 100,000 documents without text, which take more room as places than as bytes.
#[test]
fn many_empty_documents() {
    let corpus = Corpus::new().source("a", Kind::Jsonl, 1, 1, 10, "max_epochs = 1");
    lines(&corpus.path("a").join("001.jsonl"), (0..100_000).map(|_| String::new()));
    check("100,000 empty documents", &corpus.config_file("lanes = 1\nblock_size = 1024\n"), &[], 0);
    check("100,000 empty documents", &corpus.config_file("lanes = 32\nblock_size = 64\n"), &[], 0);
}

/// 10,000 shards of a few documents.
#[test]
fn many_tiny_shards() {
    let corpus = Corpus::new().source("a", Kind::Jsonl, 1, 1, 10, "max_epochs = 1");
    for shard in 0..10_000u64 {
        let texts = (0..3).map(|i| format!("document {i} of shard {shard}, with some words"));
        lines(&corpus.path("a").join(format!("s{shard:05}.jsonl")), texts);
    }
    check("10,000 shards", &corpus.config_file("lanes = 32\nblock_size = 64\n"), &[], 0);
}

/// Windows of a few documents, for many epochs: thousands are on their way at a time, and each has buffers that are used again.
#[test]
fn many_short_windows() {
    let corpus = Corpus::new().source("a", Kind::Jsonl, 8, 150, 600, "max_epochs = 100");
    let head = "lanes = 8\nblock_size = 64\n[shuffle]\nspan = \"8KiB\"\nwindow = \"2KiB\"\n";
    let config = corpus.config_file(head);
    check("windows of 2 KiB", &config, &["runtime.threads=1"], 0);
    check("windows of 2 KiB", &config, &["runtime.threads=2"], 0);
}

/// 64 lanes of 8 sources, with all the memory and with as little as they need.
#[test]
fn many_lanes_and_sources() {
    let mut corpus = Corpus::new();
    let kinds = [Kind::Jsonl, Kind::JsonlZstd, Kind::JsonlZstdFrames, Kind::JsonlGzip];
    for (i, kind) in kinds.into_iter().chain([Kind::JsonlXz, Kind::Text, Kind::Parquet, Kind::JsonlLz4]).enumerate() {
        corpus = corpus.source(&format!("s{i}"), kind, 2, 4000, 1500, "max_epochs = 1\nweight = 1.0");
    }
    let config = corpus.config_file("lanes = 64\nblock_size = 512\n");
    check("64 lanes x 8 sources", &config, &[], 0);
    check("64 lanes x 8 sources", &config, &["runtime.memory=512MiB"], 0);
}

/// Less memory changes nothing but memory: the same blocks at a lower peak, down to an error that names what is needed.
#[test]
fn runtime_memory_takes_effect() {
    let corpus = Corpus::new().source("a", Kind::Jsonl, 1, 1, 10, "max_epochs = 1");
    let text = "some words of a document ".repeat(400);
    lines(&corpus.path("a").join("001.jsonl"), (0..8000).map(|i| format!("{i} {text}")));
    let config = corpus.config_file("lanes = 16\nblock_size = 1024\n[shuffle]\nwindow = \"1MiB\"\n");
    let peak = |value: &serde_json::Value| value["peak_rss_bytes"].as_u64().expect("a number");
    // Given back at once, what is freed doesn't blur what is in use.
    let (all, large) = measure_with(&config, &["runtime.threads=1"], "0");
    let (plan, small) = measure_with(&config, &["runtime.threads=1", "runtime.memory=64MiB"], "0");
    check("64 MiB", &config, &["runtime.threads=2", "runtime.memory=64MiB"], 0);
    assert_eq!(large["digest"], small["digest"]);
    println!("peak {} and {}", peak(&large), peak(&small));
    assert!(peak(&small) + (4 << 20) < peak(&large), "{} and {}", peak(&small), peak(&large));
    assert_eq!(plan["memory"]["ahead_bytes"], 1, "{plan}");
    assert_eq!(all["memory"]["ahead_bytes"], 512 << 10, "{all}");
    for arguments in [vec!["run"], vec!["plan"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_tokenmill"))
            .args(arguments)
            .args([config.to_str().expect("UTF-8"), "--set", "runtime.memory=16MiB"])
            .output()
            .expect("the command starts");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        for word in ["runtime.memory is 16MiB", "at least ", "16 lanes"] {
            assert!(stderr.contains(word), "{stderr}");
        }
    }
}
