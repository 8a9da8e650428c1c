//! The parameters of a request: in the path, the query, header fields and cookies.

use crate::schemas::{Schemas, without_null};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The location of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ParameterLocation {
    Path,
    Query,
    Header,
    Cookie,
}

impl ParameterLocation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Query => "query",
            Self::Header => "header",
            Self::Cookie => "cookie",
        }
    }
}

/// A parameter of an operation ([`Operation::parameter`](crate::Operation::parameter)). By default
/// it is optional text; parameters in the path are always required.
#[derive(Debug)]
pub struct Parameter {
    pub(crate) location: ParameterLocation,
    pub(crate) name: String,
    pub(crate) is_required: bool,
    is_deprecated: bool,
    description: Option<String>,
    schema: Option<Value>,
    schema_fn: Option<fn(&mut Schemas) -> Value>,
    examples: Map<String, Value>,
    extensions: Map<String, Value>,
}

impl Parameter {
    fn new(location: ParameterLocation, name: &str) -> Self {
        Self {
            location,
            name: name.to_owned(),
            is_required: location == ParameterLocation::Path,
            is_deprecated: false,
            description: None,
            schema: None,
            schema_fn: None,
            examples: Map::new(),
            extensions: Map::new(),
        }
    }

    /// A parameter in the path; the route's pattern must have it.
    #[must_use]
    pub fn path(name: &str) -> Self {
        Self::new(ParameterLocation::Path, name)
    }

    /// A parameter in the query.
    #[must_use]
    pub fn query(name: &str) -> Self {
        Self::new(ParameterLocation::Query, name)
    }

    /// A header field.
    #[must_use]
    pub fn header(name: &str) -> Self {
        Self::new(ParameterLocation::Header, name)
    }

    /// A cookie.
    #[must_use]
    pub fn cookie(name: &str) -> Self {
        Self::new(ParameterLocation::Cookie, name)
    }

    /// Marks the parameter as required.
    #[must_use]
    pub fn required(mut self) -> Self {
        self.is_required = true;
        self
    }

    /// Marks the parameter as deprecated.
    #[must_use]
    pub fn deprecated(mut self) -> Self {
        self.is_deprecated = true;
        self
    }

    /// Sets the description, in Markdown.
    #[must_use]
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.description = Some(text.into());
        self
    }

    /// Sets the type.
    #[must_use]
    pub fn schema<T: JsonSchema>(mut self) -> Self {
        self.schema_fn = Some(Schemas::input::<T>);
        self
    }

    /// Adds an example.
    #[must_use]
    pub fn example(mut self, name: &str, value: impl Serialize) -> Self {
        if let Ok(value) = serde_json::to_value(value) {
            self.examples.insert(name.to_owned(), json!({ "value": value }));
        }
        self
    }

    pub(crate) fn with_schema(mut self, schema: Value) -> Self {
        self.schema = Some(schema);
        self
    }

    pub(crate) fn extension(mut self, name: &str, value: Value) -> Self {
        self.extensions.insert(name.to_owned(), value);
        self
    }

    /// Uses the schema of a property. The property's description becomes the parameter's.
    pub(crate) fn apply_property(mut self, schema: Value) -> Self {
        let mut schema = without_null(schema);
        if let Value::Object(members) = &mut schema {
            if let Some(Value::String(text)) = members.remove("description") {
                self.description = Some(text);
            }
            self.is_deprecated |= members.remove("deprecated") == Some(Value::Bool(true));
        }
        self.with_schema(schema)
    }

    /// Generates the schema of the type that was set with `schema`.
    pub(crate) fn resolve_schema(mut self, schemas: &mut Schemas) -> Self {
        if let Some(schema) = self.schema_fn.take() {
            self.schema = Some(without_null(schema(schemas)));
        }
        self
    }

    /// Whether `other` describes the same parameter.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        // RFC 9110 §5.1: field names are case-insensitive.
        let is_same_name = match self.location {
            ParameterLocation::Header => self.name.eq_ignore_ascii_case(&other.name),
            _ => self.name == other.name,
        };
        self.location == other.location && is_same_name
    }

    /// Adds the information of `other` about the same parameter.
    pub(crate) fn merge(&mut self, other: Self) {
        self.is_required |= other.is_required;
        self.is_deprecated |= other.is_deprecated;
        self.description = other.description.or(self.description.take());
        self.schema = other.schema.or(self.schema.take());
        self.examples.extend(other.examples);
    }

    /// Replaces the pattern's schema of a parameter in the path by that of the extractor, unless
    /// the pattern is more precise: `{id:u32}` is a number even if the extractor reads a string.
    pub(crate) fn refine_schema(&mut self, schema: Value) {
        let is_text = schema.get("type").is_some_and(|kind| kind == "string")
            && schema.as_object().is_some_and(|members| members.len() == 1);
        let pattern_schema = self.schema.take();
        *self = Self::new(self.location, &self.name)
            .with_annotations(std::mem::take(&mut self.extensions), self.description.take())
            .apply_property(schema);
        if is_text && pattern_schema.is_some() {
            self.schema = pattern_schema;
        }
    }

    fn with_annotations(self, extensions: Map<String, Value>, description: Option<String>) -> Self {
        Self { extensions, description, ..self }
    }

    pub(crate) fn to_value(&self) -> Value {
        let mut members = self.extensions.clone();
        members.insert("name".to_owned(), json!(self.name));
        members.insert("in".to_owned(), json!(self.location.as_str()));
        members.insert("required".to_owned(), json!(self.is_required));
        members.insert(
            "schema".to_owned(),
            self.schema.clone().unwrap_or_else(|| json!({ "type": "string" })),
        );
        if self.is_deprecated {
            members.insert("deprecated".to_owned(), json!(true));
        }
        if let Some(text) = &self.description {
            members.insert("description".to_owned(), json!(text));
        }
        if !self.examples.is_empty() {
            members.insert("examples".to_owned(), json!(self.examples));
        }
        Value::Object(members)
    }
}
