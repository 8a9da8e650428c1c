//! Targets for WebSocket.

use crate::inflater::Inflater;
use crate::notation::MASK;
use crate::ws_play::{EndpointOptions, play};
use peregrine_proto::ws::deflate::{DeflateConfig, Offer, negotiate};
use peregrine_proto::ws::frame::{self, Opcode, flag};
use peregrine_proto::ws::{Connection, Event, Limits, MessagePayload, Role, WebSocketError};

/// A whole connection, whose invariants are asserted after each step. Bits of the first byte choose
/// the role, the limits, compression, whether the rest is bytes or packed frames, and whether a
/// Close frame was sent before.
pub fn ws(data: &[u8]) {
    let Some((bits, rest)) = data.split_first() else { return };
    let options = EndpointOptions {
        is_client: bits & 2 != 0,
        has_compression: bits & 4 != 0,
        sent_close: bits & 8 != 0,
        is_streaming: false,
    };
    let limits = if bits & 16 == 0 { Limits::DEFAULT } else { small_limits() };
    let mut bytes = Vec::new();
    if bits & 1 == 0 {
        bytes.extend_from_slice(rest);
    } else {
        unpack(rest, options.is_client, &mut bytes);
    }
    let expected = play(&limits, options, &bytes, &[]);
    let single: Vec<_> = (0..bytes.len()).collect();
    let steps: Vec<_> = (0..bytes.len()).step_by(usize::from(bits >> 5) + 2).collect();
    for cuts in [single, steps, Vec::new()] {
        for is_streaming in [false, true] {
            let actual = play(&limits, EndpointOptions { is_streaming, ..options }, &bytes, &cuts);
            assert_eq!(expected, actual, "the events do not depend on the cuts");
        }
    }
}

fn small_limits() -> Limits {
    Limits {
        message_bytes_max: 40,
        frame_bytes_max: 30,
        pending_pongs_max: 3,
        abuse_budget_max: 40,
        ..Limits::DEFAULT
    }
}

/// Expands a first byte, a length and that many bytes to a complete frame, masked if required.
fn unpack(mut data: &[u8], to_client: bool, out: &mut Vec<u8>) {
    let mask = (!to_client).then_some(MASK);
    while let Some(([first, length], rest)) = data.split_first_chunk::<2>() {
        let (payload, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        let opcode = Opcode::from_u8(first & 0x0F).unwrap_or(Opcode::Continuation);
        frame::write_frame(opcode, first & 0xF0, mask, payload, out);
        data = rest;
    }
}

/// Compression negotiation and decompression. The input is a field value, a byte 0, and the payload
/// of a compressed message.
pub fn deflate(data: &[u8]) {
    let (value, payload) = match data.iter().position(|byte| *byte == 0) {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &[][..]),
    };
    check_negotiation(value);
    check_inflate(payload);
    check_round_trip(payload);
}

fn check_negotiation(value: &[u8]) {
    let full_config = DeflateConfig {
        server_no_context_takeover: false,
        client_no_context_takeover: false,
        server_max_window_bits: 8..=15,
        client_max_window_bits: 15,
    };
    for config in [DeflateConfig::default(), full_config.clone()] {
        let Some(params) = negotiate([value], &config) else { continue };
        for bits in [params.server_max_window_bits, params.client_max_window_bits] {
            assert!((8..=15).contains(&bits), "a window has 8 to 15 bits");
        }
        assert!(config.server_max_window_bits.contains(&params.server_max_window_bits));
        // The negotiated parameters are a valid offer of themselves.
        let text = params.to_string();
        assert_eq!(negotiate([text.as_bytes()], &full_config), Some(params), "{text}");
    }
    let _ = Offer::default().parse_response([value]);
}

/// Receives a compressed message with this payload.
fn inflate_message(
    limits: &Limits,
    payload: &[u8],
    is_streaming: bool,
) -> Result<Vec<u8>, WebSocketError> {
    let compression = Some(Inflater::new(true, true));
    let mut connection = Connection::new(limits, Role::Client(|| MASK), compression);
    if is_streaming {
        connection = connection.streaming();
    }
    let (mut bytes, mut out, mut at, mut message) = (Vec::new(), Vec::new(), 0, Vec::new());
    let flags = flag::FIN | flag::RSV1;
    frame::write_frame(Opcode::Binary, flags, None, payload, &mut bytes);
    loop {
        let (used, event) = connection.receive(limits, &mut bytes[at..], &mut out);
        at += used;
        connection.assert_invariants();
        match event {
            Event::Binary(bytes) => return Ok(bytes.into_owned()),
            Event::Chunk { bytes, is_final, .. } => {
                message.extend_from_slice(&bytes);
                assert!(message.len() as u64 <= limits.message_bytes_max, "the limit is kept");
                if is_final {
                    return Ok(message);
                }
            }
            Event::Error(error) => return Err(error),
            other => panic!("one message was sent: {other:?}"),
        }
    }
}

fn check_inflate(payload: &[u8]) {
    let limits = Limits { message_bytes_max: 50_000, ..Limits::DEFAULT };
    let expected = inflate_message(&limits, payload, false);
    assert_eq!(
        inflate_message(&limits, payload, true),
        expected,
        "streaming yields the same message"
    );
    if let Ok(message) = &expected {
        let exact_limits = Limits { message_bytes_max: message.len() as u64, ..limits };
        let fits = payload.len() as u64 <= exact_limits.message_bytes_max * 2;
        assert!(
            !fits || inflate_message(&exact_limits, payload, false).is_ok(),
            "a message of exactly the limit is accepted"
        );
        if let Some(smaller) = exact_limits.message_bytes_max.checked_sub(1) {
            let smaller_limits = Limits { message_bytes_max: smaller, ..limits };
            assert_eq!(
                inflate_message(&smaller_limits, payload, false),
                Err(WebSocketError::MessageTooLong)
            );
        }
    }
}

fn check_round_trip(content: &[u8]) {
    let limits = Limits { compress_bytes_min: 0, ..Limits::DEFAULT };
    let mut server = Connection::new(&limits, Role::Server, Some(Inflater::new(false, false)));
    let mut client =
        Connection::new(&limits, Role::Client(|| MASK), Some(Inflater::new(false, false)));
    let (mut bytes, mut out) = (Vec::new(), Vec::new());
    let (first, second) = content.split_at(content.len() / 2);
    server
        .send(&limits, MessagePayload::Binary(content), &mut bytes)
        .expect("the WebSocket is open");
    server
        .send_fragment(MessagePayload::Binary(first), false, &mut bytes)
        .expect("the WebSocket is open");
    server
        .send_fragment(MessagePayload::Binary(second), true, &mut bytes)
        .expect("the WebSocket is open");
    let mut at = 0;
    for _ in 0..2 {
        let (used, event) = client.receive(&limits, &mut bytes[at..], &mut out);
        at += used;
        assert!(
            matches!(event, Event::Binary(bytes) if *bytes == *content),
            "the peer reads what was sent"
        );
    }
    assert_eq!(at, bytes.len());
}
