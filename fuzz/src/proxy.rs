//! The target for the PROXY protocol.

use crate::proxy_wire::{binary, line, proxied, ssl, value};
use peregrine_proto::proxy_protocol::{ParseResult, Ssl, parse, tlv_type};

/// The longest header that is read.
const BYTES_MAX: usize = 512;

/// The first bytes of a connection. Splitting does not change the result, only received bytes are
/// consumed, and TLVs lie inside the header.
pub fn proxy(data: &[u8]) {
    let expected = parse(data, BYTES_MAX);
    for end in 0..data.len() {
        let result = parse(&data[..end], BYTES_MAX);
        assert!(
            result == Ok(ParseResult::Incomplete) || result == expected,
            "an early result does not change"
        );
    }
    let Ok(ParseResult::Header(used, header)) = expected else { return };
    assert!(used <= data.len() && used <= BYTES_MAX.max(107), "only received bytes are consumed");
    let tlv_bytes: usize = header.tlvs().map(|(_, value)| value.len() + 3).sum();
    assert!(tlv_bytes <= used, "values lie inside the header");
    for (_, value) in header.tlvs().filter(|(kind, _)| *kind == tlv_type::SSL) {
        let nested = Ssl::parse(value).expect("the TLV was validated").tlvs();
        assert!(nested.map(|(_, value)| value.len() + 3).sum::<usize>() + 5 == value.len());
    }
}

/// The initial inputs for mutation.
///
/// # Panics
///
/// If an address below is invalid.
#[must_use]
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let address = |text: &str| text.parse().expect("an address");
    let (v4, v6) = (address("192.0.2.1:56324"), address("[2001:db8::1]:443"));
    let tls = ssl(3, 0, &value(tlv_type::SSL_VERSION, b"TLSv1.3"));
    let tlvs =
        [value(tlv_type::ALPN, b"h2"), value(tlv_type::AUTHORITY, b"a.example"), tls].concat();
    vec![
        line(v4, v4),
        line(v6, v6),
        b"PROXY UNKNOWN\r\n".to_vec(),
        b"PROXY UNKNOWN a b c d\r\nGET / HTTP/1.1\r\n\r\n".to_vec(),
        proxied(v4, v4, &[]),
        proxied(v6, v6, &[]),
        proxied(v4, v4, &tlvs),
        proxied(
            v6,
            v6,
            &[value(tlv_type::NOOP, &[0; 9]), value(tlv_type::UNIQUE_ID, b"1")].concat(),
        ),
        proxied(v4, v4, &value(tlv_type::CRC32C, &[0; 4])),
        binary(0, 0, &[], &[]),
        binary(1, 0, &[], &tlvs),
        binary(1, 0x31, &[b'/'; 216], &tlvs),
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
    ]
}
