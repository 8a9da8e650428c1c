//! The PROXY protocol through the public types: tables, and split input.

mod wire;

use peregrine_proto::proxy_protocol::{
    Addresses, ParseResult, ProxyProtocolError, ProxyProtocolHeader, Ssl, parse, tlv_type,
};
use proptest::prelude::*;
use std::net::SocketAddr;
use wire::{binary, line, proxied, ssl, value};

const BYTES_MAX: usize = 4096;

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn header(bytes: &[u8]) -> (usize, ProxyProtocolHeader<'_>) {
    match parse(bytes, BYTES_MAX) {
        Ok(ParseResult::Header(used, header)) => (used, header),
        other => panic!("{other:?} of {}", bytes.escape_ascii()),
    }
}

fn parse_error(bytes: &[u8]) -> ProxyProtocolError {
    match parse(bytes, BYTES_MAX) {
        Err(error) => error,
        other => panic!("{other:?} of {}", bytes.escape_ascii()),
    }
}

#[test]
fn both_versions_carry_addresses_of_both_families() {
    for (source, destination) in [
        ("192.0.2.1:56324", "198.51.100.7:443"),
        ("255.255.255.255:65535", "255.255.255.255:65535"),
        ("0.0.0.0:0", "127.0.0.1:1"),
        ("[2001:db8::1]:56324", "[2001:db8::7]:443"),
    ] {
        let (source, destination) = (address(source), address(destination));
        for (version, bytes) in [
            (1, line(source, destination)),
            (2, proxied(source, destination, &[])),
            (2, proxied(source, destination, &value(tlv_type::NOOP, &[0; 7]))),
        ] {
            let (used, header) = header(&bytes);
            assert_eq!((used, header.version), (bytes.len(), version));
            assert_eq!(header.addresses, Addresses::Inet { source, destination });
        }
    }
}

#[test]
fn malformed_lines_are_rejected() {
    for line_text in [
        "PROXY \r\n",
        "PROXY\t",
        "PROXY TCP4\r\n",
        "PROXY TCP5 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY tcp4 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY UNKNOWNS\r\n",
        "PROXY  TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY TCP4  192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 \r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 \r\n",
        "PROXY TCP4 192.0.2.01 192.0.2.2 1 2\r\n",
        "PROXY TCP4 192.0.2 192.0.2.2 1 2\r\n",
        "PROXY TCP4 ::1 ::1 1 2\r\n",
        "PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n\r\n",
        "PROXY TCP4 192.0.2.1\0 192.0.2.2 1 2\r\n",
    ] {
        if line_text == "PROXY\t" {
            assert_eq!(parse(line_text.as_bytes(), BYTES_MAX), Ok(ParseResult::NotProxy));
            continue;
        }
        assert_eq!(
            parse_error(line_text.as_bytes()),
            ProxyProtocolError::LineInvalid,
            "{line_text:?}"
        );
    }
}

#[test]
fn the_rest_of_the_line_after_unknown_is_ignored() {
    let full_line = "PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n";
    for line in ["PROXY UNKNOWN\r\n", "PROXY UNKNOWN \r\n", full_line] {
        let (used, header) = header(line.as_bytes());
        assert_eq!((used, header.addresses), (line.len(), Addresses::Unknown), "{line:?}");
    }
}

#[test]
fn lines_longer_than_107_bytes_are_rejected() {
    let longest = format!("PROXY UNKNOWN {}\r\n", "x".repeat(107 - 16));
    assert_eq!(header(longest.as_bytes()).0, 107);
    let endless = format!("PROXY UNKNOWN {}", "x".repeat(1000));
    assert_eq!(parse(&endless.as_bytes()[..106], BYTES_MAX), Ok(ParseResult::Incomplete));
    assert_eq!(parse_error(&endless.as_bytes()[..107]), ProxyProtocolError::LineTooLong);
    let too_long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(107 - 15));
    assert_eq!(parse_error(too_long.as_bytes()), ProxyProtocolError::LineTooLong);
}

#[test]
fn other_protocols_are_detected_by_their_first_bytes() {
    for text in [
        "GET / HTTP/1.1\r\n",
        "PRI * HTTP/2.0\r\n",
        "POST",
        "\r\n\r\nGET",
        "\x16\x03\x01",
        "proxy ",
    ] {
        assert_eq!(parse(text.as_bytes(), BYTES_MAX), Ok(ParseResult::NotProxy), "{text:?}");
    }
    for partial in ["", "P", "PROXY", "PROXY ", "\r", "\r\n\r\n", "\r\n\r\n\0\r\nQUIT"] {
        assert_eq!(
            parse(partial.as_bytes(), BYTES_MAX),
            Ok(ParseResult::Incomplete),
            "{partial:?}"
        );
    }
}

#[test]
fn local_connections_of_a_proxy_have_no_addresses() {
    for (family, addresses) in [(0, &b""[..]), (0x11, &[1; 12]), (0x77, &[9; 3])] {
        let bytes = binary(0, family, addresses, &[]);
        let (used, header) = header(&bytes);
        assert_eq!((used, header.addresses), (bytes.len(), Addresses::Local));
        assert_eq!(header.tlvs().count(), 0);
    }
    assert_eq!(header(&binary(1, 0, &[], &[])).1.addresses, Addresses::Unknown);
}

#[test]
fn unix_socket_paths_end_at_the_first_zero() {
    let mut addresses = [0; 216];
    addresses[108..112].copy_from_slice(b"/a/b");
    let bytes = binary(1, 0x31, &addresses, &[]);
    let expected = Addresses::Unix { source: b"", destination: b"/a/b" };
    assert_eq!(header(&bytes).1.addresses, expected);
    let full = [b'x'; 216];
    let bytes = binary(1, 0x31, &full, &[]);
    let expected = Addresses::Unix { source: &full[..108], destination: &full[..108] };
    assert_eq!(header(&bytes).1.addresses, expected);
}

#[test]
fn malformed_headers_of_version_2_are_rejected() {
    let v4 = [0; 12];
    let mut version = binary(1, 0x11, &v4, &[]);
    version[12] = 0x11;
    let checksum = |bytes: &[u8]| binary(1, 0x11, &v4, &value(tlv_type::CRC32C, bytes));
    let two_checksums =
        [value(tlv_type::CRC32C, &[0; 4]), value(tlv_type::CRC32C, &[0; 4])].concat();
    for (name, bytes, expected) in [
        ("version", version, ProxyProtocolError::VersionInvalid),
        ("command", binary(2, 0x11, &v4, &[]), ProxyProtocolError::CommandInvalid),
        ("family", binary(1, 0x41, &v4, &[]), ProxyProtocolError::FamilyInvalid),
        ("transport", binary(1, 0x13, &v4, &[]), ProxyProtocolError::FamilyInvalid),
        ("no transport", binary(1, 0x10, &v4, &[]), ProxyProtocolError::FamilyInvalid),
        ("no addresses", binary(1, 0x11, &[], &[]), ProxyProtocolError::AddressesTruncated),
        ("short IPv4", binary(1, 0x11, &v4[..11], &[]), ProxyProtocolError::AddressesTruncated),
        ("short IPv6", binary(1, 0x21, &[0; 35], &[]), ProxyProtocolError::AddressesTruncated),
        ("short paths", binary(1, 0x31, &[0; 215], &[]), ProxyProtocolError::AddressesTruncated),
        ("half a value", binary(1, 0x11, &v4, &[1, 0]), ProxyProtocolError::TlvInvalid),
        ("long value", binary(1, 0x11, &v4, &[1, 0, 2, 0]), ProxyProtocolError::TlvInvalid),
        (
            "short ssl",
            binary(1, 0x11, &v4, &value(tlv_type::SSL, &[1; 4])),
            ProxyProtocolError::TlvInvalid,
        ),
        ("ssl's", binary(1, 0x11, &v4, &ssl(1, 0, &[1, 0, 9])), ProxyProtocolError::TlvInvalid),
        ("sum of 3 bytes", checksum(&[0; 3]), ProxyProtocolError::ChecksumInvalid),
        ("wrong sum", checksum(&[0; 4]), ProxyProtocolError::ChecksumInvalid),
        ("two sums", binary(1, 0x11, &v4, &two_checksums), ProxyProtocolError::ChecksumInvalid),
        ("too long", binary(1, 0x11, &[0; BYTES_MAX - 15], &[]), ProxyProtocolError::TooLong),
    ] {
        assert_eq!(parse_error(&bytes), expected, "{name}");
    }
    let largest = binary(1, 0x11, &v4, &value(0xe0, &[7; BYTES_MAX - 16 - 12 - 3]));
    assert_eq!(header(&largest).0, BYTES_MAX);
    let huge = binary(1, 0x11, &[0; 65_535], &[]);
    assert_eq!(parse_error(&huge[..16]), ProxyProtocolError::TooLong, "rejected before it arrives");
}

#[test]
fn a_correct_checksum_is_accepted_and_a_flipped_bit_is_rejected() {
    let tlvs = [value(tlv_type::CRC32C, &[0; 4]), value(tlv_type::UNIQUE_ID, b"id")].concat();
    let mut bytes = proxied(address("192.0.2.1:5"), address("192.0.2.2:80"), &tlvs);
    let checksum_start = 16 + 12 + 3;
    let checksum = reference_crc32c(&bytes);
    bytes[checksum_start..checksum_start + 4].copy_from_slice(&checksum.to_be_bytes());
    header(&bytes);
    // The type is not flipped: the checksum would not be recognised as one.
    for at in (16..bytes.len()).filter(|at| *at != checksum_start - 3) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        assert!(parse(&flipped, BYTES_MAX).is_err(), "byte {at}");
    }
    // RFC 3720 §B.4: 32 bytes of zeros.
    assert_eq!(reference_crc32c(&[0; 32]), 0x8a91_36aa);
}

/// CRC32C computed in another way than in the code: division by the polynomial, bit by bit.
fn reference_crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(byte.reverse_bits()) << 24;
        for _ in 0..8 {
            let carry = crc >> 31;
            crc = (crc << 1) ^ (carry * 0x1edc_6f41);
        }
    }
    (!crc).reverse_bits()
}

#[test]
fn tlvs_are_returned_in_order_and_ssl_contains_nested_ones() {
    let nested =
        [value(tlv_type::SSL_VERSION, b"TLSv1.3"), value(tlv_type::SSL_COMMON_NAME, b"me")]
            .concat();
    let tlvs = [
        value(tlv_type::ALPN, b"h2"),
        value(tlv_type::AUTHORITY, b"example.com"),
        ssl(0b011, 0, &nested),
        value(0xea, b"\x01vpce-1"),
        value(tlv_type::UNIQUE_ID, b""),
    ];
    let bytes = proxied(address("192.0.2.1:5"), address("192.0.2.2:80"), &tlvs.concat());
    let (_, header) = header(&bytes);
    let received: Vec<_> = header.tlvs().collect();
    assert_eq!(received.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [1, 2, 0x20, 0xea, 5]);
    assert_eq!(
        (received[0].1, received[1].1, received[3].1),
        (&b"h2"[..], &b"example.com"[..], &b"\x01vpce-1"[..])
    );
    let tls = Ssl::parse(received[2].1).unwrap();
    assert!(tls.is_tls && tls.has_certificate && tls.is_verified);
    let expected = [(tlv_type::SSL_VERSION, &b"TLSv1.3"[..]), (tlv_type::SSL_COMMON_NAME, b"me")];
    assert_eq!(tls.tlvs().collect::<Vec<_>>(), expected);
    for (client, verify, expected) in [
        (0, 0, (false, false, false)),
        (1, 0, (true, false, false)),
        (1, 1, (true, false, false)),
        (0b101, 0, (true, true, true)),
        (0b111, 1, (true, true, false)),
    ] {
        let bytes = ssl(client, verify, &[]);
        let Ssl { is_tls, has_certificate, is_verified, .. } = Ssl::parse(&bytes[3..]).unwrap();
        assert_eq!((is_tls, has_certificate, is_verified), expected, "{client:b} {verify}");
    }
}

/// Compares the results for each prefix of `bytes` with the result for all of them.
fn check_cuts(bytes: &[u8]) -> Result<(), TestCaseError> {
    let expected = parse(bytes, BYTES_MAX);
    for end in 0..bytes.len() {
        let result = parse(&bytes[..end], BYTES_MAX);
        match result {
            Ok(ParseResult::Incomplete) => {}
            // An early result is final.
            result => prop_assert_eq!(result, expected, "{} bytes of {}", end, bytes.len()),
        }
    }
    if let Ok(ParseResult::Header(used, _)) = expected {
        prop_assert_eq!(parse(&bytes[..used - 1], BYTES_MAX), Ok(ParseResult::Incomplete));
        let longer = [bytes, b"GET / HTTP/1.1\r\n"].concat();
        prop_assert_eq!(parse(&longer, BYTES_MAX), expected, "following bytes change nothing");
    }
    Ok(())
}

proptest! {
    #[test]
    fn results_do_not_depend_on_how_bytes_are_split(
        is_line: bool,
        source: [u8; 16],
        is_ipv4: bool,
        ports: (u16, u16),
        tlvs in prop::collection::vec(
            (any::<u8>(), prop::collection::vec(any::<u8>(), 0..40)),
            0..4,
        ),
        mutation in prop::option::of((0_usize..200, any::<u8>())),
    ) {
        let mut ip: std::net::IpAddr = source.into();
        if is_ipv4 {
            ip = [source[0], source[1], source[2], source[3]].into();
        }
        let source = SocketAddr::new(ip, ports.0);
        let destination = SocketAddr::new(ip, ports.1);
        let tlvs: Vec<_> = tlvs.iter().flat_map(|(kind, bytes)| value(*kind, bytes)).collect();
        let mut bytes = match is_line {
            true => line(source, destination),
            false => proxied(source, destination, &tlvs),
        };
        if let Some((at, byte)) = mutation {
            let length = bytes.len();
            bytes[at % length] = byte;
        }
        check_cuts(&bytes)?;
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        tail in prop::collection::vec(any::<u8>(), 0..300),
        is_line: bool,
    ) {
        let start = if is_line { &b"PROXY "[..] } else { b"\r\n\r\n\0\r\nQUIT\n" };
        check_cuts(&[start, &tail].concat())?;
        check_cuts(&tail)?;
    }
}
