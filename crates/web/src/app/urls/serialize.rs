//! A serde serializer that collects the values for the parameters of a path.

use super::UrlError;
use serde::ser::{
    Error, Impossible, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeTuple,
    SerializeTupleStruct, Serializer,
};
use std::fmt;

/// The given values, in order or by name. A value that is `None` is omitted.
pub(super) enum Given {
    InOrder(Vec<String>),
    ByName(Vec<(String, String)>),
}

impl Given {
    pub(super) fn of<T: Serialize + ?Sized>(values: &T) -> Result<Self, UrlError> {
        values.serialize(All)
    }

    /// The values of the parameters `names`, if exactly these are given.
    pub(super) fn in_order(&self, names: &[String]) -> Option<Vec<&str>> {
        match self {
            Self::InOrder(values) if values.len() == names.len() => {
                Some(values.iter().map(String::as_str).collect())
            }
            Self::ByName(values) if values.len() == names.len() => {
                let value = |name: &String| values.iter().find(|(known, _)| known == name);
                names.iter().map(|name| value(name).map(|(_, value)| value.as_str())).collect()
            }
            _ => None,
        }
    }
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = match self {
            Self::InOrder(values) => values.clone(),
            Self::ByName(values) => {
                values.iter().map(|(name, value)| format!("{name}={value}")).collect()
            }
        };
        if all.is_empty() { f.write_str("none") } else { f.write_str(&all.join(", ")) }
    }
}

impl Error for UrlError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

fn no_text(what: &str) -> UrlError {
    UrlError(format!("the value of a parameter is {what}: give each parameter one simple value"))
}

/// Serializes all values: one value, a list, or named values.
struct All;

/// Collects values in order.
#[derive(Default)]
struct Listed(Vec<String>);

/// Collects named values; `name` is the key of the next value.
#[derive(Default)]
struct Named {
    all: Vec<(String, String)>,
    name: String,
}

macro_rules! one_of_all {
    ($($method:ident $type:ty;)*) => {
        $(fn $method(self, value: $type) -> Result<Given, UrlError> {
            One.$method(value).map(|value| Given::InOrder(value.into_iter().collect()))
        })*
    };
}

impl Serializer for All {
    type Ok = Given;
    type Error = UrlError;
    type SerializeSeq = Listed;
    type SerializeTuple = Listed;
    type SerializeTupleStruct = Listed;
    type SerializeTupleVariant = Impossible<Given, UrlError>;
    type SerializeMap = Named;
    type SerializeStruct = Named;
    type SerializeStructVariant = Impossible<Given, UrlError>;

    one_of_all! {
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

    fn serialize_none(self) -> Result<Given, UrlError> {
        Ok(Given::InOrder(Vec::new()))
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Given, UrlError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Given, UrlError> {
        self.serialize_none()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Given, UrlError> {
        self.serialize_none()
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
    ) -> Result<Given, UrlError> {
        self.serialize_str(name)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Given, UrlError> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<Given, UrlError> {
        Err(no_text("a variant with a value"))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Listed, UrlError> {
        Ok(Listed::default())
    }

    fn serialize_tuple(self, _: usize) -> Result<Listed, UrlError> {
        Ok(Listed::default())
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Listed, UrlError> {
        Ok(Listed::default())
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, UrlError> {
        Err(no_text("a variant with values"))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Named, UrlError> {
        Ok(Named::default())
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Named, UrlError> {
        Ok(Named::default())
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, UrlError> {
        Err(no_text("a variant with values"))
    }
}

macro_rules! listed {
    ($($trait:ident $method:ident)*) => {
        $(impl $trait for Listed {
            type Ok = Given;
            type Error = UrlError;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), UrlError> {
                self.0.extend(value.serialize(One)?);
                Ok(())
            }

            fn end(self) -> Result<Given, UrlError> {
                Ok(Given::InOrder(self.0))
            }
        })*
    };
}

listed! {
    SerializeSeq serialize_element
    SerializeTuple serialize_element
    SerializeTupleStruct serialize_field
}

impl SerializeMap for Named {
    type Ok = Given;
    type Error = UrlError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), UrlError> {
        self.name = key.serialize(One)?.ok_or_else(|| no_text("without a name"))?;
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), UrlError> {
        if let Some(value) = value.serialize(One)? {
            self.all.push((std::mem::take(&mut self.name), value));
        }
        Ok(())
    }

    fn end(self) -> Result<Given, UrlError> {
        Ok(Given::ByName(self.all))
    }
}

impl SerializeStruct for Named {
    type Ok = Given;
    type Error = UrlError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), UrlError> {
        if let Some(value) = value.serialize(One)? {
            self.all.push((name.to_owned(), value));
        }
        Ok(())
    }

    fn end(self) -> Result<Given, UrlError> {
        Ok(Given::ByName(self.all))
    }
}

/// Serializes one value to text; `None` if it is not given.
struct One;

macro_rules! displayed {
    ($($method:ident $type:ty;)*) => {
        $(fn $method(self, value: $type) -> Result<Option<String>, UrlError> {
            Ok(Some(value.to_string()))
        })*
    };
}

type Never = Impossible<Option<String>, UrlError>;

impl Serializer for One {
    type Ok = Option<String>;
    type Error = UrlError;
    type SerializeSeq = Never;
    type SerializeTuple = Never;
    type SerializeTupleStruct = Never;
    type SerializeTupleVariant = Never;
    type SerializeMap = Never;
    type SerializeStruct = Never;
    type SerializeStructVariant = Never;

    displayed! {
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
        String::from_utf8(value.to_vec()).map(Some).map_err(|_| no_text("bytes that are not UTF-8"))
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
        Err(no_text("a variant with a value"))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Never, UrlError> {
        Err(no_text("a list"))
    }

    fn serialize_tuple(self, _: usize) -> Result<Never, UrlError> {
        Err(no_text("a tuple"))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Never, UrlError> {
        Err(no_text("a tuple"))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Never, UrlError> {
        Err(no_text("a variant with values"))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Never, UrlError> {
        Err(no_text("a map"))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Never, UrlError> {
        Err(no_text("a struct"))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Never, UrlError> {
        Err(no_text("a variant with values"))
    }
}
