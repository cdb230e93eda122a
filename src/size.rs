//! Sizes and durations as people write them: `"16MiB"`, `"300s"`.
//!
//! Comes in: a string or a whole number. Goes out: bytes, or a [`Duration`]. Holds: what is shown parses to the same
//! value again. Does not know: which key it belongs to.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 10] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("kB", 1_000),
    ("B", 1),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (number, factor) = UNITS
            .iter()
            .find_map(|(unit, factor)| text.strip_suffix(unit).map(|number| (number, *factor)))
            .unwrap_or((text, 1));
        let expected = || format!("found {text:?}, expected a size such as \"16MiB\", \"4GiB\" or a number of bytes");
        number.trim().parse::<u64>().ok().and_then(|n| n.checked_mul(factor)).map(ByteSize).ok_or_else(expected)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, factor) = UNITS[..4]
            .iter()
            .find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor))
            .unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

/// A length of time, in milliseconds at the finest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds(pub Duration);

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (number, milliseconds) = [("ms", 1u64), ("min", 60_000), ("s", 1000), ("m", 60_000), ("h", 3_600_000)]
            .iter()
            .find_map(|(unit, factor)| text.strip_suffix(unit).map(|number| (number, *factor)))
            .unwrap_or((text, 1000));
        let expected = || format!("found {text:?}, expected a time such as \"300s\", \"500ms\" or \"5m\"");
        let value = number.trim().parse::<u64>().ok().and_then(|n| n.checked_mul(milliseconds)).ok_or_else(expected)?;
        Ok(Seconds(Duration::from_millis(value)))
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        if ms.is_multiple_of(1000) { write!(f, "{}s", ms / 1000) } else { write!(f, "{ms}ms") }
    }
}

/// Serde and schema for a value written as a string, or as a whole number of its base unit.
macro_rules! written_as_text {
    ($type:ident, $pattern:literal, $words:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                #[derive(Deserialize)]
                #[serde(untagged, expecting = $words)]
                enum Written {
                    Number(u64),
                    Text(String),
                }
                match Written::deserialize(deserializer)? {
                    Written::Number(number) => number.to_string().parse(),
                    Written::Text(text) => text.parse(),
                }
                .map_err(de::Error::custom)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "anyOf": [{ "type": "string", "pattern": $pattern }, { "type": "integer", "minimum": 0 }] })
            }
        }
    };
}

written_as_text!(ByteSize, "^ *[0-9]+ *([KMGT]i?B|kB|B)? *$", "expected a size such as \"16MiB\" or a number of bytes");
written_as_text!(Seconds, "^ *[0-9]+ *(ms|s|m|min|h)? *$", "expected a time such as \"300s\" or a number of seconds");

#[cfg(test)]
mod tests {
    use super::*;

    /// Each unit, and what is not a size.
    #[test]
    fn sizes() {
        let check = |text: &str, expected: Option<u64>| {
            assert_eq!(text.parse::<ByteSize>().ok().map(|size| size.0), expected, "{text}");
        };
        check("16MiB", Some(16 << 20));
        check(" 4 GiB ", Some(4 << 30));
        check("10MB", Some(10_000_000));
        check("123", Some(123));
        for wrong in ["", "MiB", "-1B", "1.5GiB", "16 MIB", "99999999999TiB"] {
            check(wrong, None);
        }
        assert_eq!(ByteSize(16 << 20).to_string(), "16MiB");
        assert_eq!(ByteSize(1000).to_string(), "1000B");
    }

    /// Each unit, and what is not a time.
    #[test]
    fn times() {
        let check = |text: &str, expected: Option<u64>| {
            assert_eq!(text.parse::<Seconds>().ok().map(|time| time.0.as_millis() as u64), expected, "{text}");
        };
        check("300s", Some(300_000));
        check("250ms", Some(250));
        check("5m", Some(300_000));
        check("2", Some(2000));
        check("soon", None);
    }
}
