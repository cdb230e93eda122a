//! Plain text between separators, overlapping ones too: every piece in one window, in order within its unit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokenmill::shard::{Format, ShardOptions};
use tokenmill_fuzz::{naive, open, options, records};

fuzz_target!(|data: &[u8]| {
    let [first, size, rest @ ..] = data else { return };
    let size = 1 + usize::from(size % 8);
    let Some((separator, content)) = rest.split_at_checked(size) else { return };
    let Ok(separator) = std::str::from_utf8(separator) else { return };
    let whole = *first == 0;
    let separator = (!whole).then(|| separator.to_owned());
    let options = ShardOptions { format: Format::Text, separator: separator.clone(), ..options(*first) };
    let Ok(shard) = open(content, &options) else { return };
    let Some(found) = records(&shard) else { return };
    if shard.compression() != "none" {
        return;
    }
    match separator {
        Some(separator) => assert_eq!(found, naive(content, separator.as_bytes(), false)),
        None => assert!(found.len() <= 1),
    }
});
