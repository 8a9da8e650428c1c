//! What goes over a WebSocket.

use bytes::Bytes;
use peregrine_proto::ws::CloseCode;
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A message, or a sign between the two ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Text.
    Text(Text),
    /// Bytes.
    Binary(Bytes),
    /// Asks the peer for a sign of life, with at most 125 bytes, which come back in a [`Message::Pong`].
    /// Only sent: pings of the peer are answered without the handler.
    Ping(Bytes),
    /// What answers a ping that the handler has sent. A peer may answer the last of several pings only.
    Pong(Bytes),
    /// The end. When it is received, it was answered already; when it is sent, nothing can be sent after.
    Close(Option<CloseFrame>),
}

/// Why a WebSocket is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseFrame {
    /// The code.
    pub code: CloseCode,
    /// The reason, for people who look for a fault; of a longer one, 123 bytes are sent.
    pub reason: Cow<'static, str>,
}

impl Message {
    /// Text.
    pub fn text(text: impl Into<Text>) -> Self {
        Self::Text(text.into())
    }

    /// Bytes.
    pub fn binary(bytes: impl Into<Bytes>) -> Self {
        Self::Binary(bytes.into())
    }

    /// The end, with a code and a reason.
    pub fn close(code: CloseCode, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Close(Some(CloseFrame { code, reason: reason.into() }))
    }

    /// The text, if it is one.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The bytes of text, of bytes, and of what goes with a ping or a pong.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) | Self::Ping(bytes) | Self::Pong(bytes) => bytes,
            Self::Close(_) => &[],
        }
    }
}

impl From<Text> for Message {
    fn from(text: Text) -> Self {
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

/// Text whose copies are cheap: they share it, on any thread.
// Not `Bytes`, which would have to be checked at each look: this crate has no unsafe code.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(Arc<str>);

impl Text {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<Cow<'_, str>> for Text {
    fn from(text: Cow<'_, str>) -> Self {
        Self(text.into())
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}
