//! Events and states that a connection reports to its caller.

use super::framing::Framing;
use crate::RequestError;
use std::ops::Range;

/// The meaning of the received bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// More bytes are needed. Call again with the unused bytes and those after them.
    NeedInput,
    /// A head is complete: `unread[framing.leading_bytes..used]`. If its body length is `None`,
    /// nothing follows: the request is complete.
    Head(Framing),
    /// Content of the request: this range of `unread`. Never empty.
    Data(Range<usize>),
    /// The content is complete; [`Connection::trailers`](super::Connection::trailers) has the
    /// fields that followed it.
    End,
    /// The request is complete and its response is not. Nothing more is read until the response is
    /// complete.
    Paused,
    /// The connection was switched to another protocol: all unread bytes belong to it.
    Upgraded,
    /// The peer violated a rule. Respond with its status, unless a response has begun;
    /// [`Connection::next_action`](super::Connection::next_action) returns the next step. After
    /// [`RequestError::ExpectationUnknown`] the head is complete and the connection can continue;
    /// after any other error it closes.
    RequestError(RequestError),
    /// The connection has ended; nothing more is read.
    Closed,
}

/// The event that the connection is waiting for. The caller sets the timeouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingFor {
    /// The first byte of the first request.
    FirstByte,
    /// The rest of a head.
    Head,
    /// The rest of a request's content.
    Body,
    /// The first byte of a later request.
    NextRequest,
    /// Nothing from the peer.
    Nothing,
}

/// The next step of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// A request can be received.
    Request,
    /// A request is received, in whole or in part, and its response is not complete.
    Respond,
    /// The response is complete and the request's content is not. Receive until this becomes
    /// `Request` or `Close`, and ignore the content; or close immediately.
    DiscardBody,
    /// Close, once all output is sent.
    Close,
    /// The connection belongs to another protocol.
    Upgraded,
}
