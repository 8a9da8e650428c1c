//! One HTTP/1 connection: the joint of its two machines.

use crate::{BodyLength, Date, HeadIndex, Limits, Method, Reject, Span, TargetForm, Version};
use std::ops::Range;

/// What the received bytes mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing more can be said without more bytes. Call again with the unused bytes and those after.
    NeedInput,
    /// A head is complete: `unread[head.skip..used]`. If its body length is `None`, nothing follows.
    Head,
    /// Content of the request: this range of `unread`. Never empty.
    Data(Range<usize>),
    /// The content is complete; [`Connection::trailers`] has what came after it.
    End,
    /// The request is complete and its response is not: nothing is read before it is.
    NeedRespond,
    /// The connection was switched to another protocol: all unread bytes belong to it.
    Upgraded,
    /// The peer broke a rule. Answer with its status; [`Connection::next`] then says to close.
    Reject(Reject),
    /// The connection is over; nothing more is read.
    Closed,
}

/// How much content a response has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseLength {
    /// So many bytes.
    Exact(u64),
    /// Unknown before its end.
    Unknown,
}

/// How the content of a response is framed, once its head is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyMode {
    /// There is none: the method or the status forbids it. `send_data` writes nothing.
    None,
    /// So many bytes; what is more is dropped, what is less closes the connection.
    Exact(u64),
    /// In chunks.
    Chunked,
    /// Until the connection closes: the client speaks HTTP/1.0.
    UntilClose,
}

/// Which wait the connection is in; the server owns the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// For the first byte of the first request.
    FirstByte,
    /// For the rest of a head.
    Head,
    /// For the rest of a request's content.
    Body,
    /// For the first byte of a request after the first.
    Idle,
    /// For nothing from the peer.
    Nothing,
}

/// What follows now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A request may be received.
    Request,
    /// The request is received in whole or in part and its response is not complete.
    Respond,
    /// The response is complete and content of the request is not: receive until `Request` or `Close`,
    /// or close.
    FinishBody,
    /// Close, once what was written is sent.
    Close,
    /// Another protocol has the connection.
    Upgraded,
}

/// One HTTP/1 connection.
#[derive(Debug)]
pub struct Connection {
    state: u8,
}

impl Connection {
    /// A connection on which nothing was received.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        let _ = limits;
        Self { state: 0 }
    }

    /// How many bytes of `unread` are used up, and what they mean.
    pub fn receive(
        &mut self,
        limits: &Limits,
        unread: &[u8],
        head: &mut HeadIndex,
    ) -> (usize, Event) {
        let _ = limits;
        if self.state != 0 {
            return (0, Event::NeedRespond);
        }
        let Some(end) = unread.windows(4).position(|window| window == b"\r\n\r\n") else {
            return (0, Event::NeedInput);
        };
        head.clear();
        let line = unread.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let mut ends = line.iter().enumerate().filter(|(_, byte)| **byte == b' ').map(|(at, _)| at);
        let (Some(first), Some(second)) = (ends.next(), ends.next()) else {
            return (0, Event::Reject(Reject::RequestLineInvalid));
        };
        head.method = Method::find(&line[..first]);
        head.method_span = Span::new(0, first);
        head.target = Span::new(first + 1, second);
        head.path = head.target;
        head.form = TargetForm::Origin;
        head.version = Version::Http11;
        head.body = BodyLength::None;
        head.keep_alive = true;
        self.state = 1;
        (end + 4, Event::Head)
    }

    /// Writes a response's head.
    pub fn respond<'a>(
        &mut self,
        status: u16,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        length: ResponseLength,
        date: &Date,
        out: &mut Vec<u8>,
    ) -> BodyMode {
        out.extend_from_slice(format!("HTTP/1.1 {status} \r\n").as_bytes());
        for (name, value) in fields {
            out.extend_from_slice(name);
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"date: ");
        out.extend_from_slice(date.as_bytes());
        if let ResponseLength::Exact(bytes) = length {
            out.extend_from_slice(format!("\r\ncontent-length: {bytes}").as_bytes());
        }
        out.extend_from_slice(b"\r\n\r\n");
        BodyMode::None
    }

    /// Writes content of the response. Returns how many bytes of `data` the response had room for.
    pub fn send_data(&mut self, data: &[u8], out: &mut Vec<u8>) -> usize {
        out.extend_from_slice(data);
        data.len()
    }

    /// Ends the response.
    pub fn finish<'a>(
        &mut self,
        trailers: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        out: &mut Vec<u8>,
    ) {
        let _ = (trailers.into_iter().count(), out);
        self.state = 0;
    }

    /// Writes an interim response: 100, 102, 103. Nothing to HTTP/1.0.
    pub fn send_interim<'a>(
        &mut self,
        status: u16,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        out: &mut Vec<u8>,
    ) {
        let _ = (status, fields.into_iter().count(), out);
    }

    /// Writes the 101 response to a request with `head.upgrade` whose content was received. From then
    /// on all unread bytes belong to the other protocol. Returns `false`, and writes nothing, if that
    /// is not the situation.
    pub fn switch_protocols<'a>(
        &mut self,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        out: &mut Vec<u8>,
    ) -> bool {
        let _ = (fields.into_iter().count(), out);
        false
    }

    /// The peer sent its end. Call it when all that arrived before was given to `receive` and that
    /// said `NeedInput`.
    pub fn close_receive(&mut self) -> Event {
        Event::Closed
    }

    /// Which wait it is.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        if self.state == 0 { Waiting::Idle } else { Waiting::Nothing }
    }

    /// No request is to follow the present one: its response says `connection: close`.
    pub fn drain(&mut self) {}

    /// What follows.
    #[must_use]
    pub fn next(&self) -> Next {
        if self.state == 0 { Next::Request } else { Next::Respond }
    }

    /// The trailers of the request, from its `End` to the next `Head`.
    pub fn trailers(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        std::iter::empty()
    }

    /// Asserts every invariant.
    pub fn check(&self) {
        assert!(self.state < 2);
    }
}
