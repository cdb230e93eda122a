//! The network as the remote stores share it: one runtime, its clients, and how a range of an object is fetched.
//!
//! Comes in: an address, a version and a range. Goes out: the bytes, all of them, or an error that says what to check. Holds: a body
//! that is cut, too short or stalls is gone on with from the byte reached; every byte is of the version that was asked for; requests
//! under way are bounded. Does not know: who reads ahead, or why.
//!
//! The runtime's threads start with the first request. A process that forked gets a runtime and clients of its own, since threads
//! don't survive a fork. Callers wait on channels and never block on a future, so they may be called from any thread, of
//! another runtime as well.

use std::future::Future;
use std::iter::once;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, mpsc};

use bytes::Bytes;
use futures_util::future::try_join;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Semaphore;

use super::address::{Address, Target};
use super::retry::{Counters, Fault, Tries};
use super::{StorageOptions, Version, http};
use crate::error::{Error, ErrorKind, Result};

/// Threads of the runtime: they wait, copy and decrypt.
const THREADS: usize = 2;

/// What all remote stores of a plan share.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) options: StorageOptions,
    pub(crate) counters: Counters,
    live: Mutex<Option<Arc<Live>>>,
    /// Whether MD5 tags of a bucket turned out to be something else.
    other_tags: Mutex<std::collections::BTreeSet<String>>,
}

/// What a process has of its own: threads and connections.
#[derive(Debug)]
pub(crate) struct Live {
    process: u32,
    runtime: Option<Runtime>,
    handle: Handle,
    http: OnceLock<Result<reqwest::Client>>,
    http_permits: Semaphore,
    #[cfg(feature = "s3")]
    pub(crate) s3: tokio::sync::OnceCell<aws_sdk_s3::Client>,
    #[cfg(feature = "s3")]
    s3_permits: Semaphore,
}

impl Drop for Live {
    fn drop(&mut self) {
        // The last to hold it may be a task of the runtime itself, which mustn't wait for its own end.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Live {
    fn start(options: &StorageOptions) -> Result<Live> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("tokenmill-net")
            .enable_all()
            .build()
            .map_err(|error| Error::new(ErrorKind::Internal, "can't start the network's threads").because(error))?;
        Ok(Live {
            process: std::process::id(),
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
            http: OnceLock::new(),
            http_permits: Semaphore::new(options.http.concurrency as usize),
            #[cfg(feature = "s3")]
            s3: tokio::sync::OnceCell::new(),
            #[cfg(feature = "s3")]
            s3_permits: Semaphore::new(options.s3.concurrency as usize),
        })
    }

    /// The client of HTTP.
    pub(crate) fn http(&self, options: &StorageOptions) -> Result<&reqwest::Client> {
        self.http.get_or_init(|| http::client(options)).as_ref().map_err(Error::clone)
    }

    fn permits(&self, target: &Target) -> &Semaphore {
        match target {
            #[cfg(feature = "s3")]
            Target::S3 { .. } => &self.s3_permits,
            _ => &self.http_permits,
        }
    }
}

/// One range of one version of an object.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) address: Arc<Address>,
    pub(crate) version: Version,
    /// Size of the whole object.
    pub(crate) size: u64,
    pub(crate) range: Range<u64>,
}

/// A response's body under way.
pub(crate) struct Body {
    pub(crate) from: BodyFrom,
    /// Bytes to pass over: the server began before what was asked for.
    pub(crate) skip: u64,
    /// MD5 of the whole object, where the response is all of it and says so: hex.
    pub(crate) md5: Option<String>,
}

pub(crate) enum BodyFrom {
    Http(reqwest::Response),
    #[cfg(feature = "s3")]
    S3(aws_sdk_s3::primitives::ByteStream),
}

impl Body {
    async fn next(&mut self) -> std::result::Result<Option<Bytes>, String> {
        match &mut self.from {
            BodyFrom::Http(response) => response.chunk().await.map_err(|error| chain(&error)),
            #[cfg(feature = "s3")]
            BodyFrom::S3(stream) => stream.next().await.transpose().map_err(|error| chain(&error)),
        }
    }
}

/// The messages of an error and of its causes, without URLs: those may hold secrets.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let message = error.to_string();
        let message = message.split(" for url (").next().unwrap_or_default();
        if !text.ends_with(message) {
            text += if text.is_empty() { "" } else { ": " };
            text += message;
        }
        next = error.source();
    }
    text
}

impl Network {
    pub(crate) fn new(options: StorageOptions) -> Network {
        Network { options, counters: Counters::default(), live: Mutex::new(None), other_tags: Mutex::default() }
    }

    /// This process' runtime and clients.
    pub(crate) fn live(&self) -> Result<Arc<Live>> {
        let mut live = self.live.lock().expect("no panic happens while it is held");
        if let Some(there) = live.as_ref().filter(|live| live.process == std::process::id()) {
            return Ok(there.clone());
        }
        // The parent's threads aren't here, so nothing of it can be ended: it is left as it is.
        std::mem::forget(live.take());
        Ok(live.insert(Arc::new(Live::start(&self.options)?)).clone())
    }

    /// Runs a task on the runtime; what it gives comes out of the receiver.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<(mpsc::Receiver<T>, tokio::task::AbortHandle)> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let task = self.live()?.handle.spawn(async move {
            // Who asked may have gone.
            let _ = sender.send(task.await);
        });
        Ok((receiver, task.abort_handle()))
    }

    /// Runs a task on the runtime and waits for it.
    pub(crate) fn run<T: Send + 'static>(&self, task: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let (result, _) = self.spawn(task)?;
        result.recv().unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a task of the network panicked")))
    }

    /// Asks for the bytes of `wanted` from `from` on.
    async fn begin(&self, live: &Live, wanted: &Wanted, from: u64) -> Result<Body, Fault> {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        let limit = self.options.retry.response_timeout;
        let begin = async {
            match &wanted.address.target {
                Target::S3 { bucket, key } => super::s3::get(self, live, wanted, bucket, key, from).await,
                Target::Http(_) | Target::Hub(_) => http::get(self, live, wanted, from).await,
            }
        };
        tokio::time::timeout(limit.0, begin)
            .await
            .unwrap_or_else(|_| Err(Fault::passing("timeout", format!("no response within {limit}"))))
    }

    /// One try: hands what comes to `out`, `got` being the bytes that it has.
    async fn try_fetch(
        &self,
        live: &Live,
        wanted: &Wanted,
        got: &mut u64,
        out: &mut (dyn FnMut(&[u8]) -> Result<()> + Send),
    ) -> Result<Option<String>, Fault> {
        let length = wanted.range.end - wanted.range.start;
        let _permit = live.permits(&wanted.address.target).acquire().await.expect("it is never closed");
        let mut body = self.begin(live, wanted, wanted.range.start + *got).await?;
        let limit = self.options.retry.idle_timeout;
        loop {
            let bytes = tokio::time::timeout(limit.0, body.next()).await.map_err(|_| {
                Fault::passing("stall", format!("no byte for {limit} after {got} of {length} bytes of the body"))
            })?;
            let bytes = bytes.map_err(|error| {
                let kind = if error.to_ascii_lowercase().contains("checksum") { "checksum" } else { "cut" };
                Fault::passing(kind, format!("the body broke off after {got} of {length} bytes ({error})"))
            })?;
            let Some(bytes) = bytes else { break };
            self.counters.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            let passed = body.skip.min(bytes.len() as u64);
            body.skip -= passed;
            let rest = &bytes[passed as usize..];
            if body.skip > 0 || rest.is_empty() {
                continue;
            }
            let room = (length - *got).min(rest.len() as u64);
            out(&rest[..room as usize])?;
            *got += room;
            if room < rest.len() as u64 {
                // A server without ranges sends all of the object; nothing more of it is wanted.
                break;
            }
        }
        if *got < length {
            return Err(Fault::passing("short", format!("the body ended after {got} of {length} bytes")));
        }
        Ok(body.md5)
    }

    /// Fetches a range, as often as the policy allows; hands the bytes to `out` in order. `restart` is called where all has to come
    /// once more. Returns the MD5 of the whole object, if the server said it and all of it was fetched at once.
    pub(crate) async fn fetch_to(
        &self,
        live: &Live,
        wanted: &Wanted,
        out: &mut (dyn FnMut(Option<&[u8]>) -> Result<()> + Send),
    ) -> Result<Option<String>> {
        let Range { start, end } = wanted.range;
        let what = format!("{}, bytes {start} to {}", wanted.address.shown, end.saturating_sub(1));
        let mut tries = Tries::new(&self.options.retry, &self.counters, what);
        let mut got = 0;
        if start == end {
            return Ok(None);
        }
        loop {
            let before = got;
            let result = self.try_fetch(live, wanted, &mut got, &mut |bytes| out(Some(bytes))).await;
            let fault = match result {
                // Of a body that was gone on with, only a part is what the server summed up.
                Ok(md5) => return Ok(md5.filter(|_| before == 0)),
                Err(fault) => fault,
            };
            let mut progress = got > before;
            if got == end - start || matches!(fault, Fault::Passing { kind: "checksum", .. }) {
                // All came, and it isn't what was sent.
                (got, progress) = (0, false);
                out(None)?;
            }
            tries.again(fault, progress).await?;
        }
    }

    /// Fetches a range into memory, unchecked, in the way of a variant.
    async fn fetch_once(&self, live: &Live, wanted: &Wanted, variant: usize) -> Result<(Vec<u8>, Option<String>)> {
        let mut bytes = Vec::with_capacity((wanted.range.end - wanted.range.start) as usize);
        let (ranges, extra) = asked_for(&wanted.range, variant as u64);
        let mut said = None;
        for range in ranges {
            let (wanted, base) = (Wanted { range, ..wanted.clone() }, bytes.len());
            let mut out = |piece: Option<&[u8]>| {
                match piece {
                    Some(piece) => bytes.extend_from_slice(piece),
                    None => bytes.truncate(base),
                }
                Ok(())
            };
            let sum = self.fetch_to(live, &wanted, &mut out).await?;
            said = said.or(sum);
        }
        bytes.drain(..extra as usize);
        Ok((bytes, said.filter(|_| variant == 0)))
    }

    /// Fetches a range into memory; all of an object is compared with its sum, if that is known.
    pub(crate) async fn fetch(&self, live: &Live, wanted: &Wanted) -> Result<Vec<u8>> {
        self.fetch_from(live, wanted, 0).await
    }

    async fn fetch_from(&self, live: &Live, wanted: &Wanted, first: usize) -> Result<Vec<u8>> {
        let whole = wanted.range == (0..wanted.size);
        let mut earlier: Vec<Vec<u8>> = Vec::new();
        loop {
            let (bytes, said) = self.fetch_once(live, wanted, first + earlier.len()).await?;
            let bucket = self.tagged_bucket(wanted);
            let expected = said.or_else(|| bucket.as_ref().and_then(|_| md5_tag(&wanted.version)));
            let Some(expected) = expected.filter(|_| whole) else { return Ok(bytes) };
            if super::md5_hex([&bytes[..]]) == expected {
                return Ok(bytes);
            }
            earlier.push(bytes);
            if let [a, b, c] = &earlier[..] {
                if a == b && b == c {
                    // What looks like an MD5 isn't one here, as with a server's own encryption.
                    if let Some(bucket) = bucket {
                        tracing::debug!("the ETags of {bucket} aren't MD5 sums");
                        self.other_tags.lock().expect("no panic happens while it is held").insert(bucket);
                    }
                    return Ok(earlier.swap_remove(0));
                }
                let best = majority(a, b, c).filter(|best| super::md5_hex([&best[..]]) == expected);
                return best.ok_or_else(|| self.always_different(wanted));
            }
            self.counters.retried("checksum");
            tracing::warn!(
                "retrying {}: found other bytes than the object's checksum {expected} says",
                wanted.address.shown
            );
        }
    }

    /// Fetches a range twice, and where the two differ once more: for who found damage in what was read, or can't see any.
    pub(crate) async fn fetch_twice(&self, live: &Live, wanted: &Wanted) -> Result<Vec<u8>> {
        let (a, b) = try_join(self.fetch_from(live, wanted, 0), self.fetch_from(live, wanted, 1)).await?;
        if a == b {
            return Ok(a);
        }
        self.counters.retried("checksum");
        tracing::warn!("retrying {}: found different bytes in two reads", wanted.address.shown);
        let c = self.fetch_from(live, wanted, 2).await?;
        majority(&a, &b, &c).ok_or_else(|| self.always_different(wanted))
    }

    fn always_different(&self, wanted: &Wanted) -> Error {
        let Range { start, end } = wanted.range;
        Error::new(
            ErrorKind::Read,
            format!(
                "{}: found different bytes in each of 3 reads of bytes {start} to {}, expected the same; the network or the server damages them",
                wanted.address.shown,
                end.saturating_sub(1)
            ),
        )
    }

    /// Whether an object comes over a connection without checks of its own.
    pub(crate) fn is_plain(&self, address: &Address) -> bool {
        let plain = |url: Option<&str>| url.is_some_and(|url| url.starts_with("http://"));
        match &address.target {
            Target::Http(url) => plain(Some(url.as_str())),
            Target::Hub(_) => plain(Some(http::hub_endpoint(&self.options))),
            Target::S3 { .. } => {
                plain(self.options.s3.endpoint.as_deref().or(self.options.environment.s3_endpoint.as_deref()))
            }
        }
    }

    /// Whether an object that is fetched as a whole is compared with a sum.
    pub(crate) fn has_sum(&self, wanted: &Wanted) -> bool {
        self.tagged_bucket(wanted).is_some() && md5_tag(&wanted.version).is_some()
    }

    /// Whether parts are together the version that an MD5 tag says.
    pub(crate) fn has_this_sum(&self, version: &Version, parts: &[Bytes]) -> bool {
        md5_tag(version).is_some_and(|expected| expected == super::md5_hex(parts.iter().map(|part| &part[..])))
    }

    /// The bucket, where its ETags may be MD5 sums.
    fn tagged_bucket(&self, wanted: &Wanted) -> Option<String> {
        let Target::S3 { bucket, .. } = &wanted.address.target else { return None };
        let other = self.other_tags.lock().expect("no panic happens while it is held").contains(bucket);
        (!other).then(|| bucket.clone())
    }
}

/// How a variant asks for a range: for these ranges, of which so many bytes at the beginning aren't wanted. What damages the same place
/// of each response damages another place of the object with each of three variants, but for the first place of responses that begin with
/// the object's first byte.
fn asked_for(range: &Range<u64>, variant: u64) -> (Vec<Range<u64>>, u64) {
    let Range { start, end } = *range;
    if let Some(shift) = [37 * variant, variant].into_iter().find(|&shift| shift <= start) {
        return (once(start - shift..end).collect(), shift);
    }
    // First bytes one by one: a few in one response would be where another variant has them.
    let middle = (start + variant).min(end);
    let alone = (start..middle).map(|at| at..at + 1);
    (alone.chain(once(middle..end)).collect(), 0)
}

/// The bytes that two of three reads have, if they do everywhere.
fn majority(a: &[u8], b: &[u8], c: &[u8]) -> Option<Vec<u8>> {
    let each = a.iter().zip(b).zip(c);
    each.map(|((a, b), c)| if a == b || a == c { Some(*a) } else { (b == c).then_some(*b) }).collect()
}

/// The MD5 that an S3 ETag is, if it looks like one: of an object put in one part, without keys of its own.
fn md5_tag(version: &Version) -> Option<String> {
    let tag = version.tag.as_deref()?.trim_matches('"');
    (tag.len() == 32 && tag.bytes().all(|b| b.is_ascii_hexdigit())).then(|| tag.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever place of all responses is damaged, no byte is in two variants, unless it is the place at which the object's first byte
    /// has to come; each variant has all bytes that are wanted.
    #[test]
    fn variants_are_damaged_at_other_places() {
        for range in [0..1, 0..2, 0..3, 0..100, 2..90, 4..200, 36..80, 37..300, 74..75, 1000..1400] {
            for at in usize::from(range.start == 0)..500 {
                let mut damaged = Vec::new();
                for variant in 0..3 {
                    let (asked, extra) = asked_for(&range, variant);
                    let bytes: Vec<u64> = asked.iter().cloned().flatten().skip(extra as usize).collect();
                    assert_eq!(bytes, range.clone().collect::<Vec<_>>(), "{range:?}, variant {variant}");
                    let hit = asked.into_iter().filter_map(|mut range| range.nth(at));
                    damaged.extend(hit.filter(|byte| range.contains(byte)));
                }
                damaged.sort_unstable();
                assert!(damaged.windows(2).all(|pair| pair[0] < pair[1]), "{range:?}, place {at}: {damaged:?}");
            }
        }
    }
}
