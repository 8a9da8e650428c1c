//! Writes headers of the PROXY protocol, as a proxy does.

use std::net::SocketAddr;

/// Writes a header of version 1.
pub(crate) fn line(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let family = if source.is_ipv4() { "TCP4" } else { "TCP6" };
    let (source_ip, destination_ip) = (source.ip(), destination.ip());
    format!(
        "PROXY {family} {source_ip} {destination_ip} {} {}\r\n",
        source.port(),
        destination.port()
    )
    .into_bytes()
}

/// Writes a header of version 2 from its parts.
pub(crate) fn binary(command: u8, family: u8, addresses: &[u8], tlvs: &[u8]) -> Vec<u8> {
    let length = u16::try_from(addresses.len() + tlvs.len()).expect("short");
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    header.extend([0x20 | command, family]);
    header.extend(length.to_be_bytes());
    header.extend(addresses);
    header.extend(tlvs);
    header
}

/// Writes a header of version 2 for a TCP connection, with these TLVs.
pub(crate) fn proxied(source: SocketAddr, destination: SocketAddr, tlvs: &[u8]) -> Vec<u8> {
    let mut addresses = Vec::new();
    let mut family = 0x11;
    for address in [source, destination] {
        match address {
            SocketAddr::V4(address) => addresses.extend(address.ip().octets()),
            SocketAddr::V6(address) => {
                family = 0x21;
                addresses.extend(address.ip().octets());
            }
        }
    }
    for address in [source, destination] {
        addresses.extend(address.port().to_be_bytes());
    }
    binary(1, family, &addresses, tlvs)
}

/// Writes a TLV.
pub(crate) fn value(tlv_type: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("short").to_be_bytes();
    [&[tlv_type], &length[..], bytes].concat()
}

/// Writes the TLV that describes TLS between client and proxy.
pub(crate) fn ssl(client: u8, verify: u32, tlvs: &[u8]) -> Vec<u8> {
    value(0x20, &[&[client], &verify.to_be_bytes()[..], tlvs].concat())
}
