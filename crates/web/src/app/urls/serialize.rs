//! A serde serializer that collects the values for the parameters of a path.

use super::UrlError;
use serde::ser::{
    Error, Impossible, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeTuple,
    SerializeTupleStruct, Serializer,
};
use std::fmt;

/// The values of parameters, in order or by name. A value that is `None` is omitted.
pub(super) enum ParameterValues {
    Ordered(Vec<String>),
    Named(Vec<(String, String)>),
}

impl ParameterValues {
    pub(super) fn from_serialize<T: Serialize + ?Sized>(values: &T) -> Result<Self, UrlError> {
        values.serialize(ValuesSerializer)
    }

    /// The values in the order of `names`, if there is exactly one for each of these parameters.
    pub(super) fn ordered(&self, names: &[String]) -> Option<Vec<&str>> {
        match self {
            Self::Ordered(values) if values.len() == names.len() => {
                Some(values.iter().map(String::as_str).collect())
            }
            Self::Named(values) if values.len() == names.len() => {
                let value = |name: &String| values.iter().find(|(key, _)| key == name);
                names.iter().map(|name| value(name).map(|(_, value)| value.as_str())).collect()
            }
            _ => None,
        }
    }
}

impl fmt::Display for ParameterValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let formatted: Vec<String> = match self {
            Self::Ordered(values) => values.clone(),
            Self::Named(values) => {
                values.iter().map(|(name, value)| format!("{name}={value}")).collect()
            }
        };
        if formatted.is_empty() { f.write_str("none") } else { f.write_str(&formatted.join(", ")) }
    }
}

impl Error for UrlError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

fn not_scalar(found: &str) -> UrlError {
    UrlError(format!("the value of a parameter is {found}: give each parameter one simple value"))
}

#[cold]
fn after_none(value: &str) -> UrlError {
    UrlError(format!("the value `{value}` follows a `None`: only the last values may be `None`"))
}

/// Serializes the values of all parameters: a single value, a list, or named values.
struct ValuesSerializer;

/// Collects values in order. Only the last ones may be `None`: a value after a `None` would fill
/// the wrong parameter.
#[derive(Default)]
struct SeqSerializer {
    values: Vec<String>,
    has_none: bool,
}

/// Collects named values; `name` is the key of the next value.
#[derive(Default)]
struct MapSerializer {
    pairs: Vec<(String, String)>,
    name: String,
}

macro_rules! serialize_scalars {
    ($($method:ident $type:ty;)*) => {
        $(fn $method(self, value: $type) -> Result<ParameterValues, UrlError> {
            ScalarSerializer.$method(value).map(|value| ParameterValues::Ordered(value.into_iter().collect()))
        })*
    };
}

impl Serializer for ValuesSerializer {
    type Ok = ParameterValues;
    type Error = UrlError;
    type SerializeSeq = SeqSerializer;
    type SerializeTuple = SeqSerializer;
    type SerializeTupleStruct = SeqSerializer;
    type SerializeTupleVariant = Impossible<ParameterValues, UrlError>;
    type SerializeMap = MapSerializer;
    type SerializeStruct = MapSerializer;
    type SerializeStructVariant = Impossible<ParameterValues, UrlError>;

    serialize_scalars! {
        serialize_bool bool;
        serialize_i8 i8;
        serialize_i16 i16;
        serialize_i32 i32;
        serialize_i64 i64;
        serialize_i128 i128;
        serialize_u8 u8;
        serialize_u16 u16;
        serialize_u32 u32;
        serialize_u64 u64;
        serialize_u128 u128;
        serialize_f32 f32;
        serialize_f64 f64;
        serialize_char char;
        serialize_str &str;
        serialize_bytes &[u8];
    }

    fn serialize_none(self) -> Result<ParameterValues, UrlError> {
        Ok(ParameterValues::Ordered(Vec::new()))
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<ParameterValues, UrlError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<ParameterValues, UrlError> {
        self.serialize_none()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<ParameterValues, UrlError> {
        self.serialize_none()
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
    ) -> Result<ParameterValues, UrlError> {
        self.serialize_str(name)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<ParameterValues, UrlError> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<ParameterValues, UrlError> {
        Err(not_scalar("a variant with a value"))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<SeqSerializer, UrlError> {
        Ok(SeqSerializer::default())
    }

    fn serialize_tuple(self, _: usize) -> Result<SeqSerializer, UrlError> {
        Ok(SeqSerializer::default())
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<SeqSerializer, UrlError> {
        Ok(SeqSerializer::default())
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, UrlError> {
        Err(not_scalar("a variant with values"))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<MapSerializer, UrlError> {
        Ok(MapSerializer::default())
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<MapSerializer, UrlError> {
        Ok(MapSerializer::default())
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, UrlError> {
        Err(not_scalar("a variant with values"))
    }
}

macro_rules! impl_seq_serializer {
    ($($trait:ident $method:ident)*) => {
        $(impl $trait for SeqSerializer {
            type Ok = ParameterValues;
            type Error = UrlError;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), UrlError> {
                match value.serialize(ScalarSerializer)? {
                    None => self.has_none = true,
                    Some(value) if self.has_none => return Err(after_none(&value)),
                    Some(value) => self.values.push(value),
                }
                Ok(())
            }

            fn end(self) -> Result<ParameterValues, UrlError> {
                Ok(ParameterValues::Ordered(self.values))
            }
        })*
    };
}

impl_seq_serializer! {
    SerializeSeq serialize_element
    SerializeTuple serialize_element
    SerializeTupleStruct serialize_field
}

impl SerializeMap for MapSerializer {
    type Ok = ParameterValues;
    type Error = UrlError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), UrlError> {
        self.name = key.serialize(ScalarSerializer)?.ok_or_else(|| not_scalar("without a name"))?;
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), UrlError> {
        if let Some(value) = value.serialize(ScalarSerializer)? {
            self.pairs.push((std::mem::take(&mut self.name), value));
        }
        Ok(())
    }

    fn end(self) -> Result<ParameterValues, UrlError> {
        Ok(ParameterValues::Named(self.pairs))
    }
}

impl SerializeStruct for MapSerializer {
    type Ok = ParameterValues;
    type Error = UrlError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), UrlError> {
        if let Some(value) = value.serialize(ScalarSerializer)? {
            self.pairs.push((name.to_owned(), value));
        }
        Ok(())
    }

    fn end(self) -> Result<ParameterValues, UrlError> {
        Ok(ParameterValues::Named(self.pairs))
    }
}

/// Serializes one value to text; `None` for an omitted value.
struct ScalarSerializer;

macro_rules! serialize_display {
    ($($method:ident $type:ty;)*) => {
        $(fn $method(self, value: $type) -> Result<Option<String>, UrlError> {
            Ok(Some(value.to_string()))
        })*
    };
}

type Never = Impossible<Option<String>, UrlError>;

impl Serializer for ScalarSerializer {
    type Ok = Option<String>;
    type Error = UrlError;
    type SerializeSeq = Never;
    type SerializeTuple = Never;
    type SerializeTupleStruct = Never;
    type SerializeTupleVariant = Never;
    type SerializeMap = Never;
    type SerializeStruct = Never;
    type SerializeStructVariant = Never;

    serialize_display! {
        serialize_bool bool;
        serialize_i8 i8;
        serialize_i16 i16;
        serialize_i32 i32;
        serialize_i64 i64;
        serialize_i128 i128;
        serialize_u8 u8;
        serialize_u16 u16;
        serialize_u32 u32;
        serialize_u64 u64;
        serialize_u128 u128;
        serialize_f32 f32;
        serialize_f64 f64;
        serialize_char char;
        serialize_str &str;
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<Option<String>, UrlError> {
        String::from_utf8(value.to_vec())
            .map(Some)
            .map_err(|_| not_scalar("bytes that are not UTF-8"))
    }

    fn serialize_none(self) -> Result<Option<String>, UrlError> {
        Ok(None)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Option<String>, UrlError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Option<String>, UrlError> {
        Ok(None)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Option<String>, UrlError> {
        Ok(None)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
    ) -> Result<Option<String>, UrlError> {
        Ok(Some(name.to_owned()))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Option<String>, UrlError> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<Option<String>, UrlError> {
        Err(not_scalar("a variant with a value"))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Never, UrlError> {
        Err(not_scalar("a list"))
    }

    fn serialize_tuple(self, _: usize) -> Result<Never, UrlError> {
        Err(not_scalar("a tuple"))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Never, UrlError> {
        Err(not_scalar("a tuple"))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Never, UrlError> {
        Err(not_scalar("a variant with values"))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Never, UrlError> {
        Err(not_scalar("a map"))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Never, UrlError> {
        Err(not_scalar("a struct"))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Never, UrlError> {
        Err(not_scalar("a variant with values"))
    }
}
