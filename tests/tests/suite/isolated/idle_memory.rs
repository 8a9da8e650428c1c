//! The memory of an idle connection, in allocated bytes.

use peregrine::{DriverChoice, Http2Limits, Limits};
use peregrine_proto::ws::MessagePayload;
use peregrine_tests::isolated;
use peregrine_tests::server::app::{Shared, pattern};
use peregrine_tests::server::bench::{Bench, Served};
use peregrine_tests::server::client::{Client, Length, Way};
use peregrine_tests::server::events;
use peregrine_tests::server::secure::server_tls;
use peregrine_tests::server::websockets::{Said, Socket};
use peregrine_tests::server::{KernelBenches, SimulatedBenches, held};
use std::time::Duration;

const PEERS: usize = 100;
/// The most that an idle HTTP/2 connection may hold beyond TLS and its HPACK tables.
const IDLE_BYTES_MAX: isize = 2_048;

/// The most that an idle WebSocket and its connection may hold, whatever it has carried, and what
/// TLS may add.
const IDLE_WEBSOCKET_BYTES_MAX: isize = 8 * 1_024;
const IDLE_TLS_BYTES_MAX: isize = 4 * 1_024;

/// Limits without HPACK tables.
fn without_tables() -> Limits {
    let http2 = Http2Limits {
        hpack_decoder_table_bytes_max: 0,
        hpack_encoder_table_bytes_max: 0,
        ..Http2Limits::default()
    };
    Limits { http2, ..Limits::default() }
}

/// A client that has used its connection: several concurrent requests, with content and without.
async fn use_connection<S: Served>(server: &S, way: Way) -> Client<S::Wire> {
    let mut client = way.connect(server).await;
    let mut ids = Vec::new();
    for number in 0..60 {
        ids.push(client.get(&format!("/numbers/{number}")));
        let id = client.begin("POST", "/echo", &[], Length::Declared(1_000));
        client.upload(id, &[7; 1_000]).await;
        ids.push(id);
    }
    ids.push(client.get("/large/60000"));
    for id in ids {
        assert_eq!(client.answer(id).await.status(), 200);
    }
    client.expect_alive().await;
    client.settle().await;
    client
}

/// The allocated bytes once nothing changes any more: the minimum over a while.
async fn settled<B: Bench>(bench: &B) -> isize {
    let mut fewest = isize::MAX;
    let mut unchanged = 0;
    while unchanged < 4 {
        bench.sleep(Duration::from_millis(200)).await;
        let now = held::bytes().expect("the allocator counts");
        unchanged = if now < fewest { 0 } else { unchanged + 1 };
        fewest = fewest.min(now);
    }
    fewest
}

/// The bytes held by each of many peers that `open` creates, measured by what closing them frees.
///
/// The smallest of two rounds or more, because the pools of the worker grow and shrink in between.
/// On a busy machine they do so more often: up to five rounds are made until the result is at most
/// `allowed`.
async fn held_by_each_of<B: Bench, P>(
    bench: &B,
    allowed: isize,
    mut open: impl AsyncFnMut() -> P,
) -> isize {
    let mut least = isize::MAX;
    for round in 0..5 {
        if round >= 2 && least <= allowed {
            break;
        }
        let mut peers = Vec::new();
        for _ in 0..PEERS {
            peers.push(open().await);
        }
        let held = settled(bench).await;
        drop(peers);
        let rest = settled(bench).await;
        least = least.min((held - rest) / PEERS.cast_signed());
    }
    least
}

/// The bytes that each of many idle connections holds: at most `allowed`, or a reliable figure.
async fn held_by_each<B: Bench>(bench: &B, way: Way, allowed: isize) -> isize {
    let shared = Shared::default();
    let server = bench.start(without_tables(), Some(server_tls()), shared.app());
    let held = held_by_each_of(bench, allowed, async || use_connection(&server, way).await).await;
    way.connect(&server).await.expect_alive().await;
    server.shut_down();
    server.ended().await;
    held
}

/// The bytes that each of many idle WebSockets holds after carrying messages of all sizes: at most
/// `allowed`, or a reliable figure.
async fn held_by_each_websocket<B: Bench>(bench: &B, way: events::Way, allowed: isize) -> isize {
    let shared = Shared::default();
    let server = bench.start(without_tables(), Some(server_tls()), shared.app());
    let held = held_by_each_of(bench, allowed, async || {
        let mut socket = Socket::open::<B>(&server, way, "/ws/echo").await;
        for size in [10, 1_000, 20_000, 300_000] {
            let bytes = pattern(size);
            socket.send(MessagePayload::Binary(&bytes)).await;
            socket.expect(Said::Binary(bytes)).await;
        }
        for _ in 0..200 {
            socket.text("many at a time").await;
        }
        for _ in 0..200 {
            socket.expect_text("many at a time").await;
        }
        socket
    })
    .await;
    server.shut_down();
    server.ended().await;
    held
}

fn an_idle_websocket_holds_little(choice: DriverChoice, way: events::Way) {
    held::begin();
    KernelBenches::tcp(choice).check(async |bench| {
        let most = IDLE_WEBSOCKET_BYTES_MAX + if way.is_secure { IDLE_TLS_BYTES_MAX } else { 0 };
        let bytes = held_by_each_websocket(bench, way, most).await;
        println!("{choice:?}, {way:?}: {bytes} for a WebSocket");
        assert!(bytes <= most, "{bytes} bytes over {way:?}");
    });
}

macro_rules! idle_websockets {
    ($($name:ident: $choice:ident, $way:literal,)*) => {
        $(#[test] fn $name() {
            isolated(|| an_idle_websocket_holds_little(DriverChoice::$choice, events::WAYS[$way]));
        })*
    };
}

idle_websockets! {
    an_idle_websocket_holds_little_on_tokio_over_http1: Tokio, 0,
    an_idle_websocket_holds_little_on_tokio_over_http2: Tokio, 1,
    an_idle_websocket_holds_little_on_tokio_over_http1_tls: Tokio, 2,
    an_idle_websocket_holds_little_on_tokio_over_http2_tls: Tokio, 3,
    an_idle_websocket_holds_little_on_uring_over_http1: Uring, 0,
    an_idle_websocket_holds_little_on_uring_over_http2: Uring, 1,
    an_idle_websocket_holds_little_on_uring_over_http1_tls: Uring, 2,
    an_idle_websocket_holds_little_on_uring_over_http2_tls: Uring, 3,
}

fn an_idle_plain_connection_holds_little(choice: DriverChoice) {
    held::begin();
    KernelBenches::tcp(choice).check(async |bench| {
        let http2 = held_by_each(bench, Way::HTTP2, IDLE_BYTES_MAX).await;
        println!("{choice:?}: {http2} for HTTP/2");
        assert!(http2 <= IDLE_BYTES_MAX, "{http2} bytes for a plain connection");
    });
}

fn an_idle_tls_connection_holds_little(choice: DriverChoice) {
    held::begin();
    KernelBenches::tcp(choice).check(async |bench| {
        let http1 = held_by_each(bench, Way::HTTP1, isize::MAX).await;
        let tls = held_by_each(bench, Way::HTTP1_TLS, isize::MAX).await - http1;
        let http2 = held_by_each(bench, Way::HTTP2_TLS, IDLE_BYTES_MAX + tls).await;
        println!("{choice:?}: {http1} for HTTP/1.1, {tls} for TLS, {http2} for HTTP/2 with TLS");
        assert!(http2 - tls <= IDLE_BYTES_MAX, "{http2} bytes with {tls} for TLS");
    });
}

#[test]
fn an_idle_plain_connection_holds_little_on_tokio() {
    isolated(|| an_idle_plain_connection_holds_little(DriverChoice::Tokio));
}

#[test]
fn an_idle_plain_connection_holds_little_on_uring() {
    isolated(|| an_idle_plain_connection_holds_little(DriverChoice::Uring));
}

#[test]
fn an_idle_tls_connection_holds_little_on_tokio() {
    isolated(|| an_idle_tls_connection_holds_little(DriverChoice::Tokio));
}

#[test]
fn an_idle_tls_connection_holds_little_on_uring() {
    isolated(|| an_idle_tls_connection_holds_little(DriverChoice::Uring));
}

#[test]
fn the_tables_are_given_back_after_long_idleness() {
    isolated(|| {
        tables_are_given_back_after_long_idleness();
    });
}

fn tables_are_given_back_after_long_idleness() {
    held::begin_with_own();
    SimulatedBenches::seeds(0..1).check(async |bench| {
        let shared = Shared::default();
        let server = bench.start(Limits::default(), None, shared.app());
        let mut peers = Vec::new();
        for _ in 0..PEERS {
            peers.push(use_connection(&server, Way::HTTP2).await);
        }
        let bytes = || held::bytes().expect("the allocator counts") / PEERS.cast_signed();
        bench.sleep(Duration::from_secs(5)).await;
        let with_tables = bytes();
        bench.sleep(Duration::from_secs(40)).await;
        let given_back = with_tables - bytes();
        println!("{given_back} bytes of tables are freed");
        assert!(given_back >= 500, "{given_back}");
        // The tables grow again once both sides use them.
        for peer in &mut peers {
            for _ in 0..3 {
                peer.expect_alive().await;
            }
        }
        for peer in peers {
            peer.close().await;
        }
        server.shut_down();
        server.ended().await;
    });
}
