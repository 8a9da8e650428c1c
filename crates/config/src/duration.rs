//! Durations: `75s`, `2m`, `1h 30m`.

use serde::de::{Deserializer, Error, Visitor};
use serde::ser::Serializer;
use std::fmt;
use std::time::Duration;

/// A human-readable duration, for `#[serde(with = "HumanDuration")]`: `75s`, `2m`, `1h 30m`,
/// `100ms`, `1.5s`. Units are `ns`, `us`, `ms`, `s`, `m` (or `min`), `h`, `d` and `w`.
#[doc(alias = "humantime")]
#[derive(Clone, Copy, Debug)]
pub enum HumanDuration {}

/// A duration, or `off`, which is `None`.
#[derive(Clone, Copy, Debug)]
pub enum OptionalDuration {}

/// The description of the expected value, for error messages.
const EXPECTED: &str = "a duration with its unit, such as `75s`, `2m` or `1h 30m`";
const EXPECTED_OR_OFF: &str = "a duration with its unit, such as `75s` or `2m`, or `off`";

/// The units, in nanoseconds.
const UNITS: [(&str, u128); 11] = [
    ("w", 7 * 86_400 * 1_000_000_000),
    ("d", 86_400 * 1_000_000_000),
    ("h", 3_600 * 1_000_000_000),
    ("min", 60 * 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("sec", 1_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("µs", 1_000),
    ("ns", 1),
];

/// The units in which durations are printed, largest first.
const PRINTED_UNITS: [&str; 7] = ["d", "h", "m", "s", "ms", "us", "ns"];

/// Parses a duration. Returns `None` if `text` is not a duration.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let (mut total, mut is_empty) = (0_u128, true);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, remainder) = rest.split_at(end);
        let remainder = remainder.trim_start();
        let unit_end = remainder.find(|c: char| !c.is_alphabetic()).unwrap_or(remainder.len());
        let (unit, remainder) = remainder.split_at(unit_end);
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == unit)?;
        total = total.checked_add(parse_scaled(number, *unit)?)?;
        (rest, is_empty) = (remainder.trim_start(), false);
    }
    if is_empty {
        return None;
    }
    let seconds = u64::try_from(total / 1_000_000_000).ok()?;
    Some(Duration::new(seconds, u32::try_from(total % 1_000_000_000).ok()?))
}

/// Parses a number with an optional fraction, and multiplies it by the unit.
pub(crate) fn parse_scaled(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_valid = !whole.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
    if !is_valid || fraction.len() > 9 || (number.contains('.') && fraction.is_empty()) {
        return None;
    }
    let whole = whole.parse::<u128>().ok()?.checked_mul(unit)?;
    if fraction.is_empty() {
        return Some(whole);
    }
    let scaled_fraction = fraction.parse::<u128>().ok()?.checked_mul(unit)?;
    let power = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    // A value that is not a whole number of the smallest unit is an error.
    if scaled_fraction % power == 0 { whole.checked_add(scaled_fraction / power) } else { None }
}

/// Formats a duration in the largest unit of which it is an integer multiple.
pub(crate) fn format_duration(duration: Duration) -> String {
    let nanoseconds = duration.as_nanos();
    if nanoseconds == 0 {
        return "0s".to_owned();
    }
    let unit_size =
        |name: &str| UNITS.iter().find(|(unit, _)| *unit == name).map_or(1, |unit| unit.1);
    let name = PRINTED_UNITS.iter().find(|name| nanoseconds.is_multiple_of(unit_size(name)));
    let name = name.expect("every duration is a whole number of nanoseconds");
    format!("{}{name}", nanoseconds / unit_size(name))
}

impl HumanDuration {
    /// Serialises the duration.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_duration(*time))
    }

    /// Deserialises the duration.
    ///
    /// # Errors
    /// The value is not a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let visitor =
            TextVisitor { expected: EXPECTED, parse_text: parse_duration, parse_integer: None };
        deserializer.deserialize_str(visitor)
    }
}

impl OptionalDuration {
    /// Serialises the duration.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(
        time: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&time.map_or_else(|| "off".to_owned(), format_duration))
    }

    /// Deserialises the duration.
    ///
    /// # Errors
    /// The value is neither a duration nor `off`.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let parse_text =
            |text: &str| if is_off(text) { Some(None) } else { parse_duration(text).map(Some) };
        deserializer.deserialize_str(TextVisitor {
            expected: EXPECTED_OR_OFF,
            parse_text,
            parse_integer: None,
        })
    }
}

/// Whether the text means that there is no value.
pub(crate) fn is_off(text: &str) -> bool {
    matches!(text.trim(), "off" | "none")
}

/// Parses a string with `parse_text`. Also accepts an integer if there is `parse_integer`.
pub(crate) struct TextVisitor<T, F: Fn(&str) -> Option<T>> {
    pub(crate) expected: &'static str,
    pub(crate) parse_text: F,
    pub(crate) parse_integer: Option<fn(u64) -> Option<T>>,
}

impl<T, F: Fn(&str) -> Option<T>> Visitor<'_> for TextVisitor<T, F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.parse_text)(text)
            .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self.expected))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        let unexpected = serde::de::Unexpected::Unsigned(value);
        match self.parse_integer {
            None => Err(E::invalid_type(unexpected, &self.expected)),
            Some(parse) => parse(value).ok_or_else(|| E::invalid_value(unexpected, &self.expected)),
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        match u64::try_from(value) {
            Ok(value) => self.visit_u64(value),
            Err(_) => {
                let unexpected = serde::de::Unexpected::Signed(value);
                Err(E::invalid_value(unexpected, &self.expected))
            }
        }
    }
}

#[cfg(feature = "schema")]
mod schema {
    use super::{HumanDuration, OptionalDuration};
    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
    use std::borrow::Cow;

    const PATTERN: &str = r"^\s*(0|([0-9]+(\.[0-9]+)?\s*(w|d|h|min|m|sec|s|ms|us|µs|ns)\s*)+)\s*$";

    impl JsonSchema for HumanDuration {
        fn schema_name() -> Cow<'static, str> {
            "Duration".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({
                "description": "A duration with its unit, such as `75s`, `2m` or `1h 30m`.",
                "type": "string",
                "pattern": PATTERN,
            })
        }
    }

    impl JsonSchema for OptionalDuration {
        fn schema_name() -> Cow<'static, str> {
            "DurationOrOff".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({
                "description": "A duration with its unit, such as `75s`, `2m` or `1h 30m`, or `off`.",
                "type": "string",
                "pattern": format!("^\\s*off\\s*$|^\\s*none\\s*$|{PATTERN}"),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{format_duration, parse_duration};
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn durations_are_parsed() {
        for (text, expected) in [
            ("75s", Some(Duration::from_secs(75))),
            ("75 s", Some(Duration::from_secs(75))),
            (" 2m ", Some(Duration::from_secs(120))),
            ("2min", Some(Duration::from_secs(120))),
            ("1h 30m", Some(Duration::from_secs(5400))),
            ("1h30m", Some(Duration::from_secs(5400))),
            ("1.5s", Some(Duration::from_millis(1500))),
            ("100ms", Some(Duration::from_millis(100))),
            ("14d", Some(Duration::from_secs(14 * 86_400))),
            ("0", Some(Duration::ZERO)),
            ("0s", Some(Duration::ZERO)),
            ("", None),
            ("75", None),
            ("s", None),
            ("-1s", None),
            ("1.s", None),
            (".5s", None),
            ("1.2.3s", None),
            ("0.5ns", None),
            ("75 parsec", None),
            ("1e3s", None),
            ("75S", None),
            ("99999999999999999999999999999999999999999s", None),
            ("300000000000000d", None),
        ] {
            assert_eq!(parse_duration(text), expected, "{text:?}");
        }
    }

    #[test]
    fn durations_are_printed_in_the_largest_exact_unit() {
        for (millis, expected) in [
            (0, "0s"),
            (75_000, "75s"),
            (60_000, "1m"),
            (5_400_000, "90m"),
            (1_500, "1500ms"),
            (14 * 86_400_000, "14d"),
        ] {
            assert_eq!(format_duration(Duration::from_millis(millis)), expected);
        }
    }

    proptest! {
        #[test]
        fn printed_durations_parse_back(seconds: u64, nanoseconds in 0_u32..1_000_000_000) {
            let duration = Duration::new(seconds, nanoseconds);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Some(duration));
        }

        #[test]
        fn parsing_any_text_does_not_panic(text in "\\PC*") {
            let _ = parse_duration(&text);
        }
    }
}
