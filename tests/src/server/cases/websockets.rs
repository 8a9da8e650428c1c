//! WebSockets over every protocol.

use super::{limits, server_timeouts};
use crate::server::app::{Shared, pattern};
use crate::server::bench::{Bench, Outcome, Served};
use crate::server::events::WAYS;
use crate::server::secure::server_tls;
use crate::server::server_timeouts::ServerTimeouts;
use crate::server::simulated::SimulatedBench;
use crate::server::websockets::{Said, Socket};
use peregrine::Limits;
use peregrine_proto::ws::MessagePayload;
use peregrine_proto::ws::frame::{self, Opcode, flag};
use std::time::Duration;

const A_MOMENT: Duration = Duration::from_millis(20);
const HOUR: Duration = Duration::from_secs(3_600);

fn begin_with<B: Bench>(bench: &B, limits: Limits) -> (B::Server, Shared) {
    let shared = Shared::default();
    (bench.start(limits, Some(server_tls()), shared.app()), shared)
}

fn begin<B: Bench>(bench: &B) -> (B::Server, Shared) {
    begin_with(bench, limits())
}

/// Ends a case whose clients have disconnected or completed.
async fn end<S: Served>(server: S) -> Outcome {
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.cut, []);
    outcome
}

/// Text and binary messages of every frame header length are echoed, and a Close frame ends the
/// WebSocket.
pub async fn messages_of_all_sizes_are_echoed<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let large = bench.large(if bench.is_virtual() { 100_000 } else { 900_000 });
    for way in WAYS {
        let mut socket = Socket::open::<B>(&server, way, "/ws/echo").await;
        for size in [0, 1, 125, 126, 127, 2_000, 65_535, 65_536, large] {
            let size = size.min(large);
            let bytes = pattern(size);
            socket.send(MessagePayload::Binary(&bytes)).await;
            socket.expect(Said::Binary(bytes)).await;
            let text = "\u{e9}".repeat(size / 2);
            socket.text(&text).await;
            socket.expect_text(&text).await;
        }
        // Several messages in flight are answered in order.
        for number in 0..20 {
            socket.text(&number.to_string()).await;
        }
        for number in 0..20 {
            socket.expect_text(&number.to_string()).await;
        }
        socket.close(3_000).await;
        socket.expect_close(3_000).await;
    }
    let outcome = end(server).await;
    assert_eq!((shared.finished.get(), shared.dropped.get()), (4, 0));
    assert_eq!(outcome.ended("upgraded"), 2, "{outcome:?}");
}

/// Fragments of one message arrive as one message, with control frames between them.
pub async fn fragments_are_one_message<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    for way in WAYS {
        let mut socket = Socket::open::<B>(&server, way, "/ws/echo").await;
        socket.frame(Opcode::Text, 0, "caf\u{e9}".as_bytes().split_last().expect("text").1).await;
        socket.frame(Opcode::Ping, flag::FIN, b"within").await;
        socket.expect(Said::Pong(b"within".to_vec())).await;
        socket.frame(Opcode::Continuation, 0, b"").await;
        socket.frame(Opcode::Continuation, flag::FIN, b"\xa9!").await;
        socket.expect_text("caf\u{e9}!").await;
        drop(socket);
    }
    end(server).await;
}

/// Pings are answered while the handler waits for something else and does not read.
pub async fn pings_are_answered_while_the_handler_waits<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    for way in WAYS {
        let mut socket = Socket::open::<B>(&server, way, "/ws/quiet").await;
        for payload in [&b""[..], b"a", &[7; 125]] {
            socket.frame(Opcode::Ping, flag::FIN, payload).await;
            socket.expect(Said::Pong(payload.to_vec())).await;
        }
        // An unsolicited pong.
        socket.frame(Opcode::Pong, flag::FIN, b"unasked").await;
        socket.close(1_000).await;
        socket.expect(Said::Close(1_000)).await;
        shared.open(1);
        socket.expect(Said::End).await;
    }
    end(server).await;
    assert_eq!(shared.finished.get(), 4);
}

/// A handler gets the pong that peers send in response to its ping.
pub async fn a_handler_may_ping<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    for way in WAYS {
        let mut socket = Socket::open::<B>(&server, way, "/ws/pinger").await;
        socket.expect(Said::Binary(b"are you there?".to_vec())).await;
        socket.close(1_000).await;
        socket.expect_close(1_000).await;
    }
    end(server).await;
}

/// The close code chosen by the handler, and that of a handler that just returns.
pub async fn a_handler_closes_with_a_code<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    for way in WAYS {
        for (path, code) in
            [("/ws/close/1000", 1_000), ("/ws/close/4999", 4_999), ("/ws/end", 1_000)]
        {
            let mut socket = Socket::open::<B>(&server, way, path).await;
            socket.expect_close(code).await;
        }
    }
    end(server).await;
    assert_eq!(shared.finished.get(), 12);
}

/// A peer that violates the protocol or exceeds a limit gets the corresponding close code.
pub async fn protocol_errors_are_reported<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let framed = |opcode, flags, payload: &[u8]| {
        let mut bytes = Vec::new();
        frame::write_frame(opcode, flags, Some(*b"mask"), payload, &mut bytes);
        bytes
    };
    let mut unmasked = Vec::new();
    frame::write_frame(Opcode::Text, flag::FIN, None, b"a", &mut unmasked);
    let fragments =
        [framed(Opcode::Text, 0, &[b'a'; 700]), framed(Opcode::Continuation, 0, &[b'a'; 700])];
    let invalid = [
        (unmasked, 1_002),
        (framed(Opcode::Text, flag::FIN | flag::RSV1, b"a"), 1_002),
        (framed(Opcode::Continuation, flag::FIN, b"a"), 1_002),
        (framed(Opcode::Ping, 0, b"a"), 1_002),
        (framed(Opcode::Close, flag::FIN, &[3]), 1_002),
        (framed(Opcode::Close, flag::FIN, &1_005_u16.to_be_bytes()), 1_002),
        (framed(Opcode::Text, flag::FIN, b"\xff"), 1_007),
        (framed(Opcode::Text, flag::FIN, b"a\xc3"), 1_007),
        (framed(Opcode::Close, flag::FIN, b"\x03\xe8\xff"), 1_007),
        (framed(Opcode::Binary, flag::FIN, &[0; 801]), 1_009),
        (fragments.concat(), 1_009),
    ];
    for way in WAYS {
        // In simulations each run covers some of them.
        let step = if bench.is_virtual() { 4 } else { 1 };
        let from = bench.choose(step);
        for (bytes, code) in invalid.iter().skip(from).step_by(step) {
            let mut socket = Socket::open::<B>(&server, way, "/ws/small").await;
            socket.text("before").await;
            socket.push(bytes).await;
            socket.expect_text("before").await;
            socket.expect_close(*code).await;
        }
    }
    end(server).await;
    assert_eq!((shared.finished.get(), shared.dropped.get()), (shared.started.get(), 0));
}

/// Messages before an end without a Close frame are answered; then the server ends too.
pub async fn an_end_without_a_close_frame_ends_the_handler<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    for way in WAYS {
        let mut socket = Socket::open::<B>(&server, way, "/ws/echo").await;
        socket.text("before").await;
        socket.half_close();
        socket.expect_text("before").await;
        socket.expect(Said::End).await;
    }
    end(server).await;
    assert_eq!(shared.finished.get(), 4);
}

/// Compressed messages, with and without context takeover.
pub async fn messages_are_compressed<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let offer = [("sec-websocket-extensions", "permessage-deflate; client_max_window_bits")];
    for way in WAYS {
        for (path, keeps_context) in [("/ws/deflate", false), ("/ws/deflate-kept", true)] {
            let mut socket = Socket::open_with::<B>(&server, way, path, &offer).await;
            let resets = socket.fields.matches("no_context_takeover").count();
            assert_eq!(resets, if keeps_context { 0 } else { 2 }, "{}", socket.fields);
            for number in 0..5 {
                let text = "the same words again, ".repeat(10 * number);
                socket.text(&text).await;
                socket.expect_text(&text).await;
                let bytes = pattern(bench.large(20_000));
                socket.send(MessagePayload::Binary(&bytes)).await;
                socket.expect(Said::Binary(bytes)).await;
            }
            socket.close(1_000).await;
            socket.expect_close(1_000).await;
        }
        // The server does not accept an extension that was not offered.
        let socket = Socket::open::<B>(&server, way, "/ws/deflate").await;
        assert!(!socket.fields.contains("permessage-deflate"));
    }
    end(server).await;
}

/// A few bytes that decompress to many are refused before all of them are decompressed.
pub async fn a_decompression_bomb_closes_with_1009<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let offer = [("sec-websocket-extensions", "permessage-deflate")];
    for way in WAYS {
        let path = "/ws/deflate-small";
        let mut socket = Socket::open_with::<B>(&server, way, path, &offer).await;
        socket.text(&"x".repeat(1_000)).await;
        socket.expect_text(&"x".repeat(1_000)).await;
        socket.text(&"x".repeat(500_000)).await;
        socket.expect_close(1_009).await;
    }
    end(server).await;
}

/// A panic of the handler gets 1011, and affects nothing else.
pub async fn a_panic_of_the_handler_closes_with_1011<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    for way in WAYS {
        let mut other = Socket::open::<B>(&server, way, "/ws/echo").await;
        let mut socket = Socket::open::<B>(&server, way, "/ws/panic").await;
        socket.text("now").await;
        socket.expect(Said::Close(1_011)).await;
        // Over HTTP/2 the stream is reset, as after every panic.
        let last = socket.next().await;
        let expected = if way.is_http2 { Said::Broken(2) } else { Said::End };
        assert_eq!(last, expected);
        other.text("well").await;
        other.expect_text("well").await;
    }
    let outcome = end(server).await;
    assert_eq!(outcome.ended("handler-panicked"), 2, "{outcome:?}");
    assert!(shared.dropped.get() >= 4, "the handlers were dropped");
}

/// A peer that does not read stalls the handler, and is disconnected by the minimum rate.
pub async fn a_peer_that_does_not_read_blocks_the_handler_and_is_disconnected<B: Bench>(bench: &B) {
    bench.calm();
    let timeouts = ServerTimeouts { rate_window: Duration::from_secs(1), ..server_timeouts() };
    let (server, shared) = begin_with(bench, timeouts.limits());
    let mut sockets = Vec::new();
    for way in WAYS {
        let mut socket = Socket::open::<B>(&server, way, "/ws/flood").await;
        socket.keep_windows_shut();
        sockets.push(socket);
    }
    bench
        .wait_until("the handlers ended", || shared.dropped.get() + shared.finished.get() == 4)
        .await;
    let bytes_max = if bench.is_virtual() { 4 * 5 * 64 * 1024 } else { 4 * (32 << 20) };
    assert!(shared.produced.get() <= bytes_max, "{} bytes were sent", shared.produced.get());
    drop(sockets);
    end(server).await;
}

/// A handler that does not read stalls its peer, and nothing is lost.
pub async fn a_handler_that_does_not_read_blocks_its_peer<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let size = bench.large(50_000);
    for way in WAYS {
        let mut socket = Socket::open::<B>(&server, way, "/ws/quiet").await;
        // The server's buffers: twice 64 KiB, or the window of a stream.
        for _ in 0..2 {
            socket.send(MessagePayload::Binary(&pattern(size / 2))).await;
        }
        socket.frame(Opcode::Ping, flag::FIN, b"behind").await;
        socket.expect(Said::Pong(b"behind".to_vec())).await;
        shared.open(1);
        socket.expect_close(1_000).await;
    }
    end(server).await;
}

/// The halves of a WebSocket work in separate tasks.
pub async fn halves_work_in_tasks<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    for way in WAYS {
        let mut socket = Socket::open::<B>(&server, way, "/ws/halves").await;
        socket.text("hello").await;
        socket.expect_text("hello").await;
        shared.open(1);
        socket.expect_text("number 1").await;
        socket.text("again").await;
        socket.expect_text("again").await;
        socket.close(1_000).await;
        socket.expect_close(1_000).await;
    }
    end(server).await;
    assert_eq!(shared.finished.get(), 4);
}

/// A drain ends what a handler receives; the handler may still send.
pub async fn a_drain_gives_handlers_time_to_close<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut sockets = Vec::new();
    for way in WAYS {
        sockets.push((Socket::open::<B>(&server, way, "/ws/goodbye").await, "goodbye"));
        sockets.push((Socket::open::<B>(&server, way, "/ws/closing").await, "closing"));
    }
    bench.wait_until("the handlers started", || shared.started.get() == 8).await;
    server.shut_down();
    for (socket, text) in &mut sockets {
        socket.expect_text(text).await;
        socket.expect_close(1_001).await;
    }
    drop(sockets);
    end(server).await;
    assert_eq!(shared.finished.get(), 8);
}

/// A handler that ignores the drain is ended at the deadline, and its peer gets 1001.
pub async fn a_drain_ends_handlers_that_ignore_it<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut sockets = Vec::new();
    for way in WAYS {
        sockets.push(Socket::open::<B>(&server, way, "/ws/impatient").await);
    }
    bench.wait_until("the handlers started", || shared.started.get() == 4).await;
    server.shut_down();
    for socket in &mut sockets {
        socket.expect_close(1_001).await;
    }
    drop(sockets);
    end(server).await;
    assert_eq!(shared.dropped.get(), 4);
}

/// An abort ends all WebSockets at once.
pub async fn an_abort_ends_websockets<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut sockets = Vec::new();
    for way in WAYS {
        sockets.push(Socket::open::<B>(&server, way, "/ws/quiet").await);
    }
    bench.wait_until("the handlers started", || shared.started.get() == 4).await;
    server.cut();
    for socket in &mut sockets {
        let last = socket.next().await;
        assert!(matches!(last, Said::Broken(_) | Said::End), "{last:?}");
    }
    let outcome = server.ended().await;
    assert_eq!((outcome.cut.len(), shared.dropped.get()), (4, 4), "{outcome:?}");
}

/// Requests from pages of other origins are refused; the client's preference selects the
/// subprotocol.
pub async fn origins_and_subprotocols_are_checked<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    for way in WAYS {
        let scheme = if way.is_secure { "https" } else { "http" };
        let same_origin = format!("{scheme}://localhost");
        for (origin, status) in
            [(&*same_origin, None), ("https://other.example", Some(403)), ("null", Some(403))]
        {
            let fields = [("origin", origin), ("sec-websocket-protocol", "v0, v1, v2")];
            match Socket::ask::<B>(&server, way, "/ws/echo", &fields).await {
                Ok(socket) => {
                    assert!(socket.fields.contains("sec-websocket-protocol: v1"));
                    assert_eq!(status, None, "{origin}");
                }
                Err(actual) => assert_eq!(Some(actual), status, "{origin}"),
            }
        }
        let old_version = [("sec-websocket-version", "12")];
        assert_eq!(Socket::ask::<B>(&server, way, "/ws/echo", &old_version).await.err(), Some(426));
    }
    end(server).await;
}

/// A peer may reset at any moment: the handler ends, and the server keeps working.
pub async fn peers_may_disconnect_at_any_time<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let paths = ["/ws/echo", "/ws/flood", "/ws/listen", "/ws/quiet", "/ws/halves"];
    for round in 0..2 {
        for way in WAYS {
            for path in [paths[bench.choose(5)], paths[bench.choose(5)]] {
                let mut socket = Socket::open::<B>(&server, way, path).await;
                for step in 0..bench.choose(5) {
                    match step {
                        0 => socket.frame(Opcode::Text, 0, b"begun").await,
                        1 => socket.frame(Opcode::Ping, flag::FIN, b"").await,
                        2 => drop(socket.next_within(A_MOMENT).await),
                        3 => socket.frame(Opcode::Continuation, flag::FIN, b"").await,
                        _ => socket.push(&[0x81, 0xfe, 1]).await,
                    }
                }
                if round == 0 { socket.reset() } else { drop(socket) }
            }
        }
    }
    bench
        .wait_until("the handlers ended", || shared.dropped.get() + shared.finished.get() == 16)
        .await;
    end(server).await;
}

/// The server pings a silent peer for hours, without help from the handler.
pub async fn a_peer_that_answers_may_be_silent_for_hours(bench: &SimulatedBench) {
    bench.calm();
    let (server, shared) = begin_with(bench, server_timeouts().limits());
    for way in WAYS {
        for path in ["/ws/quiet", "/ws/echo", "/ws/listen"] {
            let mut socket = Socket::open::<SimulatedBench>(&server, way, path).await;
            let pings = socket.listen(bench, 3 * HOUR).await;
            // Every 30 s, or every 60 s if only the pong arrives each time.
            assert!((170..=360).contains(&pings), "{pings} pings");
            drop(socket);
        }
    }
    bench
        .wait_until("the handlers ended", || shared.dropped.get() + shared.finished.get() == 12)
        .await;
    end(server).await;
}

/// A peer that does not respond at all is disconnected within two minutes, whatever its handler
/// does.
pub async fn a_dead_peer_is_noticed(bench: &SimulatedBench) {
    bench.calm();
    let (server, shared) = begin_with(bench, server_timeouts().limits());
    for (index, way) in WAYS.into_iter().enumerate() {
        for (path, handler_reads) in [("/ws/quiet", false), ("/ws/echo", true)] {
            let mut socket = Socket::open::<SimulatedBench>(&server, way, path).await;
            socket.is_dumb = true;
            let start = bench.now();
            let mut events = Vec::new();
            loop {
                let next = socket.next_within(HOUR).await.expect("the server sends bytes");
                events.push(next.clone());
                if matches!(next, Said::End | Said::Broken(_)) {
                    break;
                }
            }
            let expected = [Said::Ping(b"keep-alive".to_vec()), Said::Close(1_008), Said::End];
            assert_eq!(events, expected);
            let elapsed = bench.now() - start;
            let elapsed_max = Duration::from_secs(if handler_reads { 92 } else { 102 });
            assert!(
                elapsed >= Duration::from_secs(59) && elapsed < elapsed_max,
                "after {elapsed:?}"
            );
            drop(socket);
        }
        assert_eq!(shared.dropped.get() + shared.finished.get(), 2 * (index + 1));
    }
    end(server).await;
    assert_eq!((shared.dropped.get(), shared.finished.get()), (4, 4));
}

/// A peer is not treated as dead while the handler does not read.
pub async fn a_peer_whose_messages_are_not_read_is_not_dead(bench: &SimulatedBench) {
    bench.calm();
    let (server, shared) = begin_with(bench, server_timeouts().limits());
    for way in WAYS {
        let mut socket = Socket::open::<SimulatedBench>(&server, way, "/ws/quiet").await;
        for _ in 0..2 {
            socket.send(MessagePayload::Binary(&pattern(40_000))).await;
        }
        socket.listen(bench, 2 * HOUR).await;
        shared.open(1);
        socket.expect_close(1_000).await;
    }
    end(server).await;
}

/// A peer that does not answer a Close frame is disconnected in time.
pub async fn the_wait_for_a_close_frame_is_limited(bench: &SimulatedBench) {
    bench.calm();
    let (server, shared) = begin_with(bench, server_timeouts().limits());
    for way in WAYS {
        let mut socket = Socket::open::<SimulatedBench>(&server, way, "/ws/close/1000").await;
        socket.is_dumb = true;
        let start = bench.now();
        socket.expect_close(1_000).await;
        let elapsed = bench.now() - start;
        assert!(
            elapsed > Duration::from_secs(9) && elapsed < Duration::from_secs(12),
            "{elapsed:?}"
        );
    }
    end(server).await;
    assert_eq!(shared.finished.get(), 4);
}

/// During the lame-duck period WebSockets continue until the drain.
pub async fn websockets_continue_in_the_lame_duck_phase(bench: &SimulatedBench) {
    let lame_duck_period = Duration::from_secs(10);
    let (server, _) =
        begin_with(bench, ServerTimeouts { lame_duck_period, ..server_timeouts() }.limits());
    let mut sockets = Vec::new();
    for way in WAYS {
        sockets.push(Socket::open::<SimulatedBench>(&server, way, "/ws/echo").await);
    }
    server.shut_down();
    for socket in &mut sockets {
        socket.text("still").await;
        socket.expect_text("still").await;
    }
    for socket in &mut sockets {
        socket.expect_close(1_001).await;
    }
    drop(sockets);
    end(server).await;
}
