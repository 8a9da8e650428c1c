//! Random server runs ("lives"): clients of every kind, all faults at once, and a shutdown at any
//! moment.
//!
//! Every life asserts that nothing panics or hangs; that what a client received is a prefix of what
//! it should receive; that the server ends in time; that nothing remains; and that the same
//! seed gives the same life again.

mod many;

use crate::server::app::{Shared, pattern};
use crate::server::reply::{self, Reply};
use peregrine::{IntoBuiltApp, Limits};
use peregrine_driver::{Driver, Options};
use peregrine_driver_sim::{Client, Faults, Network, Sim};
use peregrine_server::{BoundListener, Instrumentation, Lifecycle, WorkerMetrics, WorkerReport};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// The most the server may exceed its shutdown timeout: late timers, and the clock's resolution.
const SLACK: Duration = Duration::from_millis(50);
/// The driver drops some connections in the middle, among this many first ones.
const DOOMED_AMONG: u64 = 12;
/// The driver's first tasks are the server's own: one that accepts and one that keeps time.
const SERVER_TASKS: u64 = 2;

/// A request and its possible responses.
struct Planned {
    bytes: Vec<u8>,
    is_head: bool,
    status: u16,
    /// The content of a complete response, if known.
    body: Option<Vec<u8>>,
    /// No request after this one is answered.
    is_last: bool,
}

fn number(network: &Network, limit: usize) -> usize {
    let limit = u64::try_from(limit).expect("a size has at most 64 bits");
    usize::try_from(network.random_below(limit)).expect("the value is below the limit")
}

fn choose<'a, T>(network: &Network, items: &'a [T]) -> &'a T {
    &items[number(network, items.len())]
}

fn get(path: &str, body: impl Into<Vec<u8>>) -> Planned {
    Planned {
        bytes: format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes(),
        is_head: false,
        status: 200,
        body: Some(body.into()),
        is_last: false,
    }
}

fn pieces(count: usize) -> String {
    (0..count).map(|number| format!("piece {number}\n")).collect()
}

fn upload(network: &Network) -> Planned {
    let body = pattern(*choose(network, &[0, 1, 20, 300, 2_000]));
    let path = *choose(network, &["/echo", "/echo-stream", "/ignore", "/count", "/echo-limited"]);
    let mut bytes = format!("POST {path} HTTP/1.1\r\nHost: a\r\n").into_bytes();
    if network.random_below(8) == 0 {
        bytes.extend_from_slice(b"Expect: 100-continue\r\n");
    }
    if network.random_below(2) == 0 {
        bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
        bytes.extend_from_slice(&body);
    } else {
        bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
        let mut remaining = &body[..];
        while !remaining.is_empty() {
            let (chunk, tail) = remaining.split_at(1 + number(network, remaining.len()));
            bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
            remaining = tail;
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
    }
    let (status, expected) = match path {
        "/echo-limited" if body.len() > 1000 => (413, None),
        "/ignore" => (200, Some(b"ignored".to_vec())),
        "/count" => (200, Some(body.len().to_string().into_bytes())),
        _ => (200, Some(body)),
    };
    Planned { bytes, is_head: false, status, body: expected, is_last: false }
}

fn invalid(network: &Network) -> Planned {
    let (text, status) = *choose(
        network,
        &[
            ("GET / HTTP/1.1\r\n\r\n", 400),
            ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("\x16\x03\x01\x02\x00\x01\x00\r\n", 400),
            ("GET / HTTP/3.0\r\nHost: a\r\n\r\n", 505),
            ("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", 501),
            ("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400),
            (
                "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
                400,
            ),
        ],
    );
    let bytes = text.as_bytes().to_vec();
    Planned { bytes, is_head: false, status, body: None, is_last: true }
}

/// Any request.
fn plan(network: &Network) -> Planned {
    let small = number(network, 4);
    match network.random_below(16) {
        0..=2 => get(&format!("/numbers/{small}"), small.to_string()),
        3 | 4 => {
            let time = *choose(network, &[0, 1, 30, 400, 5_000]);
            get(&format!("/sleep/{time}"), format!("slept {time}"))
        }
        5..=8 => upload(network),
        9 => get(&format!("/stream/{small}"), pieces(small)),
        10 => get(&format!("/slow/{small}"), pieces(small)),
        11 => {
            let length = *choose(network, &[100, 3_000]);
            get(&format!("/large/{length}"), pattern(length))
        }
        12 => {
            let bytes = b"HEAD /hello HTTP/1.1\r\nHost: a\r\n\r\n".to_vec();
            let body = Some(Vec::new());
            Planned { bytes, is_head: true, status: 200, body, is_last: false }
        }
        13 => Planned { is_last: true, ..get("/close", "bye") },
        14 if small == 0 => Planned { status: 500, body: None, ..get("/panic-late", "") },
        14 => {
            let bytes = b"GET /hello HTTP/1.0\r\n\r\n".to_vec();
            Planned { bytes, is_last: true, ..get("", "hello") }
        }
        _ if small == 0 => invalid(network),
        _ => Planned { status: 404, body: None, ..get("/nowhere", "") },
    }
}

/// Sends everything, in pieces, with pauses, and not always completely.
async fn send_requests(network: &Network, client: &Client, plans: &[Planned]) {
    let all: Vec<u8> = plans.iter().flat_map(|plan| plan.bytes.clone()).collect();
    let end = if network.random_below(4) == 0 { number(network, all.len() + 1) } else { all.len() };
    let mut remaining = &all[..end];
    while !remaining.is_empty() {
        let piece_bytes_max =
            if network.random_below(3) == 0 { remaining.len().min(10) } else { remaining.len() };
        let (piece, tail) = remaining.split_at(1 + number(network, piece_bytes_max));
        if client.send(piece).await.is_err() {
            return;
        }
        remaining = tail;
        let pause = match network.random_below(40) {
            0 => network.random_below(20_000),
            1..=9 => network.random_below(200),
            _ => continue,
        };
        network.sleep(Duration::from_millis(pause)).await;
    }
    match network.random_below(6) {
        0 | 1 => drop(client.half_close().await),
        2 => {
            network.sleep(Duration::from_millis(network.random_below(500))).await;
            client.reset();
        }
        _ => {}
    }
}

/// Receives everything until the connection ends, perhaps slowly; or disconnects earlier.
async fn listen(network: &Network, client: &Client) -> Vec<u8> {
    let mut all = Vec::new();
    let disconnects = network.random_below(10) == 0;
    let is_slow = network.random_below(6) == 0;
    loop {
        if disconnects && network.random_below(8) == 0 {
            client.reset();
            return all;
        }
        if is_slow {
            network.sleep(Duration::from_millis(network.random_below(1_000))).await;
        }
        match client.recv().await {
            Ok(bytes) if !bytes.is_empty() => all.extend(bytes),
            _ => return all,
        }
    }
}

/// Whether `reply` is a valid response to `plan`.
fn is_valid_response(plan: &Planned, reply: &Reply) -> bool {
    reply.status == plan.status
        && plan.body.as_ref().is_none_or(|body| *body == reply.body)
        && (!plan.is_last || reply.closes())
}

/// Asserts that `received` is a prefix of the responses to `plans`.
fn check(seed: u64, plans: &[Planned], mut received: &[u8]) {
    let mut is_over = false;
    let mut remaining_plans = plans.iter();
    while !received.is_empty() {
        let context = || format!("seed {seed}: {}", received.escape_ascii());
        assert!(!is_over, "nothing follows the last response: {}", context());
        let next = remaining_plans.next();
        let is_head = next.is_some_and(|plan| plan.is_head);
        let parse = |is_head| {
            let parsed = reply::parse(received, is_head, false);
            parsed.unwrap_or_else(|error| panic!("{error}: {}", context()))
        };
        let refuses = |reply: &Reply| reply.closes() && matches!(reply.status, 400 | 408);
        // If a head did not complete, the server does not know that it would have been HEAD.
        let parsed = match parse(is_head) {
            Some((reply, _)) if refuses(&reply) => parse(false),
            parsed => parsed,
        };
        let Some((reply, used)) = parsed else {
            if let Some(Planned { body: Some(body), is_head: false, .. }) = next {
                check_partial_body(received, body, &context());
            }
            return;
        };
        // A request that did not complete, or not in time, is refused instead.
        let is_refused = refuses(&reply);
        assert!(
            is_refused || next.is_some_and(|next| is_valid_response(next, &reply)),
            "{}",
            context()
        );
        is_over = reply.closes();
        received = &received[used..];
    }
}

/// Asserts that a truncated response of known length is a prefix of the complete one.
fn check_partial_body(received: &[u8], body: &[u8], context: &str) {
    let text = String::from_utf8_lossy(received);
    let Some(start) = received.windows(4).rposition(|window| window == b"\r\n\r\n") else { return };
    if text.starts_with("HTTP/1.1 200") && text.contains("\r\ncontent-length:") {
        let received_body = &received[start + 4..];
        // The content itself may contain such bytes.
        assert!(
            received_body.len() > body.len()
                || body.ends_with(received_body)
                || body.starts_with(received_body),
            "{context}"
        );
    }
}

fn limits() -> Limits {
    Limits {
        first_byte_timeout: Duration::from_secs(8),
        head_timeout: Duration::from_secs(5),
        idle_timeout: Duration::from_secs(6),
        transfer_rate_grace: Duration::from_secs(10),
        shutdown_timeout: Duration::from_secs(4),
        write_buffer_bytes_max: 1_000,
        drain_bytes_max: 500,
        connections_max: 4,
        ..Limits::default()
    }
}

async fn client(network: Network, port_id: u64, done: mpsc::UnboundedSender<()>) {
    network.sleep(Duration::from_millis(network.random_below(3_000))).await;
    if network.random_below(3) == 0 {
        many::client(&network, port_id).await;
        let _ = done.send(());
        return;
    }
    let plans: Vec<_> = (0..1 + network.random_below(6)).map(|_| plan(&network)).collect();
    let client = network.connect_to(port_id);
    let sending = send_requests(&network, &client, &plans);
    let ((), received) = crate::both(sending, listen(&network, &client)).await;
    check(network.seed(), &plans, &received);
    let _ = done.send(());
}

/// One life. Returns the report of the server.
async fn live(driver: Sim, seed: u64) -> WorkerReport {
    let network = driver.network().clone();
    let port = network.bind();
    let port_id = port.id();
    for _ in 0..network.random_below(4) {
        network.drop_task_at(SERVER_TASKS + network.random_below(DOOMED_AMONG));
    }
    let application = Shared::default().app()().into_built_app().expect("the application is valid");
    let (lifecycle, receiver) = watch::channel(Lifecycle::Serving);
    let metrics = Arc::new(WorkerMetrics::with_request_histograms());
    let instrumentation =
        Rc::new(Instrumentation::with_metrics(Arc::default(), Arc::clone(&metrics)));
    let listeners = vec![BoundListener::new(port)];
    let (done, mut clients) = mpsc::unbounded_channel();
    for _ in 0..2 + network.random_below(6) {
        network.spawn(client(network.clone(), port_id, done.clone()));
    }
    drop(done);
    let shutting_down = async {
        network.sleep(Duration::from_millis(network.random_below(20_000))).await;
        lifecycle.send_replace(Lifecycle::Draining);
        let shutdown_at = network.now();
        if network.random_below(4) == 0 {
            network.sleep(Duration::from_millis(network.random_below(3_000))).await;
            lifecycle.send_replace(Lifecycle::ForceClosing);
        }
        shutdown_at
    };
    let serving = async {
        let mut limits = limits();
        // Half of the servers allow clients to shut down their sending side and wait.
        limits.http1.half_close = seed % 2 == 1;
        let serving = peregrine_server::run_worker(
            driver.clone(),
            listeners,
            application,
            limits,
            instrumentation,
            receiver,
            None,
        );
        let report = serving.await.expect("the simulated network has free addresses");
        (report, network.now())
    };
    let (shutdown_at, (report, ended)) = crate::both(shutting_down, serving).await;
    let elapsed = ended.saturating_sub(shutdown_at);
    let elapsed_max = limits().shutdown_timeout + SLACK;
    assert!(
        elapsed <= elapsed_max,
        "seed {seed}: the shutdown took {elapsed:?}: {:?} {:?}",
        report.stats,
        report.force_closed
    );
    assert_eq!(report.stats.connections, 0, "seed {seed}: a connection is counted as open");
    metrics.assert_idle();
    // The clients end by themselves once the server is gone.
    while clients.recv().await.is_some() {}
    report
}

/// The results of a life, for comparing two runs with the same seed.
#[derive(Debug, PartialEq, Eq)]
pub struct Trace {
    /// A digest of every event on the network.
    pub events: u64,
    /// The server's counts.
    pub snapshot: peregrine_server::WorkerStats,
}

/// Runs the life that `seed` determines.
///
/// # Panics
/// If an assertion fails. The message names the seed.
#[must_use]
pub fn life(seed: u64) -> Trace {
    let network = Network::new(seed, Faults::hostile());
    let run = network.run(&Options::default(), async |driver| {
        let report = live(driver.clone(), seed).await;
        assert_eq!(driver.stats().in_flight, 0, "seed {seed}: an operation is still in flight");
        report
    });
    let report = run.expect("a runtime without I/O starts");
    assert_eq!(network.panics(), 0, "seed {seed}: a task panicked");
    assert_eq!(network.outstanding_chunks(), 0, "seed {seed}: a buffer is lost");
    assert_eq!(network.connections(), 0, "seed {seed}: a connection is lost");
    Trace { events: network.trace_digest(), snapshot: report.stats }
}
