//! A miniature server: feeds a connection, answers every request, and records the events.

use crate::script::escape;
use peregrine_proto::h1::{Connection, Event, Framing, NextAction, ResponseLength};
use peregrine_proto::{BodyLength, Date, HeadIndex, Limits, Scheme, Version};

/// The behaviour of the miniature server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server {
    pub(crate) answer: Answer,
    /// Whether the connection has TLS.
    pub(crate) is_secure: bool,
}

/// When the miniature server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// When the request is complete.
    Late,
    /// As soon as its head is, and continues to read.
    Early,
    /// As soon as its head is, and discards the content.
    Unwanted,
}

/// Feeds `bytes` in pieces that end at `cuts` (ascending) and at their end, then the peer's end.
/// Returns the events as lines of text, the same for any cuts.
pub(crate) fn play(limits: &Limits, bytes: &[u8], cuts: &[usize], server: Server) -> Vec<String> {
    let mut player = Player {
        connection: Connection::new(limits),
        head: HeadIndex::new(),
        limits,
        server,
        data: Vec::new(),
        notes: Vec::new(),
        out: Vec::new(),
        said_close: false,
    };
    let mut used = 0;
    let ends = cuts.iter().copied().chain([bytes.len()]);
    for end in ends {
        if !player.feed(bytes, &mut used, end) {
            player.note_data();
            return player.notes;
        }
    }
    let event = player.connection.receive_eof();
    player.connection.assert_invariants();
    player.note_data();
    match event {
        Event::RequestError(reject) => {
            player.reject(reject);
            assert_eq!(player.connection.next_action(), NextAction::Close);
            player.notes.push("close".to_owned());
        }
        event => player.notes.push(format!("{event:?}").to_lowercase()),
    }
    player.notes
}

struct Player<'limits> {
    connection: Connection,
    head: HeadIndex,
    limits: &'limits Limits,
    server: Server,
    data: Vec<u8>,
    notes: Vec<String>,
    out: Vec<u8>,
    /// Whether the last response announced that the connection closes after it.
    said_close: bool,
}

impl Player<'_> {
    /// Receives until input is needed. Returns whether the connection continues.
    fn feed(&mut self, bytes: &[u8], used: &mut usize, end: usize) -> bool {
        loop {
            let unread = &bytes[*used..end];
            let (taken, event) = self.connection.receive(self.limits, unread, &mut self.head);
            self.connection.assert_invariants();
            assert!(taken <= unread.len(), "more bytes used than available");
            *used += taken;
            if !matches!(event, Event::Data(_) | Event::NeedInput) {
                self.note_data();
            }
            match event {
                Event::NeedInput => return true,
                Event::Head(framing) => {
                    self.begin(&unread[usize::from(framing.skip)..taken], framing);
                }
                Event::Data(range) => {
                    assert!(!range.is_empty() && range.end == taken, "data ends the used bytes");
                    self.data.extend_from_slice(&unread[range]);
                }
                Event::End => {
                    self.notes.push("end".to_owned());
                    for (name, value) in self.connection.trailers() {
                        self.notes.push(format!("trailer {}: {}", escape(name), escape(value)));
                    }
                    if self.server.answer == Answer::Late {
                        self.respond(200);
                    }
                }
                Event::Paused => panic!("a complete request was answered"),
                Event::Upgraded => panic!("nothing was switched"),
                Event::RequestError(reject) => self.reject(reject),
                Event::Closed => assert_eq!(self.connection.next_action(), NextAction::Close),
            }
            if self.connection.next_action() == NextAction::Close {
                let note = if self.said_close { "close" } else { "close unsaid" };
                self.notes.push(note.to_owned());
                return false;
            }
        }
    }

    fn begin(&mut self, head: &[u8], framing: Framing) {
        self.notes.push(describe(head, &self.head, framing));
        if let Err(reject) = self.head.check_https_over_tls(self.server.is_secure) {
            self.connection.discard_body();
            return self.reject(reject);
        }
        if self.server.answer == Answer::Unwanted {
            self.connection.discard_body();
        }
        if self.server.answer != Answer::Late || framing.body == BodyLength::None {
            self.respond(200);
        }
    }

    fn reject(&mut self, reject: peregrine_proto::RequestError) {
        self.notes.push(format!("reject {reject:?} {}", reject.status()));
        if self.connection.next_action() == NextAction::Respond {
            self.respond(reject.status());
        }
    }

    fn respond(&mut self, status: u16) {
        let date = Date::from_unix_seconds(0);
        self.out.clear();
        let length = ResponseLength::Exact(2);
        self.connection.send_response(status, [], length, &date, &mut self.out);
        self.connection.assert_invariants();
        self.said_close = self.out.ends_with(b"connection: close\r\n\r\n");
        self.connection.send_data(b"ok", &mut self.out);
        self.connection.finish([], &mut self.out);
        self.connection.assert_invariants();
        if self.said_close {
            assert_eq!(
                self.connection.next_action(),
                NextAction::Close,
                "an announced close closes"
            );
        }
    }

    fn note_data(&mut self) {
        if !self.data.is_empty() {
            self.notes.push(format!("data {}", escape(&self.data)));
            self.data.clear();
        }
    }
}

/// A head in words. Text that may have spaces comes last.
fn describe(head: &[u8], index: &HeadIndex, framing: Framing) -> String {
    let text = |span: peregrine_proto::Span| escape(span.slice(head));
    let mut words = vec![
        "head".to_owned(),
        text(index.method_span),
        text(index.target),
        format!("form={:?}", index.target_form).to_lowercase(),
        format!("scheme={}", index.scheme.map_or("none", Scheme::name)),
        format!("path={}", escape(index.path_bytes(head))),
        format!("host={}", text(index.authority)),
        format!("fields={}", index.fields.len()),
    ];
    words.extend(index.query.map(|query| format!("query={}", text(query))));
    words.push(match index.version {
        Version::Http10 => "1.0".to_owned(),
        Version::Http11 => "1.1".to_owned(),
        Version::Http2 => unreachable!("HTTP/1 was received"),
    });
    words.push(match framing.body {
        BodyLength::None => "body=none".to_owned(),
        BodyLength::Exact(bytes) => format!("body={bytes}"),
        BodyLength::Chunked => "body=chunked".to_owned(),
    });
    words.push(if framing.keep_alive { "keep-alive" } else { "close" }.to_owned());
    words.extend(framing.expect_continue.then(|| "continue".to_owned()));
    words.extend(framing.upgrade.then(|| "upgrade".to_owned()));
    for field in &index.fields {
        words.push(format!("[{}={}]", text(field.name), text(field.value)));
    }
    words.join(" ")
}
