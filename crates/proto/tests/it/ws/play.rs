//! A miniature endpoint: feeds a connection, and records the events.

use super::inflater::Inflater;
use super::notation::{self, MASK};
use crate::script::escape;
use peregrine_proto::ws::{Connection, Event, Limits, MessageType, NextAction, Role};

/// The options of an endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Way {
    /// It is the client.
    pub(crate) is_client: bool,
    /// Compression was negotiated.
    pub(crate) compresses: bool,
    /// Messages are received in pieces.
    pub(crate) in_pieces: bool,
    /// The endpoint has sent a Close frame before receiving anything.
    pub(crate) closes: bool,
}

impl Way {
    pub(crate) fn connection(self, limits: &Limits) -> Connection<Inflater> {
        let role = if self.is_client { Role::Client(|| MASK) } else { Role::Server };
        let compression = self.compresses.then(|| Inflater::new(false, false));
        let connection = Connection::new(limits, role, compression);
        if self.in_pieces { connection.streaming() } else { connection }
    }
}

/// Feeds `bytes` in pieces that end at `cuts` (ascending) and at their end, then the peer's end.
/// Returns the events as lines of text, the same for any cuts and whether messages are received in
/// pieces or not: events, and after `> ` the output.
pub(crate) fn play(limits: &Limits, way: Way, bytes: &[u8], cuts: &[usize]) -> Vec<String> {
    let mut out = Vec::new();
    let mut connection = way.connection(limits);
    if way.closes {
        connection.close(None, &mut out).expect("the connection is open");
        out.clear();
    }
    // Bytes are unmasked in place, so the endpoint has its own copy.
    let mut buffer = bytes.to_vec();
    let (mut used, mut notes, mut pieces) = (0, Vec::new(), Vec::new());
    'all: for end in cuts.iter().copied().chain([bytes.len()]) {
        loop {
            let unread = &mut buffer[used..end];
            let length = unread.len();
            let (taken, event) = connection.receive(limits, unread, &mut out);
            assert!(taken <= length, "more bytes used than available");
            used += taken;
            let note = match &event {
                Event::NeedInput => break,
                Event::Chunk { message_type: kind, bytes, is_final: last } => {
                    assert!(*last || !bytes.is_empty(), "pieces have content");
                    pieces.extend_from_slice(bytes);
                    if !last {
                        continue;
                    }
                    let whole = std::mem::take(&mut pieces);
                    match kind {
                        MessageType::Text => {
                            note(std::str::from_utf8(&whole).map(|_| "text"), &whole)
                        }
                        MessageType::Binary => note(Ok("binary"), &whole),
                    }
                }
                Event::Text(text) => note(Ok("text"), text.as_bytes()),
                Event::Binary(bytes) => note(Ok("binary"), bytes),
                Event::Ping(payload) => note(Ok("ping"), payload),
                Event::Pong(payload) => note(Ok("pong"), payload),
                Event::Close(close) => format!("close {} {}", close.code.0, close.reason),
                Event::Error(reject) => format!("error {reject:?}"),
                Event::Closed => panic!("the end was reported before"),
            };
            notes.push(note.trim_end().to_owned());
            connection.assert_invariants();
            let written = notation::lines(&out, way.is_client);
            notes.extend(written.into_iter().map(|line| format!("> {line}")));
            out.clear();
            if connection.next_action() != NextAction::Receive {
                let rest = &mut buffer[used..end];
                let all = (rest.len(), Event::Closed);
                assert_eq!(connection.receive(limits, rest, &mut out), all, "nothing more is read");
                break 'all;
            }
        }
        connection.assert_invariants();
        assert!(out.is_empty(), "output comes with an event");
        assert!(end - used < 131, "only headers and control frames stay unused");
    }
    if connection.next_action() == NextAction::Receive {
        notes.push(format!("{:?}", connection.receive_eof()).to_lowercase());
    } else {
        notes.push(format!("{:?}", connection.next_action()).to_lowercase());
        assert_eq!(connection.receive_eof(), Event::Closed);
    }
    connection.assert_invariants();
    notes
}

fn note(name: Result<&str, std::str::Utf8Error>, bytes: &[u8]) -> String {
    let name = name.expect("text is validated");
    match bytes.len() {
        0..=125 => format!("{name} {}", escape(bytes)),
        length => format!("{name} ({length} bytes)"),
    }
}
