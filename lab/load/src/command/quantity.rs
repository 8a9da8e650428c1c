//! Numbers, times and rates as people type them.

use std::time::Duration;

/// A number with an optional `k` or `M`: `20k` is 20,000. `None` if it is none, or below 0.
#[must_use]
pub fn number(text: &str) -> Option<f64> {
    let (digits, scale) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1e3),
        b'm' | b'M' => (&text[..text.len() - 1], 1e6),
        _ => (text, 1.0),
    };
    let value: f64 = digits.parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some(value * scale)
}

/// A whole number, likewise.
pub(super) fn whole(text: &str) -> Option<u64> {
    let value = number(text)?;
    (value.fract() == 0.0 && value < 1e18).then_some(value as u64)
}

/// A time with a unit, or in seconds without one: `10s`, `500ms`, `2m`, `1.5`.
pub(super) fn time(text: &str) -> Option<Duration> {
    let units = [("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let (digits, scale) = units
        .into_iter()
        .find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)))
        .unwrap_or((text, 1.0));
    let seconds: f64 = digits.parse().ok()?;
    Duration::try_from_secs_f64(seconds * scale).ok()
}

/// 32 bytes in hexadecimal digits.
pub(super) fn sha256(text: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (place, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
    }
    Some(hash)
}

/// CPU numbers with commas; `none` is no number.
pub(super) fn cpus(text: &str) -> Option<Vec<usize>> {
    if text == "none" {
        return Some(Vec::new());
    }
    text.split(',').map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_read_as_typed() {
        assert_eq!(number("20k"), Some(20_000.0));
        assert_eq!(number("1.5M"), Some(1_500_000.0));
        assert_eq!(whole("64"), Some(64));
        assert_eq!(time("10s"), Some(Duration::from_secs(10)));
        assert_eq!(time("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(time("2m"), Some(Duration::from_secs(120)));
        assert_eq!(time("1.5"), Some(Duration::from_millis(1500)));
        assert_eq!(cpus("0,2"), Some(vec![0, 2]));
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in ["", "k", "-1", "1x", "nan", "inf", "é"] {
            assert_eq!(number(text), None, "{text}");
        }
        assert_eq!(whole("1.5"), None);
        assert_eq!(time("-1s"), None);
        assert_eq!(sha256("12"), None);
    }
}
