//! What the config says of storage, and what the caller hands in from the environment.
//!
//! Comes in: `[storage]` of the config; a lookup of environment variables, from whoever has an environment. Goes out:
//! [`StorageOptions`]. Holds: nothing here changes the stream; a secret is neither shown, logged nor serialized. The library itself
//! asks the environment for nothing, with one exception that is the point of it: the credential chain of AWS, which is variables,
//! profiles and the machine's role, as all of AWS' own tools have it. Does not know: objects.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::size::{ByteSize, Seconds};

/// `[storage]` of the config: nothing here changes the stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StorageOptions {
    /// Bound on what is read ahead from remote objects, all readers together; less than 64 MiB for each. The default is an
    /// eighth of `runtime.memory`, 512 MiB at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_ahead: Option<ByteSize>,
    /// `s3://bucket/key`.
    pub s3: S3Options,
    /// `http://` and `https://`, and what `hf://` stands for.
    pub http: HttpOptions,
    /// `hf://`.
    pub hub: HubOptions,
    /// When a request is repeated, and for how long.
    pub retry: RetryOptions,
    /// What was read, kept on a local disk.
    pub cache: CacheOptions,
    /// What the caller's environment said. Not written in the file.
    #[serde(skip)]
    #[schemars(skip)]
    pub environment: Environment,
}

/// `[storage.s3]` of the config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct S3Options {
    /// URL of an S3-compatible server; default: that of AWS for the region.
    pub endpoint: Option<String>,
    /// The region; default: what the profile or the environment of AWS says, else `us-east-1`.
    pub region: Option<String>,
    /// `https://host/bucket/key` in place of `https://bucket.host/key`; most servers that aren't AWS want it. Default: true
    /// where there is an endpoint.
    pub path_style: Option<bool>,
    /// Requests without a signature, for public buckets.
    pub anonymous: bool,
    /// Profile of the AWS configuration files; default: what the environment of AWS says.
    pub profile: Option<String>,
    /// Requests under way at once, at most.
    pub concurrency: u32,
    /// Bytes of one request, at most.
    pub part_size: ByteSize,
}

impl Default for S3Options {
    fn default() -> Self {
        S3Options {
            endpoint: None,
            region: None,
            path_style: None,
            anonymous: false,
            profile: None,
            concurrency: 32,
            part_size: ByteSize(8 << 20),
        }
    }
}

/// `[storage.http]` of the config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HttpOptions {
    /// Requests under way at once, at most.
    pub concurrency: u32,
    /// Bytes of one request, at most.
    pub part_size: ByteSize,
    /// A proxy's URL; default: none.
    pub proxy: Option<String>,
}

impl Default for HttpOptions {
    fn default() -> Self {
        HttpOptions { concurrency: 32, part_size: ByteSize(8 << 20), proxy: None }
    }
}

/// `[storage.hub]` of the config.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HubOptions {
    /// URL of the hub; default: `HF_ENDPOINT` of the caller's environment, else the public one.
    pub endpoint: Option<String>,
    /// Folder in which tokenizers of the hub are kept, with `models--owner--name` folders in it; default: as Hugging Face's own
    /// libraries have it (`HF_HUB_CACHE`, `HF_HOME/hub`, `~/.cache/huggingface/hub`).
    pub cache: Option<String>,
    /// Take what is in that folder and ask nobody; default: `HF_HUB_OFFLINE` of the caller's environment.
    pub offline: Option<bool>,
}

/// `[storage.retry]` of the config: what is done about a request that fails for a reason that may pass.
///
/// A refused or broken connection, a body that ends too soon, a wait that takes too long, and the statuses 408, 429 and 5xx are such
/// reasons. The wait before the n-th try in a row is `first_wait * 2^(n-1)`, at most `max_wait`, or what the server asks for; and of
/// it a random half to all, so that a thousand ranks don't come back at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetryOptions {
    /// Tries in a row of which none brings a byte, at most.
    pub tries: u32,
    /// Time without a byte, at most, from the first try on.
    pub max_time: Seconds,
    /// Wait before the second try.
    pub first_wait: Seconds,
    /// Longest wait before a try.
    pub max_wait: Seconds,
    /// Longest time to connect.
    pub connect_timeout: Seconds,
    /// Longest time to the beginning of a response, connecting included.
    pub response_timeout: Seconds,
    /// Longest time within a response in which no byte comes.
    pub idle_timeout: Seconds,
}

impl Default for RetryOptions {
    fn default() -> Self {
        let ms = |ms| Seconds(Duration::from_millis(ms));
        RetryOptions {
            tries: 30,
            max_time: ms(180_000),
            first_wait: ms(100),
            max_wait: ms(5_000),
            connect_timeout: ms(5_000),
            response_timeout: ms(15_000),
            idle_timeout: ms(5_000),
        }
    }
}

/// `[storage.cache]` of the config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CacheOptions {
    /// Folder of the cache, which several processes may share; a relative one is relative to the config file's. Default: no cache.
    pub dir: Option<String>,
    /// Bound on the bytes of all files in it; what wasn't used for longest goes first.
    pub max_size: ByteSize,
}

impl Default for CacheOptions {
    fn default() -> Self {
        CacheOptions { dir: None, max_size: ByteSize(64 << 30) }
    }
}

impl StorageOptions {
    /// Checks every range.
    ///
    /// # Errors
    /// `Config`, naming key, found and expected value.
    pub(crate) fn check(&self) -> Result<()> {
        let in_range = |key: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(Error::new(ErrorKind::Config, format!("{key} is {value}, expected {least} to {most}")))
        };
        in_range("storage.s3.concurrency", self.s3.concurrency.into(), 1, 4096)?;
        in_range("storage.http.concurrency", self.http.concurrency.into(), 1, 4096)?;
        in_range("storage.s3.part_size", self.s3.part_size.0, 64 << 10, 16 << 20)?;
        in_range("storage.http.part_size", self.http.part_size.0, 64 << 10, 16 << 20)?;
        if let Some(read_ahead) = self.read_ahead {
            in_range("storage.read_ahead", read_ahead.0, 1 << 20, 1 << 40)?;
        }
        in_range("storage.retry.tries", self.retry.tries.into(), 1, 1_000_000)?;
        for (key, time) in [
            ("max_time", self.retry.max_time),
            ("first_wait", self.retry.first_wait),
            ("max_wait", self.retry.max_wait),
            ("connect_timeout", self.retry.connect_timeout),
            ("response_timeout", self.retry.response_timeout),
            ("idle_timeout", self.retry.idle_timeout),
        ] {
            let detail = || format!("storage.retry.{key} is {time}, expected a time above 0 and at most 24h");
            if time.0.is_zero() || time.0 > Duration::from_secs(86_400) {
                return Err(Error::new(ErrorKind::Config, detail()));
            }
        }
        if self.cache.dir.is_some() {
            in_range("storage.cache.max_size", self.cache.max_size.0, 16 << 20, u64::MAX)?;
        }
        Ok(())
    }
}

/// What a caller's environment says of storage. The command and the Python package fill it from theirs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// `HF_ENDPOINT`.
    pub hub_endpoint: Option<String>,
    /// Where Hugging Face's libraries keep what they download: `HF_HUB_CACHE`, `HF_HOME/hub`, `XDG_CACHE_HOME/huggingface/hub` or
    /// `~/.cache/huggingface/hub`.
    pub hub_cache: Option<PathBuf>,
    /// `HF_HUB_OFFLINE`.
    pub hub_offline: bool,
    /// `HF_TOKEN`, or the file that `huggingface-cli login` writes.
    pub hub_token: Option<Secret>,
    /// `HTTPS_PROXY` or `ALL_PROXY`.
    pub proxy: Option<String>,
    /// `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`, which the chain of AWS reads as well.
    pub s3_endpoint: Option<String>,
}

impl Environment {
    /// Takes from `lookup` what concerns storage; `lookup` gives the value of a variable, as `|name| std::env::var(name).ok()` does.
    ///
    /// Reads the file that holds the hub's token, where no variable does.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Environment {
        let get = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        let home = get("HOME").or_else(|| get("USERPROFILE")).map(PathBuf::from);
        let cache_home = get("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| home.map(|home| home.join(".cache")));
        let hub_home = get("HF_HOME").map(PathBuf::from).or_else(|| cache_home.map(|cache| cache.join("huggingface")));
        let token_file =
            get("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| hub_home.as_ref().map(|home| home.join("token")));
        let from_file = || token_file.and_then(|file| std::fs::read_to_string(file).ok());
        let token = get("HF_TOKEN").or_else(from_file).map(|token| token.trim().to_owned());
        Environment {
            hub_endpoint: get("HF_ENDPOINT"),
            hub_cache: get("HF_HUB_CACHE").map(PathBuf::from).or_else(|| hub_home.map(|home| home.join("hub"))),
            hub_offline: get("HF_HUB_OFFLINE")
                .is_some_and(|value| matches!(value.trim().to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on")),
            hub_token: token.filter(|token| !token.is_empty()).map(Secret),
            s3_endpoint: get("AWS_ENDPOINT_URL_S3").or_else(|| get("AWS_ENDPOINT_URL")),
            proxy: get("HTTPS_PROXY").or_else(|| get("https_proxy")).or_else(|| get("ALL_PROXY")),
        }
    }
}

/// Text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The variables of Hugging Face's libraries mean what they mean there, and a token shows nowhere.
    #[test]
    fn reads_the_environment_it_is_given() {
        let of = |pairs: &[(&str, &str)]| {
            Environment::from_lookup(|name| {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let cache = |pairs: &[(&str, &str)]| of(pairs).hub_cache.map(|path| path.to_string_lossy().into_owned());
        assert_eq!(cache(&[("HOME", "/h")]).as_deref(), Some("/h/.cache/huggingface/hub"));
        assert_eq!(cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]).as_deref(), Some("/x/huggingface/hub"));
        assert_eq!(cache(&[("HOME", "/h"), ("HF_HOME", "/f")]).as_deref(), Some("/f/hub"));
        assert_eq!(cache(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")]).as_deref(), Some("/c"));
        assert_eq!(cache(&[]), None);
        assert!(of(&[("HF_HUB_OFFLINE", "1")]).hub_offline && !of(&[("HF_HUB_OFFLINE", "0")]).hub_offline);
        let with_token = of(&[("HF_TOKEN", "hf_secret")]);
        assert!(with_token.hub_token.is_some());
        let options = StorageOptions { environment: with_token, ..StorageOptions::default() };
        assert!(!format!("{options:?}").contains("hf_secret"));
        assert!(!serde_json::to_string(&options).expect("JSON").contains("hf_secret"));
    }

    /// The default policy waits longer than a server that is gone for 20 s, whatever the dice say.
    #[test]
    fn default_retries_outlive_twenty_seconds() {
        let retry = RetryOptions::default();
        let mut least = Duration::ZERO;
        for n in 0..retry.tries - 1 {
            least += (retry.first_wait.0 * 2u32.saturating_pow(n)).min(retry.max_wait.0) / 2;
        }
        assert!(least > Duration::from_secs(40) && retry.max_time.0 > Duration::from_secs(60), "{least:?}");
    }
}
