//! JSON lines: every record in one window, its text that of serde_json, no panic on anything.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tokenmill::shard::{Format, ShardOptions};
use tokenmill_fuzz::{naive, open, options, records};

fuzz_target!(|data: &[u8]| {
    let Some((&first, content)) = data.split_first() else { return };
    let Ok(shard) = open(content, &ShardOptions { format: Format::Jsonl, ..options(first) }) else { return };
    let Some(found) = records(&shard) else { return };
    if shard.compression() == "none" {
        assert_eq!(found, naive(content, b"\n", true));
    }
    for (_, record) in &found {
        let mut scratch = String::new();
        let text = shard.text(record, &mut scratch);
        let expected: Result<Value, _> = serde_json::from_slice(record);
        match (&text, &expected) {
            (Ok(text), Ok(value)) => assert_eq!(value.get("text").and_then(Value::as_str), Some(*text)),
            (Err(error), Ok(Value::Object(object))) => {
                assert!(!matches!(object.get("text"), Some(Value::String(_))), "{error}: {object:?}");
            }
            (Err(_), _) => {}
            // serde_json refuses numbers beyond f64, counts depth otherwise, and refuses half a surrogate pair also in strings that
            // nobody asked for, where RFC 8259 allows it.
            (Ok(_), Err(error)) => {
                let words = error.to_string();
                let known = [
                    "number out of range",
                    "recursion limit",
                    "lone leading surrogate",
                    "unexpected end of hex escape",
                ];
                assert!(
                    known.iter().any(|known| words.starts_with(known)),
                    "{words}: {:?}",
                    String::from_utf8_lossy(record)
                );
            }
        }
    }
});
