//! Event streams, and rules for all streams whose producers pause.

use super::{limits, server_timeouts};
use crate::server::app::Shared;
use crate::server::bench::{Bench, Outcome, Served};
use crate::server::events::{Reader, WAYS};
use crate::server::peer::Peer;
use crate::server::secure::server_tls;
use crate::server::server_timeouts::ServerTimeouts;
use crate::server::simulated::SimulatedBench;
use crate::server::streams::Streams;
use peregrine::Limits;
use peregrine_driver_sim::SocketBuffers;
use peregrine_proto::h2::frame::{self, setting_id};
use std::time::Duration;

const COMMENT: &str = ":\n\n";
const A_MOMENT: Duration = Duration::from_millis(20);
const HOUR: Duration = Duration::from_secs(3_600);

/// A server with every protocol enabled.
fn begin_with<B: Bench>(bench: &B, limits: Limits) -> (B::Server, Shared) {
    let shared = Shared::default();
    (bench.start(limits, Some(server_tls()), shared.app()), shared)
}

/// Ends a case whose readers have disconnected or completed.
async fn end<S: Served>(server: S) -> Outcome {
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.cut, []);
    outcome
}

/// A piece that a body yields reaches the client before the producer continues.
pub async fn pieces_arrive_one_by_one_on_every_protocol<B: Bench>(bench: &B) {
    let (server, shared) = begin_with(bench, limits());
    for way in WAYS {
        let mut reader = Reader::begin::<B>(&server, way, "/gated/3").await;
        for number in 0..3 {
            reader.expect_nothing(A_MOMENT).await;
            shared.open(1);
            reader.expect(&format!("piece {number}\n")).await;
        }
        reader.expect_end().await;
    }
    end(server).await;
}

/// An event reaches the client before the producer continues.
pub async fn events_arrive_one_by_one_on_every_protocol<B: Bench>(bench: &B) {
    for way in WAYS {
        // One server per stream, because the gate is shared.
        let (server, shared) = begin_with(bench, limits());
        let mut reader = Reader::begin::<B>(&server, way, "/events/gated").await;
        for number in 1..=3 {
            reader.expect_nothing(A_MOMENT).await;
            shared.open(1);
            reader.expect(&format!("data: {number}\n\n")).await;
        }
        drop(reader);
        end(server).await;
    }
}

/// Events that a task pushes arrive as they are pushed.
pub async fn pushed_events_arrive_on_every_protocol<B: Bench>(bench: &B) {
    let (server, shared) = begin_with(bench, limits());
    let mut readers = Vec::new();
    for way in WAYS {
        let mut reader = Reader::begin::<B>(&server, way, "/events/pushed/2").await;
        reader.expect("data: 1\n\n").await;
        reader.expect("data: 2\n\n").await;
        readers.push(reader);
    }
    drop(readers);
    end(server).await;
    assert_eq!(shared.finished.get(), 4);
}

/// A drain ends event streams cleanly, long before the deadline.
pub async fn a_drain_ends_event_streams<B: Bench>(bench: &B) {
    let (server, shared) = begin_with(bench, limits());
    let mut readers = Vec::new();
    for way in WAYS {
        readers.push(Reader::begin::<B>(&server, way, "/events/gated").await);
        readers.push(Reader::begin::<B>(&server, way, "/events/quiet").await);
    }
    bench.wait_until("the streams started", || shared.started.get() == 8).await;
    server.shut_down();
    for reader in &mut readers {
        reader.expect_end().await;
    }
    drop(readers);
    end(server).await;
}

/// A stream may have a final event in a drain.
pub async fn the_handler_sends_a_final_event_in_a_drain<B: Bench>(bench: &B) {
    let (server, shared) = begin_with(bench, limits());
    let mut readers = Vec::new();
    for way in WAYS {
        readers.push(Reader::begin::<B>(&server, way, "/events/goodbye").await);
    }
    bench.wait_until("the streams started", || shared.started.get() == 4).await;
    server.shut_down();
    for reader in &mut readers {
        reader.expect("event: end\ndata: bye\n\n").await;
        reader.expect_end().await;
    }
    drop(readers);
    end(server).await;
}

/// A stream may continue during a drain, and its producer is notified of the drain.
pub async fn a_detached_event_stream_continues_during_a_drain<B: Bench>(bench: &B) {
    let limits = Limits { shutdown_timeout: Duration::from_secs(3), ..limits() };
    let (server, shared) = begin_with(bench, limits);
    let mut readers = Vec::new();
    for way in WAYS {
        readers.push(Reader::begin::<B>(&server, way, "/events/through").await);
    }
    bench.wait_until("the streams started", || shared.started.get() == 4).await;
    server.shut_down();
    for reader in &mut readers {
        reader.expect("data: shutdown\n\n").await;
        reader.expect_nothing(A_MOMENT).await;
    }
    let outcome = server.ended().await;
    assert_eq!(outcome.cut.len(), 4, "{outcome:?}");
}

/// A sender is notified of a drain, and its reader gets everything that was sent before.
pub async fn a_sender_is_notified_of_a_drain<B: Bench>(bench: &B) {
    let (server, shared) = begin_with(bench, limits());
    let mut readers = Vec::new();
    for way in WAYS {
        readers.push(Reader::begin::<B>(&server, way, "/events/pushed/1").await);
    }
    bench.wait_until("the events are pushed", || shared.produced.get() == 4).await;
    server.shut_down();
    for reader in &mut readers {
        reader.expect("data: 1\n\n").await;
        reader.expect_end().await;
    }
    drop(readers);
    end(server).await;
    assert_eq!(shared.finished.get(), 4);
}

/// A sender notices when its reader disconnects.
pub async fn a_sender_is_notified_when_its_reader_disconnects<B: Bench>(bench: &B) {
    let (server, shared) = begin_with(bench, limits());
    for (index, way) in WAYS.into_iter().enumerate() {
        drop(Reader::begin::<B>(&server, way, "/events/flood").await);
        bench.wait_until("the sender noticed", || shared.finished.get() == index + 1).await;
    }
    end(server).await;
}

/// A silent stream ends as soon as its reader closes, and a sender is notified.
pub async fn a_close_is_noticed_on_a_quiet_event_stream<B: Bench>(bench: &B) {
    let (server, shared) = begin_with(bench, limits());
    for (index, way) in WAYS.into_iter().enumerate() {
        let stream = Reader::begin::<B>(&server, way, "/events/quiet").await;
        let pushed = Reader::begin::<B>(&server, way, "/events/silent").await;
        bench.wait_until("both have started", || shared.started.get() == 2 * (index + 1)).await;
        drop((stream, pushed));
        bench.wait_until("the stream was dropped", || shared.dropped.get() == index + 1).await;
        bench.wait_until("the sender noticed", || shared.finished.get() == index + 1).await;
    }
    end(server).await;
}

/// No events are produced for a reader that does not read, and eventually it is disconnected.
pub async fn a_reader_that_does_not_read_events_blocks_the_producer<B: Bench>(bench: &B) {
    bench.calm();
    let timeouts = ServerTimeouts { rate_window: Duration::from_secs(1), ..server_timeouts() };
    let (server, shared) = begin_with(bench, timeouts.limits());
    let mut peers = Vec::new();
    let mut clients = Vec::new();
    for path in ["/events/endless", "/events/flood"] {
        let mut peer = Peer::new(server.connect());
        peer.get(path);
        peers.push(peer);
        let mut client = Streams::new(server.connect());
        client.keep_windows_shut();
        client.get(path);
        clients.push(client);
    }
    bench
        .wait_until("the streams ended", || shared.dropped.get() + shared.finished.get() == 4)
        .await;
    // For each stream, what the kernels buffer and what the server may hold.
    let bytes_max = if bench.is_virtual() { 4 * 4 * 64 * 1024 } else { 4 * (32 << 20) };
    assert!(shared.produced.get() <= bytes_max, "{} bytes were produced", shared.produced.get());
    drop((peers, clients));
    end(server).await;
}

/// A stream without events stays open for hours, because the server is not waiting for its reader.
pub async fn an_event_stream_without_events_stays_open_for_hours(bench: &SimulatedBench) {
    let (server, shared) = begin_with(bench, server_timeouts().limits());
    for (index, way) in WAYS.into_iter().enumerate() {
        let mut reader = Reader::begin::<SimulatedBench>(&server, way, "/events/quiet").await;
        for number in 1..=3 {
            reader.expect_nothing(5 * HOUR).await;
            shared.open(1);
            reader.expect(&format!("data: {number}\n\n")).await;
        }
        reader.reset();
        bench.wait_until("the stream was dropped", || shared.dropped.get() == index + 1).await;
    }
    end(server).await;
}

/// A silent stream sends a comment every 15 s for hours, without help from its handler.
pub async fn a_silent_event_stream_sends_comments_for_hours(bench: &SimulatedBench) {
    bench.calm();
    let (server, shared) = begin_with(bench, server_timeouts().limits());
    for (index, way) in WAYS.into_iter().enumerate() {
        let mut reader = Reader::begin::<SimulatedBench>(&server, way, "/events/gated").await;
        for number in 1..=3 {
            let start = bench.now();
            for _ in 0..240 {
                reader.expect(COMMENT).await;
            }
            let elapsed = bench.now() - start;
            // The silence began a little earlier, and a comment may be late by a tick or two.
            let (elapsed_min, elapsed_max) =
                (HOUR - Duration::from_secs(15), HOUR + Duration::from_secs(240));
            assert!(
                elapsed >= elapsed_min && elapsed <= elapsed_max,
                "240 comments in {elapsed:?}"
            );
            // An event restarts the silence interval.
            bench.sleep(Duration::from_secs(10)).await;
            shared.open(1);
            reader.expect(&format!("data: {number}\n\n")).await;
            reader.expect_nothing(Duration::from_secs(14)).await;
        }
        drop(reader);
        bench.wait_until("the stream was dropped", || shared.dropped.get() == index + 1).await;
    }
    end(server).await;
}

/// An HTTP/2 reader that opens its small window one second after each comment gets everything, for
/// hours.
pub async fn an_event_reader_with_late_window_updates_is_served_for_hours(bench: &SimulatedBench) {
    bench.calm();
    let (server, _) = begin_with(bench, server_timeouts().limits());
    let settings = [(setting_id::INITIAL_WINDOW_SIZE, 2)];
    let mut client = Streams::with_settings(server.connect(), &settings);
    client.keep_windows_shut();
    let id = client.get("/events/gated");
    client.expect_head(id).await;
    for comments in 0..500 {
        client.expect(id, comments * COMMENT.len() + 2).await;
        bench.sleep(Duration::from_secs(1)).await;
        let mut window_updates = Vec::new();
        frame::write_window_update(id, 3, &mut window_updates);
        frame::write_window_update(0, 3, &mut window_updates);
        client.send(&window_updates);
        client.expect(id, (comments + 1) * COMMENT.len()).await;
    }
    drop(client);
    end(server).await;
}

/// A reader that does not even read the comments is disconnected by the minimum rate.
pub async fn a_reader_that_does_not_read_comments_is_disconnected(bench: &SimulatedBench) {
    bench.calm_with(SocketBuffers::with_size(500));
    let (server, shared) = begin_with(bench, server_timeouts().limits());
    // The head and some comments fit; then the pipe is full.
    let mut peer = Peer::new(server.connect());
    peer.get("/events/gated");
    let settings = [(setting_id::INITIAL_WINDOW_SIZE, 1)];
    let mut client = Streams::with_settings(server.connect(), &settings);
    client.keep_windows_shut();
    let id = client.get("/events/gated");
    client.expect_head(id).await;
    let start = bench.now();
    // The window is closed after the first byte: 15 s of silence, and 30 s for the rest.
    while client.so_far(id).reset.is_none() {
        assert!(bench.now() - start < Duration::from_secs(60), "the stream was not ended");
        client.listen(Duration::from_secs(1)).await;
    }
    assert!(bench.now() - start > Duration::from_secs(44), "after {:?}", bench.now() - start);
    assert_eq!(shared.dropped.get(), 1);
    while shared.dropped.get() < 2 {
        assert!(bench.now() - start < HOUR, "the stream was not ended");
        bench.sleep(Duration::from_secs(10)).await;
    }
    drop((peer, client));
    assert_eq!(end(server).await.ended("write-stalled"), 1);
}

/// A vanished HTTP/2 reader, which does not answer PING, is disconnected in time, however many
/// comments fit in its windows.
pub async fn a_vanished_event_reader_is_disconnected(bench: &SimulatedBench) {
    bench.calm_with_large_buffers();
    let limits = server_timeouts().limits();
    let time =
        limits.http2.keep_alive_interval.expect("pings are enabled") + limits.transfer_rate_grace;
    let (server, shared) = begin_with(bench, limits);
    let mut client = Streams::new(server.connect());
    let id = client.get("/events/gated");
    client.expect_head(id).await;
    let start = bench.now();
    bench.sleep(time - Duration::from_secs(1)).await;
    assert_eq!(shared.dropped.get(), 0);
    bench.wait_until("the reader is disconnected", || shared.dropped.get() == 1).await;
    assert!(bench.now() - start <= time + Duration::from_secs(1), "{:?}", bench.now() - start);
    drop(client);
    assert_eq!(end(server).await.endings(), [("ping-timeout", 1)]);
}

/// A server in its lame-duck period keeps sending events.
pub async fn event_streams_continue_in_the_lame_duck_phase(bench: &SimulatedBench) {
    let lame_duck_period = Duration::from_secs(10);
    let (server, shared) =
        begin_with(bench, ServerTimeouts { lame_duck_period, ..server_timeouts() }.limits());
    let mut readers = Vec::new();
    for way in WAYS {
        readers.push(Reader::begin::<SimulatedBench>(&server, way, "/events/quiet").await);
    }
    bench.wait_until("the streams started", || shared.started.get() == 4).await;
    server.shut_down();
    for reader in &mut readers {
        reader.expect_nothing(Duration::from_secs(1)).await;
    }
    // Each stream waits for a permit.
    shared.open(4);
    for reader in &mut readers {
        reader.expect("data: 1\n\n").await;
        reader.expect_end().await;
    }
    drop(readers);
    end(server).await;
}
