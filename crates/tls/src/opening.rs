//! Recognises the protocol of a connection by its first bytes.
//!
//! Users type `http://` instead of `https://`, and scanners send anything. Neither needs a TLS
//! alert, which it cannot read, or the memory of a TLS connection.

use crate::limits::METHOD_BYTES_MAX;

/// The recognised protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// More bytes are needed; there are fewer than [`METHOD_BYTES_MAX`] so far.
    Unsure,
    /// A TLS record.
    Tls,
    /// An HTTP request, or the HTTP/2 connection preface, in clear text.
    PlainHttp,
    /// Neither.
    Unknown,
}

/// Recognises the protocol by the first bytes of a connection.
pub(crate) fn judge(first: &[u8]) -> Opening {
    match first {
        [] => Opening::Unsure,
        // RFC 8446 §5.1: content types are change_cipher_spec (20) to application_data (23). rustls
        // checks which of them may come first, and sends the right alert.
        [20..=23, ..] => Opening::Tls,
        [b'A'..=b'Z', ..] => judge_method(first),
        _ => Opening::Unknown,
    }
}

/// Checks whether the bytes begin with a method and a space.
fn judge_method(first: &[u8]) -> Opening {
    // RFC 9112 §3: a request line begins with a method and a single space. All registered methods
    // consist of capital letters and hyphens, and so does the PRI of the HTTP/2 connection preface.
    let is_method_byte = |byte: &u8| byte.is_ascii_uppercase() || *byte == b'-';
    match first.iter().take(METHOD_BYTES_MAX + 1).position(|byte| !is_method_byte(byte)) {
        Some(end) if first[end] == b' ' => Opening::PlainHttp,
        Some(_) => Opening::Unknown,
        None if first.len() <= METHOD_BYTES_MAX => Opening::Unsure,
        None => Opening::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::{Opening, judge};

    #[test]
    fn the_first_bytes_tell_the_protocol() {
        let table: &[(&[u8], Opening)] = &[
            (b"", Opening::Unsure),
            (b"\x16", Opening::Tls),
            (b"\x15\x03\x03", Opening::Tls),
            (b"\x80\x2e\x01\x00\x02", Opening::Unknown),
            (b"\x00", Opening::Unknown),
            (b"\x13", Opening::Unknown),
            (b"\x18", Opening::Unknown),
            (b"G", Opening::Unsure),
            (b"GET", Opening::Unsure),
            (b"GET ", Opening::PlainHttp),
            (b"GET / HTTP/1.1\r\n", Opening::PlainHttp),
            (b"VERSION-CONTROL ", Opening::PlainHttp),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Opening::PlainHttp),
            (b"GET\t/", Opening::Unknown),
            (b"SSH-2.0-OpenSSH_9.6\r\n", Opening::Unknown),
            (b"get / HTTP/1.1\r\n", Opening::Unknown),
            (b" GET /", Opening::Unknown),
            (b"AAAAAAAAAAAAAAAAAAAAAAAA", Opening::Unsure),
            (b"AAAAAAAAAAAAAAAAAAAAAAAA ", Opening::PlainHttp),
            (b"AAAAAAAAAAAAAAAAAAAAAAAAA", Opening::Unknown),
            (b"AAAAAAAAAAAAAAAAAAAAAAAAA ", Opening::Unknown),
        ];
        for (first, expected) in table {
            assert_eq!(judge(first), *expected, "{}", first.escape_ascii());
        }
    }

    #[test]
    fn a_judgement_once_made_does_not_change() {
        for whole in [&b"OPTIONS * HTTP/1.1\r\n"[..], b"EHLO mail\r\n", b"A-Z~", b"\x16\x03\x01"] {
            let judgements: Vec<_> = (0..=whole.len()).map(|end| judge(&whole[..end])).collect();
            let made = judgements.iter().find(|made| **made != Opening::Unsure).unwrap();
            assert!(judgements.iter().all(|later| later == made || *later == Opening::Unsure));
            assert_eq!(judgements.last(), Some(made));
        }
    }
}
