//! What `--out` holds: the formats agree, and a file that is continued is that of a run never stopped.

use std::path::Path;

use crate::command::*;

/// The three formats hold the same blocks, and the report counts them.
#[test]
fn formats_and_report_agree() {
    let corpus = corpus();
    let config = corpus.config_file(HEAD);
    let (jsonl, npy, report) = (corpus.path("out.jsonl"), corpus.path("out.npy"), corpus.path("report.json"));
    let output = run(&["run", text(&config), "--out", text(&jsonl), "--report", text(&report)]);
    assert!(output.status.success(), "{output:?}");
    let summary = String::from_utf8_lossy(&output.stderr);
    assert!(summary.contains("MB/s") && summary.contains("web: ") && summary.contains(text(&jsonl)), "{summary}");
    let lines = lines(&jsonl);
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(report).expect("the report")).expect("JSON");
    assert_eq!(report["blocks"], lines.len());
    let mut ids = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        assert_eq!(line["lane"], line["g"].as_u64().expect("a number") % 4, "line {i}");
        for key in ["input_ids", "segment_ids", "position_ids"] {
            assert_eq!(line[key].as_array().map(Vec::len), Some(64));
        }
        let block = line["input_ids"].as_array().expect("ids");
        ids.extend(block.iter().flat_map(|id| (id.as_u64().expect("an id") as u32).to_le_bytes()));
    }
    assert_eq!(report["digest"], blake3::hash(&ids).to_hex().to_string());
    for key in [
        "batches",
        "tokens",
        "documents",
        "text_bytes",
        "startup_seconds",
        "seconds",
        "text_bytes_per_second",
        "tokens_per_second",
        "engine",
        "peak_rss_bytes",
        "first_batch_seconds",
    ] {
        assert!(!report[key].is_null(), "{key}");
    }
    assert_eq!(report["sources"]["web"]["epoch"], 2);
    assert!(run(&["run", text(&config), "--out", text(&npy), "--quiet"]).status.success());
    let bytes = std::fs::read(&npy).expect("the array");
    assert_eq!(bytes[128..], ids);
    assert!(String::from_utf8_lossy(&bytes[..128]).contains(&format!("'shape': ({}, 64)", lines.len())));
    let parquet = corpus.path("out.parquet");
    assert!(run(&["run", text(&config), "--out", text(&parquet), "--quiet"]).status.success());
    let reader = parquet::file::reader::SerializedFileReader::new(std::fs::File::open(parquet).expect("the file"));
    use parquet::file::reader::FileReader;
    let rows: Vec<_> =
        reader.expect("it is Parquet").get_row_iter(None).expect("rows").map(|r| r.expect("a row")).collect();
    assert_eq!(rows.len(), lines.len());
    for (column, key) in [(3, "input_ids"), (4, "segment_ids"), (5, "position_ids")] {
        use parquet::record::{ListAccessor, RowAccessor};
        let list = rows[5].get_list(column).expect("a list");
        let ids: Vec<i32> = (0..list.len()).map(|i| list.get_int(i).expect("an id")).collect();
        assert_eq!(serde_json::json!(ids), lines[5][key]);
    }
}

/// Standard output gets the lines and nothing else.
#[test]
fn standard_output_is_clean() {
    let corpus = corpus();
    let config = corpus.config_file(HEAD);
    let output = run(&["run", text(&config), "--out", "-", "--batches", "3"]);
    assert!(output.status.success());
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(stdout.lines().count(), 12);
    assert!(stdout.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
}

/// No room for the output: the run fails with status 1 and one line that names the file.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_under_the_output() {
    let corpus = corpus();
    let config = corpus.config_file(HEAD);
    for format in ["jsonl", "npy", "parquet"] {
        let output = run(&["run", text(&config), "--out", "/dev/full", "--format", format, "--quiet"]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{format}: {stderr}");
        assert!(stderr.starts_with("error: write failed: can't write /dev/full\n  because: "), "{format}: {stderr}");
        assert!(!stderr.contains("panicked"), "{format}: {stderr}");
    }
    let output = run(&["run", text(&config), "--quiet", "--batches", "1", "--report", "/dev/full"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

/// A removed source's blocks stay in the file that is continued.
#[test]
fn a_continued_file_keeps_the_blocks_of_removed_sources() {
    let corpus = corpus();
    let config = corpus.config_file(HEAD);
    let (out, folder) = (corpus.path("out.jsonl"), corpus.path("checkpoints"));
    let first = ["run", text(&config), "-q", "--out", text(&out), "--checkpoint", text(&folder), "--batches", "9"];
    assert!(run(&first).status.success());
    let before = lines(&out);
    let code = std::fs::read_to_string(&config).expect("the config");
    let start = code.find("[[source]]\nname = \"code\"").expect("the source");
    std::fs::write(&config, &code[..start]).expect("the config is written");
    let more = run(&["run", text(&config), "--out", text(&out), "--resume", text(&folder), "--batches", "3"]);
    let stderr = String::from_utf8_lossy(&more.stderr).into_owned();
    assert!(more.status.success(), "{stderr}");
    assert!(stderr.contains("source removed since the checkpoint"), "{stderr}");
    let after = lines(&out);
    assert_eq!(after.len(), before.len() + 12);
    assert_eq!(after[..before.len()], before);
    assert!(after[before.len()..].iter().all(|line| line["source"] == "web"));
}

/// Skipped batches are not in the file, whether the run was stopped before, in or after them, and the report counts them.
#[test]
fn skipped_batches_are_left_out_of_the_file() {
    let corpus = corpus();
    let config = corpus.config_file(HEAD);
    let (whole, parts, report) = (corpus.path("whole.npy"), corpus.path("parts.npy"), corpus.path("report.json"));
    let skip = ["--skip-batches", "10..20", "--skip-batches", "25..26"];
    let all = [&["run", text(&config), "--quiet", "--out", text(&whole)], &skip[..]].concat();
    assert!(run(&[&all[..], &["--report", text(&report), "--batches", "40"]].concat()).status.success());
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(report).expect("the report")).expect("JSON");
    assert_eq!((&report["batches"], &report["step"], &report["skipped_batches"]), (&40.into(), &51.into(), &11.into()));
    let whole = std::fs::read(whole).expect("the array");
    assert_eq!(report["digest"], blake3::hash(&whole[128..]).to_hex().to_string());
    assert_eq!(report["tokens"], (whole.len() - 128) / 4);
    for stop in ["9", "10", "11", "30"] {
        let folder = corpus.path(&format!("checkpoints-{stop}"));
        let _ = std::fs::remove_file(&parts);
        let part = ["run", text(&config), "--quiet", "--out", text(&parts), "--checkpoint", text(&folder)];
        let first = [&part[..], &skip, &["--batches", stop, "--checkpoint-every", "4"]].concat();
        assert!(run(&first).status.success());
        assert!(folder.join("step-00000012").exists() == (stop != "9" && stop != "10"), "a checkpoint in the range");
        let rest = (40 - stop.parse::<u64>().expect("a number")).to_string();
        let resumed = run(&[&part[..], &["--resume", text(&folder), "--batches", &rest], &skip[2..]].concat());
        let again = run(&[&part[..], &["--resume", text(&folder), "--batches", "0"], &skip].concat());
        match stop {
            // The first range had not begun, so nobody is told of it.
            "9" | "10" => assert!(resumed.status.success()),
            _ => {
                assert!(resumed.status.success() && again.status.success(), "{resumed:?} {again:?}");
                assert!(std::fs::read(&parts).expect("the array") == whole, "stopped after {stop} batches");
            }
        }
    }
    // From a checkpoint inside of the range, without being told again.
    let folder = corpus.path("checkpoints-30").join("step-00000012");
    let part = ["run", text(&config), "--quiet", "--out", text(&parts), "--resume", text(&folder), "--batches", "30"];
    assert!(run(&[&part[..], &["--skip-batches", "25..26"]].concat()).status.success());
    assert!(std::fs::read(&parts).expect("the array") == whole);
    let output = run(&[&part[..], &["--skip-batches", "5..9"]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("batch 5 was delivered"), "{output:?}");
}

/// Copies a folder of checkpoints.
fn copied(from: &Path, to: &Path) {
    for step in std::fs::read_dir(from).expect("steps").map(|step| step.expect("a step").path()) {
        let folder = to.join(step.file_name().expect("a name"));
        std::fs::create_dir_all(&folder).expect("a folder");
        for file in std::fs::read_dir(step).expect("files").map(|file| file.expect("a file").path()) {
            std::fs::copy(&file, folder.join(file.file_name().expect("a name"))).expect("a copy");
        }
    }
}

/// Outputs begun at a resume at another world size: stopped before and after the first checkpoint there, the same command
/// goes on, and they end up as those of ranks never stopped.
#[test]
fn outputs_begun_at_a_resume_are_continued() {
    let corpus = corpus();
    let config = corpus.config_file(HEAD);
    let (folder, reference) = (corpus.path("checkpoints"), corpus.path("reference"));
    assert!(run(&["run", text(&config), "-q", "--batches", "5", "--checkpoint", text(&folder)]).status.success());
    copied(&folder, &reference);
    for format in ["jsonl", "npy"] {
        let checkpoints = corpus.path(&format!("checkpoints-{format}"));
        copied(&folder, &checkpoints);
        let two = |rank: &str, out: &Path, from: &Path, save: bool, batches: &str| {
            let mut list =
                vec!["run", text(&config), "-q", "--set", "batch_size=2", "--world-size", "2", "--rank", rank];
            list.extend(["--out", text(out), "--resume", text(from), "--batches", batches]);
            if save {
                list.extend(["--checkpoint", text(from)]);
            }
            let output = run(&list);
            assert!(output.status.success(), "rank {rank}: {output:?}");
        };
        let out = |rank: &str| corpus.path(&format!("stopped-{rank}.{format}"));
        // A call that saves nothing is one killed after its last checkpoint.
        for (save, batches) in [(false, "3"), (true, "6"), (false, "2"), (false, "0"), (true, "4")] {
            ["0", "1"].iter().for_each(|rank| two(rank, &out(rank), &checkpoints, save, batches));
        }
        for rank in ["0", "1"] {
            let whole = corpus.path(&format!("whole-{rank}.{format}"));
            two(rank, &whole, &reference, false, "10");
            let (found, expected) = (std::fs::read(out(rank)).expect("it"), std::fs::read(whole).expect("it"));
            assert!(found == expected, "rank {rank}, {format}: {} bytes, expected {}", found.len(), expected.len());
        }
    }
}

/// A new file at the same world size begins where the checkpoint stands, also when the same command is given again, however
/// many rows it has got by then; a fresh run over it is one from the start.
#[test]
fn a_new_file_begins_at_the_checkpoint() {
    let corpus = corpus();
    let config = corpus.config_file(HEAD);
    let (whole, part, folder) = (corpus.path("whole.npy"), corpus.path("part.npy"), corpus.path("checkpoints"));
    let rows = |path: &Path| std::fs::read(path).expect("the array").split_off(128);
    let row = 64 * 4;
    assert!(run(&["run", text(&config), "-q", "--out", text(&whole), "--batches", "20"]).status.success());
    let first = ["run", text(&config), "-q", "--batches", "5", "--checkpoint", text(&folder)];
    assert!(run(&first).status.success());
    let more = ["run", text(&config), "-q", "--out", text(&part), "--resume", text(&folder), "--batches"];
    for batches in [10usize, 2, 7] {
        assert!(run(&[&more[..], &[&batches.to_string()]].concat()).status.success());
        assert!(rows(&part) == rows(&whole)[20 * row..(20 + 4 * batches) * row], "{batches} batches");
    }
    let folder = corpus.path("fresh");
    let fresh = ["run", text(&config), "-q", "--out", text(&part), "--checkpoint", text(&folder), "--batches"];
    assert!(run(&[&fresh[..], &["8"]].concat()).status.success());
    assert!(rows(&part) == rows(&whole)[..32 * row]);
    assert!(run(&[&fresh[..], &["12", "--resume", text(&folder)]].concat()).status.success());
    assert!(std::fs::read(&part).expect("the array") == std::fs::read(&whole).expect("the array"));
}

/// What isn't the rank's own output is refused, and stays as it was.
#[test]
fn foreign_outputs_are_refused() {
    let corpus = corpus();
    let config = corpus.config_file(HEAD);
    let (one, out) = (corpus.path("one.npy"), corpus.path("two.npy"));
    let (folder, late) = (corpus.path("checkpoints"), corpus.path("late"));
    let begin = ["run", text(&config), "-q", "--out", text(&one), "--checkpoint"];
    assert!(run(&[&begin[..], &[text(&folder), "--batches", "5"]].concat()).status.success());
    assert!(run(&[&begin[..], &[text(&late), "--batches", "9"]].concat()).status.success());
    let two = |rank: &str, out: &Path, from: &Path| {
        let ranks = ["--set", "batch_size=2", "--world-size", "2", "--rank", rank, "--batches", "3"];
        run(&[&["run", text(&config), "-q", "--out", text(out), "--resume", text(from)], &ranks[..]].concat())
    };
    let refused = |output: std::process::Output, words: &str, out: &Path, before: &[u8]| {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(words) && stderr.contains(text(out)), "{stderr}");
        assert!(std::fs::read(out).expect("the output") == before, "{words}: it has changed");
    };
    let before = std::fs::read(&one).expect("the array");
    refused(
        two("0", &one, &folder),
        "the checkpoint is of another rank or world size; expected a new file",
        &one,
        &before,
    );
    assert!(two("0", &out, &late).status.success());
    let before = std::fs::read(&out).expect("the array");
    refused(two("1", &out, &late), "the file is of rank 0 of 2, and this is rank 1 of 2", &out, &before);
    refused(two("0", &out, &folder), "begins after 18 blocks, and the checkpoint stands at 10", &out, &before);
    let beside = corpus.path("two.npy.begin.json");
    assert!(beside.exists());
    std::fs::write(&beside, b"[1, 2").expect("the file is ours");
    refused(two("0", &out, &late), "two.npy.begin.json: not what a run keeps beside its output", &out, &before);
    std::fs::write(&beside, vec![b' '; 3 << 20]).expect("the file is ours");
    refused(two("0", &out, &late), "two.npy.begin.json: not what a run keeps beside its output", &out, &before);
    std::fs::remove_file(&beside).expect("the file is ours");
    refused(two("0", &out, &late), "the checkpoint is of another rank or world size", &out, &before);
    let parquet = corpus.path("two.parquet");
    assert!(two("0", &parquet, &late).status.success());
    let before = std::fs::read(&parquet).expect("the file");
    refused(two("0", &parquet, &late), "a Parquet file can't be continued", &parquet, &before);
}
