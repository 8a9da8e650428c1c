//! Prints the transitions of the close handshake, and the effect of each frame and each call in
//! each situation, and compares them with `states.txt`, so that every change is visible in review.

use super::connection::{State, Transition};
use super::frame::{self, Opcode, flag};
use super::{CloseCode, Connection, Event, Limits, MessagePayload, Role};
use std::fmt::Write;

const STATES: [State; 4] = [State::Open, State::CloseSent, State::Closed, State::Failed];

const TRANSITIONS: [Transition; 4] =
    [Transition::SendClose, Transition::ReceiveClose, Transition::Fail, Transition::End];

/// How to bring a server into a situation: the client's frames, and then the server's calls.
const SITUATIONS: [(&str, &[&str], &[&str]); 9] = [
    ("open", &[], &[]),
    ("within a received message", &["begin"], &[]),
    ("within a frame", &["half a frame"], &[]),
    ("within a sent message", &[], &["send begin"]),
    ("after its Close frame", &[], &["close"]),
    ("after its Close frame, within a sent message", &[], &["send begin", "close"]),
    ("after its Close frame, within a received message", &["begin"], &["close"]),
    ("closed", &["close"], &[]),
    ("failed", &["reserved"], &[]),
];

const FRAMES: [&str; 9] = [
    "text",
    "begin",
    "continuation",
    "last continuation",
    "ping",
    "pong",
    "close",
    "reserved",
    "end of bytes",
];

const CALLS: [&str; 6] = ["send", "send begin", "send end", "send bytes", "ping", "close"];

fn write_frame(name: &str, out: &mut Vec<u8>) {
    let mask = Some(*b"mask");
    match name {
        "text" => frame::write_frame(Opcode::Text, flag::FIN, mask, b"a", out),
        "begin" => frame::write_frame(Opcode::Text, 0, mask, b"a", out),
        "half a frame" => {
            frame::write_frame(Opcode::Text, flag::FIN, mask, b"ab", out);
            out.pop();
        }
        "continuation" => frame::write_frame(Opcode::Continuation, 0, mask, b"a", out),
        "last continuation" => frame::write_frame(Opcode::Continuation, flag::FIN, mask, b"a", out),
        "ping" => frame::write_frame(Opcode::Ping, flag::FIN, mask, b"", out),
        "pong" => frame::write_frame(Opcode::Pong, flag::FIN, mask, b"", out),
        "close" => frame::write_frame(Opcode::Close, flag::FIN, mask, b"\x03\xe8", out),
        _ => out.extend([flag::FIN | 3, 0x80, 0, 0, 0, 0]),
    }
}

fn names(events: &[String]) -> String {
    if events.is_empty() { "nothing".to_owned() } else { events.join("; ") }
}

fn receive(connection: &mut Connection, frame: &str, out: &mut Vec<u8>) -> String {
    if frame == "end of bytes" {
        return format!("{:?}", connection.receive_eof());
    }
    let (mut bytes, mut at, mut events) = (Vec::new(), 0, Vec::new());
    write_frame(frame, &mut bytes);
    loop {
        let (used, event) = connection.receive(&Limits::DEFAULT, &mut bytes[at..], out);
        at += used;
        match &event {
            Event::NeedInput => return names(&events),
            Event::Closed => {
                events.push("Closed".to_owned());
                return names(&events);
            }
            Event::Close(close) => events.push(format!("Close {}", close.code.0)),
            other => events.push(format!("{other:?}")),
        }
        connection.assert_invariants();
    }
}

fn call(connection: &mut Connection, name: &str, out: &mut Vec<u8>) -> String {
    let text = MessagePayload::Text("a");
    let result = match name {
        "send" => connection.send(&Limits::DEFAULT, text, out),
        "send begin" => connection.send_fragment(text, false, out),
        "send end" => connection.send_fragment(text, true, out),
        "send bytes" => connection.send_fragment(MessagePayload::Binary(b"a"), true, out),
        "ping" => connection.ping(b"", out),
        _ => connection.close(Some((CloseCode::NORMAL_CLOSURE, "")), out),
    };
    connection.assert_invariants();
    format!("{result:?}")
}

fn situation(frames: &[&str], calls: &[&str]) -> Connection {
    let mut connection = Connection::new(&Limits::DEFAULT, Role::Server, None);
    let mut out = Vec::new();
    frames.iter().for_each(|frame| drop(receive(&mut connection, frame, &mut out)));
    calls.iter().for_each(|name| drop(call(&mut connection, name, &mut out)));
    connection
}

/// The output, as opcodes.
fn written(out: &[u8]) -> String {
    match out.first().map(|first| Opcode::from_u8(first & 0x0F)) {
        None => "writes nothing".to_owned(),
        Some(opcode) => format!("writes {:?}", opcode.expect("no reserved opcode is written")),
    }
}

fn table() -> String {
    let mut text = String::from("# The close handshake\n");
    for state in STATES {
        for transition in TRANSITIONS {
            let to = state.on(transition).map_or("illegal".to_owned(), |to| format!("{to:?}"));
            writeln!(text, "{state:?} + {transition:?} = {to}").unwrap();
        }
    }
    text.push_str("\n# Received frames in each situation\n");
    for (name, frames, calls) in SITUATIONS {
        for frame in FRAMES {
            let (mut connection, mut out) = (situation(frames, calls), Vec::new());
            let events = receive(&mut connection, frame, &mut out);
            let (next, waiting) = (connection.next_action(), connection.waiting_for());
            let written = written(&out);
            writeln!(text, "{name} + {frame} = {events}; {written}; {next:?}, {waiting:?}")
                .unwrap();
        }
    }
    text.push_str("\n# Calls in each situation\n");
    for (name, frames, calls) in SITUATIONS {
        for call_name in CALLS {
            let (mut connection, mut out) = (situation(frames, calls), Vec::new());
            let result = call(&mut connection, call_name, &mut out);
            writeln!(text, "{name} + {call_name} = {result}; {}", written(&out)).unwrap();
        }
    }
    text
}

#[test]
fn effects_of_frames_and_calls_match_the_snapshot() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ws/states.txt");
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    if std::env::var_os("PEREGRINE_SNAPSHOT").is_some() {
        std::fs::write(&path, table()).unwrap();
        return;
    }
    assert!(table() == expected, "run with PEREGRINE_SNAPSHOT=1 and review the difference");
}
