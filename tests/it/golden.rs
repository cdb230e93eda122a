//! Golden runs: the digest of fixed corpora under fixed configs. A change here changes the stream of every user's run.
//!
//! Add a case by adding a line to `cases`; renew `tests/golden/digests.json` with UPDATE_GOLDEN=1 and read the diff.

use std::collections::BTreeMap;

use crate::corpus::*;

fn digest(blocks: &[tokenmill::block::Block]) -> String {
    let mut hasher = blake3::Hasher::new();
    for id in blocks.iter().flat_map(|block| &block.input_ids) {
        hasher.update(&id.to_le_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

fn cases() -> BTreeMap<String, String> {
    let mut cases = BTreeMap::new();
    let small = "lanes = 4\nblock_size = 64\nbatch_size = 4\n[shuffle]\nspan = 3000\nwindow = 700\n";
    for kind in ALL_KINDS {
        // The compressors' output may change with their versions; only layouts that don't hang on it are pinned.
        if matches!(kind, Kind::JsonlZstdFrames | Kind::JsonlZstdSeekable | Kind::Parquet) {
            continue;
        }
        let corpus = Corpus::new().source("a", kind, 3, 120, 150, "");
        let plan = corpus.plan(small);
        cases.insert(format!("{kind:?}"), digest(&blocks(&take(&mut start(&plan, SERIAL, None).expect("a run"), 60))));
    }
    let corpus = || {
        Corpus::new().source("web", Kind::Jsonl, 9, 200, 150, "weight = 0.7").source(
            "code",
            Kind::Text,
            2,
            200,
            150,
            "weight = 0.3",
        )
    };
    for (name, head) in [
        ("mixture", small.to_string()),
        ("seed 7", format!("seed = 7\n{small}")),
        ("not shuffled", "lanes = 4\nblock_size = 64\nbatch_size = 4\n[shuffle]\nenabled = false\n".into()),
        ("gpt2", format!("{small}[tokenizer]\npath = \"gpt2\"\n")),
    ] {
        let plan = corpus().plan_and_keep(&head);
        cases.insert(name.into(), digest(&blocks(&take(&mut start(&plan.1, SERIAL, None).expect("a run"), 60))));
    }
    cases
}

#[test]
fn digests_are_pinned() {
    let path = test_file("golden/digests.json");
    let found = serde_json::to_string_pretty(&cases()).expect("digests are JSON") + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(&path, &found).expect("the golden file is written");
    }
    let expected = std::fs::read_to_string(&path).expect("the golden file; UPDATE_GOLDEN=1 makes it");
    assert_eq!(found, expected);
}
