//! Configs: an error or a config that is the same when written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokenmill::config::Config;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (text, overrides) = match text.split_once('\0') {
        Some((text, overrides)) => (text, overrides.lines().map(str::to_owned).collect()),
        None => (text, Vec::new()),
    };
    let Ok(config) = Config::parse(text, "base".into(), &overrides) else { return };
    // TOML has no integers beyond 63 bits; what was written can't have had any.
    let written = toml::to_string(&config).expect("a config can be written");
    let again = Config::parse(&written, "base".into(), &[]).expect("what was written can be read");
    assert_eq!(again, config);
});
