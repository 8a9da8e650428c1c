//! Deserialises a type from a tree of settings, with positions for errors.

use crate::error::ConfigError;
use crate::value::{Entry, Kind, Origin, Value};
use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;

pub(crate) fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, ConfigError> {
    T::deserialize(De(value))
}

/// Deserialises one setting.
#[derive(Clone, Copy)]
struct De<'v>(&'v Value);

impl De<'_> {
    fn unexpected(&self) -> Unexpected<'_> {
        match &self.0.kind {
            Kind::Nothing => Unexpected::Unit,
            Kind::Bool(is) => Unexpected::Bool(*is),
            Kind::Integer(number) => {
                i64::try_from(*number).map_or(Unexpected::Other("a number"), Unexpected::Signed)
            }
            Kind::Float(number) => Unexpected::Float(*number),
            Kind::Text(text) => Unexpected::Str(text),
            Kind::Secret(_) => Unexpected::Other("a secret"),
            Kind::List(_) => Unexpected::Seq,
            Kind::Table(_) => Unexpected::Map,
        }
    }

    fn wrong<'de>(&self, visitor: &impl Visitor<'de>) -> ConfigError {
        self.unlike(self.unexpected(), visitor)
    }

    fn unlike<'de>(&self, found: Unexpected<'_>, visitor: &impl Visitor<'de>) -> ConfigError {
        let error: ConfigError = serde::de::Error::invalid_type(found, visitor);
        error.at(&self.0.origin)
    }

    /// The text of an environment variable, which may represent any type.
    fn variable(&self) -> Option<&str> {
        match (&self.0.kind, &self.0.origin) {
            (Kind::Text(text), Origin::Variable(_)) => Some(text.trim()),
            _ => None,
        }
    }

    /// A number, which may be given as the text of a variable.
    fn number<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        let parsed = self.variable().and_then(|text| text.replace('_', "").parse::<i128>().ok());
        match parsed {
            Some(number) => integer(number, visitor).map_err(|error| error.at(&self.0.origin)),
            None => self.deserialize_any(visitor),
        }
    }
}

fn integer<'de, V: Visitor<'de>>(number: i128, visitor: V) -> Result<V::Value, ConfigError> {
    if let Ok(number) = u64::try_from(number) {
        visitor.visit_u64(number)
    } else if let Ok(number) = i64::try_from(number) {
        visitor.visit_i64(number)
    } else {
        visitor.visit_i128(number)
    }
}

impl<'de> Deserializer<'de> for De<'_> {
    type Error = ConfigError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        let read = match &self.0.kind {
            Kind::Nothing => visitor.visit_unit(),
            Kind::Bool(is) => visitor.visit_bool(*is),
            Kind::Integer(number) => integer(*number, visitor),
            Kind::Float(number) => visitor.visit_f64(*number),
            Kind::Text(text) => visitor.visit_str(text),
            Kind::Secret(secret) => visitor.visit_str(secret.expose()),
            Kind::List(all) => visitor.visit_seq(Items(all.iter(), 0)),
            Kind::Table(entries) => visitor.visit_map(Entries(entries.iter(), None)),
        };
        read.map_err(|error| error.at(&self.0.origin))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        match self.variable() {
            Some("true" | "yes" | "on" | "1") => visitor.visit_bool(true),
            Some("false" | "no" | "off" | "0") => visitor.visit_bool(false),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_i8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.number(visitor)
    }

    fn deserialize_i16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.number(visitor)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.number(visitor)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.number(visitor)
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.number(visitor)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.number(visitor)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.number(visitor)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.number(visitor)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        match (&self.0.kind, self.variable().and_then(|text| text.parse::<f64>().ok())) {
            (_, Some(number)) => visitor.visit_f64(number),
            (Kind::Integer(number), _) => visitor.visit_f64(*number as f64),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        match (&self.0.kind, self.variable()) {
            (Kind::Nothing, _) | (_, Some("")) => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        match (&self.0.kind, self.variable()) {
            (_, Some(text)) => {
                let item = |item: &str| Value {
                    kind: Kind::Text(item.trim().to_owned()),
                    origin: self.0.origin.clone(),
                };
                let all = text.split(',').filter(|item| !item.trim().is_empty());
                let all: Vec<_> = all.map(item).collect();
                visitor.visit_seq(Items(all.iter(), 0)).map_err(|error| error.at(&self.0.origin))
            }
            (Kind::List(_), _) => self.deserialize_any(visitor),
            _ => Err(self.wrong(&visitor)),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        match &self.0.kind {
            // The text stands for a table, which may contain secrets.
            Kind::Text(_) => Err(self.unlike(Unexpected::Other("a text"), &visitor)),
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
            Kind::Text(text) => {
                let word: StrDeserializer<'_, ConfigError> = text.trim().into_deserializer();
                visitor.visit_enum(word).map_err(|error| error.at(&self.0.origin))
            }
            _ => Err(self.wrong(&visitor)),
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

/// The entries of a table, and the entry whose key was read last.
struct Entries<'v>(std::slice::Iter<'v, Entry>, Option<&'v Entry>);

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = ConfigError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ConfigError> {
        // Unset settings are skipped, so their defaults apply.
        let entry = self.0.by_ref().find(|entry| entry.value.kind != Kind::Nothing);
        let Some(entry) = entry else { return Ok(None) };
        self.1 = Some(entry);
        let name: StrDeserializer<'_, ConfigError> = entry.key.as_str().into_deserializer();
        seed.deserialize(name).map(Some).map_err(|error| error.at(&entry.origin))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, ConfigError> {
        let entry = self.1.take().expect("serde reads the key first");
        seed.deserialize(De(&entry.value)).map_err(|error| error.below(&entry.key))
    }
}

/// The items of a list, and how many were read.
struct Items<'v>(std::slice::Iter<'v, Value>, usize);

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = ConfigError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ConfigError> {
        let Some(item) = self.0.next() else { return Ok(None) };
        let number = self.1;
        self.1 += 1;
        seed.deserialize(De(item)).map(Some).map_err(|error| error.below(&number.to_string()))
    }
}
