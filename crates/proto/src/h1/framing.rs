//! Evaluates a complete head: its target, the length of its content, and whether another request
//! may follow.

use crate::authority;
use crate::field;
use crate::{BodyLength, HeadIndex, KnownField, Limits, RequestError, Version};

/// How HTTP/1 frames a request: the part of its head that concerns the connection rather than the
/// application. The default is for a request after which the connection ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// How much content follows.
    pub body: BodyLength,
    /// How many of the used bytes precede the head: 2 for an empty line, otherwise 0.
    pub leading_bytes: u8,
    /// Whether the client allows another request on this connection.
    pub keep_alive: bool,
    /// Whether the client waits for an interim 100 response before it sends the content.
    pub expect_continue: bool,
    /// Whether the client asks for another protocol: Upgrade and `Connection: upgrade` in HTTP/1.1.
    pub upgrade: bool,
}

/// Derives the framing from a complete head, or rejects it. The caller passes the default
/// `framing`.
#[inline]
pub(super) fn determine_framing(
    head: &[u8],
    limits: &Limits,
    index: &mut HeadIndex,
    framing: &mut Framing,
) -> Result<(), RequestError> {
    // RFC 9112 §3.2: a server must answer 400 to an HTTP/1.1 request that lacks a Host field.
    if !index.contains(KnownField::Host) && index.version == Version::Http11 {
        return Err(RequestError::HostMissing);
    }
    authority::set_from_host(head, index)?;
    framing.keep_alive = index.version == Version::Http11;
    const SPECIAL: u64 = KnownField::ContentLength.bit()
        | KnownField::TransferEncoding.bit()
        | KnownField::Connection.bit()
        | KnownField::Expect.bit();
    if index.present & SPECIAL == 0 {
        return Ok(());
    }
    framing.body = body_length(head, limits, index)?;
    framing.keep_alive = wants_keep_alive(head, index);
    framing.upgrade = index.wants_upgrade(head);
    check_expect(head, index, framing)
}

// RFC 9112 §6.3: how the length of a request's content is determined.
fn body_length(
    head: &[u8],
    limits: &Limits,
    index: &HeadIndex,
) -> Result<BodyLength, RequestError> {
    if index.contains(KnownField::TransferEncoding) {
        if index.version == Version::Http10 {
            // RFC 9112 §6.1: HTTP/1.0 with Transfer-Encoding must be treated as faulty framing.
            return Err(RequestError::TransferEncodingInHttp10);
        }
        if index.contains(KnownField::ContentLength) {
            // RFC 9112 §6.1: a server may reject a request with both, and must close in any case.
            return Err(RequestError::ContentLengthWithTransferEncoding);
        }
        check_transfer_encoding(head, index)?;
        return Ok(BodyLength::Unknown);
    }
    if let Some(value) = index.get(KnownField::ContentLength) {
        // RFC 9110 §8.6: a recipient of repeated identical values may reject the message as
        // invalid.
        if index.is_repeated(KnownField::ContentLength) || value.slice(head).contains(&b',') {
            return Err(RequestError::ContentLengthRepeated);
        }
        let length = parse_decimal(value.slice(head))?;
        if length > limits.body_bytes_max {
            return Err(RequestError::BodyTooLarge);
        }
        if length > 0 {
            return Ok(BodyLength::Exact(length));
        }
    }
    Ok(BodyLength::None)
}

// RFC 9110 §8.6: Content-Length is one or more digits, and overflow must be prevented.
pub(crate) fn parse_decimal(text: &[u8]) -> Result<u64, RequestError> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(RequestError::ContentLengthInvalid);
    }
    text.iter()
        .try_fold(0_u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
        .ok_or(RequestError::ContentLengthOverflow)
}

// RFC 9112 §6.1: a sender must not apply chunked more than once, and applies it last.
fn check_transfer_encoding(head: &[u8], index: &HeadIndex) -> Result<(), RequestError> {
    let (mut has_unknown, mut is_last_chunked) = (false, false);
    for value in index.values(KnownField::TransferEncoding) {
        for element in value.slice(head).split(|byte| *byte == b',') {
            let coding = field::trim_ows(element);
            let name = coding.split(|byte| *byte == b';').next().unwrap_or_default();
            if !field::is_token(field::trim_ows(name)) {
                // Empty elements are allowed in other lists. Here two readers may interpret them
                // differently.
                return Err(RequestError::TransferEncodingInvalid);
            }
            let is_chunked = coding.eq_ignore_ascii_case(b"chunked");
            if is_last_chunked {
                let error = if is_chunked {
                    RequestError::ChunkedRepeated
                } else {
                    RequestError::ChunkedNotLast
                };
                return Err(error);
            }
            is_last_chunked = is_chunked;
            has_unknown |= !is_chunked;
        }
    }
    match (is_last_chunked, has_unknown) {
        (true, false) => Ok(()),
        // RFC 9112 §6.1: 501 is for a transfer coding that the server does not understand.
        (true, true) => Err(RequestError::TransferCodingUnsupported),
        // RFC 9112 §6.3: if chunked is not the final encoding, the server must answer 400 and
        // close.
        (false, _) => Err(RequestError::ChunkedNotLast),
    }
}

// RFC 9112 §9.3: `close` ends the connection; otherwise HTTP/1.1 persists, and so does HTTP/1.0
// with `keep-alive`.
fn wants_keep_alive(head: &[u8], index: &HeadIndex) -> bool {
    let (mut has_close, mut has_keep_alive) = (false, false);
    for value in index.values(KnownField::Connection) {
        for option in field::split_list(value.slice(head)) {
            has_close |= option.eq_ignore_ascii_case(b"close");
            has_keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }
    !has_close && (index.version == Version::Http11 || has_keep_alive)
}

// RFC 9110 §10.1.1: the only expectation is 100-continue; 417 may answer any other.
fn check_expect(head: &[u8], index: &HeadIndex, framing: &mut Framing) -> Result<(), RequestError> {
    // RFC 9110 §10.1.1: the expectation in an HTTP/1.0 request must be ignored.
    if !index.contains(KnownField::Expect) || index.version == Version::Http10 {
        return Ok(());
    }
    framing.expect_continue = framing.body != BodyLength::None;
    let mut expectations =
        index.values(KnownField::Expect).flat_map(|value| field::split_list(value.slice(head)));
    let is_unknown =
        expectations.any(|expectation| !expectation.eq_ignore_ascii_case(b"100-continue"));
    if is_unknown { Err(RequestError::ExpectationUnknown) } else { Ok(()) }
}
