//! Peers that send little: silence, half heads, requests with pauses between, panics, and work that
//! outlasts its peer.

use super::talk::{Heard, Talk};
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
    let mut talk = Talk::new(&world, "silent", roomy());
    let time = world.promises.limits.first_byte_timeout;
    talk.expect_end(time).await;
}

/// Sends half of a head, and perhaps a byte of it now and then: a 408 and the end.
pub(super) async fn half_head(world: Rc<World>) {
    let mut talk = Talk::new(&world, "half head", roomy());
    let time = world.promises.limits.head_timeout;
    let due = talk.now() + time;
    talk.may_end(due.saturating_sub(World::EARLY));
    let head = b"GET /hello HTTP/1.1\r\nHost: a\r\nX-Filler: and so on and so on and so on";
    talk.say(&head[..5]).await;
    for byte in
        &head[5..5 + usize::try_from(world.network.random_below(8)).expect("the value is small")]
    {
        let pause = due.saturating_sub(talk.now()) / 4;
        talk.sleep(pause).await;
        talk.say([*byte]).await;
    }
    let heard = talk.hear_when_due(due, time).await;
    talk.assert_now("the 408", due..due, time);
    if talk.is_right(heard, 408, None) {
        talk.half_close().await;
        talk.expect_end_soon().await;
    }
}

/// Sends requests with pauses up to the idle timeout, and is closed after it, or disconnects.
pub(super) async fn patient(world: Rc<World>) {
    let mut talk = Talk::new(&world, "patient", roomy());
    let idle = world.promises.limits.idle_timeout;
    for round in 0..1 + world.network.random_below(6) {
        let length = world.choose(&[1, 900, 30_000]);
        let (path, body) = match (round + world.network.random_below(3)) % 3 {
            0 => ("/hello".to_owned(), b"hello".to_vec()),
            1 => ("/sleep/20".to_owned(), b"slept".to_vec()),
            _ => (format!("/large/{length}"), crate::server::app::pattern(length)),
        };
        if !talk.get(&path).await || !talk.expect(200, Some(&body), talk.now() + 60 * SECOND).await
        {
            return;
        }
        if world.is_ordered() {
            return;
        }
        let quiet = world.choose(&[Duration::ZERO, SECOND, idle / 2, idle - 2 * SECOND]);
        talk.sleep(world.time(quiet)).await;
    }
    match world.network.random_below(5) {
        0 => talk.reset(),
        1 => {
            talk.half_close().await;
            talk.expect_end(Duration::ZERO).await;
        }
        _ => {
            // Nothing is sent after the last response.
            if talk.get("/hello").await
                && talk.expect(200, Some(b"hello"), talk.now() + 60 * SECOND).await
                && !world.is_ordered()
            {
                talk.expect_end(idle).await;
            }
        }
    }
}

/// Blocks the worker for a while.
pub(super) async fn staller(world: Rc<World>) {
    let mut talk = Talk::new(&world, "staller", roomy());
    let seconds = world.choose(&[1, 60, 110, 300, 3_600]);
    world.stalls(Duration::from_secs(seconds));
    if talk.get(&format!("/stall/{seconds}")).await {
        let until = talk.now() + Duration::from_secs(seconds) + 10 * SECOND;
        talk.expect(200, Some(b"stalled"), until).await;
    }
}

/// Requests a panicking handler, behind a request that is answered first.
pub(super) async fn panicker(world: Rc<World>) {
    let mut talk = Talk::new(&world, "panicker", roomy());
    let until = talk.now() + 10 * SECOND;
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
    talk.say(format!("{first}GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).await;
    if !talk.expect(200, Some(b"hello"), until).await {
        return;
    }
    let heard = talk.hear(until).await;
    match (status, heard) {
        (0, Heard::Broken | Heard::End) => {}
        (0, _) => talk.fault(format!("{path} was not cut off")),
        (_, Heard::Reply(reply)) if reply.status == status => {}
        (_, Heard::Reply(reply)) => talk.fault(format!("{path} got a {}", reply.status)),
        _ => talk.fault(format!("{path} got no response")),
    }
}

/// Requests work marked to run to completion, and disconnects before it ends, or stays. The work is
/// checked at the end of the life.
pub(super) async fn employer(world: Rc<World>) {
    let mut talk = Talk::new(&world, "employer", roomy());
    let seconds = world.choose(&[1, 100, 3_000]);
    let id = world.next_id();
    let path = format!("/work/{id}/{seconds}");
    let takes = Duration::from_secs(seconds);
    let has_body = world.network.random_below(2) == 0;
    if has_body {
        let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
        talk.say(head).await;
        talk.say(vec![7; world.choose(&[0, 10, 60_000, 99_999])]).await;
    } else {
        talk.get(&path).await;
    }
    let stays = !has_body && world.network.random_below(3) == 0;
    if stays {
        talk.expect(200, Some(b"worked"), talk.now() + takes + 10 * SECOND).await;
        return;
    }
    // The request has arrived by now.
    talk.sleep(SECOND / 2 + world.time(takes / 2)).await;
    match world.network.random_below(3) {
        0 => talk.reset(),
        1 => talk.half_close().await,
        _ => return world.ledger.left(id),
    }
    world.ledger.left(id);
    talk.sleep(world.time(takes)).await;
}

/// Sends a body that the handler does not read on a connection that ends after the response, and
/// reads the response only afterwards: it must still be there, with a clean end.
pub(super) async fn unheard(world: Rc<World>) {
    let mut talk = Talk::new(&world, "unheard", roomy());
    let request = world.choose(&[
        "POST /nowhere HTTP/1.1\r\nHost: a\r\nConnection: close\r\n",
        "POST /hello HTTP/1.0\r\n",
        "POST /nowhere HTTP/1.1\r\nHost: a\r\n",
    ]);
    let status = if request.contains("nowhere") { 404 } else { 405 };
    talk.say(format!("{request}Content-Length: 3000000\r\n\r\n")).await;
    let pause = world.promises.linger / world.choose(&[2, 20]);
    for _ in 0..world.network.random_below(20) {
        let least = world.promises.transfer_rate_min as f64 * 1.5 * pause.as_secs_f64();
        let (piece, now) = (world.choose(&[1_000, 90_000]).max(least as usize), talk.now());
        if !talk.say(vec![7; piece]).await {
            talk.fault("the server does not accept the body");
            return;
        }
        talk.sleep(pause.saturating_sub(talk.now() - now)).await;
    }
    match talk.hear(talk.now() + 60 * SECOND).await {
        Heard::Reply(reply) if reply.status == status && reply.closes() => {
            talk.expect_end_soon().await;
        }
        Heard::Reply(reply) => {
            let closes = reply.closes();
            talk.fault(format!("a {} instead of a {status}, closes: {closes}", reply.status));
        }
        _ => talk.fault("the response is lost"),
    }
}
