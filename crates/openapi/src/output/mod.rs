//! Describes the return types of handlers as responses of an operation.

mod types;

use crate::schemas::{Schemas, reason_phrase};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

pub use types::WithStatus;

/// The status of a response, as far as its type states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ResponseStatus {
    Code(u16),
    /// A class such as 3XX.
    Class(u16),
    /// Any status without a separate response.
    Unknown,
}

impl fmt::Display for ResponseStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(status) => status.fmt(f),
            Self::Class(class) => write!(f, "{class}XX"),
            Self::Unknown => f.write_str("default"),
        }
    }
}

/// A return type of handlers that describes its responses. A handler's route can be described
/// automatically only if the handler's return type implements this trait.
///
/// ```
/// use peregrine::openapi::{OperationOutput, ResponsesBuilder};
/// use peregrine::prelude::*;
///
/// struct Csv(String);
///
/// impl IntoResponse for Csv {
///     fn into_response(self) -> Response {
///         ([("content-type", "text/csv")], self.0).into_response()
///     }
/// }
///
/// impl OperationOutput for Csv {
///     fn describe(responses: &mut ResponsesBuilder) {
///         responses.text(200, "text/csv");
///     }
/// }
/// ```
#[doc(alias = "IntoResponses")]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not describe its responses, so an OpenAPI document cannot include it",
    label = "returned by a described handler",
    note = "the `T` in `Json<T>` and `Form<T>` must be `schemars::JsonSchema`: add `#[derive(schemars::JsonSchema)]`",
    note = "for your own type, implement `peregrine::openapi::OperationOutput`",
    note = "a handler that returns `impl IntoResponse` is described by `.described_manually(|it| it.input::<..>().output::<..>())`"
)]
pub trait OperationOutput {
    /// Adds the possible responses.
    fn describe(responses: &mut ResponsesBuilder);
}

/// A part of a tuple response, before the body, that describes its effect on the response.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not describe its effect on a response, so an OpenAPI document cannot include it",
    label = "returned before the body by a described handler",
    note = "for your own type, implement `peregrine::openapi::OperationOutputParts`; an empty implementation means that there is nothing to document"
)]
pub trait OperationOutputParts {
    /// Changes the responses that follow in the tuple.
    fn describe(_responses: &mut ResponsesBuilder) {}
}

/// The responses of a handler under construction.
#[derive(Debug)]
pub struct ResponsesBuilder {
    responses: Vec<ResponseSpec>,
    schemas: Rc<RefCell<Schemas>>,
}

impl ResponsesBuilder {
    pub(crate) fn new(schemas: &Rc<RefCell<Schemas>>) -> Self {
        Self { responses: Vec::new(), schemas: Rc::clone(schemas) }
    }

    pub(crate) fn into_specs(self) -> Vec<ResponseSpec> {
        self.responses
    }

    /// The schemas of the document.
    pub fn schemas(&mut self) -> std::cell::RefMut<'_, Schemas> {
        self.schemas.borrow_mut()
    }

    /// Adds a response with this status and no content.
    pub fn empty(&mut self, status: u16) -> &mut Self {
        self.add(ResponseSpec::new(ResponseStatus::Code(status)))
    }

    /// Adds a response with this status and content of a media type, with a schema from
    /// [`ResponsesBuilder::schemas`].
    pub fn content(&mut self, status: u16, media_type: &str, schema: Value) -> &mut Self {
        self.add(ResponseSpec::new(ResponseStatus::Code(status)).content(media_type, Some(schema)))
    }

    /// Adds a response with this status and text.
    pub fn text(&mut self, status: u16, media_type: &str) -> &mut Self {
        self.content(status, media_type, json!({ "type": "string" }))
    }

    /// Adds a response with this status and bytes.
    pub fn bytes(&mut self, status: u16, media_type: &str) -> &mut Self {
        self.add(ResponseSpec::new(ResponseStatus::Code(status)).content(media_type, None))
    }

    /// Adds a problem with this status.
    pub fn problem(&mut self, status: u16, description: &str) -> &mut Self {
        let problem = ResponseSpec::problem(ResponseStatus::Code(status), &self.schemas);
        self.add(if description.is_empty() {
            problem
        } else {
            problem.with_description(description)
        })
    }

    /// Adds a problem whose status is unknown.
    pub fn any_problem(&mut self) -> &mut Self {
        let problem = ResponseSpec::problem(ResponseStatus::Unknown, &self.schemas);
        self.add(problem.with_description("An error, described by the problem."))
    }

    /// Makes the status of the responses so far unknown.
    pub fn any_status(&mut self) -> &mut Self {
        for response in &mut self.responses {
            response.status = ResponseStatus::Unknown;
        }
        self
    }

    /// Sets the status of the responses so far, except problems.
    pub fn status(&mut self, status: u16) -> &mut Self {
        for response in self.responses.iter_mut().filter(|response| !response.is_problem()) {
            response.status = ResponseStatus::Code(status);
        }
        self
    }

    /// Adds a header field to the responses so far.
    pub fn header(&mut self, name: &str, description: &str) -> &mut Self {
        for response in &mut self.responses {
            response.header(name, description);
        }
        self
    }

    pub(crate) fn add(&mut self, response: ResponseSpec) -> &mut Self {
        self.responses.push(response);
        self
    }
}

/// One response.
#[derive(Clone, Debug)]
pub(crate) struct ResponseSpec {
    pub(crate) status: ResponseStatus,
    pub(crate) description: Option<String>,
    /// Media type objects by media type.
    pub(crate) content: BTreeMap<String, Value>,
    headers: Map<String, Value>,
    is_problem: bool,
}

impl ResponseSpec {
    pub(crate) fn new(status: ResponseStatus) -> Self {
        let (description, content, headers) = <_>::default();
        Self { status, description, content, headers, is_problem: false }
    }

    pub(crate) fn problem(status: ResponseStatus, schemas: &RefCell<Schemas>) -> Self {
        let (media_type, schema) = schemas.borrow_mut().problem();
        Self { is_problem: true, ..Self::new(status).content(&media_type, Some(schema)) }
    }

    pub(crate) fn is_problem(&self) -> bool {
        self.is_problem
    }

    pub(crate) fn with_description(mut self, text: impl Into<String>) -> Self {
        self.description = Some(text.into());
        self
    }

    pub(crate) fn content(mut self, media_type: &str, schema: Option<Value>) -> Self {
        let content = schema.map_or_else(|| json!({}), |schema| json!({ "schema": schema }));
        self.content.insert(media_type.to_owned(), content);
        self
    }

    pub(crate) fn header(&mut self, name: &str, description: &str) {
        let header = json!({ "description": description, "schema": { "type": "string" } });
        self.headers.insert(name.to_owned(), header);
    }

    /// Merges the description of `other`, for the same status. Two schemas for one media type
    /// become alternatives.
    pub(crate) fn merge(&mut self, other: Self) {
        self.description = match (self.description.take(), other.description) {
            (Some(one), Some(two)) if one != two && !other.content.is_empty() => {
                Some(format!("{one}\n\n{two}"))
            }
            (one, two) => two.or(one),
        };
        for (media_type, other_content) in other.content {
            match self.content.get_mut(&media_type) {
                Some(existing) if *existing != other_content => {
                    merge_content(existing, &other_content);
                }
                Some(_) => {}
                None => {
                    self.content.insert(media_type, other_content);
                }
            }
        }
        self.headers.extend(other.headers);
    }

    pub(crate) fn to_value(&self) -> Value {
        let default_description = || match self.status {
            ResponseStatus::Code(status) => reason_phrase(status).to_owned(),
            ResponseStatus::Class(_) => "A status of this class.".to_owned(),
            ResponseStatus::Unknown => "Any other status.".to_owned(),
        };
        let text = self.description.clone().unwrap_or_else(default_description);
        let mut value = json!({ "description": text });
        if !self.content.is_empty() {
            value["content"] = json!(self.content);
        }
        if !self.headers.is_empty() {
            value["headers"] = json!(self.headers);
        }
        value
    }
}

/// Makes the schemas of two media type objects alternatives.
fn merge_content(content: &mut Value, other: &Value) {
    let (Some(one), Some(two)) = (content.get("schema").cloned(), other.get("schema")) else {
        // One of them allows anything.
        *content = json!({});
        return;
    };
    match content.pointer_mut("/schema/anyOf").and_then(Value::as_array_mut) {
        Some(all) if all.contains(two) => {}
        Some(all) => all.push(two.clone()),
        None if one == *two => {}
        None => content["schema"] = json!({ "anyOf": [one, two] }),
    }
}
