//! Numbers and strings that can also be `off` or `auto`.

use crate::duration::{TextVisitor, is_off};
use serde::de::Deserializer;
use serde::ser::{Error as _, Serializer};

/// A number, or `auto`, which is `None`.
#[derive(Clone, Copy, Debug)]
pub enum AutoCount {}

/// A number, or `off`, which is `None`.
#[derive(Clone, Copy, Debug)]
pub enum OptionalCount {}

/// A string, or `off`, which is `None`.
#[derive(Clone, Copy, Debug)]
pub enum OptionalString {}

const EXPECTED_OR_AUTO: &str = "a whole number above 0, or `auto`";
const EXPECTED_OR_OFF: &str = "a whole number, or `off`";

fn parse_number<T: TryFrom<u64>>(text: &str) -> Option<T> {
    T::try_from(text.trim().replace('_', "").parse::<u64>().ok()?).ok()
}

/// Serialises a number, or the text `absent` in place of `None`.
fn serialize_or<T: Copy + TryInto<u64>, S: Serializer>(
    value: &Option<T>,
    absent: &str,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        None => serializer.serialize_str(absent),
        Some(value) => {
            let value = (*value).try_into();
            serializer.serialize_u64(value.map_err(|_| S::Error::custom("a number above 2^64"))?)
        }
    }
}

impl AutoCount {
    /// Serialises the value.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(
        value: &Option<std::num::NonZeroUsize>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serialize_or(&value.map(|value| value.get() as u64), "auto", serializer)
    }

    /// Deserialises the value.
    ///
    /// # Errors
    /// The value is neither a number above 0 nor `auto`.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<std::num::NonZeroUsize>, D::Error> {
        use std::num::NonZeroUsize;
        let to_count = |number: u64| NonZeroUsize::new(usize::try_from(number).ok()?);
        let parse_text = |text: &str| match text.trim() {
            "auto" => Some(None),
            text => to_count(parse_number(text)?).map(Some),
        };
        let parse_integer =
            |number: u64| NonZeroUsize::new(usize::try_from(number).ok()?).map(Some);
        deserializer.deserialize_any(TextVisitor {
            expected: EXPECTED_OR_AUTO,
            parse_text,
            parse_integer: Some(parse_integer),
        })
    }
}

impl OptionalCount {
    /// Serialises the value.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<T: Copy + TryInto<u64>, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serialize_or(value, "off", serializer)
    }

    /// Deserialises the value.
    ///
    /// # Errors
    /// The value is neither a number nor `off`.
    pub fn deserialize<'de, T: TryFrom<u64>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        let parse_text =
            |text: &str| if is_off(text) { Some(None) } else { parse_number(text).map(Some) };
        let parse_integer =
            Some((|count: u64| T::try_from(count).ok().map(Some)) as fn(u64) -> Option<Option<T>>);
        deserializer.deserialize_any(TextVisitor {
            expected: EXPECTED_OR_OFF,
            parse_text,
            parse_integer,
        })
    }
}

impl OptionalString {
    /// Serialises the value.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(
        value: &Option<String>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(value.as_deref().unwrap_or("off"))
    }

    /// Deserialises the value.
    ///
    /// # Errors
    /// The value is not a string.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<String>, D::Error> {
        // An empty text counts as `off`, because a variable may be set to it instead of being
        // unset.
        let is_none = |text: &str| is_off(text) || text.is_empty();
        let parse_text =
            |text: &str| Some(if is_none(text) { None } else { Some(text.to_owned()) });
        deserializer.deserialize_str(TextVisitor {
            expected: "a text, or `off`",
            parse_text,
            parse_integer: None,
        })
    }
}

#[cfg(feature = "schema")]
mod schema {
    use super::{AutoCount, OptionalCount, OptionalString};
    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
    use std::borrow::Cow;

    impl JsonSchema for AutoCount {
        fn schema_name() -> Cow<'static, str> {
            "CountOrAuto".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({
                "description": "A whole number above 0, or `auto`.",
                "anyOf": [{ "const": "auto" }, { "type": "integer", "minimum": 1 }],
            })
        }
    }

    impl JsonSchema for OptionalCount {
        fn schema_name() -> Cow<'static, str> {
            "CountOrOff".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({
                "description": "A whole number, or `off`.",
                "anyOf": [{ "enum": ["off", "none"] }, { "type": "integer", "minimum": 0 }],
            })
        }
    }

    impl JsonSchema for OptionalString {
        fn schema_name() -> Cow<'static, str> {
            "TextOrOff".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({ "description": "A text, or `off`.", "type": "string" })
        }
    }
}
