//! HTTP/2 streams that switch to another protocol (RFC 8441).

use super::{begin, begin_with, limits};
use crate::server::app::pattern;
use crate::server::bench::{Bench, Served, Wire};
use crate::server::server_timeouts::ServerTimeouts;
use crate::server::streams::Streams;
use peregrine::{Http2Limits, Limits};
use std::time::Duration;

/// Requests another protocol.
fn request_protocol<W: Wire>(client: &mut Streams<W>, path: &str) -> u32 {
    client.open("CONNECT", path, &[(":protocol", "echo")], false)
}

/// Bytes flow in both directions on several streams, beside ordinary requests.
pub async fn a_tunnel_carries_bytes_both_ways<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut client = Streams::new(server.connect());
    let (first, second) =
        (request_protocol(&mut client, "/upgrade"), request_protocol(&mut client, "/upgrade"));
    client.upload_part(first, b"early", false).await;
    client.expect(first, 5).await;
    assert_eq!(client.so_far(first).status(), 200);
    assert_eq!(client.so_far(first).field("upgrade"), None);
    client.upload_part(second, b"other", false).await;
    client.expect(second, 5).await;
    let hello = client.get("/hello");
    assert_eq!(client.answer(hello).await.text(), "hello");
    client.upload(second, b"!").await;
    assert_eq!(client.answer(second).await.text(), "other!");
    // More than the buffers hold is echoed too.
    let bytes = pattern(bench.large(if bench.is_virtual() { 100_000 } else { 1_000_000 }));
    client.upload(first, &bytes).await;
    let response = client.answer(first).await;
    assert!(response.body == [b"early", &bytes[..]].concat());
    assert_eq!(response.reset, None);
    drop(client);
    server.shut_down();
    server.ended().await;
}

/// The last data of the other protocol arrives, and its end ends only the stream.
pub async fn a_tunnel_may_send_first_and_close_first<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut client = Streams::new(server.connect());
    let id = request_protocol(&mut client, "/upgrade-greeting");
    client.expect(id, 8).await;
    assert_eq!(client.so_far(id).text(), "welcome\n");
    client.data(id, b"x", false);
    assert_eq!(client.answer(id).await.text(), "welcome\nx");
    let hello = client.get("/hello");
    assert_eq!(client.answer(hello).await.text(), "hello");
    drop(client);
    server.shut_down();
    server.ended().await;
}

/// The stream closes when the protocol's future completes, even if a task still holds the stream.
pub async fn a_task_does_not_keep_the_stream_of_an_ended_tunnel<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut client = Streams::new(server.connect());
    let id = request_protocol(&mut client, "/upgrade-handed-on");
    let response = client.answer(id).await;
    assert_eq!((response.status(), response.is_complete), (200, true));
    bench.wait_until("the task noticed the end", || shared.finished.get() == 1).await;
    let hello = client.get("/hello");
    assert_eq!(client.answer(hello).await.text(), "hello");
    server.shut_down();
    client.ended().await;
    assert_eq!(server.ended().await.cut, []);
}

/// A resource that does not support the protocol refuses without a 2xx, which would start the
/// protocol.
pub async fn a_route_without_the_protocol_refuses_it<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut client = Streams::new(server.connect());
    for (path, status) in [("/hello", 501), ("/no-such-path", 404), ("/panic", 500)] {
        let id = request_protocol(&mut client, path);
        client.data(id, b"x", false);
        assert_eq!(client.answer(id).await.status(), status, "{path}");
    }
    drop(client);
    server.shut_down();
    server.ended().await;
}

/// With the setting disabled, the server does not announce extended CONNECT, and such a request is
/// malformed.
pub async fn tunnels_can_be_disabled<B: Bench>(bench: &B) {
    let http2 = Http2Limits { enable_connect_protocol: false, ..Http2Limits::default() };
    let (server, _) = begin_with(bench, Limits { http2, ..limits() });
    let mut client = Streams::new(server.connect());
    let id = request_protocol(&mut client, "/upgrade");
    assert_eq!(client.answer(id).await.reset, Some(1));
    let hello = client.get("/hello");
    assert_eq!(client.answer(hello).await.text(), "hello");
    drop(client);
    server.shut_down();
    server.ended().await;
}

/// The other protocol ends when its peer resets the stream, and at the deadline of a shutdown.
pub async fn a_tunnel_ends_with_its_peer<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    // Behind a bridge, the protocol gets an error when its peer disconnects, and may complete.
    let ended_count = || shared.dropped.get() + shared.finished.get();
    let mut client = Streams::new(server.connect());
    let id = request_protocol(&mut client, "/upgrade-guarded");
    client.data(id, b"x", false);
    client.expect(id, 1).await;
    client.reset(id);
    bench.wait_until("the protocol has ended", || ended_count() == 1).await;
    let id = request_protocol(&mut client, "/upgrade-guarded");
    client.data(id, b"x", false);
    client.expect(id, 1).await;
    server.cut();
    client.ended().await;
    let outcome = server.ended().await;
    assert_eq!(outcome.ended("force-closed"), 1, "{outcome:?}");
    bench.wait_until("the protocol has ended", || ended_count() == 2).await;
}

/// A panic in the other protocol resets its stream, and other streams continue.
pub async fn a_panic_in_a_tunnel_resets_its_stream<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut client = Streams::new(server.connect());
    let id = request_protocol(&mut client, "/upgrade-panic");
    client.data(id, b"x", false);
    assert_eq!(client.answer(id).await.reset, Some(2));
    let hello = client.get("/hello");
    assert_eq!(client.answer(hello).await.text(), "hello");
    drop(client);
    server.shut_down();
    server.ended().await;
}

/// The other protocol may be silent as long as its own idle timeout, which is longer than that of
/// requests; then its stream ends, and the connection stays open.
pub async fn a_tunnel_has_its_own_idle_timeout<B: Bench>(bench: &B) {
    // An unreliable network would look like a slow peer.
    bench.calm();
    let request_timeout = Duration::from_millis(200);
    let idle = 6 * request_timeout;
    let limits = Limits {
        exchange_timeout: Some(request_timeout),
        transfer_rate_grace: request_timeout,
        ..limits()
    };
    let timeouts = ServerTimeouts { upgrade_idle: Some(idle), ..ServerTimeouts::default() };
    let limits = Limits { upgraded_idle_timeout: timeouts.upgrade_idle, ..limits };
    let (server, _) = begin_with(bench, limits);
    let mut client = Streams::new(server.connect());
    let id = request_protocol(&mut client, "/upgrade");
    for round in 1..=4 {
        bench.sleep(idle / 4).await;
        client.data(id, b"x", false);
        client.expect(id, round).await;
    }
    assert_eq!(client.answer(id).await.reset, Some(8));
    let hello = client.get("/hello");
    assert_eq!(client.answer(hello).await.text(), "hello");
    drop(client);
    server.shut_down();
    server.ended().await;
}

/// A peer that does not read the other protocol's data stalls only that protocol, and is
/// disconnected by the minimum rate.
pub async fn a_tunnel_whose_peer_does_not_read_is_ended<B: Bench>(bench: &B) {
    // The rate is enforced within less time than the simulated network may delay a piece.
    bench.calm();
    let slack = Duration::from_millis(300);
    let (server, shared) = begin_with(bench, Limits { transfer_rate_grace: slack, ..limits() });
    let mut client = Streams::new(server.connect());
    client.keep_windows_shut();
    let id = request_protocol(&mut client, "/upgrade-guarded");
    client.upload_part(id, &pattern(60_000), false).await;
    client.expect(id, 60_000).await;
    client.open_window();
    client.upload_part(id, &pattern(10_000), false).await;
    let hello = client.get("/hello");
    assert_eq!(client.answer(hello).await.text(), "hello");
    assert_eq!(client.answer(id).await.reset, Some(8));
    assert_eq!(shared.dropped.get(), 1);
    drop(client);
    server.shut_down();
    server.ended().await;
}
