//! The minimum transfer rate: peers that keep it are served for as long as they take, in both
//! directions.

use super::begin_with;
use crate::server::app::{Shared, pattern};
use crate::server::bench::{Bench, PATIENCE, Served, ServerOptions, Wire};
use crate::server::callers::header;
use crate::server::peer::Peer;
use crate::server::secure::{Secure, VERSIONS, client_config, server_tls};
use crate::server::server_timeouts::ServerTimeouts;
use crate::server::simulated::{LARGE, SimulatedBench};
use crate::server::streams::Streams;
use peregrine::{Http2Limits, Limits, ProxyProtocol};
use peregrine_driver_sim::SocketBuffers;
use peregrine_proto::h2::frame::{self, FrameType, flags, setting_id};
use peregrine_tls::rustls::ClientConfig;
use std::sync::Arc;
use std::time::Duration;

fn server_timeouts() -> ServerTimeouts {
    let limits = Limits { body_bytes_max: 1 << 30, ..Limits::default() };
    ServerTimeouts { limits, ..ServerTimeouts::default() }
}

/// An upload may take an hour at any rate above the minimum.
pub async fn a_steady_upload_may_take_hours(bench: &SimulatedBench) {
    bench.calm_with_large_buffers();
    let timeouts = server_timeouts();
    let (server, _) = begin_with(bench, timeouts.limits());
    for (rate, seconds) in [(timeouts.transfer_rate_min + 20, 3_600), (1_000, 600), (50_000, 120)] {
        let mut peer = Peer::new(server.connect());
        let piece = usize::try_from(rate).expect("the value is small") * 5;
        let pieces = seconds / 5;
        peer.send(format!(
            "POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
            piece * pieces
        ));
        for _ in 0..pieces {
            peer.send(vec![7; piece]);
            bench.sleep(Duration::from_secs(5)).await;
        }
        let reply = peer.reply().await;
        assert_eq!((reply.status, reply.text()), (200, &*(piece * pieces).to_string()), "{rate}/s");
    }
    server.shut_down();
    server.ended().await;
}

/// An HTTP/2 client that opened its windows wide and reads slowly may send nothing for minutes, and
/// sees the server's PING long after it was sent.
pub async fn a_slow_reader_with_a_large_window_may_be_silent(bench: &SimulatedBench) {
    bench.calm_with(SocketBuffers::with_size(20_000));
    let (server, _) = begin_with(bench, server_timeouts().limits());
    let settings = [(setting_id::INITIAL_WINDOW_SIZE, 1 << 30)];
    let mut client = Streams::with_settings(server.connect(), &settings);
    let mut more = Vec::new();
    frame::write_window_update(0, 1 << 30, &mut more);
    client.send(&more);
    client.keep_windows_shut();
    let id = client.get("/large/400000");
    while !client.so_far(id).is_complete {
        bench.sleep(Duration::from_secs(5)).await;
        assert!(client.fill_at_most(5_000, Duration::from_secs(60)).await, "{:?}", client.last());
    }
    assert!(client.so_far(id).body == pattern(400_000));
    drop(client);
    server.shut_down();
    server.ended().await;
}

/// An upload below the minimum rate ends within one rate window after its last bytes, however many
/// bytes arrived before.
pub async fn an_upload_below_the_minimum_rate_is_a_408(bench: &SimulatedBench) {
    bench.calm_with_large_buffers();
    let timeouts = server_timeouts();
    let (server, _) = begin_with(bench, timeouts.limits());
    for head_start in [0, 100_000, 1_000_000] {
        let mut peer = Peer::new(server.connect());
        peer.send("POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n");
        peer.send(vec![7; head_start]);
        let start = bench.now();
        for _ in 0..80 {
            peer.send(vec![7; 100]);
            bench.sleep(Duration::from_secs(1)).await;
            if peer.is_answered().await {
                break;
            }
        }
        let elapsed = bench.now() - start;
        assert_eq!(peer.reply().await.status, 408, "after {head_start} bytes and {elapsed:?}");
        let window = timeouts.rate_window;
        assert!(elapsed >= window && elapsed <= 2 * window, "after {head_start}: {elapsed:?}");
    }
    server.shut_down();
    server.ended().await;
}

/// An HTTP/2 upload whose client stops sending times out, whatever used up the windows: padding,
/// which the handler does not consume, or announced content that does not arrive.
pub async fn a_silent_upload_times_out_with_any_window(bench: &SimulatedBench) {
    bench.calm_with_large_buffers();
    let timeouts = server_timeouts();
    let window = 16_384;
    let http2 = Http2Limits { initial_stream_window: window, ..Http2Limits::default() };
    let limits = Limits { http2, ..timeouts.limits() };
    let (server, _) = begin_with(bench, limits);
    let padding = [255; 256];
    let frames = (window / 256) as usize;
    let padded = (0..frames).fold(Vec::new(), |mut out, _| {
        frame::write_frame(FrameType::Data, flags::PADDED, 1, &padding, &mut out);
        out
    });
    let mut header_only = Vec::new();
    frame::write_frame(FrameType::Data, 0, 1, &vec![7; window as usize], &mut header_only);
    header_only.truncate(9);
    for (sent, bytes) in [("nothing", Vec::new()), ("padding", padded), ("a header", header_only)] {
        let mut client = Streams::new(server.connect());
        client.round_trip().await;
        let id = client.open("POST", "/count", &[], false);
        let start = bench.now();
        client.send(&bytes);
        let response = client.answer(id).await;
        let elapsed = bench.now() - start;
        assert_eq!(response.status(), 408, "after {sent}");
        let elapsed_max = timeouts.rate_window * 9 / 8 + Duration::from_millis(500);
        assert!(elapsed <= elapsed_max, "after {sent}: {elapsed:?}");
    }
    server.shut_down();
    server.ended().await;
}

/// Received parts of an incomplete TLS record count towards the rate; records without content do
/// not.
pub async fn an_upload_in_tls_is_measured_by_its_content(bench: &SimulatedBench) {
    bench.calm_with_large_buffers();
    let timeouts = server_timeouts();
    let app = Shared::default().app();
    let server = bench.start(timeouts.limits(), Some(server_tls()), app);
    let mut config = ClientConfig::clone(&client_config(VERSIONS[0]));
    config.alpn_protocols = vec![b"h2".to_vec()];
    let mut wire = Secure::new(server.connect_secure(), &Arc::new(config));
    wire.shake_hands(PATIENCE).await;
    let mut client = Streams::new(wire);
    let id = client.open("POST", "/count", &[], false);
    let mut frame = Vec::new();
    frame::write_frame(FrameType::Data, flags::END_STREAM, id, &[7; 16_000], &mut frame);
    let record = client.wire().seal(&frame);
    for piece in record.chunks(2_000) {
        bench.sleep(Duration::from_secs(5)).await;
        client.wire().send_raw(piece);
    }
    let response = client.answer(id).await;
    assert_eq!((response.status(), response.text()), (200, "16000"));
    drop(client);

    let wire = Secure::new(server.connect_secure(), &client_config(VERSIONS[0]));
    let mut peer = Peer::new(wire);
    peer.wire().shake_hands(PATIENCE).await;
    peer.send("POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
    let start = bench.now();
    while !peer.is_answered().await {
        peer.send([7]);
        // 27 bytes each.
        (0..12).for_each(|_| peer.wire().renew_keys());
        bench.sleep(Duration::from_secs(1)).await;
        assert!(bench.now() - start < 2 * timeouts.rate_window, "the upload is aborted in time");
    }
    assert_eq!(peer.reply().await.status, 408);
    drop(peer);
    server.shut_down();
    server.ended().await;
}

/// Bytes of a PROXY header do not count towards the upload either.
pub async fn a_proxy_header_before_tls_is_not_content(bench: &SimulatedBench) {
    bench.calm_with_large_buffers();
    let timeouts = ServerTimeouts { rate_window: Duration::from_secs(5), ..server_timeouts() };
    let settings = ProxyProtocol::required().trust(["0.0.0.0/0", "::/0", "unix:"]);
    let server_options =
        ServerOptions { proxy_protocol: Some(settings), ..ServerOptions::default() };
    let app = Shared::default().app();
    let server = bench.start_behind(server_options, timeouts.limits(), Some(server_tls()), app);
    let source = "192.0.2.1:1".parse().expect("an address");
    let mut wire = server.connect_secure();
    wire.send(&header::proxied(source, source, &header::value(0x04, &[0; 3_500])));
    let mut peer = Peer::new(Secure::new(wire, &client_config(VERSIONS[0])));
    peer.wire().shake_hands(PATIENCE).await;
    peer.send("POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 6000\r\n\r\n");
    for _ in 0..20 {
        bench.sleep(Duration::from_secs(1)).await;
        peer.send([7; 300]);
    }
    let reply = peer.reply().await;
    assert_eq!((reply.status, reply.text()), (200, "6000"));
    drop(peer);
    server.shut_down();
    server.ended().await;
}

/// A peer that stops sending is detected at most one eighth of the window late, however much it
/// sent before.
pub async fn a_peer_that_becomes_silent_is_noticed_in_time(bench: &SimulatedBench) {
    bench.calm_with_large_buffers();
    let idle = Duration::from_secs(20);
    let timeouts = ServerTimeouts { upgrade_idle: Some(idle), ..server_timeouts() };
    let (server, _) = begin_with(bench, timeouts.limits());
    let uploads = [
        (
            "POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n",
            timeouts.rate_window,
        ),
        (
            "POST /echo-stream HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
            idle,
        ),
    ];
    for (head, time) in uploads {
        for seconds in [0, 1, 4, 17] {
            let mut peer = Peer::new(server.connect());
            peer.send(head);
            bench.sleep(Duration::from_secs(seconds)).await;
            peer.send(format!("4e20\r\n{}\r\n", "b".repeat(20_000)));
            let start = bench.now();
            peer.rest().await;
            let elapsed = bench.now() - start;
            let elapsed_max = time + time / 8 + Duration::from_millis(500);
            assert!(
                elapsed >= time && elapsed <= elapsed_max,
                "{head}: {elapsed:?} after {seconds} s"
            );
        }
    }
    server.shut_down();
    server.ended().await;
}

/// A reader that reads a response slowly, but above the minimum rate, gets all of it.
pub async fn a_slow_but_steady_reader_gets_the_complete_response(bench: &SimulatedBench) {
    bench.calm_with_large_buffers();
    let timeouts = server_timeouts();
    let (server, _) = begin_with(bench, timeouts.limits());
    let length = 400_000;
    let rate = timeouts.transfer_rate_min
        + LARGE.progress_step_max() as u64 / timeouts.rate_window.as_secs();
    for rate in [rate + 200, 20_000] {
        let mut peer = Peer::new(server.connect());
        peer.get(&format!("/large/{length}"));
        let piece = usize::try_from(rate / 4).expect("the value is small");
        let reply = peer.reply_slowly(bench, piece, Duration::from_millis(250)).await;
        assert!(reply.body == pattern(length), "at {rate}/s: {} bytes", reply.body.len());
    }
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// A slow reader gets the complete response even if the kernel buffers megabytes: the socket
/// becomes writable only after much of the buffer has drained, which is not the reader's fault.
pub async fn a_slow_reader_behind_large_buffers_gets_the_complete_response<B: Bench>(bench: &B) {
    bench.calm_with_large_buffers();
    let window = Duration::from_secs(2);
    let timeouts =
        ServerTimeouts { transfer_rate_min: 1, rate_window: window, ..ServerTimeouts::default() };
    let (server, _) = begin_with(bench, timeouts.limits());
    let length = 6_000_000;
    let mut peer = Peer::new(server.connect());
    peer.get(&format!("/large/{length}"));
    let reply = peer.reply_slowly(bench, 50_000, Duration::from_millis(100)).await;
    assert!(reply.body == pattern(length), "{} bytes", reply.body.len());
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// A peer that reads nothing is disconnected, and its unread data does not stay in the kernel.
pub async fn disconnected_peers_leave_no_unsent_data_in_the_kernel<B: Bench>(bench: &B) {
    bench.calm_with_large_buffers();
    let window = Duration::from_secs(1);
    let timeouts = ServerTimeouts { rate_window: window, ..ServerTimeouts::default() };
    let (server, _) = begin_with(bench, timeouts.limits());
    let peers: Vec<_> = (0..20)
        .map(|number| {
            let mut peer = Peer::new(server.connect());
            peer.get(if number % 2 == 0 { "/endless" } else { "/large/8000000" });
            peer
        })
        .collect();
    bench.sleep(3 * window).await;
    let orphaned = bench.bytes_of_the_closed(&server);
    server.shut_down();
    let outcome = server.ended().await;
    drop(peers);
    assert_eq!(outcome.ended("write-stalled"), 20, "{outcome:?}");
    assert!(orphaned.is_none_or(|bytes| bytes == 0), "the kernel holds {orphaned:?} bytes");
}

/// Small responses are written without waiting for the kernel. A peer that reads none of them is
/// still detected, and is not treated as idle.
pub async fn a_peer_that_does_not_read_small_responses_is_disconnected<B: Bench>(bench: &B) {
    bench.calm_with_large_buffers();
    let window = Duration::from_secs(1);
    let timeouts = ServerTimeouts { rate_window: window, ..ServerTimeouts::default() };
    let (server, _) = begin_with(bench, timeouts.limits());
    let mut peer = Peer::new(server.connect());
    // One at a time, so that no two share a write; altogether more than the kernel buffers.
    for _ in 0..2_000 {
        peer.get("/large/8000");
        bench.sleep(Duration::from_millis(1)).await;
    }
    bench.sleep(3 * window).await;
    server.shut_down();
    let outcome = server.ended().await;
    drop(peer);
    assert_eq!(outcome.ended("write-stalled"), 1, "{outcome:?}");
}

/// A peer that stops reading for a moment gets every response, whichever of them did not fit in the
/// kernel's buffer, even though the connection ends after the last.
pub async fn a_peer_that_pauses_before_the_end_gets_every_response<B: Bench>(bench: &B) {
    bench.calm_with_large_buffers();
    let (server, _) = begin_with(bench, ServerTimeouts::default().limits());
    // For some of these counts, the last response fits in the buffer only partly.
    for count in 16..48 {
        for closes in [false, true] {
            let mut peer = Peer::new(server.connect());
            for _ in 1..count {
                peer.get("/large/8000");
                bench.sleep(Duration::from_millis(2)).await;
            }
            if closes {
                peer.send("GET /large/8000 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            } else {
                peer.get("/large/8000");
                peer.half_close();
            }
            bench.sleep(Duration::from_millis(50)).await;
            for number in 0..count {
                let reply = peer.reply().await;
                assert_eq!(reply.body.len(), 8_000, "response {number} of {count}");
            }
            peer.expect_end().await;
        }
    }
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("connection-close", 32)]);
}

/// Peers whose last responses did not fit in the kernel's buffer, which becomes known only when the
/// connection is idle. Enough peers are used that there are some.
async fn peers_with_unread_responses<S: Served, B: Bench<Server = S>>(
    bench: &B,
    server: &S,
) -> Vec<(usize, Peer<S::Wire>)> {
    let mut peers: Vec<_> = (12..40).map(|count| (count, Peer::new(server.connect()))).collect();
    for number in 0..40 {
        for (count, peer) in &mut peers {
            if number < *count {
                peer.get("/large/8000");
            }
        }
        bench.sleep(Duration::from_millis(4)).await;
    }
    peers
}

/// The idle timeout of a connection starts when its peer has read the last response.
pub async fn a_peer_that_read_late_has_the_full_idle_timeout<B: Bench>(bench: &B) {
    bench.calm_with_large_buffers();
    let window = Duration::from_secs(1);
    let timeouts = ServerTimeouts { rate_window: window, ..ServerTimeouts::default() };
    let (server, _) = begin_with(bench, timeouts.limits());
    let peers = peers_with_unread_responses(bench, &server).await;
    bench.sleep(3 * window).await;
    server.shut_down();
    let unsent = server.ended().await.ended("write-stalled");
    let unsent = usize::try_from(unsent).expect("the value is small");
    assert!((1..peers.len()).contains(&unsent), "{unsent} had more than the kernel buffers");
    drop(peers);
    // A server that is behind answers several requests in one write, of which the kernel accepts up
    // to twice as much. Half of the peers, those with the most responses, exceed that too.
    let unsent = unsent.div_ceil(2);
    // A busy machine may be late with everything, but not on every attempt.
    let mut open_counts = Vec::new();
    for _ in 0..4 {
        open_counts.push(count_of_open_peers_with_most_responses(bench, unsent).await);
        if open_counts.last() == Some(&unsent) {
            return;
        }
    }
    panic!("of {unsent} peers {open_counts:?} stayed; the others were closed as idle");
}

async fn count_of_open_peers_with_most_responses<B: Bench>(bench: &B, count: usize) -> usize {
    let idle = Duration::from_secs(4);
    let limits = Limits { idle_timeout: idle, ..Limits::default() };
    let timeouts = ServerTimeouts { limits, rate_window: 6 * idle, ..ServerTimeouts::default() };
    let (server, _) = begin_with(bench, timeouts.limits());
    let mut peers = peers_with_unread_responses(bench, &server).await;
    bench.sleep(idle * 3 / 4).await;
    for (count, peer) in &mut peers {
        for _ in 0..*count {
            assert_eq!(peer.reply().await.body.len(), 8_000, "of {count} responses");
        }
    }
    bench.sleep(idle * 3 / 8).await;
    let first = peers.len() - count;
    let most_responses = &mut peers[first..];
    most_responses.iter_mut().for_each(|(_, peer)| peer.get("/hello"));
    let mut open_count = 0;
    for (_, peer) in most_responses {
        open_count += usize::from(matches!(peer.more(PATIENCE).await, Ok(Some(_))));
    }
    server.shut_down();
    server.ended().await;
    open_count
}

/// How slowly one peer read its responses does not count against the next peer that reuses its
/// memory.
pub async fn measurements_of_the_previous_peer_do_not_count<B: Bench>(bench: &B) {
    bench.calm_with_large_buffers();
    let window = Duration::from_secs(4);
    let timeouts = ServerTimeouts { rate_window: window, ..ServerTimeouts::default() };
    let (server, _) = begin_with(bench, timeouts.limits());
    let slow: Vec<_> = (0..40)
        .map(|_| {
            let mut peer = Peer::new(server.connect());
            peer.get("/large/8000000");
            peer
        })
        .collect();
    bench.sleep(window / 4).await;
    slow.into_iter().for_each(Peer::reset);
    bench.sleep(window).await;
    let mut peers = peers_with_unread_responses(bench, &server).await;
    bench.sleep(window / 4).await;
    for (count, peer) in &mut peers {
        for number in 0..*count {
            let reply = peer.reply().await;
            assert_eq!(reply.body.len(), 8_000, "response {number} of {count}");
        }
    }
    server.shut_down();
    assert_eq!(server.ended().await.ended("write-stalled"), 0);
}
