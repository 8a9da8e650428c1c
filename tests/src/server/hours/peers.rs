//! Peers that send little: silence, half heads, requests with pauses between, panics, and work that
//! outlasts its peer.

use super::http1_peer::{Http1Peer, Received};
use super::world::World;
use peregrine_driver_sim::SocketBuffers;
use std::rc::Rc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Buffers large enough for everything sent here.
fn roomy() -> Option<SocketBuffers> {
    Some(SocketBuffers::with_size(100_000))
}

/// Sends nothing, and is closed when the timeout for the first byte expires.
pub(super) async fn silent(world: Rc<World>) {
    let mut peer = Http1Peer::new(&world, "silent", roomy());
    let time = world.timeouts.limits.first_byte_timeout;
    peer.expect_end(time).await;
}

/// Sends half of a head, and perhaps a byte of it now and then: a 408 and the end.
pub(super) async fn half_head(world: Rc<World>) {
    let mut peer = Http1Peer::new(&world, "half head", roomy());
    let time = world.timeouts.limits.head_timeout;
    let due = peer.now() + time;
    peer.may_end(due.saturating_sub(World::EARLY));
    let head = b"GET /hello HTTP/1.1\r\nHost: a\r\nX-Filler: and so on and so on and so on";
    peer.send(&head[..5]).await;
    for byte in
        &head[5..5 + usize::try_from(world.network.random_below(8)).expect("the value is small")]
    {
        let pause = due.saturating_sub(peer.now()) / 4;
        peer.sleep(pause).await;
        peer.send([*byte]).await;
    }
    let received = peer.receive_when_due(due, time).await;
    peer.check_time("the 408", due..due, time);
    if peer.check_response(received, 408, None) {
        peer.half_close().await;
        peer.expect_end_soon().await;
    }
}

/// Sends requests with pauses up to the idle timeout, and is closed after it, or disconnects.
pub(super) async fn patient(world: Rc<World>) {
    let mut peer = Http1Peer::new(&world, "patient", roomy());
    let idle = world.timeouts.limits.idle_timeout;
    for round in 0..1 + world.network.random_below(6) {
        let length = world.choose(&[1, 900, 30_000]);
        let (path, body) = match (round + world.network.random_below(3)) % 3 {
            0 => ("/hello".to_owned(), b"hello".to_vec()),
            1 => ("/sleep/20".to_owned(), b"slept".to_vec()),
            _ => (format!("/large/{length}"), crate::server::app::pattern(length)),
        };
        if !peer.get(&path).await || !peer.expect(200, Some(&body), peer.now() + 60 * SECOND).await
        {
            return;
        }
        if world.is_shutting_down() {
            return;
        }
        let pause_max = world.choose(&[Duration::ZERO, SECOND, idle / 2, idle - 2 * SECOND]);
        peer.sleep(world.time(pause_max)).await;
    }
    match world.network.random_below(5) {
        0 => peer.reset(),
        1 => {
            peer.half_close().await;
            peer.expect_end(Duration::ZERO).await;
        }
        _ => {
            // Nothing is sent after the last response.
            if peer.get("/hello").await
                && peer.expect(200, Some(b"hello"), peer.now() + 60 * SECOND).await
                && !world.is_shutting_down()
            {
                peer.expect_end(idle).await;
            }
        }
    }
}

/// Blocks the worker for a while.
pub(super) async fn staller(world: Rc<World>) {
    let mut peer = Http1Peer::new(&world, "staller", roomy());
    let seconds = world.choose(&[1, 60, 110, 300, 3_600]);
    world.record_stall(Duration::from_secs(seconds));
    if peer.get(&format!("/stall/{seconds}")).await {
        let until = peer.now() + Duration::from_secs(seconds) + 10 * SECOND;
        peer.expect(200, Some(b"stalled"), until).await;
    }
}

/// Requests a panicking handler, behind a request that is answered first.
pub(super) async fn panicker(world: Rc<World>) {
    let mut peer = Http1Peer::new(&world, "panicker", roomy());
    let until = peer.now() + 10 * SECOND;
    let (path, status) = world.choose(&[
        ("/panic", 500),
        ("/panic-late", 500),
        ("/panic-eager", 500),
        ("/size-hint-panics", 200),
        ("/panic-in-drop", 503),
        ("/stream-panics-in-drop", 200),
        ("/stream-panics", 0),
    ]);
    let first = "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n";
    peer.send(format!("{first}GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).await;
    if !peer.expect(200, Some(b"hello"), until).await {
        return;
    }
    let received = peer.receive(until).await;
    match (status, received) {
        (0, Received::Broken | Received::End) => {}
        (0, _) => peer.record_failure(format!("{path} was not aborted")),
        (_, Received::Reply(reply)) if reply.status == status => {}
        (_, Received::Reply(reply)) => {
            peer.record_failure(format!("{path} got a {}", reply.status))
        }
        _ => peer.record_failure(format!("{path} got no response")),
    }
}

/// Requests work marked to run to completion, and disconnects before it ends, or stays. The work is
/// checked at the end of the life.
pub(super) async fn run_to_completion_requester(world: Rc<World>) {
    let mut peer = Http1Peer::new(&world, "employer", roomy());
    let seconds = world.choose(&[1, 100, 3_000]);
    let id = world.next_id();
    let path = format!("/work/{id}/{seconds}");
    let handler_time = Duration::from_secs(seconds);
    let has_body = world.network.random_below(2) == 0;
    if has_body {
        let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
        peer.send(head).await;
        peer.send(vec![7; world.choose(&[0, 10, 60_000, 99_999])]).await;
    } else {
        peer.get(&path).await;
    }
    let waits_for_response = !has_body && world.network.random_below(3) == 0;
    if waits_for_response {
        peer.expect(200, Some(b"worked"), peer.now() + handler_time + 10 * SECOND).await;
        return;
    }
    // The request has arrived by now.
    peer.sleep(SECOND / 2 + world.time(handler_time / 2)).await;
    match world.network.random_below(3) {
        0 => peer.reset(),
        1 => peer.half_close().await,
        _ => return world.ledger.record_disconnect(id),
    }
    world.ledger.record_disconnect(id);
    peer.sleep(world.time(handler_time)).await;
}

/// Sends a body that the handler does not read on a connection that ends after the response, and
/// reads the response only afterwards: it must still be there, with a clean end.
pub(super) async fn unread_upload(world: Rc<World>) {
    let mut peer = Http1Peer::new(&world, "unheard", roomy());
    let request = world.choose(&[
        "POST /nowhere HTTP/1.1\r\nHost: a\r\nConnection: close\r\n",
        "POST /hello HTTP/1.0\r\n",
        "POST /nowhere HTTP/1.1\r\nHost: a\r\n",
    ]);
    let status = if request.contains("nowhere") { 404 } else { 405 };
    peer.send(format!("{request}Content-Length: 3000000\r\n\r\n")).await;
    let pause = world.timeouts.linger / world.choose(&[2, 20]);
    for _ in 0..world.network.random_below(20) {
        let bytes_min = world.timeouts.transfer_rate_min as f64 * 1.5 * pause.as_secs_f64();
        let (piece, now) = (world.choose(&[1_000, 90_000]).max(bytes_min as usize), peer.now());
        if !peer.send(vec![7; piece]).await {
            peer.record_failure("the server does not accept the body");
            return;
        }
        peer.sleep(pause.saturating_sub(peer.now() - now)).await;
    }
    match peer.receive(peer.now() + 60 * SECOND).await {
        Received::Reply(reply) if reply.status == status && reply.closes() => {
            peer.expect_end_soon().await;
        }
        Received::Reply(reply) => {
            let closes = reply.closes();
            peer.record_failure(format!(
                "a {} instead of a {status}, closes: {closes}",
                reply.status
            ));
        }
        _ => peer.record_failure("the response is lost"),
    }
}
