//! Strings that are never printed.

use serde::de::{Deserialize, Deserializer, Error as _, Unexpected, Visitor};
use serde::ser::{Serialize, Serializer};
use std::fmt;

/// The text that is printed instead of a secret.
const REDACTED: &str = "(hidden)";

/// The name by which this crate's serializer recognises a secret.
pub(crate) const NEWTYPE_NAME: &str = "$peregrine::Secret";

/// A string that is neither printed nor logged, such as a password or a token. Printed settings
/// show `(hidden)` instead, which is rejected when it is read back. Serializers other than
/// [`to_value`](crate::to_value) get the secret itself.
#[doc(alias = "Secrecy")]
#[derive(Clone, PartialEq, Eq)]
pub struct SecretString(String);

impl SecretString {
    /// Creates a secret.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the secret.
    #[must_use]
    pub fn expose_secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An empty secret is not hidden.
impl fmt::Display for SecretString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "" } else { REDACTED })
    }
}

impl Serialize for SecretString {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct(NEWTYPE_NAME, &self.0)
    }
}

impl<'de> Deserialize<'de> for SecretString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = deserializer.deserialize_string(RedactingVisitor)?;
        if text == REDACTED {
            let text = "this is printed instead of a secret; write the secret itself";
            return Err(D::Error::custom(text));
        }
        Ok(Self(text))
    }
}

/// Reads a string. Errors do not contain values of other types, which may be secrets too.
struct RedactingVisitor;

impl Visitor<'_> for RedactingVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text in quotes")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<String, E> {
        Err(E::invalid_type(Unexpected::Other("not a text"), &self))
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<String, E> {
        Err(E::invalid_type(Unexpected::Other("a number"), &self))
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<String, E> {
        Err(E::invalid_type(Unexpected::Other("a number"), &self))
    }

    fn visit_i128<E: serde::de::Error>(self, _: i128) -> Result<String, E> {
        Err(E::invalid_type(Unexpected::Other("a number"), &self))
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<String, E> {
        Err(E::invalid_type(Unexpected::Other("a number"), &self))
    }
}

#[cfg(feature = "schema")]
mod schema {
    use super::SecretString;
    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
    use std::borrow::Cow;

    impl JsonSchema for SecretString {
        fn schema_name() -> Cow<'static, str> {
            "Secret".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({ "description": "A text that is not shown.", "type": "string", "writeOnly": true })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConfigLoader, to_value};
    use std::collections::BTreeMap;

    #[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Tree {
        headers: BTreeMap<String, SecretString>,
    }

    #[test]
    fn secrets_are_read_and_compared_but_never_printed() {
        let code = |text: &str| {
            let headers = [("a".to_owned(), SecretString::new(text))].into();
            Tree { headers }
        };
        let no_vars: [(&str, &str); 0] = [];
        let read: Tree =
            ConfigLoader::new("X_").env_vars(no_vars).load(&code("abc")).expect("valid settings");
        assert_eq!(read.headers["a"].expose_secret(), "abc", "the program's value is unchanged");
        let layers = ConfigLoader::new("X_").env_vars([("X_HEADERS__A", "def")]);
        let read: Tree = layers.load(&code("abc")).expect("valid settings");
        assert_eq!(read.headers["a"].expose_secret(), "def");
        let (first, second) = (to_value(&code("abc")), to_value(&code("def")));
        let (first, second) = (first.expect("serialises"), second.expect("serialises"));
        assert!(first != second, "a change is visible");
        for printed in [format!("{first:?}"), first.to_string(), format!("{read:?} {layers:?}")] {
            assert!(!printed.contains("abc") && !printed.contains("def"), "{printed}");
        }
        let path = std::path::Path::new("a.toml");
        for (text, expected) in [
            ("headers = 'a=1234'", "a table"),
            ("headers.a = 1234", "a text in quotes"),
            ("headers.a = -1234", "a text in quotes"),
            ("headers.a = 0.1234", "a text in quotes"),
            ("headers.a = ['1234']", "a text in quotes"),
        ] {
            let value = crate::loader::parse_toml(text, path).expect("valid TOML");
            let error = crate::de::from_value::<Tree>(&value).expect_err("invalid").to_string();
            assert!(!error.contains("1234") && error.contains(expected), "{error}");
        }
        let text = crate::to_toml_string(&code("abc")).expect("serialises");
        assert_eq!(text, "[headers]\na = \"(hidden)\"\n");
        let layers = ConfigLoader::new("X_").env_vars([("X_HEADERS__A", REDACTED)]);
        let error = layers.load(&Tree::default()).expect_err("rejected").to_string();
        assert!(
            error.contains("`headers.a`") && error.contains("write the secret itself"),
            "{error}"
        );
    }
}
