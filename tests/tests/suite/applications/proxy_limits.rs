//! Limits on the proxy's resources that clients can occupy by not reading their responses.

use peregrine::bytes::Bytes;
use peregrine::prelude::*;
use peregrine::proxy::{ReverseProxy, Upstreams};
use peregrine::tower::{Mount, into_tower};
use peregrine::web::memory;
use peregrine::web::testing::block_on;
use peregrine::{DriverChoice, Limits, ListenAddr, MemoryMax, OverloadLimits, RunningServer};
use peregrine_proto::h2::frame::setting_id;
use peregrine_tests::client::{connect, field, started, wait_for};
use peregrine_tests::on_both_drivers;
use peregrine_tests::server::streams::Streams;
use peregrine_tests::server::{SocketWire, held};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::num::NonZeroUsize;
use std::time::Duration;

on_both_drivers! {
    clients_that_read_nothing_occupy_a_bounded_number_of_connections_and_counted_memory,
    a_single_unread_response_is_not_displaced,
    a_request_waits_for_a_connection_and_then_is_a_503,
    a_client_with_many_requests_does_not_keep_others_out_of_the_queue,
}

/// The memory that is reserved for one request in progress.
const CHARGE: usize = 64 * 1024;
const CONNECTIONS: usize = 8;

fn serve(
    choice: DriverChoice,
    app: impl Fn() -> App + Clone + Send + 'static,
) -> Option<RunningServer> {
    let server = Server::bind("127.0.0.1:0").driver(choice).workers(NonZeroUsize::MIN).quiet();
    started(server.start(app))
}

fn upstream(choice: DriverChoice) -> Option<(RunningServer, Upstreams)> {
    let app = || {
        App::new()
            .get("/large", || vec![b'x'; 1 << 20])
            .get("/small", || "small")
            .get("/quiet", std::future::pending::<&str>)
    };
    let upstream = serve(choice, app)?;
    let address = upstream.http_address().expect("it speaks HTTP");
    let upstreams = Upstreams::new([format!("http://{address}")]).expect("a URL");
    Some((upstream, upstreams))
}

/// A proxy on one worker, beside a route that says how much memory that worker accounts for.
fn front(
    choice: DriverChoice,
    upstreams: &Upstreams,
    (queue_max, timeout): (usize, Duration),
) -> Option<RunningServer> {
    let upstreams = upstreams.clone();
    serve(choice, move || {
        let proxy = ReverseProxy::new(upstreams.clone())
            .connections_max(CONNECTIONS)
            .queue(queue_max, timeout);
        App::new().get("/held", || memory::reserved().to_string()).subtree("/", proxy)
    })
}

/// Sends this many requests and reads none of the responses.
fn stalled(front: &RunningServer, path: &str, count: usize) -> Streams<SocketWire> {
    let address = front.http_address().expect("it speaks HTTP");
    let wire = SocketWire::connect(&ListenAddr::Tcp(address));
    let mut client = Streams::with_settings(wire, &[(setting_id::INITIAL_WINDOW_SIZE, 0)]);
    for _ in 0..count {
        client.get(path);
    }
    client
}

fn get(front: &RunningServer, path: &str) -> String {
    let mut peer = connect(front);
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    peer.write_all(request.as_bytes()).expect("connected");
    let mut all = String::new();
    peer.read_to_string(&mut all).expect("an answer");
    all
}

fn held(front: &RunningServer) -> usize {
    let answer = get(front, "/held");
    let body = answer.rsplit("\r\n\r\n").next();
    body.and_then(|body| body.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
}

fn clients_that_read_nothing_occupy_a_bounded_number_of_connections_and_counted_memory(
    choice: DriverChoice,
) {
    for is_http2 in [false, true] {
        let Some((upstream, upstreams)) = upstream(choice) else { return };
        let upstreams = if is_http2 { upstreams.http2_prior_knowledge() } else { upstreams };
        let Some(front) = front(choice, &upstreams, (16, Duration::from_secs(60))) else { return };
        let clients: Vec<_> = (0..3).map(|_| stalled(&front, "/large", 20)).collect();
        wait_for(|| upstreams.statuses()[0].in_flight == CONNECTIONS);
        wait_for(|| held(&front) >= CONNECTIONS * CHARGE);
        // Another client's request displaces a response that is not read.
        let served = get(&front, "/small");
        assert!(served.ends_with("\r\n\r\nsmall"), "HTTP/2 upstream: {is_http2}: {served}");
        assert!(upstreams.statuses()[0].in_flight <= CONNECTIONS);
        assert_eq!(upstreams.statuses()[0].failures, 0, "it is not the upstream's fault");
        drop(clients);
        wait_for(|| upstreams.statuses()[0].in_flight == 0 && held(&front) < CONNECTIONS * CHARGE);
        assert!(get(&front, "/small").ends_with("\r\n\r\nsmall"));
        drop(upstream);
    }
}

fn a_request_waits_for_a_connection_and_then_is_a_503(choice: DriverChoice) {
    let Some((_upstream, upstreams)) = upstream(choice) else { return };
    let Some(front) = front(choice, &upstreams, (2, Duration::from_secs(3600))) else { return };
    // Nothing of these responses is unread, so none of them is displaced.
    let stalled = stalled(&front, "/quiet", CONNECTIONS);
    wait_for(|| upstreams.statuses()[0].in_flight == CONNECTIONS);
    let mut waiting = [connect(&front), connect(&front)];
    for peer in &mut waiting {
        let request = b"GET /small HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        peer.write_all(request).expect("connected");
    }
    // Once the queue is full, a request is refused at once.
    wait_for(|| {
        let mut peer = connect(&front);
        let request = b"GET /small HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        peer.write_all(request).expect("connected");
        peer.set_read_timeout(Some(Duration::from_millis(200))).expect("a socket");
        let mut all = String::new();
        let is_refused = peer.read_to_string(&mut all).is_ok() && all.starts_with("HTTP/1.1 503");
        if is_refused {
            assert_eq!(field(&all, "retry-after"), Some("1"));
            assert!(all.contains("upstream-busy"), "{all}");
        }
        is_refused
    });
    drop(stalled);
    for mut peer in waiting {
        let mut all = String::new();
        peer.read_to_string(&mut all).expect("an answer");
        assert!(all.ends_with("\r\n\r\nsmall"), "{all}");
    }
}

fn a_single_unread_response_is_not_displaced(choice: DriverChoice) {
    let Some((_upstream, upstreams)) = upstream(choice) else { return };
    let Some(front) = front(choice, &upstreams, (2, Duration::from_secs(2))) else { return };
    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| stalled(&front, "/large", 1)).collect();
    wait_for(|| upstreams.statuses()[0].in_flight == CONNECTIONS);
    let refused = get(&front, "/small");
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    let client = clients.last_mut().expect("there are several");
    client.open_window_by(0, 1 << 20);
    client.open_window_by(1, 1 << 20);
    let answer = block_on(client.answer(1));
    assert_eq!(answer.text().len(), 1 << 20, "the response is still whole");
}

/// A proxy with two places in its queue. Inside a mounted service, each request has its own copy of
/// the facts about its connection.
fn queue_of_two(
    choice: DriverChoice,
    upstreams: &Upstreams,
    is_mounted: bool,
) -> Option<RunningServer> {
    if !is_mounted {
        return front(choice, upstreams, (2, Duration::from_secs(3600)));
    }
    let upstreams = upstreams.clone();
    serve(choice, move || {
        let proxy = ReverseProxy::new(upstreams.clone()).connections_max(CONNECTIONS);
        let inner = App::new().subtree("/", proxy.queue(2, Duration::from_secs(3600)));
        App::new().mount("/", into_tower(inner).expect("the application is valid"))
    })
}

fn a_client_with_many_requests_does_not_keep_others_out_of_the_queue(choice: DriverChoice) {
    // The streams of a client's requests after those that have a connection.
    let stream = |number| u32::try_from(2 * (CONNECTIONS + number) + 1).expect("it is small");
    let (waiting, displaced, refused) = (stream(0), stream(1), stream(2));
    for is_mounted in [false, true] {
        let Some((_upstream, upstreams)) = upstream(choice) else { return };
        let Some(front) = queue_of_two(choice, &upstreams, is_mounted) else { return };
        let mut busy = stalled(&front, "/quiet", CONNECTIONS + 3);
        block_on(busy.expect_head(refused));
        let mut other = connect(&front);
        let request = b"GET /small HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        other.write_all(request).expect("connected");
        block_on(busy.expect_head(displaced));
        let statuses = [waiting, displaced, refused].map(|stream| busy.so_far(stream).status());
        assert_eq!(statuses, [0, 503, 503], "mounted: {is_mounted}");
        // The next connection goes to the client with the fewest requests.
        busy.reset(1);
        let mut all = String::new();
        other.read_to_string(&mut all).expect("an answer");
        assert!(all.ends_with("\r\n\r\nsmall"), "mounted: {is_mounted}: {all}");
    }
}

mod in_own_process {
    use super::clients_that_read_nothing_leave_descriptors_and_memory_to_others;
    use peregrine_tests::on_both_drivers;

    on_both_drivers! {
        @isolated clients_that_read_nothing_leave_descriptors_and_memory_to_others,
    }
}

/// More than two descriptors for each connection that the proxy opens by default.
const DESCRIPTORS_MAX: u64 = 1024;
const DEFAULT_CONNECTIONS: usize = 256;
const MEMORY_MAX: usize = 32 << 20;
/// Memory that is not counted: pools, and the structures of connections and tasks.
const UNCOUNTED_BYTES_MAX: usize = 32 << 20;

fn clients_that_read_nothing_leave_descriptors_and_memory_to_others(choice: DriverChoice) {
    static LARGE: [u8; 1 << 20] = [b'x'; 1 << 20];
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS_MAX), ..limit })
        .expect("a process may lower its own limit");
    held::begin();
    for is_http2 in [false, true] {
        let large = || {
            held::this_is_a_client();
            App::new().get("/large", || Bytes::from_static(&LARGE)).get("/small", || "small")
        };
        let Some(upstream) = serve(choice, large) else { return };
        let address = upstream.http_address().expect("it speaks HTTP");
        let upstreams = Upstreams::new([format!("http://{address}")]).expect("a URL");
        let upstreams = if is_http2 { upstreams.http2_prior_knowledge() } else { upstreams };
        let memory_max = MemoryMax::Bytes(MEMORY_MAX as u64);
        let overload = OverloadLimits { memory_max, ..OverloadLimits::default() };
        let server = Server::bind("127.0.0.1:0").driver(choice).workers(NonZeroUsize::MIN).quiet();
        let server = server.limits(Limits { overload, ..Limits::default() });
        let to = upstreams.clone();
        let front =
            started(server.start(move || App::new().subtree("/", ReverseProxy::new(to.clone()))));
        let Some(front) = front else { return };
        let before = held::bytes().expect("the allocator counts");
        let clients: Vec<_> = (0..20).map(|_| stalled(&front, "/large", 50)).collect();
        wait_for(|| upstreams.statuses()[0].in_flight == DEFAULT_CONNECTIONS);
        let mut most = 0;
        wait_for(|| {
            let is_served = get(&front, "/small").ends_with("\r\n\r\nsmall");
            most = most.max(held::bytes().expect("the allocator counts") - before);
            is_served
        });
        println!("{choice:?}, HTTP/2 upstream: {is_http2}: {most} bytes");
        let allowed = MEMORY_MAX + UNCOUNTED_BYTES_MAX;
        assert!(most <= allowed.cast_signed(), "HTTP/2 upstream: {is_http2}: {most} bytes");
        drop(clients);
    }
}
