//! Recognises the protocol of a connection by its first bytes.
//!
//! Users type `http://` instead of `https://`, and scanners send arbitrary bytes. Such a client
//! cannot read a TLS alert, and needs no memory for a TLS connection.

use crate::limits::SNIFFED_METHOD_BYTES_MAX;

/// The recognised protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SniffedProtocol {
    /// More bytes are needed; there are fewer than [`SNIFFED_METHOD_BYTES_MAX`] so far.
    NeedMore,
    /// A TLS record.
    Tls,
    /// An HTTP request, or the HTTP/2 connection preface, in clear text.
    PlainHttp,
    /// Neither.
    Unknown,
}

/// Recognises the protocol by the first bytes of a connection.
pub(crate) fn sniff(first: &[u8]) -> SniffedProtocol {
    match first {
        [] => SniffedProtocol::NeedMore,
        // RFC 8446 §5.1: content types are change_cipher_spec (20) to application_data (23). rustls
        // checks which of them may come first, and sends the right alert.
        [20..=23, ..] => SniffedProtocol::Tls,
        [b'A'..=b'Z', ..] => sniff_http_method(first),
        _ => SniffedProtocol::Unknown,
    }
}

/// Checks whether the bytes begin with a method and a space.
fn sniff_http_method(first: &[u8]) -> SniffedProtocol {
    // RFC 9112 §3: a request line begins with a method and a single space. All registered methods
    // consist of capital letters and hyphens, and so does the PRI of the HTTP/2 connection preface.
    let is_method_byte = |byte: &u8| byte.is_ascii_uppercase() || *byte == b'-';
    match first.iter().take(SNIFFED_METHOD_BYTES_MAX + 1).position(|byte| !is_method_byte(byte)) {
        Some(end) if first[end] == b' ' => SniffedProtocol::PlainHttp,
        Some(_) => SniffedProtocol::Unknown,
        None if first.len() <= SNIFFED_METHOD_BYTES_MAX => SniffedProtocol::NeedMore,
        None => SniffedProtocol::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::{SniffedProtocol, sniff};

    #[test]
    fn the_first_bytes_identify_the_protocol() {
        let table: &[(&[u8], SniffedProtocol)] = &[
            (b"", SniffedProtocol::NeedMore),
            (b"\x16", SniffedProtocol::Tls),
            (b"\x15\x03\x03", SniffedProtocol::Tls),
            (b"\x80\x2e\x01\x00\x02", SniffedProtocol::Unknown),
            (b"\x00", SniffedProtocol::Unknown),
            (b"\x13", SniffedProtocol::Unknown),
            (b"\x18", SniffedProtocol::Unknown),
            (b"G", SniffedProtocol::NeedMore),
            (b"GET", SniffedProtocol::NeedMore),
            (b"GET ", SniffedProtocol::PlainHttp),
            (b"GET / HTTP/1.1\r\n", SniffedProtocol::PlainHttp),
            (b"VERSION-CONTROL ", SniffedProtocol::PlainHttp),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", SniffedProtocol::PlainHttp),
            (b"GET\t/", SniffedProtocol::Unknown),
            (b"SSH-2.0-OpenSSH_9.6\r\n", SniffedProtocol::Unknown),
            (b"get / HTTP/1.1\r\n", SniffedProtocol::Unknown),
            (b" GET /", SniffedProtocol::Unknown),
            (b"AAAAAAAAAAAAAAAAAAAAAAAA", SniffedProtocol::NeedMore),
            (b"AAAAAAAAAAAAAAAAAAAAAAAA ", SniffedProtocol::PlainHttp),
            (b"AAAAAAAAAAAAAAAAAAAAAAAAA", SniffedProtocol::Unknown),
            (b"AAAAAAAAAAAAAAAAAAAAAAAAA ", SniffedProtocol::Unknown),
        ];
        for (first, expected) in table {
            assert_eq!(sniff(first), *expected, "{}", first.escape_ascii());
        }
    }

    #[test]
    fn more_bytes_do_not_change_the_identified_protocol() {
        for input in [&b"OPTIONS * HTTP/1.1\r\n"[..], b"EHLO mail\r\n", b"A-Z~", b"\x16\x03\x01"] {
            let results: Vec<_> = (0..=input.len()).map(|end| sniff(&input[..end])).collect();
            let decided =
                results.iter().find(|result| **result != SniffedProtocol::NeedMore).unwrap();
            assert!(
                results
                    .iter()
                    .all(|result| result == decided || *result == SniffedProtocol::NeedMore)
            );
            assert_eq!(results.last(), Some(decided));
        }
    }
}
