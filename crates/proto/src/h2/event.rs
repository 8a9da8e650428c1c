//! What a connection tells its caller.

use super::frame::Code;
use super::reject::Reject;
use super::streams::StreamKey;
use crate::BodyLength;
use std::ops::Range;

/// What the received bytes mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// More bytes are needed. Call again with the unused bytes and those after.
    NeedInput,
    /// A head is complete, in the buffers that were given.
    Request(Request),
    /// Content of a request: this range of `unread`. Never empty. It counts against the client's windows
    /// until it is passed to [`Connection::consumed`](super::Connection::consumed).
    Data {
        /// The stream.
        stream: StreamKey,
        /// The content's place in `unread`.
        range: Range<usize>,
    },
    /// The content is complete; [`Connection::trailers`](super::Connection::trailers) has the fields that
    /// followed it, until the next call.
    End {
        /// The stream.
        stream: StreamKey,
    },
    /// The request breaks a rule of every version of HTTP. Answer with the status; if a response has
    /// begun, reset the stream. Nothing more of the request is handed out. If its head was refused, the
    /// buffers hold no head, and no [`Event::Request`] came before.
    Refuse {
        /// The stream.
        stream: StreamKey,
        /// The rule that was broken.
        reject: crate::Reject,
    },
    /// A stream was reset: its exchange fails. The key is of no more use.
    Reset {
        /// The stream.
        stream: StreamKey,
        /// Who ended it, and why.
        cause: Cause,
    },
    /// A request broke a rule of HTTP/2 in its head, or a frame came on a closed stream. It was answered
    /// with a reset; no exchange is affected.
    Rejected {
        /// The stream's identifier.
        id: u32,
        /// The rule that was broken.
        reject: Reject,
    },
    /// The client's settings have changed: more may be ready to be sent.
    Settings,
    /// The client opens no more streams; it closes the connection when those that are open have ended.
    GoAway {
        /// The reason.
        code: Code,
    },
    /// The peer broke a rule of the connection, and was told so. Fail all exchanges, send what was
    /// written, and close.
    Error(Reject),
    /// The connection is over; nothing more is read.
    Closed,
}

/// A request whose head is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The request's stream.
    pub stream: StreamKey,
    /// How much content follows. With `None`, neither `Data` nor `End` follows: the request is complete.
    /// `Chunked` stands for any length that is unknown before the content ends.
    pub body: BodyLength,
    /// Whether the client waits for an interim 100 response before it sends the content.
    pub expect_continue: bool,
}

/// Why a stream was reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The client reset it, with this code.
    Peer(Code),
    /// The client broke this rule, so it was reset.
    Fault(Reject),
}

/// Which wait the connection is in; the server owns the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// For the preface and the first SETTINGS frame.
    Preface,
    /// For the rest of a header block.
    Head,
    /// For the rest of another frame.
    Frame,
    /// For nothing in particular while streams are open. The caller knows what each of them waits for:
    /// content until its `End`, and room if [`Connection::is_stalled`](super::Connection::is_stalled).
    Streams,
    /// For the next request.
    Idle,
    /// For nothing from the peer.
    Nothing,
}

/// What the connection does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Requests may be received.
    Receive,
    /// Close, once what was written is sent.
    Close,
}

/// A stream that may send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The stream whose turn it is.
    pub stream: StreamKey,
    /// How many bytes the next DATA frame can carry, at least 1.
    pub bytes_max: usize,
}

/// What follows a piece of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// More content, which is at hand.
    More,
    /// More content, which is offered when it is at hand.
    Wait,
    /// Nothing: the response is complete.
    End,
}
