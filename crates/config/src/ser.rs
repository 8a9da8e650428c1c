//! Serialises a type to a tree of settings.

use crate::error::ConfigError;
use crate::secret_string::{self, SecretString};
use crate::value::{ConfigValue, SourceLocation, TableEntry, ValueKind};
use serde::Serialize;
use serde::ser::{self, Serializer};

/// Serialises a value to a tree.
///
/// # Errors
/// The value contains a type that settings cannot contain, such as bytes.
pub fn to_value<T: Serialize + ?Sized>(tree: &T) -> Result<ConfigValue, ConfigError> {
    tree.serialize(ConfigSerializer).map(ConfigValue::default_value)
}

struct ConfigSerializer;

fn unsupported(what: &str) -> ConfigError {
    ConfigError::new(format!("settings cannot be {what}"))
}

impl Serializer for ConfigSerializer {
    type Ok = ValueKind;
    type Error = ConfigError;
    type SerializeSeq = ArraySerializer;
    type SerializeTuple = ArraySerializer;
    type SerializeTupleStruct = ArraySerializer;
    type SerializeTupleVariant = ser::Impossible<ValueKind, ConfigError>;
    type SerializeMap = TableSerializer;
    type SerializeStruct = TableSerializer;
    type SerializeStructVariant = ser::Impossible<ValueKind, ConfigError>;

    fn serialize_bool(self, value: bool) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::Bool(value))
    }

    fn serialize_i8(self, value: i8) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::Integer(value.into()))
    }

    fn serialize_i16(self, value: i16) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::Integer(value.into()))
    }

    fn serialize_i32(self, value: i32) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::Integer(value.into()))
    }

    fn serialize_i64(self, value: i64) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::Integer(value.into()))
    }

    fn serialize_u8(self, value: u8) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::Integer(value.into()))
    }

    fn serialize_u16(self, value: u16) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::Integer(value.into()))
    }

    fn serialize_u32(self, value: u32) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::Integer(value.into()))
    }

    fn serialize_u64(self, value: u64) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::Integer(value.into()))
    }

    fn serialize_f32(self, value: f32) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::Float(value.into()))
    }

    fn serialize_f64(self, value: f64) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::Float(value))
    }

    fn serialize_char(self, value: char) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::String(value.to_string()))
    }

    fn serialize_str(self, value: &str) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::String(value.to_owned()))
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<ValueKind, ConfigError> {
        Err(unsupported("bytes"))
    }

    fn serialize_none(self) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::Nil)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<ValueKind, ConfigError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::Nil)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::Nil)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::String(variant.to_owned()))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<ValueKind, ConfigError> {
        Ok(match value.serialize(self)? {
            ValueKind::String(text) if name == secret_string::NEWTYPE_NAME => {
                ValueKind::Secret(SecretString::new(text))
            }
            kind => kind,
        })
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<ValueKind, ConfigError> {
        Err(unsupported("variants with values"))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<ArraySerializer, ConfigError> {
        Ok(ArraySerializer(Vec::new()))
    }

    fn serialize_tuple(self, _: usize) -> Result<ArraySerializer, ConfigError> {
        Ok(ArraySerializer(Vec::new()))
    }

    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<ArraySerializer, ConfigError> {
        Ok(ArraySerializer(Vec::new()))
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

    fn serialize_map(self, _: Option<usize>) -> Result<TableSerializer, ConfigError> {
        Ok(TableSerializer::default())
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<TableSerializer, ConfigError> {
        Ok(TableSerializer::default())
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

/// Collects the items of a list.
struct ArraySerializer(Vec<ConfigValue>);

impl ArraySerializer {
    fn push<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), ConfigError> {
        self.0.push(to_value(item)?);
        Ok(())
    }
}

impl ser::SerializeSeq for ArraySerializer {
    type Ok = ValueKind;
    type Error = ConfigError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), ConfigError> {
        self.push(item)
    }

    fn end(self) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::Array(self.0))
    }
}

impl ser::SerializeTuple for ArraySerializer {
    type Ok = ValueKind;
    type Error = ConfigError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), ConfigError> {
        self.push(item)
    }

    fn end(self) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::Array(self.0))
    }
}

impl ser::SerializeTupleStruct for ArraySerializer {
    type Ok = ValueKind;
    type Error = ConfigError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), ConfigError> {
        self.push(item)
    }

    fn end(self) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::Array(self.0))
    }
}

/// Collects the entries of a table.
#[derive(Default)]
struct TableSerializer {
    entries: Vec<TableEntry>,
    /// The key of the next value.
    key: String,
}

impl TableSerializer {
    fn push<T: Serialize + ?Sized>(&mut self, key: String, value: &T) -> Result<(), ConfigError> {
        let value = to_value(value).map_err(|error| error.nested_in(&key))?;
        self.entries.push(TableEntry { key, key_location: SourceLocation::Default, value });
        Ok(())
    }
}

impl ser::SerializeMap for TableSerializer {
    type Ok = ValueKind;
    type Error = ConfigError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), ConfigError> {
        match key.serialize(ConfigSerializer)? {
            ValueKind::String(key) => self.key = key,
            ValueKind::Integer(key) => self.key = key.to_string(),
            _ => return Err(unsupported("named by anything but strings")),
        }
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), ConfigError> {
        let key = std::mem::take(&mut self.key);
        self.push(key, value)
    }

    fn end(self) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::Table(self.entries))
    }
}

impl ser::SerializeStruct for TableSerializer {
    type Ok = ValueKind;
    type Error = ConfigError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), ConfigError> {
        self.push(key.to_owned(), value)
    }

    fn end(self) -> Result<ValueKind, ConfigError> {
        Ok(ValueKind::Table(self.entries))
    }
}
