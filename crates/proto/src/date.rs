//! The format of the Date field.

/// A time as an IMF-fixdate, `Sun, 06 Nov 1994 08:49:37 GMT`. A server creates one per second and
/// copies its text into each response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    text: [u8; Date::BYTES],
}

impl Date {
    /// Length of the text in bytes.
    pub const BYTES: usize = 29;

    /// The last second of a four-digit year: the end of 9999.
    pub const UNIX_SECONDS_MAX: u64 = 253_402_300_799;

    /// The date this many seconds after 1970-01-01 00:00:00 UTC, but no later than
    /// [`Date::UNIX_SECONDS_MAX`].
    #[must_use]
    pub fn from_unix_seconds(seconds: u64) -> Self {
        let seconds = seconds.min(Self::UNIX_SECONDS_MAX);
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        let (year, month, day) = civil_from_days(days);
        let mut text = *b"Thu, 01 Jan 1970 00:00:00 GMT";
        // Day 0 was a Thursday.
        text[0..3].copy_from_slice(DAYS[index((days + 4) % 7)]);
        write_two_digits(&mut text, 5, day);
        text[8..11].copy_from_slice(MONTHS[index(month - 1)]);
        write_two_digits(&mut text, 12, year / 100);
        write_two_digits(&mut text, 14, year % 100);
        write_two_digits(&mut text, 17, second / 3600);
        write_two_digits(&mut text, 20, second / 60 % 60);
        write_two_digits(&mut text, 23, second % 60);
        Self { text }
    }

    /// The 29 bytes of text.
    #[inline]
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.text
    }
}

/// Converts a number of days since 1970-01-01 to year, month and day. Calculates with eras of 400
/// years that begin on 1 March, so that a leap day is the last day of its year.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    const DAYS_PER_ERA: u64 = 146_097;
    // From 0000-03-01 to 1970-01-01.
    let days = days + 719_468;
    let (era, day) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month_from_march = (5 * day + 2) / 153;
    let day = day - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

fn write_two_digits(text: &mut [u8], at: usize, value: u64) {
    text[at] = b'0' + digit(value / 10);
    text[at + 1] = b'0' + digit(value % 10);
}

fn digit(value: u64) -> u8 {
    u8::try_from(value).expect("a decimal digit is small")
}

fn index(value: u64) -> usize {
    usize::try_from(value).expect("an index of a day or a month is small")
}

const DAYS: [&[u8; 3]; 7] = [b"Sun", b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat"];
const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

#[cfg(test)]
mod tests {
    use super::Date;
    use std::time::{Duration, UNIX_EPOCH};

    fn assert_matches_httpdate(seconds: u64) {
        let date = Date::from_unix_seconds(seconds);
        let expected = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(std::str::from_utf8(date.as_bytes()).unwrap(), expected, "{seconds}");
    }

    #[test]
    fn every_day_until_the_year_2500_matches_httpdate() {
        for day in 0..194_000 {
            assert_matches_httpdate(day * 86_400 + day * 7919 % 86_400);
        }
    }

    #[test]
    fn ends_of_days_and_leap_days_match_httpdate() {
        for seconds in [0, 59, 60, 3599, 3600, 86_399, 86_400, 951_782_399, 951_782_400] {
            assert_matches_httpdate(seconds);
        }
        for step in 0..50_000 {
            assert_matches_httpdate(step * 5_067_983 % (Date::UNIX_SECONDS_MAX + 1));
        }
        assert_matches_httpdate(Date::UNIX_SECONDS_MAX);
    }

    #[test]
    fn times_after_the_year_9999_are_clamped_to_its_end() {
        let last = Date::from_unix_seconds(Date::UNIX_SECONDS_MAX);
        assert_eq!(Date::from_unix_seconds(u64::MAX), last);
    }
}
