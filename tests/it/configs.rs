//! Every file in `configs/` loads, so the examples people start from are never out of date.

use std::path::Path;
use std::process::Command;

use tokenmill::config::Config;

#[test]
fn every_example_loads() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|e| e == "toml") {
            Config::load(&path, &[]).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            count += 1;
        }
    }
    assert!(count >= 1, "there are examples");
}

/// A config that is written out and read again is the same: no key is lost, none needs more than its text.
#[test]
fn defaults_round_trip() {
    let text = "[[source]]\nname = \"a\"\npaths = [\"x\"]\n";
    let config = Config::parse(text, "".into(), &[]).expect("the shortest config");
    let written = toml::to_string(&config).expect("a config is TOML");
    assert_eq!(Config::parse(&written, "".into(), &[]).expect("what was written"), config);
}

/// The quickstart runs as it stands and prints what the README says it prints, apart from speeds.
#[test]
fn the_quickstart_is_as_the_readme_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("blocks.npy");
    let output = Command::new(env!("CARGO_BIN_EXE_tokenmill"))
        .current_dir(root)
        .args(["run", "configs/quickstart.toml", "--out"])
        .arg(&out)
        .env_remove("RANK")
        .env_remove("WORLD_SIZE")
        .output()
        .expect("it starts");
    let printed = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(output.status.success(), "{printed}");
    let readme = std::fs::read_to_string(root.join("README.md")).expect("it is there");
    let (counts, _) = printed.split_once(" MB of text in").expect("the summary");
    let counts = counts.lines().last().expect("a line");
    assert!(readme.contains(counts), "the README doesn't say: {counts}");
    for line in printed.lines().filter(|line| line.contains(" % of the tokens")) {
        assert!(readme.contains(line.trim()), "the README doesn't say: {line}");
    }
    let header = std::fs::read(&out).expect("the output");
    let header = String::from_utf8_lossy(&header[..128]).into_owned();
    let shape = header.split_once('(').and_then(|(_, rest)| rest.split_once(')')).expect("a shape").0;
    assert!(readme.contains(&format!("shape [{}]", shape.trim_end_matches(','))), "the README doesn't say: {shape}");
}
