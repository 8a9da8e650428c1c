//! Sizes in bytes: `64 KiB`, `2 MB`, `512`.

use crate::duration::{TextVisitor, is_off, parse_scaled};
use serde::de::Deserializer;
use serde::ser::{Error as _, Serializer};

/// A human-readable size, for `#[serde(with = "ByteSize")]` on any integer. Examples are `64 KiB`,
/// `2 MB`, `512 B` and `512`. `KiB` means 1,024 bytes and `kB` means 1,000 bytes. As in nginx, `k`,
/// `m` and `g` alone mean `KiB`, `MiB` and `GiB`.
#[derive(Clone, Copy, Debug)]
pub enum ByteSize {}

/// A size, or `off`, which is `None`.
#[derive(Clone, Copy, Debug)]
pub enum OptionalByteSize {}

/// A size, `auto` or `off`, for `#[serde(with = "AutoByteSize")]` on a type that distinguishes the
/// three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoByteSize {
    /// `auto`
    Auto,
    /// A size, in bytes.
    Bytes(u64),
    /// `off`
    Off,
}

const EXPECTED: &str =
    "a size in bytes, such as `64 KiB`, `2 MB` or `512`, in the range of its limit";
const EXPECTED_OR_OFF: &str = "a size in bytes, such as `64 KiB`, `2 MB` or `512`, or `off`";
const EXPECTED_OR_AUTO: &str =
    "a size in bytes, such as `64 KiB`, `2 MB` or `512`, or `auto`, or `off`";

const UNITS: [(&str, u128); 14] = [
    ("", 1),
    ("b", 1),
    ("byte", 1),
    ("bytes", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("tib", 1 << 40),
];

/// Parses a size. Returns `None` if `text` is not a size.
pub(crate) fn parse_byte_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_');
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let unit = unit.trim_start().to_ascii_lowercase();
    let (_, unit) = UNITS.iter().find(|(name, _)| *name == unit)?;
    u64::try_from(parse_scaled(&number.replace('_', ""), *unit)?).ok()
}

/// Formats a size in the largest unit of which it is an integer multiple.
pub(crate) fn format_byte_size(size: u64) -> String {
    let unit = [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = unit.into_iter().find(|(_, unit)| size > 0 && size.is_multiple_of(*unit));
    let (name, unit) = unit.unwrap_or(("B", 1));
    format!("{} {name}", size / unit)
}

impl ByteSize {
    /// Serialises the size.
    ///
    /// # Errors
    /// The size exceeds 64 bits, or the serializer fails.
    pub fn serialize<T: Copy + TryInto<u64>, S: Serializer>(
        bytes: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let bytes = (*bytes).try_into().map_err(|_| S::Error::custom("a size above 2^64"))?;
        serializer.serialize_str(&format_byte_size(bytes))
    }

    /// Deserialises the size.
    ///
    /// # Errors
    /// The value is not a size, or exceeds the range of the type.
    pub fn deserialize<'de, T: TryFrom<u64>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        let parse_text =
            |text: &str| parse_byte_size(text).and_then(|bytes| T::try_from(bytes).ok());
        let parse_integer = Some((|bytes: u64| T::try_from(bytes).ok()) as fn(u64) -> Option<T>);
        deserializer.deserialize_any(TextVisitor { expected: EXPECTED, parse_text, parse_integer })
    }
}

impl OptionalByteSize {
    /// Serialises the size.
    ///
    /// # Errors
    /// The size exceeds 64 bits, or the serializer fails.
    pub fn serialize<T: Copy + TryInto<u64>, S: Serializer>(
        bytes: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match bytes {
            None => serializer.serialize_str("off"),
            Some(bytes) => ByteSize::serialize(bytes, serializer),
        }
    }

    /// Deserialises the size.
    ///
    /// # Errors
    /// The value is neither a size nor `off`, or exceeds the range of the type.
    pub fn deserialize<'de, T: TryFrom<u64>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        let parse_text = |text: &str| match text {
            text if is_off(text) => Some(None),
            text => T::try_from(parse_byte_size(text)?).ok().map(Some),
        };
        let parse_integer =
            Some((|bytes: u64| T::try_from(bytes).ok().map(Some)) as fn(u64) -> Option<Option<T>>);
        deserializer.deserialize_any(TextVisitor {
            expected: EXPECTED_OR_OFF,
            parse_text,
            parse_integer,
        })
    }
}

impl AutoByteSize {
    /// Serialises the size.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<T: Copy + Into<Self>, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match (*value).into() {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Bytes(bytes) => serializer.serialize_str(&format_byte_size(bytes)),
            Self::Off => serializer.serialize_str("off"),
        }
    }

    /// Deserialises the size.
    ///
    /// # Errors
    /// The value is not a size, `auto` or `off`.
    pub fn deserialize<'de, T: From<Self>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        let parse_text = |text: &str| match text {
            text if text.trim() == "auto" => Some(Self::Auto),
            text if is_off(text) => Some(Self::Off),
            text => parse_byte_size(text).map(Self::Bytes),
        };
        let parse_integer =
            Some((|bytes: u64| Some(Self::Bytes(bytes))) as fn(u64) -> Option<Self>);
        deserializer
            .deserialize_any(TextVisitor { expected: EXPECTED_OR_AUTO, parse_text, parse_integer })
            .map(T::from)
    }
}

#[cfg(feature = "schema")]
mod schema {
    use super::{AutoByteSize, ByteSize, OptionalByteSize};
    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
    use std::borrow::Cow;

    const PATTERN: &str = r"^\s*[0-9_]+(\.[0-9]+)?\s*([bB]|bytes?|[kKmMgG]|[kK]i?[bB]|[mM]i?[bB]|[gG]i?[bB]|[tT]i[bB])?\s*$";

    impl JsonSchema for ByteSize {
        fn schema_name() -> Cow<'static, str> {
            "Size".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({
                "description": "A size in bytes, such as `64 KiB`, `2 MB` or `512`.",
                "anyOf": [
                    { "type": "string", "pattern": PATTERN },
                    { "type": "integer", "minimum": 0 },
                ],
            })
        }
    }

    impl JsonSchema for AutoByteSize {
        fn schema_name() -> Cow<'static, str> {
            "SizeOrAuto".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({
                "description": "A size in bytes, such as `64 KiB`, `2 MB` or `512`, or `auto`, or `off`.",
                "anyOf": [
                    { "type": "string", "pattern": format!("^\\s*(auto|off|none)\\s*$|{PATTERN}") },
                    { "type": "integer", "minimum": 0 },
                ],
            })
        }
    }

    impl JsonSchema for OptionalByteSize {
        fn schema_name() -> Cow<'static, str> {
            "SizeOrOff".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({
                "description": "A size in bytes, such as `64 KiB`, `2 MB` or `512`, or `off`.",
                "anyOf": [
                    { "type": "string", "pattern": format!("^\\s*(off|none)\\s*$|{PATTERN}") },
                    { "type": "integer", "minimum": 0 },
                ],
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{format_byte_size, parse_byte_size};
    use proptest::prelude::*;

    #[test]
    fn sizes_are_parsed() {
        for (text, expected) in [
            ("512", Some(512)),
            ("512 B", Some(512)),
            ("64 KiB", Some(65_536)),
            ("64KiB", Some(65_536)),
            ("64k", Some(65_536)),
            ("64 kB", Some(64_000)),
            ("1.5 MiB", Some(1_572_864)),
            ("2 MB", Some(2_000_000)),
            ("1_000", Some(1_000)),
            ("1g", Some(1 << 30)),
            ("0", Some(0)),
            ("18446744073709551615 B", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("", None),
            ("KiB", None),
            ("-1", None),
            ("0.3 B", None),
            ("64 KiBB", None),
            ("64 kilos", None),
        ] {
            assert_eq!(parse_byte_size(text), expected, "{text:?}");
        }
    }

    #[test]
    fn sizes_are_printed_in_the_largest_exact_unit() {
        for (bytes, expected) in [
            (0, "0 B"),
            (512, "512 B"),
            (65_536, "64 KiB"),
            (65_535, "65535 B"),
            (8 << 20, "8 MiB"),
        ] {
            assert_eq!(format_byte_size(bytes), expected);
        }
    }

    proptest! {
        #[test]
        fn printed_sizes_parse_back(bytes: u64) {
            prop_assert_eq!(parse_byte_size(&format_byte_size(bytes)), Some(bytes));
        }

        #[test]
        fn parsing_any_text_does_not_panic(text in "\\PC*") {
            let _ = parse_byte_size(&text);
        }
    }
}
