//! Measures the server under overload: `overload [SECONDS]`.
//!
//! A handler uses its thread for a millisecond, and a client sends requests in an open loop, at a
//! fifth of one worker's capacity, at twice that capacity and at ten times: with a delay target and
//! without one, in a separate process on another core. Times count from when a request should have
//! been sent. `overload serve TARGET_US` runs only the server; 0 means no target.
//! `PEREGRINE_DRIVER` selects the driver.

use peregrine::prelude::*;
use peregrine::{Limits, OverloadLimits};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// How long the handler uses its thread.
const WORK: Duration = Duration::from_millis(1);
/// The delay target: five times that.
const TARGET: Duration = Duration::from_millis(5);
const CONNECTIONS: usize = 512;
/// How long a load runs before measuring starts.
const WARM: Duration = Duration::from_secs(1);

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("serve") => serve(Duration::from_micros(number(arguments.get(1)))),
        seconds => {
            measure(Duration::from_secs(seconds.map_or(10, |text| number(Some(&text.to_owned())))))
        }
    }
}

fn number(text: Option<&String>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("a number, not {text:?}"))
}

/// Works for this many rounds, in a way that the compiler cannot optimise away.
fn work(rounds: u64) -> u64 {
    (0..rounds).fold(1, |hash, round| black_box((hash ^ round).wrapping_mul(0x100_0000_01b3)))
}

/// How many rounds take as long as the work should take: the fastest of some tries.
fn rounds() -> u64 {
    const TRY: u64 = 100_000;
    let took = |_| {
        let start = Instant::now();
        black_box(work(TRY));
        start.elapsed()
    };
    let fastest = (0..200).map(took).min().expect("the list is not empty").as_nanos().max(1);
    TRY * u64::try_from(WORK.as_nanos() / 1000).expect("the value fits") * 1000
        / u64::try_from(fastest).expect("the value fits")
}

fn serve(target: Duration) {
    let rounds = rounds();
    let queue_delay_target = (!target.is_zero()).then_some(target);
    let overload = OverloadLimits { queue_delay_target, ..OverloadLimits::default() };
    let server = peregrine::Server::bind("127.0.0.1:0").workers(NonZeroUsize::MIN);
    let server = server.limits(Limits { overload, ..Limits::default() }).quiet();
    let running =
        server.start(move || App::new().get("/work", async move || work(rounds).to_string()));
    let running = running.expect("a port is free");
    println!("{}", running.http_address().expect("the server listens on this port"));
    // Runs until the process that started it ends.
    let _ = std::io::stdin().read(&mut [0]);
    running.handle().force_close();
}

/// A server in a separate process.
struct Server(Child, SocketAddr);

impl Server {
    fn start(target: Duration) -> Self {
        let program = std::env::current_exe().expect("the current executable has a path");
        let micros = target.as_micros().to_string();
        // Server and client on one core each, if `taskset` is available.
        let mut command = Command::new("taskset");
        command.args(["-c", "0"]).arg(&program);
        let start = |command: &mut Command| {
            command.args(["serve", &micros]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
        };
        let child = start(&mut command).or_else(|_| start(&mut Command::new(&program)));
        let mut child = child.expect("the current executable can be started");
        let mut line = String::new();
        let out = child.stdout.take().expect("stdout is piped");
        BufReader::new(out).read_line(&mut line).expect("the child prints its address");
        let address = line.trim().parse().expect("an address");
        Self(child, address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn measure(time: Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    let local = tokio::task::LocalSet::new();
    println!(
        "| load | target | 200 a second | of capacity | 503 a second | p50 | p99 | longest | x p99 at low load |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let capacity = {
        let server = Server::start(Duration::ZERO);
        local.block_on(&runtime, ask(server.1, None, time.min(Duration::from_secs(5)))).goodput()
    };
    let mut quiet = None;
    for (times, target) in [
        (0.2, TARGET),
        (2.0, TARGET),
        (10.0, TARGET),
        (0.2, Duration::ZERO),
        (2.0, Duration::ZERO),
        (10.0, Duration::ZERO),
    ] {
        let server = Server::start(target);
        let mut load = local.block_on(&runtime, ask(server.1, Some(capacity * times), time));
        let p99 = load.percentile(99);
        let quiet = *quiet.get_or_insert(p99);
        let target = if target.is_zero() { "none".to_owned() } else { format!("{target:?}") };
        println!(
            "| {times} x {capacity:.0}/s | {target} | {:.0} | {:.3} | {:.0} | {:.2?} | {p99:.2?} | {:.2?} | {:.2} |",
            load.goodput(),
            load.goodput() / capacity,
            load.rate(503),
            load.percentile(50),
            load.percentile(100),
            p99.as_secs_f64() / quiet.as_secs_f64(),
        );
    }
}

/// The results of a load.
#[derive(Default)]
struct Load {
    statuses: BTreeMap<u16, usize>,
    /// Times of the responses with status 200.
    times: Vec<Duration>,
    time: Duration,
}

impl Load {
    fn rate(&self, status: u16) -> f64 {
        self.statuses.get(&status).copied().unwrap_or(0) as f64 / self.time.as_secs_f64()
    }

    fn goodput(&self) -> f64 {
        self.rate(200)
    }

    fn percentile(&mut self, percent: usize) -> Duration {
        self.times.sort_unstable();
        let last = self.times.len().saturating_sub(1);
        self.times.get(last * percent / 100).copied().unwrap_or_default()
    }
}

/// State shared by all connections.
#[derive(Default)]
struct Shared {
    /// Idle connections.
    idle: Vec<oneshot::Sender<Instant>>,
    /// Requests without a free connection, by when they should be sent.
    waiting: VecDeque<Instant>,
    load: Load,
    counts: Option<(Instant, Instant)>,
}

/// Sends requests at `rate`, or, with four connections, as fast as they are answered.
async fn ask(address: SocketAddr, rate: Option<f64>, time: Duration) -> Load {
    let shared = Rc::new(RefCell::new(Shared::default()));
    let start = Instant::now();
    let (from, until) = (start + WARM, start + WARM + time);
    shared.borrow_mut().counts = Some((from, until));
    let connections = if rate.is_some() { CONNECTIONS } else { 4 };
    let tasks: Vec<_> = (0..connections)
        .map(|_| tokio::task::spawn_local(connection(address, Rc::clone(&shared), rate.is_none())))
        .collect();
    // The times between requests are distributed like those of independent users.
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = Instant::now();
    while Instant::now() < until {
        while let Some(rate) = rate
            && next <= Instant::now()
        {
            let mut shared = shared.borrow_mut();
            match shared.idle.pop() {
                Some(connection) => drop(connection.send(next)),
                None => shared.waiting.push_back(next),
            }
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let chance = ((seed >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
            next += Duration::from_secs_f64(-chance.ln() / rate);
        }
        // Timers are too coarse, so the client busy-waits: it has this core to itself.
        tokio::task::yield_now().await;
    }
    tasks.into_iter().for_each(|task| task.abort());
    let load = std::mem::take(&mut shared.borrow_mut().load);
    Load { time, ..load }
}

/// One connection: one request after the other, each when it is due.
async fn connection(address: SocketAddr, shared: Rc<RefCell<Shared>>, is_closed_loop: bool) {
    let mut stream = TcpStream::connect(address).await.expect("the server listens");
    stream.set_nodelay(true).expect("the socket option can be set");
    let mut bytes = Vec::new();
    loop {
        let waiting = shared.borrow_mut().waiting.pop_front();
        let at = match waiting {
            _ if is_closed_loop => Instant::now(),
            Some(at) => at,
            None => {
                let (sender, receiver) = oneshot::channel();
                shared.borrow_mut().idle.push(sender);
                let Ok(at) = receiver.await else { return };
                at
            }
        };
        stream
            .write_all(b"GET /work HTTP/1.1\r\nHost: a\r\n\r\n")
            .await
            .expect("the server reads the request");
        bytes.clear();
        while !is_whole(&bytes) {
            let read = stream.read_buf(&mut bytes).await.expect("the server responds");
            assert!(
                read > 0,
                "the server closed the connection: {}",
                String::from_utf8_lossy(&bytes)
            );
        }
        let status = std::str::from_utf8(&bytes[9..12]).ok().and_then(|text| text.parse().ok());
        let status: u16 = status.expect("a status");
        let mut shared = shared.borrow_mut();
        let now = Instant::now();
        let (from, until) = shared.counts.expect("the range is set before the load starts");
        if now >= from && now < until {
            *shared.load.statuses.entry(status).or_default() += 1;
            if status == 200 {
                shared.load.times.push(now.saturating_duration_since(at));
            }
        }
    }
}

/// Whether the response is complete.
fn is_whole(bytes: &[u8]) -> bool {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    let length: usize = length.and_then(|length| length.parse().ok()).expect("a length");
    bytes.len() >= end + 4 + length
}
