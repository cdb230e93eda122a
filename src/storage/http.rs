//! HTTP(S): objects by URL, with range requests where the server has them; and the hub's files, which are URLs with rules.
//!
//! Comes in: an address. Goes out: what a server says of it, and bodies. Holds: redirects are followed here and not by the client, so a
//! token never goes to another host; a response of another version is an error. A version is an ETag, else a modification time.
//! Does not know: retries, read-ahead.
//!
//! The hub sends on to a storage server that has ETags of its own. Its objects are pinned by a commit instead, which is part of
//! their location.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use reqwest::header::{self, HeaderMap, HeaderName};
use reqwest::{Client, Method, Response, StatusCode, Url};

use super::address::{Address, HubPath, Target};
use super::network::{Body, BodyFrom, Live, Network, Wanted, chain};
use super::retry::{Fault, Tries};
use super::{StorageOptions, Version};
use crate::error::{Error, ErrorKind, Result};

/// The public hub.
const HUB: &str = "https://huggingface.co";
/// Redirects that are followed.
const REDIRECTS_MAX: usize = 10;
/// Of a body that explains an error, this much is shown.
const EXPLANATION_MAX: usize = 200;
/// Largest body of a listing or a small file.
const SMALL_MAX: usize = 256 << 20;
/// What begins a version that is a modification time.
const MODIFIED: &str = "modified ";

pub(super) fn client(options: &StorageOptions) -> Result<Client> {
    let failed = |error: reqwest::Error| Error::new(ErrorKind::Config, format!("can't set up HTTP: {}", chain(&error)));
    let mut builder = Client::builder()
        .user_agent(concat!("tokenmill/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .retry(reqwest::retry::never())
        .connect_timeout(options.retry.connect_timeout.0)
        .pool_idle_timeout(Duration::from_secs(60))
        .tcp_nodelay(true)
        .no_proxy();
    if let Some(proxy) = options.http.proxy.as_ref().or(options.environment.proxy.as_ref()) {
        builder = builder.proxy(reqwest::Proxy::https(proxy).map_err(failed)?);
    }
    builder.build().map_err(failed)
}

/// The hub's URL, as configured.
pub(super) fn hub_endpoint(options: &StorageOptions) -> &str {
    let endpoint = options.hub.endpoint.as_deref().or(options.environment.hub_endpoint.as_deref());
    endpoint.unwrap_or(HUB).trim_end_matches('/')
}

/// What a server says of an object.
#[derive(Debug, Clone)]
pub(super) struct Stat {
    pub(super) size: u64,
    pub(super) version: Version,
    /// The commit, at the hub.
    pub(super) commit: Option<String>,
}

fn url_of(options: &StorageOptions, target: &Target) -> Result<Url> {
    match target {
        Target::Http(url) => Ok(url.clone()),
        Target::Hub(path) => path.url(hub_endpoint(options)),
        Target::S3 { .. } => Err(Error::new(ErrorKind::Internal, "an S3 address went to the HTTP store")),
    }
}

/// Sends one request, following redirects. `stop` ends that early, with the response at hand.
async fn send(
    network: &Network,
    live: &Live,
    method: Method,
    start: Url,
    headers: &HeaderMap,
    hub: bool,
    stop: impl Fn(&Response) -> bool,
) -> Result<Response, Fault> {
    let options = &network.options;
    let client = live.http(options)?;
    let first_host = (start.scheme().to_owned(), start.host_str().map(str::to_owned), start.port_or_known_default());
    let mut url = start;
    for _ in 0..=REDIRECTS_MAX {
        let mut request = client.request(method.clone(), url.clone()).headers(headers.clone());
        request = request.header(header::ACCEPT_ENCODING, "identity");
        let host = (url.scheme().to_owned(), url.host_str().map(str::to_owned), url.port_or_known_default());
        if hub
            && host == first_host
            && let Some(token) = &options.environment.hub_token
        {
            request = request.bearer_auth(&token.0);
        }
        let response = request.send().await.map_err(|error| {
            let kind = if error.is_timeout() { "timeout" } else { "connection" };
            match error.is_builder() {
                true => Fault::Final(Error::new(ErrorKind::Config, chain(&error))),
                false => Fault::passing(kind, format!("can't reach the server: {}", chain(&error))),
            }
        })?;
        if !response.status().is_redirection() || response.status() == StatusCode::NOT_MODIFIED || stop(&response) {
            return Ok(response);
        }
        let location = response.headers().get(header::LOCATION).and_then(|location| location.to_str().ok());
        let next = location.and_then(|location| url.join(location).ok());
        match next {
            Some(next) if matches!(next.scheme(), "http" | "https") => url = next,
            _ => {
                let detail = format!("found a redirect ({}) without a place to go to", response.status());
                return Err(Error::new(ErrorKind::Read, detail).into());
            }
        }
    }
    Err(Error::new(ErrorKind::Read, format!("found more than {REDIRECTS_MAX} redirects, expected an end")).into())
}

/// What a status other than success means.
async fn refused(response: Response, shown: &str, hub: bool, version: &Version) -> Fault {
    let status = response.status();
    let after = response.headers().get(header::RETRY_AFTER).and_then(|after| after.to_str().ok());
    let after = after.and_then(|seconds| seconds.trim().parse().ok()).map(Duration::from_secs);
    if matches!(status.as_u16(), 408 | 425 | 429) || status.is_server_error() {
        return Fault::Passing { kind: "status", found: format!("the server said {status}"), after };
    }
    let mut text = tokio::time::timeout(Duration::from_secs(2), response.text())
        .await
        .ok()
        .and_then(|text| text.ok())
        .unwrap_or_default();
    if text.len() > EXPLANATION_MAX || text.contains('<') || text.contains(['\n', '\r']) {
        text.clear();
    }
    let said = if text.is_empty() { String::new() } else { format!(", {text:?}") };
    let check = match (status.as_u16(), hub) {
        (401 | 403, true) => "check HF_TOKEN, and that it may read this repository",
        (401 | 403, false) => "check the URL, its signature, and the right to read it",
        (404 | 410, true) => "check owner, name, revision and path, and HF_TOKEN if it is private",
        (404 | 410, false) => "check the URL",
        (412, _) => {
            return Fault::Final(changed(shown, &format!("the server said {status}"), version));
        }
        (416, _) => "the object is smaller than it was: start from a new listing",
        _ => "check the URL",
    };
    let kind = if matches!(status.as_u16(), 404 | 410) { ErrorKind::NotFound } else { ErrorKind::Read };
    Fault::Final(Error::new(kind, format!("{shown}: the server said {status}{said}; {check}")))
}

/// What an error says of an object that is another one.
pub(super) const CHANGED: &str = "the object changed since it was listed";

/// The object is another one than was listed.
pub(super) fn changed(shown: &str, found: &str, version: &Version) -> Error {
    let expected = version.tag.as_deref().unwrap_or("the size that was listed");
    Error::new(
        ErrorKind::Read,
        format!(
            "{shown}: {found}, expected the version {expected}: {CHANGED}; put the old one back, or start from a new listing"
        ),
    )
}

fn text(headers: &HeaderMap, name: impl header::AsHeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim)
}

/// The version that a response is of.
fn version_of(headers: &HeaderMap) -> Option<String> {
    text(headers, header::ETAG)
        .map(str::to_owned)
        .or_else(|| text(headers, header::LAST_MODIFIED).map(|time| format!("{MODIFIED}{time}")))
}

/// `(first, last, size)` out of `bytes 0-9/100`, and the size alone out of `bytes */100`.
fn content_range(headers: &HeaderMap) -> Option<(Option<(u64, u64)>, u64)> {
    let (range, size) = text(headers, header::CONTENT_RANGE)?.strip_prefix("bytes ")?.split_once('/')?;
    let range = range.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    Some((range, size.parse().ok()?))
}

/// Asks for size, version and whether there are ranges.
pub(super) async fn stat(network: &Network, live: &Live, address: &Arc<Address>) -> Result<Stat> {
    let mut tries = Tries::new(&network.options.retry, &network.counters, format!("{}, its size", address.shown));
    loop {
        network.counters.requests.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let ask = async {
            match &address.target {
                Target::Hub(path) => stat_hub(network, live, address, path).await,
                _ => stat_url(network, live, address).await,
            }
        };
        let limit = network.options.retry.response_timeout;
        let result = tokio::time::timeout(limit.0, ask)
            .await
            .unwrap_or_else(|_| Err(Fault::passing("timeout", format!("no response within {limit}"))));
        match result {
            Ok(stat) => return Ok(stat),
            Err(fault) => tries.again(fault, false).await?,
        }
    }
}

async fn stat_url(network: &Network, live: &Live, address: &Address) -> Result<Stat, Fault> {
    let url = url_of(&network.options, &address.target)?;
    let mut headers = HeaderMap::new();
    // Of the first byte, and not by HEAD: that is refused more often, and says nothing of what ranges do.
    headers.insert(header::RANGE, header::HeaderValue::from_static("bytes=0-0"));
    let response = send(network, live, Method::GET, url, &headers, false, |_| false).await?;
    let status = response.status();
    let headers = response.headers();
    let (whole, size) = match (status.as_u16(), content_range(headers)) {
        (206, Some((_, size))) => (false, Some(size)),
        (416, Some((_, 0))) => (false, Some(0)),
        (200, _) => (true, text(headers, header::CONTENT_LENGTH).and_then(|size| size.parse().ok())),
        _ => return Err(refused(response, &address.shown, false, &Version::default()).await),
    };
    let size = size.ok_or_else(|| {
        Error::new(
            ErrorKind::Read,
            format!("{}: the server tells no size, expected a Content-Length or ranges", address.shown),
        )
    })?;
    Ok(Stat { size, version: Version { tag: version_of(headers), whole: whole && size > 0 }, commit: None })
}

const LINKED_SIZE: HeaderName = HeaderName::from_static("x-linked-size");
const LINKED_ETAG: HeaderName = HeaderName::from_static("x-linked-etag");
const COMMIT: HeaderName = HeaderName::from_static("x-repo-commit");

async fn stat_hub(network: &Network, live: &Live, address: &Address, path: &HubPath) -> Result<Stat, Fault> {
    let url = path.url(hub_endpoint(&network.options))?;
    // What the hub itself says is kept from before it sends on to where large files lie.
    let commit = std::sync::Mutex::new(None);
    let stop = |response: &Response| {
        if let Some(found) = text(response.headers(), COMMIT) {
            commit.lock().expect("no panic happens while it is held").get_or_insert_with(|| found.to_owned());
        }
        response.headers().contains_key(LINKED_SIZE)
    };
    let mut response = send(network, live, Method::HEAD, url.clone(), &HeaderMap::new(), true, stop).await?;
    if matches!(response.status().as_u16(), 405 | 501) {
        // A mirror that has no HEAD.
        let mut first = HeaderMap::new();
        first.insert(header::RANGE, header::HeaderValue::from_static("bytes=0-0"));
        response = send(network, live, Method::GET, url, &first, true, stop).await?;
    }
    stop(&response);
    let headers = response.headers();
    let linked = headers.contains_key(LINKED_SIZE) && response.status().is_redirection();
    if !linked && !response.status().is_success() {
        return Err(refused(response, &address.shown, true, &Version::default()).await);
    }
    let said = text(headers, LINKED_SIZE).or_else(|| text(headers, header::CONTENT_LENGTH));
    let size = content_range(headers).map(|(_, size)| size).or_else(|| said.and_then(|size| size.parse().ok()));
    let size = size.ok_or_else(|| {
        Error::new(ErrorKind::Read, format!("{}: the hub tells no size, expected one", address.shown))
    })?;
    let tag = text(headers, LINKED_ETAG).or_else(|| text(headers, header::ETAG)).map(str::to_owned);
    let commit = commit.into_inner().expect("no panic happens while it is held");
    Ok(Stat { size, version: Version { tag, whole: false }, commit })
}

/// Asks for the bytes from `from` to the end of `wanted`.
pub(super) async fn get(network: &Network, live: &Live, wanted: &Wanted, from: u64) -> Result<Body, Fault> {
    let address = &wanted.address;
    let hub = matches!(address.target, Target::Hub(_));
    let version = &wanted.version;
    let mut headers = HeaderMap::new();
    let value = |text: &str| {
        header::HeaderValue::from_str(text)
            .map_err(|_| Error::new(ErrorKind::Read, format!("{}: the version {text:?} is no header", address.shown)))
    };
    let all = wanted.range == (0..wanted.size) && from == 0;
    if !version.whole && !all {
        headers.insert(header::RANGE, value(&format!("bytes={from}-{}", wanted.range.end - 1))?);
    }
    if let Some(tag) = version.tag.as_deref().filter(|_| !hub) {
        match tag.strip_prefix(MODIFIED) {
            Some(time) => headers.insert(header::IF_UNMODIFIED_SINCE, value(time)?),
            // A weak tag never matches.
            None if tag.starts_with('"') => headers.insert(header::IF_MATCH, value(tag)?),
            None => None,
        };
    }
    let sent_on = || address.sent_on.lock().expect("no panic happens while it is held");
    let short_cut = sent_on().clone();
    let mut response = match &short_cut {
        Some(url) => send(network, live, Method::GET, url.clone(), &headers, false, |_| false).await?,
        None => {
            let url = url_of(&network.options, &address.target)?;
            send(network, live, Method::GET, url, &headers, hub, |_| false).await?
        }
    };
    if short_cut.is_some() && response.status().is_client_error() && response.status().as_u16() != 429 {
        // A signed URL ends; the first server knows a new one.
        *sent_on() = None;
        let url = url_of(&network.options, &address.target)?;
        response = send(network, live, Method::GET, url, &headers, hub, |_| false).await?;
    }
    let status = response.status();
    if hub && status.is_success() && response.url().host_str() != url_of(&network.options, &address.target)?.host_str()
    {
        *sent_on() = Some(response.url().clone());
    }
    let found = response.headers();
    if !hub
        && status.is_success()
        && let (Some(tag), Some(expected)) = (version_of(found), &version.tag)
        && tag.trim_start_matches("W/") != expected.trim_start_matches("W/")
    {
        return Err(changed(&address.shown, &format!("found the version {tag}"), version).into());
    }
    let skip = match (status.as_u16(), content_range(found)) {
        (206, Some((Some((first, _)), size))) => {
            if size != wanted.size {
                let found = format!("found {size} bytes, expected {}", wanted.size);
                return Err(changed(&address.shown, &found, version).into());
            }
            if first > from {
                return Err(Fault::passing("status", format!("found bytes from {first} on, expected from {from} on")));
            }
            from - first
        }
        (206, _) => {
            return Err(Fault::passing("status", "found a part of the object that isn't said, expected Content-Range"));
        }
        (200, _) => {
            let size = text(found, header::CONTENT_LENGTH).and_then(|size| size.parse::<u64>().ok());
            if let Some(size) = size
                && size != wanted.size
            {
                let found = format!("found {size} bytes, expected {}", wanted.size);
                return Err(changed(&address.shown, &found, version).into());
            }
            from
        }
        _ => return Err(refused(response, &address.shown, hub, version).await),
    };
    let md5 = if status.as_u16() == 200 && all { md5_said(found) } else { None };
    Ok(Body { from: BodyFrom::Http(response), skip, md5 })
}

/// The MD5 of a whole body, where a header says it.
fn md5_said(headers: &HeaderMap) -> Option<String> {
    let google = || {
        headers
            .get_all("x-goog-hash")
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .find_map(|part| part.trim().strip_prefix("md5="))
    };
    let base64 = text(headers, "content-md5").or_else(google)?;
    let bytes = base64::engine::general_purpose::STANDARD.decode(base64).ok()?;
    (bytes.len() == 16).then(|| super::hex(&bytes))
}

/// A small body as text, with the link to the next page if there is one.
pub(super) async fn page(network: &Network, live: &Live, url: Url, shown: &str) -> Result<(Vec<u8>, Option<Url>)> {
    let mut tries = Tries::new(&network.options.retry, &network.counters, shown);
    loop {
        network.counters.requests.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let ask = async {
            let response = send(network, live, Method::GET, url.clone(), &HeaderMap::new(), true, |_| false).await?;
            if !response.status().is_success() {
                return Err(refused(response, shown, true, &Version::default()).await);
            }
            let next = text(response.headers(), header::LINK).and_then(next_link).and_then(|link| url.join(link).ok());
            let mut response = response;
            let mut bytes = Vec::new();
            while let Some(piece) = response
                .chunk()
                .await
                .map_err(|error| Fault::passing("cut", format!("the body broke off ({})", chain(&error))))?
            {
                bytes.extend_from_slice(&piece);
                if bytes.len() > SMALL_MAX {
                    let detail = format!("{shown}: found more than {SMALL_MAX} bytes, expected fewer");
                    return Err(Error::new(ErrorKind::Limit, detail).into());
                }
            }
            Ok((bytes, next))
        };
        let limit = network.options.retry.response_timeout.0 + network.options.retry.idle_timeout.0 * 4;
        let result = tokio::time::timeout(limit, ask)
            .await
            .unwrap_or_else(|_| Err(Fault::passing("timeout", format!("no whole response within {limit:?}"))));
        match result {
            Ok(found) => return Ok(found),
            Err(fault) => tries.again(fault, false).await?,
        }
    }
}

/// The target of `rel="next"` in a Link header.
fn next_link(header: &str) -> Option<&str> {
    header.split(',').find_map(|link| {
        let (target, parameters) = link.split_once(';')?;
        let next = parameters.split(';').any(|p| matches!(p.trim(), "rel=\"next\"" | "rel=next"));
        target.trim().strip_prefix('<')?.strip_suffix('>').filter(|_| next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers as servers write them.
    #[test]
    fn reads_headers() {
        let headers = |pairs: &[(&'static str, &str)]| -> HeaderMap {
            pairs
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), value.parse().expect("a header's value")))
                .collect()
        };
        assert_eq!(content_range(&headers(&[("content-range", "bytes 5-9/100")])), Some((Some((5, 9)), 100)));
        assert_eq!(content_range(&headers(&[("content-range", "bytes */0")])), Some((None, 0)));
        assert_eq!(content_range(&headers(&[("content-range", "bytes 5-9/*")])), None);
        let empty = "d41d8cd98f00b204e9800998ecf8427e".to_owned();
        assert_eq!(md5_said(&headers(&[("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg==")])), Some(empty.clone()));
        assert_eq!(md5_said(&headers(&[("x-goog-hash", "crc32c=AAAAAA==,md5=1B2M2Y8AsgTpgAmY7PhCfg==")])), Some(empty));
        assert_eq!(next_link("<https://h/a?cursor=x>; rel=\"next\""), Some("https://h/a?cursor=x"));
        assert_eq!(next_link("<https://h/a>; rel=\"prev\", <b>; rel=\"next\""), Some("b"));
        assert_eq!(
            version_of(&headers(&[("last-modified", "Tue, 01 Dec 2026 00:00:00 GMT")])).as_deref(),
            Some("modified Tue, 01 Dec 2026 00:00:00 GMT")
        );
    }
}
