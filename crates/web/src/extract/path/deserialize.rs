//! A serde deserializer for the decoded parameters of a path.

use super::super::finite;
use super::error::{PathError, PathParameter};
use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

/// All parameters of the path.
#[derive(Clone, Copy)]
pub(super) struct PathDeserializer<'p> {
    parameters: &'p [PathParameter<'p>],
    /// The number of optional parameters that the request's route omits. (A pattern with optional
    /// parameters becomes several routes.)
    omitted_count: usize,
}

impl<'p> PathDeserializer<'p> {
    pub(super) fn new(parameters: &'p [PathParameter<'p>], omitted_count: usize) -> Self {
        Self { parameters, omitted_count }
    }

    /// The deserializer for the only parameter of the path.
    fn only_parameter(self) -> Result<ValueDeserializer<'p>, PathError> {
        match self.parameters {
            [parameter] => Ok(ValueDeserializer(parameter)),
            parameters => Err(PathError::count_mismatch(parameters.len(), 1)),
        }
    }
}

macro_rules! delegate_to_only_parameter {
    ($($method:ident)*) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, PathError> {
                self.only_parameter()?.$method(visitor)
            }
        )*
    };
}

impl<'de> Deserializer<'de> for PathDeserializer<'_> {
    type Error = PathError;

    delegate_to_only_parameter! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_i128 deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
        deserialize_u128 deserialize_f32 deserialize_f64 deserialize_char deserialize_str
        deserialize_string deserialize_bytes deserialize_byte_buf deserialize_identifier
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, PathError> {
        match self.parameters {
            [parameter] => ValueDeserializer(parameter).deserialize_any(visitor),
            _ => self.deserialize_map(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, PathError> {
        if self.parameters.is_empty() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, PathError> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, PathError> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, PathError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, PathError> {
        visitor.visit_seq(RemainingParameters(self.parameters))
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, PathError> {
        let count = self.parameters.len();
        if !(count..=count + self.omitted_count).contains(&length) {
            return Err(PathError::count_mismatch(count, length));
        }
        let omitted_parameter = OmittedParameter { available: count, expected: length };
        visitor.visit_seq(TupleAccess {
            present: RemainingParameters(self.parameters),
            omitted_left: length - count,
            omitted_parameter,
        })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, PathError> {
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, PathError> {
        visitor.visit_map(RemainingParameters(self.parameters))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, PathError> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, PathError> {
        self.only_parameter()?.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, PathError> {
        visitor.visit_unit()
    }
}

/// The parameters that are not yet read, as a list or a map.
struct RemainingParameters<'p>(&'p [PathParameter<'p>]);

impl<'de> SeqAccess<'de> for RemainingParameters<'_> {
    type Error = PathError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, PathError> {
        let Some((first, rest)) = self.0.split_first() else { return Ok(None) };
        self.0 = rest;
        seed.deserialize(ValueDeserializer(first)).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

/// The elements of a tuple. The last ones may be parameters that the route omits.
struct TupleAccess<'p> {
    present: RemainingParameters<'p>,
    /// The number of omitted parameters that are not yet read.
    omitted_left: usize,
    omitted_parameter: OmittedParameter,
}

impl<'de> SeqAccess<'de> for TupleAccess<'_> {
    type Error = PathError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, PathError> {
        if self.present.0.is_empty() && self.omitted_left > 0 {
            self.omitted_left -= 1;
            return seed.deserialize(self.omitted_parameter).map(Some);
        }
        self.present.next_element_seed(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.present.0.len() + self.omitted_left)
    }
}

/// A parameter that the route omits: read as `None`, or an error if the type needs a value. The
/// error says how many parameters are available and how many the tuple expects.
#[derive(Clone, Copy)]
struct OmittedParameter {
    available: usize,
    expected: usize,
}

impl<'de> Deserializer<'de> for OmittedParameter {
    type Error = PathError;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, PathError> {
        Err(PathError::count_mismatch(self.available, self.expected))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, PathError> {
        visitor.visit_none()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> MapAccess<'de> for RemainingParameters<'_> {
    type Error = PathError;

    fn next_key_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, PathError> {
        let Some(first) = self.0.first() else { return Ok(None) };
        let name: StrDeserializer<'_, PathError> = first.name.into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, PathError> {
        let (first, rest) = self.0.split_first().expect("serde reads a value only after its key");
        self.0 = rest;
        seed.deserialize(ValueDeserializer(first))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

/// One parameter as one value.
#[derive(Clone, Copy)]
struct ValueDeserializer<'p>(&'p PathParameter<'p>);

impl ValueDeserializer<'_> {
    #[cold]
    fn invalid(self, expected: impl Into<String>) -> PathError {
        let PathParameter { name, value } = self.0;
        let (name, value) = ((*name).to_owned(), value.clone().into_owned());
        PathError::Value { name, value, expected: expected.into() }
    }

    /// Adds the parameter's name and value to the error of a type that rejected the value.
    fn with_parameter<T>(self, result: Result<T, PathError>) -> Result<T, PathError> {
        result.map_err(|error| error.for_parameter(self.0))
    }

    /// The error for a type that expects several values, such as `"a list"`.
    #[cold]
    fn not_one_value(self, expected: &str) -> PathError {
        PathError::Mismatch(format!("parameter `{}` is one value, not {expected}", self.0.name))
    }
}

macro_rules! parsed_values {
    ($($method:ident $visit:ident $type:ident $expected:expr;)*) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, PathError> {
                match self.0.value.parse::<$type>() {
                    Ok(value) => self.with_parameter(visitor.$visit(value)),
                    Err(_) => Err(self.invalid($expected)),
                }
            }
        )*
    };
}

/// Rejects infinite numbers and NaN, because NaN defeats range checks: each comparison with it is
/// false.
macro_rules! finite_values {
    ($($method:ident $visit:ident $type:ident;)*) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, PathError> {
                match self.0.value.parse::<$type>() {
                    Ok(value) if value.is_finite() => self.with_parameter(visitor.$visit(value)),
                    _ => Err(self.invalid(format!("{} ({})", finite::EXPECTED, stringify!($type)))),
                }
            }
        )*
    };
}

macro_rules! integers {
    ($($method:ident $visit:ident $type:ident;)*) => {
        parsed_values! {
            $($method $visit $type {
                let name = stringify!($type);
                format!("a whole number from {} to {} ({name})", $type::MIN, $type::MAX)
            };)*
        }
    };
}

impl<'de> Deserializer<'de> for ValueDeserializer<'_> {
    type Error = PathError;

    integers! {
        deserialize_i8 visit_i8 i8;
        deserialize_i16 visit_i16 i16;
        deserialize_i32 visit_i32 i32;
        deserialize_i64 visit_i64 i64;
        deserialize_i128 visit_i128 i128;
        deserialize_u8 visit_u8 u8;
        deserialize_u16 visit_u16 u16;
        deserialize_u32 visit_u32 u32;
        deserialize_u64 visit_u64 u64;
        deserialize_u128 visit_u128 u128;
    }

    finite_values! {
        deserialize_f32 visit_f32 f32;
        deserialize_f64 visit_f64 f64;
    }

    parsed_values! {
        deserialize_bool visit_bool bool "`true` or `false`";
        deserialize_char visit_char char "one character";
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, PathError> {
        self.with_parameter(visitor.visit_str(&self.0.value))
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, PathError> {
        self.with_parameter(visitor.visit_bytes(self.0.value.as_bytes()))
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, PathError> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, PathError> {
        visitor.visit_some(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, PathError> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, PathError> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, PathError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, _: V) -> Result<V::Value, PathError> {
        Err(self.not_one_value("a list"))
    }

    /// A tuple of two elements gets the parameter's name and value.
    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, PathError> {
        if length != 2 {
            return Err(self.not_one_value("a tuple"));
        }
        visitor.visit_seq(KeyValue { parameter: self.0, requested_count: 0 })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, PathError> {
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, _: V) -> Result<V::Value, PathError> {
        Err(self.not_one_value("a map"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, PathError> {
        Err(self.not_one_value("a struct"))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, PathError> {
        self.with_parameter(visitor.visit_enum(self))
    }

    forward_to_deserialize_any! { str string identifier ignored_any }
}

impl<'de> EnumAccess<'de> for ValueDeserializer<'_> {
    type Error = PathError;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), PathError> {
        let name: StrDeserializer<'_, PathError> = self.0.value.as_ref().into_deserializer();
        Ok((seed.deserialize(name)?, self))
    }
}

impl<'de> VariantAccess<'de> for ValueDeserializer<'_> {
    type Error = PathError;

    fn unit_variant(self) -> Result<(), PathError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _: T) -> Result<T::Value, PathError> {
        Err(self.not_one_value("a variant with a value"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, PathError> {
        Err(self.not_one_value("a variant with values"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, PathError> {
        Err(self.not_one_value("a variant with values"))
    }
}

/// A parameter as a tuple of its name and value.
struct KeyValue<'p> {
    parameter: &'p PathParameter<'p>,
    /// The number of elements that were requested.
    requested_count: u8,
}

impl<'de> SeqAccess<'de> for KeyValue<'_> {
    type Error = PathError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, PathError> {
        self.requested_count += 1;
        match self.requested_count {
            1 => {
                let name: StrDeserializer<'_, PathError> = self.parameter.name.into_deserializer();
                seed.deserialize(name).map(Some)
            }
            2 => seed.deserialize(ValueDeserializer(self.parameter)).map(Some),
            _ => Ok(None),
        }
    }
}
