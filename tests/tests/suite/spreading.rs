//! A few long connections are spread evenly over the workers, whichever worker accepts them: on
//! both kernel drivers, and on the simulated network.
#![cfg(target_os = "linux")]

use peregrine::prelude::*;
use peregrine::{
    DriverChoice, Error, IntoBuiltApp, Limits, ListenAddr, RunningServer, SocketOptions,
};
use peregrine_driver::{Driver, Options};
use peregrine_driver_sim::{Client, Faults, Network};
use peregrine_server::{Balancer, BoundListener, Instrumentation, Lifecycle};
use peregrine_tests::server::secure::{VERSIONS, client_config, server_tls};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::watch;

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
    few_long_connections_are_spread_evenly_from_queues_of_each_worker,
    few_long_connections_are_spread_evenly_from_one_queue,
    few_long_connections_are_spread_evenly_from_a_unix_socket,
    few_long_connections_are_spread_evenly_over_tls,
    nobody_waits_for_a_worker_that_is_blocked,
    a_worker_that_is_full_gets_nothing,
    nobody_waits_at_one_listener_for_a_worker_that_another_one_has_filled,
    a_busy_listener_leaves_places_to_the_other,
    a_shutdown_loses_nobody_who_was_passed,
    short_connections_in_a_flood_are_all_answered,
    the_page_tells_how_even_it_is,
}

/// Only a hang takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A thread that does not run for a while does not accept connections passed to it. On a busy
/// machine that happens, but not on every attempt.
const ATTEMPTS: usize = 5;

/// How a handler reports that it blocks, and how it is released.
type Block = (mpsc::Sender<usize>, mpsc::Receiver<()>);

/// State shared by a test and the workers.
#[derive(Clone, Default)]
struct Workers {
    /// The number of workers created.
    count: Arc<AtomicUsize>,
    /// For the next request to `/block`.
    block: Arc<Mutex<Option<Block>>>,
}

impl Workers {
    /// The application of one worker, which responds with the worker's number and the peer's
    /// process.
    fn make(&self) -> App {
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        let block = Arc::clone(&self.block);
        let who = move |request: Request| {
            let credentials = request.parts.connection().peer.peer_credentials();
            format!("{number} {:?}", credentials.map(|it| it.pid))
        };
        let moment = async || {
            tokio::time::sleep(Duration::from_millis(5)).await;
            "done"
        };
        App::new().get("/", who).get("/moment", moment).get("/block", move || {
            let blocked = block.lock().expect("the mutex is not poisoned").take();
            if let Some((begun, wait)) = blocked {
                begun.send(number).expect("the receiver is alive");
                let _ = wait.recv();
            }
            number.to_string()
        })
    }
}

fn server(choice: DriverChoice, workers: usize, shared_accept_queue: bool) -> Server {
    let sockets = SocketOptions { shared_accept_queue, ..SocketOptions::default() };
    let workers = NonZeroUsize::new(workers).expect("the value is not zero");
    Server::new().driver(choice).workers(workers).socket_options(sockets).quiet()
}

fn start(server: Server, workers: &Workers) -> Option<RunningServer> {
    let workers = workers.clone();
    match server.start(move || workers.make()) {
        Err(error @ Error::Driver { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        running => Some(running.expect("the server starts")),
    }
}

trait Wire: Read + Write {}
impl<W: Read + Write> Wire for W {}

/// A connection that stays open.
struct Long(Box<dyn Wire>);

impl Long {
    fn connect(place: &ListenAddr) -> Self {
        match place {
            ListenAddr::Tcp(address) => Self::tcp(*address),
            ListenAddr::Unix(path) => {
                let stream = UnixStream::connect(path).expect("the server accepts connections");
                stream.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
                Self(Box::new(stream))
            }
        }
    }

    fn tcp(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server accepts connections");
        stream.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
        Self(Box::new(stream))
    }

    fn send(&mut self, path: &str) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        self.0.write_all(request.as_bytes()).expect("the server reads");
    }

    /// The body of the next response.
    fn response(&mut self) -> String {
        let mut got = Vec::new();
        loop {
            let mut bytes = [0; 1024];
            let count = self.0.read(&mut bytes).expect("a response arrives in time");
            assert!(count > 0, "the connection ended: {}", String::from_utf8_lossy(&got));
            got.extend_from_slice(&bytes[..count]);
            if let Some(body) = body(&got) {
                return body;
            }
        }
    }

    /// The response of `/`.
    fn ask(&mut self) -> (usize, String) {
        self.send("/");
        parse_body(&self.response())
    }
}

/// The body of a response, if it is complete.
fn body(response: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(response);
    let (head, body) = text.split_once("\r\n\r\n")?;
    assert!(head.starts_with("HTTP/1.1 200 "), "{text}");
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
    (body.len() == length.parse::<usize>().expect("a number")).then(|| body.to_owned())
}

/// A worker's number, and the peer's process as it saw it.
fn parse_body(body: &str) -> (usize, String) {
    let (number, who) = body.split_once(' ').expect("the response has two words");
    (number.parse().expect("a number"), who.to_owned())
}

/// How many connections each worker has, sorted.
fn shares(numbers: impl IntoIterator<Item = usize>, workers: usize) -> Vec<usize> {
    let mut shares = vec![0; workers];
    numbers.into_iter().for_each(|number| shares[number] += 1);
    shares.sort_unstable();
    shares
}

/// Connects clients one after the other, and asserts that each worker gets its share, however
/// connections arrive.
fn spread_evenly(make: impl Fn(usize) -> Server) {
    for (workers, connections) in [(2, 8), (3, 9)] {
        let mut found = Vec::new();
        let is_even = (0..ATTEMPTS).any(|_| {
            let known = Workers::default();
            let Some(running) = start(make(workers), &known) else { return true };
            let place = running.addresses().next().expect("the server has a listener").clone();
            let mut all: Vec<Long> = Vec::new();
            for _ in 0..connections {
                all.push(Long::connect(&place));
                let (_, who) = all.last_mut().expect("the list is not empty").ask();
                let pid = std::process::id();
                let expected = matches!(place, ListenAddr::Unix(_)).then_some(Some(pid));
                assert_eq!(
                    who,
                    format!("{expected:?}"),
                    "a passed connection keeps its peer address"
                );
            }
            found.push(shares(all.iter_mut().map(|long| long.ask().0), workers));
            drop(all);
            let stopped = running.graceful_shutdown().expect("the shutdown succeeds");
            let accepted = stopped.workers.iter().flatten().map(|worker| worker.accepted);
            assert_eq!(
                accepted.sum::<u64>(),
                connections as u64,
                "each connection is counted once"
            );
            found.last().expect("the list is not empty") == &vec![connections / workers; workers]
        });
        assert!(is_even, "{connections} connections on {workers} workers: {found:?}");
    }
}

fn few_long_connections_are_spread_evenly_from_queues_of_each_worker(choice: DriverChoice) {
    spread_evenly(|workers| server(choice, workers, false).listen("127.0.0.1:0"));
}

fn few_long_connections_are_spread_evenly_from_one_queue(choice: DriverChoice) {
    spread_evenly(|workers| server(choice, workers, true).listen("127.0.0.1:0"));
}

fn few_long_connections_are_spread_evenly_from_a_unix_socket(choice: DriverChoice) {
    let folder = tempfile::tempdir().expect("a folder");
    spread_evenly(|workers| {
        server(choice, workers, false).listen_unix(folder.path().join("socket"))
    });
}

/// HTTP/2 clients (by ALPN), each with one connection that it keeps.
fn few_long_connections_are_spread_evenly_over_tls(choice: DriverChoice) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let mut found = Vec::new();
    let is_even = (0..ATTEMPTS).any(|_| {
        let known = Workers::default();
        // A listener without connections has no effect.
        let server = server(choice, 2, false).listen("127.0.0.1:0");
        let Some(running) = start(server.listen_tls("127.0.0.1:0", server_tls()), &known) else {
            return true;
        };
        let address = running.https_address().expect("TLS is spoken");
        let client = || {
            let client = reqwest::Client::builder()
                .use_preconfigured_tls((*client_config(VERSIONS[0])).clone())
                .resolve("localhost", address)
                .timeout(PATIENCE)
                .no_proxy();
            client.build().expect("the configuration is valid")
        };
        let numbers = runtime.block_on(async {
            let url = format!("https://localhost:{}", address.port());
            let (mut clients, mut numbers) = (Vec::new(), Vec::new());
            for _ in 0..8 {
                let client = client();
                let response = client.get(&url).send().await.expect("the server responds");
                numbers.push(parse_body(&response.text().await.expect("the body is complete")).0);
                clients.push(client);
            }
            numbers
        });
        found.push(shares(numbers, 2));
        running.handle().force_close();
        running.wait().expect("the server shuts down");
        found.last() == Some(&vec![4, 4])
    });
    assert!(is_even, "{found:?}");
}

/// Connections passed to a blocked worker are taken back, and no more are passed until it runs
/// again.
fn nobody_waits_for_a_worker_that_is_blocked(choice: DriverChoice) {
    let folder = tempfile::tempdir().expect("a folder");
    for server in [
        server(choice, 2, true).listen("127.0.0.1:0"),
        server(choice, 2, false).listen_unix(folder.path().join("socket")),
    ] {
        let known = Workers::default();
        let Some(running) = start(server, &known) else { return };
        let place = running.addresses().next().expect("the server has a listener").clone();
        let (begun, has_begun) = mpsc::channel();
        let (release, wait) = mpsc::channel();
        *known.block.lock().expect("the mutex is not poisoned") = Some((begun, wait));
        let mut blocking = Long::connect(&place);
        blocking.send("/block");
        let blocked = has_begun.recv().expect("the handler begins");
        let mut others: Vec<_> = (0..8).map(|_| Long::connect(&place)).collect();
        for other in &mut others {
            assert_ne!(other.ask().0, blocked, "a blocked worker does not respond");
        }
        release.send(()).expect("the receiver is alive");
        assert_eq!(blocking.response(), blocked.to_string());
        let deadline = Instant::now() + PATIENCE;
        // It has one of nine connections, and gets its share of new ones.
        while others.iter_mut().map(|other| usize::from(other.ask().0 == blocked)).sum::<usize>()
            < 3
        {
            assert!(Instant::now() < deadline, "the worker does not take part again");
            others.push(Long::connect(&place));
            thread::sleep(Duration::from_millis(1));
        }
        drop((blocking, others));
        running.graceful_shutdown().expect("the shutdown succeeds");
    }
}

fn a_worker_that_is_full_gets_nothing(choice: DriverChoice) {
    let folder = tempfile::tempdir().expect("a folder");
    for server in [
        server(choice, 2, true).listen("127.0.0.1:0"),
        server(choice, 2, false).listen_unix(folder.path().join("socket")),
    ] {
        let limits = Limits { connections_max: 2, ..Limits::default() };
        let Some(running) = start(server.limits(limits), &Workers::default()) else { return };
        let place = running.addresses().next().expect("the server has a listener").clone();
        let mut all: Vec<_> = (0..4).map(|_| Long::connect(&place)).collect();
        assert_eq!(shares(all.iter_mut().map(|long| long.ask().0), 2), [2, 2]);
        // Each of them gets the slot that becomes free, on whichever worker.
        for _ in 0..6 {
            let mut next = Long::connect(&place);
            next.send("/");
            drop(all.remove(0));
            next.response();
            all.push(next);
            assert_eq!(shares(all.iter_mut().map(|long| long.ask().0), 2), [2, 2]);
        }
        drop(all);
        running.graceful_shutdown().expect("the shutdown succeeds");
    }
}

/// Two clients connect at the same time to two listeners, and the kernel wakes the same worker for
/// both, which has one free slot.
fn nobody_waits_at_one_listener_for_a_worker_that_another_one_has_filled(choice: DriverChoice) {
    let limits = Limits { connections_max: 3, ..Limits::default() };
    let server = server(choice, 2, true).limits(limits).listen("127.0.0.1:0").listen("127.0.0.1:0");
    let Some(running) = start(server, &Workers::default()) else { return };
    let places: Vec<_> = running.addresses().cloned().collect();
    assert_eq!(places.len(), 2);
    let mut all = Vec::new();
    for round in 0..150 {
        while all.len() > 2 + round % 3 {
            drop(all.swap_remove(round % all.len()));
        }
        thread::sleep(Duration::from_millis(10));
        let mut new: Vec<_> = places.iter().map(Long::connect).collect();
        // At least two of six slots are free. A client that waits longer than its read timeout
        // fails.
        new.iter_mut().for_each(|long| drop(long.ask()));
        all.extend(new);
    }
    drop(all);
    running.graceful_shutdown().expect("the shutdown succeeds");
}

/// One listener always has a waiting connection for the next free slot.
fn a_busy_listener_leaves_places_to_the_other(choice: DriverChoice) {
    let limits = Limits { connections_max: 4, ..Limits::default() };
    let server = server(choice, 1, true).limits(limits).listen("127.0.0.1:0").listen("127.0.0.1:0");
    let Some(running) = start(server, &Workers::default()) else { return };
    let places: Vec<_> = running.addresses().cloned().collect();
    for (busy, other) in [(0, 1), (1, 0)] {
        let (served, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..32 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        ask_once(&places[busy]);
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let reached = |count: usize| {
                while served.load(Ordering::Relaxed) < count {
                    thread::sleep(Duration::from_millis(5));
                }
            };
            reached(64);
            let (done, is_done) = mpsc::channel();
            let other_place = &places[other];
            scope.spawn(move || {
                ask_once(other_place);
                done.send(())
            });
            // The client waits for one of four slots, and then for its response.
            let before = served.load(Ordering::Relaxed);
            let is_answered = loop {
                if is_done.recv_timeout(Duration::from_millis(5)).is_ok() {
                    break true;
                }
                if served.load(Ordering::Relaxed) > before + 1_000 {
                    break false;
                }
            };
            is_over.store(true, Ordering::Relaxed);
            assert!(is_answered, "a thousand were served at {busy}, and none at {other}");
        });
    }
    running.graceful_shutdown().expect("the shutdown succeeds");
}

/// The response to one request, after which the connection ends.
fn ask_once(place: &ListenAddr) {
    let mut long = Long::connect(place);
    let request = b"GET /moment HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    long.0.write_all(request).expect("the server reads");
    assert_eq!(long.response(), "done");
}

fn a_shutdown_loses_nobody_who_was_passed(choice: DriverChoice) {
    for (attempt, shared_accept_queue) in [(0, true), (1, false), (2, true), (3, false)] {
        let server = server(choice, 3, shared_accept_queue).listen("127.0.0.1:0");
        let Some(running) = start(server, &Workers::default()) else { return };
        let place = running.addresses().next().expect("the server has a listener").clone();
        let connect = |_| {
            let mut long = Long::connect(&place);
            long.send("/");
            long
        };
        let mut all: Vec<_> = (0..40).map(connect).collect();
        thread::sleep(Duration::from_micros(attempt * 500));
        running.handle().graceful_shutdown();
        for long in &mut all {
            long.response();
        }
        let stopped = running.wait().expect("the server shuts down");
        assert!(stopped.force_closed.is_empty(), "{stopped}");
        let workers = stopped.workers.iter().flatten();
        assert_eq!(workers.map(|worker| worker.accepted).sum::<u64>(), 40);
    }
}

fn short_connections_in_a_flood_are_all_answered(choice: DriverChoice) {
    for shared_accept_queue in [true, false] {
        let server = server(choice, 2, shared_accept_queue).listen("127.0.0.1:0");
        let Some(running) = start(server, &Workers::default()) else { return };
        let place = running.addresses().next().expect("the server has a listener").clone();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..250 {
                        Long::connect(&place).ask();
                    }
                });
            }
        });
        let stopped = running.graceful_shutdown().expect("the shutdown succeeds");
        let workers = stopped.workers.iter().flatten();
        assert_eq!(workers.map(|worker| worker.accepted).sum::<u64>(), 1000);
    }
}

/// The samples of a metrics page, with their labels.
fn page(admin: &ListenAddr) -> BTreeMap<String, f64> {
    let mut long = Long::connect(admin);
    long.send("/metrics");
    let text = long.response();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples
        .filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        })
        .collect()
}

fn the_page_tells_how_even_it_is(choice: DriverChoice) {
    let each = |page: &BTreeMap<String, f64>, name: &str| {
        [0, 1].map(|worker| page[&format!("{name}{{worker=\"{worker}\"}}")])
    };
    let mut found = Vec::new();
    let is_even = (0..ATTEMPTS).any(|_| {
        let server = server(choice, 2, true).listen("127.0.0.1:0").admin("127.0.0.1:0");
        let Some(running) = start(server, &Workers::default()) else { return true };
        let admin = running.admin_address().expect("an admin listener").clone();
        assert_eq!(
            page(&admin)["peregrine_worker_imbalance_ratio"],
            1.0,
            "there are no connections"
        );
        let place = running.addresses().next().expect("the server has a listener").clone();
        let mut all: Vec<_> = (0..8).map(|_| Long::connect(&place)).collect();
        all.iter_mut().for_each(|long| drop(long.ask()));
        let deadline = Instant::now() + PATIENCE;
        // A passed connection is counted when it is taken, or soon after.
        let passed = loop {
            let page = page(&admin);
            let passed: f64 = each(&page, "peregrine_worker_handoffs_sent_total").iter().sum();
            let taken: f64 = each(&page, "peregrine_worker_handoffs_received_total").iter().sum();
            if passed == taken {
                break passed;
            }
            assert!(passed <= taken && Instant::now() < deadline, "{passed} of {taken}");
        };
        let page = page(&admin);
        let open = each(&page, "peregrine_worker_connections");
        let ratio = page["peregrine_worker_imbalance_ratio"];
        assert_eq!(ratio, open[0].max(open[1]) / 4.0);
        assert!(passed <= 8.0, "{passed}");
        drop(all);
        running.graceful_shutdown().expect("the shutdown succeeds");
        found.push(open);
        open == [4.0, 4.0]
    });
    assert!(is_even, "{found:?}");
}

/// Two workers of one simulated network; clients reach only the first.
struct Two {
    network: Network,
    place: u64,
    orders: watch::Sender<Lifecycle>,
    /// The connection counts of workers that have ended.
    ended: Rc<std::cell::RefCell<Vec<u64>>>,
}

impl Two {
    fn start<D: Driver<Socket = peregrine_driver_sim::Port>>(
        driver: &D,
        network: &Network,
    ) -> Self {
        let (orders, _) = watch::channel(Lifecycle::Serving);
        let ended = Rc::<std::cell::RefCell<Vec<u64>>>::default();
        let mut place = None;
        for (number, member) in Balancer::for_workers(2, 1).into_iter().enumerate() {
            let port = network.bind();
            place.get_or_insert(port.id());
            let application = App::new().get("/", move || format!("{number} ")).into_built_app();
            let (driver, orders) = (driver.clone(), orders.subscribe());
            let observed = Rc::new(Instrumentation::default());
            let ended = Rc::clone(&ended);
            network.spawn(async move {
                let (listens, limits) = (vec![BoundListener::new(port)], Limits::default());
                let application = application.expect("the application is valid");
                let serving = peregrine_server::run_worker(
                    driver,
                    listens,
                    application,
                    limits,
                    observed,
                    orders,
                    Some(member),
                );
                let report = serving.await.expect("the server runs");
                ended.borrow_mut().push(report.stats.accepted);
            });
        }
        let place = place.expect("the server has two listeners");
        Self { network: network.clone(), place, orders, ended }
    }

    async fn end(&self) {
        self.orders.send_replace(Lifecycle::Draining);
        while self.ended.borrow().len() < 2 {
            self.network.sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn answer(client: &Client) -> std::io::Result<usize> {
    let mut got = Vec::new();
    loop {
        let bytes = client.recv().await?;
        if bytes.is_empty() {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        got.extend(bytes);
        if let Some(body) = body(&got) {
            return Ok(parse_body(&body).0);
        }
    }
}

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

fn simulate(seeds: std::ops::Range<u64>, case: impl AsyncFn(Two, u64)) {
    for seed in seeds {
        let faults = if seed == 0 { Faults::none() } else { Faults::harmless() };
        let network = Network::new(seed, faults);
        let run = network.run(&Options::default(), async |driver| {
            case(Two::start(&driver, &network), seed).await;
        });
        run.expect("a runtime starts");
        assert_eq!(network.connections(), 0, "seed {seed}: a connection is lost");
    }
}

#[test]
fn on_the_simulated_network_half_of_the_connections_change_their_worker() {
    simulate(0..200, async |two, seed| {
        let mut clients = Vec::new();
        for _ in 0..8 {
            let client = two.network.connect_to(two.place);
            client.send(REQUEST).await.expect("the server accepts connections");
            answer(&client).await.expect("the server responds");
            clients.push(client);
        }
        let mut numbers = Vec::new();
        for client in &clients {
            client.send(REQUEST).await.expect("the server accepts connections");
            numbers.push(answer(client).await.expect("the server responds"));
        }
        assert_eq!(shares(numbers, 2), [4, 4], "seed {seed}");
        drop(clients);
        two.end().await;
        assert_eq!(*two.ended.borrow(), [4, 4], "seed {seed}");
    });
}

#[test]
fn on_the_simulated_network_a_drain_at_any_moment_loses_nobody() {
    simulate(0..400, async |two, seed| {
        let network = &two.network;
        // Without injected accept errors: a process without descriptors at its end loses queued
        // connections in any case.
        network.set_faults(Faults { accept_error_per_mille: 0, ..Faults::harmless() });
        let clients: Vec<_> = (0..12).map(|_| network.connect_to(two.place)).collect();
        for client in &clients {
            client.send(REQUEST).await.expect("the connection is open");
        }
        for _ in 0..network.random_below(3) {
            network.sleep(Duration::from_millis(network.random_below(20))).await;
        }
        two.orders.send_replace(Lifecycle::Draining);
        for (number, client) in clients.iter().enumerate() {
            let answered = answer(client).await;
            assert!(answered.is_ok(), "seed {seed}: client {number}: {answered:?}");
        }
        drop(clients);
        two.end().await;
        assert_eq!(two.ended.borrow().iter().sum::<u64>(), 12, "seed {seed}");
    });
}
