//! S3, against a real server: listings of many pages, odd keys, credentials, versions, faults, outputs and checkpoints in buckets.
//!
//! Each test has a bucket of its own and compares with a run over local files. See `seaweed` for the server.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokenmill::config::Config;
use tokenmill::error::ErrorKind;
use tokenmill::plan::Plan;
use tokenmill::storage::{Store, Stores};

use crate::corpus::*;
use crate::proxy::{Damage, Proxy};
use crate::remote::{FAST, planned};
use crate::seaweed::{Seaweed, server};
use crate::store::within;

const HEAD: &str = "lanes = 4\nblock_size = 512\nbatch_size = 2\n[shuffle]\nspan = 300000\nwindow = 60000\n";

/// The corpus' config, its sources read from a bucket by a glob each, through the server at `address`.
fn config(corpus: &Corpus, head: &str, bucket: &str, address: std::net::SocketAddr) -> Config {
    let mut config = corpus.config(head);
    for source in &mut config.source {
        source.paths = vec![format!("s3://{bucket}/{}/*", source.name)];
    }
    config.storage.s3.endpoint = Some(format!("http://{address}"));
    config.storage.s3.region = Some("us-east-1".into());
    config
}

fn prepared(server: &Seaweed, corpus: &Corpus, bucket: &str) {
    server.bucket(bucket);
    server.upload(corpus.folder.path(), bucket, "");
}

/// Every format, with every fault on every third GET, with 1 and 8 threads: the same blocks. Small objects come whole and are compared
/// with their sums, so there flipped bytes are mended in every format; large ones come in parts.
#[test]
fn the_same_stream_through_faults() {
    let Some(server) = server() else { return };
    within(240, || {
        let kinds = [Kind::Jsonl, Kind::JsonlZstd, Kind::JsonlZstdSeekable, Kind::JsonlGzip, Kind::Text, Kind::Parquet];
        let corpus = kinds.iter().fold(Corpus::new(), |corpus, &kind| {
            let documents = if matches!(kind, Kind::JsonlZstd | Kind::JsonlGzip | Kind::Parquet) { 2400 } else { 800 };
            corpus.source(&format!("{kind:?}").to_lowercase(), kind, 2, documents, 900, "weight = 1.0\nmax_epochs = 1")
        });
        prepared(server, &corpus, "faults");
        let (expected, error) = outcome(&corpus.plan(HEAD), 0);
        assert!(error.is_none(), "{error:?}");
        for (damage, part) in [
            (Damage::Nothing, "64KiB"),
            (Damage::Cut(5000), "64KiB"),
            (Damage::Short(30000), "64KiB"),
            (Damage::Busy, "64KiB"),
            (Damage::Late(Duration::from_millis(5)), "64KiB"),
            (Damage::Stalls(100), "1MiB"),
            (Damage::Flipped(1234), "1MiB"),
            (Damage::Cut(5000), "1MiB"),
            (Damage::InTurn, "64KiB"),
        ] {
            let proxy = Proxy::start(server.address, damage, 3);
            for threads in [1, 8] {
                let head = format!("{HEAD}{FAST}[errors]\nbad_record = \"skip\"\n").replace("64KiB", part);
                let idle = if matches!(damage, Damage::Stalls(_)) { "50ms" } else { "5s" };
                let plan = planned(&config(&corpus, &head.replace("150ms", idle), "faults", proxy.address));
                let (found, error) = outcome(&plan, threads);
                let what = format!("{damage:?}, parts of {part}, {threads} threads");
                assert!(error.is_none(), "{what}: {error:?}");
                assert!(found == expected, "{what}: other blocks");
                let traffic = plan.store.traffic();
                if !matches!(damage, Damage::Nothing | Damage::Late(_)) {
                    assert!(traffic.retries > 0, "{what}: {traffic:?}");
                }
            }
        }
    });
}

/// More keys than a page of a listing holds, and keys of every odd kind, in the order of local files.
#[test]
fn listings_of_many_pages_and_odd_keys() {
    let Some(server) = server() else { return };
    within(120, || {
        let corpus = Corpus::new().source("many", Kind::Jsonl, 1203, 2406, 60, "max_epochs = 1");
        std::fs::create_dir_all(corpus.path("many")).expect("a folder");
        prepared(server, &corpus, "pages");
        let head = "lanes = 4\nblock_size = 64\nbatch_size = 4\n";
        let plan = planned(&config(&corpus, head, "pages", server.address));
        let local = corpus.plan(head);
        let names = |plan: &Arc<Plan>| -> Vec<String> {
            plan.sources[0].manifest.shards.iter().map(|shard| shard.name.to_string()).collect()
        };
        assert_eq!(names(&plan).len(), 1203);
        assert_eq!(names(&plan), names(&local));
        assert!(outcome(&plan, 4).0 == outcome(&local, 4).0);

        // The second page fails: it is asked for again, and not a shard is missing. Where it is refused, there is no listing at all.
        for damage in [
            Damage::Cut(20_000),
            Damage::Short(20_000),
            Damage::Busy,
            Damage::Says(500, "InternalError"),
            Damage::InTurn,
        ] {
            let proxy = Proxy::start(server.address, damage, 2);
            proxy.state.damages_listings.store(true, Ordering::SeqCst);
            let plan = planned(&config(&corpus, &format!("{head}{FAST}"), "pages", proxy.address));
            assert_eq!(names(&plan), names(&local), "{damage:?}");
            assert!(proxy.state.damaged.load(Ordering::SeqCst) > 0 && plan.store.traffic().retries > 0, "{damage:?}");
        }
        let proxy = Proxy::start(server.address, Damage::Says(403, "AccessDenied"), 2);
        proxy.state.damages_listings.store(true, Ordering::SeqCst);
        let error = Plan::new(&config(&corpus, head, "pages", proxy.address)).expect_err("half a listing is none");
        assert!(error.detail().contains("AccessDenied"), "{error}");

        let folder = tempfile::tempdir().expect("a folder");
        let odd = [
            "a b.jsonl",
            "a+b.jsonl",
            "100%.jsonl",
            "%20.jsonl",
            "ü.jsonl",
            "日本/語.jsonl",
            "😀.jsonl",
            "e\u{301}.jsonl",
            "q?uery&x=y.jsonl",
            "hash#.jsonl",
            "[1].jsonl",
            "{x}.jsonl",
            "quote\"'.jsonl",
            "semi;colon:,.jsonl",
            "~tilde!$()@.jsonl",
            ".hidden.jsonl",
        ];
        for (number, name) in odd.iter().enumerate() {
            let path = folder.path().join("odd").join(name);
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
            std::fs::write(path, format!("{{\"text\":\"number {number}\"}}\n")).expect("a file");
        }
        server.bucket("odd");
        server.upload(folder.path(), "odd", "");
        let text = |path: &str| {
            format!(
                "lanes = 1\nblock_size = 16\n[packing]\ntail = \"pad\"\n[tokenizer]\npath = \"bytes\"\n[storage.s3]\nendpoint = \"http://{}\"\n\
                 [[source]]\nname = \"x\"\nmax_epochs = 1\npaths = [{}]\n",
                server.address,
                serde_json::Value::from(path),
            )
        };
        let plan = |path: &str| Plan::new(&Config::parse(&text(path), folder.path().to_owned(), &[]).expect("right"));
        for pattern in ["odd/**/*.jsonl", "odd/*.jsonl", "odd/[a-z]*", "odd/.h*"] {
            let local = Arc::new(plan(pattern).expect("they are there"));
            let remote = Arc::new(plan(&format!("s3://odd/{pattern}")).expect("they are there"));
            assert_eq!(names(&remote), names(&local), "{pattern}");
            assert!(outcome(&remote, 2).0 == outcome(&local, 2).0, "{pattern}");
        }
        for name in odd {
            let found = plan(&format!("s3://odd/odd/{name}")).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(found.sources[0].manifest.shards.len(), 1, "{name}");
        }
        let error = plan("s3://odd/odd/none*").expect_err("nothing matches");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    });
}

fn command(server: &Seaweed, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokenmill"));
    let endpoint = format!("storage.s3.endpoint=\"http://{}\"", server.address);
    // What is set later counts.
    let (name, rest) = arguments.split_at(1);
    command.args(name).args(["--set", &endpoint, "--set", "storage.s3.region=us-east-1"]).args(rest);
    command.env_remove("RANK").env_remove("WORLD_SIZE").env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

fn run(mut command: Command) -> Output {
    command.output().expect("the command starts")
}

/// Wrong and missing credentials, a bucket or key that isn't there: at once, with what to check and no secret; a public bucket can be
/// read without credentials.
#[test]
fn credentials_and_what_is_not_there() {
    let Some(server) = server() else { return };
    within(120, || {
        let corpus = Corpus::new().source("web", Kind::Jsonl, 2, 200, 200, "max_epochs = 1");
        for bucket in ["private", "public"] {
            prepared(server, &corpus, bucket);
        }
        let file = corpus.config_file("lanes = 2\nblock_size = 64\n");
        let file = file.to_str().expect("UTF-8");
        let plan = |bucket: &str, environment: &[(&str, &str)], sets: &[&str]| {
            let paths = format!("source.web.paths=[\"s3://{bucket}/web/*\"]");
            let mut command = command(server, &["plan", file, "--set", &paths]);
            for set in sets {
                command.args(["--set", set]);
            }
            for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] {
                command.env_remove(name);
            }
            let home = corpus.folder.path();
            command.env("HOME", home).env("AWS_EC2_METADATA_DISABLED", "true").envs(environment.iter().copied());
            let began = std::time::Instant::now();
            let output = run(command);
            // Retrying would take three minutes.
            assert!(began.elapsed() < Duration::from_secs(90), "{output:?}");
            (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        let (key, secret) =
            (("AWS_ACCESS_KEY_ID", crate::seaweed::KEY), ("AWS_SECRET_ACCESS_KEY", crate::seaweed::SECRET));
        let check = |(ok, text): (bool, String), words: &[&str]| {
            assert!(!ok && !text.contains("s3cr3t"), "{text}");
            for word in words {
                assert!(text.contains(word), "{word}: {text}");
            }
        };
        assert!(plan("private", &[key, secret], &[]).0);
        check(
            plan("private", &[key, ("AWS_SECRET_ACCESS_KEY", "s3cr3t-wrong")], &[]),
            &["403", "SignatureDoesNotMatch", "AWS_SECRET"],
        );
        check(
            plan("private", &[("AWS_ACCESS_KEY_ID", "nobody"), ("AWS_SECRET_ACCESS_KEY", "s3cr3t")], &[]),
            &["403", "credentials"],
        );
        check(plan("private", &[], &[]), &["credentials", "storage.s3.anonymous"]);
        check(plan("private", &[], &["storage.s3.anonymous=true"]), &["403", "s3://private/web/"]);
        let (ok, text) = plan("public", &[], &["storage.s3.anonymous=true"]);
        assert!(ok, "{text}");
        check(plan("nothere", &[key, secret], &[]), &["s3://nothere/web/"]);

        // No region is said: one's own server has none, and nobody is asked for it. Where the server is may be said by the environment.
        let paths = "source.web.paths=[\"s3://private/web/*\"]";
        let (endpoint, address) =
            (format!("storage.s3.endpoint=\"http://{}\"", server.address), format!("http://{}", server.address));
        for configured in [true, false] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tokenmill"));
            command.args(["plan", file, "--set", paths]).stdin(Stdio::null());
            match configured {
                true => command.args(["--set", &endpoint]),
                false => command.args(["--set", "storage.s3.path_style=true"]).env("AWS_ENDPOINT_URL", &address),
            };
            for name in ["AWS_REGION", "AWS_DEFAULT_REGION", "AWS_EC2_METADATA_DISABLED", "AWS_PROFILE", "RUST_LOG"] {
                command.env_remove(name);
            }
            let output = run({
                command.env("HOME", corpus.folder.path()).envs([key, secret]);
                command
            });
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && !text.contains("WARN"), "{text}");
        }
    });
}

/// What a server says that no other try can change, in the middle of a run: an error at once, with what to check.
#[test]
fn what_a_server_says_once() {
    let Some(server) = server() else { return };
    within(60, || {
        let corpus = Corpus::new().source("web", Kind::Jsonl, 2, 600, 300, "max_epochs = 1");
        prepared(server, &corpus, "said");
        for (status, code, word) in [
            (400, "ExpiredToken", "no longer valid"),
            (403, "RequestTimeTooSkewed", "clock"),
            (403, "AccessDenied", "right to this bucket"),
            (301, "PermanentRedirect", "region"),
            (307, "TemporaryRedirect", "region"),
            (404, "NoSuchKey", "it was there when it was listed"),
        ] {
            let proxy = Proxy::start(server.address, Damage::Says(status, code), 2);
            let head = format!("{HEAD}{FAST}[errors]\nbad_record = \"skip\"\n");
            let plan = planned(&config(&corpus, &head, "said", proxy.address));
            let (_, error) = outcome(&plan, 1);
            let error = error.unwrap_or_else(|| panic!("{code}: no error"));
            assert_eq!(error.kind(), ErrorKind::Read, "{error}");
            for word in [word, code, "s3://said/web/00"] {
                assert!(error.detail().contains(word), "{word}: {error}");
            }
        }
    });
}

/// Marks of folders and empty objects: the first are no shards, the second are shards without records.
#[test]
fn marks_of_folders_and_empty_objects() {
    let Some(server) = server() else { return };
    within(60, || {
        let corpus = Corpus::new().source("web", Kind::Jsonl, 2, 100, 100, "max_epochs = 1");
        prepared(server, &corpus, "marks");
        std::fs::write(corpus.path("web/002.jsonl"), "").expect("a file");
        let head = "lanes = 2\nblock_size = 64\n";
        let local = corpus.plan(head);
        server.stores().put("s3://marks/web/002.jsonl", Vec::new()).expect("it can be put");
        // Not every server takes a key that ends so.
        let _ = server.stores().put("s3://marks/web/", Vec::new());
        let mut config = config(&corpus, head, "marks", server.address);
        for pattern in ["s3://marks/web/*", "s3://marks/web/**", "s3://marks/**"] {
            config.source[0].paths = vec![pattern.into()];
            let plan = planned(&config);
            assert_eq!(plan.sources[0].manifest.shards.len(), 3, "{pattern}");
            let (found, error) = outcome(&plan, 2);
            assert!(error.is_none() && found == outcome(&local, 0).0, "{pattern}: {error:?}");
        }
    });
}

/// Objects replaced or gone during a run: an error at once that names the object, never a mix of two versions.
#[test]
fn objects_that_change() {
    let Some(server) = server() else { return };
    within(120, || {
        let corpus = Corpus::new().source("web", Kind::Jsonl, 2, 6000, 300, "max_epochs = 1");
        prepared(server, &corpus, "changing");
        let head = format!("{HEAD}{FAST}[errors]\nbad_record = \"skip\"\n");
        let plan = planned(&config(&corpus, &head, "changing", server.address));
        let (expected, _) = outcome(&plan, 1);
        // The serial driver, since threads might have read all of it by now.
        let mut pipeline = start(&plan, SERIAL, None).expect("a fresh run");
        let mut found = blocks(&take(&mut pipeline, 2));
        for shard in ["000", "001"] {
            let mut bytes = std::fs::read(corpus.path(&format!("web/{shard}.jsonl"))).expect("it is there");
            let at = bytes.len() - 20;
            bytes[at] ^= 1;
            server.stores().put(&format!("s3://changing/web/{shard}.jsonl"), bytes).expect("it can be put");
        }
        let error = loop {
            match pipeline.next_batch() {
                Ok(batch) => found.extend(batch.expect("it can't end well").blocks),
                Err(error) => break error,
            }
        };
        assert!(found == expected[..found.len()] && found.len() < expected.len());
        assert_eq!(error.kind(), ErrorKind::Read, "{error}");
        assert!(
            error.detail().contains("changed since it was listed") && error.detail().contains("s3://changing/web/00"),
            "{error}"
        );
    });
}

fn report(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).expect("the report")).expect("JSON")
}

/// A manifest that was saved: no listing any more, the same blocks; refused for other paths, and when an object is another one.
#[test]
fn saved_manifests() {
    let Some(server) = server() else { return };
    within(120, || {
        let corpus = Corpus::new().source("web", Kind::Jsonl, 3, 300, 200, "max_epochs = 1");
        prepared(server, &corpus, "manifest");
        let (file, out) = (corpus.config_file("lanes = 2\nblock_size = 64\n"), corpus.path("report.json"));
        let (file, out) = (file.to_str().expect("UTF-8"), out.to_str().expect("UTF-8"));
        let paths = "source.web.paths=[\"s3://manifest/web/*\"]";
        let ok = |arguments: &[&str]| {
            let output = run(command(server, arguments));
            assert!(output.status.success(), "{arguments:?}: {output:?}");
        };
        let proxy = Proxy::start(server.address, Damage::Nothing, 1);
        let through = format!("storage.s3.endpoint=\"http://{}\"", proxy.address);
        let listings = || proxy.state.listings.swap(0, Ordering::SeqCst);
        let saved = corpus.path("m.json");
        ok(&["plan", file, "--set", paths, "--save-manifest", saved.to_str().expect("UTF-8")]);
        ok(&["plan", file, "--set", paths, "--save-manifest", "s3://manifest/m.json"]);
        ok(&["run", file, "--set", paths, "--set", &through, "--report", out, "-q"]);
        let listed = report(Path::new(out))["digest"].clone();
        assert!(listings() >= 1);
        for manifest in ["manifest=m.json", "manifest=\"s3://manifest/m.json\""] {
            ok(&["run", file, "--set", paths, "--set", manifest, "--set", &through, "--report", out, "-q"]);
            assert_eq!(report(Path::new(out))["digest"], listed);
            assert_eq!(listings(), 0, "{manifest}");
        }
        let fails = |arguments: &[&str], words: &[&str]| {
            let output = run(command(server, arguments));
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success(), "{arguments:?}");
            for word in words {
                assert!(text.contains(word), "{word}: {text}");
            }
        };
        let other = "source.web.paths=[\"s3://manifest/web/00*\"]";
        fails(&["run", file, "--set", other, "--set", "manifest=m.json"], &["m.json", "save it again"]);
        server.stores().put("s3://manifest/web/001.jsonl", b"{\"text\":\"other\"}\n".to_vec()).expect("it can be put");
        fails(
            &["run", file, "--set", paths, "--set", "manifest=m.json"],
            &["changed since it was listed", "web/001.jsonl"],
        );

        // Of local files as well, which are compared by size.
        ok(&["plan", file, "--save-manifest", saved.to_str().expect("UTF-8")]);
        ok(&["run", file, "--set", "manifest=m.json", "--report", out, "-q"]);
        assert_eq!(report(Path::new(out))["digest"], listed);
        std::fs::write(corpus.path("web/001.jsonl"), "{\"text\":\"other\"}\n").expect("it can be written");
        fails(&["run", file, "--set", "manifest=m.json"], &["as listed", "web/001.jsonl"]);
    });
}

/// Output and checkpoints in a bucket: killed at some moment and resumed, also at another world size, they end as those of a run
/// over local files that was never stopped.
#[cfg(unix)]
#[test]
fn outputs_and_checkpoints_through_kills() {
    let Some(server) = server() else { return };
    within(240, || {
        let corpus = Corpus::new().source("web", Kind::JsonlGzip, 2, 3000, 400, "weight = 0.6\nmax_epochs = 2").source(
            "code",
            Kind::Parquet,
            3,
            2000,
            300,
            "weight = 0.4\nmax_epochs = 2",
        );
        prepared(server, &corpus, "kills");
        let head = "lanes = 4\nblock_size = 128\nbatch_size = 4\n[shuffle]\nspan = 100000\nwindow = 20000\n";
        let file = corpus.config_file(head);
        let file = file.to_str().expect("UTF-8");
        let local = corpus.path("local.jsonl");
        let output = run(command(server, &["run", file, "--out", local.to_str().expect("UTF-8"), "-q"]));
        assert!(output.status.success(), "{output:?}");
        let expected = std::fs::read(&local).expect("the output");
        let paths =
            ["--set", "source.web.paths=[\"s3://kills/web/*\"]", "--set", "source.code.paths=[\"s3://kills/code/*\"]"];
        let (mut kills, stores) = (0, server.stores());
        for ending in ["jsonl", "npy"] {
            let out = format!("s3://kills/out/blocks.{ending}");
            let checkpoints = format!("s3://kills/checkpoints-{ending}");
            let mut arguments = vec![
                "run",
                file,
                "--out",
                &out,
                "--checkpoint",
                &checkpoints,
                "--checkpoint-every",
                "20",
                "--threads",
                "2",
                "-q",
            ];
            arguments.extend(paths);
            let mut done = false;
            for round in 0..40 {
                let mut child = command(server, &arguments).stderr(Stdio::piped()).spawn().expect("it starts");
                if round == 0 {
                    arguments.extend(["--resume", &checkpoints]);
                }
                // First as soon as there is a checkpoint, then at other moments.
                let wait = Duration::from_millis(if round == 0 { 20 } else { 500 + 200 * round });
                loop {
                    std::thread::sleep(wait);
                    let there = |found: Vec<(String, u64)>| found.iter().any(|(name, _)| name.ends_with(".json"));
                    if round > 0
                        || stores.list_below(&format!("{checkpoints}/")).is_ok_and(there)
                        || child.try_wait().expect("it can be asked").is_some()
                    {
                        break;
                    }
                }
                if let Some(status) = child.try_wait().expect("it can be asked") {
                    let output = child.wait_with_output().expect("it ended");
                    assert!(status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                    done = true;
                    break;
                }
                child.kill().expect("it runs");
                child.wait().expect("it ends");
                kills += 1;
            }
            assert!(done, "it came to no end");
            let found = server.stores().read_all(&out, 1 << 30).expect("the output");
            if ending == "jsonl" {
                assert!(found == expected, "{} and {} bytes", found.len(), expected.len());
            }
        }
        assert!(kills > 0, "nothing was killed");
        // A fresh run finds the folder in use; another world size goes on from it.
        let mut fresh = vec!["run", file, "--checkpoint", "s3://kills/checkpoints-npy", "-q"];
        fresh.extend(paths);
        let output = run(command(server, &fresh));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && text.contains("--resume to go on") && text.contains("s3://kills/"),
            "{text}"
        );
        let mut other = vec![
            "run",
            file,
            "--resume",
            "s3://kills/checkpoints-npy/step-00000020",
            "--rank",
            "1",
            "--world-size",
            "2",
        ];
        other.extend(paths);
        // Killed before its first checkpoint, and begun again: an output begun there stays one.
        let out = "s3://kills/out/rank1.jsonl";
        other.extend(["--out", out, "-q", "--batches"]);
        for batches in ["30", "2"] {
            other.push(batches);
            let output = run(command(server, &other));
            assert!(output.status.success(), "{output:?}");
            other.pop();
        }
        let found = server.stores().read_all(out, 1 << 30).expect("the output");
        let ranks: Vec<_> = expected.split_inclusive(|byte| *byte == b'\n').skip(81).step_by(2).take(8).collect();
        assert!(found == ranks.concat(), "{} bytes of {}", found.len(), ranks.concat().len());
        // What is read of a folder is read of a bucket as well: the newest checkpoint, one of the steps, the one before a block.
        let folder = corpus.path("local-checkpoints");
        let folder = folder.to_str().expect("UTF-8");
        let every = ["--checkpoint-every", "20", "--batches", "100", "-q"];
        for (checkpoints, paths) in [(folder, &[][..]), ("s3://kills/apart", &paths[..])] {
            let arguments = [&["run", file, "--checkpoint", checkpoints][..], &every, paths].concat();
            let output = run(command(server, &arguments));
            assert!(output.status.success(), "{output:?}");
        }
        let shown = |arguments: &[&str]| {
            let output = run(command(server, arguments));
            assert!(output.status.success(), "{arguments:?}: {output:?}");
            String::from_utf8(output.stdout).expect("UTF-8")
        };
        for below in ["", "/step-00000040", "/step-00000040/rank-00000-of-00001.json"] {
            let there = shown(&["inspect", &format!("s3://kills/apart{below}")]);
            let here = shown(&["inspect", &format!("{folder}{below}")]);
            assert_eq!(there.replace("s3://kills/apart", folder), here);
        }
        let output = run(command(server, &["inspect", "s3://kills/none"]));
        assert!(String::from_utf8_lossy(&output.stderr).contains("no checkpoint at s3://kills/none"), "{output:?}");
        let locate = |resume: &str, more: &[&str]| {
            shown(&[&["locate", file, "--block", "130", "--json", "--resume", resume][..], more].concat())
        };
        let names = |text: String| text.replace("s3://kills/", &format!("{}/", corpus.folder.path().display()));
        for below in ["", "/step-00000020"] {
            let there = locate(&format!("s3://kills/apart{below}"), &paths);
            assert_eq!(names(there), locate(&format!("{folder}{below}"), &[]), "{below}");
        }
        let output = run(command(server, &["run", file, "--resume", "s3://kills/none", "-q"]));
        assert!(String::from_utf8_lossy(&output.stderr).contains("no checkpoint at s3://kills/none"), "{output:?}");
    });
}

/// A file of several parts of an upload arrives as it was.
#[test]
fn large_files_go_in_parts() {
    let Some(server) = server() else { return };
    within(60, || {
        server.bucket("parts");
        let mut file = tempfile::tempfile().expect("a file");
        let bytes: Vec<u8> = (0..40u32 << 18).flat_map(|i| i.wrapping_mul(2654435761).to_le_bytes()).collect();
        std::io::Write::write_all(&mut file, &bytes).expect("it can be written");
        let stores = server.stores();
        stores.put_file("s3://parts/large", &file).expect("it can be put");
        assert!(stores.read_all("s3://parts/large", 1 << 30).expect("it is there") == bytes);
        assert!(stores.traffic().bytes >= bytes.len() as u64);
    });
}

/// With a cache the second run asks for nothing that the first has read; torn files are found; a bound that is smaller than the
/// corpus holds; two processes share it.
#[test]
fn a_cache_on_disk() {
    let Some(server) = server() else { return };
    within(120, || {
        let corpus = Corpus::new().source("web", Kind::JsonlZstdSeekable, 6, 6000, 600, "max_epochs = 1").source(
            "text",
            Kind::Jsonl,
            2,
            12000,
            900,
            "max_epochs = 1",
        );
        prepared(server, &corpus, "cached");
        let cache = corpus.path("cache");
        let (expected, _) = outcome(&corpus.plan(HEAD), 0);
        let head = |size: &str| {
            format!("{HEAD}{FAST}[storage.cache]\ndir = {:?}\nmax_size = {size:?}\n", cache.display().to_string())
        };
        let go = |size: &str| {
            let plan = planned(&config(&corpus, &head(size), "cached", server.address));
            let (found, error) = outcome(&plan, 2);
            assert!(error.is_none() && found == expected, "{error:?}");
            plan.store.traffic()
        };
        let size_of = |folder: &Path| -> (u64, Vec<std::path::PathBuf>) {
            let (mut folders, mut files, mut total) = (vec![folder.to_owned()], Vec::new(), 0);
            while let Some(folder) = folders.pop() {
                for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
                    match entry.metadata().expect("it is there") {
                        metadata if metadata.is_dir() => folders.push(entry.path()),
                        metadata => {
                            total += metadata.len();
                            files.push(entry.path());
                        }
                    }
                }
            }
            files.sort();
            (total, files)
        };
        let first = go("1GiB");
        let second = go("1GiB");
        assert!(first.bytes > 5 << 20 && second.bytes < first.bytes / 4, "{first:?} {second:?}");
        assert!(second.cached_bytes > 5 << 20);
        for file in size_of(&cache).1.iter().filter(|file| file.parent() != Some(&cache)).step_by(3) {
            let bytes = std::fs::read(file).expect("it is there");
            std::fs::write(file, &bytes[..bytes.len() / 2]).expect("it can be written");
        }
        let third = go("1GiB");
        assert!(third.bytes > second.bytes);
        std::fs::remove_dir_all(&cache).expect("it can be removed");
        std::thread::scope(|scope| {
            let both: Vec<_> = (0..2).map(|_| scope.spawn(|| go("16MiB"))).collect();
            both.into_iter().for_each(|one| drop(one.join().expect("it ran")));
        });
        assert!(size_of(&cache).0 <= (16 << 20) + 100, "{}", size_of(&cache).0);
    });
}

/// What is asked for before the run begins is what the run reads, and no more is read than without.
#[test]
fn nothing_is_read_ahead_in_vain() {
    let Some(server) = server() else { return };
    within(120, || {
        let corpus = Corpus::new().source("table", Kind::Parquet, 1, 5000, 900, "max_epochs = 1").source(
            "text",
            Kind::Jsonl,
            1,
            2000,
            900,
            "max_epochs = 1",
        );
        prepared(server, &corpus, "ahead");
        let (expected, _) = outcome(&corpus.plan(HEAD), 0);
        let read = |ahead: bool| {
            let head = format!("{HEAD}{FAST}").replace("150ms", "10s");
            let plan = planned(&config(&corpus, &head, "ahead", server.address));
            if ahead {
                tokenmill::pipeline::read_ahead(&plan, 0, 1, None);
            }
            let (found, error) = outcome(&plan, 2);
            assert!(error.is_none() && found == expected, "{error:?}");
            (plan.store.traffic().bytes, plan.sources[0].manifest.bytes())
        };
        let ((with, table), (without, _)) = (read(true), read(false));
        assert!(table > 1 << 20 && with < without + table / 2, "{with} and {without} bytes, {table} of the table");
    });
}

/// Many small objects, each of which comes late: a lane fetches its next ones while it reads the one before.
#[test]
fn small_objects_are_fetched_before_their_turn() {
    let Some(server) = server() else { return };
    within(120, || {
        let corpus = Corpus::new().source("web", Kind::Jsonl, 120, 240, 200, "max_epochs = 1");
        prepared(server, &corpus, "late");
        let head = "lanes = 1\nblock_size = 64\nbatch_size = 4\n";
        let (expected, _) = outcome(&corpus.plan(head), 0);
        for threads in [0, 1] {
            let proxy = Proxy::start(server.address, Damage::Late(Duration::from_millis(20)), 1);
            let plan = planned(&config(&corpus, head, "late", proxy.address));
            let (found, error) = outcome(&plan, threads);
            assert!(error.is_none() && found == expected, "{threads} threads: {error:?}");
            let most = proxy.state.waiting_most.load(Ordering::SeqCst);
            assert!(most > 4, "{most} at once");
            // Nothing is fetched in vain.
            let bytes = plan.sources[0].manifest.bytes();
            assert!(plan.store.traffic().bytes < 2 * bytes, "{:?} of {bytes} bytes", plan.store.traffic());
        }
    });
}

/// Less than 64 MiB are held for a lane, however large parts and the bound of all together are; less than that bound for many.
#[test]
fn what_a_lane_holds() {
    let Some(server) = server() else { return };
    within(180, || {
        let corpus = Corpus::new().source("web", Kind::Jsonl, 1, 10, 100, "max_epochs = 1");
        let line = format!("{{\"text\":\"{}\"}}\n", "some words of a document ".repeat(400));
        let shard = corpus.path("web/000.jsonl");
        std::fs::write(&shard, line.repeat((200 << 20) / line.len())).expect("there is room");
        prepared(server, &corpus, "held");
        for (lanes, world_size, read_ahead, most) in
            [(1, 1, "4GiB", 64 << 20), (2, 2, "4GiB", 64 << 20), (2, 1, "4GiB", 128 << 20), (16, 2, "40MiB", 48 << 20)]
        {
            let head = format!(
                "lanes = {lanes}\nblock_size = 65536\nbatch_size = 1\n[shuffle]\nspan = \"100MiB\"\n[storage]\nread_ahead = {read_ahead:?}\n\
                 [storage.s3]\npart_size = \"16MiB\"\n"
            );
            let config = config(&corpus, &head, "held", server.address);
            let stores = Stores::new(&config.storage, config.runtime.memory, "".as_ref()).expect("nothing to go wrong");
            let stores = Arc::new(stores);
            let plan = Arc::new(Plan::with_store(&config, stores.clone()).expect("it is there"));
            let mut pipeline = start(&plan, How { threads: 2, world_size, ..SERIAL }, None).expect("a fresh run");
            take(&mut pipeline, 400);
            let peak = stores.read_ahead_peak();
            assert!((8 << 20..most).contains(&peak), "{lanes} lanes of {world_size} ranks: {peak} bytes");
        }
    });
}

/// The server is gone for a while in the middle of a run of the command: the report counts what was tried again.
#[test]
fn retries_are_reported() {
    let Some(server) = server() else { return };
    within(120, || {
        let corpus = Corpus::new().source("web", Kind::Jsonl, 4, 8000, 600, "max_epochs = 1");
        prepared(server, &corpus, "gone");
        let (expected, _) = outcome(&corpus.plan(HEAD), 0);
        let proxy = Proxy::start(server.address, Damage::Nothing, 1);
        let plan = planned(&config(&corpus, &format!("{HEAD}{FAST}tries = 500\n"), "gone", proxy.address));
        let killer = proxy.dies(20, Duration::from_secs(2));
        let (found, error) = outcome(&plan, 2);
        killer.join().expect("it only waits");
        assert!(error.is_none() && found == expected, "{error:?}");
        assert!(plan.store.traffic().retries > 3);
        // The command logs each and reports the sum.
        let busy = Proxy::start(server.address, Damage::Busy, 3);
        let (file, out) = (corpus.config_file(HEAD), corpus.path("report.json"));
        let endpoint = format!("storage.s3.endpoint=\"http://{}\"", busy.address);
        let output = run({
            let mut command =
                command(server, &["run", file.to_str().expect("UTF-8"), "--report", out.to_str().expect("UTF-8")]);
            command.args(["--set", "source.web.paths=[\"s3://gone/web/*\"]", "--set", &endpoint]);
            command
        });
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        let report = report(&out);
        let retries = report["storage"]["retries"].as_u64().expect("a number");
        assert!(retries > 0 && report["storage"]["retries_by"]["status"].as_u64().is_some_and(|n| n > 0), "{report}");
        assert_eq!(text.matches("retrying s3://gone/").count() as u64, retries, "{text}");
        assert!(text.contains("SlowDown") && text.contains("retries ("), "{text}");
    });
}
