//! permessage-deflate: messages that one end compresses and the other decompresses, and
//! decompression bombs.

use super::inflater::Inflater;
use super::notation::{self, MASK};
use flate2::write::DeflateEncoder;
use peregrine_proto::ws::frame::{self, Opcode, flag};
use peregrine_proto::ws::{
    Connection, DeflateCodec, Event, InflateError, Limits, MessagePayload, Role, WebSocketError,
};
use proptest::prelude::*;
use std::borrow::Cow;
use std::cell::Cell;
use std::io::Write;
use std::rc::Rc;

const LIMITS: Limits = Limits { compress_bytes_min: 0, ..Limits::DEFAULT };

fn pair(server_forgets: bool, client_forgets: bool) -> [Connection<Inflater>; 2] {
    let server = Inflater::new(server_forgets, client_forgets);
    let client = Inflater::new(client_forgets, server_forgets);
    [
        Connection::new(&LIMITS, Role::Server, Some(server)),
        Connection::new(&LIMITS, Role::Client(|| MASK), Some(client)),
    ]
}

/// The payload of a message that is compressed: a sync flush, without its last four bytes.
fn compressed(content: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(content).unwrap();
    encoder.flush().unwrap();
    let mut bytes = encoder.get_ref().clone();
    assert!(bytes.ends_with(&[0, 0, 0xFF, 0xFF]));
    bytes.truncate(bytes.len() - 4);
    bytes
}

#[test]
fn a_window_that_is_kept_makes_a_repeated_message_short_and_one_that_is_forgotten_does_not() {
    let text = "a message that is sent again and again";
    for forgets in [false, true] {
        let [mut server, mut client] = pair(forgets, false);
        let mut lengths = Vec::new();
        for _ in 0..2 {
            let (mut bytes, mut out) = (Vec::new(), Vec::new());
            server.send(&LIMITS, MessagePayload::Text(text), &mut bytes).unwrap();
            assert_eq!(bytes[0], 0xC1, "one frame of text, compressed");
            lengths.push(bytes.len());
            let (used, event) = client.receive(&LIMITS, &mut bytes, &mut out);
            assert_eq!((used, event), (*lengths.last().unwrap(), Event::Text(Cow::Borrowed(text))));
        }
        assert_eq!(lengths[1] < lengths[0] / 2, !forgets, "{lengths:?}");
        assert_eq!(lengths[1] == lengths[0], forgets, "{lengths:?}");
    }
}

#[test]
fn what_is_short_is_sent_as_it_is() {
    let [mut server, _] = pair(true, true);
    let limits = Limits { compress_bytes_min: 10, ..LIMITS };
    let mut out = Vec::new();
    server.send(&limits, MessagePayload::Text("123456789"), &mut out).unwrap();
    server.send(&limits, MessagePayload::Text("1234567890"), &mut out).unwrap();
    let firsts: Vec<_> = notation::frames(&out).iter().map(|frame| frame.first).collect();
    assert_eq!(firsts, [0x81, 0xC1]);
}

#[test]
fn each_piece_of_a_compressed_message_can_be_read_before_the_next() {
    let [mut server, client] = pair(false, false);
    let mut client = client.streaming();
    let (mut bytes, mut out) = (Vec::new(), Vec::new());
    for (piece, last) in [("one", false), ("", false), ("two", false), ("", true)] {
        bytes.clear();
        server.send_fragment(MessagePayload::Text(piece), last, &mut bytes).unwrap();
        let (mut at, mut content) = (0, Vec::new());
        let mut ended = false;
        loop {
            let (used, event) = client.receive(&LIMITS, &mut bytes[at..], &mut out);
            at += used;
            match event {
                Event::NeedInput => break,
                Event::Chunk { bytes, is_final: last, .. } => {
                    content.extend_from_slice(&bytes);
                    ended = last;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((content.as_slice(), ended), (piece.as_bytes(), last));
    }
    // The next message is a new one.
    bytes.clear();
    server.send(&LIMITS, MessagePayload::Binary(b""), &mut bytes).unwrap();
    assert!(bytes.starts_with(&[0xC2]));
    let (_, event) = client.receive(&LIMITS, &mut bytes, &mut out);
    assert!(matches!(event, Event::Chunk { is_final: true, .. }), "{event:?}");
}

/// A message of `length` zeros as a client sends it.
fn bomb(length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let payload = compressed(&vec![0; length]);
    let flags = flag::FIN | flag::RSV1;
    frame::write_frame(Opcode::Binary, flags, Some(MASK), &payload, &mut bytes);
    bytes
}

#[test]
fn a_bomb_is_refused_when_the_limit_is_passed_and_no_later() {
    let limits = Limits { message_bytes_max: 100_000, ..LIMITS };
    for in_pieces in [false, true] {
        for (length, is_refused) in [(100_000, false), (100_001, true), (50_000_000, true)] {
            let inflater =
                Counted { inner: Inflater::new(true, true), most: limits.message_bytes_max + 1 };
            let mut server = Connection::new(&limits, Role::Server, Some(inflater));
            if in_pieces {
                server = server.streaming();
            }
            let (mut bytes, mut out, mut at, mut held) = (bomb(length), Vec::new(), 0, 0);
            let ended = loop {
                let (used, event) = server.receive(&limits, &mut bytes[at..], &mut out);
                at += used;
                match event {
                    Event::Chunk { bytes, is_final: last, .. } => {
                        assert!(bytes.len() <= 16 * 1024, "a piece is short");
                        held += bytes.len();
                        if last {
                            break Ok(held);
                        }
                    }
                    Event::Binary(bytes) => break Ok(bytes.len()),
                    Event::Error(reject) => break Err(reject),
                    other => panic!("{other:?}"),
                }
            };
            let expected =
                if is_refused { Err(WebSocketError::MessageTooLong) } else { Ok(length) };
            assert_eq!(ended, expected, "{length} bytes, in pieces: {in_pieces}");
            assert_eq!(server.memory_bytes(), 0);
            if is_refused {
                assert!(notation::lines(&out, false)[0].starts_with("close 1009"));
            }
        }
    }
}

/// Asserts that a message never produces more than allowed.
struct Counted {
    inner: Inflater,
    most: u64,
}

impl DeflateCodec for Counted {
    fn inflate(
        &mut self,
        input: &[u8],
        room: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize, InflateError> {
        let used = self.inner.inflate(input, room, out);
        assert!(self.inner.produced as u64 <= self.most, "output within the limit");
        used
    }

    fn end_inflate(&mut self) {
        self.inner.end_inflate();
    }

    fn deflate(&mut self, input: &[u8], out: &mut Vec<u8>) {
        self.inner.deflate(input, out);
    }

    fn end_deflate(&mut self) {
        self.inner.end_deflate();
    }
}

/// A codec that takes all input at once, and produces output when there is room: a byte stands for
/// that many copies of itself. It does not compress.
#[derive(Default)]
struct Runs {
    pending: std::collections::VecDeque<u8>,
    ends: Rc<Cell<usize>>,
}

impl DeflateCodec for Runs {
    fn inflate(
        &mut self,
        input: &[u8],
        room: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize, InflateError> {
        assert!(room > 0, "there is room");
        let runs = input.iter().flat_map(|byte| std::iter::repeat_n(*byte, usize::from(*byte)));
        self.pending.extend(runs);
        out.extend(self.pending.drain(..room.min(self.pending.len())));
        Ok(input.len())
    }

    fn end_inflate(&mut self) {
        assert!(self.pending.is_empty(), "the whole message was requested");
        self.ends.set(self.ends.get() + 1);
    }

    fn deflate(&mut self, input: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(input);
    }

    fn end_deflate(&mut self) {}
}

#[test]
fn a_message_that_compresses_to_nothing_is_a_byte_0() {
    let mut server = Connection::new(&LIMITS, Role::Server, Some(Runs::default()));
    let mut out = Vec::new();
    server.send(&LIMITS, MessagePayload::Binary(b""), &mut out).unwrap();
    server.send_fragment(MessagePayload::Text("a"), false, &mut out).unwrap();
    server.send_fragment(MessagePayload::Text(""), true, &mut out).unwrap();
    assert_eq!(out, b"\xc2\x01\x00\x41\x01a\x80\x01\x00");
}

#[test]
fn bytes_may_be_added_between_pieces() {
    let content = vec![0; 1_000_000];
    let mut frame = Vec::new();
    let flags = flag::FIN | flag::RSV1;
    frame::write_frame(Opcode::Binary, flags, Some(MASK), &compressed(&content), &mut frame);
    let [server, _] = pair(true, true);
    let mut server = server.streaming();
    // One more byte after each piece, whatever the position of the mask.
    let (mut end, mut at, mut received, length) = (101, 0, 0, frame.len());
    loop {
        let (used, event) = server.receive(&LIMITS, &mut frame[at..end], &mut Vec::new());
        (at, end) = (at + used, length.min(end + 1));
        match event {
            Event::NeedInput => {}
            Event::Chunk { bytes, is_final: last, .. } => {
                assert!(bytes.iter().all(|byte| *byte == 0));
                received += bytes.len();
                if last {
                    break;
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(received, content.len());
}

fn contents() -> impl Strategy<Value = Vec<(bool, Vec<String>)>> {
    let piece = prop_oneof![".{0,60}", "[ab]{0,400}", Just("abc".repeat(9000))];
    let message = (any::<bool>(), proptest::collection::vec(piece, 1..4));
    proptest::collection::vec(message, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn all_that_a_compression_holds_back_is_asked_for_before_the_message_ends(
        payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..400), 2),
        cut: prop::sample::Index,
        step in 1..500_usize,
        in_pieces: bool,
    ) {
        let runs = Runs::default();
        let ends = Rc::clone(&runs.ends);
        let mut connection = Connection::new(&LIMITS, Role::Server, Some(runs));
        if in_pieces {
            connection = connection.streaming();
        }
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for payload in &payloads {
            let (one, two) = payload.split_at(cut.index(payload.len() + 1));
            frame::write_frame(Opcode::Binary, flag::RSV1, Some(MASK), one, &mut bytes);
            frame::write_frame(Opcode::Continuation, flag::FIN, Some(MASK), two, &mut bytes);
            for byte in payload.iter().chain(&[0, 0, 0xFF, 0xFF]) {
                expected.extend(std::iter::repeat_n(*byte, usize::from(*byte)));
            }
        }
        let (mut received, mut at, length) = (Vec::new(), 0, bytes.len());
        for end in (0..length).step_by(step).skip(1).chain([length]) {
            loop {
                let (used, event) =
                    connection.receive(&LIMITS, &mut bytes[at..end], &mut Vec::new());
                at += used;
                match event {
                    Event::NeedInput => break,
                    Event::Binary(bytes) | Event::Chunk { bytes, .. } => {
                        received.extend_from_slice(&bytes);
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
        prop_assert_eq!(received, expected);
        prop_assert_eq!(ends.get(), payloads.len());
    }

    #[test]
    fn what_is_compressed_on_one_end_is_inflated_on_the_other(
        messages in contents(),
        by_client: bool,
        server_forgets: bool,
        client_forgets: bool,
        in_pieces: bool,
        step in 1..5000_usize,
    ) {
        let [server, client] = pair(server_forgets, client_forgets);
        let (mut one, mut other) = if by_client { (client, server) } else { (server, client) };
        if in_pieces {
            other = other.streaming();
        }
        let (mut bytes, mut out, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for (is_text, pieces) in &messages {
            let content = |text| if *is_text { MessagePayload::Text(text) } else { MessagePayload::Binary(text.as_bytes()) };
            if let [whole] = &pieces[..] {
                one.send(&LIMITS, content(whole), &mut bytes).unwrap();
            } else {
                for (at, piece) in pieces.iter().enumerate() {
                    one.send_fragment(content(piece), at + 1 == pieces.len(), &mut bytes).unwrap();
                }
            }
            expected.push(pieces.concat().into_bytes());
        }
        let (mut received, mut part, mut at, length) = (Vec::new(), Vec::new(), 0, bytes.len());
        for end in (0..length).step_by(step).skip(1).chain([length]) {
            loop {
                let (used, event) = other.receive(&LIMITS, &mut bytes[at..end], &mut out);
                at += used;
                match event {
                    Event::NeedInput => break,
                    Event::Text(text) => received.push(text.into_owned().into_bytes()),
                    Event::Binary(bytes) => received.push(bytes.into_owned()),
                    Event::Chunk { bytes, is_final, .. } => {
                        part.extend_from_slice(&bytes);
                        if is_final {
                            received.push(std::mem::take(&mut part));
                        }
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
                other.assert_invariants();
            }
        }
        prop_assert_eq!(at, length);
        prop_assert_eq!(received, expected);
    }
}
