//! A small HTTP/1.1 server on loopback: files of a folder, with or without ranges, and a hub over the same folder.
//!
//! Threads and blocking sockets, as little as the tests need. It answers GET and HEAD, `Range: bytes=a-b`, `If-Match`, and counts.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What a server is like.
#[derive(Debug, Clone, Default)]
pub struct Manners {
    /// It ignores ranges.
    pub no_ranges: bool,
    /// It says no ETag.
    pub no_tag: bool,
    /// It answers as the hub does, for one repository.
    pub hub: Option<Hub>,
}

/// A repository of the hub; its files are the server's folder.
#[derive(Debug, Clone)]
pub struct Hub {
    /// `datasets/owner/name` or `owner/model`.
    pub repository: String,
    pub commit: String,
    /// The token it wants.
    pub token: Option<String>,
    /// The address of where files are sent on to, as large ones are; it must not get the token.
    pub sent_on_to: Option<SocketAddr>,
}

pub struct Server {
    pub address: SocketAddr,
    pub state: Arc<State>,
}

#[derive(Default)]
pub struct State {
    folder: PathBuf,
    manners: Manners,
    stopped: AtomicBool,
    pub requests: AtomicU64,
    pub bytes: AtomicU64,
    /// Requests that came with an Authorization header.
    pub authorized: AtomicU64,
    /// Targets of requests, in order.
    pub targets: Mutex<Vec<String>>,
}

impl Server {
    pub fn start(folder: &Path, manners: Manners) -> Server {
        let state = Arc::new(State { folder: folder.to_owned(), manners, ..State::default() });
        let address =
            listen(state.clone(), "127.0.0.1:0", |state: &State| state.stopped.load(Ordering::Relaxed), State::serve);
        Server { address, state }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

/// Listens on an address and has each connection served on a thread of its own, until one comes after it is `over`.
pub fn listen<S: Send + Sync + 'static>(
    state: Arc<S>,
    address: &str,
    over: fn(&S) -> bool,
    serve: fn(&S, TcpStream) -> std::io::Result<()>,
) -> SocketAddr {
    let listener = TcpListener::bind(address).expect("a port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            if over(&state) {
                break;
            }
            let state = state.clone();
            std::thread::spawn(move || {
                let _ = serve(&state, stream);
            });
        }
    });
    address
}

/// Method, target, and headers by their names in lower case.
pub type Request = (String, String, BTreeMap<String, String>);

/// The next request, or the beginning of a response; `None` at the end of the connection.
pub fn read_request(reader: &mut impl BufRead) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut parts = line.split_whitespace().map(str::to_owned);
    let (method, target) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            return Ok(Some((method, target, headers)));
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
}

/// `%20` and the like.
pub fn decoded(target: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), target.as_bytes());
    while let Some((&byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match (byte, hex) {
            (b'%', Some(value)) => {
                bytes.push(value);
                rest = &after[2..];
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).expect("UTF-8 in tests")
}

impl State {
    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut writer = stream;
        while let Some((method, target, headers)) = read_request(&mut reader)? {
            self.requests.fetch_add(1, Ordering::Relaxed);
            self.targets.lock().expect("no panic").push(target.clone());
            if headers.contains_key("authorization") {
                self.authorized.fetch_add(1, Ordering::Relaxed);
            }
            let path = decoded(target.split('?').next().unwrap_or_default().trim_start_matches('/'));
            match &self.manners.hub {
                Some(hub) => self.as_hub(hub, &mut writer, &method, &path, &headers)?,
                None => self.file(&mut writer, &method, &path, &headers, "")?,
            }
        }
        Ok(())
    }

    fn file(
        &self,
        writer: &mut TcpStream,
        method: &str,
        path: &str,
        headers: &BTreeMap<String, String>,
        more: &str,
    ) -> std::io::Result<()> {
        let Ok(bytes) = std::fs::read(self.folder.join(path)) else {
            return simple(writer, "404 Not Found", "", b"no such file");
        };
        let tag = format!("\"{}\"", &blake3::hash(&bytes).to_hex()[..32]);
        if headers.get("if-match").is_some_and(|wanted| *wanted != tag) {
            return simple(writer, "412 Precondition Failed", "", b"");
        }
        let mut extra = more.to_owned();
        if !self.manners.no_tag {
            extra += &format!("ETag: {tag}\r\n");
        }
        let size = bytes.len();
        let range = headers.get("range").filter(|_| !self.manners.no_ranges).and_then(|range| {
            let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
            Some((first.parse::<usize>().ok()?, last.parse::<usize>().ok()?.min(size.saturating_sub(1))))
        });
        let (status, body) = match range {
            Some((first, _)) if first >= size => {
                extra += &format!("Content-Range: bytes */{size}\r\n");
                ("416 Range Not Satisfiable", &bytes[..0])
            }
            Some((first, last)) => {
                extra += &format!("Content-Range: bytes {first}-{last}/{size}\r\n");
                ("206 Partial Content", &bytes[first..=last])
            }
            None => ("200 OK", &bytes[..]),
        };
        write!(writer, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{extra}\r\n", body.len())?;
        if method != "HEAD" {
            self.bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
            writer.write_all(body)?;
        }
        Ok(())
    }

    fn as_hub(
        &self,
        hub: &Hub,
        writer: &mut TcpStream,
        method: &str,
        path: &str,
        headers: &BTreeMap<String, String>,
    ) -> std::io::Result<()> {
        let wanted = hub.token.as_ref().map(|token| format!("Bearer {token}"));
        if wanted.is_some() && headers.get("authorization") != wanted.as_ref() {
            return simple(writer, "401 Unauthorized", "", b"Invalid credentials");
        }
        let kind = if hub.repository.starts_with("datasets/") { "" } else { "models/" };
        let revisions = ["main", "v1", hub.commit.as_str()];
        if let Some(rest) = path.strip_prefix(&format!("api/{kind}{}/", hub.repository)) {
            if let Some(revision) = rest.strip_prefix("revision/") {
                return match revisions.contains(&revision) {
                    true => simple(writer, "200 OK", "", format!("{{\"sha\":\"{}\"}}", hub.commit).as_bytes()),
                    false => simple(writer, "404 Not Found", "", b"no such revision"),
                };
            }
            // Pages of two entries.
            let Some(rest) = rest.strip_prefix("tree/") else { return simple(writer, "404 Not Found", "", b"") };
            let (revision, folder) = rest.split_once('/').unwrap_or((rest, ""));
            if !revisions.contains(&revision) {
                return simple(writer, "404 Not Found", "", b"no such revision");
            }
            let mut entries = Vec::new();
            walk(&self.folder.join(folder), &self.folder, &mut entries);
            let last = self.targets.lock().expect("no panic").last().cloned().unwrap_or_default();
            let page = last.split("page=").nth(1).and_then(|page| page.parse::<usize>().ok()).unwrap_or(0);
            let some: Vec<_> = entries.iter().skip(2 * page).take(2).collect();
            let more = match 2 * (page + 1) < entries.len() {
                true => format!("Link: <http://{{}}/{path}?recursive=true&page={}>; rel=\"next\"\r\n", page + 1)
                    .replace("{}", &headers["host"]),
                false => String::new(),
            };
            return simple(writer, "200 OK", &more, serde_json::to_string(&some).expect("JSON").as_bytes());
        }
        let Some((revision, file)) = path
            .strip_prefix(&format!("{}/resolve/", hub.repository))
            .and_then(|rest| rest.split_once('/'))
            .filter(|(revision, _)| revisions.contains(revision))
        else {
            return simple(writer, "404 Not Found", "", b"Entry not found");
        };
        let _ = revision;
        let commit = format!("X-Repo-Commit: {}\r\n", hub.commit);
        let Some(other) = hub.sent_on_to else { return self.file(writer, method, file, headers, &commit) };
        let Ok(bytes) = std::fs::read(self.folder.join(file)) else {
            return simple(writer, "404 Not Found", &commit, b"Entry not found");
        };
        let tag = &blake3::hash(&bytes).to_hex()[..40];
        let more = format!(
            "{commit}X-Linked-Size: {}\r\nX-Linked-ETag: \"{tag}\"\r\nLocation: http://{other}/{file}?signed=1\r\n",
            bytes.len()
        );
        simple(writer, "302 Found", &more, b"")
    }
}

fn walk(folder: &Path, root: &Path, entries: &mut Vec<serde_json::Value>) {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).map(|list| list.flatten().map(|e| e.path()).collect()).unwrap_or_default();
    paths.sort();
    for path in paths {
        let name = path.strip_prefix(root).expect("below").to_string_lossy().into_owned();
        if path.is_dir() {
            entries.push(serde_json::json!({ "type": "directory", "path": name, "oid": "d", "size": 0 }));
            walk(&path, root, entries);
        } else {
            let size = std::fs::metadata(&path).expect("it is there").len();
            let pointer = serde_json::json!({ "oid": "ab".repeat(32), "size": size });
            entries.push(serde_json::json!({ "type": "file", "path": name, "oid": "cd".repeat(20), "size": 130, "lfs": pointer }));
        }
    }
}

fn simple(writer: &mut TcpStream, status: &str, more: &str, body: &[u8]) -> std::io::Result<()> {
    write!(writer, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{more}\r\n", body.len())?;
    writer.write_all(body)
}
