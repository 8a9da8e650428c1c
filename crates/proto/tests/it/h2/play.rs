//! A miniature server: feeds a connection, answers requests, and records the events.

use super::wire::Reader;
use crate::script::escape;
use peregrine_proto::h1::{BodyFraming, ResponseLength};
use peregrine_proto::h2::{
    Connection, Event, Limits, MoreData, NextAction, Request, ResetCause, StreamKey,
};
use peregrine_proto::{BodyLength, Date, HeadIndex};

/// When the miniature server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// When the request is complete.
    Late,
    /// As soon as its head is.
    Early,
    /// Never.
    Never,
}

/// Feeds `bytes` in pieces that end at `cuts` (ascending) and at their end, then the peer's end.
/// Returns the events as lines of text, the same for any cuts: events, and after `> ` the output.
pub(crate) fn play(limits: &Limits, bytes: &[u8], cuts: &[usize], answer: Answer) -> Vec<String> {
    let mut out = Vec::new();
    let connection = Connection::new(limits, &mut out);
    let mut reader = Reader::new();
    // The beginning of every connection is tested elsewhere.
    reader.lines(&out);
    out.clear();
    let mut player = Player {
        connection,
        limits,
        answer,
        reader,
        out,
        bytes: Vec::new(),
        head: HeadIndex::new(),
        data: None,
        notes: Vec::new(),
        offered: Vec::new(),
    };
    let mut used = 0;
    for end in cuts.iter().copied().chain([bytes.len()]) {
        if !player.feed(bytes, &mut used, end) {
            return player.notes;
        }
    }
    player.note_data();
    let event = player.connection.receive_eof();
    player.connection.assert_invariants();
    player.notes.push(format!("{event:?}").to_lowercase());
    player.notes
}

struct Player<'limits> {
    connection: Connection,
    limits: &'limits Limits,
    answer: Answer,
    reader: Reader,
    out: Vec<u8>,
    bytes: Vec<u8>,
    head: HeadIndex,
    data: Option<(StreamKey, Vec<u8>)>,
    notes: Vec<String>,
    /// Responses whose content waits for room.
    offered: Vec<(StreamKey, usize)>,
}

/// The content of every response.
const CONTENT: &[u8] = b"ok";

impl Player<'_> {
    /// Receives until input is needed. Returns whether the connection continues.
    fn feed(&mut self, bytes: &[u8], used: &mut usize, end: usize) -> bool {
        loop {
            let unread = &bytes[*used..end];
            let (taken, event) = self.connection.receive(
                self.limits,
                unread,
                &mut self.bytes,
                &mut self.head,
                &mut self.out,
            );
            self.connection.assert_invariants();
            assert!(taken <= unread.len(), "more bytes used than available");
            *used += taken;
            self.note_out();
            if let Event::Data { stream, range } = event {
                assert!(!range.is_empty() && range.end == taken, "data ends the used bytes");
                self.data(stream, &unread[range]);
                continue;
            }
            if event == Event::NeedInput {
                return true;
            }
            self.note_data();
            if matches!(event, Event::Closed) {
                return false;
            }
            self.event(event);
            self.send();
            self.note_out();
            self.connection.assert_invariants();
            if self.connection.next_action() == NextAction::Close {
                self.notes.push("close".to_owned());
                return false;
            }
        }
    }

    fn data(&mut self, stream: StreamKey, piece: &[u8]) {
        if self.data.as_ref().is_some_and(|(other, _)| *other != stream) {
            self.note_data();
        }
        let (_, data) = self.data.get_or_insert_with(|| (stream, Vec::new()));
        data.extend_from_slice(piece);
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Request(request) => self.request(request),
            Event::End { stream } => {
                let trailers = self.connection.trailers();
                let trailers = trailers.map(|(n, v)| format!(" {}={}", escape(n), escape(v)));
                self.notes.push(format!("end {}{}", stream.id(), trailers.collect::<String>()));
                if self.answer == Answer::Late {
                    self.respond(stream, 200);
                }
            }
            Event::RequestError { stream, error: reject } => {
                self.notes.push(format!("refuse {} {reject:?}", stream.id()));
                if !self.offered.iter().any(|(one, _)| *one == stream)
                    && self.answer != Answer::Early
                {
                    self.respond(stream, reject.status());
                }
            }
            Event::Reset { stream, cause } => {
                let cause = match cause {
                    ResetCause::Remote(code) => format!("peer {code:?}"),
                    ResetCause::StreamError(reject) => format!("fault {reject:?}"),
                };
                self.notes.push(format!("reset {} {cause}", stream.id()));
            }
            Event::StreamError { id, error: reject } => {
                self.notes.push(format!("rejected {id} {reject:?}"))
            }
            Event::Settings => self.notes.push("settings".to_owned()),
            Event::GoAway { code } => self.notes.push(format!("go-away {code:?}")),
            Event::ConnectionError(reject) => self.notes.push(format!("error {reject:?}")),
            Event::Data { .. } | Event::NeedInput | Event::Closed => {
                unreachable!("handled before")
            }
        }
    }

    fn request(&mut self, request: Request) {
        let id = request.stream.id();
        let text = String::from_utf8_lossy(&self.bytes).into_owned();
        let lines: Vec<_> = text.split("\r\n").filter(|line| !line.is_empty()).collect();
        let mut note = format!("request {id} {}", lines.join(" | "));
        note += match request.body {
            BodyLength::None => "",
            BodyLength::Exact(_) => " body",
            BodyLength::Chunked => " open",
        };
        note += if request.expect_continue { " expects" } else { "" };
        self.notes.push(note);
        if self.answer == Answer::Early || request.body == BodyLength::None {
            if self.answer != Answer::Never {
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
        let mode = self.connection.send_response(
            self.limits,
            stream,
            status,
            fields,
            length,
            &date,
            &mut self.out,
        );
        if matches!(mode, BodyFraming::Exact(_) | BodyFraming::Chunked) {
            self.connection.mark_ready(stream);
            self.offered.push((stream, 0));
        }
    }

    fn send(&mut self) {
        while let Some(ready) = self.connection.next_ready(self.limits) {
            let offered = self.offered.iter_mut().find(|(stream, _)| *stream == ready.stream);
            let (stream, at) = offered.expect("ready streams were offered");
            let rest = &CONTENT[*at..];
            let taken =
                self.connection.send_data(self.limits, *stream, rest, MoreData::End, &mut self.out);
            assert!(taken > 0 && taken <= ready.bytes_max, "ready streams can send");
            *at += taken;
            self.connection.assert_invariants();
        }
    }

    fn note_out(&mut self) {
        if !self.out.is_empty() {
            self.note_data();
            for line in self.reader.lines(&self.out) {
                let line = line.replace(" x=y date=Thu, 01 Jan 1970 00:00:00 GMT", "");
                self.notes.push(format!("> {line}"));
            }
            self.out.clear();
        }
    }

    fn note_data(&mut self) {
        let Some((stream, data)) = self.data.take() else { return };
        let text = if data.len() <= 64 { escape(&data) } else { format!("({} bytes)", data.len()) };
        self.notes.push(format!("data {} {text}", stream.id()));
        self.connection.release_capacity(stream, data.len(), &mut self.out);
        self.note_out();
    }
}
