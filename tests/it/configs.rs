//! Every file in `configs/` loads, so the examples people start from are never out of date.

use std::path::Path;

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
