//! A field out of a line: by table, and against `serde_json`.

use proptest::prelude::*;
use serde::Deserialize;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};

use super::*;

fn text(path: &str, line: &[u8]) -> Result<String> {
    let find = |many_at_once| {
        let mut scratch = String::new();
        FieldPath::new(path).text_by(many_at_once, line, &mut scratch).map(str::to_owned)
    };
    let found = find(false);
    if escapes::available() {
        let same = find(true);
        assert_eq!(found.as_ref().map_err(Error::detail), same.as_ref().map_err(Error::detail), "by many at once");
    }
    found
}

/// Paths and lines against the text, or a part of the error.
#[test]
fn finds_the_field() {
    let check = |path: &str, line: &str, expected: std::result::Result<&str, &str>| match (
        text(path, line.as_bytes()),
        expected,
    ) {
        (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{path} in {line}"),
        (Err(error), Err(part)) => {
            assert_eq!(error.kind(), ErrorKind::BadRecord);
            assert!(error.detail().contains(part), "{path} in {line}: {error}, expected {part}");
        }
        (found, expected) => panic!("{path} in {line}: found {found:?}, expected {expected:?}"),
    };
    check("text", r#"{"text": "a"}"#, Ok("a"));
    check("text", " \t{\"id\": 1, \"text\": \"a\\n\\u00e9\\ud83d\\ude00\\u0000\\/\"} \r", Ok("a\né😀\0/"));
    check("text", r#"{"text": "a", "text": "b"}"#, Ok("b"));
    check("text", r#"{"text": 1, "text": "b"}"#, Ok("b"));
    check("text", r#"{"text": "b", "text": 1}"#, Err("\"text\" is a number, expected a string"));
    check("text", r#"{"te\u0078t": "b"}"#, Ok("b"));
    check("text", r#"{"\ud800": 1, "text": "b"}"#, Ok("b"));
    check("text", "{\"text\": \"a\u{2028}\u{85}b\"}", Ok("a\u{2028}\u{85}b"));
    check("text", r#"{"text": ""}"#, Ok(""));
    check("text", r#"{"text": "\ud800", "text": "b"}"#, Ok("b"));
    check("text", r#"{"text": "\n", "\u0041\u0042": 1}"#, Ok("\n"));
    check("text", r#"{"text": "\n", "\ud800": 1}"#, Ok("\n"));
    check("a.b", r#"{"a.b": "\n", "a": {"b": "\t"}}"#, Ok("\n"));
    check("text", r#"{"text": "ab\n"}"#, Ok("ab\n"));
    check("a.b.c", r#"{"a": {"b": {"c": "x"}}}"#, Ok("x"));
    check("a.b", r#"{"a": {"b": "x"}, "a.b": "y"}"#, Ok("y"));
    check("a.b", r#"{"a.b": "y", "a": {"b": "x"}}"#, Ok("y"));
    check("a.b", r#"{"a": {"b": "x"}, "a": {"c": "x"}}"#, Err("no \"a.b\" field"));
    check("a.b", r#"{"a": {"b": "x"}, "a": 3}"#, Err("\"a\" is a number, expected an object"));
    check("a.b", r#"{"b": "x"}"#, Err("no \"a\" field"));
    check("text", r#"{"body": "x"}"#, Err("no \"text\" field"));
    check("text", r#"{"text": null}"#, Err("\"text\" is null, expected a string"));
    check("text", r#"{"text": ["a"]}"#, Err("\"text\" is an array"));
    check("text", r#"{"text": {"a": 1}}"#, Err("\"text\" is an object"));
    check("text", r#"{"text": true}"#, Err("\"text\" is a boolean"));
    check("text", r#"["text"]"#, Err("the record is an array, expected an object"));
    check("text", r#""text""#, Err("the record is a string"));
    check("text", r#"{"text": "\ud800"}"#, Err("half a surrogate pair"));
    check("text", r#"{"text": "\ud800\ud800"}"#, Err("half a surrogate pair"));
    check("text", r#"{"text": "\udc00\ud800"}"#, Err("half a surrogate pair"));
    check("text", r#"{"text": "\ud800\\udc00"}"#, Err("half a surrogate pair"));
    check("text", r#"{"text": "a", "x": 01}"#, Err("expected `,` or `}`"));
    check("text", r#"{"text": "a"} x"#, Err("found `x`, expected the end of the record"));
    check("text", r#"{"text": "a"}{"text": "b"}"#, Err("expected the end of the record"));
    check("text", r#"{"text": "a""#, Err("found the end of the record, expected `,` or `}`"));
    check("text", r#"{"text": "a"#, Err("found the end of the record, expected the end of a string"));
    check("text", r#"{"text": "a",}"#, Err("found `}`, expected a key"));
    check("text", "{\"text\": \"a\tb\"}", Err("found the byte 0x09"));
    check("text", r#"{"text": "\x41"}"#, Err("found `x`, expected an escape"));
    check("text", r#"{"text": "a", "n": NaN}"#, Err("found `N`, expected a value"));
    check("text", "hello", Err("invalid JSON at byte 0"));
    check("text", "\u{feff}{}", Err("invalid JSON at byte 0"));
}

#[test]
fn says_where_utf8_ends() {
    let error = text("text", b"{\"text\": \"a\xffb\"}").expect_err("not UTF-8");
    assert_eq!(error.detail(), "found the byte 0xff at byte 11 of the record, expected UTF-8");
    text("text", b"{\"text\": \"\xed\xa0\x80\"}").expect_err("a surrogate in UTF-8");
}

/// Depth is bounded by a number and not by the stack.
#[test]
fn bounds_the_depth() {
    let nested = |depth: usize| format!("{{\"text\": \"a\", \"x\": {}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(text("text", nested(127).as_bytes()).expect("just deep enough"), "a");
    for depth in [128, 1_000_000] {
        let error = text("text", nested(depth).as_bytes()).expect_err("too deep");
        assert!(error.detail().contains("expected at most 128"), "{error}");
    }
    let path = vec!["a"; 200].join(".");
    let line = format!("{}1{}", "{\"a\":".repeat(200), "}".repeat(200));
    text(&path, line.as_bytes()).expect_err("too deep");
}

/// What `serde_json` makes of a line: the last string under `text`, other values passed over.
fn oracle(line: &[u8]) -> Option<String> {
    struct Field;
    impl<'de> Visitor<'de> for Field {
        type Value = Option<String>;
        fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Option<String>, A::Error> {
            let mut text = None;
            while let Some(key) = map.next_key::<std::borrow::Cow<str>>()? {
                if key == "text" {
                    text = Some(map.next_value::<serde_json::Value>()?.as_str().map(str::to_owned));
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(text.flatten())
        }
    }
    impl<'de> DeserializeSeed<'de> for Field {
        type Value = Option<String>;
        fn deserialize<D: serde::Deserializer<'de>>(
            self,
            deserializer: D,
        ) -> std::result::Result<Option<String>, D::Error> {
            deserializer.deserialize_map(self)
        }
    }
    std::str::from_utf8(line).ok()?;
    let mut deserializer = serde_json::Deserializer::from_slice(line);
    let text = Field.deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    text
}

fn value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        any::<String>().prop_map(Into::into),
        "[a-z \"\\\\\n]{0,200}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::vec(("text|[a-c]|\\PC{0,3}", inner), 0..4)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Objects as written, and with a few bytes changed, give what `serde_json` gives: the same text, or an error both.
    #[test]
    fn agrees_with_serde_json(
        fields in prop::collection::vec(("text|[a-c]|\\PC{0,3}", value()), 0..5),
        text_value in prop_oneof![any::<String>(), "[a-z \"\\\\\n\u{1}é]{0,300}"],
        pretty in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(b"\"\\{}[],:0123e.-+tfnul \t\n\x01\x80\xc3\xff\x7fud8".to_vec()), 0..3u8), 0..4),
    ) {
        let mut map: serde_json::Map<String, serde_json::Value> = fields.into_iter().collect();
        map.insert("text".into(), text_value.into());
        let map = serde_json::Value::Object(map);
        let mut line = if pretty { serde_json::to_vec_pretty(&map) } else { serde_json::to_vec(&map) }.expect("plain values");
        prop_assert_eq!(text("text", &line).ok(), oracle(&line), "{:?}", String::from_utf8_lossy(&line));
        for (index, byte, what) in changes {
            if line.is_empty() {
                break;
            }
            let at = index.index(line.len());
            match what {
                0 => line[at] = byte,
                1 => line.insert(at, byte),
                _ => {
                    line.remove(at);
                }
            }
        }
        let (found, expected) = (text("text", &line).ok(), oracle(&line));
        // The oracle reads keys and the field as Rust types: half a pair in a key, or a number out of range in the field.
        if found != expected && found.is_some() {
            let line = String::from_utf8_lossy(&line).into_owned();
            prop_assert!(line.contains("\\u") || line.contains(['e', 'E']), "{line}: {found:?}, {expected:?}");
        } else {
            prop_assert_eq!(found, expected, "{:?}", String::from_utf8_lossy(&line));
        }
    }
}

/// Strings of escapes, well formed or not, are read as `serde_json` reads them.
#[test]
fn agrees_on_escapes() {
    let mut random = 1u64;
    for round in 0..200_000 {
        let even = round % 2 == 0;
        let mut line = b"{\"text\":\"".to_vec();
        for _ in 0..6 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let parts: [&[u8]; 12] = [
                b"\\ud83d",
                b"\\ude00",
                b"\\",
                b"\\\\",
                b"u",
                b"\\u00E9",
                b"\\n",
                b"a",
                b"\"",
                b"d83d",
                b"\\uDC",
                b"\xc3\xa9",
            ];
            line.extend_from_slice(parts[(random >> 33) as usize % parts.len()]);
            // Half of the lines are long enough to be taken many bytes at once.
            line.extend(std::iter::repeat_n(b'x', if even { 0 } else { (random >> 40) as usize % 40 }));
        }
        line.extend_from_slice(b"\"}");
        let expected = String::from_utf8(line.clone()).ok().and_then(|line| {
            #[derive(Deserialize)]
            struct Line {
                text: String,
            }
            serde_json::from_str::<Line>(&line).ok().map(|line| line.text)
        });
        assert_eq!(text("text", &line).ok(), expected, "{:?}", String::from_utf8_lossy(&line));
    }
}
