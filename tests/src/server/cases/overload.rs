//! How an overloaded server behaves.

use super::limits;
use crate::server::app::Shared;
use crate::server::bench::{Bench, Outcome, Served, ServerOptions};
use crate::server::callers::header;
use crate::server::client::{Length, Way};
use crate::server::events;
use crate::server::held;
use crate::server::peer::Peer;
use crate::server::secure::server_tls;
use crate::server::streams::{Answer, Streams};
use crate::server::websockets::{Said, Socket};
use peregrine::bytes::Bytes;
use peregrine::prelude::*;
use peregrine::web::memory::MemoryReservation;
use peregrine::{Limits, MemoryMax, OverloadLimits, ProxyProtocol, TrustedProxies};
use peregrine_proto::h2::frame::setting_id;
use peregrine_proto::ws::frame::{Opcode, flag};
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(100);
const PROBLEM: Option<&str> = Some("application/problem+json");
const WAYS: [Way; 4] = [Way::HTTP1, Way::HTTP1_TLS, Way::HTTP2, Way::HTTP2_TLS];

/// Default limits with these overload limits.
fn with(overload: OverloadLimits) -> Limits {
    Limits { overload, ..limits() }
}

/// An application whose handlers wait, and a health check that is never refused.
fn app(shared: &Shared) -> impl Fn() -> App + Clone + Send + 'static {
    let shared = shared.clone();
    move || {
        let wait = async |State(shared): State<Shared>| {
            shared.wait().await;
            "waited"
        };
        App::new()
            .state(shared.clone())
            .get("/hello", || "hello")
            .get("/wait", wait)
            .get("/few", wait.requests_max(2))
            .post("/echo", async |body: peregrine::bytes::Bytes| body)
            .get("/well", (|| "well").never_shed())
            .get("/well/and/few", wait.never_shed().requests_max(1))
            .get("/keep/{bytes}", reserve.never_shed())
    }
}

/// Reserves this many bytes of the worker's memory limit until the case opens the gate.
async fn reserve(State(shared): State<Shared>, Path(bytes): Path<usize>) -> &'static str {
    let _charge = MemoryReservation::new(bytes);
    shared.wait().await;
    "kept"
}

/// Asserts that the request was refused for now.
fn assert_refused(response: &Answer, status: u16, kind: &str) {
    let actual = (response.status(), response.field("content-type"));
    assert_eq!(actual, (status, PROBLEM), "{}", response.text());
    assert!(matches!(response.field("retry-after"), Some("1" | "2")), "{response:?}");
    assert!(response.text().contains(kind), "{}", response.text());
}

/// The number of refused requests by reason.
fn shed(outcome: &Outcome) -> Vec<(&'static str, u64)> {
    outcome.snapshot.shed.iter().map(|(reason, count)| (*reason, *count)).collect()
}

async fn ended<S: Served>(server: S) -> Outcome {
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.cut, []);
    outcome
}

/// At the limit of requests in progress per worker, the next one gets a 503, except for health
/// checks. Its connection stays open.
pub async fn requests_beyond_the_limit_get_a_503<B: Bench>(bench: &B) {
    for way in WAYS {
        let shared = Shared::default();
        let limits = with(OverloadLimits { requests_max: Some(2), ..OverloadLimits::default() });
        let server = bench.start(limits, way.is_secure().then(server_tls), app(&shared));
        let mut waiting = Vec::new();
        for _ in 0..2 {
            let mut client = way.connect(&server).await;
            let id = client.get("/wait");
            waiting.push((client, id));
        }
        let (client, _) = &mut waiting[1];
        client.wait_until(bench, "both wait", || shared.started.get() == 2).await;
        let mut client = way.connect(&server).await;
        for _ in 0..3 {
            let id = client.get("/hello");
            assert_refused(&client.answer(id).await, 503, "overloaded");
            let id = client.get("/well");
            assert_eq!(client.answer(id).await.text(), "well");
        }
        shared.open(2);
        for (client, id) in &mut waiting {
            assert_eq!(client.answer(*id).await.text(), "waited");
        }
        client.expect_alive().await;
        for (client, _) in waiting {
            client.close().await;
        }
        client.close().await;
        let outcome = ended(server).await;
        assert_eq!((shed(&outcome), outcome.endings()), (vec![("requests", 3)], vec![]));
    }
}

/// Refused clients get different `Retry-After` values, so that they do not all return together.
pub async fn refused_requests_get_different_retry_after_times<B: Bench>(bench: &B) {
    let overload = OverloadLimits {
        requests_max: Some(1),
        retry_after: Duration::from_secs(20),
        ..OverloadLimits::default()
    };
    for way in [Way::HTTP1, Way::HTTP2] {
        let shared = Shared::default();
        let server = bench.start(with(overload.clone()), None, app(&shared));
        let mut first = way.connect(&server).await;
        let waiting = first.get("/wait");
        first.wait_until(bench, "the handler waits", || shared.started.get() == 1).await;
        let mut retry_times = Vec::new();
        for _ in 0..11 {
            // Clients other than those refused before.
            let mut client = way.connect(&server).await;
            let id = client.get("/hello");
            let response = client.answer(id).await;
            let time = response.field("retry-after").and_then(|text| text.parse::<u64>().ok());
            retry_times.push(time.expect("a time"));
            client.close().await;
        }
        retry_times.sort_unstable();
        assert!(
            retry_times.first() >= Some(&20) && retry_times.last() <= Some(&30),
            "{retry_times:?}"
        );
        retry_times.dedup();
        assert!(retry_times.len() >= 9, "{retry_times:?}");
        shared.open(1);
        assert_eq!(first.answer(waiting).await.text(), "waited");
        first.close().await;
        ended(server).await;
    }
}

/// While memory is short, new connections are answered: health checks as usual, everything else
/// with a 503. Connections without a request keep no other connection out.
pub async fn health_is_answered_while_memory_is_short<B: Bench>(bench: &B) {
    bench.calm();
    // The pressure levels tight, scarce, and full.
    for part in [26, 29, 31] {
        let shared = Shared::default();
        // The remainder is more than all concurrent connections use.
        let memory_bytes_max = 4 * MEMORY_BYTES_MAX;
        let memory_max = MemoryMax::Bytes(memory_bytes_max as u64);
        let limits = with(OverloadLimits { memory_max, ..OverloadLimits::default() });
        let server = bench.start(limits, Some(server_tls()), app(&shared));
        let mut reserving_client = Way::HTTP1.connect(&server).await;
        let reservation = reserving_client.get(&format!("/keep/{}", memory_bytes_max / 32 * part));
        reserving_client.wait_until(bench, "memory is short", || shared.started.get() == 1).await;
        for way in WAYS {
            let mut client = way.connect(&server).await;
            let id = client.get("/hello");
            assert_refused(&client.answer(id).await, 503, "overloaded");
            client.break_off();
            let mut client = way.connect(&server).await;
            let id = client.get("/well");
            assert_eq!(client.answer(id).await.text(), "well", "{part}/32, {way:?}");
            client.break_off();
        }
        // The server closes a new connection after its first request.
        for way in WAYS {
            let mut client = way.connect(&server).await;
            let id = client.get("/well");
            assert_eq!(client.answer(id).await.text(), "well");
            client.expect_goodbye().await;
            assert_eq!(client.go_away_code(), 0);
        }
        // The server announces to an idle connection that it will close.
        let mut idle = Way::HTTP2.connect(&server).await;
        // More connections than are allowed at a time while memory is short.
        let silent: Vec<_> = (0..150).map(|_| Peer::new(server.connect())).collect();
        let mut client = Way::HTTP1.connect(&server).await;
        let id = client.get("/well");
        let response = client.answer(id).await;
        assert_eq!((response.text(), response.field("connection")), ("well", Some("close")));
        idle.ended().await;
        assert!(idle.is_told_to_go() && idle.go_away_code() == 0);
        shared.open(1);
        assert_eq!(reserving_client.answer(reservation).await.text(), "kept");
        // A connection that is open when memory is free again stays open.
        let mut last_client = Way::HTTP1.connect(&server).await;
        for _ in 0..2 {
            let id = last_client.get("/hello");
            let response = last_client.answer(id).await;
            assert_eq!((response.text(), response.field("connection")), ("hello", None));
        }
        reserving_client.close().await;
        last_client.close().await;
        drop((silent, client));
        let outcome = ended(server).await;
        assert!(outcome.ended("evicted") > 0, "{outcome:?}");
        assert!(outcome.ended("connection-close") >= WAYS.len() as u64, "{outcome:?}");
        assert_eq!(outcome.ended("memory-max"), 0, "{outcome:?}");
        assert_eq!(outcome.ended("connection-age-max"), 0, "{outcome:?}");
    }
}

/// Application content whose destructor panics.
struct PanicsOnDrop(Bytes);

impl AsRef<[u8]> for PanicsOnDrop {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        panic!("on purpose, in a destructor");
    }
}

fn panicking_bytes(bytes: usize) -> Bytes {
    Bytes::from_owner(PanicsOnDrop(Bytes::from(vec![b'b'; bytes])))
}

/// Application values that panic when dropped affect nothing else: the response is complete, its
/// connection stays open, and the memory counted for it is released.
pub async fn panics_in_destructors_are_contained<B: Bench>(bench: &B) {
    /// A stream of such content that itself panics at the end.
    struct Stream(usize, usize);
    impl futures_core::Stream for Stream {
        type Item = Result<Bytes, std::io::Error>;
        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Self::Item>> {
            let remaining = self.1;
            self.1 = remaining.saturating_sub(1);
            std::task::Poll::Ready((remaining > 0).then(|| Ok(panicking_bytes(self.0))))
        }
    }
    impl Drop for Stream {
        fn drop(&mut self) {
            panic!("on purpose, in the stream");
        }
    }
    let large = bench.large(300_000);
    let make = move || {
        App::new()
            .get("/hello", || "hello")
            .get("/held", || peregrine::web::memory::reserved().to_string())
            .get("/small", || panicking_bytes(10))
            .get("/large", move || panicking_bytes(large))
            .get("/pieces", || peregrine::web::Body::from_stream(Stream(10, 3)))
            .get("/large-pieces", move || peregrine::web::Body::from_stream(Stream(large / 3, 3)))
            .get("/endless", move || {
                peregrine::web::Body::from_stream(Stream(large / 3, usize::MAX))
            })
    };
    for way in WAYS {
        let server = bench.start(limits(), way.is_secure().then(server_tls), make);
        let held = async |server: &B::Server| {
            let mut client = way.connect(server).await;
            let id = client.get("/held");
            let held: usize = client.answer(id).await.text().parse().expect("a number");
            client.close().await;
            held
        };
        let before = held(&server).await;
        let mut client = way.connect(&server).await;
        for (path, length) in
            [("/small", 10), ("/large", large), ("/pieces", 30), ("/large-pieces", large / 3 * 3)]
        {
            let id = client.get(path);
            let response = client.answer(id).await;
            assert_eq!((response.status(), response.body.len()), (200, length), "{path} {way:?}");
        }
        client.expect_alive().await;
        client.close().await;
        // Clients that disconnect in the middle. All content together is far more than a worker
        // keeps for reuse.
        for path in ["/large", "/endless"].into_iter().cycle().take(20) {
            let mut client = way.connect(&server).await;
            let id = client.get(path);
            client.expect(id, 1).await;
            client.break_off();
        }
        bench.sleep(SHORT).await;
        let start = bench.now();
        while held(&server).await > before + (1 << 20) {
            assert!(bench.now() < start + SHORT * 300, "some memory is never released");
            bench.sleep(SHORT / 10).await;
        }
        let outcome = ended(server).await;
        assert_eq!(outcome.ended("lost"), 0, "{way:?}: {outcome:?}");
    }
}

/// A refused request is answered before its content is read, and the server sends no 100.
pub async fn a_refused_request_gets_no_100_continue<B: Bench>(bench: &B) {
    for way in WAYS {
        let shared = Shared::default();
        let limits = with(OverloadLimits { requests_max: Some(1), ..OverloadLimits::default() });
        let server = bench.start(limits, way.is_secure().then(server_tls), app(&shared));
        let mut first = way.connect(&server).await;
        let waiting = first.get("/wait");
        first.wait_until(bench, "the handler waits", || shared.started.get() == 1).await;
        for length in [Length::Declared(1_000), Length::Undeclared] {
            let mut client = way.connect(&server).await;
            let id = client.begin("POST", "/echo", &[("expect", "100-continue")], length);
            let response = client.head(id).await;
            assert_eq!(response.statuses(), [503], "no 100 is sent first");
            client.break_off();
        }
        // A short rest is discarded, and the connection stays open.
        let mut client = way.connect(&server).await;
        let id = client.post("/echo", &[b'x'; 3_000]).await;
        assert_refused(&client.answer(id).await, 503, "overloaded");
        let id = client.get("/well");
        assert_eq!(client.answer(id).await.text(), "well");
        client.close().await;
        shared.open(1);
        assert_eq!(first.answer(waiting).await.text(), "waited");
        first.close().await;
        assert_eq!(shed(&ended(server).await), [("requests", 3)]);
    }
}

/// A route may have its own limit, even if no other limit is set.
pub async fn a_route_has_its_own_limit<B: Bench>(bench: &B) {
    for way in WAYS {
        let shared = Shared::default();
        let server = bench.start(limits(), way.is_secure().then(server_tls), app(&shared));
        let mut clients = Vec::new();
        for path in ["/few", "/few", "/well/and/few"] {
            let mut client = way.connect(&server).await;
            let id = client.get(path);
            let count = clients.len() + 1;
            client.wait_until(bench, "the handler waits", || shared.started.get() == count).await;
            clients.push((client, id));
        }
        let mut client = way.connect(&server).await;
        for path in ["/few", "/well/and/few"] {
            let id = client.get(path);
            assert_refused(&client.answer(id).await, 503, "overloaded");
        }
        client.expect_alive().await;
        // A client that disconnects frees its slot, like one that is answered.
        let (first_client, _) = clients.remove(0);
        first_client.break_off();
        client.wait_until(bench, "the handler is dropped", || shared.dropped.get() == 1).await;
        let id = client.get("/few");
        shared.open(3);
        for (mut client, id) in clients {
            assert_eq!(client.answer(id).await.text(), "waited");
            client.close().await;
        }
        assert_eq!(client.answer(id).await.text(), "waited");
        client.close().await;
        assert_eq!(shed(&ended(server).await), [("route", 2)]);
    }
}

/// A client with too many requests in progress gets a 429, and other clients do not. Behind proxies
/// the limit applies to the proxies' client, and an IPv6 network prefix counts as one client.
pub async fn too_many_requests_of_a_client_get_a_429<B: Bench>(bench: &B) {
    let overload = OverloadLimits { requests_per_client_max: Some(2), ..OverloadLimits::default() };
    for way in [Way::HTTP1, Way::HTTP2] {
        let shared = Shared::default();
        let proxies = Some(TrustedProxies::hops(1));
        let server_options = ServerOptions { proxies, ..ServerOptions::default() };
        let server = bench.start_behind(server_options, with(overload.clone()), None, app(&shared));
        let from = |address: &'static str| [("x-forwarded-for", address)];
        let mut waiting = Vec::new();
        for address in ["192.0.2.1", "192.0.2.1", "2001:db8::1", "2001:db8::2"] {
            let mut client = way.connect(&server).await;
            let id = client.ask("GET", "/wait", &from(address));
            let count = waiting.len() + 1;
            client.wait_until(bench, "the handler waits", || shared.started.get() == count).await;
            waiting.push((client, id));
        }
        let mut client = way.connect(&server).await;
        for (address, status) in [
            ("192.0.2.1", 429),
            ("192.0.2.2", 200),
            ("::ffff:192.0.2.1", 429),
            ("2001:db8::ffff", 429),
            ("2001:db8:0:1::1", 200),
        ] {
            let id = client.ask("GET", "/hello", &from(address));
            let response = client.answer(id).await;
            assert_eq!(response.status(), status, "{address}");
            if status == 429 {
                assert_refused(&response, 429, "too-many-requests");
            }
            let id = client.ask("GET", "/well", &from(address));
            assert_eq!(client.answer(id).await.text(), "well", "{address}");
        }
        shared.open(4);
        for (mut client, id) in waiting {
            assert_eq!(client.answer(id).await.text(), "waited");
            client.close().await;
        }
        let id = client.ask("GET", "/hello", &from("192.0.2.1"));
        assert_eq!(client.answer(id).await.text(), "hello");
        client.close().await;
        assert_eq!(shed(&ended(server).await), [("client", 3)]);
    }
}

/// A client's connection beyond its limit is reset. Trusted proxies have no limit.
pub async fn connections_of_a_client_beyond_the_limit_are_reset<B: Bench>(bench: &B) {
    bench.calm();
    let overload =
        OverloadLimits { connections_per_client_max: Some(2), ..OverloadLimits::default() };
    let (server, _) = super::begin_with(bench, with(overload.clone()));
    let mut open_peers = Vec::new();
    for _ in 0..2 {
        let mut peer = Peer::new(server.connect());
        peer.expect_alive().await;
        open_peers.push(peer);
    }
    let mut third = Peer::new(server.connect());
    third.get("/hello");
    third.swallow(SHORT * 100).await;
    assert!(third.last().is_some(), "the connection has ended");
    open_peers[0].expect_alive().await;
    drop(open_peers.pop());
    bench.sleep(SHORT).await;
    Peer::new(server.connect()).expect_alive().await;
    drop(open_peers);
    let outcome = ended(server).await;
    assert_eq!((outcome.snapshot.accepted, outcome.endings()), (3, vec![]));

    let server_options =
        ServerOptions { proxies: Some(TrustedProxies::hops(1)), ..ServerOptions::default() };
    let server = bench.start_behind(server_options, with(overload), None, Shared::default().app());
    let mut peers: Vec<_> = (0..5).map(|_| Peer::new(server.connect())).collect();
    for peer in &mut peers {
        peer.expect_alive().await;
    }
    drop(peers);
    ended(server).await;
}

/// Behind a PROXY header, the limit applies to the client that the header names.
pub async fn forwarded_client_addresses_count_for_the_limit<B: Bench>(bench: &B) {
    bench.calm();
    let settings = ProxyProtocol::required().trust(["0.0.0.0/0", "::/0", "unix:"]);
    let server_options =
        ServerOptions { proxy_protocol: Some(settings), ..ServerOptions::default() };
    let overload =
        OverloadLimits { connections_per_client_max: Some(1), ..OverloadLimits::default() };
    let server = bench.start_behind(server_options, with(overload), None, Shared::default().app());
    let header = |source: &str| {
        let source = source.parse().expect("an address");
        header::proxied(source, source, &[])
    };
    let connect = |source: &str| {
        let mut peer = Peer::new(server.connect());
        peer.send(header(source));
        peer
    };
    let mut first = connect("192.0.2.1:1");
    first.expect_alive().await;
    let mut second = connect("192.0.2.1:2");
    assert!(matches!(second.more(SHORT * 100).await, Ok(None) | Err(_)));
    let mut other = connect("192.0.2.2:1");
    other.expect_alive().await;
    // Neither a proxy's health check nor an unknown client counts for a client.
    let mut unnamed = Vec::new();
    for header in [&b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"[..], b"PROXY UNKNOWN\r\n"] {
        for _ in 0..3 {
            let mut peer = Peer::new(server.connect());
            peer.send(header);
            peer.expect_alive().await;
            unnamed.push(peer);
        }
    }
    drop((first, second, other, unnamed));
    assert_eq!(ended(server).await.ended("client-connections-max"), 1);
}

/// Under permanent overload some requests are refused and others are answered, and no request is
/// refused once the overload is over. The driver's kernel polls distinguish the two.
pub async fn a_standing_queue_is_noticed<B: Bench>(bench: &B) {
    const PEERS: u64 = 40;
    const ROUNDS: usize = 10;
    let queue_delay_target = Some(Duration::from_millis(10));
    let overload = OverloadLimits { queue_delay_target, ..OverloadLimits::default() };
    let (server, _) = super::begin_with(bench, with(overload));
    let mut peers: Vec<_> = (0..PEERS).map(|_| Peer::new(server.connect())).collect();
    peers.iter_mut().for_each(|peer| peer.get("/block/5"));
    let (mut served, mut refused) = (0, 0);
    for round in 1..=ROUNDS {
        for peer in &mut peers {
            match peer.reply().await.status {
                200 => served += 1,
                503 => refused += 1,
                other => panic!("{other}"),
            }
            if round < ROUNDS {
                peer.get("/block/5");
            }
        }
    }
    assert!(served >= PEERS / 2 && refused >= PEERS / 2, "{served} served, {refused} refused");
    bench.sleep(SHORT).await;
    for _ in 0..20 {
        peers[0].get("/block/5");
        assert_eq!(peers[0].reply().await.status, 200);
    }
    drop(peers);
    assert_eq!(shed(&ended(server).await), [("queue_delay", refused)]);
}

/// A worker with little memory for the cases below, and what it may hold beside its pools.
const MEMORY_BYTES_MAX: usize = 2 << 20;
const POOLS_BYTES_MAX: isize = 3 << 20;

/// Checks that a server stays below its memory limit.
struct Measured(Option<isize>);

impl Measured {
    fn begin() -> Self {
        Self(held::bytes())
    }

    fn check(&self, description: &str) {
        if let (Some(before), Some(now)) = (self.0, held::bytes()) {
            let bytes_max = MEMORY_BYTES_MAX.cast_signed() + POOLS_BYTES_MAX;
            assert!(
                now - before <= bytes_max,
                "{description}: {} bytes are allocated",
                now - before
            );
        }
    }
}

fn low_memory_limits() -> Limits {
    let overload = OverloadLimits {
        memory_max: MemoryMax::Bytes(MEMORY_BYTES_MAX as u64),
        ..OverloadLimits::default()
    };
    let limits = with(overload);
    Limits {
        transfer_rate_grace: Duration::from_secs(3),
        head_timeout: Duration::from_secs(3),
        ..limits
    }
}

/// After an attack, new clients are served as before.
async fn expect_recovery<B: Bench>(bench: &B, server: &B::Server) {
    for _ in 0..400 {
        let mut client = Way::HTTP1.connect(server).await;
        let id = client.get("/hello");
        if client.answer(id).await.status() == 200 {
            return client.close().await;
        }
        bench.sleep(SHORT / 2).await;
    }
    panic!("no client is served");
}

/// Bodies collected by extractors stop at the memory limit, with a 503.
pub async fn bodies_stop_at_the_memory_limit<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = super::begin_with(bench, low_memory_limits());
    let measured = Measured::begin();
    let mut clients = Vec::new();
    for number in 0..40 {
        let way = [Way::HTTP1, Way::HTTP2][number % 2];
        let mut client = way.connect(&server).await;
        let id = client.begin("POST", "/echo", &[], Length::Declared(1 << 20));
        for _ in 0..4 {
            // Half of each body, ten times what fits.
            if client.last().is_none() && client.so_far(id).status() == 0 {
                client.part_unless_answered(id, &[b'x'; 60_000]).await;
                client.fill(Duration::ZERO).await;
            }
        }
        measured.check("half a body");
        clients.push((client, id));
    }
    bench.sleep(SHORT).await;
    measured.check("halves of bodies");
    let mut refused = 0;
    for (client, id) in &mut clients {
        while client.fill(Duration::from_millis(1)).await {}
        refused += usize::from(client.so_far(*id).status() == 503 || client.last().is_some());
    }
    assert!(refused > 0, "some requests got a 503");
    clients.into_iter().for_each(|(client, _)| client.break_off());
    expect_recovery(bench, &server).await;
    measured.check("the end");
    server.shut_down();
    server.ended().await;
}

/// Endless heads, and unread HTTP/2 streams, hold no more than the memory limit.
pub async fn heads_and_windows_stop_at_the_memory_limit<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = super::begin_with(bench, low_memory_limits());
    let measured = Measured::begin();
    let head = format!("GET /hello HTTP/1.1\r\nHost: a\r\nX: {}\r\n", "x".repeat(15_000));
    let mut peers = Vec::new();
    for _ in 0..200 {
        let mut peer = Peer::new(server.connect());
        peer.send(&head);
        peers.push(peer);
    }
    bench.sleep(SHORT).await;
    measured.check("half heads");
    drop(peers);
    expect_recovery(bench, &server).await;
    let mut attackers = Vec::new();
    for _ in 0..20 {
        let mut attacker = Streams::new(server.connect());
        for _ in 0..20 {
            let id = attacker.open("POST", "/hold-body", &[], false);
            attacker.data_that_fits(id, &[b'x'; 60_000], false);
        }
        attacker.fill(Duration::ZERO).await;
        attackers.push(attacker);
        measured.check("full windows");
    }
    bench.sleep(SHORT).await;
    measured.check("full windows");
    drop(attackers);
    expect_recovery(bench, &server).await;
    server.cut();
    server.ended().await;
}

/// Unread responses hold no more than the memory limit.
pub async fn unread_responses_stop_at_the_memory_limit<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = super::begin_with(bench, low_memory_limits());
    let measured = Measured::begin();
    let mut peers = Vec::new();
    for number in 0..100 {
        let mut peer = Peer::new(server.connect());
        peer.get(if number % 2 == 0 { "/endless" } else { "/large/1000000" });
        // One after the other: a slow worker would admit all of them in one iteration. Refused
        // clients may get no response.
        for _ in 0..20 {
            if peer.is_answered().await {
                break;
            }
            bench.sleep(SHORT / 100).await;
        }
        peers.push(peer);
        measured.check("unread responses");
    }
    bench.sleep(SHORT).await;
    measured.check("unread responses");
    drop(peers);
    let closed_window = [(setting_id::INITIAL_WINDOW_SIZE, 0)];
    // Complete bodies, and bodies produced while they are sent.
    for path in ["/large/100000", "/endless-large/100000"] {
        let mut attackers = Vec::new();
        for _ in 0..20 {
            let mut attacker = Streams::with_settings(server.connect(), &closed_window);
            for _ in 0..60 {
                attacker.get(path);
            }
            attacker.fill(Duration::from_millis(1)).await;
            attackers.push(attacker);
            measured.check("closed windows");
        }
        bench.sleep(SHORT).await;
        measured.check("closed windows");
        drop(attackers);
        expect_recovery(bench, &server).await;
    }
    server.cut();
    server.ended().await;
}

/// Unfinished WebSocket messages stop at the memory limit, with 1013. A client that needs no more
/// memory stays connected.
pub async fn fragmented_messages_stop_at_the_memory_limit<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = super::begin_with(bench, low_memory_limits());
    let measured = Measured::begin();
    let mut sockets = Vec::new();
    for number in 0..16 {
        sockets.push(Socket::open::<B>(&server, events::WAYS[number % 2], "/ws/echo").await);
    }
    let mut last = sockets.pop().expect("the list is not empty");
    for round in 0..4 {
        for socket in &mut sockets {
            // Altogether three times what fits.
            let opcode = if round == 0 { Opcode::Binary } else { Opcode::Continuation };
            socket.frame(opcode, 0, &[b'x'; 100_000]).await;
        }
        bench.sleep(SHORT).await;
        measured.check("parts of messages");
    }
    let mut results = Vec::new();
    for socket in &mut sockets {
        socket.frame(Opcode::Continuation, flag::FIN, b"").await;
        results.push(socket.next().await);
    }
    let closed = results.iter().filter(|result| **result == Said::Close(1_013)).count();
    let complete =
        results.iter().filter(|result| matches!(result, Said::Binary(all) if all.len() == 400_000));
    let complete = complete.count();
    assert!(
        closed > 0 && closed + complete <= sockets.len(),
        "{closed} were closed, {complete} are complete"
    );
    drop(sockets);
    expect_recovery(bench, &server).await;
    last.text("still here").await;
    last.expect_text("still here").await;
    drop(last);
    server.shut_down();
    server.ended().await;
}
