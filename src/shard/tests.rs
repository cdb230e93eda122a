//! Goal: every record of a shard is in exactly one window, the same one for every reader, in every layout and codec; and
//! damage is an error that comes after what lies before it. Method: random shards against a split of the plain content.

use std::io::Write;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;

use super::*;

struct Memory(Vec<u8>);

impl Object for Memory {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let rest = &self.0[(offset as usize).min(self.0.len())..];
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

fn open(bytes: &[u8], name: &str, options: &ShardOptions) -> Result<Shard> {
    Shard::open(Arc::new(Memory(bytes.to_vec())), name.into(), options)
}

/// A small generator (xorshift): the seed of a failing case is in the message.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// Random bytes out of a few, with separators here and there.
fn content(random: &mut Random, separator: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    if random.below(8) == 0 {
        bytes.extend_from_slice(b"\xef\xbb\xbf");
    }
    let large = random.below(12) == 0;
    for _ in 0..random.below(if large { 20 } else { 60 }) {
        let size = match random.below(6) {
            0 => 0,
            1 => random.below(3),
            2 if large => random.below(200_000),
            3 => random.below(300),
            _ => random.below(30),
        };
        let alphabet: &[u8] = if random.below(4) == 0 { b" \t" } else { b"abc<>sep|- \xc3\xa9" };
        let line = (0..size).map(|_| alphabet[random.below(alphabet.len() as u64) as usize]);
        bytes.extend(line);
        if random.below(4) == 0 {
            bytes.push(b'\r');
        }
        bytes.extend_from_slice(separator.as_bytes());
    }
    if random.below(2) == 0 {
        bytes.extend_from_slice(b"the last one");
    }
    bytes
}

/// The records as (ordinal, offset, bytes), the slow way.
fn naive(content: &[u8], separator: &str, lines: bool) -> Vec<(u64, u64, Vec<u8>)> {
    let mut records = Vec::new();
    let (mut start, mut at, mut ordinal) = (0, 0, 0);
    let mut ends = Vec::new();
    while at < content.len() {
        if content[at..].starts_with(separator.as_bytes()) {
            ends.push((start, at));
            at += separator.len();
            start = at;
        } else {
            at += 1;
        }
    }
    ends.push((start, content.len()));
    for (mut start, mut end) in ends {
        if start == 0 && content.starts_with(b"\xef\xbb\xbf") {
            start = 3.min(end);
        }
        if lines && content[start..end].ends_with(b"\r") {
            end -= 1;
        }
        let record = &content[start..end];
        let blank = if lines { record.iter().all(|byte| b" \t\r\n\x0c".contains(byte)) } else { record.is_empty() };
        if !blank {
            records.push((ordinal, start as u64, record.to_vec()));
        }
        ordinal += 1;
    }
    records
}

/// Readers go to worker threads.
const _: fn() = || {
    fn is_send<T: Send + 'static>() {}
    is_send::<UnitReader>();
    is_send::<Shard>();
};

type Windows = Vec<Window>;

/// The windows of a unit that are wanted, and the error at the end if there is one.
fn windows(shard: &Shard, unit: u64, start: Start, wanted: &mut dyn FnMut(u64) -> bool) -> (Windows, Option<Error>) {
    let mut reader = match shard.read_unit(unit, start) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let (mut found, mut window) = (Vec::new(), Window::default());
    loop {
        let before = reader.position();
        match reader.next_window(&mut window, wanted) {
            Ok(true) => {
                assert!(window.index >= before, "window {} came after position {before}", window.index);
                assert!(reader.position() > window.index);
                found.push(window.clone());
            }
            Ok(false) => return (found, None),
            Err(error) => return (found, Some(error)),
        }
    }
}

fn read(shard: &Shard, unit: u64, start: Start, wanted: &mut dyn FnMut(u64) -> bool) -> Windows {
    let (windows, error) = windows(shard, unit, start, wanted);
    assert!(error.is_none(), "{}", error.expect("just seen"));
    windows
}

/// Windows without what depends on where a reader started.
fn alike(windows: &[Window]) -> Vec<(u64, u64, &[u8], &[crate::document::RecordRange])> {
    windows.iter().map(|window| (window.index, window.byte_start, &window.bytes[..], &window.records[..])).collect()
}

/// Reads all of `shard` in all ways and compares with the plain `content`.
fn check(shard: &Shard, content: &[u8], separator: &str, options: &ShardOptions, random: &mut Random) {
    let expected = naive(content, separator, shard.format() == Format::Jsonl);
    let longest = expected.iter().map(|(.., record)| record.len()).max().unwrap_or(0);
    let mut found = Vec::new();
    for unit in 0..shard.units() {
        let all = read(shard, unit, Start::default(), &mut |_| true);
        assert!(all.windows(2).all(|pair| pair[0].index < pair[1].index));
        for window in &all {
            assert!(!window.records.is_empty());
            // Blank lines in front and `\r` come on top, so the bound of the bytes is not exact to the byte.
            assert!(window.bytes.len() as u64 <= options.window + longest as u64 + 64 + blanks(content), "too large");
            for record in &window.records {
                found.push((unit, window.byte_start + u64::from(record.start), record.of(&window.bytes).to_vec()));
                if let Some(first) = window.first_record {
                    assert_eq!(first + u64::from(record.ordinal), expected[found.len() - 1].0);
                }
            }
        }
        // From every window on, and one in three.
        let last = all.last().map_or(0, |window| window.index);
        let starts: Vec<u64> =
            if last < 5 { (0..last + 2).collect() } else { (0..4).map(|_| random.below(last + 2)).collect() };
        for start in starts {
            let rest: Windows = all.iter().filter(|window| window.index >= start).cloned().collect();
            let again = read(shard, unit, Start { window: start, record: None }, &mut |_| true);
            assert_eq!(alike(&again), alike(&rest), "unit {unit} from window {start}");
        }
        let third: Windows = all.iter().filter(|window| window.index % 3 == 1).cloned().collect();
        let mut asked = Vec::new();
        let again = read(shard, unit, Start::default(), &mut |index| {
            asked.push(index);
            index % 3 == 1
        });
        assert_eq!(alike(&again), alike(&third), "one in three windows of unit {unit}");
        assert!(asked.is_sorted_by(|a, b| a < b), "asked for {asked:?}");
    }
    assert_eq!(found.len(), expected.len());
    for (place, ((unit, byte, record), (ordinal, offset, expected))) in found.iter().zip(&expected).enumerate() {
        assert_eq!(record, expected);
        if shard.layout() != "frames" {
            assert_eq!(byte, offset);
        }
        if place % (expected.len() / 4 + 1) == 0 {
            assert_eq!(shard.record_index(*unit, *byte).expect("readable"), *ordinal);
        }
    }
}

/// Bytes, with the places at which reading failed, where it went on, and why.
type Outcome = (Vec<u8>, Vec<(usize, Option<u64>, ErrorKind)>);

/// Damage lies at the same uncompressed byte however much is read at once, for every codec: what is passed over, and what a
/// state counts, depends on it.
#[test]
fn damage_lies_at_one_byte() {
    for seed in 1..40 {
        let mut random = Random::new(seed);
        let mut plain = Vec::new();
        // Beyond a block of every codec at times.
        let size = if seed % 8 == 0 { 1_500_000 } else { 60_000 };
        while plain.len() < size {
            plain.extend(format!("{{\"text\": \"{}\"}}\n", random.below(1 << 40)).into_bytes());
        }
        let frames: Vec<u8> = plain.chunks(20_000).flat_map(|part| zstd_frame(part, random.below(2) == 0)).collect();
        for mut bytes in [
            zstd_frame(&plain, false),
            frames,
            gzip(&plain),
            xz(&plain),
            bzip2(&plain),
            lz4(&plain),
            seekable(&plain, 9000),
        ] {
            let codec = Codec::detect(&Memory(bytes.clone())).expect("in memory");
            for _ in 0..1 + random.below(3) {
                let at = 20 + random.below(bytes.len() as u64 - 20) as usize;
                bytes[at] = random.below(256) as u8;
            }
            let object = || -> Arc<dyn Object> { Arc::new(Memory(bytes.clone())) };
            let table = match codec {
                Codec::Zstd => FrameTable::find(&object()).expect("in memory").map(Arc::new),
                _ => None,
            };
            let run = |step: &mut dyn FnMut() -> usize| {
                let mut decoder: Box<dyn Decode> = match &table {
                    Some(table) => Box::new(Zstd::at_frame(object(), table, 0, 0, None).expect("memory for it")),
                    None => codec.decoder(object()).expect("memory for it"),
                };
                // The bytes, with the places where reading failed and went on.
                let (mut found, mut places, mut out) = (Vec::new(), Vec::new(), vec![0; 4 << 20]);
                loop {
                    match decoder.read(&mut out[..step()]) {
                        Ok(0) => break,
                        Ok(count) => found.extend_from_slice(&out[..count]),
                        Err(error) => {
                            let next = if error.kind() == ErrorKind::Corrupt { decoder.recover() } else { None };
                            places.push((found.len(), next, error.kind()));
                            if next.is_none() {
                                break;
                            }
                        }
                    }
                }
                (found, places)
            };
            let expected = run(&mut || 4 << 20);
            let same = |what: &str, found: Outcome| {
                assert_eq!(found.1, expected.1, "{codec:?}, seed {seed}, {what}");
                assert!(found.0 == expected.0, "{codec:?}, seed {seed}, {what}");
            };
            same("a thousand at once", run(&mut || 1000));
            same("some at once", run(&mut || 1 + random.below(70_000) as usize));
        }
    }
}

/// The size of the longest run of blanks.
fn blanks(content: &[u8]) -> u64 {
    content.split(|byte| !byte.is_ascii_whitespace()).map(|run| run.len()).max().unwrap_or(0) as u64
}

fn zstd_frame(bytes: &[u8], told: bool) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).expect("a level");
    encoder.include_contentsize(told).expect("a flag");
    encoder.include_checksum(true).expect("a flag");
    if told {
        encoder.set_pledged_src_size(Some(bytes.len() as u64)).expect("a size");
    }
    encoder.write_all(bytes).expect("to memory");
    encoder.finish().expect("to memory")
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::GzBuilder::new().filename("a name").write(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("to memory");
    encoder.finish().expect("to memory")
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    liblzma::encode_all(bytes, 0).expect("to memory")
}

fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    encoder.write_all(bytes).expect("to memory");
    encoder.finish().expect("to memory")
}

fn lz4(bytes: &[u8]) -> Vec<u8> {
    let info = lz4_flex::frame::FrameInfo::new().content_checksum(true).block_mode(lz4_flex::frame::BlockMode::Linked);
    let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
    encoder.write_all(bytes).expect("to memory");
    encoder.finish().expect("to memory")
}

fn seekable(bytes: &[u8], frame: u32) -> Vec<u8> {
    let mut out = Vec::new();
    let options = zeekstd::EncodeOptions::new()
        .checksum_flag(true)
        .frame_size_policy(zeekstd::FrameSizePolicy::Uncompressed(frame));
    let mut encoder = options.into_encoder(&mut out).expect("options");
    encoder.write_all(bytes).expect("to memory");
    encoder.finish().expect("to memory");
    out
}

const SKIPPABLE: &[u8] = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc";

/// Every way of compressing `content` that is read, with the layout it should have (`None`: any).
fn compressed(content: &[u8], random: &mut Random) -> Vec<(&'static str, Vec<u8>)> {
    let pieces = {
        let (mut pieces, mut at) = (Vec::new(), 0);
        while at < content.len() {
            let size = 1 + random.below(1 + content.len() as u64 / 3) as usize;
            pieces.push(&content[at..content.len().min(at + size)]);
            at += size;
        }
        if random.below(3) == 0 {
            pieces.push(b"");
        }
        pieces
    };
    let many = |encode: &dyn Fn(&[u8]) -> Vec<u8>| pieces.iter().flat_map(|piece| encode(piece)).collect::<Vec<u8>>();
    let padded = [gzip(content), vec![0; 100]].concat();
    let mixed = many(&|piece| [SKIPPABLE, &zstd_frame(piece, piece.len() % 2 == 0), SKIPPABLE].concat());
    vec![
        ("plain", content.to_vec()),
        ("zstd", zstd_frame(content, false)),
        ("zstd with size", zstd_frame(content, true)),
        ("zstd frames", many(&|piece| zstd_frame(piece, false))),
        ("zstd frames with size", many(&|piece| zstd_frame(piece, true))),
        ("zstd frames, mixed", if mixed.is_empty() { zstd_frame(b"", true) } else { mixed }),
        ("zstd seekable", seekable(content, 1 + content.len() as u32 / 4)),
        ("gzip", gzip(content)),
        ("gzip padded", padded),
        ("gzip members", many(&gzip)),
        ("xz", xz(content)),
        ("xz streams", many(&xz)),
        ("bzip2", bzip2(content)),
        ("bzip2 streams", many(&bzip2)),
        ("lz4", lz4(content)),
        ("lz4 frames", [SKIPPABLE.to_vec(), many(&lz4), lz4(b"")].concat()),
    ]
}

#[test]
fn each_record_is_in_one_window() {
    for seed in 1..100u64 {
        let mut random = Random::new(seed);
        let lines = seed % 2 == 0;
        let separator = if lines { "\n" } else { ["\n", "<|sep|>", "\n\n", "--", "ab"][random.below(5) as usize] };
        let content = content(&mut random, separator);
        let size = content.len() as u64;
        let options = ShardOptions {
            format: if lines { Format::Jsonl } else { Format::Text },
            separator: (!lines).then(|| separator.to_owned()),
            span: 1 + random.below(size.max(1)).max(size / 12),
            window: 1 + random.below(size.max(1)).max(size / 60),
            ..ShardOptions::default()
        };
        for (how, bytes) in compressed(&content, &mut random) {
            eprintln!("seed {seed}, {how}, {} bytes, {options:?}", content.len());
            let shard = open(&bytes, "shard", &options).expect("a sound shard");
            check(&shard, &content, separator, &options, &mut random);
        }
    }
}

#[test]
fn layouts_are_found() {
    let content = b"{\"text\":\"a\"}\n".repeat(1000);
    let options = ShardOptions { span: 2000, window: 100, ..ShardOptions::default() };
    let mut random = Random(7);
    for (how, bytes) in compressed(&content, &mut random) {
        let shard = open(&bytes, "a shard of no special name", &options).expect("a sound shard");
        let (layout, units) = match how {
            "plain" => ("ranges", 7..=7),
            "zstd seekable" | "zstd frames with size" => ("frames", 2..=7),
            // Frames that don't tell their sizes are taken to be three times their compressed size.
            "zstd frames" | "zstd frames, mixed" => ("frames", 1..=7),
            _ => ("stream", 1..=1),
        };
        assert_eq!((shard.layout(), shard.format()), (layout, Format::Jsonl), "{how}");
        assert!(units.contains(&shard.units()), "{how}: {} units", shard.units());
        assert_eq!(shard.compression(), if how == "plain" { "none" } else { how.split(' ').next().expect("a word") });
    }
}

#[test]
fn formats_are_resolved() {
    let check = |bytes: &[u8], name: &str, expected: std::result::Result<Format, ErrorKind>| {
        let found =
            open(bytes, name, &ShardOptions::default()).map(|shard| shard.format()).map_err(|error| error.kind());
        assert_eq!(found, expected, "{name}: {bytes:?}");
    };
    check(b"x", "a.jsonl", Ok(Format::Jsonl));
    check(b"x", "a.JSON.gz", Ok(Format::Jsonl));
    check(&gzip(b"{}"), "a.txt.zst", Ok(Format::Text));
    check(b"x", "a.md", Ok(Format::Text));
    check(b"\xef\xbb\xbf \n {", "a", Ok(Format::Jsonl));
    check(b"", "a", Ok(Format::Jsonl));
    check(b"x", "a.bin", Err(ErrorKind::Config));
    check(b"x", "a.parquet", Err(ErrorKind::Corrupt));
    check(b"PAR1xxxx", "a.jsonl", Err(ErrorKind::Corrupt));
    check(b"\xff\xfe{\0", "a.jsonl", Err(ErrorKind::Corrupt));
}

/// Text without a separator is one document, whatever its size and codec; a record beyond the limit is an error with its place.
#[test]
fn whole_files_and_limits() {
    let options = ShardOptions { window: 10, span: 10, record_max: 500_000, ..ShardOptions::default() };
    let document = "some\n\ntext é ".repeat(10_000);
    let with_mark = ["\u{feff}", &document].concat();
    for bytes in [document.clone().into_bytes(), gzip(document.as_bytes()), with_mark.into_bytes()] {
        let shard = open(&bytes, "a.txt", &options).expect("a sound shard");
        assert_eq!((shard.units(), shard.is_stream()), (1, true));
        let all = read(&shard, 0, Start::default(), &mut |_| true);
        assert_eq!((all.len(), all[0].records.len()), (1, 1));
        let mut scratch = String::new();
        assert_eq!(shard.text(all[0].records[0].of(&all[0].bytes), &mut scratch).expect("UTF-8"), document);
        assert!(read(&shard, 0, Start { window: 1, record: None }, &mut |_| true).is_empty());
    }
    let long = "x".repeat(600_000);
    let (found, error) =
        windows(&open(long.as_bytes(), "a.txt", &options).expect("opens"), 0, Start::default(), &mut |_| true);
    assert!(found.is_empty());
    assert_eq!(error.expect("too long").kind(), ErrorKind::Limit);
    for line in [format!("{{}}\n{long}\n{{}}\n"), format!("{{}}\n{long}{long}{long}{long}\n{{}}\n")] {
        for window in [1, 10, 1 << 20] {
            let options = ShardOptions { window, span: 1 << 30, ..options.clone() };
            let shard = open(line.as_bytes(), "a.jsonl", &options).expect("opens");
            let (_, error) = windows(&shard, 0, Start::default(), &mut |_| true);
            let error = error.expect("too long");
            assert_eq!((error.kind(), error.place().byte), (ErrorKind::Limit, Some(3)), "{error}");
        }
    }
}

/// A record of 50 MB in windows of 2 MiB, and none in empty shards.
#[test]
fn large_and_empty_shards() {
    let options = ShardOptions::default();
    let long = format!("{{\"text\": \"{}\"}}", "a".repeat(50_000_000));
    let bytes = zstd_frame(format!("{{}}\n{long}\n{{}}").as_bytes(), true);
    let shard = open(&bytes, "a.jsonl.zst", &options).expect("a sound shard");
    let all = read(&shard, 0, Start::default(), &mut |_| true);
    let sizes: Vec<u32> = all.iter().flat_map(|window| window.records.iter().map(|record| record.len)).collect();
    assert_eq!(sizes, [2, long.len() as u32, 2]);
    for empty in [b"".to_vec(), gzip(b""), zstd_frame(b"", true), xz(b""), bzip2(b""), lz4(b""), b"\n \n\r\n".to_vec()]
    {
        let shard = open(&empty, "a.jsonl", &options).expect("empty, and sound");
        assert!((0..shard.units()).all(|unit| read(&shard, unit, Start::default(), &mut |_| true).is_empty()));
    }
}

/// All windows of all units up to an error.
fn read_some(shard: &Shard) -> (Windows, Option<Error>) {
    let mut all = Vec::new();
    for unit in 0..shard.units().min(1000) {
        let (found, error) = windows(shard, unit, Start::default(), &mut |_| true);
        all.extend(found);
        if error.is_some() {
            return (all, error);
        }
    }
    (all, None)
}

/// A compressed shard that is cut, extended or changed is an error, and windows before the damage come first.
#[test]
fn damage_is_an_error() {
    let mut random = Random(3);
    let content: Vec<u8> = (0..3000)
        .flat_map(|line| format!("{{\"text\": \"line {line} {}\"}}\n", random.below(1 << 40)).into_bytes())
        .collect();
    let options = ShardOptions { span: 30_000, window: 2_000, ..ShardOptions::default() };
    let sound = open(&content, "a.jsonl", &ShardOptions { span: 1 << 30, ..options.clone() }).expect("a sound shard");
    let expected: Vec<Vec<u8>> = records(&read_some(&sound).0);
    let mut random = Random(5);
    for (how, bytes) in compressed(&content, &mut random) {
        if how == "plain" {
            continue;
        }
        let borders: Vec<usize> = match how.split_once(' ') {
            // A cut between two members leaves a sound shard.
            Some((
                _,
                "members" | "streams" | "frames" | "frames with size" | "frames, mixed" | "seekable" | "padded",
            )) => (0..bytes.len()).filter(|&at| is_border(&bytes, at)).collect(),
            _ => Vec::new(),
        };
        for _ in 0..40 {
            let cut = 20 + random.below(bytes.len() as u64 - 20) as usize;
            if borders.contains(&cut) || how == "gzip padded" && cut + 100 >= bytes.len() {
                continue;
            }
            let Ok(shard) = open(&bytes[..cut], "a.jsonl", &options) else { continue };
            let (found, error) = read_some(&shard);
            let error = error.unwrap_or_else(|| panic!("{how} cut at {cut} of {}: no error", bytes.len()));
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{how}: {error}");
            assert!(error.place().byte.is_some() && error.place().shard.is_some());
            let found = records(&found);
            assert_eq!(found, expected[..found.len()], "{how} cut at {cut}");
        }
        for tail in [&b"x"[..], b"garbage after the end", &[0, 1]] {
            let shard = open(&[&bytes[..], tail].concat(), "a.jsonl", &options).expect("the beginning is sound");
            let (found, error) = read_some(&shard);
            assert_eq!(error.expect("garbage at the end").kind(), ErrorKind::Corrupt, "{how} and {tail:?}");
            let found = records(&found);
            assert_eq!(found, expected[..found.len()]);
            assert!(how.contains("xz") || found.len() > expected.len() / 2, "{how}: {} records", found.len());
        }
        for _ in 0..60 {
            let mut changed = bytes.clone();
            let at = random.below(bytes.len() as u64) as usize;
            changed[at] ^= 1 << random.below(8);
            let Ok(shard) = open(&changed, "a.jsonl", &options) else { continue };
            let (found, error) = read_some(&shard);
            if error.is_none() && shard.compression() != "none" {
                // The change hit what nothing depends on (a name, a date, padding) or made a frame skippable... never the text.
                let found = records(&found);
                assert!(found == expected, "{how} changed at {at}: {} records", found.len());
            }
        }
    }
}

fn records(windows: &[Window]) -> Vec<Vec<u8>> {
    windows.iter().flat_map(|window| window.records.iter().map(|record| record.of(&window.bytes).to_vec())).collect()
}

/// Whether a member, stream or frame may start at `at`.
fn is_border(bytes: &[u8], at: usize) -> bool {
    [
        &b"\x1f\x8b\x08"[..],
        b"\x28\xb5\x2f\xfd",
        b"\xfd7zXZ",
        b"BZh",
        b"\x04\x22\x4d\x18",
        b"\x50\x2a\x4d\x18",
        b"\x5e\x2a\x4d\x18",
    ]
    .iter()
    .any(|magic| bytes[at..].starts_with(magic))
}

/// A seek table that lies is found out, as is one of another file; a window beyond the limit is refused before memory is taken.
#[test]
fn hostile_zstd() {
    let content = b"{\"text\": \"a\"}\n".repeat(5000);
    let bytes = seekable(&content, 10_000);
    let options = ShardOptions { span: 15_000, window: 1000, ..ShardOptions::default() };
    assert!(read_some(&open(&bytes, "a.jsonl", &options).expect("sound")).1.is_none());
    let entries = bytes.len() - 9 - 8 * 7;
    for (at, name) in
        [(entries, "a compressed size"), (entries + 4, "a content size"), (entries + 12, "another content size")]
    {
        let mut changed = bytes.clone();
        changed[at] ^= 4;
        let shard = open(&changed, "a.jsonl", &options).expect("opens");
        let (_, error) = read_some(&shard);
        // With sizes that don't add up, the table isn't one of this object, and the frames are walked instead.
        if name != "a compressed size" {
            assert_eq!(error.expect("the table lies").kind(), ErrorKind::Corrupt, "{name}");
        }
    }
    // Window descriptor of 2^31 bytes, no content size.
    let frame = b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00";
    let shard = open(frame, "a.jsonl", &options).expect("opens");
    let error = read_some(&shard).1.expect("too large");
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
}

struct Table {
    rows: Vec<Option<String>>,
    bytes: Vec<u8>,
}

/// A file of random rows in row groups of random sizes, the text in `doc.text`.
fn parquet_file(random: &mut Random, groups: u64, nullable: bool) -> Table {
    let schema = if nullable {
        "message m { required int64 id; optional group doc { optional binary text (UTF8); } }"
    } else {
        "message m { required int64 id; required group doc { required binary text (UTF8); } }"
    };
    let schema = Arc::new(parquet::schema::parser::parse_message_type(schema).expect("a schema"));
    let codec =
        [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(Default::default()), Compression::LZ4_RAW];
    let properties = WriterProperties::builder()
        .set_compression(codec[random.below(4) as usize])
        .set_dictionary_enabled(random.below(2) == 0)
        .set_data_page_size_limit(500)
        .set_write_batch_size(8)
        .set_data_page_row_count_limit(20)
        .build();
    let mut bytes = Vec::new();
    let mut rows = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties)).expect("to memory");
    for _ in 0..groups {
        let count = random.below(80);
        let texts: Vec<Option<String>> = (0..count)
            .map(|_| match random.below(6) {
                0 if nullable => None,
                1 => Some(String::new()),
                2 => Some("long ".repeat(random.below(200) as usize)),
                _ => Some(format!("row {}", random.below(20))),
            })
            .collect();
        let mut group = writer.next_row_group().expect("to memory");
        let mut column = group.next_column().expect("to memory").expect("the first column");
        let ids: Vec<i64> = (0..count as i64).collect();
        column.typed::<Int64Type>().write_batch(&ids, None, None).expect("to memory");
        column.close().expect("to memory");
        let mut column = group.next_column().expect("to memory").expect("the second column");
        let values: Vec<ByteArray> = texts.iter().flatten().map(|text| ByteArray::from(text.as_str())).collect();
        let levels: Vec<i16> =
            texts.iter().map(|text| if text.is_some() { 2 } else { random.below(2) as i16 }).collect();
        column.typed::<ByteArrayType>().write_batch(&values, nullable.then_some(&levels[..]), None).expect("to memory");
        column.close().expect("to memory");
        group.close().expect("to memory");
        rows.extend(texts);
    }
    writer.close().expect("to memory");
    Table { rows, bytes }
}

#[test]
fn each_row_is_in_one_window() {
    for seed in 1..150u64 {
        let mut random = Random::new(seed);
        let groups = random.below(6);
        let table = parquet_file(&mut random, groups, seed % 2 == 0);
        let options = ShardOptions {
            text_field: "doc.text".into(),
            span: 1 + random.below(3000),
            window: 1 + random.below(2000),
            ..ShardOptions::default()
        };
        eprintln!("seed {seed}, {} rows, {options:?}", table.rows.len());
        let shard = open(&table.bytes, "a shard", &options).expect("a sound shard");
        assert_eq!((shard.format(), shard.layout(), shard.is_stream()), (Format::Parquet, "rowgroups", false));
        let mut found = Vec::new();
        for unit in 0..shard.units() {
            let all = read(&shard, unit, Start::default(), &mut |_| true);
            for (index, window) in all.iter().enumerate() {
                assert_eq!((window.index, window.first_record), (index as u64, Some(found.len() as u64)));
                assert!(window.records.len() == 1 || window.bytes.len() as u64 <= options.window);
                for record in &window.records {
                    let text = String::from_utf8(record.of(&window.bytes).to_vec()).expect("UTF-8");
                    found.push((!record.null).then_some(text));
                }
            }
            for start in 0..=all.len() {
                let row = all.get(start).and_then(|window| window.first_record);
                for record in [None, row] {
                    let again = read(&shard, unit, Start { window: start as u64, record }, &mut |_| true);
                    assert_eq!(again, all[start..], "unit {unit} from window {start}, row {record:?}");
                }
            }
            let odd: Windows = all.iter().filter(|window| window.index % 2 == 1).cloned().collect();
            assert_eq!(read(&shard, unit, Start::default(), &mut |index| index % 2 == 1), odd);
        }
        assert_eq!(found, table.rows);
        if groups > 1 && options.span < 200 {
            assert!(shard.units() > groups / 2, "a large row group is cut: {} units", shard.units());
        }
    }
}

#[test]
fn columns_are_checked() {
    let table = parquet_file(&mut Random(1), 2, true);
    for (field, expected) in [
        ("text", "no column \"text\", found id, doc.text"),
        ("doc", "no column \"doc\""),
        ("id", "column \"id\" is INT64, expected a string or binary"),
    ] {
        let options = ShardOptions { text_field: field.into(), ..ShardOptions::default() };
        let error = open(&table.bytes, "a.parquet", &options).err().expect("not a column of text");
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.detail().contains(expected), "{error}");
    }
}

/// Cut or changed Parquet files: an error, or rows, but no panic and no endless loop.
#[test]
fn damaged_parquet() {
    let mut random = Random(11);
    for seed in 0..10u64 {
        let table = parquet_file(&mut random, 3, seed % 2 == 0);
        let options =
            ShardOptions { text_field: "doc.text".into(), span: 1000, window: 500, ..ShardOptions::default() };
        for round in 0..150 {
            let mut bytes = table.bytes.clone();
            if round % 3 == 0 {
                bytes.truncate(4 + random.below(bytes.len() as u64 - 4) as usize);
                let error = open(&bytes, "a.parquet", &options).err().expect("the footer is cut off");
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                continue;
            }
            for _ in 0..1 + random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            if let Ok(shard) = open(&bytes, "a.parquet", &options) {
                read_some(&shard);
            }
        }
    }
}
