//! Targets for WebSocket.

use crate::inflater::Inflater;
use crate::notation::MASK;
use crate::ws_play::{Way, play};
use peregrine_proto::ws::deflate::{DeflateConfig, Offer, negotiate};
use peregrine_proto::ws::frame::{self, Opcode, flag};
use peregrine_proto::ws::{Connection, Event, Limits, MessagePayload, Role, WebSocketError};

/// A whole connection, whose invariants are asserted after each step. Bits of the first byte choose
/// the role, the limits, compression, whether the rest is bytes or packed frames, and whether a
/// Close frame was sent before.
pub fn ws(data: &[u8]) {
    let Some((bits, rest)) = data.split_first() else { return };
    let way = Way {
        is_client: bits & 2 != 0,
        compresses: bits & 4 != 0,
        closes: bits & 8 != 0,
        in_pieces: false,
    };
    let limits = if bits & 16 == 0 { Limits::DEFAULT } else { small() };
    let mut bytes = Vec::new();
    if bits & 1 == 0 {
        bytes.extend_from_slice(rest);
    } else {
        unpack(rest, way.is_client, &mut bytes);
    }
    let whole = play(&limits, way, &bytes, &[]);
    let single: Vec<_> = (0..bytes.len()).collect();
    let some: Vec<_> = (0..bytes.len()).step_by(usize::from(bits >> 5) + 2).collect();
    for cuts in [single, some, Vec::new()] {
        for in_pieces in [false, true] {
            let parts = play(&limits, Way { in_pieces, ..way }, &bytes, &cuts);
            assert_eq!(whole, parts, "the events do not depend on the cuts");
        }
    }
}

fn small() -> Limits {
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
    offer(value);
    inflate(payload);
    round_trip(payload);
}

fn offer(value: &[u8]) {
    let all = DeflateConfig {
        server_no_context_takeover: false,
        client_no_context_takeover: false,
        server_max_window_bits: 8..=15,
        client_max_window_bits: 15,
    };
    for wishes in [DeflateConfig::default(), all.clone()] {
        let Some(agreed) = negotiate([value], &wishes) else { continue };
        for bits in [agreed.server_max_window_bits, agreed.client_max_window_bits] {
            assert!((8..=15).contains(&bits), "a window has 8 to 15 bits");
        }
        assert!(wishes.server_max_window_bits.contains(&agreed.server_max_window_bits));
        // A negotiated result is itself a valid offer of the same.
        let text = agreed.to_string();
        assert_eq!(negotiate([text.as_bytes()], &all), Some(agreed), "{text}");
    }
    let _ = Offer::default().parse_response([value]);
}

/// The result of decompressing the bytes.
fn inflated(limits: &Limits, payload: &[u8], in_pieces: bool) -> Result<Vec<u8>, WebSocketError> {
    let compression = Some(Inflater::new(true, true));
    let mut connection = Connection::new(limits, Role::Client(|| MASK), compression);
    if in_pieces {
        connection = connection.streaming();
    }
    let (mut bytes, mut out, mut at, mut whole) = (Vec::new(), Vec::new(), 0, Vec::new());
    let flags = flag::FIN | flag::RSV1;
    frame::write_frame(Opcode::Binary, flags, None, payload, &mut bytes);
    loop {
        let (used, event) = connection.receive(limits, &mut bytes[at..], &mut out);
        at += used;
        connection.assert_invariants();
        match event {
            Event::Binary(bytes) => return Ok(bytes.into_owned()),
            Event::Chunk { bytes, is_final: last, .. } => {
                whole.extend_from_slice(&bytes);
                assert!(whole.len() as u64 <= limits.message_bytes_max, "the limit is kept");
                if last {
                    return Ok(whole);
                }
            }
            Event::Error(reject) => return Err(reject),
            other => panic!("one message was sent: {other:?}"),
        }
    }
}

fn inflate(payload: &[u8]) {
    let limits = Limits { message_bytes_max: 50_000, ..Limits::DEFAULT };
    let whole = inflated(&limits, payload, false);
    assert_eq!(inflated(&limits, payload, true), whole, "pieces give the same message");
    if let Ok(whole) = &whole {
        let least = Limits { message_bytes_max: whole.len() as u64, ..limits };
        let longest = payload.len() as u64 <= least.message_bytes_max * 2;
        assert!(
            !longest || inflated(&least, payload, false).is_ok(),
            "a message of exactly the limit is accepted"
        );
        if let Some(less) = least.message_bytes_max.checked_sub(1) {
            let less = Limits { message_bytes_max: less, ..limits };
            assert_eq!(inflated(&less, payload, false), Err(WebSocketError::MessageTooLong));
        }
    }
}

fn round_trip(content: &[u8]) {
    let limits = Limits { compress_bytes_min: 0, ..Limits::DEFAULT };
    let mut server = Connection::new(&limits, Role::Server, Some(Inflater::new(false, false)));
    let mut client =
        Connection::new(&limits, Role::Client(|| MASK), Some(Inflater::new(false, false)));
    let (mut bytes, mut out) = (Vec::new(), Vec::new());
    let (one, two) = content.split_at(content.len() / 2);
    server
        .send(&limits, MessagePayload::Binary(content), &mut bytes)
        .expect("the WebSocket is open");
    server
        .send_fragment(MessagePayload::Binary(one), false, &mut bytes)
        .expect("the WebSocket is open");
    server
        .send_fragment(MessagePayload::Binary(two), true, &mut bytes)
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
