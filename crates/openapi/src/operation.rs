//! One operation: the requirements and responses of a route.

use crate::input::OperationInput;
use crate::output::{OperationOutput, ResponseSpec, ResponseStatus, ResponsesBuilder};
use crate::parameter::{Parameter, ParameterLocation};
use crate::schemas::{Schemas, without_null};
use http::{Method, StatusCode};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The description of one route under construction. Extractors and responses add what follows from
/// their types; afterwards, the closure of [`describe`](crate::DescribeExt::describe) adds what the
/// types cannot express.
///
/// ```
/// use peregrine::openapi::{DescribeExt, OpenApi};
/// use peregrine::prelude::*;
///
/// async fn show(Path(id): Path<u32>) -> Result<Json<String>, Problem> {
///     Ok(Json(format!("bird {id}")))
/// }
///
/// let show = show.describe(|it| it.summary("One bird").tag("birds").problem(404, "Not found."));
/// let app = App::new().get("/birds/{id}", show).register(OpenApi::new("Birds", "1.0"));
/// let response = app.build()?.test().get("/openapi.json").send_blocking();
/// let document = response.json::<serde_json::Value>();
/// assert_eq!(document["paths"]["/birds/{id}"]["get"]["summary"], "One bird");
/// # Ok::<(), peregrine::web::BuildError>(())
/// ```
#[derive(Debug)]
pub struct Operation {
    method: Method,
    schemas: Rc<RefCell<Schemas>>,
    parameters: Vec<Parameter>,
    body: Option<RequestBodySpec>,
    responses: Vec<ResponseSpec>,
    tags: Vec<String>,
    summary: Option<String>,
    description: Option<String>,
    operation_id: Option<String>,
    is_deprecated: bool,
    security: Option<Vec<Value>>,
    documented_methods: Option<Vec<Method>>,
    extensions: Map<String, Value>,
}

#[derive(Debug)]
struct RequestBodySpec {
    is_required: bool,
    description: Option<String>,
    content: BTreeMap<String, Value>,
}

impl Operation {
    pub(crate) fn new(
        method: Method,
        path_parameters: Vec<Parameter>,
        schemas: &Rc<RefCell<Schemas>>,
    ) -> Self {
        Self {
            method,
            schemas: Rc::clone(schemas),
            parameters: path_parameters,
            body: None,
            responses: Vec::new(),
            tags: Vec::new(),
            summary: None,
            description: None,
            operation_id: None,
            is_deprecated: false,
            security: None,
            documented_methods: None,
            extensions: Map::new(),
        }
    }

    /// The method. If the route handles any method, this is GET unless [`Operation::methods`] is
    /// set.
    #[must_use]
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// Sets a short summary.
    pub fn summary(&mut self, text: impl Into<String>) -> &mut Self {
        self.summary = Some(text.into());
        self
    }

    /// Sets the description, in Markdown.
    pub fn description(&mut self, text: impl Into<String>) -> &mut Self {
        self.description = Some(text.into());
        self
    }

    /// Adds a tag.
    pub fn tag(&mut self, name: impl Into<String>) -> &mut Self {
        let name = name.into();
        if !self.tags.contains(&name) {
            self.tags.push(name);
        }
        self
    }

    /// Sets the operation ID, which generated clients use as a name, instead of the route's name.
    pub fn operation_id(&mut self, name: impl Into<String>) -> &mut Self {
        self.operation_id = Some(name.into());
        self
    }

    /// Marks the operation as deprecated.
    pub fn deprecated(&mut self) -> &mut Self {
        self.is_deprecated = true;
        self
    }

    /// Adds an alternative security requirement: the scheme with this name
    /// ([`OpenApi::security_scheme`](crate::OpenApi::security_scheme)). One of several alternatives
    /// suffices.
    pub fn security(&mut self, scheme: &str) -> &mut Self {
        self.security_scopes(scheme, [])
    }

    /// Like [`Operation::security`], with the required scopes (of OAuth 2 and OpenID Connect) or
    /// roles.
    pub fn security_scopes<const N: usize>(
        &mut self,
        scheme: &str,
        scopes: [&str; N],
    ) -> &mut Self {
        let requirement = json!({ scheme: scopes.as_slice() });
        let requirements = self.security.get_or_insert_default();
        if !requirements.contains(&requirement) {
            requirements.push(requirement);
        }
        self
    }

    /// Removes all security requirements, including those of enclosing scopes and the document.
    pub fn no_security(&mut self) -> &mut Self {
        self.security = Some(Vec::new());
        self
    }

    /// Replaces all security requirements by this scheme.
    pub(crate) fn set_security(&mut self, scheme: &str) -> &mut Self {
        self.no_security().security(scheme)
    }

    /// Sets the documented methods of a route that handles any method.
    pub fn methods(&mut self, methods: impl IntoIterator<Item = Method>) -> &mut Self {
        self.documented_methods = Some(methods.into_iter().collect());
        self
    }

    /// Adds an extension member, whose name begins with `x-`.
    pub fn extension(&mut self, name: impl Into<String>, value: impl Into<Value>) -> &mut Self {
        self.extensions.insert(name.into(), value.into());
        self
    }

    /// Adds the description of the extractor `A`, for handlers whose type does not show it, such as
    /// services.
    pub fn input<A: OperationInput>(&mut self) -> &mut Self {
        A::describe(self);
        self
    }

    /// Adds the description of the response `R`, for handlers whose type does not show it, such as
    /// those that return `impl IntoResponse`.
    pub fn output<R: OperationOutput>(&mut self) -> &mut Self {
        let mut responses = ResponsesBuilder::new(&self.schemas);
        R::describe(&mut responses);
        for response in responses.into_specs() {
            self.add_response(response);
        }
        self
    }

    /// Like [`Operation::output`], with this status instead of that of `R`.
    pub fn output_with_status<R: OperationOutput>(
        &mut self,
        status: u16,
        description: &str,
    ) -> &mut Self {
        let mut responses = ResponsesBuilder::new(&self.schemas);
        R::describe(&mut responses);
        for mut response in responses.into_specs() {
            if !response.is_problem() {
                response.status = ResponseStatus::Code(status);
                response.description = Some(description.to_owned());
            }
            self.add_response(response);
        }
        self
    }

    /// Sets the status of the response whose type does not state it, such as
    /// `(StatusCode, Json<T>)`.
    pub fn status(&mut self, status: StatusCode) -> &mut Self {
        let is_unknown = |response: &ResponseSpec| {
            response.status == ResponseStatus::Unknown && !response.is_problem()
        };
        if let Some(index) = self.responses.iter().position(is_unknown) {
            let mut response = self.responses.swap_remove(index);
            response.status = ResponseStatus::Code(status.as_u16());
            self.add_response(response);
        }
        self
    }

    /// Sets the description of the response with this status. If there is no such response, adds
    /// one without content.
    pub fn response(&mut self, status: u16, description: impl Into<String>) -> &mut Self {
        let status = ResponseStatus::Code(status);
        match self.responses.iter_mut().find(|response| response.status == status) {
            Some(response) => response.description = Some(description.into()),
            None => self.responses.push(ResponseSpec::new(status).with_description(description)),
        }
        self
    }

    /// Adds a problem with this status.
    pub fn problem(&mut self, status: u16, description: impl Into<String>) -> &mut Self {
        let problem = ResponseSpec::problem(ResponseStatus::Code(status), &self.schemas)
            .with_description(description);
        self.add_response(problem)
    }

    /// Adds an example of the content of the response with this status.
    pub fn response_example(
        &mut self,
        status: u16,
        name: &str,
        value: impl Serialize,
    ) -> &mut Self {
        let status = ResponseStatus::Code(status);
        for response in self.responses.iter_mut().filter(|response| response.status == status) {
            for content in response.content.values_mut() {
                add_example(content, name, &value);
            }
        }
        self
    }

    /// Adds a parameter. If an extractor has already described it, merges the descriptions.
    pub fn parameter(&mut self, parameter: Parameter) -> &mut Self {
        let parameter = parameter.resolve_schema(&mut self.schemas.borrow_mut());
        let existing = self.parameters.iter_mut().find(|existing| existing.is_same(&parameter));
        match existing {
            Some(existing) => existing.merge(parameter),
            None => self.parameters.push(parameter),
        }
        self
    }

    /// Adds a media type to the request body, with the schema of `T`.
    pub fn body<T: JsonSchema>(&mut self, media_type: &str) -> &mut Self {
        let schema = self.schemas.borrow_mut().input::<T>();
        self.body_with_schema(media_type, schema, true)
    }

    /// Sets the description of the request body.
    pub fn body_description(&mut self, text: impl Into<String>) -> &mut Self {
        if let Some(body) = &mut self.body {
            body.description = Some(text.into());
        }
        self
    }

    /// Adds an example of the request body.
    pub fn body_example(&mut self, name: &str, value: impl Serialize) -> &mut Self {
        for content in self.body.iter_mut().flat_map(|body| body.content.values_mut()) {
            add_example(content, name, &value);
        }
        self
    }
}

/// Adds a named example to a media type.
fn add_example(content: &mut Value, name: &str, value: &impl Serialize) {
    if let Ok(value) = serde_json::to_value(value) {
        content["examples"][name] = json!({ "value": value });
    }
}

/// Methods for the descriptions of extractors.
impl Operation {
    /// The schemas of the document.
    pub fn schemas(&mut self) -> std::cell::RefMut<'_, Schemas> {
        self.schemas.borrow_mut()
    }

    /// Adds a media type to the request body, with a schema from [`Operation::schemas`].
    pub fn body_with_schema(
        &mut self,
        media_type: &str,
        schema: Value,
        is_required: bool,
    ) -> &mut Self {
        let body = self.body.get_or_insert_with(|| RequestBodySpec {
            is_required,
            description: None,
            content: BTreeMap::new(),
        });
        let content = if schema == json!({}) { schema } else { json!({ "schema": schema }) };
        body.content.insert(media_type.to_owned(), content);
        self
    }

    /// Adds problems with these statuses.
    pub fn problem_statuses(&mut self, statuses: &[u16]) -> &mut Self {
        for status in statuses {
            let problem = ResponseSpec::problem(ResponseStatus::Code(*status), &self.schemas);
            self.add_response(problem);
        }
        self
    }

    /// Adds the properties of `T` as parameters in the query.
    pub fn query<T: JsonSchema>(&mut self) -> &mut Self {
        let schema = self.schemas.borrow_mut().input::<T>();
        let properties = self.schemas.borrow().properties(&schema);
        let Some(properties) = properties else {
            // A map, or pairs: all names are allowed.
            let parameter = Parameter::query("params").with_schema(json!({
                "type": "object",
                "additionalProperties": { "type": "string" },
            }));
            return self.parameter(parameter);
        };
        for property in properties {
            let mut parameter = Parameter::query(&property.name).apply_property(property.schema);
            if property.is_required {
                parameter = parameter.required();
            }
            self.parameter(parameter);
        }
        self
    }

    /// Adds the types of the path's parameters from `T`: a single value, a tuple, or an object by
    /// name.
    pub fn path<T: JsonSchema>(&mut self) -> &mut Self {
        let schema = self.schemas.borrow_mut().input::<T>();
        let resolved = self.schemas.borrow().resolve(&schema);
        let properties = self.schemas.borrow().properties(&schema);
        let mut path_parameters = self
            .parameters
            .iter_mut()
            .filter(|parameter| parameter.location == ParameterLocation::Path);
        if let Some(properties) = properties {
            for parameter in path_parameters {
                if let Some(property) = properties.iter().find(|own| own.name == parameter.name) {
                    parameter.refine_schema(property.schema.clone());
                }
            }
        } else if let Some(items) = resolved.get("prefixItems").and_then(Value::as_array) {
            for (parameter, item) in path_parameters.zip(items) {
                parameter.refine_schema(item.clone());
            }
        } else if resolved.get("type").is_none_or(|kind| kind != "object" && kind != "array")
            && let Some(parameter) = path_parameters.next()
        {
            parameter.refine_schema(without_null(schema));
        }
        self
    }

    /// Makes everything that `describe` adds optional.
    pub(crate) fn make_optional(&mut self, describe: impl FnOnce(&mut Self)) {
        let (parameter_count, has_body) = (self.parameters.len(), self.body.is_some());
        let requirement_count = self.security.as_ref().map_or(0, Vec::len);
        describe(self);
        // OpenAPI 3.1, Operation Object: an empty requirement makes security optional.
        let requirements = self.security.as_mut();
        if let Some(requirements) = requirements.filter(|all| all.len() > requirement_count) {
            requirements.push(json!({}));
        }
        for parameter in &mut self.parameters[parameter_count..] {
            parameter.is_required = false;
        }
        if let Some(body) = self.body.as_mut().filter(|_| !has_body) {
            body.is_required = false;
        }
    }

    /// Like `make_optional`, and drops the problems that `describe` adds.
    pub(crate) fn without_problems(&mut self, describe: impl FnOnce(&mut Self)) {
        let previous = std::mem::take(&mut self.responses);
        self.make_optional(describe);
        let added = std::mem::replace(&mut self.responses, previous);
        for response in added.into_iter().filter(|response| !response.is_problem()) {
            self.add_response(response);
        }
    }

    /// Adds a response, merging it with one of the same status.
    fn add_response(&mut self, response: ResponseSpec) -> &mut Self {
        let is_same_response = |existing: &&mut ResponseSpec| {
            existing.status == response.status && existing.is_problem() == response.is_problem()
        };
        match self.responses.iter_mut().find(is_same_response) {
            Some(existing) => existing.merge(response),
            None => self.responses.push(response),
        }
        self
    }
}

/// Methods for the document.
impl Operation {
    pub(crate) fn documented_methods(&self) -> Option<&[Method]> {
        self.documented_methods.as_deref()
    }

    pub(crate) fn explicit_id(&self) -> Option<&str> {
        self.operation_id.as_deref()
    }

    /// The names of the required security schemes.
    pub(crate) fn schemes(&self) -> impl Iterator<Item = &str> {
        let requirements = self.security.iter().flatten().filter_map(Value::as_object);
        requirements.flat_map(|requirement| requirement.keys().map(String::as_str))
    }

    /// Uses a doc comment as the default summary and description.
    pub(crate) fn apply_doc_comment(&mut self, text: &str) {
        let (summary, description) = text.split_once("\n\n").unwrap_or((text, ""));
        if !summary.trim().is_empty() {
            let words: Vec<_> = summary.split_whitespace().collect();
            self.summary = Some(words.join(" "));
        }
        if !description.trim().is_empty() {
            self.description = Some(description.trim().to_owned());
        }
    }

    pub(crate) fn to_value(&self, id: Option<&str>) -> Value {
        let mut members = self.extensions.clone();
        let mut set = |name: &str, value: Value| {
            members.insert(name.to_owned(), value);
        };
        if !self.tags.is_empty() {
            set("tags", json!(self.tags));
        }
        for (name, text) in [("summary", &self.summary), ("description", &self.description)] {
            if let Some(text) = text {
                set(name, json!(text));
            }
        }
        if let Some(id) = id {
            set("operationId", json!(id));
        }
        if self.is_deprecated {
            set("deprecated", json!(true));
        }
        if let Some(security) = &self.security {
            set("security", json!(security));
        }
        if !self.parameters.is_empty() {
            set("parameters", self.parameters.iter().map(Parameter::to_value).collect());
        }
        if let Some(body) = &self.body {
            let mut value = json!({ "required": body.is_required, "content": body.content });
            if let Some(text) = &body.description {
                value["description"] = json!(text);
            }
            set("requestBody", value);
        }
        set("responses", self.responses());
        Value::Object(members)
    }

    fn responses(&self) -> Value {
        let mut merged: BTreeMap<ResponseStatus, ResponseSpec> = BTreeMap::new();
        // Other responses take precedence over problems.
        let (problems, others): (Vec<_>, Vec<_>) =
            self.responses.iter().partition(|response| response.is_problem());
        for response in others.into_iter().chain(problems) {
            match merged.get_mut(&response.status) {
                Some(existing) => existing.merge(response.clone()),
                None => {
                    merged.insert(response.status, response.clone());
                }
            }
        }
        let entries = merged.iter().map(|(status, spec)| (status.to_string(), spec.to_value()));
        let mut members: Map<String, Value> = entries.collect();
        if members.is_empty() {
            let text = "Determined by the handler.";
            members.insert("default".to_owned(), json!({ "description": text }));
        }
        Value::Object(members)
    }
}
