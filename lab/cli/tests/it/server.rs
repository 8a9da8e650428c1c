//! A server that the lab starts as a contender: right, slow by a wanted amount of work, or lying in
//! a wanted way, as its environment says.
//!
//! It is this very test program, started with the one ignored test as its filter, so that it is
//! always as new as the tests and nothing else has to be built.

use std::cell::RefCell;
use std::env;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::SIGTERM;

/// The test that is the server.
pub(crate) const ENTRY: &str = "server::this_program_serves_when_the_lab_starts_it";

/// How long a server that was asked to end keeps a connection open without a request.
const GRACE: Duration = Duration::from_millis(400);

/// How late a reply comes from a server that is late: well after the client waits no longer, which is two seconds
/// after it asked, on a busy machine as well.
const LATENESS: Duration = Duration::from_secs(12);

/// How often a waiting connection looks whether the server ends.
const LOOK: Duration = Duration::from_millis(20);

/// How a server differs from a right one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Nature {
    /// Work for each reply, in rounds of some nanoseconds.
    pub(crate) burn: u64,
    /// How it lies: `wrong-body`, `wrong-length`, `wrong-status`, `wrong-field`, `short-body`,
    /// `closed`, `reordered`, `garbage`, `dies`, or is `late` and says the truth; empty: never.
    pub(crate) lie: String,
    /// When it begins to: `gate`, `load` (when its calls were counted once), `slices` (when they
    /// were counted twice), or after so many requests.
    pub(crate) from: String,
    /// `honest`, `cheating`, or nothing for no counter of calls.
    pub(crate) calls: String,
    /// Other faults, separated by blanks: `no-date`, `keeps-open`, `no-relay` (it answers without
    /// asking the echo server).
    pub(crate) habits: String,
    /// What it does on SIGTERM: `graceful`, or nothing for dying at once.
    pub(crate) end: String,
}

impl Nature {
    /// As variables of an environment.
    pub(crate) fn variables(&self) -> [(&'static str, String); 6] {
        [
            ("TRIAL_BURN", self.burn.to_string()),
            ("TRIAL_LIE", self.lie.clone()),
            ("TRIAL_FROM", self.from.clone()),
            ("TRIAL_CALLS", self.calls.clone()),
            ("TRIAL_HABITS", self.habits.clone()),
            ("TRIAL_END", self.end.clone()),
        ]
    }

    fn from_environment() -> Nature {
        let text = |name| env::var(name).unwrap_or_default();
        Nature {
            burn: text("TRIAL_BURN").parse().unwrap_or(0),
            lie: text("TRIAL_LIE"),
            from: text("TRIAL_FROM"),
            calls: text("TRIAL_CALLS"),
            habits: text("TRIAL_HABITS"),
            end: text("TRIAL_END"),
        }
    }
}

/// What all connections share.
#[derive(Debug, Default)]
pub(crate) struct Server {
    nature: Nature,
    /// Requests so far, without those for the counter.
    requests: AtomicU64,
    /// How often the counter was read.
    reads: AtomicU64,
    is_ending: AtomicBool,
    open: AtomicU64,
}

#[test]
#[ignore = "the lab starts it"]
fn this_program_serves_when_the_lab_starts_it() {
    // Without a port it was started by somebody who runs ignored tests.
    let Some(port) = env::var("PORT").ok().and_then(|port| port.parse().ok()) else { return };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    let server = Arc::new(Server { nature: Nature::from_environment(), ..Server::default() });
    if server.nature.end == "graceful" {
        let flag = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGTERM, flag.clone()).unwrap();
        end_with(listener, &server, &flag);
        std::process::exit(0);
    }
    accept(&listener, &server);
}

/// Serves on a free port until the test program ends.
pub(crate) fn serve(nature: Nature) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = Arc::new(Server { nature, ..Server::default() });
    std::thread::spawn(move || accept(&listener, &server));
    address
}

fn accept(listener: &TcpListener, server: &Arc<Server>) {
    for stream in listener.incoming() {
        converse_aside(stream.unwrap(), server);
    }
}

/// Serves until the flag is set, then takes no new connections and answers what is under way.
fn end_with(listener: TcpListener, server: &Arc<Server>, flag: &AtomicBool) {
    listener.set_nonblocking(true).unwrap();
    while !flag.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                converse_aside(stream, server);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
    // Nobody is told to close before nobody listens, so that nobody comes back in vain.
    drop(listener);
    server.is_ending.store(true, Ordering::Relaxed);
    let end = Instant::now() + 2 * GRACE;
    while Instant::now() < end && server.open.load(Ordering::Relaxed) > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn converse_aside(stream: TcpStream, server: &Arc<Server>) {
    let server = server.clone();
    server.open.fetch_add(1, Ordering::Relaxed);
    std::thread::Builder::new()
        .stack_size(128 << 10)
        .spawn(move || {
            // The client may leave when it likes.
            let _ = converse(stream, &server);
            server.open.fetch_sub(1, Ordering::Relaxed);
        })
        .unwrap();
}

/// A request as far as it is understood.
struct Asked {
    method: String,
    target: String,
    is_last: bool,
    is_bad: bool,
}

fn converse(mut stream: TcpStream, server: &Server) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if server.nature.end == "graceful" {
        stream.set_read_timeout(Some(LOOK))?;
    }
    let (mut pending, mut room) = (Vec::new(), [0; 4096]);
    let mut last_read = Instant::now();
    loop {
        match stream.read(&mut room) {
            Ok(0) => return Ok(()),
            Ok(count) => pending.extend_from_slice(&room[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if server.is_over() && last_read.elapsed() > GRACE {
                    return Ok(());
                }
                continue;
            }
            Err(error) => return Err(error),
        }
        last_read = Instant::now();
        if pending.starts_with(b"PRI * HTTP/2.0") {
            return crate::http2::converse(stream, pending, server);
        }
        if pending.starts_with(b"GET /ws ") {
            return crate::websocket::converse(stream, pending, server);
        }
        let mut replies: Vec<Vec<u8>> = Vec::new();
        let (mut is_over, mut is_quiet) = (false, true);
        while let Some(asked) = next(&mut pending) {
            let lie = server.lie(&asked);
            let is_last = asked.is_last || asked.is_bad || server.is_ending.load(Ordering::Relaxed);
            let reply = server.reply(&asked, lie, is_last);
            is_quiet &= !matches!(lie, "closed" | "short-body");
            is_over |= !is_quiet || is_last;
            if lie == "reordered" {
                replies.insert(0, reply);
            } else {
                replies.push(reply);
            }
            if is_over {
                break;
            }
        }
        stream.write_all(&replies.concat())?;
        if is_over && is_quiet && server.nature.habits.contains("keeps-open") {
            continue;
        }
        if is_over {
            return Ok(());
        }
    }
}

/// Takes the next whole request out of the bytes.
fn next(pending: &mut Vec<u8>) -> Option<Asked> {
    let end = pending.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&pending[..end]).into_owned();
    let field = |name: &str| {
        head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    };
    let length: usize = field("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let is_chunked = field("transfer-encoding").is_some();
    if pending.len() < end + length && !is_chunked {
        return None;
    }
    pending.drain(..if is_chunked { end } else { end + length });
    let mut words = head.split(' ');
    Some(Asked {
        method: words.next().unwrap_or_default().to_owned(),
        target: words.next().unwrap_or_default().to_owned(),
        is_last: field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")),
        is_bad: is_chunked || field("host").is_none(),
    })
}

impl Server {
    /// How this request is lied to; empty: not at all.
    fn lie(&self, asked: &Asked) -> &str {
        if asked.target == "/lab/calls" {
            return "";
        }
        let requests = self.requests.fetch_add(1, Ordering::Relaxed);
        let has_begun = match self.nature.from.as_str() {
            "gate" => true,
            "load" => self.reads.load(Ordering::Relaxed) >= 1,
            "slices" => self.reads.load(Ordering::Relaxed) >= 2,
            count => count.parse().is_ok_and(|count: u64| requests >= count),
        };
        if has_begun { &self.nature.lie } else { "" }
    }

    /// Whether it was asked to end.
    pub(crate) fn is_over(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// What it says over HTTP/2: status, media type and body.
    pub(crate) fn reply_to(&self, target: &str) -> (u16, &'static str, String) {
        let (method, target) = ("GET".to_owned(), target.to_owned());
        let asked = Asked { method, target, is_last: false, is_bad: false };
        let lie = self.lie(&asked);
        self.burn();
        let (status, media, body) = self.answer(&asked);
        let is_wrong = lie == "wrong-body";
        (status, media, if is_wrong { body.replace("Hello", "Hollo") } else { body })
    }

    /// What it says to a message of a WebSocket.
    pub(crate) fn echo(&self, text: &[u8]) -> Vec<u8> {
        let (method, target) = ("GET".to_owned(), "/ws".to_owned());
        let lie = self.lie(&Asked { method, target, is_last: false, is_bad: false });
        self.burn();
        text.iter().map(|&byte| if lie == "wrong-body" { b'x' } else { byte }).collect()
    }

    fn burn(&self) {
        for round in 0..self.nature.burn {
            black_box(round.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
    }

    fn reply(&self, asked: &Asked, lie: &str, is_last: bool) -> Vec<u8> {
        self.burn();
        let (mut status, mut media, mut body) = self.answer(asked);
        match lie {
            "closed" => return Vec::new(),
            "dies" => std::process::exit(9),
            "late" => std::thread::sleep(LATENESS),
            "garbage" => return b"this is not HTTP\r\n\r\n".to_vec(),
            "wrong-status" => status = 500,
            "wrong-field" => media = "application/octet-stream",
            "wrong-length" => body.push('!'),
            "wrong-body" => body = body.replace(|letter: char| letter.is_ascii_alphanumeric(), "x"),
            _ => {}
        }
        let date = if self.nature.habits.contains("no-date") { String::new() } else { date() };
        let close = if is_last { "connection: close\r\n" } else { "" };
        let mut bytes = format!(
            "HTTP/1.1 {status} Any\r\ncontent-type: {media}\r\n{date}{close}content-length: \
             {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        if asked.method != "HEAD" {
            bytes.extend_from_slice(body.as_bytes());
        }
        if lie == "short-body" {
            bytes.truncate(bytes.len() - body.len() / 2);
        }
        bytes
    }

    fn answer(&self, asked: &Asked) -> (u16, &'static str, String) {
        if asked.is_bad {
            return (400, "text/plain", String::new());
        }
        if !matches!(asked.method.as_str(), "GET" | "HEAD") {
            return (501, "text/plain", String::new());
        }
        let parts: Vec<&str> = asked.target.split('/').collect();
        match parts[..] {
            ["", "json"] => (200, "application/json", r#"{"message":"Hello, World!"}"#.to_owned()),
            ["", "echo", text] => (200, "text/plain", text.to_owned()),
            ["", "relay", text] if self.nature.habits.contains("no-relay") => {
                (200, "text/plain", text.to_owned())
            }
            ["", "relay", text] => (200, "text/plain", relayed(text)),
            ["", "sleep", text] => {
                std::thread::sleep(Duration::from_millis(text.parse().unwrap_or(0)));
                (200, "text/plain", text.to_owned())
            }
            ["", "lab", "calls"] if !self.nature.calls.is_empty() => {
                self.reads.fetch_add(1, Ordering::Relaxed);
                let requests = self.requests.load(Ordering::Relaxed);
                let calls = if self.nature.calls == "honest" { requests } else { requests / 2 };
                (200, "text/plain", calls.to_string())
            }
            _ => (404, "text/plain", String::new()),
        }
    }
}

/// The text as the lab's echo server sent it back, over a connection that this thread keeps.
fn relayed(text: &str) -> String {
    thread_local! {
        static STREAM: RefCell<Option<TcpStream>> = const { RefCell::new(None) };
    }
    STREAM.with_borrow_mut(|stream| {
        let stream = stream.get_or_insert_with(|| {
            let port: u16 = env::var("ECHO_PORT").unwrap().parse().unwrap();
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap()
        });
        stream.write_all(text.as_bytes()).unwrap();
        let mut back = vec![0; text.len()];
        stream.read_exact(&mut back).unwrap();
        String::from_utf8(back).unwrap()
    })
}

/// The field Date, right as far as the time of the day is concerned.
fn date() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seconds = now.as_secs() % 86_400;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("date: Thu, 01 Jan 2026 {hours:02}:{minutes:02}:{:02} GMT\r\n", seconds % 60)
}
