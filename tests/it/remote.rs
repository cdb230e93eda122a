//! HTTP and the hub: the same stream as from local files, with every kind of fault, with and without ranges.
//!
//! Each test serves a corpus that also lies in a folder from a server of its own on loopback, and compares the blocks with those
//! of a run over the folder.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokenmill::config::Config;
use tokenmill::error::ErrorKind;
use tokenmill::pipeline::read_ahead;
use tokenmill::plan::Plan;
use tokenmill::storage::Environment;

use crate::corpus::*;
use crate::proxy::{Damage, Proxy};
use crate::server::{Hub, Manners, Server};
use crate::store::within;

/// Parts of 64 KiB, so that small shards need several; waits of milliseconds.
pub const FAST: &str = "[storage.http]\npart_size = \"64KiB\"\n[storage.s3]\npart_size = \"64KiB\"\n[storage.retry]\nfirst_wait = \"2ms\"\n\
                        max_wait = \"20ms\"\nidle_timeout = \"150ms\"\nresponse_timeout = \"5s\"\n";
const HEAD: &str = "lanes = 4\nblock_size = 512\nbatch_size = 2\n[shuffle]\nspan = 300000\nwindow = 60000\n";

const KINDS: [Kind; 7] = [
    Kind::Jsonl,
    Kind::JsonlZstd,
    Kind::JsonlZstdFrames,
    Kind::JsonlZstdSeekable,
    Kind::JsonlGzip,
    Kind::Text,
    Kind::Parquet,
];

/// Shards that need several parts each.
fn corpus(kinds: &[Kind]) -> Corpus {
    kinds.iter().fold(Corpus::new(), |corpus, &kind| {
        // Of what is packed, more, so that it takes several parts as well.
        let documents = if matches!(kind, Kind::JsonlZstd | Kind::JsonlGzip | Kind::Parquet) { 2400 } else { 800 };
        corpus.source(&name(kind), kind, 2, documents, 900, "weight = 1.0\nmax_epochs = 1")
    })
}

fn name(kind: Kind) -> String {
    format!("{kind:?}").to_lowercase()
}

/// The config of a corpus, its paths being below `root`.
pub fn remote_config(corpus: &Corpus, head: &str, root: &str) -> Config {
    let mut config = corpus.config(head);
    for source in &mut config.source {
        let folder = corpus.path(&source.name);
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .expect("the source's folder")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort();
        source.paths = names.into_iter().map(|file| format!("{root}{}/{file}", source.name)).collect();
    }
    config
}

pub fn planned(config: &Config) -> Arc<Plan> {
    Arc::new(Plan::new(config).expect("the objects are there"))
}

/// Every format, serially and with 1 and 8 threads, with every kind of fault on every third GET: the same blocks, and the faults count
/// as retries and never as bad records.
#[test]
fn the_same_stream_through_faults() {
    within(240, || {
        let corpus = corpus(&KINDS);
        let skip = format!("{HEAD}{FAST}[errors]\nbad_record = \"skip\"\n");
        let (expected, error) = outcome(&corpus.plan(HEAD), 0);
        assert!(error.is_none() && expected.len() > 1000, "{error:?}, {} blocks", expected.len());
        let server = Server::start(corpus.folder.path(), Manners::default());
        for damage in [
            Damage::Nothing,
            Damage::Cut(5000),
            Damage::Short(30000),
            Damage::Busy,
            Damage::Late(Duration::from_millis(5)),
            Damage::Stalls(100),
        ] {
            let proxy = Proxy::start(server.address, damage, 3);
            // What waits for a stall is waiting all the time.
            let idle = if matches!(damage, Damage::Stalls(_)) { "15ms" } else { "5s" };
            let skip = skip.replace("150ms", idle);
            for threads in [0, 1, 8] {
                let plan = planned(&remote_config(&corpus, &skip, &proxy.url("")));
                let (found, error) = outcome(&plan, threads);
                let what = format!("{damage:?}, {threads} threads");
                assert!(error.is_none(), "{what}: {error:?}");
                assert!(found == expected, "{what}: other blocks");
                let traffic = plan.store.traffic();
                // A slow machine may time out where nothing is wrong.
                assert!(
                    traffic.retries > 0 || matches!(damage, Damage::Nothing | Damage::Late(_)),
                    "{what}: {traffic:?}"
                );
            }
        }
    });
}

/// zstd in frames of 60 KB, each with a checksum.
fn frames_with_checksums(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in text.chunks(60_000) {
        let mut encoder = zstd::bulk::Compressor::new(3).expect("zstd");
        encoder.include_checksum(true).expect("zstd");
        bytes.extend(encoder.compress(part).expect("zstd"));
    }
    bytes
}

/// Bytes flipped on many GETs (but the very first one of an object, which no second request has at another place): what has a checksum gives the same blocks, and nothing is skipped.
#[test]
fn flipped_bytes_are_mended() {
    within(240, || {
        let kinds = [Kind::JsonlZstd, Kind::JsonlGzip, Kind::JsonlXz, Kind::JsonlBzip2];
        for kind in kinds {
            let corpus = corpus(&[kind]);
            if kind == Kind::JsonlZstd {
                for shard in ["000", "001"] {
                    let path = corpus.path(&format!("{}/{shard}.jsonl.zst", name(kind)));
                    let text = zstd::decode_all(&std::fs::read(&path).expect("it is there")[..]).expect("zstd");
                    std::fs::write(path, frames_with_checksums(&text)).expect("it can be written");
                }
            }
            let (expected, _) = outcome(&corpus.plan(HEAD), 0);
            let server = Server::start(corpus.folder.path(), Manners::default());
            let (mut damaged, mut again) = (0, 0);
            for (at, every) in [(1, 3), (100, 2), (777, 3), (9000, 3), (20000, 5), (40000, 3)] {
                for bad in ["fail", "skip"] {
                    let head = format!("{HEAD}{FAST}[errors]\nbad_record = {bad:?}\n");
                    let proxy = Proxy::start(server.address, Damage::Flipped(at), every);
                    let plan = planned(&remote_config(&corpus, &head, &proxy.url("")));
                    let (found, error) = outcome(&plan, 2);
                    assert!(error.is_none(), "{kind:?}, byte {at}, {bad}: {error:?}");
                    assert!(found == expected, "{kind:?}, byte {at}, {bad}");
                    damaged += proxy.state.damaged.load(Ordering::SeqCst);
                    again += plan.store.traffic().retries;
                }
            }
            assert!(damaged > 20 && again > 3, "{kind:?}: {damaged} damaged, {again} read again");
        }
    });
}

/// Without ranges an object is copied once and read from the copy; `plan` can tell. Cut bodies go on from the byte reached.
#[test]
fn servers_without_ranges() {
    within(120, || {
        let corpus = corpus(&KINDS);
        let (expected, _) = outcome(&corpus.plan(HEAD), 0);
        for (no_tag, damage) in [(false, Damage::Nothing), (true, Damage::Cut(50000)), (false, Damage::Short(9000))] {
            let server = Server::start(corpus.folder.path(), Manners { no_ranges: true, no_tag, hub: None });
            let proxy = Proxy::start(server.address, damage, 3);
            let head = format!("{HEAD}{FAST}");
            let plan = planned(&remote_config(&corpus, &head, &proxy.url("")));
            assert!(plan.sources.iter().flat_map(|s| &s.manifest.shards).all(|shard| shard.version.whole));
            let (found, error) = outcome(&plan, 2);
            assert!(error.is_none(), "{damage:?}: {error:?}");
            assert!(found == expected, "{damage:?}");
        }
    });
}

/// A server that is gone in the middle of a run, and comes back: nothing is lost, and nobody has to do anything.
#[test]
fn a_server_that_dies_for_a_while() {
    within(120, || {
        let corpus = corpus(&[Kind::Jsonl, Kind::JsonlGzip, Kind::Parquet]);
        let (expected, _) = outcome(&corpus.plan(HEAD), 0);
        let server = Server::start(corpus.folder.path(), Manners::default());
        let proxy = Proxy::start(server.address, Damage::Nothing, 1);
        let head = format!("{HEAD}{FAST}tries = 1000\n").replace("max_wait = \"20ms\"", "max_wait = \"100ms\"");
        let plan = planned(&remote_config(&corpus, &head, &proxy.url("")));
        let killer = proxy.dies(25, Duration::from_secs(3));
        let began = Instant::now();
        let (found, error) = outcome(&plan, 2);
        killer.join().expect("it only waits");
        assert!(error.is_none(), "{error:?}");
        assert!(found == expected && began.elapsed() > Duration::from_secs(3));
        assert!(plan.store.traffic().retries_by["connection"] > 3, "{:?}", plan.store.traffic());
    });
}

/// A server whose port is closed for many rounds of waiting, and opened again.
#[test]
fn a_server_that_is_started_again() {
    within(120, || {
        let corpus = corpus(&[Kind::Jsonl, Kind::Parquet]);
        let (expected, _) = outcome(&corpus.plan(HEAD), 0);
        let server = Server::start(corpus.folder.path(), Manners::default());
        let proxy = Proxy::start_to_close(server.address, Damage::Nothing, 1);
        let head = format!("{HEAD}{FAST}tries = 2000\n");
        for threads in [0, 2] {
            let plan = planned(&remote_config(&corpus, &head, &proxy.url("")));
            let killer = proxy.closes(8, Duration::from_secs(2));
            let (found, error) = outcome(&plan, threads);
            killer.join().expect("it only waits");
            assert!(error.is_none() && found == expected, "{threads} threads: {error:?}");
            // Waits are 20 ms at most, so each that waits has tried many times.
            assert!(plan.store.traffic().retries_by["connection"] > 20, "{:?}", plan.store.traffic());
        }
    });
}

/// One that stays away: an error in bounded time that names what was read and the bound, and what came before it is right.
#[test]
fn a_server_that_stays_away() {
    within(60, || {
        let corpus = corpus(&[Kind::Jsonl]);
        let (expected, _) = outcome(&corpus.plan(HEAD), 0);
        let server = Server::start(corpus.folder.path(), Manners::default());
        for bound in ["tries = 4\n", "max_time = \"400ms\"\n"] {
            let proxy = Proxy::start(server.address, Damage::Nothing, 1);
            let head = format!("{HEAD}{FAST}{bound}[errors]\nbad_record = \"skip\"\n");
            let plan = planned(&remote_config(&corpus, &head, &proxy.url("")));
            // In the middle of what is to be read, however far ahead that happens.
            proxy.state.dies_at.store(proxy.state.gets.load(Ordering::SeqCst) + 4, Ordering::SeqCst);
            let mut pipeline = start(&plan, How { threads: 2, ..SERIAL }, None).expect("a fresh run");
            let mut found = Vec::new();
            let error = loop {
                match pipeline.next_batch() {
                    Ok(batch) => found.extend(batch.expect("it can't end").blocks),
                    Err(error) => break error,
                }
            };
            assert!(found == expected[..found.len()]);
            assert_eq!(error.kind(), ErrorKind::Read, "{error}");
            assert!(error.detail().contains("gave up after") && error.detail().contains("bytes "), "{error}");
            assert!(error.place().shard.as_deref().is_some_and(|shard| shard.contains("/jsonl/00")), "{error}");
        }
    });
}

/// Objects that change, go or may not be read: an error at once, with the object's name and what to check.
#[test]
fn what_cannot_pass_is_said_at_once() {
    within(60, || {
        let corpus = corpus(&[Kind::Jsonl]);
        let head = format!("{HEAD}{FAST}[errors]\nbad_record = \"skip\"\n").replace("150ms", "10s");
        for (what, words) in
            [("changed", "changed since it was listed"), ("gone", "404"), ("longer", "changed since it was listed")]
        {
            let folder = tempfile::tempdir().expect("a folder");
            std::fs::create_dir(folder.path().join("jsonl")).expect("a folder");
            let copy = |edit: &dyn Fn(&mut Vec<u8>)| {
                for shard in ["jsonl/000.jsonl", "jsonl/001.jsonl"] {
                    let mut bytes = std::fs::read(corpus.path(shard)).expect("it is there");
                    edit(&mut bytes);
                    std::fs::write(folder.path().join(shard), bytes).expect("it can be written");
                }
            };
            copy(&|_| ());
            let server = Server::start(folder.path(), Manners::default());
            let plan = planned(&remote_config(&corpus, &head, &server.url("")));
            match what {
                "changed" => copy(&|bytes| bytes[20] ^= 1),
                "longer" => copy(&|bytes| bytes.extend_from_slice(b"{\"text\":\"more\"}\n")),
                _ => std::fs::remove_dir_all(folder.path().join("jsonl")).expect("it can be removed"),
            }
            let (found, error) = outcome(&plan, 2);
            let error = error.unwrap_or_else(|| panic!("{what}: no error"));
            assert!(found.is_empty() && !error.detail().contains("gave up"), "{what}: {error}");
            assert_eq!(error.kind(), ErrorKind::Read, "{error}");
            assert!(error.detail().contains(words) && error.detail().contains("/jsonl/00"), "{error}");
        }
        let server = Server::start(corpus.folder.path(), Manners::default());
        let refused = |path: &str| {
            let mut config = remote_config(&corpus, &head, &server.url(""));
            config.source[0].paths = vec![path.to_owned()];
            Plan::new(&config).expect_err("it can't be listed")
        };
        let error = refused(&server.url("none.jsonl?secret=abc"));
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(!error.to_string().contains("abc") && error.to_string().contains("none.jsonl"), "{error}");
        assert_eq!(refused(&server.url("*.jsonl")).kind(), ErrorKind::Config);
        assert_eq!(refused("gs://bucket/a.jsonl").kind(), ErrorKind::Config);
        assert_eq!(refused("s3://buck*/a.jsonl").kind(), ErrorKind::Config);
    });
}

/// Odd names in URLs, signed URLs whose query stays out of every message, and a file of one request.
#[test]
fn small_files_and_odd_names() {
    within(60, || {
        let folder = tempfile::tempdir().expect("a folder");
        let text = |name: &str| format!("{{\"text\":\"{}\"}}\n", document(name, 1, 300).replace(['"', '\\', '\t'], ""));
        let names = ["a b.jsonl", "100%.jsonl", "日本.jsonl", "plus+and&.jsonl"];
        for name in names {
            std::fs::write(folder.path().join(name), text(name).repeat(40)).expect("a file");
        }
        let server = Server::start(folder.path(), Manners::default());
        let encoded = ["a%20b.jsonl", "100%25.jsonl", "%E6%97%A5%E6%9C%AC.jsonl", "plus+and&.jsonl?X-Signature=s3cret"];
        let list = |paths: Vec<String>| {
            format!(
                "lanes = 1\nblock_size = 64\nbatch_size = 1\n[packing]\ntail = \"pad\"\n[tokenizer]\npath = \"bytes\"\n[[source]]\nname = \"x\"\n\
                 max_epochs = 1\npaths = {paths:?}\n"
            )
        };
        let sorted = |plan: &Arc<Plan>| {
            let mut all = documents_of(&outcome(plan, 1).0);
            all.sort();
            all
        };
        let local = list(names.map(str::to_owned).to_vec());
        let local = planned(&Config::parse(&local, folder.path().to_path_buf(), &[]).expect("right"));
        let remote = list(encoded.map(|name| server.url(name)).to_vec());
        let remote = planned(&Config::parse(&remote, "".into(), &[]).expect("right"));
        assert!(remote.sources[0].manifest.shards.iter().all(|shard| !shard.name.contains("s3cret")));
        let before = server.state.bytes.load(Ordering::SeqCst);
        let (found, expected) = (sorted(&remote), sorted(&local));
        assert!(found == expected && found.len() > 100, "{} and {} documents", found.len(), expected.len());
        // Each is read twice, to compare; a connection that breaks may cost another time.
        let sizes = remote.sources[0].manifest.bytes();
        let read = server.state.bytes.load(Ordering::SeqCst) - before;
        assert!((2 * sizes..=4 * sizes).contains(&read), "{read} bytes of {sizes}");
    });
}

/// Many lanes come to a shard at once: it is opened once for all, and its parts are read once.
#[test]
fn lanes_share_a_shard() {
    within(60, || {
        let corpus = Corpus::new().source("x", Kind::Jsonl, 3, 6000, 2000, "max_epochs = 2");
        let server = Server::start(corpus.folder.path(), Manners::default());
        let head =
            format!("lanes = 16\nblock_size = 512\nbatch_size = 4\n[shuffle]\nspan = 60000\nwindow = 20000\n{FAST}");
        let (expected, _) = outcome(&corpus.plan(&head), 4);
        let remote = planned(&remote_config(&corpus, &head, &server.url("")));
        let before = server.state.bytes.load(Ordering::SeqCst);
        let (found, error) = outcome(&remote, 4);
        assert!(error.is_none() && found == expected, "{error:?}");
        let read = server.state.bytes.load(Ordering::SeqCst) - before;
        let size = remote.sources[0].manifest.bytes();
        // In each epoch once, and the beginnings (256 KiB of 3) twice more, to compare. Each lane by itself would read six times that.
        assert!(size > 4 << 20 && read < 4 * size, "{read} of {size} bytes were read");
    });
}

/// What is asked for before the run begins is what it reads: nothing comes a second time, but for what is read twice since nothing else would show
/// that it was damaged on the way. To find the frames of zstd means to go through all of it.
#[test]
fn what_is_asked_for_early_is_used() {
    within(60, || {
        for (kind, times) in [(Kind::Jsonl, 1), (Kind::JsonlGzip, 1), (Kind::JsonlZstd, 2)] {
            let corpus = Corpus::new().source("x", kind, 1, 16_000, 2000, "max_epochs = 1");
            let server = Server::start(corpus.folder.path(), Manners::default());
            let head = format!(
                "lanes = 8\nblock_size = 512\nbatch_size = 4\n[shuffle]\nspan = 300000\nwindow = 20000\n{FAST}"
            );
            let (expected, _) = outcome(&corpus.plan(&head), 2);
            let remote = planned(&remote_config(&corpus, &head, &server.url("")));
            let size = remote.sources[0].manifest.bytes();
            let before = server.state.bytes.load(Ordering::SeqCst);
            read_ahead(&remote, 0, 1, None);
            let (found, error) = outcome(&remote, 2);
            assert!(error.is_none() && found == expected, "{kind:?}: {error:?}");
            let read = server.state.bytes.load(Ordering::SeqCst) - before;
            // The first 256 KiB and the last 64 come up to three times more.
            assert!(
                read >= times * size && read < times * size + (1 << 20),
                "{kind:?}: {read} of {size} bytes were read"
            );
            assert!(size > 2 << 20, "{kind:?}: {size} bytes are too few to tell");
        }
    });
}

/// What a table is opened with, its beginning and its end, comes before the run begins, and isn't asked for again.
#[test]
fn tables_are_opened_with_what_came_early() {
    within(60, || {
        let corpus = Corpus::new().source("x", Kind::Parquet, 1, 500, 8000, "max_epochs = 1");
        let server = Server::start(corpus.folder.path(), Manners::default());
        let head = format!("lanes = 1\nblock_size = 512\nbatch_size = 4\n{FAST}").replace("150ms", "10s");
        let remote = planned(&remote_config(&corpus, &head, &server.url("")));
        let size = remote.sources[0].manifest.bytes();
        assert!(size > 1 << 20, "{size} bytes are too few to tell");
        let before = server.state.bytes.load(Ordering::SeqCst);
        read_ahead(&remote, 0, 1, None);
        let read = || server.state.bytes.load(Ordering::SeqCst) - before;
        // 256 KiB and 64, each twice, since nothing else would show that they were damaged on the way.
        let ends = 2 * (320 << 10);
        let began = Instant::now();
        while read() < ends {
            assert!(began.elapsed() < Duration::from_secs(30), "{} bytes came before the run", read());
            std::thread::sleep(Duration::from_millis(1));
        }
        let shard = remote.open_shard(0, 0).expect("it is a table");
        // The second read of the end begins a few bytes earlier.
        assert!(shard.units() > 0 && read() < ends + 100, "{} bytes were read", read());
    });
}

/// Of Parquet the footer and the one column are read; of zstd with a seek table the frames of one's own lanes.
#[test]
fn only_what_is_needed_is_read() {
    within(60, || {
        let folder = tempfile::tempdir().expect("a folder");
        let mut random = 1u64;
        let mut noise = |bytes: usize| -> String {
            (0..bytes)
                .map(|_| {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    char::from(b' ' + (random >> 33) as u8 % 90)
                })
                .collect()
        };
        // A file in which the text is a tenth.
        let schema = "message doc { required binary other (STRING); required binary text (STRING); }";
        let schema = Arc::new(parquet::schema::parser::parse_message_type(schema).expect("right"));
        let file = std::fs::File::create(folder.path().join("a.parquet")).expect("a file");
        let mut writer =
            parquet::file::writer::SerializedFileWriter::new(file, schema, Default::default()).expect("right");
        for _ in 0..4 {
            let mut group = writer.next_row_group().expect("right");
            for size in [9000, 1000] {
                let values: Vec<parquet::data_type::ByteArray> =
                    (0..100).map(|_| noise(size).as_str().into()).collect();
                let mut column = group.next_column().expect("right").expect("a column");
                column.typed::<parquet::data_type::ByteArrayType>().write_batch(&values, None, None).expect("right");
                column.close().expect("right");
            }
            group.close().expect("right");
        }
        writer.close().expect("right");
        let size = std::fs::metadata(folder.path().join("a.parquet")).expect("it is there").len();
        let server = Server::start(folder.path(), Manners::default());
        let text = format!(
            "lanes = 1\nblock_size = 64\n{FAST}[tokenizer]\npath = \"bytes\"\n[[source]]\nname = \"x\"\nmax_epochs = 1\npaths = [{:?}]\n",
            server.url("a.parquet")
        );
        let (found, error) = outcome(&planned(&Config::parse(&text, "".into(), &[]).expect("right")), 2);
        assert!(error.is_none() && found.len() > 5000, "{error:?}");
        let read = server.state.bytes.load(Ordering::SeqCst);
        // The beginning (256 KiB) and the end (64 KiB) twice, since nothing else would show damage there; and the column.
        assert!(read < size / 10 + (680 << 10) && size > 3 << 20, "{read} of {size} bytes were read");
    });
}

fn hub(folder: &std::path::Path, repository: &str, token: Option<&str>, storage: Option<&Server>) -> Server {
    let hub = Hub {
        repository: repository.into(),
        commit: "0123456789abcdef0123456789abcdef01234567".into(),
        token: token.map(str::to_owned),
        sent_on_to: storage.map(|server| server.address),
    };
    Server::start(folder, Manners { hub: Some(hub), ..Manners::default() })
}

/// What an environment with these variables says.
fn environment(pairs: &[(&str, &str)]) -> Environment {
    Environment::from_lookup(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
}

/// Datasets of the hub: globs over pages of a listing, single files, a token that never reaches the storage server, a revision that is
/// pinned, and the same blocks as from local files.
#[test]
fn datasets_of_the_hub() {
    within(60, || {
        let corpus = Corpus::new().source("data", Kind::Parquet, 5, 400, 300, "max_epochs = 1");
        let (expected, _) = outcome(&corpus.plan(HEAD), 0);
        for sent_on in [false, true] {
            let storage = Server::start(corpus.folder.path(), Manners::default());
            let hub = hub(corpus.folder.path(), "datasets/o/n", Some("hf_secret"), sent_on.then_some(&storage));
            for paths in [vec!["hf://datasets/o/n/data/*@v1"], vec!["hf://datasets/o/n@v1/data/00?.parquet"], {
                vec![
                    "hf://datasets/o/n/data/000.parquet",
                    "hf://datasets/o/n/data/001.parquet@main",
                    "hf://datasets/o/n/data/00{2,3,4}.parquet",
                ]
            }] {
                let mut config = corpus.config(&format!("{HEAD}{FAST}"));
                config.source[0].paths = paths.iter().map(|path| path.to_string()).collect();
                config.storage.environment = environment(&[("HF_ENDPOINT", &hub.url("")), ("HF_TOKEN", "hf_secret")]);
                let plan = planned(&config);
                for shard in &plan.sources[0].manifest.shards {
                    assert!(shard.location.contains("@0123456789abcdef"), "{}", shard.location);
                }
                let (found, error) = outcome(&plan, 2);
                assert!(error.is_none(), "{paths:?}: {error:?}");
                assert!(found == expected, "{paths:?}");
                config.storage.environment.hub_token = None;
                let error = Plan::new(&config).expect_err("it wants a token");
                assert!(error.detail().contains("check HF_TOKEN"), "{error}");
            }
            assert_eq!(storage.state.authorized.load(Ordering::SeqCst), 0);
            assert_eq!(storage.state.requests.load(Ordering::SeqCst) > 0, sent_on);
        }
    });
}

/// Tokenizers of the hub: downloaded once into the layout of Hugging Face's libraries, then taken from there; offline; pinned.
#[test]
fn tokenizers_of_the_hub() {
    within(60, || {
        let (files, home) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let json = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null, "decoder": null,
            "added_tokens": [{ "id": 3, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true }],
            "pre_tokenizer": { "type": "Whitespace" },
            "model": { "type": "WordLevel", "vocab": { "a": 0, "b": 1, "[UNK]": 2 }, "unk_token": "[UNK]" },
        });
        std::fs::write(files.path().join("tokenizer.json"), json.to_string()).expect("a file");
        std::fs::write(files.path().join("tokenizer_config.json"), "{\"eos_token\":\"<end>\"}").expect("a file");
        std::fs::write(files.path().join("chat_template.jinja"), "T").expect("a file");
        let storage = Server::start(files.path(), Manners::default());
        let hub = hub(files.path(), "o/m", None, Some(&storage));
        let home_text = home.path().to_str().expect("UTF-8");
        let load = |path: &str, more: &[(&str, &str)]| {
            let endpoint = hub.url("");
            let pairs = [&[("HF_ENDPOINT", endpoint.as_str()), ("HF_HOME", home_text)], more].concat();
            let text = format!("{FAST}[tokenizer]\npath = {path:?}\n[[source]]\nname = \"x\"\npaths = [\"x\"]\n");
            let mut config = Config::parse(&text, "base".into(), &[]).expect("right");
            config.storage.environment = environment(&pairs);
            let options = config.tokenizer_options();
            let template = tokenmill::chat::ChatOptions::default().find_template("base".as_ref(), &options);
            let tokenizer = tokenmill::tokenizer::Tokenizer::load(&options)?;
            assert_eq!(template.expect("it lies beside the tokenizer").source, "T");
            Ok::<_, tokenmill::error::Error>(tokenizer)
        };
        let offline = [("HF_HUB_OFFLINE", "1")];
        let error = load("hf://o/m", &offline).expect_err("it isn't there yet");
        assert!(error.kind() == ErrorKind::NotFound && error.detail().contains("HF_HUB_OFFLINE"), "{error}");
        let tokenizer = load("hf://o/m", &[]).expect("it is downloaded");
        let mut ids = Vec::new();
        tokenizer.encode_document("a b", &mut ids).expect("it encodes");
        assert_eq!(ids, [0, 1, 3]);
        let repository = home.path().join("hub/models--o--m");
        let commit = std::fs::read_to_string(repository.join("refs/main")).expect("the reference");
        assert_eq!(commit, "0123456789abcdef0123456789abcdef01234567");
        assert!(repository.join("snapshots").join(&commit).join("tokenizer_config.json").is_file());
        // Once more asks about three files and downloads none.
        let downloads = storage.state.requests.load(Ordering::SeqCst);
        load("hf://o/m", &[]).expect("it is there");
        assert_eq!(storage.state.requests.load(Ordering::SeqCst), downloads);
        // Offline, and by its commit, nobody is asked.
        let asked = hub.state.requests.load(Ordering::SeqCst);
        load("hf://o/m", &offline).expect("it is there");
        load(&format!("hf://o/m@{commit}"), &[]).expect("it is there");
        assert_eq!(hub.state.requests.load(Ordering::SeqCst), asked);
        let error = load("hf://o/m@v2", &[]).expect_err("no such revision");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        let error = load("hf://o/other", &[]).expect_err("no such model");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    });
}
