//! The output, which the other end can read.

use super::notation::{self, MASK};
use peregrine_proto::ws::{
    Close, CloseCode, Connection, Event, Limits, MessagePayload, NextAction, Role, WaitingFor,
    WebSocketError, WriteError, frame,
};
use proptest::prelude::*;
use std::borrow::Cow;

const LIMITS: Limits = Limits::DEFAULT;

fn server() -> Connection {
    Connection::new(&LIMITS, Role::Server, None)
}

fn client() -> Connection {
    Connection::new(&LIMITS, Role::Client(|| MASK), None)
}

#[test]
fn lengths_have_the_minimal_encoding() {
    for (length, header) in [
        (0, &b"\x82\x00"[..]),
        (125, b"\x82\x7d"),
        (126, b"\x82\x7e\x00\x7e"),
        (65_535, b"\x82\x7e\xff\xff"),
        (65_536, b"\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x00"),
    ] {
        let (mut out, content) = (Vec::new(), vec![7; length]);
        server().send(&LIMITS, MessagePayload::Binary(&content), &mut out).unwrap();
        assert_eq!(out, [header, &content].concat());
    }
}

#[test]
fn control_frames_may_be_sent_between_fragments() {
    let (mut out, mut server) = (Vec::new(), server());
    server.send_fragment(MessagePayload::Text("a"), false, &mut out).unwrap();
    server.ping(b"x", &mut out).unwrap();
    server.send_fragment(MessagePayload::Text("b"), false, &mut out).unwrap();
    let result = server.send(&LIMITS, MessagePayload::Text("c"), &mut out);
    assert_eq!(result, Err(WriteError::MessageInProgress));
    let result = server.send_fragment(MessagePayload::Binary(b"c"), true, &mut out);
    assert_eq!(result, Err(WriteError::MessageInProgress));
    server.send_fragment(MessagePayload::Text(""), true, &mut out).unwrap();
    server.pong(b"", &mut out).unwrap();
    server.send(&LIMITS, MessagePayload::Text("c"), &mut out).unwrap();
    let lines = ["text +more a", "ping x", "continue +more b", "continue", "pong", "text c"];
    assert_eq!(notation::lines(&out, false), lines);
}

#[test]
fn nothing_is_written_after_an_error() {
    let (mut out, mut server) = (Vec::new(), server());
    assert_eq!(server.ping(&[0; 126], &mut out), Err(WriteError::ControlTooLong));
    assert_eq!(server.pong(&[0; 126], &mut out), Err(WriteError::ControlTooLong));
    for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000] {
        let close = server.close(Some((CloseCode(code), "")), &mut out);
        assert_eq!(close, Err(WriteError::InvalidCloseCode), "{code}");
    }
    assert!(out.is_empty() && server.can_send());
    server.close(Some((CloseCode::GOING_AWAY, "bye")), &mut out).unwrap();
    assert_eq!(notation::lines(&out, false), ["close 1001 bye"]);
    out.clear();
    assert!(!server.can_send());
    assert_eq!(server.send(&LIMITS, MessagePayload::Text("a"), &mut out), Err(WriteError::Closed));
    assert_eq!(
        server.send_fragment(MessagePayload::Text("a"), true, &mut out),
        Err(WriteError::Closed)
    );
    assert_eq!(server.ping(b"", &mut out), Err(WriteError::Closed));
    assert_eq!(server.pong(b"", &mut out), Err(WriteError::Closed));
    assert_eq!(server.close(None, &mut out), Err(WriteError::Closed));
    assert!(out.is_empty());
}

#[test]
fn a_long_close_reason_is_truncated_between_characters() {
    let (mut out, reason) = (Vec::new(), "€".repeat(50));
    server().close(Some((CloseCode::NORMAL_CLOSURE, &reason)), &mut out).unwrap();
    let (used, event) = client().receive(&LIMITS, &mut out, &mut Vec::new());
    assert_eq!(used, 127);
    let close = Close { code: CloseCode::NORMAL_CLOSURE, reason: &"€".repeat(41) };
    assert_eq!(event, Event::Close(close));
}

#[test]
fn the_server_closes_the_transport_after_two_close_frames() {
    let (mut client, mut server, mut to_server, mut to_client) =
        (client(), server(), Vec::new(), Vec::new());
    client.close(Some((CloseCode::NORMAL_CLOSURE, "bye")), &mut to_server).unwrap();
    assert_eq!(
        (client.next_action(), client.waiting_for()),
        (NextAction::Receive, WaitingFor::Close)
    );
    let (_, event) = server.receive(&LIMITS, &mut to_server, &mut to_client);
    assert_eq!(event, Event::Close(Close { code: CloseCode::NORMAL_CLOSURE, reason: "bye" }));
    assert_eq!(
        (server.next_action(), server.waiting_for()),
        (NextAction::Close, WaitingFor::Nothing)
    );
    let (_, event) = client.receive(&LIMITS, &mut to_client, &mut Vec::new());
    assert_eq!(event, Event::Close(Close { code: CloseCode::NORMAL_CLOSURE, reason: "" }));
    assert_eq!(
        (client.next_action(), client.waiting_for()),
        (NextAction::AwaitTransportClose, WaitingFor::TransportClose)
    );
    assert_eq!(client.receive_eof(), Event::Closed);
    assert_eq!(server.receive_eof(), Event::Closed);
}

#[test]
fn close_frames_that_cross_need_no_reply() {
    let (mut client, mut server, mut to_server, mut to_client) =
        (client(), server(), Vec::new(), Vec::new());
    client.close(None, &mut to_server).unwrap();
    server.close(Some((CloseCode::GOING_AWAY, "")), &mut to_client).unwrap();
    let mut out = Vec::new();
    let (_, event) = server.receive(&LIMITS, &mut to_server, &mut out);
    assert_eq!(event, Event::Close(Close { code: CloseCode::NO_STATUS_RECEIVED, reason: "" }));
    let (_, event) = client.receive(&LIMITS, &mut to_client, &mut out);
    assert_eq!(event, Event::Close(Close { code: CloseCode::GOING_AWAY, reason: "" }));
    assert!(out.is_empty());
}

#[test]
fn a_received_close_frame_ends_a_fragmented_message_being_sent() {
    let (mut server, mut out) = (server(), Vec::new());
    server.send_fragment(MessagePayload::Text("a"), false, &mut out).unwrap();
    let mut unread = notation::bytes(["close 1000"].iter(), true);
    let (_, event) = server.receive(&LIMITS, &mut unread, &mut out);
    assert!(matches!(event, Event::Close(_)));
    assert_eq!(
        server.send_fragment(MessagePayload::Text("b"), true, &mut out),
        Err(WriteError::Closed)
    );
    assert_eq!(notation::lines(&out, false), ["text +more a", "close 1000"]);
}

#[test]
fn messages_are_borrowed_if_complete_and_buffered_otherwise() {
    let (mut server, mut out) = (server(), Vec::new());
    let mut unread = notation::bytes(["text hello", "text +more wor"].iter(), true);
    let (used, event) = server.receive(&LIMITS, &mut unread, &mut out);
    assert!(matches!(event, Event::Text(Cow::Borrowed("hello"))), "{event:?}");
    assert_eq!((server.memory_bytes(), server.waiting_for()), (0, WaitingFor::NextMessage));
    let (_, event) = server.receive(&LIMITS, &mut unread[used..], &mut out);
    assert_eq!(event, Event::NeedInput);
    assert_eq!(server.waiting_for(), WaitingFor::Message);
    assert!((3..100).contains(&server.memory_bytes()));
    let mut unread = notation::bytes(["continue ld"].iter(), true);
    let (used, event) = server.receive(&LIMITS, &mut unread[..1], &mut out);
    assert_eq!((used, event, server.waiting_for()), (0, Event::NeedInput, WaitingFor::Frame));
    let (_, event) = server.receive(&LIMITS, &mut unread, &mut out);
    assert!(matches!(event, Event::Text(Cow::Owned(text)) if text == "world"));
    assert_eq!(server.memory_bytes(), 0);
}

#[test]
fn an_announced_length_allocates_no_memory() {
    let (mut server, mut out) = (server(), Vec::new());
    let mut unread = notation::bytes(["binary \\{a*100000}"].iter(), true);
    let (_, event) = server.receive(&LIMITS, &mut unread[..100], &mut out);
    assert_eq!(event, Event::NeedInput);
    assert!(server.memory_bytes() < 400, "{}", server.memory_bytes());
}

#[test]
fn the_budget_is_refilled_with_time() {
    let limits =
        Limits { abuse_budget_max: 4, pending_pongs_max: 2, abuse_budget_per_second: 2, ..LIMITS };
    let mut server: Connection = Connection::new(&limits, Role::Server, None);
    let ping = |server: &mut Connection| {
        let mut unread = notation::bytes(["ping"].iter(), true);
        match server.receive(&limits, &mut unread, &mut Vec::new()).1 {
            Event::Ping(_) => Ok(()),
            Event::Error(error) => Err(error),
            other => panic!("{other:?}"),
        }
    };
    server.refill_budget(&limits, 1000);
    for second in 2..50 {
        assert_eq!(ping(&mut server), Ok(()));
        server.output_flushed();
        server.refill_budget(&limits, second * 1000);
    }
    assert_eq!((ping(&mut server), ping(&mut server)), (Ok(()), Ok(())));
    server.output_flushed();
    assert_eq!(ping(&mut server), Err(WebSocketError::AbuseBudgetExhausted));
}

#[test]
fn apply_mask_handles_any_alignment() {
    let content: Vec<u8> = (0..=255).cycle().take(1000).collect();
    for (start, length) in (0..9).flat_map(|start| (0..40).map(move |length| (start, length))) {
        let mut masked = content[start..start + length].to_vec();
        frame::apply_mask(&mut masked, MASK);
        for (at, byte) in masked.iter().enumerate() {
            assert_eq!(*byte, content[start + at] ^ MASK[at % 4]);
        }
    }
}

/// Something that one end sends.
#[derive(Clone, Debug)]
enum Action {
    Text(String),
    Binary(Vec<u8>),
    Fragments(Vec<String>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let bytes = |bytes_max| proptest::collection::vec(any::<u8>(), 0..bytes_max);
    let action = prop_oneof![
        ".{0,80}".prop_map(Action::Text),
        bytes(300).prop_map(Action::Binary),
        proptest::collection::vec(".{0,20}", 1..5).prop_map(Action::Fragments),
        bytes(126).prop_map(Action::Ping),
        bytes(126).prop_map(Action::Pong),
    ];
    proptest::collection::vec(action, 0..12)
}

fn perform(
    actions: &[Action],
    connection: &mut Connection,
    out: &mut Vec<u8>,
) -> Vec<Event<'static>> {
    let mut expected = Vec::new();
    for action in actions {
        match action {
            Action::Text(text) => {
                connection.send(&LIMITS, MessagePayload::Text(text), out).unwrap();
                expected.push(Event::Text(Cow::Owned(text.clone())));
            }
            Action::Binary(bytes) => {
                connection.send(&LIMITS, MessagePayload::Binary(bytes), out).unwrap();
                expected.push(Event::Binary(Cow::Owned(bytes.clone())));
            }
            Action::Fragments(fragments) => {
                for (at, fragment) in fragments.iter().enumerate() {
                    let is_last = at + 1 == fragments.len();
                    connection.send_fragment(MessagePayload::Text(fragment), is_last, out).unwrap();
                }
                expected.push(Event::Text(Cow::Owned(fragments.concat())));
            }
            Action::Ping(payload) => {
                connection.ping(payload, out).unwrap();
                expected.push(Event::Ping(payload.clone().leak()));
            }
            Action::Pong(payload) => {
                connection.pong(payload, out).unwrap();
                expected.push(Event::Pong(payload.clone().leak()));
            }
        }
    }
    expected
}

proptest! {
    #[test]
    fn messages_and_control_frames_are_received_by_the_other_end(
        actions in actions(),
        client_sends: bool,
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let (mut sender, mut receiver) = match client_sends {
            true => (client(), server()),
            false => (server(), client()),
        };
        let (mut bytes, mut out) = (Vec::new(), Vec::new());
        let mut expected = perform(&actions, &mut sender, &mut bytes);
        sender.close(Some((CloseCode::NORMAL_CLOSURE, "bye")), &mut bytes).unwrap();
        expected.push(Event::Close(Close { code: CloseCode::NORMAL_CLOSURE, reason: "bye" }));
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.push(bytes.len());
        cuts.sort_unstable();
        let (mut at, mut expected) = (0, expected.into_iter());
        for end in cuts {
            loop {
                let (used, event) = receiver.receive(&LIMITS, &mut bytes[at..end], &mut out);
                at += used;
                if matches!(event, Event::NeedInput | Event::Closed) {
                    break;
                }
                prop_assert_eq!(Some(event), expected.next());
            }
        }
        prop_assert_eq!(expected.next(), None);
        // The sender reads the replies.
        let mut at = 0;
        loop {
            let (used, event) = sender.receive(&LIMITS, &mut out[at..], &mut bytes);
            at += used;
            match event {
                Event::Pong(_) => {}
                Event::Close(close) => break prop_assert_eq!(close.code, CloseCode::NORMAL_CLOSURE),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
