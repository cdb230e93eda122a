//! A real S3 server on loopback, started once for all tests: SeaweedFS, which checks signatures, pages listings, and answers ranges
//! and If-Match.
//!
//! `make s3-server` installs it into the cache folder, where it is found; TOKENMILL_TEST_WEED names another. Without it the tests
//! fail, unless TOKENMILL_TEST_NO_S3 is set: then each says loudly that it did nothing.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

use tokenmill::config::ByteSize;
use tokenmill::storage::{StorageOptions, Stores};

pub const KEY: &str = "testkey";
pub const SECRET: &str = "testsecret";

pub struct Seaweed {
    pub address: SocketAddr,
}

/// The server, or `None` where the tests were told to go without.
pub fn server() -> Option<&'static Seaweed> {
    static SERVER: OnceLock<Option<Seaweed>> = OnceLock::new();
    let server = SERVER.get_or_init(|| {
        if std::env::var_os("TOKENMILL_TEST_NO_S3").is_some() {
            return None;
        }
        // SAFETY: the first thing that tests of S3 do, before there are threads that read these.
        unsafe {
            std::env::set_var("AWS_ACCESS_KEY_ID", KEY);
            std::env::set_var("AWS_SECRET_ACCESS_KEY", SECRET);
            std::env::set_var("AWS_EC2_METADATA_DISABLED", "true");
        }
        Some(start(&program()))
    });
    if server.is_none() {
        eprintln!("NOT TESTED: TOKENMILL_TEST_NO_S3 is set, so nothing of S3 was");
    }
    server.as_ref()
}

fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("TOKENMILL_TEST_WEED") {
        return path.into();
    }
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").expect("there is a home")).join(".cache"));
    let entries = std::fs::read_dir(cache.join("tokenmill")).into_iter().flatten().flatten();
    let found = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("venv-s3-"))
        .map(|entry| entry.path().join("bin/weed"))
        .find(|path| path.is_file());
    found.expect("no S3 server; `make s3-server` installs one, TOKENMILL_TEST_NO_S3=1 goes without")
}

/// Ports that are free one after the other, and free with 10 000 more, where some of its services listen as well.
fn ports() -> u16 {
    for try_number in 0..200u32 {
        let base = 20000 + ((std::process::id() * 31 + try_number * 977) % 1900) as u16 * 10;
        if (base..base + 10).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return base;
        }
    }
    panic!("no ten free ports");
}

/// Servers that run, and their folders.
static STARTED: Mutex<Vec<(u32, PathBuf)>> = Mutex::new(Vec::new());

/// Has the server killed, and what it stored removed, when the tests exit: nothing is dropped then, and it stores most of a GB.
fn ends_with_the_tests(server: u32, folder: &std::path::Path) {
    extern "C" fn end() {
        for (server, folder) in STARTED.lock().map(|mut started| std::mem::take(&mut *started)).unwrap_or_default() {
            // SAFETY: a signal to a process that was started here, and that nobody has waited for unless it ended.
            #[cfg(unix)]
            unsafe {
                libc::kill(server as libc::pid_t, libc::SIGKILL);
            }
            for _ in 0..50 {
                // It may still write for a moment.
                if std::fs::remove_dir_all(&folder).is_ok() || !folder.exists() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
    let mut started = STARTED.lock().expect("no panic happens while it is held");
    // SAFETY: the function touches nothing but the list, which it empties.
    unsafe { libc::atexit(end) };
    started.push((server, folder.to_owned()));
}

fn start(program: &std::path::Path) -> Seaweed {
    for _ in 0..5 {
        let base = ports();
        let (sender, receiver) = mpsc::channel();
        let program = program.to_owned();
        // The server dies with the thread that started it, which lives as long as the tests.
        std::thread::spawn(move || {
            let folder = tempfile::tempdir().expect("a folder");
            let config = folder.path().join("s3.json");
            let identities = serde_json::json!({ "identities": [
                { "name": "t", "credentials": [{ "accessKey": KEY, "secretKey": SECRET }],
                  "actions": ["Admin", "Read", "Write", "List", "Tagging"] },
                { "name": "anonymous", "actions": ["Read:public", "List:public"] },
            ]});
            std::fs::write(&config, identities.to_string()).expect("a file");
            let mut command = Command::new(program);
            command
                .arg("mini")
                .args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-admin.ui=false", "-webdav=false"])
                .args(["-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"])
                .arg(format!("-dir={}", folder.path().display()))
                .arg(format!("-s3.config={}", config.display()));
            let names = [
                "s3.port",
                "s3.port.grpc",
                "filer.port",
                "filer.port.grpc",
                "master.port",
                "master.port.grpc",
                "volume.port",
                "admin.port",
                "admin.port.grpc",
            ];
            for (port, name) in (base..).zip(names) {
                command.arg(format!("-{name}={port}"));
            }
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir(folder.path());
            #[cfg(target_os = "linux")]
            {
                use std::os::unix::process::CommandExt;
                // SAFETY: prctl may be called between fork and exec.
                unsafe {
                    command.pre_exec(|| {
                        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                        Ok(())
                    });
                }
            }
            let mut child = command.spawn().expect("the S3 server can be started");
            ends_with_the_tests(child.id(), folder.path());
            sender.send(()).expect("it is waited for");
            let _ = child.wait();
            STARTED.lock().expect("no panic happens while it is held").retain(|(server, _)| *server != child.id());
        });
        receiver.recv().expect("it was started");
        let address = SocketAddr::from(([127, 0, 0, 1], base));
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(20) {
            // It listens before it can write.
            if TcpStream::connect(address).is_ok() && can_write(address) {
                return Seaweed { address };
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    panic!("the S3 server didn't start");
}

fn can_write(address: SocketAddr) -> bool {
    create_bucket(address, "ready").is_ok()
}

/// Makes a bucket, by the AWS client.
fn create_bucket(address: SocketAddr, bucket: &str) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let config = aws_config::defaults(aws_config::BehaviorVersion::latest())
            .region(aws_config::Region::new("us-east-1"))
            .endpoint_url(format!("http://{address}"))
            .load()
            .await;
        let config = aws_sdk_s3::config::Builder::from(&config).force_path_style(true).build();
        let client = aws_sdk_s3::Client::from_conf(config);
        client.create_bucket().bucket(bucket).send().await.map(drop).map_err(|error| format!("{error:?}"))
    })
}

impl Seaweed {
    pub fn bucket(&self, name: &str) {
        create_bucket(self.address, name).expect("a bucket");
    }

    /// Stores that read and write it directly.
    pub fn stores(&self) -> Stores {
        let mut options = StorageOptions::default();
        options.s3.endpoint = Some(format!("http://{}", self.address));
        options.s3.region = Some("us-east-1".into());
        Stores::new(&options, ByteSize(1 << 30), "".as_ref()).expect("nothing to go wrong")
    }

    /// Puts all files below a folder into a bucket, as keys below `prefix`.
    pub fn upload(&self, folder: &std::path::Path, bucket: &str, prefix: &str) {
        let stores = self.stores();
        let mut folders = vec![folder.to_owned()];
        while let Some(next) = folders.pop() {
            for entry in std::fs::read_dir(next).expect("a folder").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let name = path.strip_prefix(folder).expect("below").to_str().expect("UTF-8");
                stores
                    .put(&format!("s3://{bucket}/{prefix}{name}"), std::fs::read(&path).expect("it is there"))
                    .expect("it can be put");
            }
        }
    }
}
