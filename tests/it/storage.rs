//! Storage that fails at any read: an error with a place, after a prefix of the right stream; never another stream, a panic or
//! a hang.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokenmill::error::ErrorKind;
use tokenmill::pipeline::{Pipeline, RunOptions};
use tokenmill::plan::Plan;
use tokenmill::tokenizer::Tokenizer;

use crate::corpus::*;
use crate::store::{Fault, Faulty, plan, within};

const HEAD: &str =
    "lanes = 2\nblock_size = 40\nbatch_size = 1\n[shuffle]\nspan = 1200\nwindow = 400\n[packing]\ntail = \"pad\"\n";

fn corpus() -> Corpus {
    let mut corpus = Corpus::new();
    for kind in [
        Kind::Jsonl,
        Kind::JsonlZstd,
        Kind::JsonlZstdFrames,
        Kind::JsonlZstdSeekable,
        Kind::JsonlGzip,
        Kind::JsonlXz,
        Kind::JsonlBzip2,
        Kind::JsonlLz4,
        Kind::Text,
        Kind::Parquet,
    ] {
        corpus = corpus.source(&format!("{kind:?}").to_lowercase(), kind, 1, 24, 90, "weight = 1.0\nmax_epochs = 1");
    }
    corpus
}

/// Every read of the run, serial and parallel, failing or short: I/O is never skipped, whatever `bad_record` says.
#[test]
fn every_read_may_fail() {
    within(300, || {
        let corpus = corpus();
        let skip = format!("{HEAD}[errors]\nbad_record = \"skip\"\n");
        let counter = Faulty::new(Fault::Nothing, 0);
        let (expected, error) = outcome(&plan(&corpus, HEAD, &counter), 0);
        assert!(error.is_none(), "{error:?}");
        let reads = counter.reads.load(Ordering::SeqCst);
        assert!(reads > 100, "{reads} reads");
        let mut failed = 0;
        for nth in 0..reads {
            for fault in [Fault::Fails, Fault::Short] {
                let threads = if (nth + u64::from(fault == Fault::Short)).is_multiple_of(2) { 2 } else { 0 };
                let head = if nth % 3 == 0 { &skip } else { HEAD };
                let (found, error) = outcome(&plan(&corpus, head, &Faulty::new(fault, nth)), threads);
                let what = format!("read {nth} {fault:?}, {threads} threads: {error:?}");
                assert!(found.len() <= expected.len() && found == expected[..found.len()], "{what}");
                match error {
                    None => assert_eq!(found.len(), expected.len(), "{what}"),
                    Some(error) => {
                        failed += 1;
                        assert_eq!(error.kind(), ErrorKind::Read, "{what}");
                        assert!(error.place().shard.is_some(), "{what}");
                    }
                }
            }
        }
        assert!(failed > reads, "{failed} of {} runs failed", 2 * reads);
    });
}

/// A panic below storage is an error of its own kind, in order, with the shard and the lane.
#[test]
fn panics_reach_the_caller_in_order() {
    within(120, || {
        let corpus = corpus();
        let counter = Faulty::new(Fault::Nothing, 0);
        let (expected, _) = outcome(&plan(&corpus, HEAD, &counter), 0);
        let reads = counter.reads.load(Ordering::SeqCst);
        let (mut failed, mut delivered) = (0, 0);
        for nth in (0..reads).step_by(3) {
            for threads in [0, 2] {
                let (found, error) = outcome(&plan(&corpus, HEAD, &Faulty::new(Fault::Panics, nth)), threads);
                assert!(found == expected[..found.len()], "read {nth}, {threads} threads: {error:?}");
                if let Some(error) = error {
                    failed += 1;
                    delivered = delivered.max(found.len());
                    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
                    assert!(error.place().shard.is_some() && error.detail().contains("lane "), "{error}");
                    assert!(error.detail().contains("a test's object panics"), "{error}");
                }
            }
        }
        assert!(failed > 0 && delivered > expected.len() / 3, "{failed} failed, {delivered} delivered before");
    });
}

/// A read that never returns: the error names what is waited for, after what came before it; then dropping returns at once.
#[test]
fn a_blocked_read_is_a_stall() {
    for (of, kind) in [("slow", Kind::Jsonl), ("slow", Kind::JsonlZstd), ("slow", Kind::Parquet)] {
        within(20, move || {
            let corpus = Corpus::new().source("fast", Kind::Jsonl, 2, 400, 200, "weight = 0.9").source(
                of,
                kind,
                1,
                200,
                2000,
                "weight = 0.1",
            );
            let head = "lanes = 2\nblock_size = 40\nbatch_size = 1\n[shuffle]\nwindow = 3000\n[runtime]\nstall_timeout = \"600ms\"\n";
            let store = Arc::new(Faulty {
                fault: Fault::Blocks,
                nth: if kind == Kind::JsonlZstd { 2 } else { 10 },
                ever_after: true,
                of: "/slow/",
                reads: Default::default(),
            });
            let mut pipeline =
                start(&plan(&corpus, head, &store), How { threads: 2, ..SERIAL }, None).expect("a fresh run");
            let (mut found, begin) = (Vec::new(), Instant::now());
            let error = loop {
                match pipeline.next_batch() {
                    Ok(batch) => found.extend(batch),
                    Err(error) => break error,
                }
            };
            // How far it came depends on which lane did the reads before.
            let waited = begin.elapsed();
            let clean = take(&mut start(&corpus.plan(head), SERIAL, None).expect("a fresh run"), found.len());
            assert!(found == clean, "{kind:?}");
            assert_eq!(error.kind(), ErrorKind::Stall, "{error}");
            for word in ["stage reading", "source \"slow\"", "lane ", "0 s", "stall_timeout = 600ms"] {
                assert!(error.detail().contains(word), "{word}: {error}");
            }
            assert!(error.place().shard.as_deref().is_some_and(|shard| shard.contains("/slow/000.")), "{error}");
            assert!(waited < Duration::from_secs(10));
            let begin = Instant::now();
            drop(pipeline);
            assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        });
    }
}

/// The interrupt flag ends a wait for a blocked read soon, and the call may be repeated.
#[test]
fn a_blocked_read_can_be_interrupted() {
    within(20, || {
        let corpus = Corpus::new().source("slow", Kind::Jsonl, 1, 100, 90, "");
        let store =
            Arc::new(Faulty { fault: Fault::Blocks, nth: 0, ever_after: true, of: "", reads: Default::default() });
        let plan = plan(&corpus, "lanes = 2\nblock_size = 40\nbatch_size = 1\n", &store);
        let tokenizer = Arc::new(Tokenizer::load(&plan.config.tokenizer_options()).expect("built in"));
        let options = RunOptions::default();
        let flag = options.interrupt.clone();
        let mut pipeline = Pipeline::new(plan, tokenizer, options, None).expect("a fresh run");
        let setter = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            flag.store(true, Ordering::Relaxed);
        });
        let begin = Instant::now();
        for _ in 0..2 {
            assert_eq!(pipeline.next_batch().expect_err("interrupted").kind(), ErrorKind::Interrupted);
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        setter.join().expect("it only sets a flag");
    });
}

/// Pipelines dropped while their threads work, and several over one plan at once, disturb nothing.
#[test]
fn dropping_early_and_running_twice() {
    within(60, || {
        let corpus = corpus();
        let clean = corpus.plan(HEAD);
        let (expected, _) = outcome(&clean, 0);
        for turn in 0..40 {
            let mut first = start(&clean, How { threads: 3, delays: Some(turn), ..SERIAL }, None).expect("a fresh run");
            let _ = take(&mut first, turn as usize);
            let mut second = start(&clean, How { threads: 2, ..SERIAL }, None).expect("a second run");
            assert_eq!(blocks(&take(&mut second, 10)), expected[..10]);
            drop(first);
            assert_eq!(blocks(&take(&mut second, 10)), expected[10..20]);
        }
    });
}

/// Files that change under a run: one that shrinks or goes is an error of reading that names it, also with `skip`; one replaced by
/// the same bytes is none.
#[test]
fn files_that_shrink_or_go() {
    within(60, || {
        let head = "lanes = 1\nblock_size = 64\nbatch_size = 1\n[shuffle]\nspan = 2000\nwindow = 1000\n[errors]\nbad_record = \"skip\"\n";
        for (what, threads) in [("shrinks", 0), ("shrinks", 2), ("goes", 0), ("goes", 2), ("same", 0), ("same", 2)] {
            let corpus = Corpus::new().source("a", Kind::Jsonl, 6, 4000, 300, "max_epochs = 1");
            let plan = corpus.plan(head);
            let expected = take_all(&mut start(&plan, SERIAL, None).expect("a fresh run"));
            let mut pipeline = start(&plan, How { threads, ..SERIAL }, None).expect("a fresh run");
            let mut found = take(&mut pipeline, 3);
            for shard in 0..6 {
                let path = corpus.path("a").join(format!("{shard:03}.jsonl"));
                match what {
                    "shrinks" => std::fs::File::options()
                        .write(true)
                        .open(&path)
                        .and_then(|file| file.set_len(1000))
                        .expect("it can be cut"),
                    "goes" => std::fs::remove_file(&path).expect("it can be removed"),
                    _ => {
                        let bytes = std::fs::read(&path).expect("it is there");
                        std::fs::remove_file(&path).expect("it can be removed");
                        std::fs::write(&path, bytes).expect("it can be written");
                    }
                }
            }
            let error = loop {
                match pipeline.next_batch() {
                    Ok(Some(batch)) => found.push(batch),
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                }
            };
            assert!(found == expected[..found.len()], "{what}, {threads} threads");
            if what == "same" {
                assert!(error.is_none() && found.len() == expected.len(), "{error:?}");
                continue;
            }
            let error = error.unwrap_or_else(|| panic!("a file {what}, {threads} threads: no error"));
            assert_eq!(error.kind(), ErrorKind::Read, "{error}");
            assert!(error.place().shard.as_deref().is_some_and(|shard| shard.contains("/a/00")), "{error}");
        }
    });
}

/// What is no file is refused when it is listed, and nothing waits for a FIFO's writer.
#[cfg(unix)]
#[test]
fn what_is_no_file_is_refused() {
    within(20, || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = |name: &str| folder.path().join(name);
        let fifo = std::ffi::CString::new(path("a.jsonl").to_str().expect("UTF-8")).expect("no zero byte");
        // SAFETY: the path is a C string that lives through the call.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        let _socket = std::os::unix::net::UnixListener::bind(path("b.jsonl")).expect("a socket");
        std::os::unix::fs::symlink(path("nowhere"), path("c.jsonl")).expect("a link");
        std::os::unix::fs::symlink("/dev/zero", path("d.jsonl")).expect("a link");
        let odd = std::os::unix::ffi::OsStringExt::from_vec(b"odd-\xff.jsonl".to_vec());
        std::fs::write(folder.path().join(std::ffi::OsString::clone(&odd)), "{}").expect("a file");
        let refused = |pattern: &str| {
            let text = format!("[tokenizer]\npath = \"bytes\"\n[[source]]\nname = \"x\"\npaths = [{pattern:?}]\n");
            let config = tokenmill::config::Config::parse(&text, folder.path().to_path_buf(), &[]).expect("right");
            Plan::new(&config).expect_err("it is no file")
        };
        for (pattern, word, kind) in [
            ("a.jsonl", "a FIFO", ErrorKind::Read),
            ("a*", "a FIFO", ErrorKind::Read),
            ("b*", "a socket", ErrorKind::Read),
            ("c*", "c.jsonl", ErrorKind::NotFound),
            ("d.jsonl", "a device", ErrorKind::Read),
            ("odd*", "UTF-8", ErrorKind::Read),
        ] {
            let error = refused(pattern);
            assert_eq!(error.kind(), kind, "{pattern}: {error}");
            assert!(error.detail().contains(word), "{pattern}: {error}");
        }
        use tokenmill::storage::Store;
        let error = tokenmill::storage::LocalStore.open(path("a.jsonl").to_str().expect("UTF-8")).err();
        assert_eq!(error.expect("a FIFO that came after the listing").kind(), ErrorKind::Read);
    });
}
