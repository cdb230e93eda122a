//! Where a remote object is: `s3://bucket/key`, `http(s)://host/path`, `hf://datasets/owner/name/path@revision`.
//!
//! Comes in: a path of the config. Goes out: an [`Address`], and the text that errors and logs show of it. Holds: what is shown has
//! no query and no password, since signed URLs carry secrets there. Does not know: how to ask for it.

use std::fmt;
use std::sync::Mutex;

use reqwest::Url;

use crate::error::{Error, ErrorKind, Result};

/// Whether a path names a scheme: `s3://…`. Windows' `C:\` doesn't.
pub fn scheme(path: &str) -> Option<&str> {
    let (scheme, _) = path.split_once("://")?;
    let plain = !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    plain.then_some(scheme)
}

/// A location as it may be shown: of a URL, without user, password and query.
pub fn shown(location: &str) -> &str {
    match scheme(location) {
        Some("http" | "https") => location.split(['?', '#']).next().unwrap_or(location),
        _ => location,
    }
}

/// A parsed location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    S3 { bucket: String, key: String },
    Http(Url),
    Hub(HubPath),
}

/// `hf://datasets/owner/name/path@revision`, or `…/name@revision/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HubPath {
    /// `datasets`, `models` or `spaces`.
    pub(crate) kind: &'static str,
    /// `owner/name`.
    pub(crate) repository: String,
    /// Branch, tag or commit.
    pub(crate) revision: String,
    /// Path in the repository; empty for the repository itself.
    pub(crate) path: String,
}

impl Target {
    /// Parses a location of a scheme that is known here.
    ///
    /// # Errors
    /// `Config` - another scheme, or malformed.
    pub(crate) fn parse(location: &str) -> Result<Target> {
        let wrong = |expected: &str| {
            Error::new(ErrorKind::Config, format!("found the path {:?}, expected {expected}", shown(location)))
        };
        match scheme(location) {
            Some("s3") => {
                let (bucket, key) = location["s3://".len()..].split_once('/').unwrap_or(("", ""));
                if bucket.is_empty() || key.is_empty() {
                    return Err(wrong("s3://bucket/key"));
                }
                if bucket.contains(['*', '?', '[', '{']) {
                    return Err(wrong("a bucket's plain name: only keys can have wildcards"));
                }
                Ok(Target::S3 { bucket: bucket.into(), key: key.into() })
            }
            Some("http" | "https") => {
                let url = Url::parse(location).map_err(|error| wrong("a URL").because(error))?;
                if !url.username().is_empty() || url.password().is_some() {
                    let detail = "found a user or a password in a URL, expected none: they would be shown and stored";
                    return Err(Error::new(ErrorKind::Config, detail));
                }
                Ok(Target::Http(url))
            }
            Some("hf") => HubPath::parse(&location["hf://".len()..])
                .filter(|path| !path.path.is_empty())
                .map(Target::Hub)
                .ok_or_else(|| wrong("hf://datasets/owner/name/path@revision")),
            _ => Err(wrong("a local path, or one of s3://, https://, http:// and hf://")),
        }
    }
}

impl HubPath {
    /// Parses what follows `hf://`. Without a kind it is a model.
    pub(crate) fn parse(text: &str) -> Option<HubPath> {
        let (kind, rest) = match text.split_once('/') {
            Some(("datasets", rest)) => ("datasets", rest),
            Some(("spaces", rest)) => ("spaces", rest),
            Some(("models", rest)) => ("models", rest),
            _ => ("models", text),
        };
        let mut parts = rest.splitn(3, '/');
        let (owner, name, path) = (parts.next()?, parts.next()?, parts.next().unwrap_or(""));
        let (name, mut revision) = match name.split_once('@') {
            Some((name, revision)) => (name, Some(revision)),
            None => (name, None),
        };
        let mut path = path;
        if revision.is_none()
            && let Some((before, after)) = path.rsplit_once('@')
        {
            (path, revision) = (before, Some(after));
        }
        let revision = revision.unwrap_or("main");
        let good = |part: &str| {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
            !part.is_empty() && part.bytes().all(plain) && part != "." && part != ".."
        };
        (good(owner) && good(name) && !revision.is_empty()).then(|| HubPath {
            kind,
            repository: format!("{owner}/{name}"),
            // The hub's own form of a revision with a slash, such as refs/convert/parquet.
            revision: revision.replace("%2F", "/"),
            path: path.into(),
        })
    }

    /// URL of the file at `endpoint`.
    pub(crate) fn url(&self, endpoint: &str) -> Result<Url> {
        let kind = if self.kind == "models" { String::new() } else { format!("{}/", self.kind) };
        self.at(endpoint, &format!("{kind}{}/resolve", self.repository))
    }

    /// URL of the listing of a folder.
    pub(crate) fn tree_url(&self, endpoint: &str) -> Result<Url> {
        let mut url = self.at(endpoint, &format!("api/{}/{}/tree", self.kind, self.repository))?;
        url.set_query(Some("recursive=true"));
        Ok(url)
    }

    fn at(&self, endpoint: &str, below: &str) -> Result<Url> {
        let wrong = || Error::new(ErrorKind::Config, format!("found {endpoint:?}, expected the URL of a hub"));
        let mut url = Url::parse(endpoint).map_err(|error| wrong().because(error))?;
        url.path_segments_mut()
            .map_err(|()| wrong())?
            .pop_if_empty()
            .extend(below.split('/'))
            .push(&self.revision)
            .extend(self.path.split('/').filter(|part| !part.is_empty()));
        Ok(url)
    }

    /// As it is listed: without the revision, so that pinning one isn't another corpus.
    pub(crate) fn name(&self) -> String {
        format!("hf://{}/{}/{}", self.kind, self.repository, self.path)
    }

    /// The same at another revision.
    pub(crate) fn at_revision(&self, revision: &str) -> HubPath {
        HubPath { revision: revision.into(), ..self.clone() }
    }
}

impl fmt::Display for HubPath {
    /// As it is parsed again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf://{}/{}", self.kind, self.repository)?;
        match self.path.is_empty() {
            true => write!(f, "@{}", self.revision.replace('/', "%2F")),
            // The revision stands with the name, where a path with an @ in it can't be taken for one.
            false => write!(f, "@{}/{}", self.revision.replace('/', "%2F"), self.path),
        }
    }
}

/// An object under way: its target and where the server last sent us for it.
#[derive(Debug)]
pub(crate) struct Address {
    pub(crate) target: Target,
    /// For errors and logs.
    pub(crate) shown: String,
    /// Where the last request was sent on to, which saves going through the first server each time.
    pub(crate) sent_on: Mutex<Option<Url>>,
}

impl Address {
    pub(crate) fn new(location: &str) -> Result<Address> {
        let target = Target::parse(location)?;
        Ok(Address { target, shown: shown(location).to_owned(), sent_on: Mutex::new(None) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paths of the hub: with and without a revision, in both places, with slashes and odd characters; what is shown parses back.
    #[test]
    fn paths_of_the_hub() {
        let check = |text: &str, expected: Option<(&str, &str, &str, &str)>, url: &str| {
            let found = HubPath::parse(text);
            let parts = found.as_ref().map(|p| (p.kind, p.repository.as_str(), p.revision.as_str(), p.path.as_str()));
            assert_eq!(parts, expected, "{text}");
            if let Some(found) = found {
                assert_eq!(found.url("http://127.0.0.1:1/").expect("a URL").as_str(), url);
                assert_eq!(HubPath::parse(&found.to_string()["hf://".len()..]).as_ref(), Some(&found), "{found}");
            }
        };
        check(
            "datasets/o/n/data/a b.parquet@v1",
            Some(("datasets", "o/n", "v1", "data/a b.parquet")),
            "http://127.0.0.1:1/datasets/o/n/resolve/v1/data/a%20b.parquet",
        );
        check(
            "datasets/o/n@refs%2Fconvert%2Fparquet/x/a@b.parquet",
            Some(("datasets", "o/n", "refs/convert/parquet", "x/a@b.parquet")),
            "http://127.0.0.1:1/datasets/o/n/resolve/refs%2Fconvert%2Fparquet/x/a@b.parquet",
        );
        check("o/m", Some(("models", "o/m", "main", "")), "http://127.0.0.1:1/o/m/resolve/main");
        check("o/m@abc", Some(("models", "o/m", "abc", "")), "http://127.0.0.1:1/o/m/resolve/abc");
        check("datasets/o", None, "");
        check("datasets/../n/a", None, "");
    }

    /// Secrets of URLs aren't shown; a password isn't taken at all.
    #[test]
    fn what_is_shown() {
        assert_eq!(shown("https://h/a.jsonl?X-Amz-Signature=abc#x"), "https://h/a.jsonl");
        assert_eq!(shown("s3://b/what?.jsonl"), "s3://b/what?.jsonl");
        assert_eq!(shown("/data/a?b.jsonl"), "/data/a?b.jsonl");
        let error = Target::parse("https://user:word@h/a").expect_err("a password").to_string();
        assert!(!error.contains("word@"), "{error}");
        assert!(Target::parse("gs://b/k").is_err() && Target::parse("s3://b").is_err());
        assert_eq!(scheme("C:\\a"), None);
    }
}
