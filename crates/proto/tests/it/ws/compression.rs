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

fn pair(server_resets: bool, client_resets: bool) -> [Connection<Inflater>; 2] {
    let server = Inflater::new(server_resets, client_resets);
    let client = Inflater::new(client_resets, server_resets);
    [
        Connection::new(&LIMITS, Role::Server, Some(server)),
        Connection::new(&LIMITS, Role::Client(|| MASK), Some(client)),
    ]
}

/// The payload of a message that is compressed: a sync flush, without its last four bytes.
fn compress(content: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(content).unwrap();
    encoder.flush().unwrap();
    let mut bytes = encoder.get_ref().clone();
    assert!(bytes.ends_with(&[0, 0, 0xFF, 0xFF]));
    bytes.truncate(bytes.len() - 4);
    bytes
}

#[test]
fn context_takeover_makes_a_repeated_message_shorter() {
    let text = "a message that is sent again and again";
    for resets in [false, true] {
        let [mut server, mut client] = pair(resets, false);
        let mut lengths = Vec::new();
        for _ in 0..2 {
            let (mut bytes, mut out) = (Vec::new(), Vec::new());
            server.send(&LIMITS, MessagePayload::Text(text), &mut bytes).unwrap();
            assert_eq!(bytes[0], 0xC1, "one frame of text, compressed");
            lengths.push(bytes.len());
            let (used, event) = client.receive(&LIMITS, &mut bytes, &mut out);
            assert_eq!((used, event), (*lengths.last().unwrap(), Event::Text(Cow::Borrowed(text))));
        }
        assert_eq!(lengths[1] < lengths[0] / 2, !resets, "{lengths:?}");
        assert_eq!(lengths[1] == lengths[0], resets, "{lengths:?}");
    }
}

#[test]
fn short_messages_are_not_compressed() {
    let [mut server, _] = pair(true, true);
    let limits = Limits { compress_bytes_min: 10, ..LIMITS };
    let mut out = Vec::new();
    server.send(&limits, MessagePayload::Text("123456789"), &mut out).unwrap();
    server.send(&limits, MessagePayload::Text("1234567890"), &mut out).unwrap();
    let first_bytes: Vec<_> = notation::frames(&out).iter().map(|frame| frame.first).collect();
    assert_eq!(first_bytes, [0x81, 0xC1]);
}

#[test]
fn each_compressed_fragment_can_be_read_before_the_next() {
    let [mut server, client] = pair(false, false);
    let mut client = client.streaming();
    let (mut bytes, mut out) = (Vec::new(), Vec::new());
    for (fragment, is_last) in [("one", false), ("", false), ("two", false), ("", true)] {
        bytes.clear();
        server.send_fragment(MessagePayload::Text(fragment), is_last, &mut bytes).unwrap();
        let (mut at, mut content) = (0, Vec::new());
        let mut is_complete = false;
        loop {
            let (used, event) = client.receive(&LIMITS, &mut bytes[at..], &mut out);
            at += used;
            match event {
                Event::NeedInput => break,
                Event::Chunk { bytes, is_final, .. } => {
                    content.extend_from_slice(&bytes);
                    is_complete = is_final;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((content.as_slice(), is_complete), (fragment.as_bytes(), is_last));
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
    let payload = compress(&vec![0; length]);
    let flags = flag::FIN | flag::RSV1;
    frame::write_frame(Opcode::Binary, flags, Some(MASK), &payload, &mut bytes);
    bytes
}

#[test]
fn a_bomb_is_rejected_as_soon_as_it_exceeds_the_limit() {
    let limits = Limits { message_bytes_max: 100_000, ..LIMITS };
    for is_streaming in [false, true] {
        for (length, is_too_long) in [(100_000, false), (100_001, true), (50_000_000, true)] {
            let inflater = OutputLimitChecker {
                inner: Inflater::new(true, true),
                output_max: limits.message_bytes_max + 1,
            };
            let mut server = Connection::new(&limits, Role::Server, Some(inflater));
            if is_streaming {
                server = server.streaming();
            }
            let (mut bytes, mut out, mut at, mut received) = (bomb(length), Vec::new(), 0, 0);
            let result = loop {
                let (used, event) = server.receive(&limits, &mut bytes[at..], &mut out);
                at += used;
                match event {
                    Event::Chunk { bytes, is_final, .. } => {
                        assert!(bytes.len() <= 16 * 1024, "a chunk has at most 16 KiB");
                        received += bytes.len();
                        if is_final {
                            break Ok(received);
                        }
                    }
                    Event::Binary(bytes) => break Ok(bytes.len()),
                    Event::Error(error) => break Err(error),
                    other => panic!("{other:?}"),
                }
            };
            let expected =
                if is_too_long { Err(WebSocketError::MessageTooLong) } else { Ok(length) };
            assert_eq!(result, expected, "{length} bytes, streaming: {is_streaming}");
            assert_eq!(server.memory_bytes(), 0);
            if is_too_long {
                assert!(notation::lines(&out, false)[0].starts_with("close 1009"));
            }
        }
    }
}

/// A codec that asserts that a message is never decompressed beyond a limit.
struct OutputLimitChecker {
    inner: Inflater,
    output_max: u64,
}

impl DeflateCodec for OutputLimitChecker {
    fn inflate(
        &mut self,
        input: &[u8],
        room: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize, InflateError> {
        let result = self.inner.inflate(input, room, out);
        assert!(self.inner.produced as u64 <= self.output_max, "output within the limit");
        result
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

/// A codec that consumes all input at once, and produces output when there is room: a byte stands
/// for that many copies of itself. It does not compress.
#[derive(Default)]
struct RepeatCodec {
    pending: std::collections::VecDeque<u8>,
    end_count: Rc<Cell<usize>>,
}

impl DeflateCodec for RepeatCodec {
    fn inflate(
        &mut self,
        input: &[u8],
        room: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize, InflateError> {
        assert!(room > 0, "there is room");
        let repeated = input.iter().flat_map(|byte| std::iter::repeat_n(*byte, usize::from(*byte)));
        self.pending.extend(repeated);
        out.extend(self.pending.drain(..room.min(self.pending.len())));
        Ok(input.len())
    }

    fn end_inflate(&mut self) {
        assert!(self.pending.is_empty(), "the whole message was requested");
        self.end_count.set(self.end_count.get() + 1);
    }

    fn deflate(&mut self, input: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(input);
    }

    fn end_deflate(&mut self) {}
}

#[test]
fn a_message_that_compresses_to_nothing_is_sent_as_a_zero_byte() {
    let mut server = Connection::new(&LIMITS, Role::Server, Some(RepeatCodec::default()));
    let mut out = Vec::new();
    server.send(&LIMITS, MessagePayload::Binary(b""), &mut out).unwrap();
    server.send_fragment(MessagePayload::Text("a"), false, &mut out).unwrap();
    server.send_fragment(MessagePayload::Text(""), true, &mut out).unwrap();
    assert_eq!(out, b"\xc2\x01\x00\x41\x01a\x80\x01\x00");
}

#[test]
fn input_may_grow_between_chunks() {
    let content = vec![0; 1_000_000];
    let mut frame = Vec::new();
    let flags = flag::FIN | flag::RSV1;
    frame::write_frame(Opcode::Binary, flags, Some(MASK), &compress(&content), &mut frame);
    let [server, _] = pair(true, true);
    let mut server = server.streaming();
    // One more byte after each piece, whatever the position of the mask.
    let (mut end, mut at, mut received, length) = (101, 0, 0, frame.len());
    loop {
        let (used, event) = server.receive(&LIMITS, &mut frame[at..end], &mut Vec::new());
        (at, end) = (at + used, length.min(end + 1));
        match event {
            Event::NeedInput => {}
            Event::Chunk { bytes, is_final, .. } => {
                assert!(bytes.iter().all(|byte| *byte == 0));
                received += bytes.len();
                if is_final {
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
    fn pending_output_of_the_codec_is_read_before_the_message_ends(
        payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..400), 2),
        cut: prop::sample::Index,
        step in 1..500_usize,
        is_streaming: bool,
    ) {
        let codec = RepeatCodec::default();
        let end_count = Rc::clone(&codec.end_count);
        let mut connection = Connection::new(&LIMITS, Role::Server, Some(codec));
        if is_streaming {
            connection = connection.streaming();
        }
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for payload in &payloads {
            let (first, second) = payload.split_at(cut.index(payload.len() + 1));
            frame::write_frame(Opcode::Binary, flag::RSV1, Some(MASK), first, &mut bytes);
            frame::write_frame(Opcode::Continuation, flag::FIN, Some(MASK), second, &mut bytes);
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
        prop_assert_eq!(end_count.get(), payloads.len());
    }

    #[test]
    fn compressed_messages_are_received_by_the_other_end(
        messages in contents(),
        client_sends: bool,
        server_resets: bool,
        client_resets: bool,
        is_streaming: bool,
        step in 1..5000_usize,
    ) {
        let [server, client] = pair(server_resets, client_resets);
        let (mut sender, mut receiver) = match client_sends {
            true => (client, server),
            false => (server, client),
        };
        if is_streaming {
            receiver = receiver.streaming();
        }
        let (mut bytes, mut out, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for (is_text, fragments) in &messages {
            let content = |text| match *is_text {
                true => MessagePayload::Text(text),
                false => MessagePayload::Binary(text.as_bytes()),
            };
            if let [message] = &fragments[..] {
                sender.send(&LIMITS, content(message), &mut bytes).unwrap();
            } else {
                for (at, fragment) in fragments.iter().enumerate() {
                    let is_last = at + 1 == fragments.len();
                    sender.send_fragment(content(fragment), is_last, &mut bytes).unwrap();
                }
            }
            expected.push(fragments.concat().into_bytes());
        }
        let (mut received, mut chunks, mut at, length) = (Vec::new(), Vec::new(), 0, bytes.len());
        for end in (0..length).step_by(step).skip(1).chain([length]) {
            loop {
                let (used, event) = receiver.receive(&LIMITS, &mut bytes[at..end], &mut out);
                at += used;
                match event {
                    Event::NeedInput => break,
                    Event::Text(text) => received.push(text.into_owned().into_bytes()),
                    Event::Binary(bytes) => received.push(bytes.into_owned()),
                    Event::Chunk { bytes, is_final, .. } => {
                        chunks.extend_from_slice(&bytes);
                        if is_final {
                            received.push(std::mem::take(&mut chunks));
                        }
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
                receiver.assert_invariants();
            }
        }
        prop_assert_eq!(at, length);
        prop_assert_eq!(received, expected);
    }
}
