//! HTTP/2 attacks, each on a server that serves a second client meanwhile.
//!
//! An attack is answered by GOAWAY (ENHANCE_YOUR_CALM) or by resets, the second client is served,
//! and the server's memory stays bounded where the allocator counts it. The table of
//! `docs/protocols.md` has a row for each case.

use super::{begin_with, limits};
use crate::server::app::Shared;
use crate::server::bench::{Bench, Outcome, PATIENCE, Served};
use crate::server::held;
use crate::server::streams::Streams;
use peregrine::{Limits, MemoryMax};
use peregrine_proto::KnownField;
use peregrine_proto::h2::frame::{self, ErrorCode, FrameType, flags, setting_id};
use peregrine_proto::h2::hpack::Encoder;
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(700);
/// The GOAWAY code for peers that cause useless work.
const CALM: Option<u32> = Some(ErrorCode::ENHANCE_YOUR_CALM.0);
const END: u8 = flags::END_HEADERS | flags::END_STREAM;
/// Rounds of a flood: far more than a connection's budget, and few enough for a test.
const ROUNDS: usize = 20_000;
/// The second client sends a request after this many rounds.
const BATCH: usize = 1_000;
/// The most that one attacker may make the server hold: the connection's window, twice the output
/// limit, tables, and buffers.
const HELD_BYTES_MAX: isize = 4 << 20;

/// The most that a server with little memory may hold beyond that: memory kept for reuse, and the
/// growth in one iteration.
const KEPT_BYTES_MAX: isize = 1 << 20;

/// A server under attack.
struct Site<B: Bench> {
    server: B::Server,
    shared: Shared,
    second_client: Streams<B::Wire>,
    held: Option<isize>,
}

impl<B: Bench> Site<B> {
    async fn begin(bench: &B, mut limits: Limits) -> Self {
        bench.calm();
        if let Some(bytes_max) = held::limited() {
            limits.overload.memory_max = MemoryMax::Bytes(bytes_max as u64);
        }
        let (server, shared) = begin_with(bench, limits);
        let second_client = Streams::new(server.connect());
        let mut site = Self { server, shared, second_client, held: None };
        site.expect_served().await;
        site.held = held::bytes();
        site
    }

    fn attacker(&self) -> Streams<B::Wire> {
        Streams::new(self.server.connect())
    }

    /// Asserts that the second client is served and that the server stays below its memory limit.
    /// With a low limit, the second client may get a 503.
    async fn expect_served(&mut self) {
        let id = self.second_client.get("/hello");
        let response = self.second_client.answer(id).await;
        let is_refused = held::limited().is_some() && response.field("retry-after").is_some();
        assert!(response.text() == "hello" || is_refused, "{response:?}");
        if let (Some(before), Some(now)) = (self.held, held::bytes()) {
            let held_max = held::limited()
                .map_or(HELD_BYTES_MAX, |bytes_max| bytes_max.cast_signed() + KEPT_BYTES_MAX);
            assert!(now - before <= held_max, "{} bytes are allocated", now - before);
        }
    }

    /// Sends rounds of a flood until the connection ends, which it must. Returns its last GOAWAY
    /// code.
    async fn flood(&mut self, attacker: &mut Streams<B::Wire>, round: impl Fn(&mut Vec<u8>, u32)) {
        let mut id = 1;
        for _ in 0..ROUNDS / BATCH {
            let mut out = Vec::new();
            for _ in 0..BATCH {
                round(&mut out, id);
                id += 2;
            }
            attacker.send(&out);
            self.expect_served().await;
            while attacker.fill(Duration::ZERO).await {}
            if attacker.last().is_some() {
                break;
            }
        }
        attacker.ended().await;
        assert_eq!(attacker.go_away.last().map(|(_, code)| *code), CALM);
    }

    async fn end(mut self) -> Outcome {
        self.expect_served().await;
        self.second_client.round_trip().await;
        drop(self.second_client);
        self.server.shut_down();
        let outcome = self.server.ended().await;
        assert_eq!(outcome.cut, []);
        outcome
    }

    /// Ends the case after one attacker got ENHANCE_YOUR_CALM.
    async fn end_with_calm(self) {
        let outcome = self.end().await;
        assert_eq!(outcome.ended("http2-excess"), 1, "{outcome:?}");
    }
}

/// A header block that uses no dynamic table.
fn block(method: &str, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let (mut encoder, mut block) = (Encoder::new(4096), Vec::new());
    encoder.begin_block(&mut block);
    let line = [(":method", method), (":scheme", "http"), (":authority", "a"), (":path", path)];
    for (name, value) in line.into_iter().chain(fields.iter().copied()) {
        encoder.field(KnownField::Other, name.as_bytes(), value.as_bytes(), &mut block);
    }
    block
}

/// One flood, from its first frame to GOAWAY.
async fn flood<B: Bench>(bench: &B, first: &[u8], round: impl Fn(&mut Vec<u8>, u32)) {
    let mut site = Site::begin(bench, limits()).await;
    let mut attacker = site.attacker();
    attacker.send(first);
    site.flood(&mut attacker, round).await;
    drop(attacker);
    site.end_with_calm().await;
}

/// Requests that are reset at once (CVE-2023-44487).
pub async fn a_rapid_reset<B: Bench>(bench: &B) {
    let block = block("GET", "/hold", &[]);
    flood(bench, &[], |out, id| {
        frame::write_frame(FrameType::Headers, END, id, &block, out);
        frame::write_rst_stream(id, ErrorCode::CANCEL, out);
    })
    .await;
}

/// Requests that are reset, each paired with a cheap request that completes.
pub async fn a_reset_for_each_cheap_request<B: Bench>(bench: &B) {
    let (cheap, held) = (block("GET", "/hello", &[]), block("GET", "/hold", &[]));
    flood(bench, &[], |out, id| {
        frame::write_frame(FrameType::Headers, END, 2 * id - 1, &cheap, out);
        frame::write_frame(FrameType::Headers, END, 2 * id + 1, &held, out);
        frame::write_rst_stream(2 * id + 1, ErrorCode::CANCEL, out);
        // The client reads what the server sends.
        frame::write_window_update(0, 5, out);
    })
    .await;
}

/// Requests that make the server reset the stream (CVE-2025-8671), in every way there is.
pub async fn a_made_you_reset<B: Bench>(bench: &B) {
    let block = block("POST", "/hold-body", &[]);
    let triggers: [fn(&mut Vec<u8>, u32); 4] = [
        |out, id| frame::write_window_update(id, 0, out),
        |out, id| frame::write_window_update(id, 0x7fff_ffff, out),
        |out, id| frame::write_frame(FrameType::Priority, 0, id, b"1234", out),
        |out, id| {
            frame::write_frame(FrameType::Data, flags::END_STREAM, id, b"", out);
            frame::write_frame(FrameType::Data, 0, id, b"more", out);
        },
    ];
    for trigger in triggers {
        flood(bench, &[], |out, id| {
            frame::write_frame(FrameType::Headers, flags::END_HEADERS, id, &block, out);
            trigger(out, id);
        })
        .await;
    }
}

/// A header block that never ends, in CONTINUATION frames with and without content
/// (CVE-2024-27316).
pub async fn a_continuation_flood<B: Bench>(bench: &B) {
    for content in [&b""[..], b"\x00\x01x\x01y", &[0x82; 1_000]] {
        let mut first = Vec::new();
        frame::write_frame(FrameType::Headers, 0, 1, &block("GET", "/hold", &[]), &mut first);
        flood(bench, &first, |out, _| {
            frame::write_frame(FrameType::Continuation, 0, 1, content, out)
        })
        .await;
    }
}

/// A header block whose decoded fields are a thousand times larger than the block.
pub async fn a_compression_bomb<B: Bench>(bench: &B) {
    let mut large_block = block("GET", "/hello", &[]);
    // A field of 3,000 bytes for the dynamic table, and how to refer to it: the newest entry.
    large_block.extend_from_slice(b"\x40\x01x\x7f\xb9\x16");
    large_block.extend_from_slice(&[b'y'; 3_000]);
    large_block.extend_from_slice(&[0xbe; 12_000]);
    flood(bench, &[], |out, id| {
        frame::write_frame(FrameType::Headers, END, id, &large_block[..], out)
    })
    .await;
}

/// Requests that refill the dynamic table each time, and size updates that empty it: they cost no
/// more than their size, and are served.
pub async fn a_table_thrash<B: Bench>(bench: &B) {
    let mut site = Site::begin(bench, limits()).await;
    let mut attacker = site.attacker();
    for round in 0..30_u8 {
        let mut ids = Vec::new();
        for number in 0..20_u8 {
            // The table is emptied and set back to its full size.
            let mut thrashing_block = b"\x20\x3f\xe1\x1f".to_vec();
            thrashing_block.extend(block("GET", "/hello", &[]));
            for field in 0..30 {
                let value = [round + 1, number + 1, field + 1].map(|byte| b'a' + byte % 26);
                thrashing_block.extend_from_slice(b"\x40\x03x-");
                thrashing_block.push(b'a' + field % 26);
                thrashing_block.push(103);
                thrashing_block.extend_from_slice(&value);
                thrashing_block.extend_from_slice(&[b'z'; 100]);
            }
            ids.push(attacker.open_block(&thrashing_block, END));
        }
        for id in ids {
            let response = attacker.answer(id).await;
            assert_eq!((response.status(), response.text()), (200, "hello"));
        }
        site.expect_served().await;
    }
    attacker.round_trip().await;
    drop(attacker);
    site.end().await;
}

/// SETTINGS frames, each of which must be acknowledged.
pub async fn a_settings_flood<B: Bench>(bench: &B) {
    flood(bench, &[], |out, _| frame::write_settings([(setting_id::ENABLE_PUSH, 0)], out)).await;
    flood(bench, &[], |out, _| frame::write_settings([], out)).await;
    let settings = [(setting_id::INITIAL_WINDOW_SIZE, 70_000); 100];
    flood(bench, &[], |out, _| frame::write_settings(settings, out)).await;
}

/// PING frames, each of which must be answered.
pub async fn a_ping_flood<B: Bench>(bench: &B) {
    flood(bench, &[], |out, _| frame::write_frame(FrameType::Ping, 0, 0, b"12345678", out)).await;
    // Acknowledgements of PINGs that were never sent.
    flood(bench, &[], |out, _| {
        frame::write_frame(FrameType::Ping, flags::ACK, 0, b"12345678", out)
    })
    .await;
}

/// PRIORITY frames for idle, open and closed streams, in cycles, and PRIORITY_UPDATE.
pub async fn a_priority_flood<B: Bench>(bench: &B) {
    flood(bench, &[], |out, id| {
        let dependency = (id + 2).to_be_bytes();
        frame::write_frame(
            FrameType::Priority,
            0,
            id,
            &[dependency[0], dependency[1], dependency[2], dependency[3], 7],
            out,
        );
        let reverse = id.to_be_bytes();
        frame::write_frame(
            FrameType::Priority,
            0,
            id + 2,
            &[reverse[0] | 0x80, reverse[1], reverse[2], reverse[3], 7],
            out,
        );
    })
    .await;
    flood(bench, &[], |out, id| {
        let mut update = id.to_be_bytes().to_vec();
        update.extend_from_slice(b"u=1, i");
        frame::write_frame(FrameType::PriorityUpdate, 0, 0, &update, out);
    })
    .await;
}

/// Requests that depend on each other in a cycle, or on themselves: the server ignores
/// dependencies.
pub async fn a_dependency_loop<B: Bench>(bench: &B) {
    let mut site = Site::begin(bench, limits()).await;
    let mut attacker = site.attacker();
    for round in 0..20 {
        let mut ids = Vec::new();
        for number in 0..20_u32 {
            let stream_id = 1 + 2 * (round * 20 + number);
            let dependency = [stream_id, stream_id + 2, stream_id.saturating_sub(2), 1]
                [number as usize % 4]
                .to_be_bytes();
            let mut payload =
                vec![dependency[0] | 0x80, dependency[1], dependency[2], dependency[3], 255];
            payload.extend(block("GET", "/hello", &[]));
            ids.push(attacker.open_block(&payload, END | flags::PRIORITY));
        }
        for id in ids {
            let response = attacker.answer(id).await;
            assert_eq!((response.status(), response.reset), (200, None));
        }
        site.expect_served().await;
    }
    attacker.round_trip().await;
    drop(attacker);
    site.end().await;
}

/// WINDOW_UPDATE frames that open windows by one byte, for the connection and for a stream.
pub async fn a_window_update_flood<B: Bench>(bench: &B) {
    flood(bench, &[], |out, _| frame::write_window_update(0, 1, out)).await;
    let mut first = Vec::new();
    frame::write_frame(FrameType::Headers, END, 1, &block("GET", "/hold", &[]), &mut first);
    flood(bench, &first, |out, _| frame::write_window_update(1, 1, out)).await;
}

/// Empty DATA frames that do not end the stream.
pub async fn an_empty_data_flood<B: Bench>(bench: &B) {
    let mut first = Vec::new();
    frame::write_frame(
        FrameType::Headers,
        flags::END_HEADERS,
        1,
        &block("POST", "/hold-body", &[]),
        &mut first,
    );
    flood(bench, &first, |out, _| frame::write_frame(FrameType::Data, 0, 1, b"", out)).await;
}

/// DATA on a stream that the server has ended, beyond what can have been in flight.
pub async fn a_flood_of_late_data<B: Bench>(bench: &B) {
    let mut site = Site::begin(bench, limits()).await;
    let mut attacker = site.attacker();
    let id = attacker.open("POST", "/ignore", &[("content-length", "10000000")], false);
    attacker.data(id, b"a", false);
    while attacker.so_far(id).reset.is_none() {
        attacker.round_trip().await;
    }
    let late =
        |out: &mut Vec<u8>, _| frame::write_frame(FrameType::Data, flags::END_STREAM, id, b"", out);
    site.flood(&mut attacker, late).await;
    drop(attacker);
    site.end_with_calm().await;
}

/// HEADERS without fields, which are malformed requests, and repeated trailers without fields.
pub async fn an_empty_headers_flood<B: Bench>(bench: &B) {
    flood(bench, &[], |out, id| frame::write_frame(FrameType::Headers, END, id, b"", out)).await;
    let block = block("POST", "/hold-body", &[]);
    flood(bench, &[], |out, id| {
        frame::write_frame(FrameType::Headers, flags::END_HEADERS, id, &block, out);
        frame::write_frame(FrameType::Headers, flags::END_HEADERS, id, b"", out);
    })
    .await;
}

/// Padding, on frames with and without content.
pub async fn a_padding_flood<B: Bench>(bench: &B) {
    let mut first = Vec::new();
    frame::write_frame(
        FrameType::Headers,
        flags::END_HEADERS,
        1,
        &block("POST", "/count", &[]),
        &mut first,
    );
    let mut padding = vec![255];
    padding.extend_from_slice(&[0; 255]);
    flood(bench, &first, |out, _| {
        frame::write_frame(FrameType::Data, flags::PADDED, 1, &padding, out)
    })
    .await;
}

/// GOAWAY frames and frames of unknown types.
pub async fn a_flood_of_other_frames<B: Bench>(bench: &B) {
    flood(bench, &[], |out, _| frame::write_go_away(0, ErrorCode::NO_ERROR, out)).await;
    flood(bench, &[], |out, _| out.extend_from_slice(&[0, 0, 1, 0xee, 0, 0, 0, 0, 0, b'?'])).await;
    flood(bench, &[], |out, _| out.extend_from_slice(&[0, 0, 0, 4, 1, 0, 0, 0, 0])).await;
}

/// Heads that are too large get a 431, until there are too many of them. A block too large to
/// decode ends the connection.
pub async fn huge_header_lists<B: Bench>(bench: &B) {
    let long = "x".repeat(9_000);
    let fields = [("a", &*long), ("b", &long), ("c", &long), ("d", &long)];
    let block = block("GET", "/hello", &fields);
    let write = |out: &mut Vec<u8>, id| {
        let mut pieces = block.chunks(16_384).peekable();
        let (mut kind, mut flags) = (FrameType::Headers, flags::END_STREAM);
        while let Some(piece) = pieces.next() {
            flags |= if pieces.peek().is_none() { flags::END_HEADERS } else { 0 };
            frame::write_frame(kind, flags, id, piece, out);
            (kind, flags) = (FrameType::Continuation, 0);
        }
    };
    let mut site = Site::begin(bench, limits()).await;
    let mut attacker = site.attacker();
    let mut out = Vec::new();
    let mut first = None;
    for id in (1..1_000).step_by(2) {
        out.clear();
        write(&mut out, id);
        attacker.send(&out);
        attacker.fill(Duration::ZERO).await;
        if id % 100 == 1 {
            site.expect_served().await;
        }
        first = first
            .or_else(|| (attacker.so_far(1).status() > 0).then(|| attacker.so_far(1).status()));
        if attacker.last().is_some() {
            break;
        }
    }
    attacker.ended().await;
    assert_eq!(first, Some(431));
    assert_eq!(attacker.go_away.last().map(|(_, code)| *code), CALM);
    drop(attacker);
    let mut attacker = site.attacker();
    frame::write_frame(FrameType::Headers, 0, 1, &[0; 16_384], &mut out);
    for _ in 0..4 {
        frame::write_frame(FrameType::Continuation, 0, 1, &[0; 16_384], &mut out);
    }
    attacker.send(&out);
    attacker.ended().await;
    drop(attacker);
    let outcome = site.end().await;
    assert!(outcome.ended("http2-excess") >= 1, "{outcome:?}");
}

/// A window of one byte, opened byte by byte: each byte costs budget.
pub async fn a_window_of_one_byte<B: Bench>(bench: &B) {
    let mut site = Site::begin(bench, limits()).await;
    let tiny = [(setting_id::INITIAL_WINDOW_SIZE, 1)];
    let mut attacker = Streams::with_settings(site.server.connect(), &tiny);
    attacker.keep_windows_shut();
    let id = attacker.get("/large/100000");
    attacker.expect(id, 1).await;
    for round in 0..10_000 {
        let mut out = Vec::new();
        frame::write_window_update(id, 1, &mut out);
        attacker.send(&out);
        if round % 100 == 0 {
            site.expect_served().await;
        }
        attacker.fill(if round % 10 == 0 { SHORT } else { Duration::ZERO }).await;
        if attacker.last().is_some() {
            break;
        }
    }
    attacker.ended().await;
    assert_eq!(attacker.go_away.last().map(|(_, code)| *code), CALM);
    assert!(attacker.so_far(id).body.len() < 5_000);
    drop(attacker);
    site.end_with_calm().await;
}

/// Many large responses whose windows stay closed: the streams are reset in time, and meanwhile
/// their bodies produce nothing.
pub async fn a_zero_window<B: Bench>(bench: &B) {
    let mut site = Site::begin(bench, Limits { transfer_rate_grace: SHORT, ..limits() }).await;
    let closed_window = [(setting_id::INITIAL_WINDOW_SIZE, 0)];
    let mut attacker = Streams::with_settings(site.server.connect(), &closed_window);
    let paths = ["/large/100000", "/endless", "/stream/100000"];
    let all: Vec<_> = paths.iter().cycle().take(60).map(|path| attacker.get(path)).collect();
    site.expect_served().await;
    if held::limited().is_some() {
        // More data waits for the windows than the memory limit allows.
        attacker.ended().await;
        drop(attacker);
        let outcome = site.end().await;
        return assert_eq!(outcome.ended("memory-max"), 1, "{outcome:?}");
    }
    for id in all {
        let response = attacker.answer(id).await;
        assert_eq!((response.status(), response.body.len(), response.reset), (200, 0, Some(8)));
    }
    let dropped = || site.shared.dropped.get() == 20;
    bench.wait_until("the streams were dropped", dropped).await;
    assert!(site.shared.produced.get() <= 20 * 2_000, "{}", site.shared.produced.get());
    attacker.round_trip().await;
    drop(attacker);
    site.end().await;
}

/// Requests that are opened and never ended: up to the stream limit, each until its timeout. One
/// more is refused.
pub async fn streams_that_are_never_ended<B: Bench>(bench: &B) {
    let mut site = Site::begin(bench, Limits { transfer_rate_grace: SHORT, ..limits() }).await;
    let mut attacker = site.attacker();
    let all: Vec<_> = (0..128).map(|_| attacker.open("POST", "/echo", &[], false)).collect();
    let refused: Vec<_> = (0..20).map(|_| attacker.open("POST", "/echo", &[], false)).collect();
    site.expect_served().await;
    for id in refused {
        assert_eq!(attacker.answer(id).await.reset, Some(ErrorCode::REFUSED_STREAM.0));
    }
    for id in all {
        assert_eq!(attacker.answer(id).await.status(), 408);
    }
    site.expect_served().await;
    drop(attacker);
    site.end().await;
}

/// A preface that arrives byte by byte, or not at all, times out.
pub async fn a_slow_preface<B: Bench>(bench: &B) {
    let times = Limits { first_byte_timeout: SHORT, head_timeout: SHORT, ..limits() };
    let mut site = Site::begin(bench, Limits { idle_timeout: 60 * SHORT, ..times }).await;
    for head_start in [0, 3, 20, 24] {
        let mut attacker = Streams::silent(site.server.connect());
        let mut bytes = frame::PREFACE.to_vec();
        bytes.extend_from_slice(&[0, 0, 6, 4, 0, 0, 0, 0, 0]);
        attacker.send(&bytes[..head_start]);
        let start = bench.now();
        for byte in &bytes[head_start..] {
            attacker.fill(SHORT / 5).await;
            if attacker.last().is_some() || bench.now() > start + PATIENCE {
                break;
            }
            attacker.send(&[*byte]);
            site.expect_served().await;
        }
        attacker.ended().await;
    }
    site.end().await;
}

/// A frame that arrives byte by byte times out: a head, content, and a frame on stream 0.
pub async fn slow_frames<B: Bench>(bench: &B) {
    let times = Limits {
        head_timeout: SHORT,
        transfer_rate_grace: SHORT,
        transfer_rate_min: 1_000,
        ..limits()
    };
    let mut site = Site::begin(bench, times).await;
    let mut post = Vec::new();
    frame::write_frame(
        FrameType::Headers,
        flags::END_HEADERS,
        1,
        &block("POST", "/echo", &[]),
        &mut post,
    );
    for (first, kind) in
        [(&b""[..], FrameType::Headers), (&post, FrameType::Data), (b"", FrameType::Ping)]
    {
        let mut attacker = site.attacker();
        attacker.send(first);
        let mut header = Vec::new();
        let (stream, length) = if kind == FrameType::Ping { (0, 8) } else { (1, 1_000) };
        frame::write_header(kind, 0, stream, length, &mut header);
        attacker.send(&header);
        let mut is_over = false;
        for byte in 0..length.min(100) {
            attacker.fill(SHORT / 5).await;
            // A slow upload gets its 408 on the stream, and the other streams continue.
            is_over = attacker.last().is_some() || attacker.so_far(1).status() == 408;
            if is_over {
                break;
            }
            attacker.send(&[b'a' + u8::try_from(byte % 26).expect("the value is small")]);
            if byte == 7 {
                break;
            }
        }
        site.expect_served().await;
        if !is_over && kind != FrameType::Ping {
            attacker.ended().await;
        }
    }
    site.end().await;
}

/// Output that the peer does not read: PING acknowledgements, resets, and responses.
pub async fn output_that_is_never_read<B: Bench>(bench: &B) {
    let mut site = Site::begin(bench, Limits { transfer_rate_grace: 2 * SHORT, ..limits() }).await;
    let large_window = [(setting_id::INITIAL_WINDOW_SIZE, 0x7fff_ffff)];
    let mut attackers = Vec::new();
    for number in 0..4 {
        let mut attacker = Streams::with_settings(site.server.connect(), &large_window);
        let mut window_update = Vec::new();
        frame::write_window_update(0, 0x7fff_0000, &mut window_update);
        attacker.send(&window_update);
        for _ in 0..50 {
            attacker.get(if number % 2 == 0 { "/endless" } else { "/stream/1000000" });
        }
        let mut pings = Vec::new();
        for _ in 0..900 {
            frame::write_frame(FrameType::Ping, 0, 0, b"12345678", &mut pings);
        }
        attacker.send(&pings);
        site.expect_served().await;
        attackers.push(attacker);
    }
    for _ in 0..10 {
        site.expect_served().await;
        bench.sleep(SHORT / 2).await;
    }
    // With little memory, most of the requests are refused. Those that started are dropped by the
    // server: their peers are still connected.
    let shared = site.shared.clone();
    let (started, dropped) = (|| shared.endless.get(), || shared.dropped.get());
    bench.wait_until("the streams were dropped", || dropped() > 0 && dropped() == started()).await;
    let min = if held::limited().is_some() { 1 } else { 100 };
    assert!((min..=100).contains(&started()), "{} of 100 started", started());
    drop(attackers);
    let outcome = site.end().await;
    assert_eq!(dropped(), started(), "no request started later");
    let ended = outcome.ended("write-stalled") + outcome.ended("memory-max");
    // A client whose requests were all refused has little output that it could leave unread.
    let min = if held::limited().is_some() { 1 } else { 2 };
    assert!(ended >= min, "{outcome:?}");
}
