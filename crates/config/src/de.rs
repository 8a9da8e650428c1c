//! Deserialises a type from a tree of settings, with positions for errors.

use crate::error::ConfigError;
use crate::value::{ConfigValue, SourceLocation, TableEntry, ValueKind};
use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;

pub(crate) fn from_value<T: DeserializeOwned>(value: &ConfigValue) -> Result<T, ConfigError> {
    T::deserialize(ConfigDeserializer(value))
}

/// Deserialises a setting or a table of settings.
#[derive(Clone, Copy)]
struct ConfigDeserializer<'v>(&'v ConfigValue);

impl ConfigDeserializer<'_> {
    fn unexpected(&self) -> Unexpected<'_> {
        match &self.0.kind {
            ValueKind::Nil => Unexpected::Unit,
            ValueKind::Bool(value) => Unexpected::Bool(*value),
            ValueKind::Integer(number) => {
                i64::try_from(*number).map_or(Unexpected::Other("a number"), Unexpected::Signed)
            }
            ValueKind::Float(number) => Unexpected::Float(*number),
            ValueKind::String(text) => Unexpected::Str(text),
            ValueKind::Secret(_) => Unexpected::Other("a secret"),
            ValueKind::Array(_) => Unexpected::Seq,
            ValueKind::Table(_) => Unexpected::Map,
        }
    }

    fn invalid_type<'de>(&self, visitor: &impl Visitor<'de>) -> ConfigError {
        self.invalid_type_of(self.unexpected(), visitor)
    }

    fn invalid_type_of<'de>(
        &self,
        found: Unexpected<'_>,
        visitor: &impl Visitor<'de>,
    ) -> ConfigError {
        let error: ConfigError = serde::de::Error::invalid_type(found, visitor);
        error.with_location(&self.0.location)
    }

    /// Returns the text of an environment variable, which may represent any type.
    fn env_text(&self) -> Option<&str> {
        match (&self.0.kind, &self.0.location) {
            (ValueKind::String(text), SourceLocation::EnvVar(_)) => Some(text.trim()),
            _ => None,
        }
    }

    /// Deserialises an integer, which may be the text of a variable.
    fn deserialize_integer<'de, V: Visitor<'de>>(
        self,
        visitor: V,
    ) -> Result<V::Value, ConfigError> {
        let parsed = self.env_text().and_then(|text| text.replace('_', "").parse::<i128>().ok());
        match parsed {
            Some(number) => visit_integer(number, visitor)
                .map_err(|error| error.with_location(&self.0.location)),
            None => self.deserialize_any(visitor),
        }
    }
}

/// Passes a number to the visitor as a `u64`, an `i64` or an `i128`, whichever can represent it
/// first.
fn visit_integer<'de, V: Visitor<'de>>(number: i128, visitor: V) -> Result<V::Value, ConfigError> {
    if let Ok(number) = u64::try_from(number) {
        visitor.visit_u64(number)
    } else if let Ok(number) = i64::try_from(number) {
        visitor.visit_i64(number)
    } else {
        visitor.visit_i128(number)
    }
}

impl<'de> Deserializer<'de> for ConfigDeserializer<'_> {
    type Error = ConfigError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        let result = match &self.0.kind {
            ValueKind::Nil => visitor.visit_unit(),
            ValueKind::Bool(value) => visitor.visit_bool(*value),
            ValueKind::Integer(number) => visit_integer(*number, visitor),
            ValueKind::Float(number) => visitor.visit_f64(*number),
            ValueKind::String(text) => visitor.visit_str(text),
            ValueKind::Secret(secret) => visitor.visit_str(secret.expose_secret()),
            ValueKind::Array(items) => visitor.visit_seq(ArrayAccess(items.iter(), 0)),
            ValueKind::Table(entries) => visitor.visit_map(TableAccess(entries.iter(), None)),
        };
        result.map_err(|error| error.with_location(&self.0.location))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        match self.env_text() {
            Some("true" | "yes" | "on" | "1") => visitor.visit_bool(true),
            Some("false" | "no" | "off" | "0") => visitor.visit_bool(false),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_i8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.deserialize_integer(visitor)
    }

    fn deserialize_i16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.deserialize_integer(visitor)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.deserialize_integer(visitor)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.deserialize_integer(visitor)
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.deserialize_integer(visitor)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.deserialize_integer(visitor)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.deserialize_integer(visitor)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.deserialize_integer(visitor)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        match (&self.0.kind, self.env_text().and_then(|text| text.parse::<f64>().ok())) {
            (_, Some(number)) => visitor.visit_f64(number),
            (ValueKind::Integer(number), _) => visitor.visit_f64(*number as f64),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        match (&self.0.kind, self.env_text()) {
            (ValueKind::Nil, _) | (_, Some("")) => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        match (&self.0.kind, self.env_text()) {
            (_, Some(text)) => {
                let to_value = |item: &str| ConfigValue {
                    kind: ValueKind::String(item.trim().to_owned()),
                    location: self.0.location.clone(),
                };
                let items = text.split(',').filter(|item| !item.trim().is_empty());
                let items: Vec<_> = items.map(to_value).collect();
                visitor
                    .visit_seq(ArrayAccess(items.iter(), 0))
                    .map_err(|error| error.with_location(&self.0.location))
            }
            (ValueKind::Array(_), _) => self.deserialize_any(visitor),
            _ => Err(self.invalid_type(&visitor)),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        match &self.0.kind {
            // The error does not show a text that is in place of a table, because it may contain
            // secrets.
            ValueKind::String(_) => {
                Err(self.invalid_type_of(Unexpected::Other("a text"), &visitor))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ConfigError> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ConfigError> {
        match &self.0.kind {
            ValueKind::String(text) => {
                let variant: StrDeserializer<'_, ConfigError> = text.trim().into_deserializer();
                visitor.visit_enum(variant).map_err(|error| error.with_location(&self.0.location))
            }
            _ => Err(self.invalid_type(&visitor)),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ConfigError> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        i128 u128 char str string bytes byte_buf unit unit_struct tuple tuple_struct identifier
        ignored_any
    }
}

/// The remaining entries of a table, and the entry whose key was read last.
struct TableAccess<'v>(std::slice::Iter<'v, TableEntry>, Option<&'v TableEntry>);

impl<'de> MapAccess<'de> for TableAccess<'_> {
    type Error = ConfigError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ConfigError> {
        // Unset settings are skipped, so that their defaults apply.
        let entry = self.0.by_ref().find(|entry| entry.value.kind != ValueKind::Nil);
        let Some(entry) = entry else { return Ok(None) };
        self.1 = Some(entry);
        let name: StrDeserializer<'_, ConfigError> = entry.key.as_str().into_deserializer();
        seed.deserialize(name).map(Some).map_err(|error| error.with_location(&entry.key_location))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, ConfigError> {
        let entry = self.1.take().expect("serde reads the key first");
        seed.deserialize(ConfigDeserializer(&entry.value))
            .map_err(|error| error.nested_in(&entry.key))
    }
}

/// The remaining items of a list, and the number of items that were read.
struct ArrayAccess<'v>(std::slice::Iter<'v, ConfigValue>, usize);

impl<'de> SeqAccess<'de> for ArrayAccess<'_> {
    type Error = ConfigError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ConfigError> {
        let Some(item) = self.0.next() else { return Ok(None) };
        let index = self.1;
        self.1 += 1;
        seed.deserialize(ConfigDeserializer(item))
            .map(Some)
            .map_err(|error| error.nested_in(&index.to_string()))
    }
}
