//! What is spoken on a connection, as far as the two clients have it in common.

use crate::client::fault::Fault;
use crate::http2::Http2;
use crate::websocket::WebSocket;

/// What is spoken on a connection, with its state.
#[derive(Default)]
pub(crate) enum Speech {
    /// Requests and replies, whose state is the connection's own.
    #[default]
    Http1,
    /// Frames.
    Http2(Box<Http2>),
    /// Messages, once HTTP/1.1 has opened it.
    WebSocket(Box<WebSocket>),
}

/// How a connection begins.
pub(crate) enum Opening<'a> {
    Http1,
    Http2,
    /// With the head of this request; the seed decides the key and the masks.
    WebSocket {
        request: &'a [u8],
        seed: u64,
    },
}

impl Speech {
    /// A new connection, with what the client says first put into `out`.
    pub(crate) fn begin(opening: Opening<'_>, out: &mut Vec<u8>) -> Speech {
        match opening {
            Opening::Http1 => Speech::Http1,
            Opening::Http2 => Speech::Http2(Box::new(Http2::new(out))),
            Opening::WebSocket { request, seed } => {
                Speech::WebSocket(Box::new(WebSocket::new(request, seed, out)))
            }
        }
    }

    /// Whether both sides have said what they say first.
    pub(crate) fn is_ready(&self) -> bool {
        match self {
            Speech::Http1 => true,
            Speech::Http2(http2) => http2.is_ready(),
            Speech::WebSocket(websocket) => websocket.is_open(),
        }
    }

    /// Takes what the server says first.
    pub(crate) fn greet(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        match self {
            Speech::Http1 => Err(Fault::Malformed),
            Speech::Http2(http2) => http2.receive(bytes, out, &mut |_, _| {}),
            // Nobody has asked for a message yet.
            Speech::WebSocket(websocket) => {
                websocket.receive(bytes, out, &mut |_, _| Err(Fault::Malformed))
            }
        }
    }

    /// Whether the protocol takes one more request now.
    pub(crate) fn has_room(&self) -> bool {
        match self {
            Speech::Http1 => true,
            Speech::Http2(http2) => http2.room() > 0,
            Speech::WebSocket(websocket) => websocket.is_open() && !websocket.is_leaving(),
        }
    }

    /// Whether the server said that it takes no further requests here.
    pub(crate) fn is_leaving(&self) -> bool {
        match self {
            Speech::Http1 => false,
            Speech::Http2(http2) => http2.is_leaving(),
            Speech::WebSocket(websocket) => websocket.is_leaving(),
        }
    }

    /// Whether a part of a reply has come and the rest of it has not. Of HTTP/1.1 the connection
    /// itself knows.
    pub(crate) fn is_within_reply(&self) -> bool {
        match self {
            Speech::Http1 => false,
            Speech::Http2(http2) => http2.is_within_reply(),
            Speech::WebSocket(websocket) => websocket.is_within_message(),
        }
    }
}
