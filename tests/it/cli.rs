//! The command as a user runs it: exit status, errors, kills and resumes of a real process.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::command::*;
use crate::corpus::*;

/// Killed with SIGKILL at random moments, three times in a row, then resumed: the file is that of a run never stopped.
#[cfg(unix)]
#[test]
fn killed_runs_go_on_exactly() {
    let corpus = Corpus::new().source("web", Kind::JsonlZstd, 2, 4000, 900, "max_epochs = 3").source(
        "code",
        Kind::Jsonl,
        3,
        3000,
        600,
        "max_epochs = 3",
    );
    let config = corpus.config_file(HEAD);
    let whole = corpus.path("whole.npy");
    assert!(run(&["run", text(&config), "--out", text(&whole), "--quiet"]).status.success());
    let (out, checkpoints) = (corpus.path("killed.npy"), corpus.path("checkpoints"));
    let mut killed = 0;
    for attempt in 0..60u64 {
        let mut command = tokenmill();
        command.args(["run", text(&config), "--out", text(&out), "--quiet", "--checkpoint", text(&checkpoints)]);
        command.args(["--checkpoint-every", "40"]);
        if checkpoints.exists() && has_checkpoint(&checkpoints) {
            command.args(["--resume", text(&checkpoints)]);
        }
        let mut child = command.spawn().expect("the command starts");
        if killed < 3 {
            std::thread::sleep(Duration::from_millis(40 + random(attempt, 0, 200)));
            if child.try_wait().expect("its status").is_none() {
                child.kill().expect("SIGKILL");
                killed += 1;
            }
            child.wait().expect("its end");
            continue;
        }
        let status = child.wait().expect("its end");
        assert!(status.success(), "{status}");
        break;
    }
    assert_eq!(killed, 3, "the run was long enough to be killed three times");
    let (found, expected) = (std::fs::read(out).expect("the output"), std::fs::read(whole).expect("the output"));
    assert!(found == expected, "{} bytes, expected {}", found.len(), expected.len());
}

/// Killed with SIGKILL at random moments for a minute, over shards of every layout: after each resume the output is a
/// beginning of the run's never stopped, and in the end all of it. The seed of the moments is printed.
#[cfg(unix)]
#[test]
fn killed_for_a_minute() {
    let seed = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64;
    println!("seed {seed}");
    let (begin, mut runs, mut kills, mut early) = (std::time::Instant::now(), 0, 0u64, 0);
    for format in ["npy", "jsonl"].into_iter().cycle() {
        if begin.elapsed() > Duration::from_secs(60) && runs >= 2 {
            break;
        }
        let corpus = Corpus::new()
            .source("stream", Kind::JsonlZstd, 2, 4000, 900, "weight = 0.4\nmax_epochs = 3")
            .source("rows", Kind::Parquet, 3, 2000, 600, "weight = 0.2\nmax_epochs = 3")
            .source("lines", Kind::Jsonl, 3, 3000, 600, "weight = 0.4\nmax_epochs = 3");
        let config = corpus.config_file(HEAD);
        let whole = corpus.path(&format!("whole.{format}"));
        let started = std::time::Instant::now();
        assert!(run(&["run", text(&config), "--out", text(&whole), "--quiet"]).status.success());
        let length = started.elapsed().as_millis() as u64;
        let expected = std::fs::read(whole).expect("the output");
        let (out, checkpoints) = (corpus.path(&format!("killed.{format}")), corpus.path("checkpoints"));
        for attempt in 0.. {
            let mut command = tokenmill();
            command.args(["run", text(&config), "--out", text(&out), "--quiet", "--checkpoint", text(&checkpoints)]);
            command.args(["--checkpoint-every", "23"]);
            if has_checkpoint(&checkpoints) {
                command.args(["--resume", text(&checkpoints)]);
            } else {
                // Killed before its first checkpoint was whole: it starts anew.
                early += u64::from(attempt > 0);
            }
            let mut child = command.stderr(Stdio::piped()).spawn().expect("the command starts");
            // After many kills of a run it is left to end.
            if attempt < 25 {
                std::thread::sleep(Duration::from_millis(1 + random(seed, kills, (length / 2).clamp(60, 600))));
                if child.try_wait().expect("its status").is_none() {
                    child.kill().expect("SIGKILL");
                    kills += 1;
                    child.wait().expect("its end");
                    continue;
                }
            }
            let output = child.wait_with_output().expect("its end");
            assert!(output.status.success(), "seed {seed}, run {runs}, attempt {attempt}: {output:?}");
            break;
        }
        let found = std::fs::read(&out).expect("the output");
        assert!(found == expected, "seed {seed}, run {runs}: {} bytes, expected {}", found.len(), expected.len());
        runs += 1;
    }
    println!("{kills} kills in {runs} runs, {early} before the first checkpoint");
    assert!(kills > 20, "{kills} kills in a minute");
}

/// No room for a checkpoint: the run fails with status 1, and the checkpoint before is whole and can be resumed from.
#[cfg(unix)]
#[test]
fn a_full_disk_under_the_checkpoints() {
    use std::os::unix::process::CommandExt;
    let corpus = corpus();
    let config = corpus.config_file(HEAD);
    let checkpoints = corpus.path("checkpoints");
    let (config, folder) = (text(&config), text(&checkpoints));
    assert!(run(&["run", config, "--quiet", "--batches", "5", "--checkpoint", folder]).status.success());
    let before = tokenmill::state::load(&checkpoints).expect("the checkpoint");
    let mut command = tokenmill();
    command.args(["run", config, "--quiet", "--resume", folder, "--checkpoint", folder, "--checkpoint-every", "3"]);
    // SAFETY: both calls may be made between fork and exec.
    unsafe {
        command.pre_exec(|| {
            // As on a full disk, a write is an error and no signal.
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            let limit = libc::rlimit { rlim_cur: 700, rlim_max: 700 };
            match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    let output = command.output().expect("the command starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("write failed: can't write the checkpoint") && stderr.contains("step-00000006"),
        "{stderr}"
    );
    assert_eq!(tokenmill::state::load(&checkpoints).expect("the checkpoint before"), before);
    let left = std::fs::read_dir(checkpoints.join("step-00000006")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "nothing half written stays");
    assert!(run(&["run", config, "--quiet", "--resume", folder, "--batches", "3"]).status.success());
}

fn has_checkpoint(folder: &Path) -> bool {
    tokenmill::state::load(folder).is_ok()
}

/// SIGINT and SIGTERM end a run with a checkpoint and the shell's exit status; what follows is what was left out.
#[cfg(unix)]
#[test]
fn signals_end_with_a_checkpoint() {
    for (signal, status) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let corpus = Corpus::new().source("web", Kind::Jsonl, 2, 2000, 900, "");
        let config = corpus.config_file(HEAD);
        let (out, checkpoints) = (corpus.path("out.jsonl"), corpus.path("checkpoints"));
        let mut child = tokenmill()
            .args(["run", text(&config), "--out", text(&out), "--quiet", "--checkpoint", text(&checkpoints)])
            .spawn()
            .expect("the command starts");
        std::thread::sleep(Duration::from_millis(300));
        // SAFETY: the child is ours and not yet waited for.
        assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
        assert_eq!(child.wait().expect("its end").code(), Some(status));
        let state = tokenmill::state::load(&checkpoints).expect("the last checkpoint");
        assert_eq!(lines(&out).len() as u64, state.step * 4);
        let more = run(&[
            "run",
            text(&config),
            "--out",
            text(&out),
            "--quiet",
            "--resume",
            text(&checkpoints),
            "--batches",
            "5",
        ]);
        assert!(more.status.success(), "{more:?}");
        let all: Vec<u64> = lines(&out).iter().map(|line| line["g"].as_u64().expect("a number")).collect();
        assert_eq!(all, (0..(state.step + 5) * 4).collect::<Vec<_>>());
    }
}

/// Two ranks' outputs interleave to the single rank's.
#[test]
fn ranks_share_the_blocks() {
    let corpus = corpus();
    let config = corpus.config_file(HEAD);
    let single = corpus.path("single.jsonl");
    assert!(run(&["run", text(&config), "--out", text(&single), "--quiet", "--batches", "20"]).status.success());
    let mut both = Vec::new();
    for rank in ["0", "1"] {
        let out = corpus.path(&format!("rank{rank}.jsonl"));
        let status = tokenmill()
            .env("RANK", rank)
            .env("WORLD_SIZE", "2")
            .args(["run", text(&config), "--out", text(&out), "--quiet", "--batches", "20", "--set", "batch_size=2"])
            .status();
        assert!(status.expect("the command starts").success());
        both.extend(lines(&out));
    }
    both.sort_by_key(|line| line["g"].as_u64());
    assert_eq!(both, lines(&single));
}

/// Wrong use: the exit status, one error line that says what was found and expected, and no backtrace.
#[test]
fn wrong_use_is_explained() {
    let corpus = corpus();
    let config = corpus.config_file(HEAD);
    let check = |arguments: &[&str], status: i32, words: &[&str]| {
        let output = run(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {stderr}");
        assert_eq!(stderr.lines().filter(|line| line.starts_with("error:")).count(), 1, "{arguments:?}: {stderr}");
        assert!(!stderr.contains("panicked") && !stderr.contains("backtrace"), "{stderr}");
        for word in words {
            assert!(stderr.contains(word), "{arguments:?}: {stderr}");
        }
    };
    let config = text(&config);
    check(&["run", "missing.toml"], 2, &["missing.toml"]);
    check(&["run", config, "--set", "shufle.window=1"], 2, &["shufle", "nearest", "shuffle"]);
    check(&["run", config, "--set", "source.web.paths=[\"nothing/*.jsonl\"]"], 2, &["nothing/*.jsonl"]);
    check(&["run", config, "--set", "source.web.paths=[\"gone.jsonl\"]"], 2, &["gone.jsonl"]);
    check(
        &["run", config, "--set", "source.web.text_field=body"],
        1,
        &["no \"body\" field", "web/00", "record ", "byte "],
    );
    check(&["run", config, "--world-size", "3"], 2, &["world size 3", "lanes = 4"]);
    check(&["run", config, "--rank", "2", "--world-size", "2"], 2, &["rank 2"]);
    check(&["run", config, "--set", "tokenizer.path=nowhere.json"], 2, &["nowhere.json"]);
    check(&["run", config, "--set", "block_size=0"], 2, &["block_size", "expected"]);
    check(&["run", config, "--resume", "nowhere"], 2, &["nowhere"]);
    check(&["run", config, "--out", "/nowhere/x.npy"], 1, &["/nowhere/x.npy"]);
    check(&["run", config, "--out", "blocks.xyz"], 2, &["--format"]);
    let output = run(&["run"]);
    assert_eq!(output.status.code(), Some(2));
}

/// A checkpoint of another run is refused with every difference, at the start and before anything is overwritten.
#[test]
fn foreign_checkpoints_are_refused() {
    let corpus = corpus();
    let config = corpus.config_file(HEAD);
    let checkpoints = corpus.path("checkpoints");
    let (config, folder) = (text(&config), text(&checkpoints));
    assert!(run(&["run", config, "--quiet", "--batches", "5", "--checkpoint", folder]).status.success());
    let check = |arguments: &[&str], words: &[&str]| {
        let output = run(&[&["run", config, "--batches", "1", "--quiet"], arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        words.iter().for_each(|word| assert!(stderr.contains(word), "{arguments:?}: {stderr}"));
    };
    check(&["--resume", folder, "--set", "seed=1"], &["seed: found 1, expected 42"]);
    check(&["--resume", folder, "--set", "block_size=32"], &["block_size: found 32, expected 64"]);
    check(&["--resume", folder, "--set", "tokenizer.path=gpt2"], &["tokenizer: found \"gpt2\"", "expected \"bytes\""]);
    check(&["--checkpoint", folder, "--set", "seed=1"], &["another run", "seed"]);
    check(&["--checkpoint", folder], &["this run up to step 5"]);
    let file: PathBuf = checkpoints.join("step-00000005/rank-00000-of-00001.json");
    assert!(file.exists());
    std::fs::write(&file, b"{\"version\": 99}").expect("the file is ours");
    check(&["--resume", folder], &["version 99, expected 2"]);
    std::fs::write(&file, b"garbage").expect("the file is ours");
    check(&["--resume", text(&file)], &["not a checkpoint"]);
}

/// Every key that may not change says so, all of them in one error, found and expected.
#[test]
fn all_differences_are_one_error() {
    let corpus = corpus();
    let config = corpus.config_file(HEAD);
    let checkpoints = corpus.path("checkpoints");
    let (config, folder) = (text(&config), text(&checkpoints));
    assert!(run(&["run", config, "--quiet", "--batches", "5", "--checkpoint", folder]).status.success());
    let changes = [
        ("seed=7", "seed: found 7, expected 42"),
        ("block_size=32", "block_size: found 32, expected 64"),
        ("stop=first", "stop: found \"first\", expected \"all\""),
        ("packing.tail=pad", "\"tail\":\"pad\""),
        ("shuffle.window=1KiB", "shuffle: found "),
        ("tokenizer.append_eos=false", "tokenizer: found \"bytes\""),
        ("source.web.text_field=body", "source \"web\", text_field: found \"body\", expected \"text\""),
        ("source.web.format=text", "source \"web\", format: found \"text\", expected \"auto\""),
        ("source.web.separator=##", "source \"web\", separator: found \"##\", expected null"),
        ("source.code.max_epochs=4", "source \"code\", max_epochs: found 4, expected 3"),
        ("source.code.paths=[\"code/000.parquet\"]", "source \"code\", data: found 1 shards"),
    ];
    let check = |changes: &[(&str, &str)]| {
        let mut arguments = vec!["run", config, "--quiet", "--batches", "1", "--resume", folder];
        changes.iter().for_each(|(set, _)| arguments.extend(["--set", set]));
        let output = run(&arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert_eq!(stderr.lines().filter(|line| line.starts_with("error: state mismatch")).count(), 1, "{stderr}");
        changes.iter().for_each(|(_, words)| assert!(stderr.contains(words), "{words}: {stderr}"));
    };
    changes.iter().for_each(|change| check(std::slice::from_ref(change)));
    check(&changes);
    // Runtime options, batch size and weights go on.
    let mut arguments = vec!["run", config, "--batches", "1", "--resume", folder];
    for set in
        ["batch_size=8", "runtime.threads=1", "runtime.memory=1GiB", "errors.bad_record=skip", "source.web.weight=9"]
    {
        arguments.extend(["--set", set]);
    }
    let output = run(&arguments);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    for words in ["weights changed since the checkpoint", "batch size changed since the checkpoint"] {
        assert!(stderr.contains(words), "{stderr}");
    }
}

/// The processes of a world size, all at once; each must succeed.
fn ranks(world_size: u32, arguments: &dyn Fn(u32) -> Vec<String>) {
    let children: Vec<_> = (0..world_size)
        .map(|rank| {
            let mut command = tokenmill();
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", world_size.to_string());
            command.args(arguments(rank)).stderr(Stdio::piped()).spawn().expect("the command starts")
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().expect("its end");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// 8, 2, 4, 1 and 8 processes one after the other on one folder of checkpoints, the last ones to the very end, where ranks end
/// at different steps: together they wrote what one process writes.
#[test]
fn processes_come_and_go() {
    let corpus = Corpus::new().source("web", Kind::JsonlGzip, 9, 700, 300, "weight = 0.7\nmax_epochs = 2").source(
        "code",
        Kind::Jsonl,
        2,
        400,
        300,
        "weight = 0.3\nmax_epochs = 2",
    );
    let head = HEAD.replace("lanes = 4", "lanes = 8");
    let config = corpus.config_file(&head);
    let (single, folder) = (corpus.path("single.jsonl"), corpus.path("checkpoints"));
    assert!(run(&["run", text(&config), "--out", text(&single), "--quiet"]).status.success());
    let mut all = Vec::new();
    for (turn, world_size) in [8u32, 2, 4, 1, 8].into_iter().enumerate() {
        let out = |rank: u32| corpus.path(&format!("turn{turn}-rank{rank}.jsonl"));
        ranks(world_size, &|rank| {
            let batch_size = format!("batch_size={}", 8 / world_size);
            let mut list = vec!["run", text(&config), "-q", "--checkpoint-every", "7", "--set", &batch_size];
            let (out, resume) = (out(rank), turn > 0);
            list.extend(["--out", text(&out), "--checkpoint", text(&folder)]);
            if resume {
                list.extend(["--resume", text(&folder)]);
            }
            if turn < 4 {
                list.extend(["--batches", "11"]);
            }
            list.into_iter().map(str::to_owned).collect()
        });
        (0..world_size).for_each(|rank| all.extend(lines(&out(rank))));
    }
    all.sort_by_key(|line| line["g"].as_u64());
    let mut expected = lines(&single);
    expected.sort_by_key(|line| line["g"].as_u64());
    assert_eq!(all.len(), expected.len());
    assert!(all == expected);
    // The ranks have ended at different steps, and still the whole is there: a resume has nothing left to deliver.
    let steps: Vec<_> = std::fs::read_dir(&folder).expect("steps").map(|e| e.expect("an entry").path()).collect();
    let last = |path: &&PathBuf| {
        !path.join("rank-00000-of-00008.json").exists() || !path.join("rank-00007-of-00008.json").exists()
    };
    assert!(steps.iter().any(|step| last(&step)), "ranks end at different steps");
    let state = tokenmill::state::load(&folder).expect("the end is complete");
    assert!(state.ended() && state.missing_lanes().is_empty());
    let newest = steps.iter().max().expect("a step");
    assert_eq!(newest.file_name().and_then(|n| n.to_str()), Some(format!("step-{:08}", state.step).as_str()));
    let more = corpus.path("more.jsonl");
    let output = run(&["run", text(&config), "-q", "--out", text(&more), "--resume", text(&folder)]);
    assert!(output.status.success(), "{output:?}");
    assert!(lines(&more).is_empty());
}

/// Folders of checkpoints that lack something, or have too much: what is complete wins, what is not is said, and what is
/// damaged is an error that names lanes and files.
#[test]
fn sets_of_files_are_checked() {
    let corpus = corpus();
    let config = corpus.config_file(HEAD);
    let folder = corpus.path("checkpoints");
    let path = |step: u64, rank: u32, of: u32| folder.join(format!("step-{step:08}/rank-{rank:05}-of-{of:05}.json"));
    let deliver = |world_size: u32, batches: u32, resume: bool| {
        ranks(world_size, &|_| {
            let (batches, size) = (batches.to_string(), format!("batch_size={}", 4 / world_size));
            let mut list = vec!["run", text(&config), "-q", "--batches", &batches, "--checkpoint-every", "2"];
            list.extend(["--checkpoint", text(&folder), "--set", &size]);
            list.extend(if resume { vec!["--resume", text(&folder)] } else { vec![] });
            list.into_iter().map(str::to_owned).collect()
        });
    };
    deliver(2, 6, false);
    let load = |path: &Path| tokenmill::state::load(path);
    let fails = |path: &Path, words: &[&str]| {
        let error = load(path).expect_err("something is wrong").to_string();
        words.iter().for_each(|word| assert!(error.contains(word), "{word}: {error}"));
    };
    let step = |state: tokenmill::error::Result<tokenmill::state::Checkpoint>| state.expect("it is complete").step;
    assert_eq!(step(load(&folder)), 6);
    let (file, kept) = (path(6, 1, 2), std::fs::read(path(6, 1, 2)).expect("the file"));
    // One file stands for its step.
    assert_eq!(load(&file).expect("with its sibling").cursors.len(), 4);
    // What a writer that was killed leaves is no checkpoint.
    std::fs::write(folder.join("step-00000006/.rank-00000-of-00002.json.tmp"), b"{\"vers").expect("written");
    assert_eq!(step(load(&folder)), 6);
    // Missing: the step before; named by itself, an error.
    std::fs::remove_file(&file).expect("removed");
    assert_eq!(step(load(&folder)), 4);
    let output = run(&["run", text(&config), "-q", "--batches", "1", "--resume", text(&folder)]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && stderr.contains("passed over") && stderr.contains("lanes 1, 3"), "{stderr}");
    for named in [folder.join("step-00000006"), path(6, 0, 2)] {
        fails(&named, &["not found", "lanes 1, 3 are not covered", "found rank-00000-of-00002.json"]);
    }
    // Empty, torn, garbage, of another version: never passed over.
    for (bytes, words) in [
        (&b""[..], "not a checkpoint"),
        (&kept[..kept.len() / 2], "not a checkpoint"),
        (&b"\x00\xff garbage"[..], "not a checkpoint"),
        (&b"{\"version\": 99}"[..], "version 99, expected 2"),
    ] {
        std::fs::write(&file, bytes).expect("written");
        for named in [&folder, &file, &path(6, 0, 2)] {
            fails(named, &[words, "state mismatch", "2 of 4 lanes are not covered: 1, 3", "rank-00001-of-00002.json"]);
        }
    }
    // Of another step, of another rank: what the file says counts, not its name.
    std::fs::copy(path(4, 1, 2), &file).expect("copied");
    fails(&folder, &["holds step 4, rank 1 of 2, expected step 6", "is of step 4, expected 6 as in"]);
    std::fs::copy(path(6, 0, 2), &file).expect("copied");
    fails(
        &folder,
        &["holds step 6, rank 0 of 2, expected step 6, rank 1 of 2", "lanes 0, 2 are in", "not covered: 1, 3"],
    );
    // Of another run.
    let other = corpus.path("other");
    let arguments = ["run", text(&config), "-q", "--batches", "6", "--rank", "1", "--world-size", "2", "--checkpoint"];
    assert!(
        run(&[&arguments[..], &[text(&other), "--set", "seed=7", "--set", "batch_size=2"]].concat()).status.success()
    );
    std::fs::copy(other.join("step-00000006/rank-00001-of-00002.json"), &file).expect("copied");
    fails(&folder, &["is of another run than", "seed: found 7, expected 42", "not covered: 1, 3"]);
    // Two world sizes in a step: the same place is the same; another place is an error that asks which.
    std::fs::write(&file, &kept).expect("written");
    let whole = load(&folder).expect("it is complete");
    let mut single = whole.clone();
    (single.rank, single.world_size) = (0, 1);
    tokenmill::state::save(&folder, &single).expect("saved");
    assert_eq!(load(&folder).expect("either will do").cursors, whole.cursors);
    single.cursors = load(&path(4, 0, 2)).expect("it is complete").cursors;
    tokenmill::state::save(&folder, &single).expect("saved");
    fails(&folder, &["complete checkpoints of 1 and of 2 ranks, which differ"]);
    assert_eq!(load(&file).expect("the one meant").cursors, whole.cursors);
    std::fs::remove_file(path(6, 0, 1)).expect("removed");
    // Files of two world sizes, neither complete.
    std::fs::copy(path(6, 0, 2), path(6, 0, 4)).expect("copied");
    std::fs::remove_file(&file).expect("removed");
    fails(&folder.join("step-00000006"), &["found rank-00000-of-00002.json", "found rank-00000-of-00004.json"]);
    assert_eq!(step(load(&folder)), 4);
}

/// Ranks of a fresh run that start later than others find those's checkpoints in the folder, and go on; a second run doesn't.
#[test]
fn a_slow_rank_may_start_late() {
    let corpus = corpus();
    let config = corpus.config_file(HEAD);
    let folder = corpus.path("checkpoints");
    let rank = |rank: &str| {
        let arguments = ["run", text(&config), "-q", "--batches", "4", "--rank", rank, "--world-size", "2"];
        run(&[&arguments[..], &["--checkpoint", text(&folder)]].concat())
    };
    assert!(rank("0").status.success());
    assert!(rank("1").status.success());
    for again in ["0", "1"] {
        let output = rank(again);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && stderr.contains("this run up to step 4"), "{stderr}");
    }
    let single = run(&["run", text(&config), "-q", "--batches", "4", "--checkpoint", text(&folder)]);
    assert_eq!(single.status.code(), Some(1));
}

/// Every example config of the repository runs on the sample it names, or says what is missing.
#[test]
fn quickstart_runs() {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/quickstart.toml");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("blocks.npy");
    let output = run(&["run", text(&config), "--out", text(&out)]);
    assert!(output.status.success(), "{output:?}");
    assert!(std::fs::metadata(&out).expect("the array").len() > 128);
}

/// The schema is JSON and knows the keys of the config.
#[test]
fn schema_prints() {
    let output = run(&["schema"]);
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for key in
        ["seed", "lanes", "block_size", "batch_size", "tokenizer", "source", "shuffle", "packing", "errors", "runtime"]
    {
        assert!(!schema["properties"][key].is_null(), "{key}");
    }
}

/// Both ranks of a finite run end together, by counts that one of them wrote; the file of a resumed one is that of one never stopped.
#[test]
fn even_ranks_end_together() {
    let corpus = corpus();
    let config = corpus.config_file(&HEAD.replace("batch_size = 4", "batch_size = 7"));
    let (counts, folder) = (corpus.path("counts.json"), corpus.path("checkpoints"));
    let counted = run(&["count", text(&config), "--json"]);
    let counted: serde_json::Value = serde_json::from_slice(&counted.stdout).expect("JSON");
    for mode in ["drop", "pad"] {
        let mut batches = Vec::new();
        let mut blocks = 0;
        for rank in ["0", "1"] {
            let (whole, parts) =
                (corpus.path(&format!("whole-{mode}-{rank}.npy")), corpus.path(&format!("parts-{mode}-{rank}.npy")));
            let report = corpus.path("report.json");
            let base =
                ["run", text(&config), "--quiet", "--even", mode, "--even-counts", text(&counts), "--rank", rank];
            let base = [&base[..], &["--world-size", "2"]].concat();
            let output = run(&[&base[..], &["--out", text(&whole), "--report", text(&report)]].concat());
            assert!(output.status.success(), "{output:?}");
            assert!(counts.exists());
            let report: serde_json::Value =
                serde_json::from_slice(&std::fs::read(&report).expect("the report")).expect("JSON");
            batches.push(report["batches"].as_u64().expect("a number"));
            let number = |key: &str| report[key].as_i64().expect("a number");
            blocks += number("blocks") + number("dropped_blocks") - number("padded_blocks");
            // Ranks run one after another here, and a fresh run refuses a folder with later steps.
            let folder = folder.join(mode).join(rank);
            let part = [&base[..], &["--out", text(&parts), "--checkpoint", text(&folder)]].concat();
            assert!(run(&[&part[..], &["--batches", &(batches[0] - 1).to_string()]].concat()).status.success());
        }
        assert_eq!(batches[0], batches[1]);
        assert_eq!(blocks, counted["blocks"].as_i64().expect("a number"));
        let step = format!("step-{:08}", batches[0] - 1);
        let name = "rank-00001-of-00002.json";
        let folder = folder.join(mode);
        std::fs::copy(folder.join("1").join(&step).join(name), folder.join("0").join(&step).join(name))
            .expect("a copy");
        for rank in ["0", "1"] {
            let (whole, parts) =
                (corpus.path(&format!("whole-{mode}-{rank}.npy")), corpus.path(&format!("parts-{mode}-{rank}.npy")));
            let folder = folder.join("0").join(&step);
            let base = ["run", text(&config), "--quiet", "--even", mode, "--rank", rank, "--world-size", "2"];
            let output = run(&[&base[..], &["--out", text(&parts), "--resume", text(&folder)]].concat());
            assert!(output.status.success(), "{output:?}");
            assert!(
                std::fs::read(whole).expect("the array") == std::fs::read(parts).expect("the array"),
                "{mode} {rank}"
            );
        }
    }
}

/// A block's documents are named, as a table and as JSON, the same with and without checkpoints.
#[test]
fn locate_names_documents() {
    let corpus = corpus();
    let config = corpus.config_file(HEAD);
    let folder = corpus.path("checkpoints");
    let arguments = ["run", text(&config), "--quiet", "--batches", "30", "--checkpoint", text(&folder)];
    assert!(run(&[&arguments[..], &["--checkpoint-every", "7"]].concat()).status.success());
    let find = |extra: &[&str]| run(&[&["locate", text(&config), "--block", "90"], extra].concat());
    let shown = String::from_utf8(find(&[]).stdout).expect("UTF-8");
    assert!(shown.starts_with("block 90  lane 2  source "), "{shown}");
    let found: serde_json::Value = serde_json::from_slice(&find(&["--json"]).stdout).expect("JSON");
    assert_eq!((&found["block"], &found["lane"]), (&90.into(), &2.into()));
    assert_eq!(found["documents"][0]["tokens_in_block"]["start"], 0);
    let resumed = find(&["--json", "--resume", text(&folder)]);
    assert_eq!(found, serde_json::from_slice::<serde_json::Value>(&resumed.stdout).expect("JSON"));
    let gone = run(&["locate", text(&config), "--block", "99999999"]);
    assert_eq!(gone.status.code(), Some(2), "{gone:?}");
}
