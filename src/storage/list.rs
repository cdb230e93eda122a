//! Listing: paths and globs in, files with their sizes out, in one fixed order.
//!
//! `*` and `?` stay within one folder, `**` crosses folders, square brackets and `{a,b}` choose. Holds: the listing is sorted bytewise by
//! name and each file is in it once, however many patterns match it, so it depends on the files and not on the order in which
//! a file system tells them. Hidden files and folders (a leading dot) match only where the pattern spells the dot.
//! Symbolic links are followed to files; to folders only where the pattern spells the link, so a link can't make a cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};

use super::Version;
use crate::error::{Error, ErrorKind, Result};

/// One file of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Path to open: absolute, or joined to the base.
    pub location: String,
    /// Path as its pattern spells it: relative to the base where the pattern is.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Which version of a remote object was listed.
    pub version: Version,
}

/// Expands `patterns`, relative ones against `base`.
///
/// Cost: one walk of the folders below each pattern's fixed beginning, one `stat` a match.
///
/// # Errors
/// * `NotFound` - a path isn't there, or a pattern matches no file; it is named.
/// * `Read` - a folder can't be read; a path is a folder, a FIFO or a device, or not UTF-8.
/// * `Config` - a pattern is malformed.
pub fn list(patterns: &[String], base: &Path) -> Result<Vec<Listed>> {
    let mut found = BTreeMap::new();
    for pattern in patterns {
        if let Some((scheme, _)) = pattern.split_once("://") {
            let detail = format!("found the path {pattern:?}, expected a local path: {scheme}:// can't be read");
            return Err(Error::new(ErrorKind::Config, detail));
        }
        let path = base.join(pattern);
        // A file whose name happens to hold `[` is still found by its plain name.
        if !pattern.contains(['*', '?', '[', '{']) || path.is_file() {
            add(&mut found, path, PathBuf::from(pattern))?;
            continue;
        }
        let mut matched = false;
        expand(pattern, base, &mut |location, name| {
            matched = true;
            add(&mut found, location, name)
        })?;
        if !matched {
            let folder = if base.as_os_str().is_empty() { Path::new(".") } else { base };
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("no file matches {pattern:?} in {}", folder.display()),
            ));
        }
    }
    // Two spellings of one file are one file: the first name in the order of bytes stays.
    let mut locations = BTreeSet::new();
    let mut listed: Vec<Listed> = found.into_values().collect();
    listed.retain(|entry| locations.insert(plain(Path::new(&entry.location))));
    Ok(listed)
}

/// The path without `.` parts and repeated separators, to compare spellings.
fn plain(path: &Path) -> PathBuf {
    path.components().filter(|part| !matches!(part, Component::CurDir)).collect()
}

fn add(found: &mut BTreeMap<String, Listed>, location: PathBuf, name: PathBuf) -> Result<()> {
    let metadata = fs::metadata(&location).map_err(|error| {
        let kind = if error.kind() == io::ErrorKind::NotFound { ErrorKind::NotFound } else { ErrorKind::Read };
        Error::new(kind, format!("can't open {}", location.display())).because(error)
    })?;
    if metadata.is_dir() {
        let detail = format!(
            "found a folder at {}, expected a file; \"{}/*\" takes its files",
            location.display(),
            name.display().to_string().trim_end_matches('/')
        );
        return Err(Error::new(ErrorKind::Read, detail));
    }
    if !metadata.is_file() {
        let found = kind(metadata.file_type());
        return Err(Error::new(ErrorKind::Read, format!("found {found} at {}, expected a file", location.display())));
    }
    let text = |path: PathBuf| {
        path.into_os_string().into_string().map_err(|path| {
            Error::new(ErrorKind::Read, format!("found the path {}, expected UTF-8", path.to_string_lossy()))
        })
    };
    let name = text(name)?;
    let entry =
        Listed { location: text(location)?, name: name.clone(), size: metadata.len(), version: Version::default() };
    found.entry(name).or_insert(entry);
    Ok(())
}

/// What stands where a file is expected.
pub(super) fn kind(found: fs::FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if found.is_fifo() {
            return "a FIFO";
        } else if found.is_socket() {
            return "a socket";
        } else if found.is_block_device() || found.is_char_device() {
            return "a device";
        }
    }
    if found.is_dir() { "a folder" } else { "something else" }
}

/// Calls `each` with (location, name) of every file that matches `pattern`.
fn expand(pattern: &str, base: &Path, each: &mut dyn FnMut(PathBuf, PathBuf) -> Result<()>) -> Result<()> {
    let pattern_plain = plain(Path::new(pattern));
    let pattern_text = pattern_plain.to_string_lossy().into_owned();
    let glob = GlobBuilder::new(&pattern_text)
        .literal_separator(true)
        .build()
        .map_err(|error| Error::new(ErrorKind::Config, format!("malformed pattern {pattern:?}")).because(error))?;
    // The walk starts below the folders that are spelled out.
    let mut root = PathBuf::new();
    let mut depth_max = 0;
    for part in pattern_plain.components() {
        let spelled = part.as_os_str().to_string_lossy();
        if depth_max == 0 && !spelled.contains(['*', '?', '[', '{']) {
            root.push(part);
        } else if spelled.contains("**") || spelled.contains('{') {
            depth_max = usize::MAX;
        } else {
            depth_max = usize::saturating_add(depth_max, 1);
        }
    }
    let dots = pattern_plain
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .any(|part| part.as_os_str().to_string_lossy().starts_with('.'));
    let walk = Walk { matcher: glob.compile_matcher(), base, hidden: dots, pattern: &pattern_text };
    walk.folder(&root, depth_max, each)
}

struct Walk<'a> {
    matcher: GlobMatcher,
    base: &'a Path,
    /// The pattern spells a leading dot somewhere, so hidden files may be meant.
    hidden: bool,
    pattern: &'a str,
}

impl Walk<'_> {
    fn folder(
        &self,
        folder: &Path,
        depth_max: usize,
        each: &mut dyn FnMut(PathBuf, PathBuf) -> Result<()>,
    ) -> Result<()> {
        let location = self.base.join(folder);
        let location = if location.as_os_str().is_empty() { PathBuf::from(".") } else { location };
        let failed = |error: io::Error| {
            let detail = format!("can't list {} for {:?}", location.display(), self.pattern);
            Error::new(ErrorKind::Read, detail).because(error)
        };
        let entries = match fs::read_dir(&location) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(());
            }
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let name = folder.join(entry.file_name());
            let own = entry.file_name().to_string_lossy().into_owned();
            if own.starts_with('.') && !(self.hidden && dot_is_spelled(self.pattern, &own)) {
                continue;
            }
            let kind = entry.file_type().map_err(failed)?;
            if kind.is_dir() {
                if depth_max > 1 {
                    self.folder(&name, if depth_max == usize::MAX { depth_max } else { depth_max - 1 }, each)?;
                }
            } else if self.matcher.is_match(&name) {
                let location = self.base.join(&name);
                if kind.is_symlink() && location.is_dir() {
                    continue;
                }
                each(location, name)?;
            }
        }
        Ok(())
    }
}

/// Whether the pattern has a part with a leading dot that could stand for `name`, a file's or folder's own.
pub(super) fn dot_is_spelled(pattern: &str, name: &str) -> bool {
    pattern.split('/').filter(|part| part.starts_with('.')).any(|part| {
        GlobBuilder::new(part).literal_separator(true).build().is_ok_and(|glob| glob.compile_matcher().is_match(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(patterns: &[&str], base: &Path) -> Result<Vec<String>> {
        let patterns: Vec<String> = patterns.iter().map(|pattern| pattern.to_string()).collect();
        Ok(list(&patterns, base)?.into_iter().map(|entry| entry.name).collect())
    }

    /// Patterns against a small tree: order, duplicates, hidden files, folders.
    #[test]
    fn expands_paths_and_globs() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let base = folder.path();
        for name in [
            "b.jsonl",
            "a.jsonl",
            "B.jsonl",
            ".hidden.jsonl",
            "sub/c.jsonl",
            "sub/deep/d.jsonl",
            ".git/e.jsonl",
            "x[1].txt",
        ] {
            fs::create_dir_all(base.join(name).parent().expect("has a parent")).expect("can be made");
            fs::write(base.join(name), name).expect("writable");
        }
        fs::create_dir(base.join("folder.jsonl")).expect("can be made");
        let check = |patterns: &[&str], expected: &[&str]| {
            assert_eq!(names(patterns, base).expect("matches"), expected, "{patterns:?}");
        };
        check(&["*.jsonl"], &["B.jsonl", "a.jsonl", "b.jsonl"]);
        check(&["b.jsonl", "./*.jsonl", "a.jsonl"], &["B.jsonl", "a.jsonl", "b.jsonl"]);
        check(&["**/*.jsonl"], &["B.jsonl", "a.jsonl", "b.jsonl", "sub/c.jsonl", "sub/deep/d.jsonl"]);
        check(&["sub/*"], &["sub/c.jsonl"]);
        check(&["sub/**"], &["sub/c.jsonl", "sub/deep/d.jsonl"]);
        check(&["{a,b}.jsonl"], &["a.jsonl", "b.jsonl"]);
        check(&["*/*/[a-d].jsonl"], &["sub/deep/d.jsonl"]);
        check(&[".*.jsonl"], &[".hidden.jsonl"]);
        check(&[".hidden.jsonl"], &[".hidden.jsonl"]);
        check(&[".git/*"], &[".git/e.jsonl"]);
        check(&["x[1].txt"], &["x[1].txt"]);
        let absolute = base.join("*.jsonl").to_string_lossy().into_owned();
        assert_eq!(names(&[&absolute], Path::new("/")).expect("matches").len(), 3);
        let listed = list(&["a.jsonl".into()], base).expect("there");
        assert_eq!((listed[0].size, Path::new(&listed[0].location)), (7, base.join("a.jsonl").as_path()));
    }

    #[test]
    fn names_what_matches_nothing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for pattern in ["*.jsonl", "none/**/*.gz", "none.jsonl"] {
            let error = names(&[pattern], folder.path()).expect_err("an empty folder");
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.detail().contains(pattern), "{error}");
        }
        let error = names(&["no-such-*.jsonl"], Path::new("")).expect_err("nothing here has that name");
        assert!(error.detail().ends_with(" in ."), "{error}");
        assert_eq!(names(&["."], folder.path()).expect_err("a folder").kind(), ErrorKind::Read);
        assert_eq!(names(&["a{b"], folder.path()).expect_err("malformed").kind(), ErrorKind::Config);
    }
}
