//! Prints the transitions of a stream, and the effect of each frame in each state of its stream,
//! and compares them with `states.txt`, so that every change is visible in review.

use super::frame::{self, ErrorCode, FrameType, flags};
use super::streams::{State, Transition};
use super::{Connection, Event, Limits};
use crate::h1::ResponseLength;
use crate::{Date, HeadIndex};
use std::fmt::Write;

const STATES: [State; 4] =
    [State::Open, State::HalfClosedRemote, State::HalfClosedLocal, State::Closed];

const TRANSITIONS: [Transition; 4] =
    [Transition::ReceiveEnd, Transition::SendEnd, Transition::Reset, Transition::ResetByPeer];

/// How stream 1 gets into a state: the client's frames, and whether the server responds or resets
/// it.
const SITUATIONS: [(&str, &[&str], Option<Server>); 9] = [
    ("idle", &[], None),
    ("open", &["post"], None),
    ("half-closed (remote)", &["get"], None),
    ("half-closed (local)", &["post"], Some(Server::Responds)),
    ("ended by both", &["get"], Some(Server::Responds)),
    ("reset by the client", &["post", "reset"], None),
    ("reset by the server", &["post"], Some(Server::Resets)),
    ("skipped", &["get 3"], None),
    ("within a block", &["block"], None),
];

#[derive(Clone, Copy)]
enum Server {
    Responds,
    Resets,
}

const FRAMES: [&str; 14] = [
    "post",
    "get",
    "block",
    "continuation",
    "data",
    "data and end",
    "priority",
    "reset",
    "window",
    "window of nothing",
    "priority update",
    "push promise",
    "ping",
    "unknown",
];

fn write_frame(name: &str, out: &mut Vec<u8>) {
    const END: u8 = flags::END_STREAM;
    const BLOCK: u8 = flags::END_HEADERS;
    // A method, http, /, and the authority `a`.
    let (get, post) = (b"\x82\x86\x84\x01\x01a", b"\x83\x86\x84\x01\x01a");
    match name {
        "get" => frame::write_frame(FrameType::Headers, END | BLOCK, 1, get, out),
        "get 3" => frame::write_frame(FrameType::Headers, END | BLOCK, 3, get, out),
        "post" => frame::write_frame(FrameType::Headers, BLOCK, 1, post, out),
        "block" => frame::write_frame(FrameType::Headers, END, 1, get, out),
        "continuation" => frame::write_frame(FrameType::Continuation, BLOCK, 1, b"", out),
        "data" => frame::write_frame(FrameType::Data, 0, 1, b"a", out),
        "data and end" => frame::write_frame(FrameType::Data, END, 1, b"a", out),
        "priority" => frame::write_frame(FrameType::Priority, 0, 1, &[0; 5], out),
        "reset" => frame::write_rst_stream(1, ErrorCode::CANCEL, out),
        "window" => frame::write_window_update(1, 1, out),
        "window of nothing" => frame::write_window_update(1, 0, out),
        "priority update" => {
            frame::write_frame(FrameType::PriorityUpdate, 0, 0, b"\0\0\0\x01u=1", out)
        }
        "push promise" => frame::write_frame(FrameType::PushPromise, BLOCK, 1, b"\0\0\0\x02", out),
        "ping" => frame::write_frame(FrameType::Ping, 0, 0, &[0; 8], out),
        _ => frame::write_frame(FrameType::Unknown(99), 0, 1, b"", out),
    }
}

/// Receives frames and returns the names of the resulting events.
fn receive(
    connection: &mut Connection,
    frames: &[u8],
    out: &mut Vec<u8>,
) -> (String, Option<Event>) {
    let (mut bytes, mut head, mut at) = (Vec::new(), HeadIndex::new(), 0);
    let (mut names, mut request) = (Vec::new(), None);
    loop {
        let (used, event) =
            connection.receive(&Limits::DEFAULT, &frames[at..], &mut bytes, &mut head, out);
        connection.assert_invariants();
        at += used;
        names.push(match &event {
            Event::NeedInput | Event::Closed => break,
            Event::Settings => continue,
            Event::Request(_) => "request".to_owned(),
            Event::Data { .. } => "data".to_owned(),
            Event::End { .. } => "end".to_owned(),
            Event::Reset { cause, .. } => format!("reset, {cause:?}"),
            Event::StreamError { error, .. } => format!("rejected, {error:?}"),
            other => format!("{other:?}"),
        });
        if let Event::Request(_) = event {
            request = Some(event);
        }
    }
    let names = if names.is_empty() { "nothing".to_owned() } else { names.join("; ") };
    (names, request)
}

fn situation(frames: &[&str], server: Option<Server>) -> Connection {
    let (limits, mut out) = (Limits::DEFAULT, Vec::new());
    let mut connection = Connection::new(&limits, &mut out);
    let mut bytes = frame::PREFACE.to_vec();
    frame::write_settings([], &mut bytes);
    frames.iter().for_each(|name| write_frame(name, &mut bytes));
    let (_, request) = receive(&mut connection, &bytes, &mut out);
    if let (Some(Event::Request(request)), Some(server)) = (request, server) {
        let (stream, date) = (request.stream, Date::from_unix_seconds(0));
        match server {
            Server::Responds => {
                let length = ResponseLength::Exact(0);
                connection.send_response(&limits, stream, 200, [], length, &date, &mut out);
            }
            Server::Resets => connection.reset(stream, ErrorCode::CANCEL, &mut out),
        }
    }
    connection
}

fn table() -> String {
    let mut text = String::from("# Streams\n");
    for state in STATES {
        for transition in TRANSITIONS {
            let to = state.on(transition).map_or("illegal".to_owned(), |to| format!("{to:?}"));
            writeln!(text, "{state:?} + {transition:?} = {to}").unwrap();
        }
    }
    text.push_str("\n# Frames in each state of stream 1\n");
    for (name, frames, server) in SITUATIONS {
        for frame in FRAMES {
            let (mut connection, mut bytes, mut out) =
                (situation(frames, server), Vec::new(), Vec::new());
            write_frame(frame, &mut bytes);
            let (events, _) = receive(&mut connection, &bytes, &mut out);
            let answer = match frame::FrameHeader::parse(&out).map(|header| header.frame_type) {
                None => "no answer".to_owned(),
                Some(kind) => format!("{kind:?}"),
            };
            writeln!(text, "{name} + {frame} = {events}; {answer}").unwrap();
        }
    }
    text
}

#[test]
fn transitions_and_effects_of_frames_match_the_snapshot() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/h2/states.txt");
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    if std::env::var_os("PEREGRINE_SNAPSHOT").is_some() {
        std::fs::write(&path, table()).unwrap();
        return;
    }
    assert!(table() == expected, "run with PEREGRINE_SNAPSHOT=1 and review the difference");
}
