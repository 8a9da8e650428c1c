//! Checks whether clients would accept an OCSP response for a certificate.
//!
//! Some clients reject a certificate because of a bad response, so sending a bad one is worse than
//! sending none.

use crate::der::{
    TAG_ENUMERATED, TAG_INTEGER, TAG_OBJECT, TAG_OCTETS, TAG_SEQUENCE, any, item, past, tagged,
    time,
};
use std::fmt;

/// Why a response is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StapleFault {
    /// The file cannot be read, or is empty or too large.
    Unreadable,
    /// The bytes are not an OCSP response in DER, or the response is an error.
    NoResponse,
    /// The response is for another certificate.
    OtherCertificate,
    /// The certificate is revoked or unknown.
    NotGood,
    /// The response has expired.
    Expired,
}

impl fmt::Display for StapleFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreadable => "it cannot be read",
            Self::NoResponse => "it is not a successful OCSP response in DER",
            Self::OtherCertificate => "it is for another certificate",
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
pub(crate) fn check(response: &[u8], serial: &[u8], now: i64) -> Result<Option<i64>, StapleFault> {
    let (found, is_good, next_update) = read(response).ok_or(StapleFault::NoResponse)?;
    if found != serial {
        return Err(StapleFault::OtherCertificate);
    }
    if !is_good {
        return Err(StapleFault::NotGood);
    }
    if next_update.is_some_and(|next_update| next_update <= now) {
        return Err(StapleFault::Expired);
    }
    Ok(next_update)
}

/// Reads the first answer: its serial number, whether the status is good, and its expiry.
fn read(response: &[u8]) -> Option<(&[u8], bool, Option<i64>)> {
    // RFC 6960 §4.2.1: the status, then in a separate field the type and the bytes of the answers.
    let (response, _) = item(response, TAG_SEQUENCE)?;
    let (status, response) = item(response, TAG_ENUMERATED)?;
    let (bytes, _) = item(response, tagged(0))?;
    let (bytes, _) = item(bytes, TAG_SEQUENCE)?;
    let (_type, bytes) = item(bytes, TAG_OBJECT)?;
    let (basic, _) = item(bytes, TAG_OCTETS)?;
    let (basic, _) = item(basic, TAG_SEQUENCE)?;
    // The signed part: version (optional), responder, time of production, answers.
    let (signed, _) = item(basic, TAG_SEQUENCE)?;
    let (_responder, signed) = any(past(signed, tagged(0))).map(|(tag, _, rest)| (tag, rest))?;
    let (_produced_at, signed) = time(signed)?;
    let (answers, _) = item(signed, TAG_SEQUENCE)?;
    // An answer: certificate ID, status, this update, next update (optional).
    let (answer, _) = item(answers, TAG_SEQUENCE)?;
    let (about, answer) = item(answer, TAG_SEQUENCE)?;
    let (_algorithm, about) = item(about, TAG_SEQUENCE)?;
    let (_name, about) = item(about, TAG_OCTETS)?;
    let (_key, about) = item(about, TAG_OCTETS)?;
    let (serial, _) = item(about, TAG_INTEGER)?;
    // `good` has tag 0 and no content.
    let (answer_status, _, answer) = any(answer)?;
    let (_this_update, answer) = time(answer)?;
    let next_update = item(answer, tagged(0)).and_then(|(content, _)| time(content));
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
            &item(TAG_SEQUENCE, &[&[TAG_OBJECT, 1, 0x2a]]),
            &item(TAG_OCTETS, &[b"name"]),
            &item(TAG_OCTETS, &[b"key"]),
            &item(TAG_INTEGER, &[serial]),
        ],
    );
    let next_update = next_update.map(|text| item(tagged(0), &[&date(text)])).unwrap_or_default();
    let answer =
        item(TAG_SEQUENCE, &[&about, &[status, 0], &date("20200101000000Z"), &next_update]);
    let signed = item(
        TAG_SEQUENCE,
        &[
            &item(tagged(2), &[&item(TAG_OCTETS, &[b"responder"])]),
            &date("20200101000000Z"),
            &item(TAG_SEQUENCE, &[&answer]),
        ],
    );
    let basic = item(TAG_SEQUENCE, &[&signed]);
    let bytes = item(TAG_SEQUENCE, &[&[TAG_OBJECT, 1, 0x2a], &item(TAG_OCTETS, &[&basic])]);
    item(TAG_SEQUENCE, &[&[TAG_ENUMERATED, 1, 0], &item(tagged(0), &[&bytes])])
}

#[cfg(test)]
mod tests {
    use super::{StapleFault, check, made};

    #[test]
    fn a_response_is_sent_only_with_its_certificate_while_it_is_good() {
        let (then, later) = ("20991231235959Z", 4_102_444_799);
        for (response, expected) in [
            (made(b"\x07", 0x80, Some(then)), Ok(Some(later))),
            (made(b"\x07", 0x80, None), Ok(None)),
            (made(b"\x08", 0x80, Some(then)), Err(StapleFault::OtherCertificate)),
            (made(b"\x07", 0xa1, Some(then)), Err(StapleFault::NotGood)),
            (made(b"\x07", 0x82, Some(then)), Err(StapleFault::NotGood)),
            (made(b"\x07", 0x80, Some("20000101000000Z")), Err(StapleFault::Expired)),
            // The responder's error "try later".
            (vec![0x30, 3, 0x0a, 1, 3], Err(StapleFault::NoResponse)),
            (Vec::new(), Err(StapleFault::NoResponse)),
        ] {
            assert_eq!(check(&response, b"\x07", 1_785_459_723), expected);
        }
    }

    #[test]
    fn a_response_that_was_cut_is_none() {
        let whole = made(b"\x07", 0x80, Some("20991231235959Z"));
        for end in 0..whole.len() {
            assert_eq!(check(&whole[..end], b"\x07", 0), Err(StapleFault::NoResponse), "at {end}");
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
            let _ = check(&bytes, b"\x07", 0);
        }
    }
}
