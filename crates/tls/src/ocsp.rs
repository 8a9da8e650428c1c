//! Checks whether clients would accept an OCSP response for a certificate.
//!
//! Some clients reject a certificate because of a bad response, so sending a bad one is worse than
//! sending none.

use crate::der::{
    TAG_ENUMERATED, TAG_INTEGER, TAG_OBJECT_IDENTIFIER, TAG_OCTET_STRING, TAG_SEQUENCE,
    context_tag, read_any, read_tagged, read_time, skip_optional,
};
use std::fmt;

/// Why an OCSP response is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OcspError {
    /// The file cannot be read, or is empty or too large.
    Unreadable,
    /// The bytes are not an OCSP response in DER, or the response is an error.
    InvalidResponse,
    /// The response is for another certificate.
    SerialMismatch,
    /// The certificate is revoked or unknown.
    NotGood,
    /// The response has expired.
    Expired,
}

impl fmt::Display for OcspError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreadable => "it cannot be read",
            Self::InvalidResponse => "it is not a successful OCSP response in DER",
            Self::SerialMismatch => "it is for another certificate",
            Self::NotGood => "it says that the certificate is revoked or not known",
            Self::Expired => "it is too old",
        })
    }
}

/// Checks a response for the certificate with this serial number. Returns when the response
/// expires, in seconds since 1970, if it contains that date.
///
/// # Errors
/// The response must not be sent.
pub(crate) fn check_ocsp_response(
    response: &[u8],
    serial: &[u8],
    now: i64,
) -> Result<Option<i64>, OcspError> {
    let (response_serial, is_good, next_update) =
        parse_ocsp_response(response).ok_or(OcspError::InvalidResponse)?;
    if response_serial != serial {
        return Err(OcspError::SerialMismatch);
    }
    if !is_good {
        return Err(OcspError::NotGood);
    }
    if next_update.is_some_and(|next_update| next_update <= now) {
        return Err(OcspError::Expired);
    }
    Ok(next_update)
}

/// Reads the first single response: its serial number, whether its status is good, and its expiry.
fn parse_ocsp_response(response: &[u8]) -> Option<(&[u8], bool, Option<i64>)> {
    // RFC 6960 §4.2.1: the status, then in a separate field the type and the bytes of the basic
    // response.
    let (response, _) = read_tagged(response, TAG_SEQUENCE)?;
    let (status, response) = read_tagged(response, TAG_ENUMERATED)?;
    let (bytes, _) = read_tagged(response, context_tag(0))?;
    let (bytes, _) = read_tagged(bytes, TAG_SEQUENCE)?;
    let (_type, bytes) = read_tagged(bytes, TAG_OBJECT_IDENTIFIER)?;
    let (basic, _) = read_tagged(bytes, TAG_OCTET_STRING)?;
    let (basic, _) = read_tagged(basic, TAG_SEQUENCE)?;
    // The signed part: version (optional), responder, time of production, single responses.
    let (signed, _) = read_tagged(basic, TAG_SEQUENCE)?;
    let (_responder, signed) =
        read_any(skip_optional(signed, context_tag(0))).map(|(tag, _, rest)| (tag, rest))?;
    let (_produced_at, signed) = read_time(signed)?;
    let (single_responses, _) = read_tagged(signed, TAG_SEQUENCE)?;
    // A single response: certificate ID, status, this update, next update (optional).
    let (single_response, _) = read_tagged(single_responses, TAG_SEQUENCE)?;
    let (cert_id, single_response) = read_tagged(single_response, TAG_SEQUENCE)?;
    let (_algorithm, cert_id) = read_tagged(cert_id, TAG_SEQUENCE)?;
    let (_name, cert_id) = read_tagged(cert_id, TAG_OCTET_STRING)?;
    let (_key, cert_id) = read_tagged(cert_id, TAG_OCTET_STRING)?;
    let (serial, _) = read_tagged(cert_id, TAG_INTEGER)?;
    // `good` has tag 0 and no content.
    let (cert_status, _, single_response) = read_any(single_response)?;
    let (_this_update, single_response) = read_time(single_response)?;
    let next_update =
        read_tagged(single_response, context_tag(0)).and_then(|(content, _)| read_time(content));
    let is_good = status == [0] && cert_status == 0x80;
    Some((serial, is_good, next_update.map(|(next_update, _)| next_update)))
}

/// An unsigned response for tests.
#[cfg(test)]
pub(crate) fn build_response(serial: &[u8], status: u8, next_update: Option<&str>) -> Vec<u8> {
    let der_item = |tag: u8, pieces: &[&[u8]]| {
        let content = pieces.concat();
        let length = u16::try_from(content.len()).unwrap().to_be_bytes();
        [&[tag, 0x82], &length[..], &content].concat()
    };
    let der_time = |text: &str| der_item(0x18, &[text.as_bytes()]);
    let cert_id = der_item(
        TAG_SEQUENCE,
        &[
            &der_item(TAG_SEQUENCE, &[&[TAG_OBJECT_IDENTIFIER, 1, 0x2a]]),
            &der_item(TAG_OCTET_STRING, &[b"name"]),
            &der_item(TAG_OCTET_STRING, &[b"key"]),
            &der_item(TAG_INTEGER, &[serial]),
        ],
    );
    let next_update =
        next_update.map(|text| der_item(context_tag(0), &[&der_time(text)])).unwrap_or_default();
    let single_response = der_item(
        TAG_SEQUENCE,
        &[&cert_id, &[status, 0], &der_time("20200101000000Z"), &next_update],
    );
    let signed = der_item(
        TAG_SEQUENCE,
        &[
            &der_item(context_tag(2), &[&der_item(TAG_OCTET_STRING, &[b"responder"])]),
            &der_time("20200101000000Z"),
            &der_item(TAG_SEQUENCE, &[&single_response]),
        ],
    );
    let basic = der_item(TAG_SEQUENCE, &[&signed]);
    let bytes = der_item(
        TAG_SEQUENCE,
        &[&[TAG_OBJECT_IDENTIFIER, 1, 0x2a], &der_item(TAG_OCTET_STRING, &[&basic])],
    );
    der_item(TAG_SEQUENCE, &[&[TAG_ENUMERATED, 1, 0], &der_item(context_tag(0), &[&bytes])])
}

#[cfg(test)]
mod tests {
    use super::{OcspError, build_response, check_ocsp_response};

    #[test]
    fn accepts_only_a_good_current_response_for_the_certificate() {
        let (next_update_text, next_update) = ("20991231235959Z", 4_102_444_799);
        for (response, expected) in [
            (build_response(b"\x07", 0x80, Some(next_update_text)), Ok(Some(next_update))),
            (build_response(b"\x07", 0x80, None), Ok(None)),
            (build_response(b"\x08", 0x80, Some(next_update_text)), Err(OcspError::SerialMismatch)),
            (build_response(b"\x07", 0xa1, Some(next_update_text)), Err(OcspError::NotGood)),
            (build_response(b"\x07", 0x82, Some(next_update_text)), Err(OcspError::NotGood)),
            (build_response(b"\x07", 0x80, Some("20000101000000Z")), Err(OcspError::Expired)),
            // The responder's error "try later".
            (vec![0x30, 3, 0x0a, 1, 3], Err(OcspError::InvalidResponse)),
            (Vec::new(), Err(OcspError::InvalidResponse)),
        ] {
            assert_eq!(check_ocsp_response(&response, b"\x07", 1_785_459_723), expected);
        }
    }

    #[test]
    fn rejects_a_truncated_response() {
        let response = build_response(b"\x07", 0x80, Some("20991231235959Z"));
        for end in 0..response.len() {
            assert_eq!(
                check_ocsp_response(&response[..end], b"\x07", 0),
                Err(OcspError::InvalidResponse),
                "at {end}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn no_changed_byte_of_a_response_causes_a_panic(
            position: proptest::sample::Index, byte: u8
        ) {
            let mut bytes = build_response(b"\x07", 0x80, Some("20991231235959Z"));
            let position = position.index(bytes.len());
            bytes[position] = byte;
            let _ = check_ocsp_response(&bytes, b"\x07", 0);
        }
    }
}
