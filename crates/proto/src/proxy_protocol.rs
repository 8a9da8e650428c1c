//! The PROXY protocol, versions 1 and 2: a header in which a proxy describes the connection that it
//! passes on.
//!
//! The rules are those of HAProxy's `proxy-protocol.txt` (2020/03/05). Each call of [`parse`] gets
//! all bytes received so far, so there is no state between calls. The caller decides which peers to
//! trust.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The first bytes of a header of version 1.
const V1_PREFIX: &[u8] = b"PROXY ";

/// The first bytes of a header of version 2.
const V2_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// The longest header of version 1, including its line end.
const V1_LINE_BYTES_MAX: usize = 107;

/// The size of the fixed part of a version 2 header, before the addresses.
const V2_HEADER_BYTES: usize = 16;

/// The size of the path of a Unix domain socket, padded with zeros.
const UNIX_PATH_BYTES: usize = 108;

/// The result of [`parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseResult<'b> {
    /// The bytes are the beginning of a header: more are needed.
    Incomplete,
    /// The connection begins with something else.
    NotProxy,
    /// A header, and its length in bytes.
    Header(usize, ProxyProtocolHeader<'b>),
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyProtocolHeader<'b> {
    /// 1 or 2.
    pub version: u8,
    /// The addresses of the connection.
    pub addresses: Addresses<'b>,
    /// The TLVs after the addresses, checked but not interpreted.
    tlvs: &'b [u8],
}

/// Both ends of the connection that the proxy accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses<'b> {
    /// The proxy's own connection, for example a health check.
    Local,
    /// The proxy does not provide addresses.
    Unknown,
    /// IP addresses.
    Inet {
        /// The client.
        source: SocketAddr,
        /// The address that the client connected to.
        destination: SocketAddr,
    },
    /// Unix domain sockets, without the zeros after their paths.
    Unix {
        /// The client's path, which is usually empty.
        source: &'b [u8],
        /// The path that the client connected to.
        destination: &'b [u8],
    },
}

/// Why a header is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProxyProtocolError {
    /// A header is required, and the connection begins with something else.
    NotProxy,
    /// The line of version 1 is longer than 107 bytes.
    LineTooLong,
    /// The line of version 1 is not the protocol, two addresses and two ports, separated by single
    /// spaces.
    LineInvalid,
    /// The header of version 2 is longer than the limit.
    TooLong,
    /// The version is not 2, although the header has the signature of version 2.
    VersionInvalid,
    /// The command is neither LOCAL nor PROXY.
    CommandInvalid,
    /// The address family or its transport is unknown.
    FamilyInvalid,
    /// The header ends before its addresses do.
    AddressesTruncated,
    /// A TLV exceeds the header, or bytes are left after the last TLV.
    TlvInvalid,
    /// The checksum is wrong or occurs twice.
    ChecksumInvalid,
}

/// Types of TLVs, as returned by [`ProxyProtocolHeader::tlvs`].
pub mod tlv_type {
    /// The application protocol negotiated by client and proxy (ALPN).
    pub const ALPN: u8 = 0x01;
    /// The host requested by the client (SNI), in UTF-8.
    pub const AUTHORITY: u8 = 0x02;
    /// CRC32C of the header, computed with zeros in place of the checksum.
    pub const CRC32C: u8 = 0x03;
    /// Padding, which has no meaning.
    pub const NOOP: u8 = 0x04;
    /// The proxy's ID for the connection, at most 128 bytes.
    pub const UNIQUE_ID: u8 = 0x05;
    /// The client's TLS: see [`Ssl`](super::Ssl).
    pub const SSL: u8 = 0x20;
    /// Inside of `SSL`: the version, as text.
    pub const SSL_VERSION: u8 = 0x21;
    /// Inside of `SSL`: the common name of the client's certificate, in UTF-8.
    pub const SSL_COMMON_NAME: u8 = 0x22;
    /// Inside of `SSL`: the cipher, as text.
    pub const SSL_CIPHER: u8 = 0x23;
}

/// The value of the type `SSL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ssl<'b> {
    /// Whether the client connected over TLS.
    pub is_tls: bool,
    /// Whether the client sent a certificate, over this connection or an earlier one of the same
    /// TLS session.
    pub has_certificate: bool,
    /// Whether the client sent a certificate that was verified.
    pub is_verified: bool,
    values: &'b [u8],
}

/// Reads the beginning of a connection. `bytes` is everything received so far, and `bytes_max` is
/// the longest accepted header of version 2.
///
/// # Errors
/// The connection begins like a header, but violates a rule.
pub fn parse(bytes: &[u8], bytes_max: usize) -> Result<ParseResult<'_>, ProxyProtocolError> {
    if bytes.starts_with(V1_PREFIX) {
        return parse_v1(bytes);
    }
    if bytes.starts_with(V2_SIGNATURE) {
        return parse_v2(bytes, bytes_max);
    }
    let is_partial = V1_PREFIX.starts_with(bytes) || V2_SIGNATURE.starts_with(bytes);
    Ok(if is_partial { ParseResult::Incomplete } else { ParseResult::NotProxy })
}

/// Parses a header of version 1: a line.
fn parse_v1(bytes: &[u8]) -> Result<ParseResult<'_>, ProxyProtocolError> {
    let prefix = &bytes[..bytes.len().min(V1_LINE_BYTES_MAX)];
    let Some(end) = prefix.windows(2).position(|pair| pair == b"\r\n") else {
        return match prefix.len() {
            V1_LINE_BYTES_MAX => Err(ProxyProtocolError::LineTooLong),
            _ => Ok(ParseResult::Incomplete),
        };
    };
    let line = std::str::from_utf8(&bytes[V1_PREFIX.len()..end])
        .map_err(|_| ProxyProtocolError::LineInvalid)?;
    let addresses = parse_v1_line(line).ok_or(ProxyProtocolError::LineInvalid)?;
    Ok(ParseResult::Header(end + 2, ProxyProtocolHeader { version: 1, addresses, tlvs: &[] }))
}

fn parse_v1_line(line: &str) -> Option<Addresses<'static>> {
    let mut fields = line.split(' ');
    let is_ipv4 = match fields.next()? {
        "TCP4" => true,
        "TCP6" => false,
        // The rest of the line must be ignored.
        "UNKNOWN" => return Some(Addresses::Unknown),
        _ => return None,
    };
    let mut parse_address = || -> Option<IpAddr> {
        let field = fields.next()?;
        if is_ipv4 {
            field.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
        } else {
            field.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
        }
    };
    let (source, destination) = (parse_address()?, parse_address()?);
    let (source_port, destination_port) =
        (parse_port(fields.next()?)?, parse_port(fields.next()?)?);
    fields.next().is_none().then(|| Addresses::Inet {
        source: SocketAddr::new(source, source_port),
        destination: SocketAddr::new(destination, destination_port),
    })
}

/// Parses a port, which has no sign and no leading zeros.
fn parse_port(text: &str) -> Option<u16> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let is_plain = is_number && (text == "0" || !text.starts_with('0'));
    is_plain.then(|| text.parse().ok())?
}

/// Parses a header of version 2: a fixed part, addresses, TLVs.
fn parse_v2(bytes: &[u8], bytes_max: usize) -> Result<ParseResult<'_>, ProxyProtocolError> {
    let Some(fixed_header) = bytes.first_chunk::<V2_HEADER_BYTES>() else {
        return Ok(ParseResult::Incomplete);
    };
    let [.., command, family, high, low] = *fixed_header;
    let length = usize::from(u16::from_be_bytes([high, low]));
    let total = V2_HEADER_BYTES + length;
    if command >> 4 != 2 {
        return Err(ProxyProtocolError::VersionInvalid);
    }
    if total > bytes_max {
        return Err(ProxyProtocolError::TooLong);
    }
    let is_local = match command & 0xf {
        0 => true,
        1 => false,
        _ => return Err(ProxyProtocolError::CommandInvalid),
    };
    let Some(header) = bytes.get(..total) else { return Ok(ParseResult::Incomplete) };
    let payload = &header[V2_HEADER_BYTES..];
    // The addresses of a proxy's own connection are ignored.
    let (addresses, tlvs) =
        if is_local { (Addresses::Local, &[][..]) } else { parse_v2_addresses(family, payload)? };
    check_tlvs(header, tlvs)?;
    Ok(ParseResult::Header(total, ProxyProtocolHeader { version: 2, addresses, tlvs }))
}

/// Parses the addresses. Returns them, and the TLVs after them.
fn parse_v2_addresses(
    family: u8,
    payload: &[u8],
) -> Result<(Addresses<'_>, &[u8]), ProxyProtocolError> {
    // The transport may be DGRAM: an HTTP/3 client sends datagrams to the proxy, which forwards a
    // stream.
    let (addresses, tlvs) = match family {
        0x00 => return Ok((Addresses::Unknown, payload)),
        0x11 | 0x12 => {
            let (block, tlvs) =
                payload.split_first_chunk::<12>().ok_or(ProxyProtocolError::AddressesTruncated)?;
            let [a, b, c, d, e, f, g, h, i, j, k, l] = *block;
            let source = (Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([i, j]));
            let destination = (Ipv4Addr::new(e, f, g, h), u16::from_be_bytes([k, l]));
            (inet_addresses(source, destination), tlvs)
        }
        0x21 | 0x22 => {
            let truncated = ProxyProtocolError::AddressesTruncated;
            let (source, payload) = payload.split_first_chunk::<16>().ok_or(truncated)?;
            let (destination, payload) = payload.split_first_chunk::<16>().ok_or(truncated)?;
            let (ports, tlvs) = payload.split_first_chunk::<4>().ok_or(truncated)?;
            let [a, b, c, d] = *ports;
            let source = (Ipv6Addr::from(*source), u16::from_be_bytes([a, b]));
            let destination = (Ipv6Addr::from(*destination), u16::from_be_bytes([c, d]));
            (inet_addresses(source, destination), tlvs)
        }
        0x31 | 0x32 => {
            let split_payload = payload
                .split_at_checked(2 * UNIX_PATH_BYTES)
                .ok_or(ProxyProtocolError::AddressesTruncated)?;
            let (source, destination) = split_payload.0.split_at(UNIX_PATH_BYTES);
            (
                Addresses::Unix {
                    source: trim_unix_path(source),
                    destination: trim_unix_path(destination),
                },
                split_payload.1,
            )
        }
        _ => return Err(ProxyProtocolError::FamilyInvalid),
    };
    Ok((addresses, tlvs))
}

fn inet_addresses(
    source: (impl Into<IpAddr>, u16),
    destination: (impl Into<IpAddr>, u16),
) -> Addresses<'static> {
    Addresses::Inet { source: source.into(), destination: destination.into() }
}

/// A path without the zeros after it. Linux's abstract names begin with a zero and are not paths.
fn trim_unix_path(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    &bytes[..end]
}

/// Checks that the TLVs are complete, and the checksum if there is one.
fn check_tlvs(header: &[u8], tlvs: &[u8]) -> Result<(), ProxyProtocolError> {
    let mut remaining = tlvs;
    let mut checksum = None;
    while !remaining.is_empty() {
        let (tlv_kind, value, rest) = split_tlv(remaining).ok_or(ProxyProtocolError::TlvInvalid)?;
        match tlv_kind {
            tlv_type::CRC32C => {
                let expected = value.first_chunk::<4>().filter(|_| value.len() == 4);
                let expected =
                    u32::from_be_bytes(*expected.ok_or(ProxyProtocolError::ChecksumInvalid)?);
                let end = header.len() - rest.len();
                if checksum.replace((expected, end - 4..end)).is_some() {
                    return Err(ProxyProtocolError::ChecksumInvalid);
                }
            }
            tlv_type::SSL if Ssl::parse(value).is_none() => {
                return Err(ProxyProtocolError::TlvInvalid);
            }
            _ => {}
        }
        remaining = rest;
    }
    match checksum {
        Some((expected, range)) => {
            let bytes = header.iter().enumerate();
            let zeroed = bytes.map(|(index, byte)| if range.contains(&index) { 0 } else { *byte });
            if crc32c(zeroed) == expected {
                Ok(())
            } else {
                Err(ProxyProtocolError::ChecksumInvalid)
            }
        }
        None => Ok(()),
    }
}

/// Splits off the first TLV: its type, its value, and the bytes after it.
fn split_tlv(tlvs: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let ([tlv_kind, high, low], rest) = tlvs.split_first_chunk::<3>()?;
    let (value, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes([*high, *low])))?;
    Some((*tlv_kind, value, rest))
}

/// Iterates over TLVs that are known to be complete.
fn iter_tlvs(mut tlvs: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (tlv_kind, value, rest) = split_tlv(tlvs)?;
        tlvs = rest;
        Some((tlv_kind, value))
    })
}

/// CRC32C (RFC 9260, appendix A), bit by bit: a header is short and arrives only once per
/// connection, so a lookup table is not worthwhile.
fn crc32c(bytes: impl Iterator<Item = u8>) -> u32 {
    let remainder = bytes.fold(u32::MAX, |mut sum, byte| {
        sum ^= u32::from(byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ if sum & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
        sum
    });
    !remainder
}

impl<'b> ProxyProtocolHeader<'b> {
    /// The TLVs after the addresses, in order: the type ([`tlv_type`]) and the value of each.
    pub fn tlvs(&self) -> impl Iterator<Item = (u8, &'b [u8])> + use<'b> {
        iter_tlvs(self.tlvs)
    }
}

impl<'b> Ssl<'b> {
    /// Parses the value of a TLV of type [`tlv_type::SSL`].
    #[must_use]
    pub fn parse(value: &'b [u8]) -> Option<Self> {
        let ([client, verify @ ..], values) = value.split_first_chunk::<5>()?;
        let mut rest = values;
        while !rest.is_empty() {
            rest = split_tlv(rest)?.2;
        }
        let has_certificate = client & 0b110 != 0;
        Some(Self {
            is_tls: client & 1 != 0,
            has_certificate,
            is_verified: has_certificate && *verify == [0; 4],
            values,
        })
    }

    /// The nested TLVs, in order.
    pub fn tlvs(&self) -> impl Iterator<Item = (u8, &'b [u8])> + use<'b> {
        iter_tlvs(self.values)
    }
}

impl fmt::Display for ProxyProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotProxy => "the connection does not begin with a PROXY header",
            Self::LineTooLong => "the PROXY line is longer than 107 bytes",
            Self::LineInvalid => "the PROXY line is malformed",
            Self::TooLong => "the PROXY header exceeds the limit",
            Self::VersionInvalid => "the version of the PROXY header is unknown",
            Self::CommandInvalid => "the command of the PROXY header is unknown",
            Self::FamilyInvalid => "the address family of the PROXY header is unknown",
            Self::AddressesTruncated => "the PROXY header ends before its addresses do",
            Self::TlvInvalid => "a value of the PROXY header is malformed",
            Self::ChecksumInvalid => "the checksum of the PROXY header is wrong",
        })
    }
}
