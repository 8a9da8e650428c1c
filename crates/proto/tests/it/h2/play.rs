//! A minimal server: feeds a connection, responds to requests, and records the events.

use super::wire::Reader;
use crate::script::escape;
use peregrine_proto::h1::{BodyFraming, ResponseLength};
use peregrine_proto::h2::{
    Connection, Event, Limits, MoreData, NextAction, Request, ResetCause, StreamKey,
};
use peregrine_proto::{BodyLength, Date, HeadIndex};

/// When the minimal server responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseTiming {
    /// When the request is complete.
    RequestComplete,
    /// As soon as the head is complete.
    Early,
    /// Never.
    Never,
}

/// Feeds `bytes` split at `cuts` (ascending), then the end of the stream. Returns lines of text,
/// which do not depend on the cuts: the events, and after `> ` the output.
pub(crate) fn play(
    limits: &Limits,
    bytes: &[u8],
    cuts: &[usize],
    timing: ResponseTiming,
) -> Vec<String> {
    let mut out = Vec::new();
    let connection = Connection::new(limits, &mut out);
    let mut reader = Reader::new();
    // The server preface is tested elsewhere.
    reader.lines(&out);
    out.clear();
    let mut player = Player {
        connection,
        limits,
        timing,
        reader,
        out,
        bytes: Vec::new(),
        head: HeadIndex::new(),
        data: None,
        lines: Vec::new(),
        offered: Vec::new(),
    };
    let mut used = 0;
    for end in cuts.iter().copied().chain([bytes.len()]) {
        if !player.feed(bytes, &mut used, end) {
            return player.lines;
        }
    }
    player.record_data();
    let event = player.connection.receive_eof();
    player.connection.assert_invariants();
    player.lines.push(format!("{event:?}").to_lowercase());
    player.lines
}

struct Player<'limits> {
    connection: Connection,
    limits: &'limits Limits,
    timing: ResponseTiming,
    reader: Reader,
    out: Vec<u8>,
    bytes: Vec<u8>,
    head: HeadIndex,
    data: Option<(StreamKey, Vec<u8>)>,
    lines: Vec<String>,
    /// Responses whose content waits for window, with the number of bytes that were sent.
    offered: Vec<(StreamKey, usize)>,
}

/// The content of every response.
const CONTENT: &[u8] = b"ok";

impl Player<'_> {
    /// Receives until input is needed. Returns whether the connection continues.
    fn feed(&mut self, bytes: &[u8], used: &mut usize, end: usize) -> bool {
        loop {
            let unread = &bytes[*used..end];
            let (count, event) = self.connection.receive(
                self.limits,
                unread,
                &mut self.bytes,
                &mut self.head,
                &mut self.out,
            );
            self.connection.assert_invariants();
            assert!(count <= unread.len(), "more bytes used than available");
            *used += count;
            self.record_output();
            if let Event::Data { stream, range } = event {
                assert!(
                    !range.is_empty() && range.end == count,
                    "the content is at the end of the used bytes"
                );
                self.append_data(stream, &unread[range]);
                continue;
            }
            if event == Event::NeedInput {
                return true;
            }
            self.record_data();
            if matches!(event, Event::Closed) {
                return false;
            }
            self.handle_event(event);
            self.send();
            self.record_output();
            self.connection.assert_invariants();
            if self.connection.next_action() == NextAction::Close {
                self.lines.push("close".to_owned());
                return false;
            }
        }
    }

    fn append_data(&mut self, stream: StreamKey, bytes: &[u8]) {
        if self.data.as_ref().is_some_and(|(other, _)| *other != stream) {
            self.record_data();
        }
        let (_, data) = self.data.get_or_insert_with(|| (stream, Vec::new()));
        data.extend_from_slice(bytes);
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Request(request) => self.handle_request(request),
            Event::End { stream } => {
                let trailers = self.connection.trailers();
                let trailers = trailers.map(|(n, v)| format!(" {}={}", escape(n), escape(v)));
                self.lines.push(format!("end {}{}", stream.id(), trailers.collect::<String>()));
                if self.timing == ResponseTiming::RequestComplete {
                    self.respond(stream, 200);
                }
            }
            Event::RequestError { stream, error } => {
                self.lines.push(format!("refuse {} {error:?}", stream.id()));
                if !self.offered.iter().any(|(other, _)| *other == stream)
                    && self.timing != ResponseTiming::Early
                {
                    self.respond(stream, error.status());
                }
            }
            Event::Reset { stream, cause } => {
                let cause = match cause {
                    ResetCause::Remote(code) => format!("peer {code:?}"),
                    ResetCause::StreamError(error) => format!("fault {error:?}"),
                };
                self.lines.push(format!("reset {} {cause}", stream.id()));
            }
            Event::StreamError { id, error } => self.lines.push(format!("rejected {id} {error:?}")),
            Event::Settings => self.lines.push("settings".to_owned()),
            Event::GoAway { code } => self.lines.push(format!("go-away {code:?}")),
            Event::ConnectionError(error) => self.lines.push(format!("error {error:?}")),
            Event::Data { .. } | Event::NeedInput | Event::Closed => {
                unreachable!("handled by `feed`")
            }
        }
    }

    fn handle_request(&mut self, request: Request) {
        let id = request.stream.id();
        let text = String::from_utf8_lossy(&self.bytes).into_owned();
        let head_lines: Vec<_> = text.split("\r\n").filter(|line| !line.is_empty()).collect();
        let mut line = format!("request {id} {}", head_lines.join(" | "));
        line += match request.body {
            BodyLength::None => "",
            BodyLength::Exact(_) => " body",
            BodyLength::Unknown => " open",
        };
        line += if request.expect_continue { " expects" } else { "" };
        self.lines.push(line);
        if self.timing == ResponseTiming::Early || request.body == BodyLength::None {
            if self.timing != ResponseTiming::Never {
                self.respond(request.stream, 200);
            }
        } else if request.expect_continue {
            self.connection.send_interim(request.stream, 100, [], &mut self.out);
        }
    }

    fn respond(&mut self, stream: StreamKey, status: u16) {
        let date = Date::from_unix_seconds(0);
        let length = ResponseLength::Exact(CONTENT.len() as u64);
        let fields = [(&b"x"[..], &b"y"[..])];
        let framing = self.connection.send_response(
            self.limits,
            stream,
            status,
            fields,
            length,
            &date,
            &mut self.out,
        );
        if matches!(framing, BodyFraming::Exact(_) | BodyFraming::Chunked) {
            self.connection.mark_ready(stream);
            self.offered.push((stream, 0));
        }
    }

    fn send(&mut self) {
        while let Some(next) = self.connection.next_ready(self.limits) {
            let response = self.offered.iter_mut().find(|(stream, _)| *stream == next.stream);
            let (stream, at) = response.expect("ready streams were marked as ready");
            let rest = &CONTENT[*at..];
            let sent =
                self.connection.send_data(self.limits, *stream, rest, MoreData::End, &mut self.out);
            assert!(sent > 0 && sent <= next.bytes_max, "ready streams can send");
            *at += sent;
            self.connection.assert_invariants();
        }
    }

    fn record_output(&mut self) {
        if !self.out.is_empty() {
            self.record_data();
            for line in self.reader.lines(&self.out) {
                let line = line.replace(" x=y date=Thu, 01 Jan 1970 00:00:00 GMT", "");
                self.lines.push(format!("> {line}"));
            }
            self.out.clear();
        }
    }

    fn record_data(&mut self) {
        let Some((stream, data)) = self.data.take() else { return };
        let text = if data.len() <= 64 { escape(&data) } else { format!("({} bytes)", data.len()) };
        self.lines.push(format!("data {} {text}", stream.id()));
        self.connection.release_capacity(stream, data.len(), &mut self.out);
        self.record_output();
    }
}
