//! Sources: named corpora, the shards they consist of, and who reads which part of them.
//!
//! Comes in: `[[source]]` of the config and a listing. Goes out: a [`Manifest`] (shards with sizes, sorted) and a
//! [`Dealing`] (which lane reads what, in which order). Holds: the manifest is sorted by name, bytewise; nothing of a
//! shard but its size decides who reads it. Does not know: what is in a shard.

mod dealing;
mod saved;

pub use dealing::{Dealing, Share};
pub use saved::SavedManifests;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::chat::ChatOptions;
use crate::shard::Format;
use crate::storage::Version;

/// `[[source]]` of the config.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceOptions {
    /// Name, unique in the config; part of the order's key, so renaming a source reorders it.
    pub name: String,
    /// Paths and globs: local ones, a relative one being relative to the config file's folder; `s3://bucket/key`, with globs;
    /// `https://` and `http://` URLs; `hf://datasets/owner/name/path@revision`, with globs.
    pub paths: Vec<String>,
    /// What the shards hold; found by content and name when `"auto"`.
    #[serde(default)]
    pub format: Format,
    /// Dotted path of the text in a JSONL record or a Parquet row.
    #[serde(default = "default_text_field")]
    pub text_field: String,
    /// What separates the documents of a plain-text file; without it the file is one document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub separator: Option<String>,
    /// Share of the tokens, relative to the other sources' weights; all sources have one or none has. Without weights
    /// the shares follow the sizes of the sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// Passes over the source after which it leaves the mixture; 0 = repeat for ever.
    #[serde(default)]
    pub max_epochs: u32,
    /// What a resume does when shards were appended, their names sorting after all that were there.
    #[serde(default)]
    pub on_new_shards: OnNewShards,
    /// The source holds conversations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat: Option<ChatOptions>,
}

/// What a resume does with shards that were appended to a source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnNewShards {
    /// It is refused.
    #[default]
    Error,
    /// All lanes finish the epochs they may be in without them, and read them from one common epoch on.
    NextEpoch,
}

fn default_text_field() -> String {
    "text".into()
}

/// `[shuffle]` of the config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ShuffleOptions {
    /// Off: shards, spans and documents keep their order.
    pub enabled: bool,
    /// Size of the parts that a seekable shard is dealt in, in uncompressed bytes.
    pub span: crate::size::ByteSize,
    /// Size of the documents that are shuffled together, in uncompressed bytes.
    pub window: crate::size::ByteSize,
}

impl Default for ShuffleOptions {
    fn default() -> Self {
        ShuffleOptions { enabled: true, span: crate::size::ByteSize(16 << 20), window: crate::size::ByteSize(2 << 20) }
    }
}

/// One shard of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestEntry {
    /// What to open.
    pub location: String,
    /// Name as errors show it and as the fingerprint knows it: relative to the source's root.
    pub name: Arc<str>,
    /// Size in bytes, as stored.
    pub size: u64,
    /// Which version of a remote object it is; not part of any hash, so a corpus may move between stores.
    pub version: Version,
}

/// The shards of a source, sorted by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The shards.
    pub shards: Vec<ManifestEntry>,
}

/// Prefixes of a manifest whose hashes a checkpoint keeps, so that an error can say about where shards differ.
const MARKS: u64 = 8;

/// Length of each of a mark's two hashes, in hex digits: one change in 65 000 is placed an eighth too late, in exchange for a
/// state that stays small. What decides is the hash of all.
const MARK_DIGITS: usize = 4;

/// Where the shards now differ from those that `marks` were taken of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstDifference {
    /// The number of the first shard that may be another one, and of the last among which the first difference lies;
    /// both may be past the end.
    pub shards: (u64, u64),
    /// Whether names differ somewhere.
    pub names: bool,
    /// Whether sizes differ somewhere.
    pub sizes: bool,
}

impl Manifest {
    /// Bytes of all shards, as stored.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.size).sum()
    }

    /// Hex BLAKE3 over the first `count` shards' sizes and names, names relative to the folder that these have in common.
    ///
    /// Why not relative to the folder of all: shards appended in a folder beside theirs would then change it.
    pub fn hash(&self, count: usize) -> String {
        let mut hasher = blake3::Hasher::new();
        for (name, size) in self.prefix(count) {
            hasher.update(&(name.len() as u64).to_le_bytes());
            hasher.update(name.as_bytes());
            hasher.update(&size.to_le_bytes());
        }
        hasher.finalize().to_hex()[..32].to_string()
    }

    /// Short hashes of names and of sizes over about every eighth of `count` shards, as far as there are that many.
    ///
    /// ```text
    /// 20 shards: marks over the first 3, 5, 8, 10, 13, 15, 18, 20
    /// 3 shards:  marks over the first 1, 2, 3
    /// ```
    ///
    /// End to end, of each the four hex digits of names and the four of sizes.
    pub fn marks(&self, count: u64) -> String {
        let (mut names, mut sizes) = (blake3::Hasher::new(), blake3::Hasher::new());
        let mut marks = String::new();
        let mut positions = mark_positions(count).into_iter().peekable();
        let here = (self.shards.len() as u64).min(count) as usize;
        for (index, (name, size)) in self.prefix(here).enumerate() {
            names.update(&(name.len() as u64).to_le_bytes());
            names.update(name.as_bytes());
            sizes.update(&size.to_le_bytes());
            if positions.next_if_eq(&(index as u64 + 1)).is_some() {
                let short = |hasher: &blake3::Hasher| hasher.finalize().to_hex()[..MARK_DIGITS].to_string();
                marks += &short(&names);
                marks += &short(&sizes);
            }
        }
        marks
    }

    /// About where the shards first differ from the `count` ones of which `marks` were taken; `None` where the marks are
    /// none of this version's.
    pub fn first_difference(&self, count: u64, marks: &str) -> Option<FirstDifference> {
        let positions = mark_positions(count);
        if marks.len() != positions.len() * 2 * MARK_DIGITS || !marks.is_ascii() {
            return None;
        }
        let found = self.marks(count);
        // Names and sizes in turn, of each mark that there is now.
        let parts = || found.as_bytes().chunks(MARK_DIGITS).zip(marks.as_bytes().chunks(MARK_DIGITS));
        let same = parts().take_while(|(found, then)| found == then).count() / 2;
        let first = same.checked_sub(1).map_or(0, |last| positions[last]);
        let last = positions.get(same).map_or(count, |end| end - 1);
        let names = parts().step_by(2).any(|(found, then)| found != then);
        let sizes = parts().skip(1).step_by(2).any(|(found, then)| found != then);
        Some(FirstDifference { shards: (first, last), names, sizes })
    }

    /// Names, relative to the folder they have in common, and sizes of the first `count` shards.
    fn prefix(&self, count: usize) -> impl Iterator<Item = (&str, u64)> {
        let shards = &self.shards[..count];
        let root = common_folder(shards.iter().map(|shard| &*shard.name));
        shards.iter().map(move |shard| (&shard.name[root..], shard.size))
    }
}

/// How many shards each mark is over: rising, the last one all of `count`; none for no shards.
fn mark_positions(count: u64) -> Vec<u64> {
    let mut positions: Vec<u64> =
        (1..=MARKS).map(|k| (u128::from(k) * u128::from(count)).div_ceil(u128::from(MARKS)) as u64).collect();
    positions.dedup();
    // A checkpoint may say that there were no shards.
    positions.retain(|position| *position > 0);
    positions
}

/// Length of the folder part that all names have in common: a corpus that moved as a whole is still the same.
pub(crate) fn common_folder<'a>(mut names: impl Iterator<Item = &'a str>) -> usize {
    let Some(first) = names.next() else { return 0 };
    let folder = |name: &str| name.rfind('/').map_or(0, |slash| slash + 1);
    names.fold(folder(first), |root, name| {
        let same = first[..root].bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
        if same == root {
            root
        } else {
            first.as_bytes()[..same].iter().rposition(|b| *b == b'/').map_or(0, |slash| slash + 1)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The root is whole folders, never a part of a name.
    #[test]
    fn root_is_the_common_folder() {
        let check =
            |names: &[&str], expected: &str| assert_eq!(&names[0][..common_folder(names.iter().copied())], expected);
        check(&["/data/web/a.jsonl"], "/data/web/");
        check(&["/data/web/a.jsonl", "/data/web/b.jsonl"], "/data/web/");
        check(&["/data/web/a.jsonl", "/data/webby/b.jsonl"], "/data/");
        check(&["web/1/a.jsonl", "web/2/a.jsonl", "web/b.jsonl"], "web/");
        check(&["a.jsonl", "b.jsonl"], "");
        check(&["/a.jsonl", "b.jsonl"], "");
    }

    /// Names with sizes.
    type Shards = Vec<(String, u64)>;

    fn manifest(shards: impl IntoIterator<Item = (String, u64)>) -> Manifest {
        let entry = |(name, size): (String, u64)| ManifestEntry {
            location: name.clone(),
            name: name.into(),
            size,
            version: Version::default(),
        };
        Manifest { shards: shards.into_iter().map(entry).collect() }
    }

    fn numbered(count: u64) -> Shards {
        (0..count).map(|i| (format!("{i:04}"), 100 + i)).collect()
    }

    /// A count that no run writes, but a damaged checkpoint may hold, is no panic: marks of another length are none, and where
    /// there were no shards all of today's differ.
    #[test]
    fn marks_of_no_shards() {
        let now = manifest(numbered(3));
        assert_eq!(now.marks(0), "");
        let found = now.first_difference(0, "").expect("no marks are the marks of no shards");
        assert_eq!((found.shards, found.names, found.sizes), ((0, 0), false, false));
        for count in [0, 1, 2, 9, u64::MAX] {
            assert!(now.first_difference(count, "0123456").is_none());
            for marks in [8, 16, 64] {
                now.first_difference(count, &"0".repeat(marks));
            }
        }
    }

    /// Every single change, at every place, of manifests of every size: the place is among those that are named.
    #[test]
    fn marks_say_where_shards_differ() {
        for count in [1u64, 2, 3, 7, 8, 9, 20, 100] {
            let before = numbered(count);
            let marks = manifest(before.clone()).marks(count);
            assert!(marks.len() <= 64);
            for at in 0..count {
                let check = |change: &dyn Fn(&mut Shards), names: bool, sizes: bool| {
                    let mut now = before.clone();
                    change(&mut now);
                    let found = manifest(now).first_difference(count, &marks).expect("marks of this version");
                    assert!((found.shards.0..=found.shards.1).contains(&at), "{count}, {at}: {found:?}");
                    assert!(found.shards.1 - found.shards.0 <= count / MARKS, "{count}, {at}: {found:?}");
                    assert!(found.names == names && found.sizes == sizes, "{count}, {at}: {found:?}");
                };
                check(&|now| now[at as usize].0 += "x", true, false);
                check(&|now| now[at as usize].1 += 1, false, true);
                check(&|now| now.insert(at as usize, (format!("{:04}+", at as i64 - 1), 5)), true, true);
                // What goes after the last mark that is left changes none of them.
                let last_mark = mark_positions(count).into_iter().rfind(|p| *p < count).unwrap_or(0);
                let seen = at < last_mark;
                check(&|now| drop(now.remove(at as usize)), seen, seen);
            }
        }
    }

    /// Shards appended in a folder beside leave the hash of those before as it was.
    #[test]
    fn prefix_hash_knows_its_own_folder() {
        let old = manifest([("a".to_owned(), 1), ("b".to_owned(), 2)]);
        let new = manifest([("2024/a".to_owned(), 1), ("2024/b".to_owned(), 2), ("2025/a".to_owned(), 3)]);
        assert_eq!(new.hash(2), old.hash(2));
        assert_eq!(new.marks(2), old.marks(2));
    }
}
