//! What stands in for S3 in a build without the feature `s3`: an error that says so.

use bytes::Bytes;

use super::Version;
use super::network::{Body, Live, Network, Wanted};
use super::retry::Fault;
use crate::error::{Error, ErrorKind, Result};

/// One object of a listing: key, size, ETag.
pub(super) type Entry = (String, u64, Option<String>);

fn absent<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Config, "found an s3:// path, expected a build with the feature \"s3\""))
}

pub(super) async fn get(_: &Network, _: &Live, _: &Wanted, _: &str, _: &str, _: u64) -> Result<Body, Fault> {
    Ok(absent()?)
}

pub(super) async fn stat(_: &Network, _: &Live, _: &str, _: &str) -> Result<(u64, Version)> {
    absent()
}

pub(super) async fn list(_: &Network, _: &Live, _: &str, _: &str) -> Result<Vec<Entry>> {
    absent()
}

pub(super) async fn put(_: &Network, _: &Live, _: &str, _: &str, _: Bytes) -> Result<()> {
    absent()
}

pub(super) async fn put_file(_: &Network, _: &Live, _: &str, _: &str, _: &std::fs::File, _: u64) -> Result<()> {
    absent()
}
