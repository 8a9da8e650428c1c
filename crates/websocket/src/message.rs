//! Messages and close frames.

use bytes::Bytes;
use peregrine_proto::ws::CloseCode;
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A data message or a control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A text message.
    Text(Utf8Bytes),
    /// A binary message.
    Binary(Bytes),
    /// A ping with a payload of at most 125 bytes, which the peer returns in a [`Message::Pong`].
    /// It is never received, because pongs for the peer's pings are sent without the handler.
    Ping(Bytes),
    /// The peer's response to a ping sent by the handler. A peer can respond to only the last of
    /// several pings.
    Pong(Bytes),
    /// Closes the WebSocket. The response to a received Close frame has already been sent; after
    /// sending one, nothing else can be sent.
    Close(Option<CloseFrame>),
}

/// Why a WebSocket is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseFrame {
    /// The code.
    pub code: CloseCode,
    /// The reason, for debugging. Only the first 123 bytes are sent.
    pub reason: Cow<'static, str>,
}

impl Message {
    /// Creates a text message.
    pub fn text(text: impl Into<Utf8Bytes>) -> Self {
        Self::Text(text.into())
    }

    /// Creates a binary message.
    pub fn binary(bytes: impl Into<Bytes>) -> Self {
        Self::Binary(bytes.into())
    }

    /// Creates a close message with a code and a reason.
    pub fn close(code: CloseCode, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Close(Some(CloseFrame { code, reason: reason.into() }))
    }

    /// Returns the text of a text message.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the bytes of a text or binary message, or the payload of a ping or pong.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) | Self::Ping(bytes) | Self::Pong(bytes) => bytes,
            Self::Close(_) => &[],
        }
    }
}

impl From<Utf8Bytes> for Message {
    fn from(text: Utf8Bytes) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Message {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Message {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<Bytes> for Message {
    fn from(bytes: Bytes) -> Self {
        Self::Binary(bytes)
    }
}

impl From<Vec<u8>> for Message {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Binary(bytes.into())
    }
}

/// Text that is cheap to clone and can be shared between threads.
// This is not `Bytes`, which would have to be validated on every access: this crate has no unsafe
// code.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Utf8Bytes(Arc<str>);

impl Utf8Bytes {
    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Deref for Utf8Bytes {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Utf8Bytes {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl AsRef<[u8]> for Utf8Bytes {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl From<&str> for Utf8Bytes {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Utf8Bytes {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<Cow<'_, str>> for Utf8Bytes {
    fn from(text: Cow<'_, str>) -> Self {
        Self(text.into())
    }
}

impl PartialEq<str> for Utf8Bytes {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl PartialEq<&str> for Utf8Bytes {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Utf8Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for Utf8Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}
