//! The pages of the admin listener, on both kernel drivers: every request and every connection is
//! counted once, at any time, whatever the workers do.
#![cfg(target_os = "linux")]

use bytes::Bytes;
use http_body::Frame;
use peregrine::prelude::*;
use peregrine::web::upgrade::UpgradeHandler;
use peregrine::{
    Admin, DriverChoice, Error, Limits, ListenAddr, MemoryMax, OverloadLimits, RunningServer,
};
use peregrine_tests::server::SocketWire;
use peregrine_tests::server::bench::{Got, Outcome, Served, Wire};
use peregrine_tests::server::client::{Client, Way};
use peregrine_tests::server::secure::server_tls;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::os::unix::fs::PermissionsExt;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

macro_rules! on_both_drivers {
    ($($case:ident,)*) => {
        mod on_tokio {
            $(#[test] fn $case() { super::$case(super::DriverChoice::Tokio); })*
        }
        mod on_uring {
            $(#[test] fn $case() { super::$case(super::DriverChoice::Uring); })*
        }
    };
}

on_both_drivers! {
    requests_of_all_workers_and_protocols_are_counted_exactly,
    every_connection_that_was_accepted_ends_once,
    each_failure_of_a_request_is_counted_once,
    requests_shed_by_overload_are_counted_apart_from_failures,
    a_body_that_finds_no_memory_is_no_failure_of_the_application,
    an_overloaded_server_responds_on_a_flooded_admin_listener,
    no_peer_can_make_more_of_the_page_than_the_application_has,
    limits_and_broken_rules_have_names,
    handshakes_are_counted_by_what_they_negotiated,
    a_page_that_is_read_under_load_never_contradicts_itself,
    the_admin_listener_responds_while_all_workers_are_blocked,
    a_full_server_responds_on_the_admin_listener,
    clients_of_the_admin_listener_keep_no_probe_out,
    low_memory_makes_a_server_unready_only_if_the_probe_asks_for_overload,
    readiness_fails_first_and_the_listener_closes_last,
    a_server_that_starts_is_not_ready,
    routes_and_connections_are_listed,
    the_pages_are_nowhere_else,
    sizes_are_those_of_the_content,
    the_drivers_show_what_they_do,
}

/// Only a hang takes this long.
const PATIENCE: Duration = Duration::from_secs(30);

const WAYS: [Way; 4] = [Way::HTTP1, Way::HTTP1_TLS, Way::HTTP2, Way::HTTP2_TLS];

/// A server with an admin listener; `None` if the kernel refuses the driver.
struct Bench {
    running: RunningServer,
}

impl Bench {
    fn start(
        choice: DriverChoice,
        workers: usize,
        limits: Limits,
        make: fn() -> App,
    ) -> Option<Self> {
        let workers = NonZeroUsize::new(workers).expect("the value is not zero");
        let server =
            Server::bind("127.0.0.1:0").listen_tls("127.0.0.1:0", server_tls()).driver(choice);
        let admin = Admin::bind("127.0.0.1:0").liveness_threshold(Duration::from_millis(400));
        let server = server.workers(workers).limits(limits).admin(admin).quiet();
        match server.start(make) {
            Err(error @ Error::Driver { .. }) => {
                eprintln!("skipped: {error}");
                None
            }
            running => Some(Self { running: running.expect("the server starts") }),
        }
    }

    fn admin(&self) -> SocketAddr {
        match self.running.admin_address() {
            Some(ListenAddr::Tcp(address)) => *address,
            other => panic!("the admin listener has no TCP address: {other:?}"),
        }
    }

    fn page(&self) -> Page {
        let (status, page) = ask(self.admin(), "/metrics", "");
        assert_eq!(status, 200);
        Page::read(&page)
    }

    /// Waits until the page satisfies `condition`: events at the end of a connection may be counted
    /// late.
    fn wait_until(&self, description: &str, condition: impl Fn(&Page) -> bool) -> Page {
        let begin = Instant::now();
        loop {
            let page = self.page();
            if condition(&page) {
                return page;
            }
            assert!(begin.elapsed() < PATIENCE, "timed out waiting until {description}: {page:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn client(&self, way: Way) -> Client<SocketWire> {
        block_on(way.connect(self))
    }
}

impl Served for Bench {
    type Wire = SocketWire;

    fn connect(&self) -> SocketWire {
        SocketWire::connect(
            self.running.addresses().next().expect("the server accepts connections"),
        )
    }

    fn connect_secure(&self) -> SocketWire {
        let address = self.running.https_address().expect("the server has an HTTPS listener");
        SocketWire::connect(&ListenAddr::Tcp(address))
    }

    fn shut_down(&self) {
        self.running.handle().graceful_shutdown();
    }

    fn cut(&self) {
        self.running.handle().force_close();
    }

    async fn ended(self) -> Outcome {
        unreachable!("these tests use the metrics page")
    }
}

/// Runs a future that blocks instead of returning `Pending`.
fn block_on<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("clients on sockets must block: nothing would wake them"),
    }
}

/// A status and a body.
fn ask(address: SocketAddr, path: &str, fields: &str) -> (u16, String) {
    let socket = TcpStream::connect(address).expect("the server accepts connections");
    ask_on(socket, path, fields)
}

fn ask_on(mut socket: impl Read + Write, path: &str, fields: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n");
    socket.write_all(request.as_bytes()).expect("the server reads the request");
    let mut reply = String::new();
    socket.read_to_string(&mut reply).expect("text");
    let (head, body) = reply.split_once("\r\n\r\n").expect("a complete head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("a status"), body.to_owned())
}

/// The samples of a page.
#[derive(Debug)]
struct Page(BTreeMap<String, f64>);

impl Page {
    fn read(page: &str) -> Self {
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        let sample = |line: &str| {
            let (sample, value) = line.rsplit_once(' ').expect("a sample and its value");
            (sample.to_owned(), value.parse().expect("a number"))
        };
        Self(lines.map(sample).collect())
    }

    /// The sum of samples with this name and all of these labels.
    fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let is_of = |sample: &str| {
            let (found, rest) = sample.split_once('{').unwrap_or((sample, ""));
            let mut labels = labels.iter().map(|(name, value)| format!("{name}=\"{value}\""));
            found == name && labels.all(|label| rest.contains(&label))
        };
        self.0.iter().filter(|(sample, _)| is_of(sample)).map(|(_, value)| value).sum()
    }

    fn requests(&self, labels: &[(&str, &str)]) -> u64 {
        self.sum("http_server_request_duration_seconds_count", labels) as u64
    }

    /// How many request histograms the page has.
    fn series(&self) -> usize {
        let name = "http_server_request_duration_seconds_count";
        self.0.keys().filter(|sample| sample.starts_with(name)).count()
    }
}

/// A stream that fails after its first piece.
struct Breaks(bool);

impl http_body::Body for Breaks {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(Some(Err(std::io::Error::other("on purpose"))));
        }
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"piece")))))
    }
}

/// Some pieces.
struct Pieces(usize);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.0 == 0 {
            return Poll::Ready(None);
        }
        self.0 -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"piece")))))
    }
}

async fn upgraded() -> Response {
    let protocol =
        UpgradeHandler::new(|mut io| async move { while let Ok(Some(_)) = io.recv().await {} });
    Response::new(StatusCode::SWITCHING_PROTOCOLS)
        .with_header(HeaderName::from_static("upgrade"), HeaderValue::from_static("test"))
        .with_upgrade(protocol)
}

async fn late() -> &'static str {
    tokio::time::sleep(Duration::from_secs(60)).await;
    "late"
}

fn panics() -> &'static str {
    panic!("a handler on purpose")
}

fn app() -> App {
    App::new()
        .get("/hello", || "hello")
        .get("/birds/{bird}", |Path(bird): Path<String>| bird)
        .post("/echo", |body: Bytes| body)
        .get("/stream", || Body::new(Pieces(3)))
        .get("/breaks", || Body::new(Breaks(false)))
        .get("/panics", panics)
        .get("/late", late.timeout(Duration::from_millis(50)))
        .get("/never", late)
        .get("/upgraded", upgraded)
        .get("/block/{ms}", |Path(time): Path<u64>| {
            thread::sleep(Duration::from_millis(time));
            "blocked"
        })
        .subtree("/mounted", || "mounted")
}

fn requests_of_all_workers_and_protocols_are_counted_exactly(choice: DriverChoice) {
    let Some(bench) = Bench::start(choice, 3, Limits::default(), app) else { return };
    for way in WAYS {
        for _ in 0..6 {
            let mut client = bench.client(way);
            block_on(async {
                for number in 0..5 {
                    let bird = client.get(&format!("/birds/{number}"));
                    assert_eq!(client.answer(bird).await.status(), 200);
                    let echo = client.post("/echo", b"hello").await;
                    assert_eq!(client.answer(echo).await.text(), "hello");
                    let missing = client.get(&format!("/nowhere/{number}"));
                    assert_eq!(client.answer(missing).await.status(), 404);
                    let mounted = client.get("/mounted/x");
                    assert_eq!(client.answer(mounted).await.status(), 200);
                }
                client.close().await;
            });
        }
    }
    // A response may arrive before it is counted.
    let page =
        bench.wait_until("every request is counted", |page| page.requests(&[]) == 4 * 6 * 5 * 4);
    for (version, scheme) in [("1.1", "http"), ("1.1", "https"), ("2", "http"), ("2", "https")] {
        for (method, route, status) in [
            ("GET", "/birds/{bird}", "200"),
            ("POST", "/echo", "200"),
            ("GET", "", "404"),
            ("GET", "/mounted/*", "200"),
        ] {
            let labels = [
                ("http_request_method", method),
                ("http_route", route),
                ("http_response_status_code", status),
                ("network_protocol_version", version),
                ("url_scheme", scheme),
                ("error_type", ""),
            ];
            assert_eq!(page.requests(&labels), 30, "{labels:?}: {page:?}");
        }
    }
    assert_eq!(page.sum("http_server_active_requests", &[]), 0.0);
    assert_eq!(page.sum("peregrine_connections_accepted_total", &[]), 24.0);
}

fn every_connection_that_was_accepted_ends_once(choice: DriverChoice) {
    let limits = Limits { first_byte_timeout: Duration::from_secs(1), ..Limits::default() };
    let Some(bench) = Bench::start(choice, 2, limits, app) else { return };
    let mut waits = Vec::new();
    for way in WAYS {
        let mut client = bench.client(way);
        block_on(client.expect_alive());
        block_on(client.close());
        let mut client = bench.client(way);
        let id = client.get("/never");
        // The client disconnects while its handler runs.
        bench.wait_until("the handler runs", |page| {
            page.sum("http_server_active_requests", &[]) >= 1.0
        });
        client.cancel(id);
        client.break_off();
        bench.wait_until("no request is active", |page| {
            page.sum("http_server_active_requests", &[]) == 0.0
        });
        waits.push(bench.connect());
    }
    let garbage = b"\x01\x02\x03 not http \r\n\r\n";
    for mut wire in [bench.connect(), bench.connect_secure()] {
        wire.send(garbage);
        while matches!(block_on(wire.recv(PATIENCE)), Got::Bytes(_)) {}
    }
    let page = bench.wait_until("every connection has ended", |page| {
        let accepted = page.sum("peregrine_connections_accepted_total", &[]);
        let is_over = accepted == page.sum("peregrine_connections_closed_total", &[]);
        // The end of a connection is counted before its slot is released.
        accepted >= 14.0 && is_over && page.sum("peregrine_connections", &[]) == 0.0
    });
    assert_eq!(
        page.sum("peregrine_connections_closed_total", &[("reason", "first-byte-timeout")]),
        4.0
    );
    assert_eq!(page.sum("peregrine_connections_closed_total", &[("reason", "rejected")]), 1.0);
    assert_eq!(page.sum("peregrine_connections_closed_total", &[("reason", "tls-failed")]), 1.0);
    assert_eq!(page.sum("peregrine_connections_closed_total", &[("reason", "lost")]), 0.0);
    assert_eq!(page.requests(&[("http_route", "/never"), ("error_type", "cancelled")]), 4);
}

fn each_failure_of_a_request_is_counted_once(choice: DriverChoice) {
    let Some(bench) = Bench::start(choice, 2, Limits::default(), app) else { return };
    let requests = |page: &Page, route: &str, status: &str, error: &str| {
        let labels =
            [("http_route", route), ("http_response_status_code", status), ("error_type", error)];
        page.requests(&labels)
    };
    for (at, way) in (1..).zip(WAYS) {
        let ask = |path: &str| {
            let mut client = bench.client(way);
            block_on(async {
                let id = client.get(path);
                client.answer(id).await.status()
            })
        };
        assert_eq!(ask("/panics"), 500);
        assert_eq!(ask("/late"), 503);
        assert_eq!(ask("/stream"), 200);
        let mut client = bench.client(way);
        let broken = client.get("/breaks");
        block_on(client.head(broken));
        let mut other = bench.client(way);
        let upgrade = match way.name() {
            "h2" => other.get("/hello"),
            _ => other.ask("GET", "/upgraded", &[("connection", "upgrade"), ("upgrade", "test")]),
        };
        block_on(other.head(upgrade));
        let page =
            bench.wait_until("every request is counted", |page| page.requests(&[]) == at * 5);
        for (route, status, error) in [
            ("/panics", "500", "panic"),
            ("/late", "503", "timeout"),
            ("/stream", "200", ""),
            ("/breaks", "200", "aborted"),
        ] {
            assert_eq!(requests(&page, route, status, error), at, "{route}: {page:?}");
        }
        other.break_off();
    }
    let page = bench.page();
    assert_eq!(requests(&page, "/upgraded", "101", ""), 2);
    assert_eq!(page.sum("peregrine_limits_hit_total", &[("limit", "route_timeout")]), 4.0);
}

fn requests_shed_by_overload_are_counted_apart_from_failures(choice: DriverChoice) {
    let overload = OverloadLimits { requests_max: Some(1), ..OverloadLimits::default() };
    let limits = Limits { overload, ..Limits::default() };
    let Some(bench) = Bench::start(choice, 1, limits, app) else { return };
    // The limit of requests in progress is reached.
    let mut waits = bench.client(Way::HTTP1);
    waits.get("/never");
    bench.wait_until("the request has begun", |page| {
        page.sum("peregrine_worker_requests", &[]) == 1.0
    });
    for way in WAYS {
        let mut client = bench.client(way);
        let status = block_on(async {
            let id = client.get("/hello");
            client.answer(id).await.status()
        });
        assert_eq!(status, 503);
    }
    let shed = [("error_type", "overloaded"), ("http_response_status_code", "503")];
    let page = bench
        .wait_until("every request is counted", |page| page.requests(&shed) == WAYS.len() as u64);
    assert_eq!(page.requests(&[("error_type", "503")]), 0);
    assert_eq!(page.sum("peregrine_requests_shed_total", &[]), WAYS.len() as f64);
    waits.break_off();
}

/// A body that an extractor has no memory for counts as refused, like a request that was not
/// started for that reason, whatever the format of problems.
fn a_body_that_finds_no_memory_is_no_failure_of_the_application(choice: DriverChoice) {
    fn routes() -> App {
        let full = || Err::<(), _>(Problem::from(peregrine::web::BodyError::Overloaded));
        let fails = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "asleep", "come back later");
        App::new().get("/full", full).get("/fails", fails)
    }
    let with_form = || routes().on_problem(|problem: Problem, _: &RequestHead| problem.status);
    for make in [routes as fn() -> App, with_form] {
        let Some(bench) = Bench::start(choice, 1, Limits::default(), make) else { return };
        for (at, way) in (1..).zip(WAYS) {
            for path in ["/full", "/fails"] {
                let mut client = bench.client(way);
                block_on(async {
                    let id = client.get(path);
                    assert_eq!(client.answer(id).await.status(), 503);
                });
            }
            for (route, error) in [("/full", "overloaded"), ("/fails", "503")] {
                let labels = [("http_route", route), ("error_type", error)];
                bench.wait_until("the request is counted", |page| page.requests(&labels) == at);
            }
        }
    }
}

/// Both at the same time: clients exceed the limits, and many requests for pages of the admin
/// listener.
fn an_overloaded_server_responds_on_a_flooded_admin_listener(choice: DriverChoice) {
    let overload = OverloadLimits { requests_max: Some(2), ..OverloadLimits::default() };
    let limits = Limits { overload, ..Limits::default() };
    let make = || {
        App::new().get("/work", async || {
            tokio::time::sleep(Duration::from_millis(2)).await;
            "done"
        })
    };
    let Some(bench) = Bench::start(choice, 1, limits, make) else { return };
    let (public, admin) =
        (bench.running.http_address().expect("the server has an HTTP listener"), bench.admin());
    let (is_over, done, refused, pages) =
        (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let both = |at_least: u64| {
        let (had, begin) = ([&done, &refused].map(|count| count.load(SeqCst)), Instant::now());
        let grew = |(count, had): (&AtomicU64, u64)| count.load(SeqCst) >= had + at_least;
        while ![&done, &refused].into_iter().zip(had).all(grew) {
            assert!(begin.elapsed() < PATIENCE, "no progress: {done:?} done, {refused:?} refused");
            thread::sleep(Duration::from_millis(2));
        }
    };
    thread::scope(|scope| {
        let _ends = OnDrop(|| is_over.store(true, SeqCst));
        for _ in 0..8 {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    match ask(public, "/work", "") {
                        (200, body) if body == "done" => done.fetch_add(1, SeqCst),
                        (503, _) => refused.fetch_add(1, SeqCst),
                        other => panic!("{other:?}"),
                    };
                }
            });
        }
        both(50);
        for _ in 0..16 {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    assert_eq!(ask(admin, "/metrics", "").0, 200);
                    pages.fetch_add(1, SeqCst);
                }
            });
        }
        for _ in 0..10 {
            let before = pages.load(SeqCst);
            for path in ["/livez", "/readyz", "/connections"] {
                assert_eq!(ask(admin, path, "").0, 200, "{path}");
            }
            both(10);
            let begin = Instant::now();
            while pages.load(SeqCst) < before + 16 {
                assert!(begin.elapsed() < PATIENCE, "the flood makes no progress");
                thread::sleep(Duration::from_millis(2));
            }
        }
    });
}

/// Runs a function at the end, panic or not.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn no_peer_can_make_more_of_the_page_than_the_application_has(choice: DriverChoice) {
    let Some(bench) = Bench::start(choice, 1, Limits::default(), app) else { return };
    for way in [Way::HTTP1, Way::HTTP2] {
        let mut client = bench.client(way);
        block_on(async {
            for number in 0..500 {
                let id = client.ask(&format!("MADE-{number}"), &format!("/up/{number}"), &[]);
                assert_eq!(client.answer(id).await.status(), 404);
                let id = client.ask(&format!("MADE-{number}"), "/hello", &[]);
                assert_eq!(client.answer(id).await.status(), 405);
            }
        });
    }
    let page = bench.wait_until("every request is counted", |page| page.requests(&[]) == 2000);
    assert_eq!(page.requests(&[("http_request_method", "_OTHER"), ("http_route", "")]), 2000);
    assert_eq!(page.series(), 4, "two statuses over two protocols: {page:?}");
}

fn limits_and_broken_rules_have_names(choice: DriverChoice) {
    let limits = Limits {
        head_bytes_max: 1000,
        head_timeout: Duration::from_millis(200),
        connections_max: 4,
        ..Limits::default()
    };
    let Some(bench) = Bench::start(choice, 1, limits, app) else { return };
    for way in [Way::HTTP1, Way::HTTP2] {
        let mut client = bench.client(way);
        let long = "x".repeat(2000);
        let id = client.ask("GET", "/hello", &[("x-long", &long)]);
        assert_eq!(block_on(client.answer(id)).status(), 431);
    }
    let mut slow = bench.client(Way::HTTP1);
    let id = slow.half_a_head();
    assert_eq!(block_on(slow.answer(id)).status(), 408);
    drop(slow);
    bench.wait_until("the connections are closed", |page| {
        page.sum("peregrine_connections", &[]) == 0.0
    });
    let all: Vec<_> = (0..5).map(|_| bench.connect()).collect();
    let hit =
        |limit| move |page: &Page| page.sum("peregrine_limits_hit_total", &[("limit", limit)]);
    let page = bench.wait_until("one connection waits", |page| hit("connections_max")(page) >= 1.0);
    drop(all);
    assert_eq!(hit("head_bytes_max")(&page), 2.0, "{page:?}");
    assert_eq!(hit("head_timeout")(&page), 1.0);
    assert_eq!(page.sum("peregrine_protocol_violations_total", &[("rule", "HeadTooLong")]), 2.0);
    assert_eq!(page.requests(&[("http_response_status_code", "431"), ("http_route", "")]), 2);
    assert_eq!(page.requests(&[("http_response_status_code", "408")]), 1);
}

fn handshakes_are_counted_by_what_they_negotiated(choice: DriverChoice) {
    let Some(bench) = Bench::start(choice, 2, Limits::default(), app) else { return };
    for _ in 0..3 {
        let mut client = bench.client(Way::HTTP1_TLS);
        block_on(client.expect_alive());
    }
    let (status, _) =
        ask(bench.running.https_address().expect("the server has an HTTPS listener"), "/hello", "");
    assert_eq!(status, 400);
    let page = bench.wait_until("the failure is counted", |page| {
        page.sum("peregrine_tls_failures_total", &[]) >= 1.0
    });
    let labels = [("version", "TLSv1.3"), ("cipher", "TLS13_AES_128_GCM_SHA256")];
    assert_eq!(page.sum("peregrine_tls_handshakes_total", &labels), 3.0, "{page:?}");
    assert_eq!(page.sum("peregrine_tls_handshake_duration_seconds_count", &[]), 3.0);
    let labels = [("phase", "handshake"), ("reason", "plain_http"), ("alert", "")];
    assert_eq!(page.sum("peregrine_tls_failures_total", &labels), 1.0, "{page:?}");
}

fn a_page_that_is_read_under_load_never_contradicts_itself(choice: DriverChoice) {
    static STOP: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];
    let stop = &STOP[usize::from(choice == DriverChoice::Uring)];
    let Some(bench) = Bench::start(choice, 2, Limits::default(), app) else { return };
    thread::scope(|scope| {
        for way in WAYS {
            let mut client = bench.client(way);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let id = client.get("/birds/eagle");
                    assert_eq!(block_on(client.answer(id)).status(), 200);
                }
            });
        }
        let mut before = BTreeMap::new();
        for _ in 0..60 {
            let (_, text) = ask(bench.admin(), "/metrics", "");
            let page = Page::read(&text);
            for (sample, value) in &page.0 {
                if let Some((name, labels)) = sample.split_once("_count") {
                    let end = if labels.is_empty() { "{" } else { &labels[..labels.len() - 1] };
                    let separator = if labels.is_empty() { "" } else { "," };
                    let most = format!("{name}_bucket{end}{separator}le=\"+Inf\"}}");
                    assert_eq!(page.0.get(&most), Some(value), "{sample}: {text}");
                }
                let only_grows = ["_total", "_count", "_bucket", "_sum"]
                    .iter()
                    .any(|end| sample.split('{').next().is_some_and(|name| name.ends_with(end)));
                if only_grows {
                    let earlier = before.insert(sample.clone(), *value).unwrap_or(0.0);
                    assert!(earlier <= *value, "{sample} fell from {earlier}: {text}");
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(bench.page().requests(&[]) > 0);
}

fn the_admin_listener_responds_while_all_workers_are_blocked(choice: DriverChoice) {
    let Some(bench) = Bench::start(choice, 2, Limits::default(), app) else { return };
    assert_eq!(ask(bench.admin(), "/livez", "").0, 200);
    // With this many connections, each of two workers has at least one.
    let mut clients: Vec<_> = (0..12).map(|_| bench.client(Way::HTTP1)).collect();
    let ids: Vec<_> = clients.iter_mut().map(|client| client.get("/block/900")).collect();
    let begin = Instant::now();
    let (mut body, mut status) = (String::new(), 200);
    while status == 200 {
        assert!(begin.elapsed() < PATIENCE, "the liveness probe still succeeds: {body}");
        thread::sleep(Duration::from_millis(20));
        (status, body) = ask(bench.admin(), "/livez", "");
    }
    assert!(status == 503 && body.contains("/block/{ms} has blocked its thread for "), "{body}");
    for path in ["/metrics", "/connections", "/routes"] {
        assert_eq!(ask(bench.admin(), path, "").0, 200);
    }
    bench.cut();
    drop((clients, ids));
}

fn a_full_server_responds_on_the_admin_listener(choice: DriverChoice) {
    let limits = Limits { connections_max: 8, ..Limits::default() };
    let Some(bench) = Bench::start(choice, 1, limits, app) else { return };
    let flood: Vec<_> = (0..200).map(|_| bench.connect()).collect();
    bench.wait_until("the server is full", |page| page.sum("peregrine_connections", &[]) >= 7.0);
    for (path, status) in [("/readyz", 200), ("/livez", 200), ("/startupz", 200), ("/nowhere", 404)]
    {
        assert_eq!(ask(bench.admin(), path, "").0, status, "{path}");
    }
    drop(flood);
}

/// More silent clients than the admin listener allows, and a server that is full: a probe is
/// answered before the first silent client times out.
fn clients_of_the_admin_listener_keep_no_probe_out(choice: DriverChoice) {
    let limits = Limits { connections_max: 8, ..Limits::default() };
    let Some(bench) = Bench::start(choice, 1, limits, app) else { return };
    let _flood: Vec<_> = (0..50).map(|_| bench.connect()).collect();
    let mut idle = Vec::new();
    for _ in 0..300 {
        let mut socket = TcpStream::connect(bench.admin()).expect("the server accepts connections");
        socket.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").expect("connected");
        idle.push(socket);
    }
    // These have got a response, and keep their connections.
    let mut first = [0; 16];
    idle[0].read_exact(&mut first).expect("a response");
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(ask(bench.admin(), path, "").0, 200, "{path}");
    }
    // The first connections were not closed.
    idle[0].set_nonblocking(true).expect("a socket");
    let mut rest = [0; 4096];
    while let Ok(count) = idle[0].read(&mut rest) {
        assert!(count > 0, "an idle connection was closed too early");
    }
}

fn low_memory_makes_a_server_unready_only_if_the_probe_asks_for_overload(choice: DriverChoice) {
    use peregrine::web::memory::MemoryReservation;
    let overload =
        OverloadLimits { memory_max: MemoryMax::Bytes(4 << 20), ..OverloadLimits::default() };
    let make = || {
        App::new().merge(peregrine::admin::app()).get("/hello", || "hello").get(
            "/keep",
            (|| async {
                let _charge = MemoryReservation::new(3_900_000);
                std::future::pending::<()>().await;
            })
            .never_shed(),
        )
    };
    let limits = Limits { overload, ..Limits::default() };
    let Some(bench) = Bench::start(choice, 1, limits, make) else { return };
    let public = bench.running.http_address().expect("the server has an HTTP listener");
    assert_eq!(ask(bench.admin(), "/readyz?overload=unready", "").0, 200);
    let mut keeper = TcpStream::connect(public).expect("the server accepts connections");
    keeper.write_all(b"GET /keep HTTP/1.1\r\nHost: a\r\n\r\n").expect("connected");
    bench.wait_until("memory is short", |page| {
        page.sum("peregrine_worker_memory_bytes", &[]) > 3.9e6
    });
    // The same on the admin listener, and on the application's own listener.
    for place in [bench.admin(), public] {
        assert_eq!(ask(place, "/livez", "").0, 200);
        assert_eq!(ask(place, "/readyz", "").0, 200);
        let overloaded = (503, "overloaded\n".to_owned());
        assert_eq!(ask(place, "/readyz?x=y&overload=unready", ""), overloaded);
    }
    assert_eq!(ask(public, "/hello", "").0, 503);
    drop(keeper);
    bench.wait_until("memory is free", |page| page.sum("peregrine_worker_memory_bytes", &[]) < 1e6);
    assert_eq!(ask(bench.admin(), "/readyz?overload=unready", "").0, 200);
    assert_eq!(ask(public, "/hello", ""), (200, "hello".to_owned()));
}

fn readiness_fails_first_and_the_listener_closes_last(choice: DriverChoice) {
    let limits = Limits {
        lame_duck_period: Duration::from_millis(1500),
        drain_idle_timeout: Duration::ZERO,
        ..Limits::default()
    };
    let Some(bench) = Bench::start(choice, 2, limits, app) else { return };
    let (admin, public) =
        (bench.admin(), bench.running.http_address().expect("the server has an HTTP listener"));
    assert_eq!(ask(admin, "/readyz", ""), (200, "ready\n".to_owned()));
    let mut busy = bench.client(Way::HTTP1);
    let id = busy.get("/block/0");
    block_on(busy.answer(id));
    bench.shut_down();
    assert_eq!(ask(admin, "/readyz", ""), (503, "shutting down\n".to_owned()));
    // A client that was sent here before the load balancer noticed still gets a response.
    assert_eq!(ask(public, "/hello", ""), (200, "hello".to_owned()));
    assert_eq!((ask(admin, "/livez", "").0, ask(admin, "/startupz", "").0), (200, 200));
    let begin = Instant::now();
    while TcpStream::connect(public).is_ok() {
        assert!(begin.elapsed() < PATIENCE, "the server keeps accepting");
        // As long as clients are accepted, the admin listener responds.
        assert_eq!(ask(admin, "/readyz", "").0, 503);
        thread::sleep(Duration::from_millis(10));
    }
    let stopped = bench.running.wait().expect("the server shuts down cleanly");
    assert!(stopped.requests() >= 2);
    assert!(TcpStream::connect(admin).is_err(), "the admin listener is closed");
}

fn a_server_that_starts_is_not_ready(choice: DriverChoice) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let admin = listener.local_addr().expect("the socket is bound");
    let (begun, release) =
        (std::sync::Arc::new(AtomicBool::new(false)), std::sync::mpsc::channel::<()>());
    let (go, gate) = release;
    let gate = std::sync::Arc::new(std::sync::Mutex::new(gate));
    let has_begun = std::sync::Arc::clone(&begun);
    let server = Server::bind("127.0.0.1:0").driver(choice).workers(NonZeroUsize::MIN).quiet();
    let start = thread::spawn(move || {
        server.admin(Admin::from_socket(listener)).start(move || {
            has_begun.store(true, Ordering::SeqCst);
            let _ = gate.lock().expect("the mutex is not poisoned").recv();
            app()
        })
    });
    let begin = Instant::now();
    while !begun.load(Ordering::SeqCst) {
        if start.is_finished() {
            let error = start
                .join()
                .expect("the task does not panic")
                .expect_err("the server does not start");
            return eprintln!("skipped: {error}");
        }
        assert!(begin.elapsed() < PATIENCE, "the server does not begin to start");
        thread::sleep(Duration::from_millis(5));
    }
    for (path, status) in [("/startupz", 503), ("/readyz", 503), ("/livez", 200), ("/metrics", 200)]
    {
        assert_eq!(ask(admin, path, "").0, status, "{path}");
    }
    go.send(()).expect("the receiver is alive");
    let running = start.join().expect("the task does not panic").expect("the server starts");
    for path in ["/startupz", "/readyz"] {
        assert_eq!(ask(admin, path, "").0, 200, "{path}");
    }
    running.graceful_shutdown().expect("the shutdown succeeds");
}

fn routes_and_connections_are_listed(choice: DriverChoice) {
    let Some(bench) = Bench::start(choice, 2, Limits::default(), app) else { return };
    let (_, routes) = ask(bench.admin(), "/routes", "");
    for route in [
        r#"{"method":"GET","pattern":"/birds/{bird}"}"#,
        r#"{"method":"POST","pattern":"/echo"}"#,
        r#"{"method":"*","pattern":"/mounted/*"}"#,
    ] {
        assert!(routes.contains(route), "{route}: {routes}");
    }
    let mut clients: Vec<_> = WAYS.iter().map(|way| bench.client(*way)).collect();
    for client in &mut clients {
        block_on(client.expect_alive());
    }
    let page = bench.wait_until("every worker is idle", |page| {
        page.sum("peregrine_connections", &[("state", "idle")]) == 4.0
    });
    for protocol in ["http/1", "http/2"] {
        let labels = [("protocol", protocol), ("state", "idle")];
        assert_eq!(page.sum("peregrine_connections", &labels), 2.0, "{page:?}");
    }
    assert_eq!(page.sum("peregrine_worker_connections", &[]), 4.0);
    let (_, connections) = ask(bench.admin(), "/connections", "");
    assert!(connections.starts_with(r#"{"open":4,"workers":[{"worker":0,"#), "{connections}");
    let id = clients[0].get("/never");
    bench.wait_until("one worker is busy", |page| {
        page.sum("peregrine_connections", &[("protocol", "http/1"), ("state", "active")]) == 1.0
    });
    clients[0].cancel(id);
}

fn the_pages_are_nowhere_else(choice: DriverChoice) {
    let Some(bench) = Bench::start(choice, 1, Limits::default(), app) else { return };
    let public = bench.running.http_address().expect("the server has an HTTP listener");
    for path in ["/metrics", "/livez", "/readyz", "/startupz", "/routes", "/connections"] {
        assert_eq!(ask(public, path, "").0, 404, "{path}");
        assert_ne!(ask(bench.admin(), path, "").0, 404, "{path}");
    }
    assert_eq!(ask(bench.admin(), "/hello", "").0, 404);
}

fn sizes_are_those_of_the_content(choice: DriverChoice) {
    let Some(bench) = Bench::start(choice, 1, Limits::default(), app) else { return };
    let content = vec![b'x'; 100_000];
    for way in WAYS {
        let mut client = bench.client(way);
        block_on(async {
            let id = client.post("/echo", &content).await;
            assert_eq!(client.answer(id).await.body.len(), content.len());
            let id = client.get("/stream");
            assert_eq!(client.answer(id).await.text(), "piecepiecepiece");
            let id = client.ask("HEAD", "/hello", &[]);
            assert_eq!(client.answer(id).await.status(), 200);
        });
    }
    let page = bench.wait_until("every request is counted", |page| page.requests(&[]) == 12);
    let sums = |name: &str, route: &str, method: &str| {
        let labels = [("http_route", route), ("http_request_method", method)];
        page.sum(&format!("http_server_{name}_body_size_bytes_sum"), &labels)
    };
    assert_eq!(sums("request", "/echo", "POST"), 400_000.0, "{page:?}");
    assert_eq!(sums("response", "/echo", "POST"), 400_000.0);
    assert_eq!(sums("response", "/stream", "GET"), 60.0);
    assert_eq!(sums("response", "/hello", "HEAD"), 0.0);
    assert!(page.sum("peregrine_received_bytes_total", &[]) > 400_000.0);
    assert!(page.sum("peregrine_sent_bytes_total", &[]) > 400_000.0);
}

fn the_drivers_show_what_they_do(choice: DriverChoice) {
    let Some(bench) = Bench::start(choice, 2, Limits::default(), app) else { return };
    for _ in 0..20 {
        let mut client = bench.client(Way::HTTP1);
        block_on(client.expect_alive());
    }
    for name in [
        "peregrine_worker_iteration_duration_seconds_count",
        "peregrine_driver_syscalls_total",
        "peregrine_worker_cpu_seconds_total",
        "peregrine_tokio_busy_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
    ] {
        bench.wait_until(name, |page| page.sum(name, &[]) > 0.0);
    }
    let page = bench.page();
    let workers = page.0.keys().filter(|name| name.starts_with("peregrine_driver_syscalls_total{"));
    assert_eq!(workers.count(), 2);
}

#[test]
fn prometheus_gets_the_format_that_it_asks_for() {
    let bench =
        Bench::start(DriverChoice::Tokio, 1, Limits::default(), app).expect("the server starts");
    let accept =
        "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5\r\n";
    let (_, page) = ask(bench.admin(), "/metrics", accept);
    assert!(page.ends_with("\n# EOF\n"), "{page}");
    assert!(page.contains("\n# UNIT http_server_response_body_size_bytes bytes\n"), "{page}");
    let (_, page) = ask(bench.admin(), "/metrics", "");
    assert!(!page.contains("# EOF") && !page.contains("# UNIT"), "{page}");
    assert!(page.contains("\n# TYPE peregrine_connections_accepted_total counter\n"), "{page}");
}

#[test]
fn an_admin_listener_may_be_a_unix_socket_whose_file_goes_with_it() {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let path = folder.path().join("admin.sock");
    let server = Server::bind("127.0.0.1:0").workers(NonZeroUsize::MIN).quiet();
    // Only its owner may connect, whatever the umask.
    let admin = Admin::bind(format!("unix:{}", path.display())).unix_mode(0o600);
    let running = server.admin(admin).start(app).expect("the server starts");
    let mode = std::fs::metadata(&path).expect("the file exists").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let socket =
        std::os::unix::net::UnixStream::connect(&path).expect("the server accepts connections");
    assert_eq!(ask_on(socket, "/readyz", "").0, 200);
    assert!(matches!(running.admin_address(), Some(ListenAddr::Unix(at)) if *at == path));
    running.graceful_shutdown().expect("the shutdown succeeds");
    assert!(!path.exists());
}

#[test]
fn whose_the_file_of_an_admin_listener_is_needs_a_file() {
    for admin in
        [Admin::bind("127.0.0.1:0").unix_mode(0o600), Admin::without_listener().unix_group("x")]
    {
        let error = Server::bind("127.0.0.1:0").quiet().admin(admin).start(app);
        let text = error.map(|_| ()).expect_err("the file does not exist").to_string();
        assert!(text.contains("is not a Unix domain socket"), "{text}");
    }
}

#[test]
fn an_application_may_have_the_pages_among_its_own() {
    let make = || App::new().scope("/internal", |scope| scope.merge(peregrine::admin::app()));
    let server = Server::bind("127.0.0.1:0").workers(NonZeroUsize::MIN).quiet();
    let running = server.admin(Admin::without_listener()).start(make).expect("the server starts");
    assert!(running.admin_address().is_none());
    let address = running.http_address().expect("the server has an HTTP listener");
    assert_eq!(ask(address, "/internal/readyz", ""), (200, "ready\n".to_owned()));
    assert_eq!(ask(address, "/readyz", "").0, 404);
    let (_, page) = ask(address, "/internal/metrics", "");
    let labels = [("http_route", "/internal/readyz"), ("http_response_status_code", "200")];
    assert_eq!(Page::read(&page).requests(&labels), 1, "{page}");
}

#[test]
fn an_address_of_the_admin_listener_that_is_taken_is_an_error_with_its_name() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = taken.local_addr().expect("the socket is bound").to_string();
    let server = Server::bind("127.0.0.1:0").workers(NonZeroUsize::MIN).quiet();
    let error = server.admin(&*address).start(app).expect_err("the address is in use");
    assert!(error.to_string().contains(&address), "{error}");
}

#[test]
fn what_the_application_counts_is_on_the_same_page() {
    fn counting() -> App {
        App::new().get("/count/{bird}", |Path(bird): Path<String>| {
            metrics::counter!("birds_seen_total", "bird" => bird).increment(1);
            metrics::gauge!("nest.temperature").set(20.5);
            metrics::histogram!("flight_seconds").record(0.2);
            // Metric names with this prefix belong to the server.
            metrics::counter!("peregrine_connections").increment(7);
            "counted"
        })
    }
    let bench = Bench::start(DriverChoice::Tokio, 2, Limits::default(), counting)
        .expect("the server starts");
    metrics::describe_counter!("birds_seen_total", "Birds that came by.");
    for bird in ["kestrel", "merlin", "kestrel"] {
        let mut client = bench.client(Way::HTTP1);
        let id = client.get(&format!("/count/{bird}"));
        assert_eq!(block_on(client.answer(id)).text(), "counted");
    }
    let (_, text) = ask(bench.admin(), "/metrics", "");
    let page = Page::read(&text);
    assert_eq!(page.sum("birds_seen_total", &[("bird", "kestrel")]), 2.0, "{text}");
    assert_eq!(page.sum("birds_seen_total", &[("bird", "merlin")]), 1.0);
    assert_eq!(page.sum("nest_temperature", &[]), 20.5);
    assert_eq!(page.sum("flight_seconds_count", &[]), 3.0);
    assert_eq!(page.sum("app_peregrine_connections_total", &[]), 21.0);
    assert!(text.contains("# HELP birds_seen_total Birds that came by.\n"), "{text}");
}
