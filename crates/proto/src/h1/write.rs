//! Parts of a response as bytes: status lines, fields, numbers.

use crate::field::{self, value_end};

/// Writes the status line. RFC 9112 §4: the reason phrase may be empty, the space before it not.
#[inline]
pub(super) fn write_status_line(status: u16, out: &mut Vec<u8>) {
    match known_status_line(status) {
        Some(line) => out.extend_from_slice(line),
        None => {
            out.extend_from_slice(b"HTTP/1.1 ");
            write_decimal(u64::from(status), out);
            out.extend_from_slice(b" \r\n");
        }
    }
}

/// Writes a field whose name is known to be a token. Bytes not allowed in a value become spaces.
// RFC 9110 §5.5: CR, LF and NUL are dangerous and are to be replaced with SP.
#[inline]
pub(super) fn write_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    let mut remaining = value;
    loop {
        let valid_len = value_end(remaining, 0);
        out.extend_from_slice(&remaining[..valid_len]);
        if valid_len == remaining.len() {
            break;
        }
        out.push(b' ');
        remaining = &remaining[valid_len + 1..];
    }
    out.extend_from_slice(b"\r\n");
}

/// Returns whether a field of this name can be written.
#[inline]
pub(super) fn is_writable_name(name: &[u8]) -> bool {
    field::is_token(name)
}

/// Writes a number in decimal digits.
#[inline]
pub(crate) fn write_decimal(number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; DECIMAL_DIGITS_MAX];
    let (mut at, mut remaining) = (DECIMAL_DIGITS_MAX, number);
    loop {
        at -= 1;
        digits[at] = b'0' + low_byte(remaining % 10);
        remaining /= 10;
        if remaining == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Writes the line before a chunk of this many bytes.
#[inline]
pub(super) fn write_chunk_header(bytes: u64, out: &mut Vec<u8>) {
    let mut line = [0; HEXADECIMAL_DIGITS_MAX];
    let (mut at, mut remaining) = (HEXADECIMAL_DIGITS_MAX, bytes);
    loop {
        at -= 1;
        line[at] = b"0123456789abcdef"[usize::from(low_byte(remaining % 16))];
        remaining /= 16;
        if remaining == 0 {
            break;
        }
    }
    out.extend_from_slice(&line[at..]);
    out.extend_from_slice(b"\r\n");
}

#[expect(clippy::cast_possible_truncation, reason = "the remainder is less than 16")]
fn low_byte(remainder: u64) -> u8 {
    remainder as u8
}

const DECIMAL_DIGITS_MAX: usize = 20;
const HEXADECIMAL_DIGITS_MAX: usize = 16;

macro_rules! status_lines {
    ($($status:literal $reason:literal)*) => {
        /// The whole line of a registered status.
        #[inline]
        const fn known_status_line(status: u16) -> Option<&'static [u8]> {
            Some(match status {
                $($status => concat!("HTTP/1.1 ", $status, " ", $reason, "\r\n").as_bytes(),)*
                _ => return None,
            })
        }
    };
}

status_lines! {
    100 "Continue"
    101 "Switching Protocols"
    102 "Processing"
    103 "Early Hints"
    200 "OK"
    201 "Created"
    202 "Accepted"
    203 "Non-Authoritative Information"
    204 "No Content"
    205 "Reset Content"
    206 "Partial Content"
    207 "Multi-Status"
    208 "Already Reported"
    226 "IM Used"
    300 "Multiple Choices"
    301 "Moved Permanently"
    302 "Found"
    303 "See Other"
    304 "Not Modified"
    305 "Use Proxy"
    307 "Temporary Redirect"
    308 "Permanent Redirect"
    400 "Bad Request"
    401 "Unauthorized"
    402 "Payment Required"
    403 "Forbidden"
    404 "Not Found"
    405 "Method Not Allowed"
    406 "Not Acceptable"
    407 "Proxy Authentication Required"
    408 "Request Timeout"
    409 "Conflict"
    410 "Gone"
    411 "Length Required"
    412 "Precondition Failed"
    413 "Content Too Large"
    414 "URI Too Long"
    415 "Unsupported Media Type"
    416 "Range Not Satisfiable"
    417 "Expectation Failed"
    418 "I'm a teapot"
    421 "Misdirected Request"
    422 "Unprocessable Content"
    423 "Locked"
    424 "Failed Dependency"
    425 "Too Early"
    426 "Upgrade Required"
    428 "Precondition Required"
    429 "Too Many Requests"
    431 "Request Header Fields Too Large"
    451 "Unavailable For Legal Reasons"
    500 "Internal Server Error"
    501 "Not Implemented"
    502 "Bad Gateway"
    503 "Service Unavailable"
    504 "Gateway Timeout"
    505 "HTTP Version Not Supported"
    506 "Variant Also Negotiates"
    507 "Insufficient Storage"
    508 "Loop Detected"
    510 "Not Extended"
    511 "Network Authentication Required"
}

#[cfg(test)]
mod tests {
    use super::{write_chunk_header, write_decimal, write_field, write_status_line};
    use proptest::prelude::*;

    #[test]
    fn an_unregistered_status_has_an_empty_reason() {
        let mut out = Vec::new();
        write_status_line(599, &mut out);
        assert_eq!(out, b"HTTP/1.1 599 \r\n");
    }

    #[test]
    fn a_control_byte_in_a_value_becomes_a_space() {
        let mut out = Vec::new();
        write_field(b"a", b"\r\nb: c\0\td\x7f", &mut out);
        assert_eq!(out, b"a:   b: c \td \r\n");
    }

    proptest! {
        #[test]
        fn numbers_are_written_as_by_the_standard_library(number: u64) {
            let mut out = Vec::new();
            write_decimal(number, &mut out);
            prop_assert_eq!(out, number.to_string().into_bytes());
            let mut out = Vec::new();
            write_chunk_header(number, &mut out);
            prop_assert_eq!(out, format!("{number:x}\r\n").into_bytes());
        }
    }
}
