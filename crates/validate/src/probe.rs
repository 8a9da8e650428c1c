//! Finds the names of a struct's fields, which serde states before it reads any of them.

use crate::json_pointer::Shape;
use serde::de::{DeserializeOwned, Deserializer, Error, Visitor};
use std::fmt;

/// Returns the shape that serde requests for a `T` read from fields: a form, a query or a path.
pub(crate) fn probe_fields<T: DeserializeOwned>() -> Shape {
    match T::deserialize(FieldProbe) {
        Err(Probed::Struct(name, fields)) => {
            // Each name may have one value or several.
            let sent = fields.iter().map(|field| ((*field).to_owned(), Shape::Fields)).collect();
            Shape::Struct { name, fields, sent }
        }
        Err(Probed::Sequence) => Shape::Fields,
        _ => Shape::Leaf,
    }
}

/// A deserializer that reads nothing: each call fails with an error that contains the request.
struct FieldProbe;

#[derive(Debug)]
enum Probed {
    Struct(&'static str, &'static [&'static str]),
    Sequence,
    Other,
}

impl<'de> Deserializer<'de> for FieldProbe {
    type Error = Probed;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Probed> {
        Err(Probed::Other)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Probed> {
        Err(Probed::Struct(name, fields))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Probed> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Probed> {
        visitor.visit_some(self)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Probed> {
        Err(Probed::Sequence)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        _: V,
    ) -> Result<V::Value, Probed> {
        Err(Probed::Sequence)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Probed> {
        Err(Probed::Sequence)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct map enum identifier ignored_any
    }
}

impl Error for Probed {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self::Other
    }
}

impl fmt::Display for Probed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this deserializer reads nothing")
    }
}

impl std::error::Error for Probed {}
