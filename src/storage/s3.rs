//! S3, and servers that speak it: objects read, listed and put through the SDK of AWS.
//!
//! Comes in: bucket, key, `[storage.s3]`. Goes out: bodies, listings by page, objects put. Holds: the SDK retries nothing, since what is
//! tried again and when is one policy for all stores; it checks the checksums that a server sends with a whole object. Does not know:
//! globs, read-ahead.
//!
//! Credentials are those of the standard chain of AWS: environment, profile, web identity, role of the container or machine.

use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileRegionProvider;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{Region, StalledStreamProtectionConfig};
use aws_sdk_s3::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use bytes::Bytes;

use super::http::changed;
use super::network::{Body, BodyFrom, Live, Network, Wanted};
use super::retry::{Fault, Tries};
use super::{StorageOptions, Version};
use crate::error::{Error, ErrorKind, Result};

/// The region where nothing says another.
const REGION: &str = "us-east-1";
/// Where the environment says the address of another server than Amazon's.
const ENDPOINTS: [&str; 2] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];
/// Bytes of a part of an upload, at least; S3 takes 10 000 parts.
const UPLOAD_PART: u64 = 16 << 20;

/// What stands between `Debug` of the SDK's errors and a log: the message, at most so long.
const MESSAGE_MAX: usize = 300;

async fn client<'a>(network: &Network, live: &'a Live) -> Result<&'a Client> {
    live.s3.get_or_try_init(|| connect(&network.options)).await
}

async fn connect(options: &StorageOptions) -> Result<Client> {
    let s3 = &options.s3;
    let mut loader = aws_config::defaults(BehaviorVersion::latest());
    if let Some(profile) = &s3.profile {
        loader = loader.profile_name(profile);
    }
    if let Some(region) = &s3.region {
        loader = loader.region(Region::new(region.clone()));
    } else if s3.endpoint.is_some() || ENDPOINTS.iter().any(|name| std::env::var_os(name).is_some()) {
        // Whose region isn't that of a machine at Amazon; to ask for it would wait for an address that nobody has, and warn.
        let profile = ProfileFileRegionProvider::builder();
        let profile = s3.profile.iter().fold(profile, |builder, name| builder.profile_name(name));
        let said = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new()).or_else(profile.build());
        loader = loader.region(said.or_else(Region::new(REGION)));
    }
    if let Some(endpoint) = &s3.endpoint {
        loader = loader.endpoint_url(endpoint);
    }
    if s3.anonymous {
        loader = loader.no_credentials();
    }
    let shared = loader.load().await;
    let mut config = aws_sdk_s3::config::Builder::from(&shared)
        .force_path_style(s3.path_style.unwrap_or(s3.endpoint.is_some() || shared.endpoint_url().is_some()))
        .retry_config(RetryConfig::disabled())
        .timeout_config(TimeoutConfig::builder().connect_timeout(options.retry.connect_timeout.0).build())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
    if shared.region().is_none() {
        config = config.region(Region::new(REGION));
    }
    Ok(Client::from_conf(config.build()))
}

/// What a failed request means.
fn fault<E, R>(error: SdkError<E, R>, shown: &str, version: Option<&Version>, status: Option<u16>) -> Fault
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
    R: std::fmt::Debug + 'static,
{
    let message = || {
        let mut text = DisplayErrorContext(&error).to_string();
        // The context ends with a dump of the response.
        if let Some(end) = text.find(" (") {
            text.truncate(end);
        }
        text.truncate(text.floor_char_boundary(MESSAGE_MAX));
        text
    };
    match &error {
        SdkError::TimeoutError(_) => Fault::passing("timeout", "the connection took too long"),
        SdkError::DispatchFailure(failure) => {
            let all = super::network::chain(&error);
            if all.to_ascii_lowercase().contains("credential") || failure.is_user() {
                return Fault::Final(Error::new(
                    ErrorKind::Read,
                    format!(
                        "{shown}: no credentials: {all}; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, \
                         storage.s3.profile, or set storage.s3.anonymous for a public bucket"
                    ),
                ));
            }
            let kind = if failure.is_timeout() { "timeout" } else { "connection" };
            Fault::passing(kind, format!("can't reach the server: {all}"))
        }
        SdkError::ServiceError(_) | SdkError::ResponseError(_) => {
            let (code, said) = match &error {
                SdkError::ServiceError(service) => (service.err().code(), service.err().message()),
                _ => (None, None),
            };
            let status = status.unwrap_or(0);
            let passing = matches!(status, 408 | 425 | 429)
                || status >= 500
                || matches!(
                    code,
                    Some(
                        "SlowDown"
                            | "RequestTimeout"
                            | "RequestTimeoutException"
                            | "InternalError"
                            | "ServiceUnavailable"
                            | "Throttling"
                            | "ThrottlingException"
                            | "TooManyRequests"
                            | "RequestLimitExceeded"
                            | "BandwidthLimitExceeded"
                    )
                )
                // A response that isn't whole.
                || matches!(error, SdkError::ResponseError(_)) && status < 400;
            let found = match (code, said) {
                (Some(code), Some(said)) => format!("the server said {status} {code}: {said}"),
                (Some(code), None) => format!("the server said {status} {code}"),
                _ => format!("the server said {status}"),
            };
            if passing {
                return Fault::passing("status", found);
            }
            let (kind, check) = match (status, code) {
                (412, _) => {
                    return Fault::Final(changed(shown, &found, version.unwrap_or(&Version::default())));
                }
                (404, Some("NoSuchBucket")) => {
                    (ErrorKind::NotFound, "check the bucket, storage.s3.endpoint and region")
                }
                (404, _) => (ErrorKind::NotFound, "check bucket and key"),
                (403, Some("RequestTimeTooSkewed")) => (ErrorKind::Read, "check this machine's clock"),
                (403, Some("InvalidAccessKeyId" | "SignatureDoesNotMatch")) => (
                    ErrorKind::Read,
                    "check the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, storage.s3.profile)",
                ),
                (_, Some("ExpiredToken" | "ExpiredTokenException" | "InvalidToken" | "TokenRefreshRequired")) => (
                    ErrorKind::Read,
                    "the credentials are no longer valid: get new ones and resume (AWS_SESSION_TOKEN, storage.s3.profile)",
                ),
                (401 | 403, _) => (
                    ErrorKind::Read,
                    "check the credentials, their right to this bucket and key, and storage.s3.anonymous; S3 says this also of \
                     a key that isn't there where listing isn't allowed",
                ),
                (301 | 307 | 400, _) => (ErrorKind::Read, "check storage.s3.region, endpoint and path_style"),
                (416, _) => (ErrorKind::Read, "the object is smaller than it was: start from a new listing"),
                _ => (ErrorKind::Read, "check storage.s3"),
            };
            Fault::Final(Error::new(kind, format!("{shown}: {found}; {check}")))
        }
        _ => Fault::Final(Error::new(ErrorKind::Config, format!("{shown}: {}; check storage.s3", message()))),
    }
}

/// Maps an SDK error with the status of its response.
macro_rules! fault_of {
    ($error:expr, $shown:expr, $version:expr) => {{
        let error = $error;
        let status = error.raw_response().map(|response| response.status().as_u16());
        fault(error, $shown, $version, status)
    }};
}

/// Asks for the bytes from `from` to the end of `wanted`.
pub(super) async fn get(
    network: &Network,
    live: &Live,
    wanted: &Wanted,
    bucket: &str,
    key: &str,
    from: u64,
) -> Result<Body, Fault> {
    let shown = &wanted.address.shown;
    let mut request = client(network, live).await?.get_object().bucket(bucket).key(key);
    // The checksum of an object is sent with all of it only.
    if wanted.range != (0..wanted.size) || from != 0 {
        request = request.range(format!("bytes={from}-{}", wanted.range.end - 1));
    }
    if let Some(tag) = &wanted.version.tag {
        request = request.if_match(tag);
    }
    let output = request.send().await.map_err(|error| fault_of!(error, shown, Some(&wanted.version)))?;
    if let (Some(found), Some(expected)) = (output.e_tag(), &wanted.version.tag)
        && found.trim_matches('"') != expected.trim_matches('"')
    {
        return Err(changed(shown, &format!("found the version {found}"), &wanted.version).into());
    }
    let mut skip = 0;
    match output.content_range().and_then(|range| range.strip_prefix("bytes ")?.split_once('/')) {
        Some((range, size)) => {
            if size.parse::<u64>().is_ok_and(|size| size != wanted.size) {
                let found = format!("found {size} bytes, expected {}", wanted.size);
                return Err(changed(shown, &found, &wanted.version).into());
            }
            let first = range.split_once('-').and_then(|(first, _)| first.parse::<u64>().ok());
            skip = first.and_then(|first| from.checked_sub(first)).ok_or_else(|| {
                Fault::passing("status", format!("found the range {range}, expected bytes from {from} on"))
            })?;
        }
        None => {
            let size = output.content_length().and_then(|size| u64::try_from(size).ok());
            if let Some(size) = size.filter(|&size| size != wanted.size) {
                let found = format!("found {size} bytes, expected {}", wanted.size);
                return Err(changed(shown, &found, &wanted.version).into());
            }
            skip += from;
        }
    }
    Ok(Body { from: BodyFrom::S3(output.body), skip, md5: None })
}

/// Runs one request as often as the policy allows.
///
/// Why a macro: of an async closure that borrows, the compiler can't tell yet that its future may go to another thread.
macro_rules! repeat {
    ($network:expr, $limit:expr, $what:expr, $ask:expr) => {{
        let (network, limit): (&Network, Duration) = ($network, $limit);
        let mut tries = Tries::new(&network.options.retry, &network.counters, $what);
        loop {
            network.counters.requests.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let result = tokio::time::timeout(limit, async { $ask })
                .await
                .unwrap_or_else(|_| Err(Fault::passing("timeout", format!("no response within {limit:?}"))));
            match result {
                Ok(value) => break Ok(value),
                Err(fault) => {
                    if let Err(error) = tries.again(fault, false).await {
                        break Err(error);
                    }
                }
            }
        }
    }};
}

/// Longest time for a request without a large body.
fn ask_limit(network: &Network) -> Duration {
    network.options.retry.response_timeout.0
}

/// Longest time for a request that sends a part of an upload.
fn put_limit(network: &Network) -> Duration {
    (4 * network.options.retry.response_timeout.0).max(Duration::from_secs(60))
}

/// Size and version of an object.
pub(super) async fn stat(network: &Network, live: &Live, bucket: &str, key: &str) -> Result<(u64, Version)> {
    let client = client(network, live).await?;
    let shown = format!("s3://{bucket}/{key}");
    repeat!(network, ask_limit(network), format!("{shown}, its size"), {
        let output = client.head_object().bucket(bucket).key(key).send().await;
        output.map_err(|error| fault_of!(error, &shown, None)).map(|output| {
            let size = output.content_length().and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
            (size, Version { tag: output.e_tag().map(str::to_owned), whole: false })
        })
    })
}

/// One object of a listing: key, size, ETag.
pub(super) type Entry = (String, u64, Option<String>);

/// All objects whose keys begin with `prefix`, page by page.
pub(super) async fn list(network: &Network, live: &Live, bucket: &str, prefix: &str) -> Result<Vec<Entry>> {
    let client = client(network, live).await?;
    let shown = format!("s3://{bucket}/{prefix}*");
    let mut entries: Vec<Entry> = Vec::new();
    let mut token: Option<String> = None;
    loop {
        let page = repeat!(network, ask_limit(network), format!("{shown}, its listing"), {
            let request = client.list_objects_v2().bucket(bucket).prefix(prefix);
            let page = request.set_continuation_token(token.clone()).send().await;
            page.map_err(|error| fault_of!(error, &shown, None))
        })?;
        for object in page.contents() {
            if let Some(key) = object.key() {
                let size = object.size().and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
                entries.push((key.to_owned(), size, object.e_tag().map(str::to_owned)));
            }
        }
        match page.next_continuation_token() {
            Some(next) if page.is_truncated() == Some(true) => {
                if token.as_deref() == Some(next) {
                    let detail = format!("{shown}: found the same page of the listing twice, expected the next one");
                    return Err(Error::new(ErrorKind::Read, detail));
                }
                token = Some(next.to_owned());
            }
            _ if page.is_truncated() == Some(true) => {
                let detail = format!("{shown}: found a page of the listing without the way to the next, expected one");
                return Err(Error::new(ErrorKind::Read, detail));
            }
            _ => return Ok(entries),
        }
    }
}

/// Puts an object, in one piece: it is there as a whole, or as it was.
pub(super) async fn put(network: &Network, live: &Live, bucket: &str, key: &str, bytes: Bytes) -> Result<()> {
    let client = client(network, live).await?;
    let shown = format!("s3://{bucket}/{key}");
    let result = repeat!(network, put_limit(network), format!("{shown}, writing"), {
        let put = client.put_object().bucket(bucket).key(key).body(ByteStream::from(bytes.clone())).send();
        put.await.map(drop).map_err(|error| fault_of!(error, &shown, None))
    });
    result.map_err(writing)
}

/// Puts a file, in parts where it is large; a part at a time is in memory.
pub(super) async fn put_file(
    network: &Network,
    live: &Live,
    bucket: &str,
    key: &str,
    file: &std::fs::File,
    size: u64,
) -> Result<()> {
    if size <= UPLOAD_PART {
        return put(network, live, bucket, key, read_part(file, 0, size)?).await;
    }
    let client = client(network, live).await?;
    let shown = format!("s3://{bucket}/{key}");
    let begin = repeat!(network, ask_limit(network), format!("{shown}, writing"), {
        let create = client.create_multipart_upload().bucket(bucket).key(key).send();
        create.await.map_err(|error| fault_of!(error, &shown, None))
    });
    let upload = begin.map_err(writing)?;
    let id = upload.upload_id().unwrap_or_default();
    let result = put_parts(network, client, (bucket, key, id), file, size).await;
    if result.is_err() {
        // Parts of an upload that isn't completed would be kept, and paid for.
        let _ = client.abort_multipart_upload().bucket(bucket).key(key).upload_id(id).send().await;
    }
    result
}

async fn put_parts(
    network: &Network,
    client: &Client,
    (bucket, key, id): (&str, &str, &str),
    file: &std::fs::File,
    size: u64,
) -> Result<()> {
    let shown = format!("s3://{bucket}/{key}");
    let part_size = UPLOAD_PART.max(size.div_ceil(9000));
    let mut parts = Vec::new();
    for (index, offset) in (0..size).step_by(part_size as usize).enumerate() {
        let bytes = read_part(file, offset, part_size.min(size - offset))?;
        let number = i32::try_from(index + 1).expect("there are at most 10 000 parts");
        let part = repeat!(network, put_limit(network), format!("{shown}, writing part {number}"), {
            let request = client.upload_part().bucket(bucket).key(key).upload_id(id).part_number(number);
            let put = request.body(ByteStream::from(bytes.clone())).send();
            put.await.map_err(|error| fault_of!(error, &shown, None))
        });
        let part = part.map_err(writing)?;
        let done = CompletedPart::builder().part_number(number).set_e_tag(part.e_tag().map(str::to_owned));
        parts.push(done.set_checksum_crc32(part.checksum_crc32().map(str::to_owned)).build());
    }
    let all = CompletedMultipartUpload::builder().set_parts(Some(parts)).build();
    let complete = repeat!(network, put_limit(network), format!("{shown}, writing"), {
        let request = client.complete_multipart_upload().bucket(bucket).key(key).upload_id(id);
        let complete = request.multipart_upload(all.clone()).send();
        complete.await.map(drop).map_err(|error| fault_of!(error, &shown, None))
    });
    match complete {
        // Completed by a try whose answer was lost.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            match stat(network, &*network.live()?, bucket, key).await {
                Ok((found, _)) if found == size => Ok(()),
                _ => Err(writing(error)),
            }
        }
        other => other.map_err(writing),
    }
}

fn read_part(file: &std::fs::File, offset: u64, size: u64) -> Result<Bytes> {
    use std::io::{Read, Seek, SeekFrom};
    let mut bytes = vec![0; size as usize];
    let mut file = file;
    file.seek(SeekFrom::Start(offset))
        .and_then(|_| file.read_exact(&mut bytes))
        .map_err(|error| Error::new(ErrorKind::Write, "can't read what is to be uploaded").because(error))?;
    Ok(bytes.into())
}

/// An error of a request that was to write.
fn writing(error: Error) -> Error {
    let detail = error.detail().to_owned();
    Error::new(ErrorKind::Write, detail).because(error)
}
