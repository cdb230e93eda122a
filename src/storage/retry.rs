//! When a request is tried again: one policy for all stores.
//!
//! Comes in: what went wrong with one try. Goes out: a wait, or the error that ends it. Holds: tries and time without a byte are
//! bounded; each retry is logged with what failed and counted; what can't pass (no such key, no right to it, another version) is
//! never tried again. Does not know: requests.
//!
//! The jitter is the one place of the crate with chance in it, and it decides about waits only.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::RetryOptions;
use crate::error::{Error, ErrorKind};

/// Why a try failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It may pass: worth another try.
    Passing {
        /// In few words, the same for all of its kind: what is counted.
        kind: &'static str,
        /// What was found.
        found: String,
        /// The wait that the server asks for.
        after: Option<Duration>,
    },
    /// It won't.
    Final(Error),
}

impl Fault {
    pub(crate) fn passing(kind: &'static str, found: impl Into<String>) -> Fault {
        Fault::Passing { kind, found: found.into(), after: None }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Final(error)
    }
}

/// Most that a server's `Retry-After` is followed.
const AFTER_MAX: Duration = Duration::from_secs(60);

/// What was asked of remote stores so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Requests sent, retries included.
    pub requests: u64,
    /// Bytes of bodies received.
    pub bytes: u64,
    /// Requests that were repeated.
    pub retries: u64,
    /// The same by what had gone wrong.
    pub retries_by: BTreeMap<String, u64>,
    /// Bytes taken from the local cache in place of requests.
    pub cached_bytes: u64,
}

impl Traffic {
    /// Adds what was asked through other stores.
    pub fn add(&mut self, other: &Traffic) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.retries += other.retries;
        self.cached_bytes += other.cached_bytes;
        for (kind, count) in &other.retries_by {
            *self.retries_by.entry(kind.clone()).or_default() += count;
        }
    }
}

/// Counts of all that goes over the network.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) cached_bytes: AtomicU64,
    retries: Mutex<BTreeMap<&'static str, u64>>,
}

impl Counters {
    pub(crate) fn traffic(&self) -> Traffic {
        let retries = self.retries.lock().expect("no panic happens while it is held");
        Traffic {
            requests: self.requests.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            retries: retries.values().sum(),
            retries_by: retries.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect(),
            cached_bytes: self.cached_bytes.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn retried(&self, kind: &'static str) {
        *self.retries.lock().expect("no panic happens while it is held").entry(kind).or_default() += 1;
    }
}

/// The tries of one operation.
pub(crate) struct Tries<'a> {
    options: &'a RetryOptions,
    counters: &'a Counters,
    /// What is read or written, for messages.
    what: String,
    /// Tries in a row that brought nothing.
    failed: u32,
    /// Since when nothing came.
    since: Instant,
}

impl<'a> Tries<'a> {
    pub(crate) fn new(options: &'a RetryOptions, counters: &'a Counters, what: impl Into<String>) -> Tries<'a> {
        Tries { options, counters, what: what.into(), failed: 0, since: Instant::now() }
    }

    /// After a try that failed: waits, or gives the error that ends it. `progress`: the try brought something, so the count
    /// starts anew.
    pub(crate) async fn again(&mut self, fault: Fault, progress: bool) -> Result<(), Error> {
        let (kind, found, after) = match fault {
            Fault::Final(error) => return Err(error),
            Fault::Passing { kind, found, after } => (kind, found, after),
        };
        if progress {
            self.failed = 0;
            self.since = Instant::now();
        }
        self.failed += 1;
        let wait = match after {
            Some(after) => after.min(AFTER_MAX),
            // What was cut goes on at once: the server is there.
            None if progress && kind != "status" => Duration::ZERO,
            None => {
                let doubled = self.options.first_wait.0.saturating_mul(2u32.saturating_pow(self.failed - 1));
                let most = doubled.min(self.options.max_wait.0);
                most / 2 + most.mul_f64(chance() / 2.0)
            }
        };
        let waited = self.since.elapsed();
        if self.failed >= self.options.tries || waited + wait > self.options.max_time.0 {
            return Err(Error::new(
                ErrorKind::Read,
                format!(
                    "{}: {found}; gave up after {} tries without a byte in {:.1} s (storage.retry allows {} tries in {})",
                    self.what,
                    self.failed,
                    waited.as_secs_f64(),
                    self.options.tries,
                    self.options.max_time
                ),
            ));
        }
        self.counters.retried(kind);
        tracing::warn!(
            attempt = self.failed,
            wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            "retrying {}: {found}",
            self.what
        );
        tokio::time::sleep(wait).await;
        Ok(())
    }
}

/// A number from 0 to 1, another one each time.
fn chance() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    (RandomState::new().hash_one(0u8) >> 11) as f64 / (1u64 << 53) as f64
}
