//! Serialises a type to a tree of settings.

use crate::error::ConfigError;
use crate::secret::{self, Secret};
use crate::value::{Entry, Kind, Origin, Value};
use serde::Serialize;
use serde::ser::{self, Serializer};

/// Serialises a value to a tree.
///
/// # Errors
/// The value contains something that settings cannot contain, such as bytes.
pub fn to_value<T: Serialize + ?Sized>(tree: &T) -> Result<Value, ConfigError> {
    tree.serialize(Ser).map(Value::code)
}

struct Ser;

fn unsupported(what: &str) -> ConfigError {
    ConfigError::new(format!("settings cannot be {what}"))
}

impl Serializer for Ser {
    type Ok = Kind;
    type Error = ConfigError;
    type SerializeSeq = Items;
    type SerializeTuple = Items;
    type SerializeTupleStruct = Items;
    type SerializeTupleVariant = ser::Impossible<Kind, ConfigError>;
    type SerializeMap = Entries;
    type SerializeStruct = Entries;
    type SerializeStructVariant = ser::Impossible<Kind, ConfigError>;

    fn serialize_bool(self, value: bool) -> Result<Kind, ConfigError> {
        Ok(Kind::Bool(value))
    }

    fn serialize_i8(self, value: i8) -> Result<Kind, ConfigError> {
        Ok(Kind::Integer(value.into()))
    }

    fn serialize_i16(self, value: i16) -> Result<Kind, ConfigError> {
        Ok(Kind::Integer(value.into()))
    }

    fn serialize_i32(self, value: i32) -> Result<Kind, ConfigError> {
        Ok(Kind::Integer(value.into()))
    }

    fn serialize_i64(self, value: i64) -> Result<Kind, ConfigError> {
        Ok(Kind::Integer(value.into()))
    }

    fn serialize_u8(self, value: u8) -> Result<Kind, ConfigError> {
        Ok(Kind::Integer(value.into()))
    }

    fn serialize_u16(self, value: u16) -> Result<Kind, ConfigError> {
        Ok(Kind::Integer(value.into()))
    }

    fn serialize_u32(self, value: u32) -> Result<Kind, ConfigError> {
        Ok(Kind::Integer(value.into()))
    }

    fn serialize_u64(self, value: u64) -> Result<Kind, ConfigError> {
        Ok(Kind::Integer(value.into()))
    }

    fn serialize_f32(self, value: f32) -> Result<Kind, ConfigError> {
        Ok(Kind::Float(value.into()))
    }

    fn serialize_f64(self, value: f64) -> Result<Kind, ConfigError> {
        Ok(Kind::Float(value))
    }

    fn serialize_char(self, value: char) -> Result<Kind, ConfigError> {
        Ok(Kind::Text(value.to_string()))
    }

    fn serialize_str(self, value: &str) -> Result<Kind, ConfigError> {
        Ok(Kind::Text(value.to_owned()))
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<Kind, ConfigError> {
        Err(unsupported("bytes"))
    }

    fn serialize_none(self) -> Result<Kind, ConfigError> {
        Ok(Kind::Nothing)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Kind, ConfigError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Kind, ConfigError> {
        Ok(Kind::Nothing)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Kind, ConfigError> {
        Ok(Kind::Nothing)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<Kind, ConfigError> {
        Ok(Kind::Text(variant.to_owned()))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<Kind, ConfigError> {
        Ok(match value.serialize(self)? {
            Kind::Text(text) if name == secret::NAME => Kind::Secret(Secret::new(text)),
            kind => kind,
        })
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<Kind, ConfigError> {
        Err(unsupported("variants with values"))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items, ConfigError> {
        Ok(Items(Vec::new()))
    }

    fn serialize_tuple(self, _: usize) -> Result<Items, ConfigError> {
        Ok(Items(Vec::new()))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Items, ConfigError> {
        Ok(Items(Vec::new()))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, ConfigError> {
        Err(unsupported("variants with values"))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Entries, ConfigError> {
        Ok(Entries::default())
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Entries, ConfigError> {
        Ok(Entries::default())
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, ConfigError> {
        Err(unsupported("variants with values"))
    }
}

/// The items of a list.
struct Items(Vec<Value>);

impl Items {
    fn push<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), ConfigError> {
        self.0.push(to_value(item)?);
        Ok(())
    }
}

impl ser::SerializeSeq for Items {
    type Ok = Kind;
    type Error = ConfigError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), ConfigError> {
        self.push(item)
    }

    fn end(self) -> Result<Kind, ConfigError> {
        Ok(Kind::List(self.0))
    }
}

impl ser::SerializeTuple for Items {
    type Ok = Kind;
    type Error = ConfigError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), ConfigError> {
        self.push(item)
    }

    fn end(self) -> Result<Kind, ConfigError> {
        Ok(Kind::List(self.0))
    }
}

impl ser::SerializeTupleStruct for Items {
    type Ok = Kind;
    type Error = ConfigError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), ConfigError> {
        self.push(item)
    }

    fn end(self) -> Result<Kind, ConfigError> {
        Ok(Kind::List(self.0))
    }
}

/// The entries of a table, and the key of the next value.
#[derive(Default)]
struct Entries {
    all: Vec<Entry>,
    key: String,
}

impl Entries {
    fn push<T: Serialize + ?Sized>(&mut self, key: String, value: &T) -> Result<(), ConfigError> {
        let value = to_value(value).map_err(|error| error.below(&key))?;
        self.all.push(Entry { key, origin: Origin::Code, value });
        Ok(())
    }
}

impl ser::SerializeMap for Entries {
    type Ok = Kind;
    type Error = ConfigError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), ConfigError> {
        match key.serialize(Ser)? {
            Kind::Text(key) => self.key = key,
            Kind::Integer(key) => self.key = key.to_string(),
            _ => return Err(unsupported("named by anything but strings")),
        }
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), ConfigError> {
        let key = std::mem::take(&mut self.key);
        self.push(key, value)
    }

    fn end(self) -> Result<Kind, ConfigError> {
        Ok(Kind::Table(self.all))
    }
}

impl ser::SerializeStruct for Entries {
    type Ok = Kind;
    type Error = ConfigError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), ConfigError> {
        self.push(key.to_owned(), value)
    }

    fn end(self) -> Result<Kind, ConfigError> {
        Ok(Kind::Table(self.all))
    }
}
