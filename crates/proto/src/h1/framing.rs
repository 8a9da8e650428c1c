//! What a complete head means: who is asked, where its content ends, and what comes after.

use crate::field::{self, HOST};
use crate::{BodyLength, HeadIndex, Known, Limits, Reject, TargetForm, Version};

/// Draws the conclusions from a complete head, or refuses it.
#[inline]
pub(super) fn conclude(head: &[u8], limits: &Limits, index: &mut HeadIndex) -> Result<(), Reject> {
    host(head, index)?;
    index.body = BodyLength::None;
    index.keep_alive = index.version == Version::Http11;
    index.expect_continue = false;
    index.upgrade = false;
    const SPECIAL: u64 = Known::ContentLength.bit()
        | Known::TransferEncoding.bit()
        | Known::Connection.bit()
        | Known::Expect.bit();
    if index.present & SPECIAL == 0 {
        return Ok(());
    }
    body_length(head, limits, index)?;
    connection(head, index);
    expectation(head, index)
}

// RFC 9112 §3.2: a server must answer 400 to an HTTP/1.1 request that lacks a Host field, and to any
// request with more than one or with an invalid value.
#[inline]
fn host(head: &[u8], index: &mut HeadIndex) -> Result<(), Reject> {
    let Some(value) = index.find(Known::Host) else {
        return match index.version {
            Version::Http11 => Err(Reject::HostMissing),
            Version::Http10 => Ok(()),
        };
    };
    if index.repeated & Known::Host.bit() != 0 {
        return Err(Reject::HostRepeated);
    }
    if value.is_empty() {
        // RFC 9110 §4.2.1: an http URI with an empty host must be rejected, and this would be one.
        return Err(Reject::HostEmpty);
    }
    if !is_host_and_port(value.of(head)) {
        return Err(Reject::HostInvalid);
    }
    // RFC 9112 §3.2.2: with the absolute form, the received Host field must be ignored.
    if index.form != TargetForm::Absolute {
        index.authority = value;
    }
    Ok(())
}

// RFC 9112 §6.3: how the length of a request's content is found out.
fn body_length(head: &[u8], limits: &Limits, index: &mut HeadIndex) -> Result<(), Reject> {
    if index.has(Known::TransferEncoding) {
        if index.version == Version::Http10 {
            // RFC 9112 §6.1: HTTP/1.0 with Transfer-Encoding must be treated as faulty framing.
            return Err(Reject::EncodingInHttp10);
        }
        if index.has(Known::ContentLength) {
            // RFC 9112 §6.1: a server may reject a request with both, and must close in any case.
            return Err(Reject::LengthAndEncoding);
        }
        transfer_encoding(head, index)?;
        index.body = BodyLength::Chunked;
    } else if let Some(value) = index.find(Known::ContentLength) {
        // RFC 9110 §8.6: a recipient of repeated identical values may reject the message as invalid.
        if index.repeated & Known::ContentLength.bit() != 0 || value.of(head).contains(&b',') {
            return Err(Reject::ContentLengthRepeated);
        }
        let length = decimal(value.of(head))?;
        if length > limits.body_bytes_max {
            return Err(Reject::BodyTooLarge);
        }
        if length > 0 {
            index.body = BodyLength::Exact(length);
        }
    }
    Ok(())
}

// RFC 9110 §8.6: Content-Length is one or more digits, and overflow must be prevented.
fn decimal(text: &[u8]) -> Result<u64, Reject> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(Reject::ContentLengthInvalid);
    }
    text.iter()
        .try_fold(0_u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
        .ok_or(Reject::ContentLengthOverflow)
}

// RFC 9112 §6.1: a sender must not apply chunked more than once, and applies it last.
fn transfer_encoding(head: &[u8], index: &HeadIndex) -> Result<(), Reject> {
    let (mut unknown, mut chunked) = (false, false);
    for value in index.values(Known::TransferEncoding) {
        for element in value.of(head).split(|byte| *byte == b',') {
            let coding = field::trim(element);
            let name = coding.split(|byte| *byte == b';').next().unwrap_or_default();
            if !field::is_token(field::trim(name)) {
                // Empty elements are legal in other lists. Here two readers may differ about them.
                return Err(Reject::EncodingInvalid);
            }
            let is_chunked = coding.eq_ignore_ascii_case(b"chunked");
            if chunked {
                let reject =
                    if is_chunked { Reject::ChunkedRepeated } else { Reject::ChunkedNotLast };
                return Err(reject);
            }
            chunked = is_chunked;
            unknown |= !is_chunked;
        }
    }
    match (chunked, unknown) {
        (true, false) => Ok(()),
        // RFC 9112 §6.1: 501 is for a transfer coding that the server does not understand.
        (true, true) => Err(Reject::EncodingUnknown),
        // RFC 9112 §6.3: if chunked is not the final encoding, the server must answer 400 and close.
        (false, _) => Err(Reject::ChunkedNotLast),
    }
}

// RFC 9112 §9.3: `close` ends the connection; else HTTP/1.1 persists, and HTTP/1.0 with `keep-alive`.
fn connection(head: &[u8], index: &mut HeadIndex) {
    let (mut close, mut keep_alive, mut upgrade) = (false, false, false);
    for value in index.values(Known::Connection) {
        for option in field::list(value.of(head)) {
            close |= option.eq_ignore_ascii_case(b"close");
            keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
            upgrade |= option.eq_ignore_ascii_case(b"upgrade");
        }
    }
    let http11 = index.version == Version::Http11;
    index.keep_alive = !close && (http11 || keep_alive);
    // RFC 9110 §7.8: Upgrade in an HTTP/1.0 request must be ignored, and it comes with the option.
    index.upgrade = http11 && upgrade && index.has(Known::Upgrade);
}

// RFC 9110 §10.1.1: the only expectation is 100-continue; 417 may answer any other.
fn expectation(head: &[u8], index: &mut HeadIndex) -> Result<(), Reject> {
    // RFC 9110 §10.1.1: the expectation in an HTTP/1.0 request must be ignored.
    if !index.has(Known::Expect) || index.version == Version::Http10 {
        return Ok(());
    }
    index.expect_continue = index.body != BodyLength::None;
    for value in index.values(Known::Expect) {
        if field::list(value.of(head)).any(|one| !one.eq_ignore_ascii_case(b"100-continue")) {
            return Err(Reject::ExpectationUnknown);
        }
    }
    Ok(())
}

/// Whether `text` is a host that is not empty, with an optional port of at most 65,535.
// RFC 9110 §7.2: Host = uri-host [ ":" port ].
#[inline]
pub(super) fn is_host_and_port(text: &[u8]) -> bool {
    let end = text.iter().position(|byte| !field::is(*byte, HOST)).unwrap_or(text.len());
    match (end, text.get(end)) {
        (0, Some(b'[')) => is_literal_and_port(text),
        (_, Some(b'%')) => is_encoded_name_and_port(text),
        (0, _) => false,
        (_, None) => true,
        (_, Some(b':')) => is_port(&text[end + 1..]),
        _ => false,
    }
}

// RFC 3986 §3.2.3: a port is any number of digits, none included.
fn is_port(text: &[u8]) -> bool {
    let number = text.iter().try_fold(0_u32, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| u32::from(byte - b'0'))?;
        Some((sum * 10 + digit).min(1 << 20))
    });
    number.is_some_and(|number| number <= u32::from(u16::MAX))
}

// RFC 3986 §3.2.2: a registered name may have percent-encoded bytes.
#[cold]
fn is_encoded_name_and_port(text: &[u8]) -> bool {
    let mut rest = text;
    loop {
        rest = match rest {
            [] => return true,
            [b':', port @ ..] => return is_port(port),
            [b'%', high, low, rest @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                rest
            }
            [byte, rest @ ..] if field::is(*byte, HOST) => rest,
            _ => return false,
        }
    }
}

// RFC 3986 §3.2.2: IP-literal = "[" ( IPv6address / IPvFuture ) "]".
#[cold]
fn is_literal_and_port(text: &[u8]) -> bool {
    let Some(close) = text.iter().position(|byte| *byte == b']') else { return false };
    let port_is_right = match &text[close + 1..] {
        [] => true,
        [b':', port @ ..] => is_port(port),
        _ => false,
    };
    port_is_right && (is_ipv6(&text[1..close]) || is_future_address(&text[1..close]))
}

fn is_ipv6(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<std::net::Ipv6Addr>().is_ok())
}

// RFC 3986 §3.2.2: IPvFuture = "v" 1*HEXDIG "." 1*( unreserved / sub-delims / ":" ).
fn is_future_address(text: &[u8]) -> bool {
    let [b'v' | b'V', rest @ ..] = text else { return false };
    let Some(dot) = rest.iter().position(|byte| *byte == b'.') else { return false };
    let (version, address) = (&rest[..dot], &rest[dot + 1..]);
    let is_version = !version.is_empty() && version.iter().all(u8::is_ascii_hexdigit);
    let is_address = |byte: &u8| field::is(*byte, HOST) || *byte == b':';
    is_version && !address.is_empty() && address.iter().all(is_address)
}
