//! Chat templates: Hugging Face's Jinja, rendered as `apply_chat_template` of `transformers` renders it.
//!
//! Comes in: a template's source, variables as JSON. Goes out: text, with marks where the template has `{% generation %}` blocks.
//! Holds: values are written as Python writes them (`True`, `None`, dicts with single quotes, JSON as `json.dumps`); the clock stands
//! still; a hostile template is stopped by bounds on steps, depth and output. Does not know: tokens, masks.
//!
//! The renderer has no tags of one's own, so `{% generation %}` becomes a filter block, which captures what is in it. Its whitespace control is that
//! of the tag, as both are blocks.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error as JinjaError, ErrorKind as JinjaKind, State, Value};
use serde_json::Value as Json;

use super::clock::Clock;
use super::python;
use crate::error::{Error, ErrorKind, Result};

/// Stands before and behind what a generation block gives. No text has these: they are noncharacters, which Unicode keeps for
/// use inside of programs; a record that holds one is refused.
pub(super) const OPEN: char = '\u{fdd0}';
/// See [`OPEN`].
pub(super) const CLOSE: char = '\u{fdd1}';
/// Breaks the literals of control tokens in what a record says.
pub(super) const BREAK: char = '\u{fdd2}';

/// Steps of one rendering.
const FUEL: u64 = 50_000_000;
/// Bytes that one rendering may give.
const OUTPUT_MAX: usize = 64 << 20;
/// Templates within templates, macros and loops that call themselves.
const DEPTH_MAX: usize = 100;

/// A compiled template.
pub struct Template {
    environment: Environment<'static>,
    generation: bool,
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Template").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl Template {
    /// Compiles `source`; `strftime_now` tells the time of `clock`.
    ///
    /// # Errors
    /// `Config` - the template isn't Jinja that can be rendered; the line is given.
    pub fn new(source: &str, clock: Clock) -> Result<Template> {
        let (source, generation) = replace_generation(source);
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| refused(&error))?);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(DEPTH_MAX);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(|out, _, value| {
            if let Some(text) = value.as_str() {
                return out.write_str(text).map_err(JinjaError::from);
            }
            if value.is_undefined() {
                return Ok(());
            }
            out.write_str(&python::text(value)).map_err(JinjaError::from)
        });
        environment.add_filter("tojson", tojson);
        environment.add_filter("string", |value: Value| match value.as_str() {
            Some(_) => value,
            None if value.is_undefined() => Value::from(""),
            None => Value::from(python::text(&value)),
        });
        environment.add_filter("tokenmill_generation", |value: Value| {
            let mut text = String::from(OPEN);
            text.push_str(value.as_str().unwrap_or_default());
            text.push(CLOSE);
            Value::from_safe_string(text)
        });
        // Python can't iterate over None.
        environment.add_test("iterable", |value: Value| {
            !value.is_none() && (value.as_str().is_some() || value.try_iter().is_ok())
        });
        environment.add_function("raise_exception", |message: String| -> Result<String, JinjaError> {
            Err(JinjaError::new(JinjaKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", move |format: String| clock.format(&format));
        environment.add_template_owned("chat", source).map_err(|error| refused(&error))?;
        Ok(Template { environment, generation })
    }

    /// Whether it has `{% generation %}` blocks; their output is then between [`OPEN`] and [`CLOSE`].
    pub fn has_generation(&self) -> bool {
        self.generation
    }

    /// Renders the template with `variables`, an object.
    ///
    /// # Errors
    /// `BadRecord` - the template refuses the record (`raise_exception`), can't be rendered with it, or goes beyond a bound.
    pub fn render(&self, variables: &Value) -> Result<String> {
        let template = self.environment.get_template("chat").expect("it was added under this name");
        let mut out = Bounded(Vec::new());
        match template.render_captured_to(variables, &mut out) {
            Ok(_) => String::from_utf8(out.0)
                .map_err(|error| Error::new(ErrorKind::BadRecord, "the template gave no UTF-8").because(error)),
            Err(error) => {
                let line = error.line().map_or(String::new(), |line| format!(" (line {line} of the template)"));
                let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
                Err(Error::new(
                    ErrorKind::BadRecord,
                    format!("the chat template can't render the record: {detail}{line}"),
                ))
            }
        }
    }
}

fn refused(error: &JinjaError) -> Error {
    Error::new(ErrorKind::Config, format!("the chat template can't be used: {error:#}").replace('\n', " "))
}

/// Output that ends in an error beyond the bound.
struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > OUTPUT_MAX {
            return Err(std::io::Error::other("the output is too long"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Python's `json.dumps`, with the keywords that `transformers` passes on.
fn tojson(_: &State, value: Value, options: Kwargs) -> Result<Value, JinjaError> {
    let indent: Option<Value> = options.get("indent")?;
    let separators: Option<Value> = options.get("separators")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let indent = match indent {
        Some(value) if value.kind() == ValueKind::Number => {
            Some(" ".repeat(i64::try_from(value).unwrap_or(0).clamp(0, 64) as usize))
        }
        Some(value) => value.as_str().map(str::to_owned),
        None => None,
    };
    let mut format = python::JsonFormat {
        item: if indent.is_some() { "," } else { ", " }.into(),
        key: ": ".into(),
        indent,
        ensure_ascii: ensure_ascii.unwrap_or(false),
        sort_keys: sort_keys.unwrap_or(false),
    };
    if let Some(separators) = separators.filter(|value| !value.is_none() && !value.is_undefined()) {
        let part = |index: usize| {
            let part = separators.get_item_by_index(index).ok();
            part.and_then(|part| part.as_str().map(str::to_owned))
        };
        if let (Some(item), Some(key)) = (part(0), part(1)) {
            (format.item, format.key) = (item, key);
        }
    }
    let mut out = String::new();
    python::json(&value, &format, 0, &mut out)?;
    Ok(Value::from_safe_string(out))
}

/// The source with filter blocks for `{% generation %}` and `{% endgeneration %}`, and whether there were any.
///
/// Tags are looked for outside of comments and `raw` blocks.
fn replace_generation(source: &str) -> (String, bool) {
    let mut out = String::with_capacity(source.len());
    let mut found = false;
    let mut rest = source;
    while let Some(at) = rest.find("{%").into_iter().chain(rest.find("{#")).min() {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with("{#") {
            let end = rest.find("#}").map_or(rest.len(), |end| end + 2);
            out.push_str(&rest[..end]);
            rest = &rest[end..];
            continue;
        }
        let end = rest.find("%}").map_or(rest.len(), |end| end + 2);
        let tag = &rest[..end];
        let inner = tag.trim_start_matches("{%").trim_end_matches("%}");
        let name = inner.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        let replaced = match name {
            "generation" => Some("filter tokenmill_generation"),
            "endgeneration" => Some("endfilter"),
            _ => None,
        };
        match replaced {
            Some(replaced) => {
                found = true;
                out.push_str(&tag.replacen(name, replaced, 1));
            }
            None => out.push_str(tag),
        }
        rest = &rest[end..];
        if name == "raw" {
            let end = rest.find("endraw").unwrap_or(rest.len());
            out.push_str(&rest[..end]);
            rest = &rest[end..];
        }
    }
    out.push_str(rest);
    (out, found)
}

/// JSON as a value of templates: objects keep their order.
pub(super) fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), ..) => Value::from(number),
            (_, Some(number), _) => Value::from(number),
            (.., number) => Value::from(number.unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(value).collect::<Value>(),
        Json::Object(fields) => Value::from_pairs(fields.iter().map(|(key, field)| (key.as_str(), value(field)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, variables: Json) -> Result<String> {
        Template::new(source, Clock::parse("2026-01-02").expect("a date"))?.render(&value(&variables))
    }

    /// What Python and Jinja2 give, by hand.
    #[test]
    fn renders_as_python_does() {
        let check = |source: &str, expected: &str| {
            let variables = serde_json::json!({
                "a": {"k": "ü<", "f": 1.0, "t": true, "n": null, "l": [1, "it's"]}, "s": "  x \n", "big": 1e22
            });
            assert_eq!(render(source, variables).expect(source), expected, "{source}");
        };
        check("{{ a.t }} {{ a.n }} {{ a.f }} {{ big }}", "True None 1.0 1e+22");
        check("{{ a }}", "{'k': 'ü<', 'f': 1.0, 't': True, 'n': None, 'l': [1, \"it's\"]}");
        check("{{ a | tojson }}", "{\"k\": \"ü<\", \"f\": 1.0, \"t\": true, \"n\": null, \"l\": [1, \"it's\"]}");
        check("{{ a.l | tojson(indent=2) }}", "[\n  1,\n  \"it's\"\n]");
        check("{{ a.k | tojson(ensure_ascii=true) }}", "\"\\u00fc<\"");
        check("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", "{\"a\":2,\"b\":1}");
        check("{{ s.strip() }}|{{ s.rstrip('\\n') }}|", "x|  x |");
        check("{{ strftime_now('%d %b %Y') }}", "02 Jan 2026");
        check("{% for i in [1,2,3] %}\n  {% if i == 2 %}{% continue %}{% endif %}\n{{ i }}\n{% endfor %}\n", "1\n3\n");
        check("a\n    {%- generation -%}  b  {%- endgeneration %}\nc", "a\u{fdd0}b\u{fdd1}c");
        check("{# {% generation %} #}x", "x");
    }

    /// What a template says of a record, and templates without an end, are errors of the record.
    #[test]
    fn errors_and_bounds() {
        let error = render("x\n{{ raise_exception('roles must alternate') }}", Json::Null).expect_err("it raises");
        assert_eq!(error.kind(), ErrorKind::BadRecord);
        assert!(error.detail().contains("roles must alternate") && error.detail().contains("line 2"), "{error}");
        let long =
            "{% for a in range(10000) %}{% for b in range(10000) %}{{ 'xxxxxxxxxxxxxxxx' }}{% endfor %}{% endfor %}";
        assert!(render(long, Json::Null).is_err());
        assert!(render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", Json::Null).is_err());
        assert_eq!(render("{% if %}", Json::Null).expect_err("no Jinja").kind(), ErrorKind::Config);
    }
}
