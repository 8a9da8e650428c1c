//! Peers that transfer bytes for hours: uploads, downloads, and other protocols, at rates around
//! the minimum.

use super::http1_peer::{Http1Peer, Received};
use super::world::World;
use crate::server::app::pattern;
use peregrine_driver_sim::SocketBuffers;
use std::rc::Rc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// The most pieces of one flow, so that runs stay short.
const PIECES_MAX: u32 = 250;

/// More than the head of a response.
const HEAD_BYTES_MAX: usize = 400;

/// A flow of equal pieces.
struct Flow {
    pause: Duration,
    piece: usize,
    pieces: u32,
}

impl Flow {
    /// A flow that takes up to an hour and keeps the minimum rate in every window, barely or by
    /// far, although `progress_step` bytes may move late.
    fn steady(world: &World, sockets: Option<&SocketBuffers>, progress_step: usize) -> Self {
        let window = world.timeouts.rate_window;
        let pause = world.choose(&[SECOND / 10, SECOND, window / 4]);
        let duration_max = world.choose(&[SECOND, 100 * SECOND, 3_600 * SECOND]);
        // A piece may arrive one pause late at each end of a window, plus the network delay.
        let counted_time = window - 2 * pause - World::TICK;
        let bytes_min = (world.timeouts.transfer_rate_min as f64)
            .mul_add(window.as_secs_f64(), progress_step as f64);
        let rate = bytes_min / counted_time.as_secs_f64() * world.choose(&[1.05, 2.0, 20.0]);
        let piece = (rate * pause.as_secs_f64()).ceil().max(1.0);
        let pieces = (duration_max.as_secs_f64() / pause.as_secs_f64())
            .ceil()
            .min(bytes_max(sockets) as f64 / piece);
        Self { pause, piece: piece as usize, pieces: (pieces as u32).clamp(1, PIECES_MAX) }
    }

    fn bytes(&self) -> usize {
        self.piece * self.pieces as usize
    }

    /// The longest it can take, including a head.
    fn duration_max(&self) -> Duration {
        let head = u32::try_from(HEAD_BYTES_MAX / self.piece).expect("the value is small");
        2 * self.pause * (self.pieces + head) + 60 * SECOND
    }
}

/// Socket buffers of any size, which may accept and release data in steps, or a plain pipe.
fn buffers(world: &World) -> Option<SocketBuffers> {
    let bytes = world.choose(&[0, 50, 700, 8_000, 200_000]);
    let notsent_lowat_bytes = bytes.min(16 * 1024);
    (bytes > 0).then(|| SocketBuffers {
        notsent_lowat_bytes,
        send_bytes_max: bytes * world.choose(&[1, 20]),
        receive_bytes_max: bytes,
        window_update_bytes: (bytes / world.choose(&[2, 16])).max(1),
    })
}

/// The most bytes of one flow: small buffers need many events for them.
fn bytes_max(sockets: Option<&SocketBuffers>) -> usize {
    sockets.map_or(400_000, |sockets| 300 * sockets.receive_bytes_max).min(400_000)
}

/// How many bytes the peer may have to read before the server notices.
fn progress_step(sockets: Option<&SocketBuffers>) -> usize {
    sockets.map_or(0, SocketBuffers::progress_step_max)
}

/// Uploads a body for up to an hour, above the minimum rate, and expects its size in the response.
/// Or stops in the middle, and expects a 408 in time.
pub(super) async fn uploader(world: Rc<World>) {
    let sockets = buffers(&world);
    let flow = Flow::steady(&world, sockets.as_ref(), 0);
    let mut peer = Http1Peer::new(&world, "uploader", sockets);
    let stalls_midway = world.network.random_below(3) == 0;
    let length = flow.bytes() + if stalls_midway { 1_000_000 } else { 0 };
    peer.send(format!("POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n")).await;
    for _ in 0..flow.pieces {
        if !peer.send(vec![7; flow.piece]).await {
            peer.record_failure("the upload is aborted although it is fast enough");
            return;
        }
        peer.sleep(flow.pause).await;
    }
    if !stalls_midway {
        let count = length.to_string();
        peer.expect(200, Some(count.as_bytes()), peer.now() + 10 * SECOND).await;
        return;
    }
    peer.may_end(peer.now());
    let window = world.timeouts.rate_window;
    let due = peer.now() + 2 * window;
    let received = peer.receive_when_due(due, 2 * window).await;
    peer.check_time("the 408", Duration::ZERO..due, 2 * window);
    peer.check_response(received, 408, None);
}

/// Uploads a body, as fast as it is accepted, to a handler that does not read it for hours: no
/// timeout expires.
pub(super) async fn unread_body_uploader(world: Rc<World>) {
    let sockets = buffers(&world);
    let length = world.choose(&[1_000, 70_000, 300_000]).min(bytes_max(sockets.as_ref()));
    let mut peer = Http1Peer::new(&world, "unwanted", sockets);
    let seconds = world.choose(&[1, 100, 8_000]);
    let head =
        format!("POST /nap/{seconds} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    if !peer.send(head).await || !peer.send(vec![7; length]).await {
        peer.record_failure("the upload is aborted while the handler does not read");
        return;
    }
    let until = peer.now() + Duration::from_secs(seconds) + 60 * SECOND;
    peer.expect(200, Some(length.to_string().as_bytes()), until).await;
}

/// Reads a response for up to an hour, above the minimum rate: it arrives complete.
pub(super) async fn downloader(world: Rc<World>) {
    let sockets = buffers(&world);
    let progress_step = progress_step(sockets.as_ref());
    let flow = Flow::steady(&world, sockets.as_ref(), progress_step);
    let mut peer = Http1Peer::new(&world, "downloader", sockets);
    let length = flow.bytes();
    peer.get(&format!("/large/{length}")).await;
    let until = peer.now() + flow.duration_max();
    let received = peer.receive_slowly(until, flow.piece, flow.pause).await;
    peer.check_response(received, 200, Some(&pattern(length)));
}

/// Waits for a response that is produced slowly: no timeout expires.
pub(super) async fn slow_response_reader(world: Rc<World>) {
    let mut peer = Http1Peer::new(&world, "listener", Some(SocketBuffers::with_size(20_000)));
    let (pieces, seconds) = (1 + world.network.random_below(20), world.choose(&[1, 50, 1_000]));
    peer.get(&format!("/drip/{pieces}/{seconds}")).await;
    let until = peer.now() + Duration::from_secs((pieces + 1) * seconds) + 10 * SECOND;
    let body = "drip".repeat(usize::try_from(pieces).expect("the value is small"));
    peer.expect(200, Some(body.as_bytes()), until).await;
}

/// Requests more than all buffers hold and stops reading: the peer is disconnected in time, and the
/// kernel discards the data.
pub(super) async fn non_reader(world: Rc<World>) {
    let sockets = buffers(&world);
    let mut peer = Http1Peer::new(&world, "deaf", sockets);
    peer.get("/endless").await;
    for _ in 0..world.network.random_below(4) {
        peer.sleep(SECOND / 10).await;
        if peer.client.recv_at_most(1_000).await.is_err() {
            return peer.record_failure("the peer is disconnected although it reads");
        }
    }
    // The kernels' buffers take a while to fill, during which the server does not wait.
    let due = peer.now() + 2 * world.timeouts.rate_window + SECOND;
    peer.sleep(due + World::TICK - peer.now()).await;
    if !world.is_shutting_down() {
        peer.expect_reset().await;
    }
}

/// Uses another protocol for hours, with pauses, and ends it, or becomes silent.
pub(super) async fn upgraded(world: Rc<World>) {
    let sockets = buffers(&world);
    let flood_bytes = bytes_max(sockets.as_ref()).min(150_000);
    let mut peer = Http1Peer::new(&world, "upgraded", sockets);
    let request =
        "GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    peer.send(request).await;
    if !peer.expect(101, None, peer.now() + 10 * SECOND).await {
        return;
    }
    let idle = world.timeouts.upgrade_idle;
    let pause_max = idle.map_or(8 * 3_600 * SECOND, |idle| idle - 10 * SECOND);
    for _ in 0..world.network.random_below(8) {
        peer.sleep(world.time(world.choose(&[SECOND, pause_max]))).await;
        // A peer that does not read for longer than the slack is disconnected.
        if world.network.random_below(4) == 0
            && !peer
                .expect_delayed_echo(
                    &pattern(flood_bytes),
                    world.time(world.timeouts.rate_window / 2),
                )
                .await
        {
            return peer.record_failure("the flood is not echoed");
        }
        let message = pattern(world.choose(&[1, 40]));
        if !peer.send(&message).await || !peer.expect_echo(&message).await {
            return peer.record_failure("no echo arrives");
        }
    }
    match (idle, world.network.random_below(3)) {
        (Some(idle), 0) => peer.expect_end(idle).await,
        (_, 1) => {
            peer.half_close().await;
            match peer.receive(peer.now() + 10 * SECOND).await {
                Received::End => {}
                _ => peer.record_failure("the end of the stream is not answered by an end"),
            }
        }
        _ => peer.reset(),
    }
}
