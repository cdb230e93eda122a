//! Keys of the config: unknown ones refused with the nearest known one, and `--set key.path=value`.
//!
//! Comes in: a parsed TOML table, the config's JSON Schema, overrides. Goes out: the table with overrides applied, or
//! an error. Does not know: what a key means.

use serde_json::Value as Json;
use toml::{Table, Value};

use crate::error::{Error, ErrorKind, Result};

/// Refuses a key that the schema doesn't have, naming the nearest one it has.
pub(super) fn refuse_unknown(table: &Table, schema: &Json) -> Result<()> {
    walk(table, schema, schema, "")
}

fn walk(table: &Table, node: &Json, root: &Json, path: &str) -> Result<()> {
    let Some(known) = resolve(node, root).get("properties").and_then(Json::as_object) else { return Ok(()) };
    for (key, value) in table {
        let Some(child) = known.get(key) else {
            return Err(unknown(&format!("{path}{key}"), path, key, root));
        };
        match value {
            Value::Table(inner) => walk(inner, child, root, &format!("{path}{key}."))?,
            Value::Array(items) => {
                let item = &resolve(child, root)["items"];
                for inner in items.iter().filter_map(Value::as_table) {
                    walk(inner, item, root, &format!("{path}{key}."))?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Follows `$ref`, also where a default or a description stands beside it, or `null` is allowed too.
fn resolve<'a>(mut node: &'a Json, root: &'a Json) -> &'a Json {
    for _ in 0..8 {
        if let Some(inner) = node.get("anyOf").and_then(Json::as_array) {
            node = inner.iter().find(|option| option.get("$ref").is_some()).unwrap_or(node);
        }
        match node.get("$ref").and_then(Json::as_str).and_then(|r| r.strip_prefix('#')).and_then(|p| root.pointer(p)) {
            Some(target) => node = target,
            None => break,
        }
    }
    node
}

fn unknown(full: &str, path: &str, key: &str, root: &Json) -> Error {
    let mut all = Vec::new();
    collect(root, root, "", &mut all);
    let distance = |candidate: &&String| {
        let leaf = candidate.rsplit('.').next().unwrap_or(candidate);
        let same_table = candidate.strip_suffix(leaf) == Some(path);
        // The right key in the wrong table is nearer than another key in this one.
        strsim::damerau_levenshtein(leaf, key) * 4 + if same_table { 0 } else { 3 }
    };
    let least = all.iter().map(|candidate| distance(&candidate)).min();
    let nearest: Vec<String> = all
        .iter()
        .filter(|candidate| Some(distance(candidate)) == least)
        .map(|candidate| format!("{candidate:?}"))
        .collect();
    let hint = match &nearest[..] {
        [] => String::new(),
        [one] => format!("; the nearest known key is {one}"),
        more => format!("; the nearest known keys are {}", more[..more.len().min(4)].join(" and ")),
    };
    Error::new(ErrorKind::Config, format!("unknown key {full:?}{hint}"))
}

fn collect(node: &Json, root: &Json, path: &str, all: &mut Vec<String>) {
    let node = resolve(node, root);
    if let Some(properties) = node.get("properties").and_then(Json::as_object) {
        for (key, child) in properties {
            all.push(format!("{path}{key}"));
            collect(child, root, &format!("{path}{key}."), all);
        }
    } else if let Some(items) = node.get("items") {
        collect(items, root, path, all);
    }
}

/// Applies `key.path=value` to the table. The value is TOML; what isn't TOML is taken as a string.
///
/// `source.NAME.key` and `source.INDEX.key` name a source that is there.
pub(super) fn apply_override(table: &mut Table, text: &str) -> Result<()> {
    let wrong = |detail: String| Error::new(ErrorKind::Config, format!("--set {text}: {detail}"));
    let (path, written) = text.split_once('=').ok_or_else(|| wrong("found no \"=\", expected key=value".into()))?;
    let written = written.trim();
    let value = format!("v = {written}")
        .parse::<Table>()
        .ok()
        .and_then(|mut parsed| if parsed.len() == 1 { parsed.remove("v") } else { None })
        .unwrap_or_else(|| Value::String(written.to_owned()));
    let mut keys: Vec<&str> = path.trim().split('.').collect();
    let last = keys.pop().filter(|key| !key.is_empty()).ok_or_else(|| wrong("the key is empty".into()))?;
    let mut node = table;
    let mut keys = keys.into_iter();
    while let Some(key) = keys.next() {
        let child = node.entry(key).or_insert_with(|| Value::Table(Table::new()));
        node = match child {
            Value::Table(inner) => inner,
            Value::Array(items) => {
                // Names may hold dots: take as many parts as name one of them.
                let mut name =
                    keys.next().ok_or_else(|| wrong(format!("{key} is a list, expected {key}.NAME.key")))?.to_owned();
                let index = loop {
                    let named = |item: &Value| item.get("name").and_then(Value::as_str) == Some(&name);
                    let found = items.iter().position(named);
                    match found.or_else(|| name.parse::<usize>().ok().filter(|i| *i < items.len())) {
                        Some(index) => break index,
                        None => match keys.next() {
                            Some(more) => name = format!("{name}.{more}"),
                            None => {
                                let known: Vec<&str> = items.iter().filter_map(|i| i.get("name")?.as_str()).collect();
                                return Err(wrong(format!(
                                    "no {key} has the name {name:?}, expected one of {known:?}"
                                )));
                            }
                        },
                    }
                };
                items[index].as_table_mut().ok_or_else(|| wrong(format!("{key}.{name} isn't a table")))?
            }
            _ => return Err(wrong(format!("{key} is a value, expected a table"))),
        };
    }
    node.insert(last.to_owned(), value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn config(text: &str, overrides: &[&str]) -> Result<Config> {
        let overrides: Vec<String> = overrides.iter().map(|s| s.to_string()).collect();
        Config::parse(text, "".into(), &overrides)
    }

    const BASE: &str = "[[source]]\nname = \"web\"\npaths = [\"a\"]\nweight = 1.0\n[[source]]\nname = \"v1.5\"\npaths = [\"b\"]\nweight = 1\n";

    /// A misspelt key names the nearest known one, wherever it stands.
    #[test]
    fn unknown_keys_name_the_nearest() {
        let check = |text: &str, expected: &str| {
            let error = config(&format!("{text}\n{BASE}"), &[]).expect_err("an unknown key").to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("blok_size = 1", "unknown key \"blok_size\"; the nearest known key is \"block_size\"");
        check("window = 1", "the nearest known keys are \"shuffle.window\" and \"packing.window\"");
        check("[shuffle]\nwindw = 1", "unknown key \"shuffle.windw\"; the nearest known key is \"shuffle.window\"");
        check("[tokenizer]\npaht = \"x\"", "\"tokenizer.path\"");
        check("[runtime]\nthread = 1", "\"runtime.threads\"");
        let error = config(&format!("{BASE}wieght = 2"), &[]).expect_err("an unknown key").to_string();
        assert!(error.contains("\"source.weight\""), "{error}");
    }

    /// Overrides reach every table, sources by name or number, with TOML values or bare words.
    #[test]
    fn overrides() {
        let set = [
            "block_size=64",
            "source.web.weight=0.5",
            "source.v1.5.weight=2",
            "tokenizer.path=bytes",
            "shuffle.window=1MiB",
        ];
        let config = config(BASE, &set).expect("all keys exist");
        assert_eq!((config.block_size, config.source[0].weight, config.source[1].weight), (64, Some(0.5), Some(2.0)));
        assert_eq!((config.tokenizer.path.as_str(), config.shuffle.window.0), ("bytes", 1 << 20));
        assert!(
            self::config(BASE, &["source.nope.weight=1"]).expect_err("no such source").to_string().contains("\"web\"")
        );
        assert!(self::config(BASE, &["lanes"]).is_err());
        assert!(self::config(BASE, &["block_size=ten"]).is_err());
    }
}
