//! Every decoder, on damaged streams: an error with its kind or records, in bounded memory; never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokenmill::shard::{Format, ShardOptions};
use tokenmill_fuzz::{open, records};

fuzz_target!(|data: &[u8]| {
    let Some((&first, content)) = data.split_first() else { return };
    let options = ShardOptions {
        format: if first & 1 == 0 { Format::Jsonl } else { Format::Auto },
        span: 1 << (4 + (first >> 5)),
        window: 1 << (4 + (first >> 2 & 7)),
        record_max: 64 << 10,
        ..ShardOptions::default()
    };
    let Ok(shard) = open(content, &options) else { return };
    records(&shard);
    for unit in 0..shard.units().min(3) {
        let _ = shard.byte_offset(unit, 3);
        let _ = shard.record_index(unit, 40);
    }
});
