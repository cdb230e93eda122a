//! Values as Python writes them: `str`, `repr` and `json.dumps`.
//!
//! Comes in: values of a template. Goes out: text. Holds: what CPython 3 gives for the same dicts, lists, strings and numbers.

use minijinja::value::ValueKind;
use minijinja::{Error as JinjaError, ErrorKind as JinjaKind, Value};

/// How deep lists and dicts may be within each other.
const DEPTH_MAX: usize = 128;

/// `str(value)`.
pub(super) fn text(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None => {
            let mut out = String::new();
            repr(value, 0, &mut out);
            out
        }
    }
}

/// `repr(value)`.
fn repr(value: &Value, depth: usize, out: &mut String) {
    if depth > DEPTH_MAX {
        out.push_str("...");
        return;
    }
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number(value, out),
        ValueKind::String => quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => list(value, ("[", "]"), depth, out),
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                repr(&key, depth + 1, out);
                out.push_str(": ");
                repr(&value.get_item(&key).unwrap_or_default(), depth + 1, out);
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
}

fn list(value: &Value, (open, close): (&str, &str), depth: usize, out: &mut String) {
    out.push_str(open);
    for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        repr(&item, depth + 1, out);
    }
    out.push_str(close);
}

fn quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 || c as u32 == 0x7f => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
}

fn number(value: &Value, out: &mut String) {
    if value.is_integer() {
        out.push_str(&value.to_string());
        return;
    }
    float(f64::try_from(value.clone()).unwrap_or(f64::NAN), out);
}

/// The shortest digits that give the number back, with an exponent from 1e16 on and below 1e-4.
fn float(number: f64, out: &mut String) {
    if number.is_nan() || number.is_infinite() {
        out.push_str(if number.is_nan() {
            "nan"
        } else if number > 0.0 {
            "inf"
        } else {
            "-inf"
        });
        return;
    }
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let written = format!("{number:e}");
        let (digits, exponent) = written.split_once('e').unwrap_or((&written, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        out.push_str(&format!("{digits}e{sign}{exponent:0>2}"));
    } else {
        let written = format!("{number}");
        out.push_str(&written);
        if !written.contains('.') {
            out.push_str(".0");
        }
    }
}

/// How `json.dumps` writes.
pub(super) struct JsonFormat {
    pub item: String,
    pub key: String,
    pub indent: Option<String>,
    pub ensure_ascii: bool,
    pub sort_keys: bool,
}

/// `json.dumps(value)`.
pub(super) fn json(value: &Value, format: &JsonFormat, depth: usize, out: &mut String) -> Result<(), JinjaError> {
    if depth > DEPTH_MAX {
        return Err(JinjaError::new(JinjaKind::InvalidOperation, "the value is too deep for JSON"));
    }
    let line = |depth: usize, out: &mut String| {
        if let Some(indent) = &format.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => {
            let start = out.len();
            number(value, out);
            for (python, json) in [("nan", "NaN"), ("-inf", "-Infinity"), ("inf", "Infinity")] {
                if &out[start..] == python {
                    out.truncate(start);
                    out.push_str(json);
                }
            }
        }
        ValueKind::String => json_string(value.as_str().unwrap_or_default(), format.ensure_ascii, out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            let mut count = 0;
            for item in value.try_iter()? {
                if count > 0 {
                    out.push_str(&format.item);
                }
                line(depth + 1, out);
                json(&item, format, depth + 1, out)?;
                count += 1;
            }
            if count > 0 {
                line(depth, out);
            }
            out.push(']');
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if format.sort_keys {
                keys.sort_by_key(text);
            }
            out.push('{');
            for (index, key) in keys.iter().enumerate() {
                if index > 0 {
                    out.push_str(&format.item);
                }
                line(depth + 1, out);
                match key.kind() {
                    ValueKind::String => json_string(key.as_str().unwrap_or_default(), format.ensure_ascii, out),
                    _ => {
                        out.push('"');
                        json(key, format, depth + 1, out)?;
                        out.push('"');
                    }
                }
                out.push_str(&format.key);
                json(&value.get_item(key)?, format, depth + 1, out)?;
            }
            if !keys.is_empty() {
                line(depth, out);
            }
            out.push('}');
        }
        kind => {
            let detail = format!("a value of type {kind} can't be written as JSON");
            return Err(JinjaError::new(JinjaKind::InvalidOperation, detail));
        }
    }
    Ok(())
}

fn json_string(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || ensure_ascii && c as u32 >= 0x7f => {
                if c as u32 == 0x7f {
                    out.push(c);
                    continue;
                }
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
