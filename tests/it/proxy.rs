//! A proxy on loopback that damages every n-th response to a GET of an object, of a page of a listing if told so, and can be dead for a while.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::server::{listen, read_request};

/// What happens to a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    Nothing,
    /// The connection is reset after so many bytes of the body.
    Cut(usize),
    /// The connection ends in order, with the body too short.
    Short(usize),
    /// 503 in place of the response.
    Busy,
    /// It comes late.
    Late(Duration),
    /// Nothing more comes after so many bytes, for as long as the test runs.
    Stalls(usize),
    /// One byte of the body is another.
    Flipped(usize),
    /// A status with an S3 error of that code in place of the response.
    Says(u16, &'static str),
    /// Each damaged response in another way, in turn: cut, short, busy, an internal error, late.
    InTurn,
}

pub struct Proxy {
    pub address: SocketAddr,
    pub state: Arc<State>,
}

pub struct State {
    upstream: SocketAddr,
    damage: Mutex<Damage>,
    every: u64,
    /// GETs of objects, and how many of them were damaged.
    pub gets: AtomicU64,
    pub damaged: AtomicU64,
    /// Those that wait for a late response, and most that did at once.
    waiting: AtomicU64,
    pub waiting_most: AtomicU64,
    /// Pages of listings, and whether every n-th is damaged like an object.
    pub listings: AtomicU64,
    pub damages_listings: AtomicBool,
    /// Connections are taken and reset, and those there are cut.
    pub dead: AtomicBool,
    /// It is dead from this GET on.
    pub dies_at: AtomicU64,
    /// Nobody listens, so connections are refused, as when the server's process is gone.
    closed: AtomicBool,
    stopped: AtomicBool,
}

impl Proxy {
    pub fn start(upstream: SocketAddr, damage: Damage, every: u64) -> Proxy {
        Self::start_on(0, upstream, damage, every)
    }

    /// One whose port no other test gets while it is closed: systems give away higher ones.
    pub fn start_to_close(upstream: SocketAddr, damage: Damage, every: u64) -> Proxy {
        let first = std::process::id() % 9000;
        let mut ports = (0..9000).map(|n| 10000 + ((first + n) % 9000) as u16);
        let port = ports.find(|&port| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok()).expect("a free port");
        Self::start_on(port, upstream, damage, every)
    }

    fn start_on(port: u16, upstream: SocketAddr, damage: Damage, every: u64) -> Proxy {
        let state = Arc::new(State {
            upstream,
            damage: Mutex::new(damage),
            every,
            gets: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            waiting_most: AtomicU64::new(0),
            listings: AtomicU64::new(0),
            damages_listings: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            dies_at: AtomicU64::new(u64::MAX),
            closed: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        });
        let address =
            listen(state.clone(), &format!("127.0.0.1:{port}"), |state: &State| state.is_over(), State::serve);
        Proxy { address, state }
    }

    /// Closes its port for `time` once it has seen `gets` more GETs, of one that was started for it; to be joined.
    pub fn closes(&self, gets: u64, time: Duration) -> std::thread::JoinHandle<()> {
        let (state, address) = (self.state.clone(), self.address);
        let until = state.gets.load(Ordering::SeqCst) + gets;
        std::thread::spawn(move || {
            while state.gets.load(Ordering::SeqCst) < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            state.dead.store(true, Ordering::SeqCst);
            state.closed.store(true, Ordering::SeqCst);
            // The listener sees it with the next connection, and is dropped.
            let _ = TcpStream::connect(address);
            std::thread::sleep(time);
            state.closed.store(false, Ordering::SeqCst);
            state.dead.store(false, Ordering::SeqCst);
            listen(state, &address.to_string(), |state: &State| state.is_over(), State::serve);
        })
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// Is dead for `time` once it has seen `gets` GETs; to be joined.
    pub fn dies(&self, gets: u64, time: Duration) -> std::thread::JoinHandle<()> {
        let state = self.state.clone();
        std::thread::spawn(move || {
            while state.gets.load(Ordering::SeqCst) < gets {
                std::thread::sleep(Duration::from_millis(1));
            }
            state.dead.store(true, Ordering::SeqCst);
            std::thread::sleep(time);
            state.dead.store(false, Ordering::SeqCst);
        })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn reset(stream: &TcpStream) {
    #[cfg(unix)]
    {
        use std::os::fd::AsRawFd;
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        // SAFETY: the socket is open, and the option's value is of the type and size that it has.
        unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const linger).cast(),
                size_of::<libc::linger>() as libc::socklen_t,
            );
        }
    }
}

impl State {
    fn is_over(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) || self.closed.load(Ordering::SeqCst)
    }

    fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    fn serve(&self, client: TcpStream) -> std::io::Result<()> {
        if self.is_dead() {
            reset(&client);
            return Ok(());
        }
        client.set_nodelay(true)?;
        let upstream = TcpStream::connect(self.upstream)?;
        upstream.set_nodelay(true)?;
        let (mut from_client, mut to_client) = (BufReader::new(client.try_clone()?), client);
        let (mut from_server, mut to_server) = (BufReader::new(upstream.try_clone()?), upstream);
        while let Some((method, target, headers)) = read_request(&mut from_client)? {
            let mut body = vec![0; headers.get("content-length").and_then(|n| n.parse().ok()).unwrap_or(0)];
            if headers.contains_key("expect") {
                to_client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
            }
            from_client.read_exact(&mut body)?;
            let path = target.split('?').next().unwrap_or_default().trim_matches('/');
            let lists = method == "GET" && target.contains("list-type");
            let page = self.listings.fetch_add(lists.into(), Ordering::SeqCst) + 1;
            let damages_page = lists && self.damages_listings.load(Ordering::SeqCst) && page.is_multiple_of(self.every);
            let counts = method == "GET" && !lists && !path.is_empty();
            let get = if counts { self.gets.fetch_add(1, Ordering::SeqCst) + 1 } else { 0 };
            if get >= self.dies_at.load(Ordering::SeqCst) {
                self.dead.store(true, Ordering::SeqCst);
                reset(&to_client);
                return Ok(());
            }
            let damage = match counts {
                _ if damages_page => *self.damage.lock().expect("no panic"),
                true if get.is_multiple_of(self.every) => *self.damage.lock().expect("no panic"),
                _ => Damage::Nothing,
            };
            let damaged = match damage {
                Damage::Nothing => 0,
                _ => self.damaged.fetch_add(1, Ordering::SeqCst),
            };
            let damage = match damage {
                Damage::InTurn => [
                    Damage::Cut(3000),
                    Damage::Short(9),
                    Damage::Busy,
                    Damage::Says(500, "InternalError"),
                    Damage::Late(Duration::from_millis(30)),
                ][damaged as usize % 5],
                damage => damage,
            };
            let refusal = match damage {
                Damage::Busy => Some((503, "SlowDown")),
                Damage::Says(status, code) => Some((status, code)),
                _ => None,
            };
            if let Some((status, code)) = refusal {
                let xml = format!(
                    "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>Please don't.</Message></Error>"
                );
                write!(
                    to_client,
                    "HTTP/1.1 {status} No\r\nContent-Type: application/xml\r\nContent-Length: {}\r\n\r\n{xml}",
                    xml.len()
                )?;
                continue;
            }
            if let Damage::Late(time) = damage {
                let waiting = self.waiting.fetch_add(1, Ordering::SeqCst) + 1;
                self.waiting_most.fetch_max(waiting, Ordering::SeqCst);
                std::thread::sleep(time);
                self.waiting.fetch_sub(1, Ordering::SeqCst);
            }
            let mut request = format!("{method} {target} HTTP/1.1\r\n");
            for (name, value) in &headers {
                // A server that waits for it would wait for ever: the body is sent at once.
                if name != "expect" {
                    request += &format!("{name}: {value}\r\n");
                }
            }
            to_server.write_all(request.as_bytes())?;
            to_server.write_all(b"\r\n")?;
            to_server.write_all(&body)?;
            let Some((version, status, headers)) = read_request(&mut from_server)? else { return Ok(()) };
            let mut head = format!("{version} {status} -\r\n");
            for (name, value) in &headers {
                head += &format!("{name}: {value}\r\n");
            }
            to_client.write_all(head.as_bytes())?;
            to_client.write_all(b"\r\n")?;
            if method == "HEAD" || matches!(status.as_str(), "204" | "304") {
                continue;
            }
            if headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") {
                if !self.pass_pieces(&mut from_server, &mut to_client, damage)? {
                    return Ok(());
                }
                continue;
            }
            let left = headers.get("content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
            if !self.pass_body(&mut from_server, &mut to_client, left, damage)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// A body of a length that is told; false when the connection is over.
    fn pass_body(
        &self,
        from: &mut impl Read,
        to: &mut TcpStream,
        size: usize,
        damage: Damage,
    ) -> std::io::Result<bool> {
        let mut buffer = vec![0; 64 << 10];
        let mut sent = 0;
        while sent < size {
            let count = from.read(&mut buffer[..(size - sent).min(64 << 10)])?;
            if count == 0 {
                return Ok(false);
            }
            if self.is_dead() {
                reset(to);
                return Ok(false);
            }
            let bytes = &mut buffer[..count];
            match damage {
                Damage::Cut(at) | Damage::Short(at) | Damage::Stalls(at) if sent + count > at => {
                    to.write_all(&bytes[..at.saturating_sub(sent)])?;
                    match damage {
                        Damage::Cut(_) => reset(to),
                        Damage::Stalls(_) => {
                            while !self.stopped.load(Ordering::Relaxed) {
                                std::thread::sleep(Duration::from_millis(20));
                            }
                        }
                        _ => {}
                    }
                    return Ok(false);
                }
                Damage::Flipped(at) if (sent..sent + count).contains(&at) => bytes[at - sent] ^= 1,
                _ => {}
            }
            to.write_all(bytes)?;
            sent += count;
        }
        Ok(true)
    }

    /// A body in pieces, each after its size; false when the connection is over.
    fn pass_pieces(
        &self,
        from: &mut impl std::io::BufRead,
        to: &mut TcpStream,
        damage: Damage,
    ) -> std::io::Result<bool> {
        let mut sent = 0;
        loop {
            let mut line = String::new();
            from.read_line(&mut line)?;
            to.write_all(line.as_bytes())?;
            let size = usize::from_str_radix(line.trim().split(';').next().unwrap_or_default(), 16).unwrap_or(0);
            let mut piece = vec![0; size + 2];
            from.read_exact(&mut piece)?;
            if let Damage::Cut(at) | Damage::Short(at) = damage
                && sent + size > at
            {
                to.write_all(&piece[..at - sent])?;
                if let Damage::Cut(_) = damage {
                    reset(to);
                }
                return Ok(false);
            }
            to.write_all(&piece)?;
            sent += size;
            if size == 0 {
                return Ok(true);
            }
        }
    }
}
