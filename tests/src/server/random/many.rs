//! HTTP/2 clients in random lives: any frames in any order, truncated anywhere.

use super::{Planned, choose, listen, number, pieces, send_requests};
use crate::server::app::pattern;
use peregrine_driver_sim::Network;
use peregrine_proto::KnownField;
use peregrine_proto::h2::frame::{self, ErrorCode, FrameHeader, FrameType, flags, setting_id};
use peregrine_proto::h2::hpack::{Decoder, Encoder, Field, FieldSink};
use std::collections::BTreeMap;

/// A request's possible responses.
struct ExpectedResponse {
    status: u16,
    /// The content of a complete response, if known.
    body: Option<Vec<u8>>,
    is_head: bool,
}

/// Writes any request.
fn request(
    network: &Network,
    encoder: &mut Encoder,
    id: u32,
    out: &mut Vec<u8>,
) -> ExpectedResponse {
    let small = number(network, 4);
    let (mut method, mut status, mut content) = ("GET", 200, None);
    let (path, body) = match network.random_below(12) {
        0 | 1 => (format!("/numbers/{small}"), Some(small.to_string().into_bytes())),
        2 => {
            let time = *choose(network, &[0, 1, 30, 400, 5_000]);
            (format!("/sleep/{time}"), Some(format!("slept {time}").into_bytes()))
        }
        3 => (format!("/stream/{small}"), Some(pieces(small).into_bytes())),
        4 => (format!("/slow/{small}"), Some(pieces(small).into_bytes())),
        5 => (format!("/large/{}", 900 * small), Some(pattern(900 * small))),
        6 => {
            method = "HEAD";
            ("/hello".to_owned(), Some(Vec::new()))
        }
        7 => {
            status = 500;
            ("/panic-late".to_owned(), None)
        }
        8 => {
            status = 404;
            ("/nowhere".to_owned(), None)
        }
        _ => {
            method = "POST";
            let bytes = pattern(*choose(network, &[0, 1, 20, 300, 2_000]));
            let path = *choose(network, &["/echo", "/echo-stream", "/ignore", "/count"]);
            let body = match path {
                "/ignore" => b"ignored".to_vec(),
                "/count" => bytes.len().to_string().into_bytes(),
                _ => bytes.clone(),
            };
            content = Some(bytes);
            (path.to_owned(), Some(body))
        }
    };
    let mut block = Vec::new();
    encoder.begin_block(&mut block);
    let line = [(":method", method), (":scheme", "http"), (":authority", "a"), (":path", &path)];
    for (name, value) in line {
        encoder.field(KnownField::Other, name.as_bytes(), value.as_bytes(), &mut block);
    }
    let end = if content.is_none() { flags::END_STREAM } else { 0 };
    let split_at =
        if network.random_below(6) == 0 { number(network, block.len()) } else { block.len() };
    if split_at < block.len() {
        frame::write_frame(FrameType::Headers, end, id, &block[..split_at], out);
        frame::write_frame(
            FrameType::Continuation,
            flags::END_HEADERS,
            id,
            &block[split_at..],
            out,
        );
    } else {
        frame::write_frame(FrameType::Headers, end | flags::END_HEADERS, id, &block, out);
    }
    if let Some(content) = content {
        write_content(network, encoder, id, &content, out);
    }
    ExpectedResponse { status, body, is_head: method == "HEAD" }
}

fn write_content(
    network: &Network,
    encoder: &mut Encoder,
    id: u32,
    mut content: &[u8],
    out: &mut Vec<u8>,
) {
    let has_trailers = network.random_below(3) == 0;
    while !content.is_empty() {
        let (piece, remaining) = content.split_at(1 + number(network, content.len()));
        let is_last = remaining.is_empty() && !has_trailers && network.random_below(2) == 0;
        frame::write_frame(
            FrameType::Data,
            if is_last { flags::END_STREAM } else { 0 },
            id,
            piece,
            out,
        );
        if is_last {
            return;
        }
        content = remaining;
        noise(network, id, out);
    }
    if has_trailers {
        let mut block = Vec::new();
        encoder.begin_block(&mut block);
        encoder.field(KnownField::Other, b"x-checksum", b"17", &mut block);
        frame::write_frame(
            FrameType::Headers,
            flags::END_HEADERS | flags::END_STREAM,
            id,
            &block,
            out,
        );
    } else {
        frame::write_frame(FrameType::Data, flags::END_STREAM, id, b"", out);
    }
}

/// Writes any frame, valid at any point or not.
fn noise(network: &Network, id: u32, out: &mut Vec<u8>) {
    let earlier_id =
        1 + 2 * u32::try_from(number(network, id as usize / 2 + 1)).expect("the value is small");
    match network.random_below(40) {
        0..=2 => frame::write_frame(FrameType::Ping, 0, 0, b"12345678", out),
        3 => frame::write_settings([(setting_id::INITIAL_WINDOW_SIZE, 70_000)], out),
        4 => frame::write_frame(FrameType::Settings, flags::ACK, 0, b"", out),
        5 | 6 => frame::write_window_update(
            0,
            1 + u32::try_from(network.random_below(9_000)).expect("small"),
            out,
        ),
        7 | 8 => frame::write_window_update(earlier_id, 1_000, out),
        9 => frame::write_frame(FrameType::Priority, 0, earlier_id, &[0, 0, 0, 1, 16], out),
        10 => frame::write_frame(FrameType::PriorityUpdate, 0, 0, b"\0\0\0\x01u=1", out),
        11 => frame::write_frame(FrameType::Unknown(0xee), 0, earlier_id, b"whatever", out),
        12 | 13 => frame::write_rst_stream(earlier_id, ErrorCode::CANCEL, out),
        14 if network.random_below(4) == 0 => frame::write_go_away(0, ErrorCode::NO_ERROR, out),
        15 if network.random_below(8) == 0 => {
            let invalid_frames: [&[u8]; 5] = [
                b"\0\0\x04\x08\0\0\0\0\0\0\0\0\0",
                b"\0\0\0\x09\x04\0\0\0\x01",
                b"\0\0\x01\0\0\0\0\0\0?",
                b"\xff\xff\xff\0\0\0\0\0\x01",
                b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            ];
            let bytes: &&[u8] = choose(network, &invalid_frames);
            out.extend_from_slice(bytes);
        }
        _ => {}
    }
}

/// Sends some requests, in any way, and checks everything received.
pub(super) async fn client(network: &Network, port: u64) {
    let windows = *choose(network, &[None, None, Some(0), Some(1), Some(500), Some(1 << 20)]);
    let mut bytes = frame::PREFACE.to_vec();
    let settings = windows.map(|bytes| (setting_id::INITIAL_WINDOW_SIZE, bytes));
    frame::write_settings(settings, &mut bytes);
    let (mut encoder, mut expected_responses) = (Encoder::new(4096), BTreeMap::new());
    let mut id = 1;
    for _ in 0..1 + network.random_below(10) {
        noise(network, id, &mut bytes);
        expected_responses.insert(id, request(network, &mut encoder, id, &mut bytes));
        noise(network, id, &mut bytes);
        id += 2;
    }
    let planned = [Planned { bytes, is_head: false, status: 0, body: None, is_last: false }];
    let client = network.connect_to(port);
    let sending = send_requests(network, &client, &planned);
    let ((), received) = crate::both(sending, listen(network, &client)).await;
    check(network.seed(), &expected_responses, &received);
}

#[derive(Default)]
struct Status(Option<u16>);

impl FieldSink for Status {
    fn field(&mut self, field: Field<'_>) -> bool {
        if field.name == b":status" {
            self.0 = std::str::from_utf8(field.value).ok().and_then(|status| status.parse().ok());
        }
        true
    }
}

/// Asserts that `received` is valid, and on each stream a prefix of the expected response.
fn check(seed: u64, expected_responses: &BTreeMap<u32, ExpectedResponse>, mut received: &[u8]) {
    let mut decoder = Decoder::new();
    let mut responses: BTreeMap<u32, (Option<u16>, Vec<u8>, bool)> = BTreeMap::new();
    let mut is_first = true;
    while let Some(header) = FrameHeader::parse(received) {
        let end = frame::HEADER_BYTES + header.length as usize;
        let Some(payload) = received.get(frame::HEADER_BYTES..end) else { return };
        assert!(
            !is_first || header.frame_type == FrameType::Settings,
            "seed {seed}: {header:?} is first"
        );
        is_first = false;
        received = &received[end..];
        if !matches!(header.frame_type, FrameType::Headers | FrameType::Data) {
            continue;
        }
        let id = header.stream_id;
        let expected = expected_responses
            .get(&id)
            .unwrap_or_else(|| panic!("seed {seed}: {id} was not requested"));
        let (status, body, is_over) = responses.entry(id).or_default();
        assert!(!*is_over, "seed {seed}: {id} continues after its end");
        *is_over = header.has_flags(flags::END_STREAM);
        if header.frame_type == FrameType::Data {
            body.extend_from_slice(payload);
        } else {
            let mut status_sink = Status::default();
            let decoded = decoder.decode(payload, 1 << 16, &mut status_sink);
            assert!(decoded.is_ok(), "seed {seed}: {decoded:?}");
            *status = status_sink.0.or(*status);
        }
        let is_refused = matches!(status, Some(400 | 408 | 413));
        let is_expected = is_refused || *status == Some(expected.status);
        assert!(is_expected, "seed {seed}: {id} got {status:?}, not {}", expected.status);
        let Some(expected_body) = expected.body.as_ref().filter(|_| !is_refused) else { continue };
        assert!(expected_body.starts_with(body), "seed {seed}: {id} has wrong content");
        let is_complete_or_open = !*is_over || expected.is_head || expected_body == body;
        assert!(
            is_complete_or_open,
            "seed {seed}: {id} ends after {} of {}",
            body.len(),
            expected_body.len()
        );
    }
}
