//! Numbers as a reader wants them: few digits, groups of three, and a dash for what is unknown.

use peregrine_lab_model::verdict::Ratio;

/// With this many digits after the point, and groups of three before it.
pub(crate) fn fixed(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let text = format!("{:.digits$}", value.abs());
    let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
    let mut grouped = String::new();
    if value < 0.0 && text.bytes().any(|digit| (b'1'..=b'9').contains(&digit)) {
        grouped.push('−');
    }
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if !rest.is_empty() {
        grouped.push('.');
        grouped.push_str(rest);
    }
    grouped
}

/// The same for what may be unknown.
pub(crate) fn fixed_or_dash(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |value| fixed(value, digits))
}

/// A count, in groups of three.
pub(crate) fn count(value: u64) -> String {
    fixed(value as f64, 0)
}

/// A number with three significant digits at most.
pub(crate) fn short(value: f64) -> String {
    let size = value.abs();
    let digits = if size >= 100.0 || size == 0.0 {
        0
    } else if size >= 10.0 {
        1
    } else if size >= 1.0 {
        2
    } else {
        3
    };
    let text = fixed(value, digits);
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

/// A rate on an axis: 20k, 1.5M.
pub(crate) fn rate(value: f64) -> String {
    if value >= 1e6 {
        format!("{}M", short(value / 1e6))
    } else if value >= 1e3 {
        format!("{}k", short(value / 1e3))
    } else {
        short(value)
    }
}

/// A latency in milliseconds, with the unit that keeps it short.
pub(crate) fn latency(milliseconds: f64) -> String {
    if milliseconds >= 1e3 {
        format!("{}\u{a0}s", short(milliseconds / 1e3))
    } else if milliseconds >= 1.0 {
        format!("{}\u{a0}ms", short(milliseconds))
    } else {
        format!("{}\u{a0}µs", short(milliseconds * 1e3))
    }
}

/// Bytes in binary units.
pub(crate) fn bytes(value: f64) -> String {
    let size = value.abs();
    if size >= 1024.0 * 1024.0 * 1024.0 {
        format!("{}\u{a0}GiB", short(value / (1024.0 * 1024.0 * 1024.0)))
    } else if size >= 1024.0 * 1024.0 {
        format!("{}\u{a0}MiB", short(value / (1024.0 * 1024.0)))
    } else if size >= 1024.0 {
        format!("{}\u{a0}KiB", short(value / 1024.0))
    } else {
        format!("{}\u{a0}B", short(value))
    }
}

/// A ratio and the ends of its interval, with as many digits as the interval deserves.
pub(crate) fn ratio(estimate: f64, low: f64, high: f64) -> [String; 3] {
    let digits = if (high - low) / estimate < 0.05 { 3 } else { 2 };
    [estimate, low, high].map(|value| fixed(value, digits))
}

/// Whether a ratio has an interval: one block alone has none, and its ends are the estimate.
pub(crate) fn has_interval(ratio: &Ratio) -> bool {
    ratio.low < ratio.high
}

/// An interval with three digits, or a dash.
pub(crate) fn interval(ratio: &Ratio, between: &str) -> String {
    if !has_interval(ratio) {
        return "–".to_owned();
    }
    format!("{}{between}{}", fixed(ratio.low, 3), fixed(ratio.high, 3))
}

/// A share as a percentage with one digit.
pub(crate) fn percent(share: f64) -> String {
    format!("{}\u{a0}%", fixed(share * 100.0, 1))
}

/// A moment in seconds since 1970 as a date and time in UTC.
pub(crate) fn moment(unix_s: u64) -> String {
    // The civil calendar by eras of 400 years that begin on the first of March.
    let days = unix_s / 86_400 + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute) = (unix_s / 3_600 % 24, unix_s / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_and_kept_few() {
        assert_eq!(fixed(1_234_567.0, 0), "1,234,567");
        assert_eq!(fixed(-1_234.5, 1), "−1,234.5");
        assert_eq!(fixed(-0.001, 1), "0.0");
        assert_eq!(fixed(f64::NAN, 1), "–");
        assert_eq!(short(0.5), "0.5");
        assert_eq!(short(12.0), "12");
        assert_eq!(rate(20_000.0), "20k");
        assert_eq!(latency(0.412), "412\u{a0}µs");
        assert_eq!(bytes(13_517.0), "13.2\u{a0}KiB");
        assert_eq!(ratio(0.812, 0.79, 0.834), ["0.81", "0.79", "0.83"]);
        assert_eq!(ratio(1.0123, 1.0, 1.02), ["1.012", "1.000", "1.020"]);
    }

    #[test]
    fn moments_follow_the_calendar() {
        assert_eq!(moment(0), "1970-01-01 00:00 UTC");
        assert_eq!(moment(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(moment(1_795_170_724), "2026-11-20 10:32 UTC");
    }
}
