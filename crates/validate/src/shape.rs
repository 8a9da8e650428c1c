//! The names of a struct's fields, which serde states before it reads any.

use crate::names::Shape;
use serde::de::{DeserializeOwned, Deserializer, Error, Visitor};
use std::fmt;

/// The shape that serde requests for a `T` read from fields: a form, a query or a path.
pub(crate) fn of_fields<T: DeserializeOwned>() -> Shape {
    match T::deserialize(Ask) {
        Err(Answer::Struct(name, fields)) => {
            // Each name may have one value or several.
            let sent = fields.iter().map(|field| ((*field).to_owned(), Shape::Fields)).collect();
            Shape::Struct { name, fields, sent }
        }
        Err(Answer::Sequence) => Shape::Fields,
        _ => Shape::Leaf,
    }
}

/// A deserializer that reads nothing: each call fails with an error that contains the request.
struct Ask;

#[derive(Debug)]
enum Answer {
    Struct(&'static str, &'static [&'static str]),
    Sequence,
    Other,
}

impl<'de> Deserializer<'de> for Ask {
    type Error = Answer;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Answer> {
        Err(Answer::Other)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Answer> {
        Err(Answer::Struct(name, fields))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Answer> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Answer> {
        visitor.visit_some(self)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Answer> {
        Err(Answer::Sequence)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        _: V,
    ) -> Result<V::Value, Answer> {
        Err(Answer::Sequence)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Answer> {
        Err(Answer::Sequence)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct map enum identifier ignored_any
    }
}

impl Error for Answer {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self::Other
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this deserializer reads nothing")
    }
}

impl std::error::Error for Answer {}
