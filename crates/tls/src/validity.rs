//! From when to when a certificate is valid.
//!
//! rustls does not check a server's own certificate, and its clients only say "expired" after the
//! server went live. Reading two dates is all that is needed to warn at start.

/// The time a certificate is valid for, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) not_before: i64,
    pub(crate) not_after: i64,
}

const TAG_INTEGER: u8 = 0x02;
const TAG_UTC_TIME: u8 = 0x17;
const TAG_GENERALIZED_TIME: u8 = 0x18;
const TAG_SEQUENCE: u8 = 0x30;
const TAG_VERSION: u8 = 0xa0;

/// Reads the dates of a certificate in DER; `None` when it is not one.
pub(crate) fn validity(certificate: &[u8]) -> Option<Validity> {
    // RFC 5280 §4.1: a certificate is a sequence whose first item is a sequence of: version
    // (optional), serial number, signature algorithm, issuer, validity, ...
    let (certificate, _) = item(certificate, TAG_SEQUENCE)?;
    let (body, _) = item(certificate, TAG_SEQUENCE)?;
    let body = item(body, TAG_VERSION).map_or(body, |(_, rest)| rest);
    let (_serial, body) = item(body, TAG_INTEGER)?;
    let (_algorithm, body) = item(body, TAG_SEQUENCE)?;
    let (_issuer, body) = item(body, TAG_SEQUENCE)?;
    let (dates, _) = item(body, TAG_SEQUENCE)?;
    let (not_before, dates) = time(dates)?;
    let (not_after, _) = time(dates)?;
    Some(Validity { not_before, not_after })
}

/// The content of the item with this tag at the front, and what follows it.
fn item(input: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, input) = input.split_first()?;
    let (&first, input) = input.split_first()?;
    // A length below 128 stands alone; otherwise the low bits say how many bytes of length follow.
    let (length, input) = match first {
        0..=0x7f => (usize::from(first), input),
        0x81..=0x83 => {
            let (length, rest) = input.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    if found == tag { input.split_at_checked(length) } else { None }
}

/// The time at the front, in seconds since 1970, and what follows it.
fn time(input: &[u8]) -> Option<(i64, &[u8])> {
    if let Some((text, rest)) = item(input, TAG_UTC_TIME) {
        // RFC 5280 §4.1.2.5.1: a year of 50 or more is in 19YY, one below in 20YY.
        let (year, text) = number(text, 2)?;
        let year = if year >= 50 { 1900 + year } else { 2000 + year };
        return Some((seconds(year, text)?, rest));
    }
    let (text, rest) = item(input, TAG_GENERALIZED_TIME)?;
    let (year, text) = number(text, 4)?;
    Some((seconds(year, text)?, rest))
}

/// The decimal number in the first `digits` bytes, and what follows it.
fn number(text: &[u8], digits: usize) -> Option<(i64, &[u8])> {
    let (number, rest) = text.split_at_checked(digits)?;
    let number = number.iter().try_fold(0, |sum, byte| {
        byte.is_ascii_digit().then(|| sum * 10 + i64::from(*byte - b'0'))
    })?;
    Some((number, rest))
}

/// Seconds since 1970 of a year and the text `MMDDHHMMSSZ`.
fn seconds(year: i64, text: &[u8]) -> Option<i64> {
    let (month, text) = number(text, 2)?;
    let (day, text) = number(text, 2)?;
    let (hour, text) = number(text, 2)?;
    let (minute, text) = number(text, 2)?;
    let (second, text) = number(text, 2)?;
    if text != b"Z" || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years that begin in March put the leap day last, so that the days before a month follow a
    // straight line: 153 days in each five months.
    let year = if month <= 2 { year - 1 } else { year };
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days_to_1970 = 719_468;
    let days = year * 365 + leap_days + day_of_year - days_to_1970;
    Some(days * 86_400 + hour * 3_600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::{item, seconds, validity};

    #[test]
    fn dates_become_seconds_since_1970() {
        for (year, text, expected) in [
            (1970, "0101000000Z", 0),
            (1969, "1231235959Z", -1),
            (2000, "0229120000Z", 951_825_600),
            (2000, "0301000000Z", 951_868_800),
            (2026, "0731010203Z", 1_785_459_723),
            (2100, "0301000000Z", 4_107_542_400),
            (9999, "1231235959Z", 253_402_300_799),
        ] {
            assert_eq!(seconds(year, text.as_bytes()), Some(expected), "{year} {text}");
        }
        for text in ["", "0101000000", "1301000000Z", "0100000000Z", "01010000x0Z", "0101000000ZZ"]
        {
            assert_eq!(seconds(1970, text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn the_dates_of_a_made_certificate_are_found() {
        let mut parameters = rcgen::CertificateParams::new(["a.test".to_owned()]).unwrap();
        // One date is written with two digits of the year, the other with four.
        parameters.not_before = rcgen::date_time_ymd(1999, 12, 31);
        parameters.not_after = rcgen::date_time_ymd(2060, 2, 29);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        let found = validity(certificate.der()).unwrap();
        assert_eq!(found.not_before, 946_598_400);
        assert_eq!(found.not_after, 2_845_238_400);
        for end in 0..certificate.der().len() {
            assert_eq!(validity(&certificate.der()[..end]), None, "cut at {end}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes: Vec<u8>) {
            let _ = validity(&bytes);
            let _ = item(&bytes, 0x30);
        }
    }
}
