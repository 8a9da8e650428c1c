//! The target for the sending side.

use crate::reader::{Field, read};
use peregrine_proto::h1::{BodyFraming, Connection, Event, NextAction, ResponseLength};
use peregrine_proto::{Date, HeadIndex, Limits};

/// Treats the input as a script of a response, writes it, and parses the output: whatever the
/// caller requests, the output is one response with valid framing, or the connection closes.
pub fn response(data: &[u8]) {
    let mut script = Script { rest: data };
    let limits = Limits::DEFAULT;
    let request = REQUESTS[usize::from(script.byte()) % REQUESTS.len()];
    let status = u16::from(script.byte()) * 4 + u16::from(script.byte() % 4);
    let length = match script.byte() {
        byte if byte < 128 => ResponseLength::Exact(u64::from(byte)),
        _ => ResponseLength::Unknown,
    };
    let (fields, trailers) = (script.fields(), script.fields());
    let (mut connection, mut head) = (Connection::new(&limits), HeadIndex::new());
    let (_, event) = connection.receive(&limits, request, &mut head);
    assert!(matches!(event, Event::Head(_)));
    let mut interim = Vec::new();
    connection.send_interim(103, borrow_fields(&fields), &mut interim);
    if !interim.is_empty() {
        let response = read(&interim, false).expect("an interim response is complete");
        assert_eq!((response.status, response.length), (103, interim.len()));
        assert!(response.values("content-length").is_empty());
        assert!(response.values("transfer-encoding").is_empty());
    }
    let (mut out, date) = (Vec::new(), Date::from_unix_seconds(0));
    let framing = connection.send_response(status, borrow_fields(&fields), length, &date, &mut out);
    let mut content = Vec::new();
    while !script.rest.is_empty() {
        let chunk = script.take_bytes();
        let written = connection.send_data(chunk, &mut out);
        content.extend_from_slice(&chunk[..written]);
        connection.assert_invariants();
    }
    connection.finish(borrow_fields(&trailers), &mut out);
    connection.assert_invariants();
    let Some(response) = read(&out, request.starts_with(b"HEAD")) else {
        assert_eq!(
            connection.next_action(),
            NextAction::Close,
            "a truncated response closes the connection"
        );
        assert!(matches!(framing, BodyFraming::Exact(_)));
        return;
    };
    assert_eq!(response.length, out.len(), "nothing follows the response");
    assert_eq!(response.status, if (200..1000).contains(&status) { status } else { 500 });
    assert_eq!(response.values("date").len(), 1);
    assert_eq!(response.content, content);
    assert!(
        framing != BodyFraming::CloseDelimited || connection.next_action() == NextAction::Close
    );
    let announces_close =
        response.values("connection").iter().any(|value| value.starts_with(b"close"));
    assert_eq!(
        announces_close,
        connection.next_action() == NextAction::Close,
        "the connection closes if and only if the response announces it"
    );
}

fn borrow_fields(fields: &[Field]) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice()))
}

struct Script<'data> {
    rest: &'data [u8],
}

impl<'data> Script<'data> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *first
    }

    /// Takes as many bytes as the next byte says, up to 63.
    fn take_bytes(&mut self) -> &'data [u8] {
        let length = usize::from(self.byte() % 64).min(self.rest.len());
        let (bytes, rest) = self.rest.split_at(length);
        self.rest = rest;
        bytes
    }

    fn fields(&mut self) -> Vec<Field> {
        let count = self.byte() % 6;
        (0..count).map(|_| (self.name(), self.take_bytes().to_vec())).collect()
    }

    /// A name from [`NAMES`], or arbitrary bytes.
    fn name(&mut self) -> Vec<u8> {
        let choice = usize::from(self.byte());
        NAMES.get(choice % 16).map_or_else(|| self.take_bytes().to_vec(), |name| name.to_vec())
    }
}

const NAMES: &[&[u8]] = &[
    b"content-length",
    b"Transfer-Encoding",
    b"connection",
    b"Date",
    b"upgrade",
    b"x-a",
    b"Keep-Alive",
    b"set-cookie",
];

const REQUESTS: &[&[u8]] = &[
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"HEAD / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
];
