//! Deserializes a JSON document a second time, and records what serde requests at each place.

use crate::json_pointer::Shape;
use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};
use serde_json::{Error, Value, map};
use std::slice;

/// Records what serde requests while it reads the document as a `T`, up to the first failure.
pub(crate) fn record_shape<T: DeserializeOwned>(json: &[u8]) -> Shape {
    let mut shape = Shape::Leaf;
    if let Ok(document) = serde_json::from_slice(json) {
        // The document was valid before. If it fails now, as with 128-bit numbers, only the
        // recording ends early.
        let _ = T::deserialize(RecordingDeserializer { value: &document, shape: &mut shape });
    }
    shape
}

struct RecordingDeserializer<'de, 's> {
    value: &'de Value,
    shape: &'s mut Shape,
}

impl<'de> Deserializer<'de> for RecordingDeserializer<'de, '_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Array(items) => {
                *self.shape = Shape::List(Vec::new());
                let Shape::List(shapes) = self.shape else { return Err(recording_stopped()) };
                visitor.visit_seq(RecordingSeqAccess { items: items.iter(), shapes })
            }
            Value::Object(members) => {
                *self.shape = Shape::Map(Vec::new());
                let Shape::Map(sent) = self.shape else { return Err(recording_stopped()) };
                visitor.visit_map(RecordingMapAccess { members: members.iter(), value: None, sent })
            }
            scalar => scalar.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let Value::Object(members) = self.value else { return self.deserialize_any(visitor) };
        *self.shape = Shape::Struct { name, fields, sent: Vec::new() };
        let Shape::Struct { sent, .. } = self.shape else { return Err(recording_stopped()) };
        visitor.visit_map(RecordingMapAccess { members: members.iter(), value: None, sent })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        // serde_json encodes its own types, such as `RawValue`, in a private form.
        if name.starts_with("$serde_json") {
            return self.value.deserialize_newtype_struct(name, visitor);
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let Value::Object(members) = self.value else {
            return self.value.deserialize_enum(name, variants, visitor);
        };
        let mut members = members.iter();
        let (Some((variant, value)), None) = (members.next(), members.next()) else {
            return Err(recording_stopped());
        };
        *self.shape = Shape::Variant(variant.clone(), Box::default());
        let Shape::Variant(_, shape) = self.shape else { return Err(recording_stopped()) };
        visitor.visit_enum(RecordingEnumAccess {
            variant,
            inner: RecordingDeserializer { value, shape },
        })
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// An error that ends the recording early. It is never shown.
fn recording_stopped() -> Error {
    serde::de::Error::custom("the recording ends here")
}

struct RecordingSeqAccess<'de, 's> {
    items: slice::Iter<'de, Value>,
    shapes: &'s mut Vec<Shape>,
}

impl<'de> SeqAccess<'de> for RecordingSeqAccess<'de, '_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let Some(value) = self.items.next() else { return Ok(None) };
        self.shapes.push(Shape::Leaf);
        let shape = self.shapes.last_mut().ok_or_else(recording_stopped)?;
        seed.deserialize(RecordingDeserializer { value, shape }).map(Some)
    }
}

struct RecordingMapAccess<'de, 's> {
    members: map::Iter<'de>,
    value: Option<&'de Value>,
    sent: &'s mut Vec<(String, Shape)>,
}

impl<'de> MapAccess<'de> for RecordingMapAccess<'de, '_> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let Some((name, value)) = self.members.next() else { return Ok(None) };
        self.value = Some(value);
        self.sent.push((name.clone(), Shape::Leaf));
        seed.deserialize(KeyDeserializer(name)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let value = self.value.take().ok_or_else(recording_stopped)?;
        let (_, shape) = self.sent.last_mut().ok_or_else(recording_stopped)?;
        seed.deserialize(RecordingDeserializer { value, shape })
    }
}

/// Deserializes the name of a member, which may be the text of a number.
struct KeyDeserializer<'de>(&'de str);

macro_rules! numbers {
    ($($name:ident $visit:ident)*) => {
        $(
            fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
                match self.0.parse() {
                    Ok(number) => visitor.$visit(number),
                    Err(_) => Err(recording_stopped()),
                }
            }
        )*
    };
}

impl<'de> Deserializer<'de> for KeyDeserializer<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_borrowed_str(self.0)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let name: StrDeserializer<'de, Error> = self.0.into_deserializer();
        visitor.visit_enum(name)
    }

    numbers! {
        deserialize_bool visit_bool deserialize_i8 visit_i8 deserialize_i16 visit_i16
        deserialize_i32 visit_i32 deserialize_i64 visit_i64 deserialize_i128 visit_i128
        deserialize_u8 visit_u8 deserialize_u16 visit_u16 deserialize_u32 visit_u32
        deserialize_u64 visit_u64 deserialize_u128 visit_u128 deserialize_f32 visit_f32
        deserialize_f64 visit_f64
    }

    serde::forward_to_deserialize_any! {
        char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier
        ignored_any
    }
}

struct RecordingEnumAccess<'de, 's> {
    variant: &'de str,
    inner: RecordingDeserializer<'de, 's>,
}

impl<'de, 's> EnumAccess<'de> for RecordingEnumAccess<'de, 's> {
    type Error = Error;
    type Variant = RecordingDeserializer<'de, 's>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, RecordingDeserializer<'de, 's>), Error> {
        Ok((seed.deserialize(KeyDeserializer(self.variant))?, self.inner))
    }
}

impl<'de> VariantAccess<'de> for RecordingDeserializer<'de, '_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Error> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_struct("", fields, visitor)
    }
}
