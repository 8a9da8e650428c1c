//! The authority of a request: host and port.

use crate::field::{self, HOST};
use crate::{HeadIndex, KnownField, RequestError, TargetForm, Version};

/// Sets the authority from the Host field, if there is one. If an HTTP/1 target contains an
/// authority, the field gets that value instead. HTTP/2 rejects requests in which they differ.
// RFC 9112 §3.2: a server must answer 400 to a request with more than one Host field, or with one
// that has an invalid value.
#[inline]
pub(crate) fn set_from_host(head: &[u8], index: &mut HeadIndex) -> Result<(), RequestError> {
    let Some(value) = index.get(KnownField::Host) else { return Ok(()) };
    if index.is_repeated(KnownField::Host) {
        return Err(RequestError::HostRepeated);
    }
    if value.is_empty() {
        // RFC 9110 §4.2.1: an http URI with an empty host must be rejected, and this would be one.
        return Err(RequestError::HostEmpty);
    }
    if !is_host_and_port(value.slice(head)) {
        return Err(RequestError::HostInvalid);
    }
    if index.target_form != TargetForm::Absolute {
        index.authority = value;
    } else if index.version != Version::Http2 {
        // RFC 9112 §3.2.2: the received Host field must be ignored, and be replaced when the
        // request is forwarded. Handlers and proxies read the field, so it is replaced here.
        index.set_host(index.authority);
    }
    Ok(())
}

/// Returns whether `text` is a non-empty host, with an optional port of at most 65,535.
///
/// RFC 3986 §3.2.2 allows percent-encoding in a registered name, but the names of servers never use
/// it: host names consist of letters, digits and hyphens (RFC 1123 §2.1). Such a name is rejected,
/// because types such as `http::Uri` reject it, and implementations may interpret it differently.
// RFC 9110 §7.2: Host = uri-host [ ":" port ].
#[inline]
#[must_use]
pub fn is_host_and_port(text: &[u8]) -> bool {
    let end = text.iter().position(|byte| !field::has_class(*byte, HOST)).unwrap_or(text.len());
    match (end, text.get(end)) {
        (0, Some(b'[')) => is_ip_literal_and_port(text),
        (0, _) => false,
        (_, None) => true,
        (_, Some(b':')) => is_port(&text[end + 1..]),
        _ => false,
    }
}

// RFC 3986 §3.2.3: a port is any number of digits, including none.
fn is_port(text: &[u8]) -> bool {
    let number = text.iter().try_fold(0_u32, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| u32::from(byte - b'0'))?;
        // Capped above the largest port, so that many digits do not overflow.
        Some((sum * 10 + digit).min(1 << 20))
    });
    number.is_some_and(|number| number <= u32::from(u16::MAX))
}

// RFC 3986 §3.2.2: IP-literal = "[" ( IPv6address / IPvFuture ) "]".
#[cold]
fn is_ip_literal_and_port(text: &[u8]) -> bool {
    let Some(close) = text.iter().position(|byte| *byte == b']') else { return false };
    let is_port_valid = match &text[close + 1..] {
        [] => true,
        [b':', port @ ..] => is_port(port),
        _ => false,
    };
    is_port_valid && (is_ipv6(&text[1..close]) || is_ipv_future(&text[1..close]))
}

/// The maximum number of colons in an IPv6 address.
const COLONS_MAX: usize = 8;

fn is_ipv6(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<std::net::Ipv6Addr>().is_ok())
}

// RFC 3986 §3.2.2: IPvFuture = "v" 1*HEXDIG "." 1*( unreserved / sub-delims / ":" ).
fn is_ipv_future(text: &[u8]) -> bool {
    let [b'v' | b'V', rest @ ..] = text else { return false };
    let Some(dot) = rest.iter().position(|byte| *byte == b'.') else { return false };
    let (version, address) = (&rest[..dot], &rest[dot + 1..]);
    let is_version = !version.is_empty() && version.iter().all(u8::is_ascii_hexdigit);
    let is_address = |byte: &u8| field::has_class(*byte, HOST) || *byte == b':';
    // `http::Uri` accepts no more colons than an IPv6 address can have.
    let colons = address.iter().filter(|byte| **byte == b':').count();
    is_version && !address.is_empty() && address.iter().all(is_address) && colons <= COLONS_MAX
}
