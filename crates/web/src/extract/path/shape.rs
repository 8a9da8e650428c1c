//! Finds the path parameters that a type expects, without a request, by letting the type
//! deserialize itself from a probe.

use crate::http::requirements::{PathShape, RouteRequirements};
use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use std::fmt;

/// Records what `T` needs: a number of parameters, or the names of its required fields. Records
/// nothing for maps, lists, and types that choose their shape during deserialization.
pub(super) fn require<T: DeserializeOwned>(requirements: &mut RouteRequirements) {
    let mut shape = Shape::Unknown;
    let _ = T::deserialize(Probe { shape: &mut shape });
    match shape {
        Shape::Unknown => {}
        Shape::Count(count) => requirements.path(PathShape::Count(count)),
        Shape::Struct(fields) => {
            for (index, field) in fields.iter().enumerate() {
                let result = T::deserialize(MissingFieldProbe { field });
                if matches!(result, Err(ProbeStop::MissingField(name)) if name == *field) {
                    requirements.path(PathShape::Names(&fields[index..=index]));
                }
            }
        }
    }
}

/// The first value that a type requests.
enum Shape {
    /// None yet, or one that does not determine the parameters.
    Unknown,
    /// A single value, or a tuple of this length.
    Count(usize),
    /// A struct with these fields, required or not.
    Struct(&'static [&'static str]),
}

/// How a type's attempt to deserialize itself ended.
#[derive(Debug)]
enum ProbeStop {
    /// The probe has recorded what it can, or the type failed for another reason.
    Done,
    /// The type requires this field, which the probe left out.
    MissingField(&'static str),
}

impl fmt::Display for ProbeStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for ProbeStop {}

impl Error for ProbeStop {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self::Done
    }

    fn missing_field(field: &'static str) -> Self {
        Self::MissingField(field)
    }
}

/// Records the first value that a type requests, then fails.
struct Probe<'s> {
    shape: &'s mut Shape,
}

macro_rules! single_value {
    ($($method:ident)*) => {
        $(
            fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ProbeStop> {
                *self.shape = Shape::Count(1);
                Err(ProbeStop::Done)
            }
        )*
    };
}

macro_rules! unknown {
    ($($method:ident)*) => {
        $(
            fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ProbeStop> {
                Err(ProbeStop::Done)
            }
        )*
    };
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = ProbeStop;

    single_value! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_i128 deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
        deserialize_u128 deserialize_f32 deserialize_f64 deserialize_char deserialize_str
        deserialize_string deserialize_bytes deserialize_byte_buf
    }

    unknown! {
        deserialize_any deserialize_option deserialize_unit deserialize_seq deserialize_map
        deserialize_identifier deserialize_ignored_any
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: V,
    ) -> Result<V::Value, ProbeStop> {
        Err(ProbeStop::Done)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ProbeStop> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        length: usize,
        _: V,
    ) -> Result<V::Value, ProbeStop> {
        *self.shape = Shape::Count(length);
        Err(ProbeStop::Done)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, ProbeStop> {
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, ProbeStop> {
        *self.shape = Shape::Struct(fields);
        Err(ProbeStop::Done)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, ProbeStop> {
        *self.shape = Shape::Count(1);
        Err(ProbeStop::Done)
    }
}

/// A struct with every field except one. If the type reports that the field is missing, it requires
/// that field. Each other field gets a value that most types accept. If the type of another field
/// rejects that value, the probe does not detect the missing field, and only a request reveals a
/// mismatch.
struct MissingFieldProbe {
    field: &'static str,
}

impl<'de> Deserializer<'de> for MissingFieldProbe {
    type Error = ProbeStop;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ProbeStop> {
        Err(ProbeStop::Done)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ProbeStop> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ProbeStop> {
        visitor.visit_map(OtherFields { fields, without: self.field })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The fields of a struct except `without`, with sample values.
struct OtherFields {
    fields: &'static [&'static str],
    without: &'static str,
}

impl<'de> MapAccess<'de> for OtherFields {
    type Error = ProbeStop;

    fn next_key_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ProbeStop> {
        while let Some((first, rest)) = self.fields.split_first() {
            self.fields = rest;
            if *first != self.without {
                let name: StrDeserializer<'_, ProbeStop> = first.into_deserializer();
                return seed.deserialize(name).map(Some);
            }
        }
        Ok(None)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, ProbeStop> {
        seed.deserialize(SampleValue)
    }
}

/// Deserializes as a sample value of whichever type is requested.
struct SampleValue;

macro_rules! sample_values {
    ($($method:ident $visit:ident $value:expr;)*) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeStop> {
                visitor.$visit($value)
            }
        )*
    };
}

impl<'de> Deserializer<'de> for SampleValue {
    type Error = ProbeStop;

    sample_values! {
        deserialize_bool visit_bool false;
        deserialize_i8 visit_i8 1;
        deserialize_i16 visit_i16 1;
        deserialize_i32 visit_i32 1;
        deserialize_i64 visit_i64 1;
        deserialize_i128 visit_i128 1;
        deserialize_u8 visit_u8 1;
        deserialize_u16 visit_u16 1;
        deserialize_u32 visit_u32 1;
        deserialize_u64 visit_u64 1;
        deserialize_u128 visit_u128 1;
        deserialize_f32 visit_f32 1.0;
        deserialize_f64 visit_f64 1.0;
        deserialize_char visit_char '1';
        deserialize_any visit_str "1";
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeStop> {
        visitor.visit_none()
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeStop> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ProbeStop> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ProbeStop> {
        let first: StrDeserializer<'_, ProbeStop> =
            variants.first().copied().unwrap_or_default().into_deserializer();
        visitor.visit_enum(first)
    }

    forward_to_deserialize_any! {
        str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::HashMap;
    use std::net::IpAddr;

    fn shapes<T: DeserializeOwned>() -> Vec<PathShape> {
        let mut requirements = RouteRequirements::default();
        require::<T>(&mut requirements);
        requirements.paths().to_vec()
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only the shape is tested")]
    struct WithAddress {
        #[serde(rename = "owner")]
        user: String,
        kind: Kind,
        page: Option<u32>,
        #[serde(default)]
        size: u32,
        address: IpAddr,
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only the shape is tested")]
    struct WithoutAddress {
        #[serde(rename = "owner")]
        user: String,
        kind: Kind,
        page: Option<u32>,
        #[serde(default)]
        size: u32,
        id: u8,
    }

    #[derive(Deserialize)]
    enum Kind {
        Kite,
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only the shape is tested")]
    struct Id(u32);

    #[test]
    fn counts_the_parameters_of_values_and_tuples() {
        assert_eq!(shapes::<u8>(), [PathShape::Count(1)]);
        assert_eq!(shapes::<Id>(), [PathShape::Count(1)]);
        assert_eq!(shapes::<Kind>(), [PathShape::Count(1)]);
        assert_eq!(shapes::<IpAddr>(), [PathShape::Count(1)]);
        assert_eq!(shapes::<(u8, String, char)>(), [PathShape::Count(3)]);
        // Creates the variant, so that the compiler does not report it as unused.
        assert!(matches!(Kind::Kite, Kind::Kite));
    }

    #[test]
    fn a_struct_requires_the_names_of_its_required_fields() {
        let required =
            [PathShape::Names(&["owner"]), PathShape::Names(&["kind"]), PathShape::Names(&["id"])];
        assert_eq!(shapes::<WithoutAddress>(), required);
    }

    #[test]
    fn a_field_that_rejects_the_sample_value_hides_the_other_fields() {
        assert_eq!(shapes::<WithAddress>(), [PathShape::Names(&["address"])]);
    }

    #[test]
    fn maps_and_lists_require_nothing() {
        assert_eq!(shapes::<HashMap<String, String>>(), []);
        assert_eq!(shapes::<Vec<(String, String)>>(), []);
        assert_eq!(shapes::<()>(), []);
    }
}
