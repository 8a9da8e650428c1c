//! Reads a client's identity from its certificate.

use crate::der::{TAG_OBJECT_IDENTIFIER, TAG_SEQUENCE, TAG_SET, iter, read_any, read_tagged};
use crate::handshake_info::PeerCertificate;
use crate::inspect::find_extension;
use crate::sha256::sha256;
use crate::x509::{TbsCertificate, parse_tbs_certificate};
use rustls_pki_types::CertificateDer;
use std::fmt::Write;
use std::net::IpAddr;

/// Parses the identity in a verified chain; `None` if the chain is empty.
pub(crate) fn parse(chain: &[CertificateDer<'_>]) -> Option<PeerCertificate> {
    let end_entity = chain.first()?;
    let mut identity = PeerCertificate {
        fingerprint: sha256(end_entity),
        chain: chain.iter().map(|certificate| certificate.to_vec()).collect(),
        ..PeerCertificate::default()
    };
    if let Some(TbsCertificate { serial, validity, subject, after_subject }) =
        parse_tbs_certificate(end_entity)
    {
        identity.serial = serial.to_vec();
        identity.not_after = validity.not_after;
        identity.subject = rfc4514_string(subject);
        identity.common_name = common_name(subject);
        if let Some(names) = subject_alt_name_extension(after_subject) {
            parse_subject_alt_names(names, &mut identity);
        }
    }
    Some(identity)
}

// RFC 5280 §4.2.1.6: the object identifier 2.5.29.17.
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];

/// Returns the content of the extension subjectAltName. `after_subject` is the part of the
/// certificate after the subject.
fn subject_alt_name_extension(after_subject: &[u8]) -> Option<&[u8]> {
    read_tagged(find_extension(after_subject, SUBJECT_ALT_NAME)?, TAG_SEQUENCE)
        .map(|(names, _)| names)
}

fn parse_subject_alt_names(names: &[u8], identity: &mut PeerCertificate) {
    for (tag, content) in iter(names) {
        // RFC 5280 §4.2.1.6: email, DNS and URI names are ASCII. Skip names that contain anything
        // else, above all NUL, because they could be mistaken for another name.
        let is_printable = content.iter().all(u8::is_ascii_graphic) && !content.is_empty();
        let text = || String::from_utf8_lossy(content).into_owned();
        match (tag, is_printable) {
            (0x81, true) => identity.emails.push(text()),
            (0x82, true) => identity.dns_names.push(text().to_ascii_lowercase()),
            (0x86, true) => identity.uris.push(text()),
            (0x87, _) => identity.addresses.extend(parse_ip_address(content)),
            _ => {}
        }
    }
}

fn parse_ip_address(content: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(content).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(content).map(IpAddr::from)).ok()
}

// RFC 4514 §3: the attributes with short names.
const ATTRIBUTES: &[(&[u8], &str)] = &[
    (COMMON_NAME, "CN"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 9], "STREET"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25], "DC"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1], "UID"),
];

const COMMON_NAME: &[u8] = &[0x55, 4, 3];

/// Returns the attributes of one part of a name (RelativeDistinguishedName): OID, tag and value.
fn rdn_attributes(rdn: &[u8]) -> impl Iterator<Item = (&[u8], u8, &[u8])> {
    iter(rdn).filter_map(|(_, attribute)| {
        let (oid, value) = read_tagged(attribute, TAG_OBJECT_IDENTIFIER)?;
        let (tag, value, _) = read_any(value)?;
        Some((oid, tag, value))
    })
}

fn common_name(subject: &[u8]) -> Option<String> {
    let rdns = iter(subject).filter(|(tag, _)| *tag == TAG_SET);
    let mut names = rdns.flat_map(|(_, rdn)| rdn_attributes(rdn));
    names.find_map(|(oid, tag, value)| (oid == COMMON_NAME).then(|| decode_string(tag, value))?)
}

/// Formats a name according to RFC 4514.
fn rfc4514_string(subject: &[u8]) -> String {
    let rdns: Vec<_> = iter(subject).filter(|(tag, _)| *tag == TAG_SET).collect();
    let mut name = String::new();
    // RFC 4514 §2.1: the last part of the sequence is written first.
    for (_, rdn) in rdns.into_iter().rev() {
        for (index, (oid, tag, value)) in rdn_attributes(rdn).enumerate() {
            if !name.is_empty() {
                name.push(if index == 0 { ',' } else { '+' });
            }
            let attribute = ATTRIBUTES.iter().find(|(known_oid, _)| *known_oid == oid);
            match (attribute, decode_string(tag, value)) {
                (Some((_, short_name)), Some(text)) => {
                    let _ = write!(name, "{short_name}=");
                    escape_rfc4514(&text, &mut name);
                }
                _ => {
                    // RFC 4514 §2.4: the value of an attribute without a short name is written in
                    // hexadecimal.
                    let _ = write!(name, "{}=#", oid_to_string(oid));
                    let _ = write!(name, "{tag:02x}");
                    write_length(value.len(), &mut name);
                    for byte in value {
                        let _ = write!(name, "{byte:02x}");
                    }
                }
            }
        }
    }
    name
}

/// Writes a DER length in hexadecimal.
fn write_length(length: usize, out: &mut String) {
    let _ = match length {
        0..0x80 => write!(out, "{length:02x}"),
        0x80..0x100 => write!(out, "81{length:02x}"),
        0x100..0x1_0000 => write!(out, "82{length:04x}"),
        _ => write!(out, "83{length:06x}"),
    };
}

/// Decodes a string of one of the types used in names.
fn decode_string(tag: u8, value: &[u8]) -> Option<String> {
    match tag {
        // UTF8String, and the types that are ASCII.
        0x0c | 0x12 | 0x13 | 0x16 | 0x1a => std::str::from_utf8(value).ok().map(str::to_owned),
        // TeletexString contains Latin-1 in practice.
        0x14 => Some(value.iter().map(|byte| char::from(*byte)).collect()),
        // BMPString.
        0x1e if value.len().is_multiple_of(2) => {
            let units = value.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
            char::decode_utf16(units).collect::<Result<_, _>>().ok()
        }
        _ => None,
    }
}

/// RFC 4514 §2.4: special characters are escaped. Control characters are escaped as well, so that a
/// name takes a single line in a log.
fn escape_rfc4514(text: &str, out: &mut String) {
    let last_index = text.chars().count().saturating_sub(1);
    for (index, character) in text.chars().enumerate() {
        match character {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' | '=' => {
                out.push('\\');
                out.push(character);
            }
            '#' if index == 0 => out.push_str("\\#"),
            ' ' if index == 0 || index == last_index => out.push_str("\\ "),
            control if control.is_control() => {
                let mut bytes = [0; 4];
                for byte in control.encode_utf8(&mut bytes).bytes() {
                    let _ = write!(out, "\\{byte:02x}");
                }
            }
            other => out.push(other),
        }
    }
}

/// Formats an object identifier as numbers with dots.
fn oid_to_string(oid: &[u8]) -> String {
    let mut text = String::new();
    let mut value: u64 = 0;
    for byte in oid {
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 != 0 {
            continue;
        }
        if text.is_empty() {
            let first = (value / 40).min(2);
            let _ = write!(text, "{first}.{}", value - first * 40);
        } else {
            let _ = write!(text, ".{value}");
        }
        value = 0;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{CertificateDer, escape_rfc4514, oid_to_string, parse};
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, SanType};

    fn build_certificate(
        configure: impl FnOnce(&mut CertificateParams),
    ) -> CertificateDer<'static> {
        let mut parameters = CertificateParams::new(Vec::<String>::new()).unwrap();
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        configure(&mut parameters);
        parameters.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn parses_all_names_of_a_certificate() {
        let certificate = build_certificate(|parameters| {
            let name = &mut parameters.distinguished_name;
            name.push(DnType::CountryName, "DE");
            name.push(DnType::OrganizationName, "Example, Inc. #1");
            name.push(DnType::CommonName, DnValue::Utf8String(" größe+1 ".to_owned()));
            parameters.serial_number = Some(vec![0x12, 0x34].into());
            parameters.not_after = rcgen::date_time_ymd(2100, 3, 1);
            parameters.subject_alt_names = vec![
                SanType::DnsName("Client.Test".try_into().unwrap()),
                SanType::URI("spiffe://example.test/web".try_into().unwrap()),
                SanType::Rfc822Name("a@example.test".try_into().unwrap()),
                SanType::IpAddress("192.0.2.1".parse().unwrap()),
                SanType::IpAddress("2001:db8::1".parse().unwrap()),
                SanType::DnsName("two.test".try_into().unwrap()),
            ];
        });
        let identity = parse(&[certificate.clone(), certificate.clone()]).unwrap();
        assert_eq!(identity.subject, r"CN=\ größe\+1\ ,O=Example\, Inc. #1,C=DE");
        assert_eq!(identity.common_name.as_deref(), Some(" größe+1 "));
        assert_eq!(identity.serial, [0x12, 0x34]);
        assert_eq!(identity.not_after, 4_107_542_400);
        assert_eq!(identity.dns_names, ["client.test", "two.test"]);
        assert_eq!(identity.uris, ["spiffe://example.test/web"]);
        assert_eq!(identity.emails, ["a@example.test"]);
        let addresses: Vec<_> = identity.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["192.0.2.1", "2001:db8::1"]);
        assert_eq!(identity.chain, [certificate.to_vec(), certificate.to_vec()]);
    }

    #[test]
    fn parses_a_certificate_without_names() {
        let identity = parse(&[build_certificate(|_| {})]).unwrap();
        assert_eq!((identity.subject.as_str(), identity.common_name), ("", None));
        assert!(identity.dns_names.is_empty() && identity.uris.is_empty());
        assert!(parse(&[]).is_none());
    }

    #[test]
    fn an_unknown_attribute_is_formatted_as_oid_and_hex() {
        let identity = parse(&[build_certificate(|parameters| {
            let email_address = DnType::CustomDnType(vec![1, 2, 840, 113_549, 1, 9, 1]);
            parameters.distinguished_name.push(email_address, "a");
        })]);
        assert_eq!(identity.unwrap().subject, "1.2.840.113549.1.9.1=#0c0161");
        assert_eq!(oid_to_string(&[0x55, 0x1d, 0x11]), "2.5.29.17");
        assert_eq!(oid_to_string(&[0x88, 0x37, 3]), "2.999.3");
    }

    #[test]
    fn special_and_control_characters_are_escaped() {
        for (text, expected) in [
            ("a\nb", r"a\0ab"),
            ("#a#", r"\#a#"),
            ("a=b", r"a\=b"),
            (" ", r"\ "),
            ("", ""),
            ("\\\"", r#"\\\""#),
        ] {
            let mut out = String::new();
            escape_rfc4514(text, &mut out);
            assert_eq!(out, expected);
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes: Vec<u8>) {
            let _ = parse(&[CertificateDer::from(bytes)]);
        }

        #[test]
        fn no_changed_byte_of_a_certificate_causes_a_panic(
            position: proptest::sample::Index, byte: u8
        ) {
            let mut bytes = sample_certificate().clone();
            let position = position.index(bytes.len());
            bytes[position] = byte;
            let _ = parse(&[CertificateDer::from(bytes)]);
        }
    }

    fn sample_certificate() -> &'static Vec<u8> {
        static SAMPLE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        SAMPLE.get_or_init(|| {
            build_certificate(|parameters| {
                parameters.distinguished_name.push(DnType::CommonName, "a client");
                let name = SanType::DnsName("client.test".try_into().unwrap());
                parameters.subject_alt_names = vec![name];
            })
            .to_vec()
        })
    }
}
