//! The negotiation of permessage-deflate (RFC 7692), as a function from an offer to a response.
//!
//! A server calls [`negotiate`] with the values of Sec-WebSocket-Extensions and, if the result is
//! [`DeflateParams`], sends its text in the response. A client writes an [`Offer`], and parses the
//! response with [`Offer::parse_response`].

use crate::field;
use std::fmt;
use std::ops::RangeInclusive;

/// The name of the extension.
pub const NAME: &str = "permessage-deflate";

/// The largest window, in bits, which applies if no parameter sets it.
pub const WINDOW_BITS_MAX: u8 = 15;

/// The smallest window that a parameter may set.
const WINDOW_BITS_MIN: u8 = 8;

/// The capabilities and preferences of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeflateConfig {
    /// Whether the server resets its window after each message, even if the client would allow it
    /// to keep the window. Default true, because a compressor that keeps its window takes about
    /// 256 KB per connection.
    pub server_no_context_takeover: bool,
    /// Whether the client is requested to reset its window after each message, so that the server
    /// does not have to keep a copy of that window. Default true, because the copy takes 32 KB or
    /// more per connection.
    pub client_no_context_takeover: bool,
    /// The windows, in bits, with which the server can compress; it uses the largest that the
    /// client accepts. Offers that require a smaller one are declined. Default only 15, because
    /// some libraries support no other.
    pub server_max_window_bits: RangeInclusive<u8>,
    /// The window, in bits, that the client is requested to use, if it supports the parameter.
    /// Default 15.
    pub client_max_window_bits: u8,
}

impl Default for DeflateConfig {
    fn default() -> Self {
        Self {
            server_no_context_takeover: true,
            client_no_context_takeover: true,
            server_max_window_bits: WINDOW_BITS_MAX..=WINDOW_BITS_MAX,
            client_max_window_bits: WINDOW_BITS_MAX,
        }
    }
}

/// The negotiated parameters. The text form is the server's response, a value of
/// Sec-WebSocket-Extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeflateParams {
    /// `server_no_context_takeover`: the server's messages do not refer to earlier ones.
    pub server_no_context_takeover: bool,
    /// `client_no_context_takeover`: the client's messages do not refer to earlier ones.
    pub client_no_context_takeover: bool,
    /// `server_max_window_bits`: the largest window that the server compresses with.
    pub server_max_window_bits: u8,
    /// `client_max_window_bits`: the largest window that the client compresses with.
    pub client_max_window_bits: u8,
}

impl fmt::Display for DeflateParams {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(NAME)?;
        if self.server_no_context_takeover {
            formatter.write_str("; server_no_context_takeover")?;
        }
        if self.client_no_context_takeover {
            formatter.write_str("; client_no_context_takeover")?;
        }
        if self.server_max_window_bits < WINDOW_BITS_MAX {
            write!(formatter, "; server_max_window_bits={}", self.server_max_window_bits)?;
        }
        if self.client_max_window_bits < WINDOW_BITS_MAX {
            write!(formatter, "; client_max_window_bits={}", self.client_max_window_bits)?;
        }
        Ok(())
    }
}

/// Chooses the first offer that the server can accept. `values` are those of
/// Sec-WebSocket-Extensions in the request. Offers that violate a rule are declined, and other
/// extensions are ignored. If this returns `None`, the response must not have such a field, and
/// messages are not compressed.
///
/// ```
/// use peregrine_proto::ws::deflate::{DeflateConfig, negotiate};
///
/// let offer: &[u8] = b"permessage-deflate; client_max_window_bits";
/// let params = negotiate([offer].into_iter(), &DeflateConfig::default()).unwrap();
/// let response = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
/// assert_eq!(params.to_string(), response);
/// ```
// RFC 7692 §5: the server accepts the first element that it supports, or none.
pub fn negotiate<'a>(
    values: impl IntoIterator<Item = &'a [u8]>,
    config: &DeflateConfig,
) -> Option<DeflateParams> {
    let mut elements = values.into_iter().flat_map(|value| split_unquoted(value, b','));
    elements.find_map(|element| accept_offer(&Parameters::parse(element)?, config))
}

fn accept_offer(offer: &Parameters, config: &DeflateConfig) -> Option<DeflateParams> {
    // RFC 7692 §7.1.2.1: an offered server_max_window_bits has a value, which limits the server.
    let server_bits_max = match offer.server_max_window_bits {
        None => WINDOW_BITS_MAX,
        Some(bits) => bits?,
    };
    let server_window_bits = server_bits_max.min(*config.server_max_window_bits.end());
    if server_window_bits < *config.server_max_window_bits.start() {
        return None;
    }
    // RFC 7692 §7.1.2.2: without client_max_window_bits in the offer, the answer MUST NOT have it.
    let client_window_bits = match offer.client_max_window_bits {
        None => WINDOW_BITS_MAX,
        Some(bits_max) => config
            .client_max_window_bits
            .clamp(WINDOW_BITS_MIN, bits_max.unwrap_or(WINDOW_BITS_MAX)),
    };
    Some(DeflateParams {
        // RFC 7692 §7.1.1.1: an offered server_no_context_takeover is accepted unchanged, or not at
        // all.
        server_no_context_takeover: offer.server_no_context_takeover
            || config.server_no_context_takeover,
        // RFC 7692 §7.1.1.2: the answer may contain client_no_context_takeover without an offer of
        // it.
        client_no_context_takeover: offer.client_no_context_takeover
            || config.client_no_context_takeover,
        server_max_window_bits: server_window_bits,
        client_max_window_bits: client_window_bits,
    })
}

/// A client's offer. The text form is a value of Sec-WebSocket-Extensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Whether the server is requested to reset its window after each message.
    pub server_no_context_takeover: bool,
    /// Whether the client announces that it resets its own window.
    pub client_no_context_takeover: bool,
    /// The largest window that the server may use, if it is smaller than 15 bits.
    pub server_max_window_bits: Option<u8>,
    /// The smallest window that the client supports, if it supports less than 15 bits.
    pub client_max_window_bits_min: Option<u8>,
}

impl fmt::Display for Offer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(NAME)?;
        if self.server_no_context_takeover {
            formatter.write_str("; server_no_context_takeover")?;
        }
        if self.client_no_context_takeover {
            formatter.write_str("; client_no_context_takeover")?;
        }
        if let Some(bits) = self.server_max_window_bits {
            write!(formatter, "; server_max_window_bits={bits}")?;
        }
        if self.client_max_window_bits_min.is_some() {
            formatter.write_str("; client_max_window_bits")?;
        }
        Ok(())
    }
}

/// The server's response does not match the offer: the client fails the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidResponse;

impl fmt::Display for InvalidResponse {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the server has accepted an extension that was not offered this way")
    }
}

impl std::error::Error for InvalidResponse {}

impl Offer {
    /// Parses the server's response: `values` are those of Sec-WebSocket-Extensions. Returns `None`
    /// if the server has declined.
    ///
    /// # Errors
    ///
    /// If the response does not match the offer.
    // RFC 7692 §7.1: a client fails the connection if the server accepted with parameters that it
    // must not use, or cannot.
    pub fn parse_response<'a>(
        &self,
        values: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Option<DeflateParams>, InvalidResponse> {
        let mut elements = values.into_iter().flat_map(|value| split_unquoted(value, b','));
        let Some(element) = elements.next() else { return Ok(None) };
        let response = Parameters::parse(element).ok_or(InvalidResponse)?;
        let bits = |parameter: Option<Option<u8>>| match parameter {
            None => Ok(WINDOW_BITS_MAX),
            Some(bits) => bits.ok_or(InvalidResponse),
        };
        let params = DeflateParams {
            server_no_context_takeover: response.server_no_context_takeover,
            client_no_context_takeover: response.client_no_context_takeover
                || self.client_no_context_takeover,
            server_max_window_bits: bits(response.server_max_window_bits)?,
            client_max_window_bits: bits(response.client_max_window_bits)?,
        };
        let is_valid = elements.next().is_none()
            && params.server_no_context_takeover >= self.server_no_context_takeover
            && params.server_max_window_bits
                <= self.server_max_window_bits.unwrap_or(WINDOW_BITS_MAX)
            && match self.client_max_window_bits_min {
                None => response.client_max_window_bits.is_none(),
                Some(bits_min) => params.client_max_window_bits >= bits_min,
            };
        if is_valid { Ok(Some(params)) } else { Err(InvalidResponse) }
    }
}

/// The parameters of one element, each at most once.
#[derive(Debug, Default)]
struct Parameters {
    server_no_context_takeover: bool,
    client_no_context_takeover: bool,
    /// The inner `None` is a parameter without a value.
    server_max_window_bits: Option<Option<u8>>,
    client_max_window_bits: Option<Option<u8>>,
}

impl Parameters {
    /// Parses an element. Returns `None` if it is another extension, or violates a rule.
    // RFC 7692 §7.1: an offer with an unknown parameter, an invalid value, or a repeated parameter
    // is declined.
    fn parse(element: &[u8]) -> Option<Self> {
        let mut parts = split_unquoted(element, b';');
        if !parts.next()?.eq_ignore_ascii_case(NAME.as_bytes()) {
            return None;
        }
        let mut parameters = Self::default();
        for part in parts {
            let equals = part.iter().position(|byte| *byte == b'=');
            let (name, value) = match equals {
                None => (part, None),
                Some(equals) => {
                    (field::trim_ows(&part[..equals]), Some(field::trim_ows(&part[equals + 1..])))
                }
            };
            let is_new = match name {
                b"server_no_context_takeover" if value.is_none() => {
                    !std::mem::replace(&mut parameters.server_no_context_takeover, true)
                }
                b"client_no_context_takeover" if value.is_none() => {
                    !std::mem::replace(&mut parameters.client_no_context_takeover, true)
                }
                b"server_max_window_bits" => parameters
                    .server_max_window_bits
                    .replace(Some(parse_window_bits(value?)?))
                    .is_none(),
                b"client_max_window_bits" => {
                    let bits = match value {
                        None => None,
                        Some(value) => Some(parse_window_bits(value)?),
                    };
                    parameters.client_max_window_bits.replace(bits).is_none()
                }
                _ => false,
            };
            if !is_new {
                return None;
            }
        }
        Some(parameters)
    }
}

/// Parses the number of bits of a window.
// RFC 7692 §7.1.2: a decimal integer without leading zeros between 8 and 15.
// RFC 6455 §9.1: a quoted value is a token once it is unquoted.
fn parse_window_bits(value: &[u8]) -> Option<u8> {
    let value = match value {
        [b'"', inner @ .., b'"'] => inner,
        value => value,
    };
    Some(match value {
        b"8" => 8,
        b"9" => 9,
        [b'1', digit @ b'0'..=b'5'] => 10 + digit - b'0',
        _ => return None,
    })
}

/// Splits a value at separators outside of quoted strings. Empty parts are omitted, unless the
/// separator is `;`: an empty element of a list is ignored, but an empty parameter is an error.
fn split_unquoted(value: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let is_separator = move |byte: &u8| {
        if is_escaped {
            is_escaped = false;
            return false;
        }
        is_escaped = is_quoted && *byte == b'\\';
        is_quoted ^= *byte == b'"';
        !is_quoted && *byte == separator
    };
    let parts = value.split(is_separator).map(field::trim_ows);
    parts.filter(move |part| separator == b';' || !part.is_empty())
}
