//! Events and states that a connection reports to its caller.

use super::error::Http2Error;
use super::frame::ErrorCode;
use super::streams::StreamKey;
use crate::BodyLength;
use std::ops::Range;

/// The meaning of the received bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// More bytes are needed. Call again with the unused bytes and those after them.
    NeedInput,
    /// A head is complete, in the buffers passed to `receive`.
    Request(Request),
    /// Content of a request: this range of the received bytes. Never empty. It counts against the
    /// client's windows until it is passed to
    /// [`Connection::release_capacity`](super::Connection::release_capacity).
    Data {
        /// The stream.
        stream: StreamKey,
        /// The position of the content in the received bytes.
        range: Range<usize>,
    },
    /// The content is complete; [`Connection::trailers`](super::Connection::trailers) has the
    /// fields that followed it, until the next call.
    End {
        /// The stream.
        stream: StreamKey,
    },
    /// The request violates a rule of every HTTP version. Respond with the status; if a response
    /// has begun, reset the stream. No more events follow for the request. If its head was
    /// rejected, the buffers contain no head, and there was no [`Event::Request`].
    RequestError {
        /// The stream.
        stream: StreamKey,
        /// The violated rule.
        error: crate::RequestError,
    },
    /// A stream was reset, so its exchange fails. The key is no longer valid.
    Reset {
        /// The stream.
        stream: StreamKey,
        /// Which side reset the stream, and why.
        cause: ResetCause,
    },
    /// The head of a request violated a rule of HTTP/2, or a frame arrived on a closed stream.
    /// RST_STREAM was written; no exchange is affected.
    StreamError {
        /// The stream's identifier.
        id: u32,
        /// The violated rule.
        error: Http2Error,
    },
    /// The client's settings have changed: more data may be ready to be sent.
    Settings,
    /// The client will open no more streams. It closes the connection when the open ones have
    /// ended.
    GoAway {
        /// The reason.
        code: ErrorCode,
    },
    /// The peer violated a rule of the connection, and GOAWAY was written. Fail all exchanges, send
    /// the output, and close.
    ConnectionError(Http2Error),
    /// The connection has ended; nothing more is read.
    Closed,
}

/// A request whose head is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The request's stream.
    pub stream: StreamKey,
    /// How much content follows. With `None`, neither `Data` nor `End` follows: the request is
    /// complete.
    pub body: BodyLength,
    /// Whether the client waits for an interim 100 response before it sends the content.
    pub expect_continue: bool,
}

/// Why a stream was reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetCause {
    /// The client reset it, with this code.
    Remote(ErrorCode),
    /// The client violated this rule, so it was reset.
    StreamError(Http2Error),
}

/// The event that the connection is waiting for. The caller sets the timeouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingFor {
    /// The preface and the first SETTINGS frame.
    Preface,
    /// The rest of a header block.
    Head,
    /// The rest of another frame.
    Frame,
    /// Any frame, while streams are open. The caller knows what each stream waits for: content
    /// until its `End`, and a larger window if
    /// [`Connection::is_stream_window_exhausted`](super::Connection::is_stream_window_exhausted).
    Streams,
    /// The next request.
    NextRequest,
    /// Nothing from the peer.
    Nothing,
}

/// The next step of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// Requests can be received.
    Receive,
    /// Close, once all output is sent.
    Close,
}

/// A stream that can send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyStream {
    /// The stream.
    pub stream: StreamKey,
    /// How many bytes the next DATA frame can carry, at least 1.
    pub bytes_max: usize,
}

/// What follows the content that is being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoreData {
    /// More content, which is available.
    Buffered,
    /// More content, which will be marked as ready when it is available.
    Pending,
    /// Nothing: the response is complete.
    End,
}
