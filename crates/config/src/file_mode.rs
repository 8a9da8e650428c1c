//! File modes, as used by `chmod`.

use crate::duration::{TextVisitor, is_off};
use serde::de::Deserializer;
use serde::ser::Serializer;

/// A file mode in octal, such as `0660`, or `off`, which is `None`. Modes are strings, because a
/// TOML number would be decimal.
#[derive(Clone, Copy, Debug)]
pub enum OptionalFileMode {}

/// The maximum mode, which has only read, write and execute permissions.
const MODE_MAX: u32 = 0o777;

const EXPECTED: &str = "the mode of a file in octal, as a text such as `\"0660\"`, or `off`";

impl OptionalFileMode {
    /// Serialises the mode.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &Option<u32>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            None => serializer.serialize_str("off"),
            Some(mode) => serializer.serialize_str(&format!("{mode:04o}")),
        }
    }

    /// Deserialises the mode.
    ///
    /// # Errors
    /// The value is neither a mode nor `off`.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<u32>, D::Error> {
        let parse_text =
            |text: &str| if is_off(text) { Some(None) } else { parse_file_mode(text).map(Some) };
        deserializer.deserialize_any(TextVisitor {
            expected: EXPECTED,
            parse_text,
            parse_integer: None,
        })
    }
}

fn parse_file_mode(text: &str) -> Option<u32> {
    let text = text.trim();
    let digits = text.strip_prefix("0o").unwrap_or(text);
    let is_octal = digits.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let mode = u32::from_str_radix(digits, 8).ok().filter(|_| is_octal)?;
    (mode <= MODE_MAX).then_some(mode)
}

#[cfg(feature = "schema")]
mod schema {
    use super::OptionalFileMode;
    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
    use std::borrow::Cow;

    impl JsonSchema for OptionalFileMode {
        fn schema_name() -> Cow<'static, str> {
            "ModeOrOff".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({
                "description": "The mode of a file in octal, such as `0660`, or `off`.",
                "type": "string",
                "pattern": "^(off|none|(0o)?0*[0-7]{1,3})$",
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parse_file_mode;

    #[test]
    fn file_modes_are_octal() {
        for (text, expected) in [
            ("0660", Some(0o660)),
            ("660", Some(0o660)),
            (" 0o600 ", Some(0o600)),
            ("0", Some(0)),
            ("0777", Some(0o777)),
            ("1777", None),
            ("0680", None),
            ("+660", None),
            ("-1", None),
            ("", None),
            ("rw-rw----", None),
        ] {
            assert_eq!(parse_file_mode(text), expected, "{text}");
        }
    }
}
