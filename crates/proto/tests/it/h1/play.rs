//! A minimal server: feeds a connection, responds to every request, and records the events.

use crate::script::escape;
use peregrine_proto::h1::{Connection, Event, Framing, NextAction, ResponseLength};
use peregrine_proto::{BodyLength, Date, HeadIndex, Limits, Scheme, Version};

/// The behaviour of the minimal server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server {
    pub(crate) timing: ResponseTiming,
    /// Whether the connection has TLS.
    pub(crate) is_secure: bool,
}

/// When the minimal server responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseTiming {
    /// When the request is complete.
    RequestComplete,
    /// As soon as the head is complete. The content is still read.
    Early,
    /// As soon as the head is complete. The content is discarded.
    EarlyDiscardingBody,
}

/// Feeds `bytes` split at `cuts` (ascending), then the end of the stream. Returns the events as
/// lines of text, which do not depend on the cuts.
pub(crate) fn play(limits: &Limits, bytes: &[u8], cuts: &[usize], server: Server) -> Vec<String> {
    let mut player = Player {
        connection: Connection::new(limits),
        head: HeadIndex::new(),
        limits,
        server,
        data: Vec::new(),
        lines: Vec::new(),
        out: Vec::new(),
        said_close: false,
    };
    let mut used = 0;
    let piece_ends = cuts.iter().copied().chain([bytes.len()]);
    for end in piece_ends {
        if !player.feed(bytes, &mut used, end) {
            player.record_data();
            return player.lines;
        }
    }
    let event = player.connection.receive_eof();
    player.connection.assert_invariants();
    player.record_data();
    match event {
        Event::RequestError(error) => {
            player.record_error(error);
            assert_eq!(player.connection.next_action(), NextAction::Close);
            player.lines.push("close".to_owned());
        }
        event => player.lines.push(format!("{event:?}").to_lowercase()),
    }
    player.lines
}

struct Player<'limits> {
    connection: Connection,
    head: HeadIndex,
    limits: &'limits Limits,
    server: Server,
    data: Vec<u8>,
    lines: Vec<String>,
    out: Vec<u8>,
    /// Whether the last response announced that the connection closes after it.
    said_close: bool,
}

impl Player<'_> {
    /// Receives until input is needed. Returns whether the connection continues.
    fn feed(&mut self, bytes: &[u8], used: &mut usize, end: usize) -> bool {
        loop {
            let unread = &bytes[*used..end];
            let (count, event) = self.connection.receive(self.limits, unread, &mut self.head);
            self.connection.assert_invariants();
            assert!(count <= unread.len(), "more bytes used than available");
            *used += count;
            if !matches!(event, Event::Data(_) | Event::NeedInput) {
                self.record_data();
            }
            match event {
                Event::NeedInput => return true,
                Event::Head(framing) => {
                    self.start_request(&unread[usize::from(framing.leading_bytes)..count], framing);
                }
                Event::Data(range) => {
                    assert!(
                        !range.is_empty() && range.end == count,
                        "the content is at the end of the used bytes"
                    );
                    self.data.extend_from_slice(&unread[range]);
                }
                Event::End => {
                    self.lines.push("end".to_owned());
                    for (name, value) in self.connection.trailers() {
                        self.lines.push(format!("trailer {}: {}", escape(name), escape(value)));
                    }
                    if self.server.timing == ResponseTiming::RequestComplete {
                        self.respond(200);
                    }
                }
                Event::Paused => panic!("every complete request got a response"),
                Event::Upgraded => panic!("nothing was switched"),
                Event::RequestError(error) => self.record_error(error),
                Event::Closed => assert_eq!(self.connection.next_action(), NextAction::Close),
            }
            if self.connection.next_action() == NextAction::Close {
                let line = if self.said_close { "close" } else { "close unsaid" };
                self.lines.push(line.to_owned());
                return false;
            }
        }
    }

    fn start_request(&mut self, head: &[u8], framing: Framing) {
        self.lines.push(describe(head, &self.head, framing));
        if let Err(error) = self.head.check_https_over_tls(self.server.is_secure) {
            self.connection.discard_body();
            return self.record_error(error);
        }
        if self.server.timing == ResponseTiming::EarlyDiscardingBody {
            self.connection.discard_body();
        }
        if self.server.timing != ResponseTiming::RequestComplete || framing.body == BodyLength::None
        {
            self.respond(200);
        }
    }

    fn record_error(&mut self, error: peregrine_proto::RequestError) {
        self.lines.push(format!("reject {error:?} {}", error.status()));
        if self.connection.next_action() == NextAction::Respond {
            self.respond(error.status());
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
                "`connection: close` closes the connection"
            );
        }
    }

    fn record_data(&mut self) {
        if !self.data.is_empty() {
            self.lines.push(format!("data {}", escape(&self.data)));
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
        BodyLength::Unknown => "body=chunked".to_owned(),
    });
    words.push(if framing.keep_alive { "keep-alive" } else { "close" }.to_owned());
    words.extend(framing.expect_continue.then(|| "continue".to_owned()));
    words.extend(framing.upgrade.then(|| "upgrade".to_owned()));
    for field in &index.fields {
        words.push(format!("[{}={}]", text(field.name), text(field.value)));
    }
    words.join(" ")
}
