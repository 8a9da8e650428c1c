//! Peers that transfer bytes for hours: uploads, downloads, and other protocols, at rates around
//! the minimum.

use super::talk::{Heard, Talk};
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
    /// far, although `lump` bytes may move late.
    fn steady(world: &World, sockets: Option<&SocketBuffers>, lump: usize) -> Self {
        let window = world.promises.rate_window;
        let pause = world.choose(&[SECOND / 10, SECOND, window / 4]);
        let lasts = world.choose(&[SECOND, 100 * SECOND, 3_600 * SECOND]);
        // A piece may arrive one pause late at each end of a window, plus the network delay.
        let counted = window - 2 * pause - World::TICK;
        let least =
            (world.promises.transfer_rate_min as f64).mul_add(window.as_secs_f64(), lump as f64);
        let rate = least / counted.as_secs_f64() * world.choose(&[1.05, 2.0, 20.0]);
        let piece = (rate * pause.as_secs_f64()).ceil().max(1.0);
        let pieces = (lasts.as_secs_f64() / pause.as_secs_f64())
            .ceil()
            .min(bytes_max(sockets) as f64 / piece);
        Self { pause, piece: piece as usize, pieces: (pieces as u32).clamp(1, PIECES_MAX) }
    }

    fn bytes(&self) -> usize {
        self.piece * self.pieces as usize
    }

    /// The longest it can take, including a head.
    fn lasts(&self) -> Duration {
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
fn lump(sockets: Option<&SocketBuffers>) -> usize {
    sockets.map_or(0, SocketBuffers::progress_step_max)
}

/// Uploads a body for up to an hour, above the minimum rate, and expects its size in the response.
/// Or stops in the middle, and expects a 408 in time.
pub(super) async fn uploader(world: Rc<World>) {
    let sockets = buffers(&world);
    let flow = Flow::steady(&world, sockets.as_ref(), 0);
    let mut talk = Talk::new(&world, "uploader", sockets);
    let stops = world.network.random_below(3) == 0;
    let length = flow.bytes() + if stops { 1_000_000 } else { 0 };
    talk.say(format!("POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n")).await;
    for _ in 0..flow.pieces {
        if !talk.say(vec![7; flow.piece]).await {
            talk.fault("the upload is cut off although it is fast enough");
            return;
        }
        talk.sleep(flow.pause).await;
    }
    if !stops {
        let count = length.to_string();
        talk.expect(200, Some(count.as_bytes()), talk.now() + 10 * SECOND).await;
        return;
    }
    talk.may_end(talk.now());
    let window = world.promises.rate_window;
    let due = talk.now() + 2 * window;
    let heard = talk.hear_when_due(due, 2 * window).await;
    talk.assert_now("the 408", Duration::ZERO..due, 2 * window);
    talk.is_right(heard, 408, None);
}

/// Uploads a body, as fast as it is accepted, to a handler that does not read it for hours: no
/// timeout expires.
pub(super) async fn unwanted(world: Rc<World>) {
    let sockets = buffers(&world);
    let length = world.choose(&[1_000, 70_000, 300_000]).min(bytes_max(sockets.as_ref()));
    let mut talk = Talk::new(&world, "unwanted", sockets);
    let seconds = world.choose(&[1, 100, 8_000]);
    let head =
        format!("POST /nap/{seconds} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    if !talk.say(head).await || !talk.say(vec![7; length]).await {
        talk.fault("the upload is cut off while the handler does not read");
        return;
    }
    let until = talk.now() + Duration::from_secs(seconds) + 60 * SECOND;
    talk.expect(200, Some(length.to_string().as_bytes()), until).await;
}

/// Reads a response for up to an hour, above the minimum rate: it arrives complete.
pub(super) async fn downloader(world: Rc<World>) {
    let sockets = buffers(&world);
    let lump = lump(sockets.as_ref());
    let flow = Flow::steady(&world, sockets.as_ref(), lump);
    let mut talk = Talk::new(&world, "downloader", sockets);
    let length = flow.bytes();
    talk.get(&format!("/large/{length}")).await;
    let until = talk.now() + flow.lasts();
    let heard = talk.hear_slowly(until, flow.piece, flow.pause).await;
    talk.is_right(heard, 200, Some(&pattern(length)));
}

/// Waits for a response that is produced slowly: no timeout expires.
pub(super) async fn listener(world: Rc<World>) {
    let mut talk = Talk::new(&world, "listener", Some(SocketBuffers::with_size(20_000)));
    let (pieces, seconds) = (1 + world.network.random_below(20), world.choose(&[1, 50, 1_000]));
    talk.get(&format!("/drip/{pieces}/{seconds}")).await;
    let until = talk.now() + Duration::from_secs((pieces + 1) * seconds) + 10 * SECOND;
    let body = "drip".repeat(usize::try_from(pieces).expect("the value is small"));
    talk.expect(200, Some(body.as_bytes()), until).await;
}

/// Requests more than all buffers hold and stops reading: the peer is cut off in time, and the
/// kernel discards the data.
pub(super) async fn deaf(world: Rc<World>) {
    let sockets = buffers(&world);
    let mut talk = Talk::new(&world, "deaf", sockets);
    talk.get("/endless").await;
    for _ in 0..world.network.random_below(4) {
        talk.sleep(SECOND / 10).await;
        if talk.client.recv_at_most(1_000).await.is_err() {
            return talk.fault("the peer is cut off although it reads");
        }
    }
    // The kernels' buffers take a while to fill, during which the server does not wait.
    let due = talk.now() + 2 * world.promises.rate_window + SECOND;
    talk.sleep(due + World::TICK - talk.now()).await;
    if !world.is_ordered() {
        talk.expect_reset().await;
    }
}

/// Uses another protocol for hours, with pauses, and ends it, or becomes silent.
pub(super) async fn upgraded(world: Rc<World>) {
    let sockets = buffers(&world);
    let flood = bytes_max(sockets.as_ref()).min(150_000);
    let mut talk = Talk::new(&world, "upgraded", sockets);
    let request =
        "GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    talk.say(request).await;
    if !talk.expect(101, None, talk.now() + 10 * SECOND).await {
        return;
    }
    let idle = world.promises.upgrade_idle;
    let longest = idle.map_or(8 * 3_600 * SECOND, |idle| idle - 10 * SECOND);
    for _ in 0..world.network.random_below(8) {
        talk.sleep(world.time(world.choose(&[SECOND, longest]))).await;
        if world.network.random_below(4) == 0
            // A peer that does not read for longer than the slack is cut off.
            && !talk.floods(&pattern(flood), world.time(world.promises.rate_window / 2)).await
        {
            return talk.fault("the flood is not echoed");
        }
        let word = pattern(world.choose(&[1, 40]));
        if !talk.say(&word).await || !talk.echoes(&word).await {
            return talk.fault("no echo arrives");
        }
    }
    match (idle, world.network.random_below(3)) {
        (Some(idle), 0) => talk.expect_end(idle).await,
        (_, 1) => {
            talk.half_close().await;
            match talk.hear(talk.now() + 10 * SECOND).await {
                Heard::End => {}
                _ => talk.fault("the end of the stream is not answered by an end"),
            }
        }
        _ => talk.reset(),
    }
}
