//! Writes seeds for the targets, a folder each: `seeds FOLDER`. They are made and not kept, so a change of a format renews them.

use std::io::Write;
use std::path::Path;

const LINES: &str = "{\"id\":1,\"text\":\"one \\u00e9\\n\"}\r\n\n{\"text\":\"\"}\n{\"meta\":{\"text\":[1,2.5e3,null,true]},\"text\":\"\\ud83d\\ude00 two\"}\n\
                     {\"text\":\"a\",\"text\":\"b\"}\n{\"text\":null}\nnot json\n{\"text\":\"the last\"}";

const CHATS: [&str; 6] = [
    r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"a\n"},{"role":"assistant","content":"b"}]}"#,
    r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":null,"tool_calls":[{"type":"function","function":{"name":"f","arguments":{"x":[1,2.5]}}}]},{"role":"tool","content":"3"}],"tools":[{"type":"function","function":{"name":"f"}}]}"#,
    r#"{"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"<|im_end|>b"}]}"#,
    r#"{"instruction":"a","input":"b","output":"c"}"#,
    r#"{"prompt":"a","completion":[{"role":"assistant","content":"b"}]}"#,
    r#"{"text":"a \u00e9"}"#,
];

const CONFIG: &str = include_str!("../../../configs/pretrain.toml");

fn write(folder: &Path, target: &str, seeds: &[Vec<u8>]) -> std::io::Result<()> {
    let folder = folder.join(target);
    std::fs::create_dir_all(&folder)?;
    for (number, seed) in seeds.iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{number:02}")), seed)?;
    }
    Ok(())
}

fn with(head: &[u8], content: &[u8]) -> Vec<u8> {
    [head, content].concat()
}

/// `content` in every compression, and some in more than one stream.
fn compressed(content: &[u8]) -> std::io::Result<Vec<Vec<u8>>> {
    let gzip = |content: &[u8]| -> std::io::Result<Vec<u8>> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(content)?;
        encoder.finish()
    };
    let (first, second) = content.split_at(content.len() / 2);
    let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
    xz.write_all(content)?;
    let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    bzip2.write_all(content)?;
    let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
    lz4.write_all(content)?;
    Ok(vec![
        gzip(content)?,
        [gzip(first)?, gzip(second)?].concat(),
        zstd::encode_all(content, 3)?,
        [zstd::bulk::compress(first, 3)?, zstd::bulk::compress(second, 3)?].concat(),
        [zstd::encode_all(first, 3)?, b"\x50\x2a\x4d\x18\x02\0\0\0ab".to_vec(), zstd::encode_all(second, 3)?].concat(),
        xz.finish()?,
        bzip2.finish()?,
        lz4.finish().map_err(std::io::Error::other)?,
    ])
}

fn main() -> std::io::Result<()> {
    let folder = std::env::args().nth(1).ok_or_else(|| std::io::Error::other("expected a folder"))?;
    let folder = Path::new(&folder);
    let lines = LINES.as_bytes();
    write(
        folder,
        "jsonl",
        &[with(&[0x35], lines), with(&[0xff], lines), with(&[0], b"\xef\xbb\xbf{\"text\":\"x\"}\n")],
    )?;
    let text = b"one<>two\r\n<><>three \xc3\xa9<>";
    write(
        folder,
        "text",
        &[with(b"\x35\x01<>", text), with(b"\x11\x01\n\n", b"a\n\n\nb\n\nc"), with(b"\x00\x00x", text)],
    )?;
    let streams = compressed(lines)?;
    write(folder, "compression", &streams.iter().map(|stream| with(&[0x28], stream)).collect::<Vec<_>>())?;
    let overrides =
        "[[source]]\nname = \"a\"\npaths = [\"x\"]\n\0block_size=4096\nsource.a.weight=0.5\nshuffle.window=\"1MiB\"";
    write(folder, "config", &[CONFIG.into(), overrides.into()])?;
    let chats: Vec<Vec<u8>> =
        CHATS.iter().flat_map(|line| [0, 13, 26, 39].map(|first| with(&[first], line.as_bytes()))).collect();
    write(folder, "chat", &chats)?;
    // The target has a sound checkpoint of its own, which these change.
    let edits = b"\0\x01\0\x05\x20\x01\xff\xff\x30\x03\xff\xff\xff\xff\xff\xff\xff\xff";
    let splices = b"\x01\x10\x00\x02\"x\x20\x01\x01,";
    write(
        folder,
        "checkpoint",
        &[edits.to_vec(), b"\0\x14\0\x09".to_vec(), splices.to_vec(), b"{\"version\":1}".to_vec()],
    )
}
