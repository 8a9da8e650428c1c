//! Checks whether clients would accept an OCSP response for a certificate.
//!
//! Some clients reject a certificate because of a bad response, so sending a bad one is worse than
//! sending none.

use crate::der::{
    TAG_ENUMERATED, TAG_INTEGER, TAG_OBJECT_IDENTIFIER, TAG_OCTET_STRING, TAG_SEQUENCE,
    context_tag, read_any, read_tagged, read_time, skip_optional,
};
use std::fmt;

/// Why a response is not sent.
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
    let (found, is_good, next_update) =
        parse_ocsp_response(response).ok_or(OcspError::InvalidResponse)?;
    if found != serial {
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

/// Reads the first answer: its serial number, whether the status is good, and its expiry.
fn parse_ocsp_response(response: &[u8]) -> Option<(&[u8], bool, Option<i64>)> {
    // RFC 6960 §4.2.1: the status, then in a separate field the type and the bytes of the answers.
    let (response, _) = read_tagged(response, TAG_SEQUENCE)?;
    let (status, response) = read_tagged(response, TAG_ENUMERATED)?;
    let (bytes, _) = read_tagged(response, context_tag(0))?;
    let (bytes, _) = read_tagged(bytes, TAG_SEQUENCE)?;
    let (_type, bytes) = read_tagged(bytes, TAG_OBJECT_IDENTIFIER)?;
    let (basic, _) = read_tagged(bytes, TAG_OCTET_STRING)?;
    let (basic, _) = read_tagged(basic, TAG_SEQUENCE)?;
    // The signed part: version (optional), responder, time of production, answers.
    let (signed, _) = read_tagged(basic, TAG_SEQUENCE)?;
    let (_responder, signed) =
        read_any(skip_optional(signed, context_tag(0))).map(|(tag, _, rest)| (tag, rest))?;
    let (_produced_at, signed) = read_time(signed)?;
    let (answers, _) = read_tagged(signed, TAG_SEQUENCE)?;
    // An answer: certificate ID, status, this update, next update (optional).
    let (answer, _) = read_tagged(answers, TAG_SEQUENCE)?;
    let (about, answer) = read_tagged(answer, TAG_SEQUENCE)?;
    let (_algorithm, about) = read_tagged(about, TAG_SEQUENCE)?;
    let (_name, about) = read_tagged(about, TAG_OCTET_STRING)?;
    let (_key, about) = read_tagged(about, TAG_OCTET_STRING)?;
    let (serial, _) = read_tagged(about, TAG_INTEGER)?;
    // `good` has tag 0 and no content.
    let (answer_status, _, answer) = read_any(answer)?;
    let (_this_update, answer) = read_time(answer)?;
    let next_update =
        read_tagged(answer, context_tag(0)).and_then(|(content, _)| read_time(content));
    let is_good = status == [0] && answer_status == 0x80;
    Some((serial, is_good, next_update.map(|(next_update, _)| next_update)))
}

/// An unsigned response for tests.
#[cfg(test)]
pub(crate) fn made(serial: &[u8], status: u8, next_update: Option<&str>) -> Vec<u8> {
    let item = |tag: u8, pieces: &[&[u8]]| {
        let content = pieces.concat();
        let length = u16::try_from(content.len()).unwrap().to_be_bytes();
        [&[tag, 0x82], &length[..], &content].concat()
    };
    let date = |text: &str| item(0x18, &[text.as_bytes()]);
    let about = item(
        TAG_SEQUENCE,
        &[
            &item(TAG_SEQUENCE, &[&[TAG_OBJECT_IDENTIFIER, 1, 0x2a]]),
            &item(TAG_OCTET_STRING, &[b"name"]),
            &item(TAG_OCTET_STRING, &[b"key"]),
            &item(TAG_INTEGER, &[serial]),
        ],
    );
    let next_update =
        next_update.map(|text| item(context_tag(0), &[&date(text)])).unwrap_or_default();
    let answer =
        item(TAG_SEQUENCE, &[&about, &[status, 0], &date("20200101000000Z"), &next_update]);
    let signed = item(
        TAG_SEQUENCE,
        &[
            &item(context_tag(2), &[&item(TAG_OCTET_STRING, &[b"responder"])]),
            &date("20200101000000Z"),
            &item(TAG_SEQUENCE, &[&answer]),
        ],
    );
    let basic = item(TAG_SEQUENCE, &[&signed]);
    let bytes = item(
        TAG_SEQUENCE,
        &[&[TAG_OBJECT_IDENTIFIER, 1, 0x2a], &item(TAG_OCTET_STRING, &[&basic])],
    );
    item(TAG_SEQUENCE, &[&[TAG_ENUMERATED, 1, 0], &item(context_tag(0), &[&bytes])])
}

#[cfg(test)]
mod tests {
    use super::{OcspError, check_ocsp_response, made};

    #[test]
    fn a_response_is_sent_only_with_its_certificate_while_it_is_good() {
        let (then, later) = ("20991231235959Z", 4_102_444_799);
        for (response, expected) in [
            (made(b"\x07", 0x80, Some(then)), Ok(Some(later))),
            (made(b"\x07", 0x80, None), Ok(None)),
            (made(b"\x08", 0x80, Some(then)), Err(OcspError::SerialMismatch)),
            (made(b"\x07", 0xa1, Some(then)), Err(OcspError::NotGood)),
            (made(b"\x07", 0x82, Some(then)), Err(OcspError::NotGood)),
            (made(b"\x07", 0x80, Some("20000101000000Z")), Err(OcspError::Expired)),
            // The responder's error "try later".
            (vec![0x30, 3, 0x0a, 1, 3], Err(OcspError::InvalidResponse)),
            (Vec::new(), Err(OcspError::InvalidResponse)),
        ] {
            assert_eq!(check_ocsp_response(&response, b"\x07", 1_785_459_723), expected);
        }
    }

    #[test]
    fn a_response_that_was_cut_is_none() {
        let whole = made(b"\x07", 0x80, Some("20991231235959Z"));
        for end in 0..whole.len() {
            assert_eq!(
                check_ocsp_response(&whole[..end], b"\x07", 0),
                Err(OcspError::InvalidResponse),
                "at {end}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn no_change_of_a_response_makes_the_reader_panic(
            place: proptest::sample::Index, byte: u8
        ) {
            let mut bytes = made(b"\x07", 0x80, Some("20991231235959Z"));
            let place = place.index(bytes.len());
            bytes[place] = byte;
            let _ = check_ocsp_response(&bytes, b"\x07", 0);
        }
    }
}
