//! One connection of a run: what it awaits, and how its bytes become judged replies.

use std::collections::VecDeque;
use std::io::{self, BufRead, Write};
use std::time::Instant;

use rustls::{ClientConnection, HandshakeKind};

use super::judge::Judge;
use super::outcome::Outcome;
use crate::client::engine::Token;
use crate::client::fault::Fault;
use crate::client::reply::{Parsed, Reply, parse_reply};
use crate::client::{tls, write_records};
use crate::http2::Http2;
use crate::speech::Speech;
use crate::websocket::WebSocket;

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// There is none.
    Down,
    /// It is being made.
    Connecting,
    /// TLS shakes hands, or the SETTINGS of HTTP/2 or the answer to a WebSocket's offer are awaited.
    Shaking,
    /// Requests can be sent.
    Open,
    /// Its last reply has come; the server is to close it.
    Finishing,
}

/// A request that was sent and is not answered. Times are nanoseconds since the run's origin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Awaited {
    pub(crate) number: u64,
    /// When latency begins to count.
    pub(crate) intended_ns: u64,
    pub(crate) sent_ns: u64,
}

/// A place for a connection, which is filled again when a connection ends.
pub(crate) struct Lane {
    pub(crate) state: State,
    pub(crate) token: Token,
    pub(crate) session: Option<Box<ClientConnection>>,
    pub(crate) speech: Speech,
    /// Bytes of a reply that is not whole yet.
    part: Vec<u8>,
    /// Whether the head of that reply is whole.
    has_head: bool,
    pub(crate) awaited: VecDeque<Awaited>,
    /// How many requests were sent on this connection.
    pub(crate) asked: u64,
    /// Whether the server said that it closes after the reply it sent last.
    pub(crate) is_last: bool,
    /// When the present state began.
    pub(crate) since_ns: u64,
    /// When the connection was begun, if no request has been sent on it yet and it was begun
    /// because one was to be sent.
    pub(crate) begun_ns: Option<u64>,
    /// Whether it stands in the queue of lanes that have room.
    pub(crate) is_queued: bool,
}

impl Lane {
    pub(crate) fn new() -> Lane {
        Lane {
            state: State::Down,
            token: 0,
            session: None,
            speech: Speech::Http1,
            part: Vec::new(),
            has_head: false,
            awaited: VecDeque::new(),
            asked: 0,
            is_last: false,
            since_ns: 0,
            begun_ns: None,
            is_queued: false,
        }
    }

    /// Prepares for a new connection.
    pub(crate) fn begin(&mut self, token: Token, now_ns: u64, is_for_request: bool) {
        self.state = State::Connecting;
        self.token = token;
        self.session = None;
        self.speech = Speech::Http1;
        self.part.clear();
        self.has_head = false;
        self.asked = 0;
        self.is_last = false;
        self.since_ns = now_ns;
        self.begun_ns = is_for_request.then_some(now_ns);
    }

    /// Whether one more request may be sent.
    pub(crate) fn has_room(&self, depth: usize, requests: u64) -> bool {
        self.state == State::Open
            && self.awaited.len() < depth
            && self.asked < requests
            && !self.is_last
            && self.speech.has_room()
    }

    /// Takes what arrived; what is to be sent at once is put into `out`.
    ///
    /// # Errors
    ///
    /// The fault that makes the rest of this connection unusable; it is not counted yet.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        judge: &mut Judge<'_>,
        outcome: &mut Outcome,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        outcome.received_bytes += bytes.len() as u64;
        let Some(mut session) = self.session.take() else {
            return self.receive_plain(bytes, judge, outcome, out);
        };
        let mut plain = Vec::new();
        let was_shaking = session.is_handshaking();
        let result = self.receive_records(&mut session, bytes, judge, outcome, &mut plain);
        let shaken = match was_shaking && !session.is_handshaking() {
            true => self.on_shaken(&session, judge, outcome),
            false => Ok(()),
        };
        let written = session
            .writer()
            .write_all(&plain)
            .and_then(|()| write_records(&mut session, out))
            .map_err(|_| Fault::Tls);
        self.session = Some(session);
        result.and(shaken).and(written)
    }

    fn on_shaken(
        &mut self,
        session: &ClientConnection,
        judge: &Judge<'_>,
        outcome: &mut Outcome,
    ) -> Result<(), Fault> {
        match session.handshake_kind() {
            Some(HandshakeKind::Resumed) => outcome.handshakes_resumed += 1,
            _ => outcome.handshakes_full += 1,
        }
        let wanted = if judge.is_http2 { tls::HTTP2 } else { tls::HTTP1 };
        let is_missing = session.alpn_protocol() != Some(wanted);
        outcome.alpn_missing += u64::from(is_missing);
        match self.speech {
            Speech::Http1 => self.open(judge.now_ns, outcome),
            Speech::Http2(_) if is_missing => return Err(Fault::Tls),
            // What the server says first is awaited, or has come together with the end of this.
            Speech::Http2(_) | Speech::WebSocket(_) => {}
        }
        Ok(())
    }

    /// From here on requests can be sent.
    pub(crate) fn open(&mut self, now_ns: u64, outcome: &mut Outcome) {
        self.state = State::Open;
        outcome.connecting.record(now_ns.saturating_sub(self.since_ns));
    }

    fn receive_records(
        &mut self,
        session: &mut ClientConnection,
        mut bytes: &[u8],
        judge: &mut Judge<'_>,
        outcome: &mut Outcome,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        while !bytes.is_empty() {
            session.read_tls(&mut bytes).map_err(|_| Fault::Tls)?;
            session.process_new_packets().map_err(|_| Fault::Tls)?;
            let mut reader = session.reader();
            // An error is "would block" or an end of stream, which the socket reports as well.
            while let Ok(plain) = reader.fill_buf() {
                let count = plain.len();
                if count == 0 {
                    break;
                }
                self.receive_plain(plain, judge, outcome, out)?;
                reader.consume(count);
            }
        }
        Ok(())
    }

    /// Takes frames of HTTP/2.
    fn receive_frames(
        &mut self,
        http2: &mut Http2,
        bytes: &[u8],
        judge: &mut Judge<'_>,
        outcome: &mut Outcome,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let received = http2.receive(bytes, out, &mut |number, reply| {
            // Requests stand in the order of their numbers.
            let found = self.awaited.binary_search_by_key(&number, |one| one.number);
            let place = found.expect("only what was asked is answered");
            match reply {
                Ok((reply, bytes)) => self.on_http2_reply(place, (reply, bytes), judge, outcome),
                Err(fault) => self.failed(place, fault, judge, outcome),
            }
        });
        if self.state == State::Shaking && http2.is_ready() {
            outcome.streams_max = outcome.streams_max.into_iter().chain(http2.streams_max()).min();
            self.open(judge.now_ns, outcome);
        }
        received
    }

    /// Takes frames of a WebSocket.
    fn receive_messages(
        &mut self,
        websocket: &mut WebSocket,
        bytes: &[u8],
        judge: &mut Judge<'_>,
        outcome: &mut Outcome,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let received = websocket.receive(bytes, out, &mut |text, count| {
            // A message that nobody asked for.
            let Some(&awaited) = self.awaited.front() else { return Err(Fault::Malformed) };
            let reply = Reply::message(text);
            match judge.check(&reply, awaited.number) {
                Ok(()) => self.answered(0, (count, text.len()), judge, outcome),
                Err(fault) => self.wrong(&reply, fault, judge, outcome),
            }
            Ok(())
        });
        if self.state == State::Shaking && websocket.is_open() {
            self.open(judge.now_ns, outcome);
        }
        received
    }

    fn on_http2_reply(
        &mut self,
        place: usize,
        (reply, bytes): (&Reply<'_>, usize),
        judge: &mut Judge<'_>,
        outcome: &mut Outcome,
    ) {
        match judge.check(reply, self.awaited[place].number) {
            Ok(()) => {
                outcome.dates.note(reply.field("date"));
                self.answered(place, (bytes, reply.body.len()), judge, outcome);
            }
            Err(fault) => self.failed(place, fault, judge, outcome),
        }
    }

    /// A request that has a wrong reply, or will have none.
    fn failed(&mut self, place: usize, fault: Fault, judge: &mut Judge<'_>, outcome: &mut Outcome) {
        let Some(awaited) = self.awaited.remove(place) else { return };
        judge.under_way -= 1;
        outcome.waited_ns += u128::from(judge.now_ns.saturating_sub(awaited.sent_ns));
        outcome.fail(fault, 1);
    }

    fn receive_plain(
        &mut self,
        bytes: &[u8],
        judge: &mut Judge<'_>,
        outcome: &mut Outcome,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let mut speech = std::mem::take(&mut self.speech);
        let received = match &mut speech {
            Speech::Http1 => self.receive_replies(bytes, judge, outcome),
            Speech::Http2(http2) => self.receive_frames(http2, bytes, judge, outcome, out),
            Speech::WebSocket(websocket) => {
                self.receive_messages(websocket, bytes, judge, outcome, out)
            }
        };
        self.is_last |= speech.is_leaving();
        self.speech = speech;
        received
    }

    /// Takes bytes of HTTP/1.1.
    fn receive_replies(
        &mut self,
        bytes: &[u8],
        judge: &mut Judge<'_>,
        outcome: &mut Outcome,
    ) -> Result<(), Fault> {
        if self.part.is_empty() {
            let used = self.read_replies(bytes, judge, outcome)?;
            self.part.extend_from_slice(&bytes[used..]);
            return Ok(());
        }
        let mut part = std::mem::take(&mut self.part);
        part.extend_from_slice(bytes);
        let used = self.read_replies(&part, judge, outcome)?;
        part.drain(..used);
        self.part = part;
        Ok(())
    }

    /// Judges every whole reply at the beginning of `bytes`, and says how many bytes they took.
    fn read_replies(
        &mut self,
        bytes: &[u8],
        judge: &mut Judge<'_>,
        outcome: &mut Outcome,
    ) -> Result<usize, Fault> {
        let mut used = 0;
        self.has_head = false;
        while used < bytes.len() {
            let rest = &bytes[used..];
            let Some(&awaited) = self.awaited.front() else {
                // Nobody asked for these bytes: a body longer than its length, most likely.
                return Err(Fault::Malformed);
            };
            let number = self.asked - self.awaited.len() as u64 + 1;
            let is_last = number == judge.requests_per_connection;
            let remembered = &judge.remembered[usize::from(is_last)];
            if !remembered.is_empty() && rest.starts_with(remembered) {
                let count = remembered.len();
                self.is_last |= is_last;
                if outcome.dates.last.is_empty() {
                    outcome.dates.missing += 1;
                } else {
                    outcome.dates.present += 1;
                }
                used += count;
                let body = judge.remembered_bodies[usize::from(is_last)];
                self.answered(0, (count, body), judge, outcome);
                continue;
            }
            match parse_reply(rest, judge.question.is_head)? {
                Parsed::PartOfHead => break,
                Parsed::PartOfBody => {
                    self.has_head = true;
                    break;
                }
                Parsed::Whole(count, reply) => {
                    used += count;
                    self.on_reply(awaited, (&rest[..count], &reply), is_last, judge, outcome);
                }
            }
        }
        Ok(used)
    }

    fn on_reply(
        &mut self,
        awaited: Awaited,
        (bytes, reply): (&[u8], &Reply<'_>),
        is_last: bool,
        judge: &mut Judge<'_>,
        outcome: &mut Outcome,
    ) {
        self.is_last |= reply.is_last || is_last;
        match judge.check(reply, awaited.number) {
            Ok(()) => {
                outcome.dates.note(reply.field("date"));
                let is_usual = reply.is_last == is_last;
                if judge.is_constant && is_usual {
                    let remembered = &mut judge.remembered[usize::from(is_last)];
                    remembered.clear();
                    remembered.extend_from_slice(bytes);
                    judge.remembered_bodies[usize::from(is_last)] = reply.body.len();
                }
                self.answered(0, (bytes.len(), reply.body.len()), judge, outcome);
            }
            Err(fault) => self.wrong(reply, fault, judge, outcome),
        }
    }

    /// A wrong reply to the first request under way: perhaps the right one to a later request.
    fn wrong(
        &mut self,
        reply: &Reply<'_>,
        fault: Fault,
        judge: &mut Judge<'_>,
        outcome: &mut Outcome,
    ) {
        let mut others = self.awaited.iter().skip(1);
        let is_reordered = others.any(|other| judge.check(reply, other.number).is_ok());
        let fault = if is_reordered { Fault::Reordered } else { fault };
        self.failed(0, fault, judge, outcome);
    }

    fn answered(
        &mut self,
        place: usize,
        (bytes, body): (usize, usize),
        judge: &mut Judge<'_>,
        outcome: &mut Outcome,
    ) {
        let Some(awaited) = self.awaited.remove(place) else { return };
        judge.under_way -= 1;
        outcome.replies += 1;
        outcome.replies_in_time += u64::from(judge.is_asking);
        outcome.reply_bytes += bytes as u64;
        outcome.body_bytes += body as u64;
        outcome.latency.record(judge.now_ns.saturating_sub(awaited.intended_ns));
        outcome.waited_ns += u128::from(judge.now_ns.saturating_sub(awaited.sent_ns));
        if !judge.burn.is_zero() {
            let start = Instant::now();
            while start.elapsed() < judge.burn {
                std::hint::spin_loop();
            }
        }
    }

    fn has_head(&self) -> bool {
        self.has_head || self.speech.is_within_reply()
    }

    /// What it is called when the beginning of the connection fails.
    pub(crate) fn shaking_fault(&self) -> Fault {
        let is_secret = self.session.as_ref().is_none_or(|session| !session.is_handshaking());
        match (&self.speech, &self.session) {
            (Speech::WebSocket(_), _) if is_secret => Fault::Upgrade,
            (_, Some(_)) => Fault::Tls,
            (_, None) => Fault::Connect,
        }
    }

    /// What the end of the connection means at this moment; nothing if nothing was awaited.
    pub(crate) fn ended(&self, error: Option<&io::Error>) -> Option<Fault> {
        match self.state {
            State::Down | State::Finishing => None,
            State::Connecting => Some(Fault::Connect),
            State::Shaking => Some(self.shaking_fault()),
            State::Open if self.awaited.is_empty() => None,
            State::Open => Some(match (error, self.has_head()) {
                (Some(_), true) => Fault::ResetInBody,
                (Some(_), false) => Fault::Reset,
                (None, true) => Fault::ShortBody,
                (None, false) => Fault::Closed,
            }),
        }
    }
}
