//! Reads the validity of certificates and revocation lists.
//!
//! rustls does not check a server's own certificate, and clients report "expired" only after the
//! server is in use. Reading two dates is enough to warn earlier.

use crate::der::{TAG_INTEGER, TAG_SEQUENCE, context_tag, read_tagged, read_time, skip_optional};

/// The validity of a certificate, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) not_before: i64,
    pub(crate) not_after: i64,
}

/// The fields of a certificate that this crate uses.
pub(crate) struct TbsCertificate<'a> {
    /// The serial number, as the bytes of the integer.
    pub(crate) serial: &'a [u8],
    pub(crate) validity: Validity,
    /// The content of the subject's name.
    pub(crate) subject: &'a [u8],
    /// The part after the subject: its key and extensions.
    pub(crate) after_subject: &'a [u8],
}

/// Parses a certificate in DER; `None` if it is malformed.
pub(crate) fn parse_tbs_certificate(certificate: &[u8]) -> Option<TbsCertificate<'_>> {
    // RFC 5280 §4.1: a certificate is a sequence whose first item is a sequence of: version
    // (optional), serial number, signature algorithm, issuer, validity, subject, ...
    let (certificate, _) = read_tagged(certificate, TAG_SEQUENCE)?;
    let (tbs, _) = read_tagged(certificate, TAG_SEQUENCE)?;
    let (serial, tbs) = read_tagged(skip_optional(tbs, context_tag(0)), TAG_INTEGER)?;
    let (_algorithm, tbs) = read_tagged(tbs, TAG_SEQUENCE)?;
    let (_issuer, tbs) = read_tagged(tbs, TAG_SEQUENCE)?;
    let (dates, tbs) = read_tagged(tbs, TAG_SEQUENCE)?;
    let (not_before, dates) = read_time(dates)?;
    let (not_after, _) = read_time(dates)?;
    let (subject, after_subject) = read_tagged(tbs, TAG_SEQUENCE)?;
    Some(TbsCertificate {
        serial,
        validity: Validity { not_before, not_after },
        subject,
        after_subject,
    })
}

/// Reads the validity of a certificate in DER; `None` if it is malformed.
pub(crate) fn validity(certificate: &[u8]) -> Option<Validity> {
    parse_tbs_certificate(certificate).map(|fields| fields.validity)
}

/// Reads the `nextUpdate` of a revocation list; `None` if it is missing or the list is malformed.
pub(crate) fn crl_next_update(crl: &[u8]) -> Option<i64> {
    // RFC 5280 §5.1: a sequence whose first item is a sequence of: version (optional), signature
    // algorithm, issuer, this update, next update (optional), ...
    let (crl, _) = read_tagged(crl, TAG_SEQUENCE)?;
    let (tbs, _) = read_tagged(crl, TAG_SEQUENCE)?;
    let (_algorithm, tbs) = read_tagged(skip_optional(tbs, TAG_INTEGER), TAG_SEQUENCE)?;
    let (_issuer, tbs) = read_tagged(tbs, TAG_SEQUENCE)?;
    let (_this_update, tbs) = read_time(tbs)?;
    read_time(tbs).map(|(next_update, _)| next_update)
}

#[cfg(test)]
mod tests {
    use super::{crl_next_update, validity};

    #[test]
    fn reads_both_dates_of_a_certificate() {
        let mut parameters = rcgen::CertificateParams::new(["a.test".to_owned()]).unwrap();
        // One date is encoded with two digits of the year, the other with four.
        parameters.not_before = rcgen::date_time_ymd(1999, 12, 31);
        parameters.not_after = rcgen::date_time_ymd(2060, 2, 29);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        let dates = validity(certificate.der()).unwrap();
        assert_eq!(dates.not_before, 946_598_400);
        assert_eq!(dates.not_after, 2_845_238_400);
        for end in 0..certificate.der().len() {
            assert_eq!(validity(&certificate.der()[..end]), None, "cut at {end}");
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes: Vec<u8>) {
            let _ = validity(&bytes);
            let _ = crl_next_update(&bytes);
        }
    }
}
