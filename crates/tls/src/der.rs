//! A DER reader for what certificates, revocation lists and OCSP responses need.

pub(crate) const TAG_BOOLEAN: u8 = 0x01;
pub(crate) const TAG_INTEGER: u8 = 0x02;
pub(crate) const TAG_OCTET_STRING: u8 = 0x04;
pub(crate) const TAG_OBJECT_IDENTIFIER: u8 = 0x06;
pub(crate) const TAG_ENUMERATED: u8 = 0x0a;
pub(crate) const TAG_UTC_TIME: u8 = 0x17;
pub(crate) const TAG_GENERALIZED_TIME: u8 = 0x18;
pub(crate) const TAG_SEQUENCE: u8 = 0x30;
pub(crate) const TAG_SET: u8 = 0x31;

/// The tag of a numbered, constructed field (context-specific).
pub(crate) const fn context_tag(number: u8) -> u8 {
    0xa0 | number
}

/// Reads the first item. Returns its tag, its content, and the rest of the input.
pub(crate) fn read_any(input: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, input) = input.split_first()?;
    let (&first_length_byte, input) = input.split_first()?;
    // Lengths below 128 take one byte. Otherwise the low bits are the number of length bytes that
    // follow.
    let (length, input) = match first_length_byte {
        0..=0x7f => (usize::from(first_length_byte), input),
        0x81..=0x83 => {
            let (length, rest) = input.split_at_checked(usize::from(first_length_byte & 0x7f))?;
            (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = input.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// Reads the first item, which must have this tag. Returns its content and the rest of the input.
pub(crate) fn read_tagged(input: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found_tag, content, rest) = read_any(input)?;
    (found_tag == tag).then_some((content, rest))
}

/// Skips the first item if it has this tag.
pub(crate) fn skip_optional(input: &[u8], tag: u8) -> &[u8] {
    read_tagged(input, tag).map_or(input, |(_, rest)| rest)
}

/// Iterates over consecutive items; stops at the first malformed one.
pub(crate) fn iter(mut input: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (tag, content, rest) = read_any(input)?;
        input = rest;
        Some((tag, content))
    })
}

/// Reads a time, in seconds since 1970. Also returns the rest of the input.
pub(crate) fn read_time(input: &[u8]) -> Option<(i64, &[u8])> {
    if let Some((text, rest)) = read_tagged(input, TAG_UTC_TIME) {
        // RFC 5280 §4.1.2.5.1: a year of 50 or more is in 19YY, one below in 20YY.
        let (year, text) = parse_number(text, 2)?;
        let year = if year >= 50 { 1900 + year } else { 2000 + year };
        return Some((unix_seconds(year, text)?, rest));
    }
    let (text, rest) = read_tagged(input, TAG_GENERALIZED_TIME)?;
    let (year, text) = parse_number(text, 4)?;
    Some((unix_seconds(year, text)?, rest))
}

/// Reads a decimal number of `digits` bytes. Also returns the rest.
fn parse_number(text: &[u8], digits: usize) -> Option<(i64, &[u8])> {
    let (number, rest) = text.split_at_checked(digits)?;
    let number = number.iter().try_fold(0, |sum, byte| {
        byte.is_ascii_digit().then(|| sum * 10 + i64::from(*byte - b'0'))
    })?;
    Some((number, rest))
}

/// Converts a year and the text `MMDDHHMMSSZ` to seconds since 1970.
fn unix_seconds(year: i64, text: &[u8]) -> Option<i64> {
    let (month, text) = parse_number(text, 2)?;
    let (day, text) = parse_number(text, 2)?;
    let (hour, text) = parse_number(text, 2)?;
    let (minute, text) = parse_number(text, 2)?;
    let (second, text) = parse_number(text, 2)?;
    if text != b"Z" || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // If years begin in March, the leap day is the last day of the year, and the number of days
    // before a month is linear: 153 days in each five months.
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
    use super::{iter, read_any, read_tagged, read_time, skip_optional, unix_seconds};

    #[test]
    fn dates_are_converted_to_unix_seconds() {
        for (year, text, expected) in [
            (1970, "0101000000Z", 0),
            (1969, "1231235959Z", -1),
            (2000, "0229120000Z", 951_825_600),
            (2000, "0301000000Z", 951_868_800),
            (2026, "0731010203Z", 1_785_459_723),
            (2100, "0301000000Z", 4_107_542_400),
            (9999, "1231235959Z", 253_402_300_799),
        ] {
            assert_eq!(unix_seconds(year, text.as_bytes()), Some(expected), "{year} {text}");
        }
        for text in ["", "0101000000", "1301000000Z", "0100000000Z", "01010000x0Z", "0101000000ZZ"]
        {
            assert_eq!(unix_seconds(1970, text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn items_are_split_by_their_lengths() {
        let bytes = [0x30, 2, 1, 2, 0x04, 0x81, 1, 9, 0x02];
        assert_eq!(read_any(&bytes), Some((0x30, &[1, 2][..], &bytes[4..])));
        assert_eq!(read_tagged(&bytes, 0x31), None);
        assert_eq!(skip_optional(&bytes, 0x30), &bytes[4..]);
        assert_eq!(skip_optional(&bytes, 0x31), &bytes);
        let items: Vec<_> = iter(&bytes).collect();
        assert_eq!(items, [(0x30, &[1, 2][..]), (0x04, &[9][..])]);
        for malformed in [&[0x30, 0x80][..], &[0x30, 0x84, 0, 0, 0, 0], &[0x30, 3, 1, 2], &[0x30]] {
            assert_eq!(read_any(malformed), None, "{malformed:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes: Vec<u8>) {
            let _ = iter(&bytes).count();
            let _ = read_tagged(&bytes, 0x30);
            let _ = read_time(&bytes);
        }
    }
}
