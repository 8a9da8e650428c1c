//! Deserializes the fields of a form with serde.
//!
//! serde knows text and numbers, but not files. While a form is deserialized, its files are
//! therefore stored in a thread-local list, and serde carries tokens that refer to them. A token is
//! not valid UTF-8, so text from a client can never be a token, and a text field cannot contain
//! one.

use crate::uploaded_file::UploadedFile;
use serde::de::value::{MapDeserializer, SeqDeserializer, StrDeserializer};
use serde::de::{
    Deserialize, DeserializeOwned, Deserializer, IntoDeserializer, Unexpected, Visitor,
};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

/// The value of one field.
#[derive(Debug)]
pub(crate) enum FieldValue {
    Text(String),
    File(UploadedFile),
}

/// Why a form does not have the requested type.
#[derive(Debug)]
pub(crate) struct FormError {
    pub(crate) field: Option<String>,
    pub(crate) reason: String,
}

/// Deserializes all fields of a form as a `T`.
pub(crate) fn from_fields<T: DeserializeOwned>(
    fields: Vec<(String, FieldValue)>,
) -> Result<T, FormError> {
    let _registry = UploadRegistry::enter();
    let mut indices = HashMap::new();
    let mut groups: Vec<(String, Vec<FieldValue>)> = Vec::new();
    for (name, value) in fields {
        let index = *indices.entry(name.clone()).or_insert(groups.len());
        if index == groups.len() {
            groups.push((name, Vec::new()));
        }
        groups[index].1.push(value);
    }
    T::deserialize(FormDeserializer(groups))
}

/// Gives each form its own list of files. Holds the list of an outer form while an inner one is
/// deserialized, and restores it when dropped.
struct UploadRegistry(Vec<Option<UploadedFile>>);

thread_local! {
    static UPLOADS: RefCell<Vec<Option<UploadedFile>>> = const { RefCell::new(Vec::new()) };
}

impl UploadRegistry {
    fn enter() -> Self {
        Self(UPLOADS.take())
    }

    fn insert(upload: UploadedFile) -> Vec<u8> {
        UPLOADS.with_borrow_mut(|uploads| {
            uploads.push(Some(upload));
            [TOKEN_PREFIX, &(uploads.len() - 1).to_be_bytes()].concat()
        })
    }

    fn take(token: &[u8]) -> Option<UploadedFile> {
        let index = token.strip_prefix(TOKEN_PREFIX)?.try_into().ok().map(usize::from_be_bytes)?;
        UPLOADS.with_borrow_mut(|uploads| uploads.get_mut(index)?.take())
    }
}

impl Drop for UploadRegistry {
    fn drop(&mut self) {
        drop(UPLOADS.replace(std::mem::take(&mut self.0)));
    }
}

/// The prefix of a token. Its first byte does not occur in UTF-8.
const TOKEN_PREFIX: &[u8] = b"\xffperegrine-upload";

/// The newtype name by which [`UploadedFile`] requests a file from a deserializer.
const UPLOAD_NEWTYPE_NAME: &str = "$peregrine::multipart::Upload";

/// Works only inside a form that is deserialized by [`MultipartForm`](crate::MultipartForm).
impl<'de> Deserialize<'de> for UploadedFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(UPLOAD_NEWTYPE_NAME, UploadVisitor)
    }
}

struct UploadVisitor;

impl<'de> Visitor<'de> for UploadVisitor {
    type Value = UploadedFile;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a file")
    }

    fn visit_bytes<E: serde::de::Error>(self, token: &[u8]) -> Result<UploadedFile, E> {
        UploadRegistry::take(token)
            .ok_or_else(|| E::invalid_type(Unexpected::Other("bytes"), &self))
    }

    /// Called for a value that serde has buffered, for example because of `flatten`.
    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<UploadedFile, D::Error> {
        deserializer.deserialize_bytes(self)
    }
}

struct FormDeserializer(Vec<(String, Vec<FieldValue>)>);

impl<'de> Deserializer<'de> for FormDeserializer {
    type Error = FormError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        let fields = self.0.into_iter().map(|(name, values)| {
            let field = FieldDeserializer { name: name.clone(), values };
            (name, field)
        });
        visitor.visit_map(MapDeserializer::new(fields))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, FormError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf seq tuple
        tuple_struct map struct enum identifier unit_struct ignored_any
    }
}

/// All values sent under one name.
struct FieldDeserializer {
    name: String,
    values: Vec<FieldValue>,
}

impl FieldDeserializer {
    /// Returns the only value; fails if there are several.
    fn single(self) -> Result<FieldValueDeserializer, FormError> {
        let Self { name, mut values } = self;
        match (values.pop(), values.len()) {
            (Some(value), 0) => Ok(FieldValueDeserializer { name, value }),
            (_, others) => {
                let reason = format!("sent {} times, expected once", others + 1);
                Err(FormError { field: Some(name), reason })
            }
        }
    }

    /// Adds the field's name to an error without one.
    fn with_field_name<T>(name: &str, result: Result<T, FormError>) -> Result<T, FormError> {
        result.map_err(|error| FormError { field: error.field.or(Some(name.to_owned())), ..error })
    }
}

impl FieldValue {
    /// Whether the field was left empty.
    fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::File(upload) => upload.has_no_chosen_file(),
        }
    }
}

macro_rules! forward_to_single {
    ($($name:ident)*) => {
        $(
            fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
                self.single()?.$name(visitor)
            }
        )*
    };
}

impl<'de> Deserializer<'de> for FieldDeserializer {
    type Error = FormError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        if self.values.len() == 1 {
            self.single()?.deserialize_any(visitor)
        } else {
            self.deserialize_seq(visitor)
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        let Self { name, values } = self;
        let values = values.into_iter().filter(
            |value| !matches!(value, FieldValue::File(upload) if upload.has_no_chosen_file()),
        );
        let values = values.map(|value| FieldValueDeserializer { name: name.clone(), value });
        let mut values = SeqDeserializer::new(values);
        let result = visitor.visit_seq(&mut values);
        Self::with_field_name(&name, result.and_then(|value| values.end().map(|()| value)))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        match &*self.values {
            [value] if value.is_empty() => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, FormError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, FormError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, FormError> {
        if name == UPLOAD_NEWTYPE_NAME {
            return self.single()?.deserialize_newtype_struct(name, visitor);
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FormError> {
        self.single()?.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FormError> {
        self.single()?.deserialize_struct(name, fields, visitor)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, FormError> {
        self.single()?.deserialize_unit_struct(name, visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        visitor.visit_unit()
    }

    forward_to_single! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128 deserialize_f32
        deserialize_f64 deserialize_char deserialize_str deserialize_string deserialize_bytes
        deserialize_byte_buf deserialize_unit deserialize_map deserialize_identifier
    }
}

impl IntoDeserializer<'_, FormError> for FieldDeserializer {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// One value, and the name under which it was sent.
struct FieldValueDeserializer {
    name: String,
    value: FieldValue,
}

impl FieldValueDeserializer {
    /// Parses the text, for types other than text.
    fn parse<T: std::str::FromStr<Err: fmt::Display>>(&self) -> Result<T, FormError> {
        let text = self.text()?;
        text.trim_ascii().parse().map_err(|error| self.error(format!("{error}")))
    }

    fn text(&self) -> Result<&str, FormError> {
        match &self.value {
            FieldValue::Text(text) => Ok(text),
            FieldValue::File(_) => Err(self.error("a file, expected text".to_owned())),
        }
    }

    fn error(&self, reason: String) -> FormError {
        FormError { field: Some(self.name.clone()), reason }
    }
}

macro_rules! parsed {
    ($($name:ident $visit:ident)*) => {
        $(
            fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
                let value = self.parse()?;
                FieldDeserializer::with_field_name(&self.name, visitor.$visit(value))
            }
        )*
    };
}

/// Rejects NaN, which would pass every comparison with the bounds of a range, and infinity.
macro_rules! finite {
    ($($name:ident $visit:ident $type:ident)*) => {
        $(
            fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
                let value: $type = self.parse()?;
                if !value.is_finite() {
                    return Err(self.error("expected a finite number".to_owned()));
                }
                FieldDeserializer::with_field_name(&self.name, visitor.$visit(value))
            }
        )*
    };
}

impl<'de> Deserializer<'de> for FieldValueDeserializer {
    type Error = FormError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        let result = match self.value {
            FieldValue::Text(text) => visitor.visit_string(text),
            FieldValue::File(upload) => visitor.visit_byte_buf(UploadRegistry::insert(upload)),
        };
        FieldDeserializer::with_field_name(&self.name, result)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        self.text()?;
        self.deserialize_any(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        let value = match self.text()? {
            "true" | "on" => true,
            "false" => false,
            _ => return Err(self.error("expected `true`, `false` or `on`".to_owned())),
        };
        FieldDeserializer::with_field_name(&self.name, visitor.visit_bool(value))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        if self.value.is_empty() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, FormError> {
        if name != UPLOAD_NEWTYPE_NAME {
            return visitor.visit_newtype_struct(self);
        }
        match self.value {
            FieldValue::Text(_) => Err(self.error("text, expected a file".to_owned())),
            FieldValue::File(ref upload) if upload.has_no_chosen_file() => {
                Err(self.error("no file was chosen".to_owned()))
            }
            FieldValue::File(_) => self.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FormError> {
        let result = visitor.visit_enum(StrDeserializer::<FormError>::new(self.text()?));
        FieldDeserializer::with_field_name(&self.name, result)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        match self.text()? {
            "" => visitor.visit_unit(),
            _ => Err(self.error("expected nothing".to_owned())),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        visitor.visit_unit()
    }

    parsed! {
        deserialize_i8 visit_i8 deserialize_i16 visit_i16 deserialize_i32 visit_i32
        deserialize_i64 visit_i64 deserialize_i128 visit_i128 deserialize_u8 visit_u8
        deserialize_u16 visit_u16 deserialize_u32 visit_u32 deserialize_u64 visit_u64
        deserialize_u128 visit_u128
    }

    finite! {
        deserialize_f32 visit_f32 f32
        deserialize_f64 visit_f64 f64
    }

    serde::forward_to_deserialize_any! {
        char bytes byte_buf unit_struct seq tuple tuple_struct map struct identifier
    }
}

impl IntoDeserializer<'_, FormError> for FieldValueDeserializer {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl serde::de::Error for FormError {
    fn custom<T: fmt::Display>(reason: T) -> Self {
        Self { field: None, reason: reason.to_string() }
    }
}

impl fmt::Display for FormError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for FormError {}
