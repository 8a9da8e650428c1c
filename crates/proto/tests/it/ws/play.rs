//! A minimal endpoint: feeds a connection, and records the events.

use super::inflater::Inflater;
use super::notation::{self, MASK};
use crate::script::escape;
use peregrine_proto::ws::{Connection, Event, Limits, MessageType, NextAction, Role};

/// The options of an endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EndpointOptions {
    /// Whether the endpoint is the client.
    pub(crate) is_client: bool,
    /// Whether compression was negotiated.
    pub(crate) has_compression: bool,
    /// Whether messages are received in chunks.
    pub(crate) is_streaming: bool,
    /// Whether the endpoint sends a Close frame before it receives anything.
    pub(crate) sent_close: bool,
}

impl EndpointOptions {
    pub(crate) fn connection(self, limits: &Limits) -> Connection<Inflater> {
        let role = if self.is_client { Role::Client(|| MASK) } else { Role::Server };
        let compression = self.has_compression.then(|| Inflater::new(false, false));
        let connection = Connection::new(limits, role, compression);
        if self.is_streaming { connection.streaming() } else { connection }
    }
}

/// Feeds `bytes` split at `cuts` (ascending), then the end of the stream. Returns lines of text,
/// which depend neither on the cuts nor on `is_streaming`: the events, and after `> ` the output.
pub(crate) fn play(
    limits: &Limits,
    options: EndpointOptions,
    bytes: &[u8],
    cuts: &[usize],
) -> Vec<String> {
    let mut out = Vec::new();
    let mut connection = options.connection(limits);
    if options.sent_close {
        connection.close(None, &mut out).expect("the connection is open");
        out.clear();
    }
    // Bytes are unmasked in place, so the endpoint has its own copy.
    let mut buffer = bytes.to_vec();
    let (mut used, mut lines, mut chunks) = (0, Vec::new(), Vec::new());
    'all: for end in cuts.iter().copied().chain([bytes.len()]) {
        loop {
            let unread = &mut buffer[used..end];
            let length = unread.len();
            let (count, event) = connection.receive(limits, unread, &mut out);
            assert!(count <= length, "more bytes used than available");
            used += count;
            let line = match &event {
                Event::NeedInput => break,
                Event::Chunk { message_type, bytes, is_final } => {
                    assert!(*is_final || !bytes.is_empty(), "only the last chunk is empty");
                    chunks.extend_from_slice(bytes);
                    if !is_final {
                        continue;
                    }
                    let message = std::mem::take(&mut chunks);
                    match message_type {
                        MessageType::Text => describe_message(
                            std::str::from_utf8(&message).map(|_| "text"),
                            &message,
                        ),
                        MessageType::Binary => describe_message(Ok("binary"), &message),
                    }
                }
                Event::Text(text) => describe_message(Ok("text"), text.as_bytes()),
                Event::Binary(bytes) => describe_message(Ok("binary"), bytes),
                Event::Ping(payload) => describe_message(Ok("ping"), payload),
                Event::Pong(payload) => describe_message(Ok("pong"), payload),
                Event::Close(close) => format!("close {} {}", close.code.0, close.reason),
                Event::Error(error) => format!("error {error:?}"),
                Event::Closed => panic!("the close was reported before"),
            };
            lines.push(line.trim_end().to_owned());
            connection.assert_invariants();
            let written = notation::lines(&out, options.is_client);
            lines.extend(written.into_iter().map(|line| format!("> {line}")));
            out.clear();
            if connection.next_action() != NextAction::Receive {
                let unread = &mut buffer[used..end];
                let expected = (unread.len(), Event::Closed);
                assert_eq!(
                    connection.receive(limits, unread, &mut out),
                    expected,
                    "nothing more is read"
                );
                break 'all;
            }
        }
        connection.assert_invariants();
        assert!(out.is_empty(), "output is written only with an event");
        assert!(end - used < 131, "only headers and control frames stay unused");
    }
    if connection.next_action() == NextAction::Receive {
        lines.push(format!("{:?}", connection.receive_eof()).to_lowercase());
    } else {
        lines.push(format!("{:?}", connection.next_action()).to_lowercase());
        assert_eq!(connection.receive_eof(), Event::Closed);
    }
    connection.assert_invariants();
    lines
}

fn describe_message(name: Result<&str, std::str::Utf8Error>, bytes: &[u8]) -> String {
    let name = name.expect("text is validated");
    match bytes.len() {
        0..=125 => format!("{name} {}", escape(bytes)),
        length => format!("{name} ({length} bytes)"),
    }
}
