//! One keep-alive connection of the client: what it awaits, and how its bytes become replies.

use std::io::{self, BufRead, Write};
use std::sync::Arc;

use rustls::ClientConnection;

use super::fault::{Fault, Faults};
use super::reply::{Parsed, Reply, parse};
use crate::http2::Request;
use crate::speech::Speech;
use crate::workload::{Workload, body_of};

/// What the connections of a group ask.
pub(crate) struct Asking {
    pub(crate) workload: Arc<Workload>,
    /// The workload's requests in the form of HTTP/2, in the order of their numbers; none over
    /// HTTP/1.1.
    requests: Vec<Request>,
    /// The messages of a WebSocket, likewise.
    messages: Vec<Vec<u8>>,
}

impl Asking {
    pub(crate) fn new(workload: Arc<Workload>) -> Asking {
        let (mut requests, mut messages) = (Vec::new(), Vec::new());
        for request in (0..workload.variants()).map(|number| workload.request_at(number)) {
            if workload.is_http2 {
                requests.push(Request::of(request, workload.is_tls));
            } else if workload.is_websocket {
                messages.push(body_of(request).to_vec());
            }
        }
        Asking { workload, requests, messages }
    }
}

/// The state of one connection.
pub(crate) struct Connection {
    /// The group (of one server) that it belongs to.
    pub(crate) group: usize,
    session: Option<Box<ClientConnection>>,
    speech: Speech,
    /// Bytes of a reply that is not whole yet.
    part: Vec<u8>,
    /// Whether the head of that reply is whole.
    has_head: bool,
    /// How many requests are sent and not answered.
    pub(crate) awaited: usize,
    /// The number of the next request, which decides what is asked.
    next: usize,
    /// Whether the server said that it closes after the reply it sent last.
    pub(crate) is_last: bool,
}

impl Connection {
    /// A connection whose first request has the number `first`.
    pub(crate) fn new(
        group: usize,
        session: Option<Box<ClientConnection>>,
        speech: Speech,
        first: usize,
    ) -> Connection {
        let (part, has_head) = (Vec::new(), false);
        Connection {
            group,
            session,
            speech,
            part,
            has_head,
            awaited: 0,
            next: first,
            is_last: false,
        }
    }

    /// How many requests can be sent now.
    pub(crate) fn room(&self, depth: usize) -> usize {
        match &self.speech {
            Speech::Http2(http2) => depth.saturating_sub(self.awaited).min(http2.room()),
            speech if self.awaited == 0 && speech.has_room() => depth,
            _ => 0,
        }
    }

    /// The bytes to send for `count` requests, for which there must be room, put into `out`.
    pub(crate) fn ask(
        &mut self,
        asking: &Asking,
        count: usize,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        let Connection { session, speech, .. } = self;
        let mut plain = Vec::new();
        let to = if session.is_some() { &mut plain } else { &mut *out };
        for number in self.next..self.next + count {
            match speech {
                Speech::Http1 => to.extend_from_slice(asking.workload.request_at(number)),
                Speech::Http2(http2) => {
                    http2.ask(&asking.requests[number % asking.requests.len()], number as u64, to);
                }
                Speech::WebSocket(websocket) => {
                    websocket.say(&asking.messages[number % asking.messages.len()], to);
                }
            }
        }
        self.awaited += count;
        self.next += count;
        match session {
            Some(session) => {
                session.writer().write_all(&plain)?;
                write_records(session, out)
            }
            None => Ok(()),
        }
    }

    /// Takes what arrived. Right replies are counted in `replies`, wrong ones in `faults`; what is to
    /// be sent at once is put into `out`.
    ///
    /// # Errors
    ///
    /// The fault that makes the rest of this connection unusable; it is not counted yet.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        workload: &Workload,
        tally: (&mut u64, &mut Faults),
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let (replies, faults) = tally;
        let Some(mut session) = self.session.take() else {
            return self.receive_plain(bytes, workload, (replies, faults), out);
        };
        let mut plain = Vec::new();
        let tally = (replies, faults);
        let result = self.receive_records(&mut session, bytes, workload, tally, &mut plain);
        let written = session
            .writer()
            .write_all(&plain)
            .and_then(|()| write_records(&mut session, out))
            .map_err(|_| Fault::Tls);
        self.session = Some(session);
        result.and(written)
    }

    fn receive_records(
        &mut self,
        session: &mut ClientConnection,
        mut bytes: &[u8],
        workload: &Workload,
        (replies, faults): (&mut u64, &mut Faults),
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
                self.receive_plain(plain, workload, (replies, faults), out)?;
                reader.consume(count);
            }
        }
        Ok(())
    }

    fn receive_plain(
        &mut self,
        bytes: &[u8],
        workload: &Workload,
        (replies, faults): (&mut u64, &mut Faults),
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let (awaited, next) = (&mut self.awaited, self.next);
        let mut count = |judged: Result<(), Fault>| match judged {
            Ok(()) => *replies += 1,
            Err(fault) => faults.record(fault),
        };
        let received = match &mut self.speech {
            Speech::Http1 => return self.receive_replies(bytes, workload, (replies, faults)),
            Speech::Http2(http2) => http2.receive(bytes, out, &mut |number, reply| {
                *awaited -= 1;
                let answer = workload.answer_at(number as usize);
                count(reply.and_then(|(reply, _)| answer.check(reply)));
            }),
            Speech::WebSocket(websocket) => websocket.receive(bytes, out, &mut |text, _| {
                // Nobody asked for this message.
                if *awaited == 0 {
                    return Err(Fault::Malformed);
                }
                let answer = workload.answer_at(next - *awaited);
                *awaited -= 1;
                count(answer.check(&Reply::message(text)));
                Ok(())
            }),
        };
        self.is_last |= self.speech.is_leaving();
        received
    }

    /// Takes bytes of HTTP/1.1.
    fn receive_replies(
        &mut self,
        bytes: &[u8],
        workload: &Workload,
        (replies, faults): (&mut u64, &mut Faults),
    ) -> Result<(), Fault> {
        if self.part.is_empty() {
            let used = self.judge(bytes, workload, replies, faults)?;
            self.part.extend_from_slice(&bytes[used..]);
            return Ok(());
        }
        let mut part = std::mem::take(&mut self.part);
        part.extend_from_slice(bytes);
        let used = self.judge(&part, workload, replies, faults)?;
        part.drain(..used);
        self.part = part;
        Ok(())
    }

    /// Judges every whole reply at the beginning of `bytes`, and says how many bytes they took.
    fn judge(
        &mut self,
        bytes: &[u8],
        workload: &Workload,
        replies: &mut u64,
        faults: &mut Faults,
    ) -> Result<usize, Fault> {
        let mut used = 0;
        self.has_head = false;
        while used < bytes.len() {
            if self.awaited == 0 {
                // Nobody asked for these bytes: a body longer than its length, most likely.
                return Err(Fault::Malformed);
            }
            match parse(&bytes[used..])? {
                Parsed::PartOfHead => break,
                Parsed::PartOfBody => {
                    self.has_head = true;
                    break;
                }
                Parsed::Whole(count, reply) => {
                    used += count;
                    let answer = workload.answer_at(self.next - self.awaited);
                    self.awaited -= 1;
                    self.is_last |= reply.is_last;
                    match answer.check(&reply) {
                        Ok(()) => *replies += 1,
                        Err(fault) => faults.record(fault),
                    }
                }
            }
        }
        Ok(used)
    }

    /// What the end of the connection means at this moment; nothing if no reply was awaited.
    pub(crate) fn ended(&self, error: Option<&io::Error>) -> Option<Fault> {
        if self.awaited == 0 {
            return None;
        }
        let has_head = self.has_head || self.speech.is_within_reply();
        Some(match (error, has_head) {
            (Some(_), true) => Fault::ResetInBody,
            (Some(_), false) => Fault::Reset,
            (None, true) => Fault::ShortBody,
            (None, false) => Fault::Closed,
        })
    }
}

/// Moves what the session wants to send into `out`.
pub(crate) fn write_records(session: &mut ClientConnection, out: &mut Vec<u8>) -> io::Result<()> {
    while session.wants_write() {
        session.write_tls(out)?;
    }
    Ok(())
}
