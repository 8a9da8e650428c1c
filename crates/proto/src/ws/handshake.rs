//! The handshake over HTTP: the requirements for the request and the response.

use super::key::HandshakeKey;
use crate::{Method, Version, field};
use std::fmt;

/// The version of the protocol, the value of Sec-WebSocket-Version.
pub const VERSION: &str = "13";

/// Why a request is not a valid handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeError {
    /// The method is not GET. 405.
    MethodNotGet,
    /// The version is not HTTP/1.1, Upgrade does not contain `websocket`, or Connection does not
    /// contain `upgrade`. 426, with `Upgrade: websocket` and `Connection: upgrade`.
    MissingUpgrade,
    /// Sec-WebSocket-Version is missing or is not 13. 426, with `Sec-WebSocket-Version: 13`.
    UnsupportedVersion,
    /// Sec-WebSocket-Key is missing, occurs twice, or is not 16 bytes in base64. 400.
    InvalidKey,
}

impl HandshakeError {
    /// The status of the response.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::MethodNotGet => 405,
            Self::MissingUpgrade | Self::UnsupportedVersion => 426,
            Self::InvalidKey => 400,
        }
    }

    /// The section of the standard that contains the rule.
    #[must_use]
    pub const fn section(self) -> &'static str {
        match self {
            Self::UnsupportedVersion => "RFC 6455 §4.4",
            _ => "RFC 6455 §4.2.1",
        }
    }

    /// The violated rule, in one sentence without its full stop.
    #[must_use]
    pub const fn rule(self) -> &'static str {
        match self {
            Self::MethodNotGet => "A WebSocket is opened by GET",
            Self::MissingUpgrade => "The request does not ask for an upgrade to WebSocket",
            Self::UnsupportedVersion => "The version of WebSocket is not 13",
            Self::InvalidKey => "Sec-WebSocket-Key is not 16 bytes in base64",
        }
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.rule(), self.section())
    }
}

impl std::error::Error for HandshakeError {}

/// Checks a handshake over HTTP/1.1, whose response is a 101 with [`HandshakeKey::derive_accept`].
/// `fields` are all fields of the request.
///
/// # Errors
///
/// If the response must not be a 101.
// RFC 6455 §4.2.1: a GET with Upgrade: websocket, Connection: Upgrade, a key, and version 13.
pub fn validate_http1<'a>(
    method: Method,
    version: Version,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
) -> Result<HandshakeKey, HandshakeError> {
    let values = |name: &'static str| {
        let has_name = move |field: &(&[u8], &[u8])| field.0.eq_ignore_ascii_case(name.as_bytes());
        fields.clone().filter(has_name).map(|(_, value)| value)
    };
    let is_upgrade =
        has_token(values("upgrade"), "websocket") && has_token(values("connection"), "upgrade");
    // RFC 9110 §7.8: a server MUST ignore Upgrade in an HTTP/1.0 request.
    if version != Version::Http11 || !is_upgrade {
        return Err(HandshakeError::MissingUpgrade);
    }
    if method != Method::Get {
        return Err(HandshakeError::MethodNotGet);
    }
    validate_version(values("sec-websocket-version"))?;
    let mut keys = values("sec-websocket-key");
    match (keys.next().and_then(|value| HandshakeKey::parse(field::trim_ows(value))), keys.next()) {
        (Some(key), None) => Ok(key),
        _ => Err(HandshakeError::InvalidKey),
    }
}

/// Checks the values of Sec-WebSocket-Version. Over HTTP/2, where extended CONNECT requests the
/// protocol `websocket`, this is all that a handshake needs (RFC 8441 §5).
///
/// # Errors
///
/// If the version is not 13.
// RFC 6455 §4.4: a server that does not support the version answers with those that it supports.
pub fn validate_version<'a>(
    mut values: impl Iterator<Item = &'a [u8]>,
) -> Result<(), HandshakeError> {
    match (values.next(), values.next()) {
        (Some(value), None) if field::trim_ows(value) == VERSION.as_bytes() => Ok(()),
        _ => Err(HandshakeError::UnsupportedVersion),
    }
}

/// Returns whether the lists in `values` contain a token, ignoring case: for Connection and
/// Upgrade.
#[must_use]
pub fn has_token<'a>(mut values: impl Iterator<Item = &'a [u8]>, token: &str) -> bool {
    values.any(|value| {
        field::split_list(value).any(|item| item.eq_ignore_ascii_case(token.as_bytes()))
    })
}

/// The first subprotocol offered by the client that the server supports: `offers` are the values of
/// Sec-WebSocket-Protocol, in the client's order of preference.
// RFC 6455 §4.2.2: the subprotocol is one of the client's, or none. Names are case-sensitive.
#[must_use]
pub fn choose_protocol<'o, 's>(
    offers: impl Iterator<Item = &'o [u8]>,
    supported: &[&'s str],
) -> Option<&'s str> {
    let mut offers = offers.flat_map(field::split_list);
    offers.find_map(|offer| supported.iter().find(|name| name.as_bytes() == offer).copied())
}
