//! `check`, `inspect` and `bench` on conversations: what people read before they spend money on a run.
//!
//! Method: six conversations of which everything can be counted by hand, with the `bytes` tokenizer, whose control tokens are `<eos>`, `<bos>` and `<pad>`.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value as Json, json};

/// Header, content, end: 8 tokens beside the content for users, 13 for the assistant.
const TEMPLATE: &str = "{% for m in messages %}{{ '<bos>' + m.role + ': ' + m.content + '<eos>' }}{% endfor %}\
                        {% if add_generation_prompt %}{{ '<bos>assistant: ' }}{% endif %}";

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokenmill"));
    for name in ["RANK", "WORLD_SIZE", "NO_COLOR", "TOKENMILL_LOG"] {
        command.env_remove(name);
    }
    command.args(arguments).output().expect("the command starts")
}

fn shown(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Writes the shard and a config over it, with more lines in `[errors]` and `[source.chat]`.
fn config(folder: &Path, records: &[Json], errors: &str, chat: &str) -> String {
    let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
    std::fs::write(folder.join("c.jsonl"), lines).expect("a shard");
    std::fs::write(folder.join("t.jinja"), TEMPLATE).expect("a template");
    let path = folder.join("run.toml");
    let text = format!(
        "lanes = 1\nblock_size = 64\nbatch_size = 1\n[tokenizer]\npath = \"bytes\"\nappend_eos = false\n[shuffle]\nenabled = false\n\
         [packing]\nstrategy = \"best_fit\"\n[errors]\n{errors}\n[[source]]\nname = \"talk\"\npaths = [\"c.jsonl\"]\nmax_epochs = 1\n\
         [source.chat]\ntemplate = \"t.jinja\"\n{chat}\n"
    );
    std::fs::write(&path, text).expect("a config");
    path.to_str().expect("UTF-8").to_owned()
}

fn talk(turns: &[(&str, &str)]) -> Json {
    let messages: Vec<Json> = turns.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
    json!({"messages": messages})
}

fn records() -> Vec<Json> {
    let long = "x".repeat(70);
    vec![
        talk(&[("user", "a"), ("assistant", "Bc")]),
        talk(&[("user", "<eos>"), ("assistant", "D")]),
        talk(&[("user", "only")]),
        talk(&[("user", &long), ("assistant", "Lost")]),
        talk(&[("user", "e"), ("assistant", &long)]),
        json!({"other": 1}),
    ]
}

/// Every line of the report, by hand.
#[test]
fn check_counts_by_hand() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = config(folder.path(), &records(), "bad_record = \"skip\"", "");
    let rows = folder.path().join("rows.jsonl");
    let (status, out, err) = shown(&run(&["check", &path, "--out", rows.to_str().expect("UTF-8")]));
    assert_eq!(status, Some(0), "{err}");
    let mut lines = out.lines();
    assert_eq!(lines.next(), Some("source talk: 6 records, 5 rows"));
    let value = |name: &str| {
        let line = out.lines().map(str::trim_start).find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("no {name:?} in {out}"))[name.len()..].trim().to_owned()
    };
    assert_eq!(value("record formats"), "messages 5");
    assert_eq!(value("spans found by"), "headers between marks 4, none needed 1");
    assert_eq!(value("bad records"), "1");
    assert_eq!(value("rows with no trained token (dropped)"), "1");
    assert_eq!(value("rows longer than a block of 64 (would be truncated)"), "2");
    assert_eq!(value("of them without a trained token once truncated (dropped)"), "1");
    // `$user: a$` is 9 tokens, `$assistant: Bc$` 15, of which 3 are trained.
    let tokens = (9 + 15) + (13 + 14) + 12 + (78 + 17) + (9 + 83);
    let trained = 3 + 2 + 5 + 71;
    assert_eq!(value("tokens trained"), format!("{trained} ({:.1} %)", 100.0 * f64::from(trained) / f64::from(tokens)));
    assert_eq!(value("tokens straddling a span's edge"), "0 in 0 rows (trained)");
    assert_eq!(value("end of turn trained"), "its token in 4 rows, text in 0, NOT in 0");
    assert_eq!(value("control tokens found in content (kept text)"), "1");
    // 24 and 27 tokens share a block, the two long ones take one each.
    let padding = 100.0 * f64::from(64 - 24 - 27) / (3.0 * 64.0);
    assert_eq!(value("padding expected (of these rows alone)"), format!("{padding:.2} % of 3 blocks"));
    assert!(out.contains("bad: bad record: found the fields [\"other\"]") && out.contains("c.jsonl"), "{out}");
    assert!(out.contains("template: the token that ends the assistant's turn is trained"), "{out}");
    let rows = std::fs::read_to_string(rows).expect("the rows");
    let rows: Vec<Json> = rows.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(rows.len(), 6);
    let labels = rows[0]["labels"].as_array().expect("a list");
    assert_eq!(labels.iter().filter_map(Json::as_i64).filter(|label| *label >= 0).collect::<Vec<_>>(), [66, 99, 256]);
    assert!(rows[5]["error"].as_str().is_some_and(|error| error.contains("found the fields")), "{}", rows[5]);

    // As a run would: a bad record fails.
    let path = config(folder.path(), &records(), "", "overflow = \"drop\"");
    let (status, out, err) = shown(&run(&["check", &path]));
    assert_eq!(status, Some(1));
    assert!(err.contains("1 records are bad") && out.contains("(would be dropped)"), "{out}{err}");
    let (status, out, _) = shown(&run(&["check", &path, "--rows", "2"]));
    assert_eq!((status, out.lines().next()), (Some(0), Some("source talk: 2 records, 2 rows")));
    // Another template, whose end nobody trains, is told.
    let untrained = TEMPLATE
        .replace("+ m.content + '<eos>'", "")
        .replace("{% endfor %}", "{% generation %}{{ m.content }}{% endgeneration %}{{ '<eos>' }}{% endfor %}");
    std::fs::write(folder.path().join("t.jinja"), untrained).expect("a template");
    let (_, out, _) = shown(&run(&["check", &path, "--rows", "2"]));
    assert!(out.contains("is NOT trained") && out.contains("NOT in 2"), "{out}");
}

/// What is trained can be told from what isn't, with colours and without; so can documents and padding.
#[test]
fn inspect_shows_masks() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = config(folder.path(), &records()[..2], "", "");
    let (status, out, err) = shown(&run(&["inspect", &path, "--color", "never"]));
    assert_eq!(status, Some(0), "{err}");
    let expected = [
        "block 0  lane 0  source talk  64 tokens, 2 documents, 5 trained, 13 of padding",
        " 1 24 tokens  c.jsonl, window 0 from byte 0, document 0",
        "| ⟦<bos>⟧user: a⟦<eos>⟧⟦<bos>⟧assistant: «Bc⟦<eos>⟧»",
        " 2 27 tokens  c.jsonl, window 0 from byte 0, document 1",
        "| ⟦<bos>⟧user: <eos>⟦<eos>⟧⟦<bos>⟧assistant: «D⟦<eos>⟧»",
        "    13 tokens of padding",
    ];
    assert_eq!(out.lines().take(6).collect::<Vec<_>>(), expected);
    let (_, out, _) = shown(&run(&["inspect", &path, "--color", "always"]));
    // Masked text is dim, and so are masked tokens; trained ones stand out.
    assert!(out.contains("\u{1b}[2massistant: \u{1b}[0mBc\u{1b}[1;30;43m<eos>\u{1b}[0m"), "{out:?}");
    assert!(out.contains("\u{1b}[2;33m<bos>\u{1b}[0m\u{1b}[2muser: a\u{1b}[0m\u{1b}[2;33m<eos>\u{1b}[0m"), "{out:?}");
    assert!(out.contains("\u{1b}[36mD\u{1b}[0m"), "the second document has a colour of its own: {out:?}");
    assert!(!out.contains(['«', '⟦']), "{out:?}");
}

/// `bench` times rows.
#[test]
fn bench_reports_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let records: Vec<Json> = (0..400).map(|row| talk(&[("user", &format!("q{row}")), ("assistant", "yes")])).collect();
    let path = config(folder.path(), &records, "", "");
    let (status, out, err) = shown(&run(&["bench", &path]));
    assert_eq!(status, Some(0), "{err}");
    assert!(out.contains("source talk: 400 rows, ") && out.contains(" rows/s, "), "{out}");
    let (_, out, _) = shown(&run(&["bench", &path, "--json"]));
    let line: Json = out.lines().find_map(|line| serde_json::from_str(line).ok()).expect("JSON");
    assert!(line["rows"] == 400 && line["rows_per_second"].as_f64().is_some_and(|rate| rate > 1.0), "{line}");
}
