//! The sending state machine: turns responses into bytes.

use super::write;
use crate::field::split_list;
use crate::{Date, KnownField};

/// How much content a response has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseLength {
    /// This many bytes.
    Exact(u64),
    /// Unknown before the content ends.
    Unknown,
}

/// How the content of a response is framed, once its head is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// No content: the method or the status forbids it. Any content is discarded.
    None,
    /// This many bytes. More are discarded; if there are fewer, the connection closes.
    Exact(u64),
    /// In chunks.
    Chunked,
    /// Until the connection closes: the client speaks HTTP/1.0.
    CloseDelimited,
}

/// The framing of content that the caller sends from its own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the bytes after the content belong to the framing"]
pub struct ExternalData {
    /// How many of the bytes, from the first one, belong to the response. The rest is discarded.
    pub accepted: usize,
    /// The bytes that follow them.
    pub suffix: &'static [u8],
}

/// The state of the sending machine. [`State::on`] lists the legal transitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// No final response to the current request has begun.
    Waiting,
    /// Within a response that has no content.
    Empty,
    /// Within content of known length.
    Exact,
    /// Within content in chunks.
    Chunked,
    /// Within content that ends with the connection.
    CloseDelimited,
    /// The response is complete.
    Done,
    /// The bytes belong to another protocol.
    Upgraded,
}

/// An event that changes the state of the sending machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transition {
    /// The head of a response without content was written.
    BeginEmpty,
    /// The head of a response with content of known length was written.
    BeginExact,
    /// The head of a response in chunks was written.
    BeginChunked,
    /// The head of a response that ends with the connection was written.
    BeginCloseDelimited,
    /// The response ends.
    Finish,
    /// The request is complete too, and another one may arrive.
    NextRequest,
    /// The response switched protocols.
    Switch,
}

impl State {
    /// The state after a transition, or `None` if it is illegal.
    ///
    /// | from | transition | to |
    /// |---|---|---|
    /// | Waiting | BeginEmpty, BeginExact | Empty, Exact |
    /// | Waiting | BeginChunked, BeginCloseDelimited | Chunked, CloseDelimited |
    /// | Waiting | Switch | Upgraded |
    /// | Empty, Exact, Chunked, CloseDelimited | Finish | Done |
    /// | Done | Finish, NextRequest | Done, Waiting |
    pub(super) const fn on(self, transition: Transition) -> Option<Self> {
        Some(match (self, transition) {
            (Self::Waiting, Transition::BeginEmpty) => Self::Empty,
            (Self::Waiting, Transition::BeginExact) => Self::Exact,
            (Self::Waiting, Transition::BeginChunked) => Self::Chunked,
            (Self::Waiting, Transition::BeginCloseDelimited) => Self::CloseDelimited,
            (Self::Waiting, Transition::Switch) => Self::Upgraded,
            (Self::Waiting | Self::Upgraded, Transition::Finish) => return None,
            (_, Transition::Finish) => Self::Done,
            (Self::Done, Transition::NextRequest) => Self::Waiting,
            _ => return None,
        })
    }
}

/// The properties of the request on which the response depends.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestInfo {
    /// Whether the request's method is HEAD.
    pub(super) is_head_request: bool,
    /// Whether the request's version is HTTP/1.0.
    pub(super) is_http10: bool,
    /// Whether another request may follow.
    pub(super) keep_alive: bool,
}

/// The sending machine. `bytes_left > 0` only in `Exact`.
#[derive(Debug)]
pub(super) struct SendPath {
    /// Announced bytes of content that were not sent yet.
    bytes_left: u64,
    state: State,
}

impl SendPath {
    pub(super) const fn new() -> Self {
        Self { bytes_left: 0, state: State::Waiting }
    }

    #[inline]
    pub(super) fn state(&self) -> State {
        self.state
    }

    /// Changes the state; nothing else does. Panics if the transition is illegal, because the
    /// caller wrote the parts of a response in the wrong order.
    #[inline]
    pub(super) fn transition(&mut self, transition: Transition) {
        self.state = self.state.on(transition).expect("a response is a head, content, and its end");
        if self.state != State::Exact {
            self.bytes_left = 0;
        }
    }

    /// Writes the head of a final response. Returns the framing, and whether another request may
    /// still follow.
    #[inline]
    pub(super) fn send_response<'a>(
        &mut self,
        status: u16,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        length: ResponseLength,
        request: RequestInfo,
        date: &Date,
        out: &mut Vec<u8>,
    ) -> (BodyFraming, bool) {
        // A final status has three digits and is not interim; anything else is an error of the
        // caller.
        let status = if (200..=999).contains(&status) { status } else { 500 };
        write::write_status_line(status, out);
        let caller_fields = write_fields(fields, out);
        if !caller_fields.date {
            // RFC 9110 §6.6.1: an origin server with a clock must generate Date.
            out.extend_from_slice(b"date: ");
            out.extend_from_slice(date.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        let framing = body_framing(status, length, request);
        match (framing, length) {
            (BodyFraming::Exact(bytes), _) => write_content_length(bytes, out),
            (BodyFraming::Chunked, _) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
            (BodyFraming::CloseDelimited, _) => {}
            (BodyFraming::None, length) => {
                // RFC 9110 §8.6: in a response to HEAD and in a 304, Content-Length is the length
                // that the content of a 200 to GET would have; a handler may know it without the
                // content.
                match (caller_fields.content_length, length) {
                    _ if status == 204 => {}
                    // A 205 has no content for GET either.
                    _ if status == 205 => write_content_length(0, out),
                    (Some(bytes), _) => write_content_length(bytes, out),
                    (None, ResponseLength::Exact(bytes)) if status != 304 => {
                        write_content_length(bytes, out);
                    }
                    _ => {}
                }
            }
        }
        let keep_alive =
            request.keep_alive && !caller_fields.close && framing != BodyFraming::CloseDelimited;
        out.extend_from_slice(match (keep_alive, caller_fields.upgrade, request.is_http10) {
            // RFC 9112 §9.6: a server that will close sends the close connection option.
            (false, false, _) => b"connection: close\r\n\r\n",
            (false, true, _) => b"connection: close, upgrade\r\n\r\n",
            (true, false, false) => b"\r\n",
            (true, true, false) => b"connection: upgrade\r\n\r\n",
            // RFC 9112 §9.3: an HTTP/1.0 connection persists only if both say keep-alive.
            (true, false, true) => b"connection: keep-alive\r\n\r\n",
            (true, true, true) => b"connection: keep-alive, upgrade\r\n\r\n",
        });
        self.transition(match framing {
            BodyFraming::None => Transition::BeginEmpty,
            BodyFraming::Exact(_) => Transition::BeginExact,
            BodyFraming::Chunked => Transition::BeginChunked,
            BodyFraming::CloseDelimited => Transition::BeginCloseDelimited,
        });
        if let BodyFraming::Exact(bytes) = framing {
            self.bytes_left = bytes;
        }
        (framing, keep_alive)
    }

    /// Writes the framing before this many bytes of content, and returns the framing that follows.
    #[inline]
    pub(super) fn begin_external_data(&mut self, bytes: usize, out: &mut Vec<u8>) -> ExternalData {
        match self.state {
            State::Exact => {
                let accepted = usize::try_from(self.bytes_left)
                    .map_or(bytes, |bytes_left| bytes_left.min(bytes));
                self.bytes_left -= accepted as u64;
                ExternalData { accepted, suffix: b"" }
            }
            // RFC 9112 §7.1: a chunk of no bytes would end the content.
            State::Chunked if bytes == 0 => ExternalData { accepted: 0, suffix: b"" },
            State::Chunked => {
                write::write_chunk_header(bytes as u64, out);
                ExternalData { accepted: bytes, suffix: b"\r\n" }
            }
            State::CloseDelimited => ExternalData { accepted: bytes, suffix: b"" },
            State::Waiting | State::Empty | State::Done | State::Upgraded => {
                ExternalData { accepted: 0, suffix: b"" }
            }
        }
    }

    /// Ends the response. Returns whether all announced bytes were sent.
    #[inline]
    pub(super) fn finish<'a>(
        &mut self,
        trailers: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        out: &mut Vec<u8>,
    ) -> bool {
        if self.state == State::Chunked {
            out.extend_from_slice(b"0\r\n");
            for (name, value) in trailers {
                // RFC 9110 §6.5.1: fields for framing, routing and similar must not be trailers.
                if KnownField::from_name(name).is_allowed_in_trailers()
                    && write::is_writable_name(name)
                {
                    write::write_field(name, value, out);
                }
            }
            out.extend_from_slice(b"\r\n");
        }
        let is_complete = self.bytes_left == 0;
        self.transition(Transition::Finish);
        is_complete
    }

    /// Checks all invariants.
    pub(super) fn assert_invariants(&self) {
        assert!(
            self.bytes_left == 0 || self.state == State::Exact,
            "`bytes_left` is only for a known length"
        );
    }
}

/// How the content is framed.
fn body_framing(status: u16, length: ResponseLength, request: RequestInfo) -> BodyFraming {
    match (status, length) {
        // RFC 9112 §6.3: a response to HEAD, and any with status 204 or 304, ends with its head.
        _ if request.is_head_request => BodyFraming::None,
        (204 | 304, _) => BodyFraming::None,
        // RFC 9110 §15.3.6: a server must not generate content in a 205 response.
        (205, _) => BodyFraming::Exact(0),
        (_, ResponseLength::Exact(bytes)) => BodyFraming::Exact(bytes),
        // RFC 9112 §6.1: Transfer-Encoding must not be sent to an HTTP/1.0 client.
        (_, ResponseLength::Unknown) if request.is_http10 => BodyFraming::CloseDelimited,
        (_, ResponseLength::Unknown) => BodyFraming::Chunked,
    }
}

/// The fields among the caller's that affect the framing or replace a default.
#[derive(Clone, Copy, Debug, Default)]
struct CallerFields {
    date: bool,
    close: bool,
    upgrade: bool,
    content_length: Option<u64>,
}

/// Writes the caller's fields, except those for framing and for the connection.
#[inline]
fn write_fields<'a>(
    fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    out: &mut Vec<u8>,
) -> CallerFields {
    let mut caller_fields = CallerFields::default();
    for (name, value) in fields {
        match KnownField::from_name(name) {
            KnownField::TransferEncoding => continue,
            KnownField::ContentLength => {
                caller_fields.content_length =
                    caller_fields.content_length.or_else(|| parse_decimal(value));
                continue;
            }
            KnownField::Connection => {
                caller_fields.close |=
                    split_list(value).any(|option| option.eq_ignore_ascii_case(b"close"));
                caller_fields.upgrade |=
                    split_list(value).any(|option| option.eq_ignore_ascii_case(b"upgrade"));
                continue;
            }
            KnownField::Date if caller_fields.date => continue,
            KnownField::Date => caller_fields.date = true,
            KnownField::Other if !write::is_writable_name(name) => continue,
            _ => {}
        }
        write::write_field(name, value, out);
    }
    caller_fields
}

/// Writes the head of an interim response.
pub(super) fn write_interim<'a>(
    status: u16,
    fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    out: &mut Vec<u8>,
) {
    write::write_status_line(status, out);
    // RFC 9110 §8.6: no Content-Length in a 1xx response; write_fields omits it and others.
    write_fields(fields, out);
    if status == 101 {
        // RFC 9110 §7.8: a sender of Upgrade must also send the connection option.
        out.extend_from_slice(b"connection: upgrade\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

fn write_content_length(bytes: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"content-length: ");
    write::write_decimal(bytes, out);
    out.extend_from_slice(b"\r\n");
}

fn parse_decimal(text: &[u8]) -> Option<u64> {
    if !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}
