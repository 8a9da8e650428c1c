//! One operation: what a route asks of requests and what it answers.

use crate::argument::DescribeArgument;
use crate::parameter::{Parameter, Place};
use crate::response::{Answer, DescribeResponse, Responses, Status};
use crate::schemas::{Schemas, without_null};
use http::{Method, StatusCode};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The description of one route under construction. Extractors and responses add what their types tell; what these
/// cannot know is added by the closure of [`describe`](crate::DescribeExt::describe), after them.
///
/// ```
/// use peregrine::openapi::{DescribeExt, OpenApi};
/// use peregrine::prelude::*;
///
/// async fn show(Path(id): Path<u32>) -> Result<Json<String>, Problem> {
///     Ok(Json(format!("bird {id}")))
/// }
///
/// let show = show.describe(|it| it.summary("One bird").tag("birds").problem(404, "There is no such bird."));
/// let app = App::new().get("/birds/{id}", show).add(OpenApi::new("Birds", "1.0"));
/// let document = app.build()?.test().get("/openapi.json").send_now().json::<serde_json::Value>();
/// assert_eq!(document["paths"]["/birds/{id}"]["get"]["summary"], "One bird");
/// # Ok::<(), peregrine::web::BuildError>(())
/// ```
#[derive(Debug)]
pub struct Operation {
    method: Method,
    schemas: Rc<RefCell<Schemas>>,
    parameters: Vec<Parameter>,
    body: Option<Body>,
    answers: Vec<Answer>,
    tags: Vec<String>,
    summary: Option<String>,
    description: Option<String>,
    id: Option<String>,
    is_deprecated: bool,
    security: Option<Vec<Value>>,
    methods: Option<Vec<Method>>,
    more: Map<String, Value>,
}

#[derive(Debug)]
struct Body {
    is_required: bool,
    description: Option<String>,
    content: BTreeMap<String, Value>,
}

impl Operation {
    pub(crate) fn new(
        method: Method,
        path: Vec<Parameter>,
        schemas: &Rc<RefCell<Schemas>>,
    ) -> Self {
        Self {
            method,
            schemas: Rc::clone(schemas),
            parameters: path,
            body: None,
            answers: Vec::new(),
            tags: Vec::new(),
            summary: None,
            description: None,
            id: None,
            is_deprecated: false,
            security: None,
            methods: None,
            more: Map::new(),
        }
    }

    /// The method. Where the route answers any method, it is GET until [`Operation::methods`] says otherwise.
    #[must_use]
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// What it does, in a few words.
    pub fn summary(&mut self, text: impl Into<String>) -> &mut Self {
        self.summary = Some(text.into());
        self
    }

    /// What it does, at length; Markdown.
    pub fn description(&mut self, text: impl Into<String>) -> &mut Self {
        self.description = Some(text.into());
        self
    }

    /// Puts it under one more heading.
    pub fn tag(&mut self, name: impl Into<String>) -> &mut Self {
        let name = name.into();
        if !self.tags.contains(&name) {
            self.tags.push(name);
        }
        self
    }

    /// The name that clients which are made from the document give it, in place of the route's name.
    pub fn id(&mut self, name: impl Into<String>) -> &mut Self {
        self.id = Some(name.into());
        self
    }

    /// Clients should stop using it.
    pub fn deprecated(&mut self) -> &mut Self {
        self.is_deprecated = true;
        self
    }

    /// One more way to be let in: by the scheme of this name ([`OpenApi::security_scheme`](crate::OpenApi::security_scheme)).
    /// Of several ways one is enough.
    pub fn security(&mut self, scheme: &str) -> &mut Self {
        self.security_scopes(scheme, [])
    }

    /// The same with the scopes (of OAuth 2 and OpenID Connect) or the roles that are asked for.
    pub fn security_scopes<const N: usize>(
        &mut self,
        scheme: &str,
        scopes: [&str; N],
    ) -> &mut Self {
        let way = json!({ scheme: scopes.as_slice() });
        let ways = self.security.get_or_insert_default();
        if !ways.contains(&way) {
            ways.push(way);
        }
        self
    }

    /// Everybody is let in, whatever the scopes around it and the document as a whole say.
    pub fn no_security(&mut self) -> &mut Self {
        self.security = Some(Vec::new());
        self
    }

    /// What is asked for is this alone, whatever was said before.
    pub(crate) fn only_security(&mut self, scheme: &str) -> &mut Self {
        self.no_security().security(scheme)
    }

    /// The methods that it is documented for, where the route answers any method.
    pub fn methods(&mut self, methods: impl IntoIterator<Item = Method>) -> &mut Self {
        self.methods = Some(methods.into_iter().collect());
        self
    }

    /// A member of its own, whose name begins with `x-`.
    pub fn extension(&mut self, name: impl Into<String>, value: impl Into<Value>) -> &mut Self {
        self.more.insert(name.into(), value.into());
        self
    }

    /// What the extractor `A` asks of requests, for handlers that do not show it, such as services.
    pub fn argument<A: DescribeArgument>(&mut self) -> &mut Self {
        A::describe(self);
        self
    }

    /// What the response `R` is, for handlers that do not show it, such as those that return `impl IntoResponse`.
    pub fn answers<R: DescribeResponse>(&mut self) -> &mut Self {
        let mut responses = Responses::new(&self.schemas);
        R::describe(&mut responses);
        for answer in responses.into_answers() {
            self.answer(answer);
        }
        self
    }

    /// The same with this status, whatever `R` says.
    pub fn answers_with<R: DescribeResponse>(
        &mut self,
        status: u16,
        description: &str,
    ) -> &mut Self {
        let mut responses = Responses::new(&self.schemas);
        R::describe(&mut responses);
        for mut answer in responses.into_answers() {
            if !answer.is_problem() {
                answer.status = Status::Code(status);
                answer.description = Some(description.to_owned());
            }
            self.answer(answer);
        }
        self
    }

    /// The status of the response whose status the types do not tell, such as that of `(StatusCode, Json<T>)`.
    pub fn status(&mut self, status: StatusCode) -> &mut Self {
        let is_meant = |answer: &Answer| answer.status == Status::Unknown && !answer.is_problem();
        if let Some(place) = self.answers.iter().position(is_meant) {
            let mut answer = self.answers.swap_remove(place);
            answer.status = Status::Code(status.as_u16());
            self.answer(answer);
        }
        self
    }

    /// Describes the response with this status; it is a new one without content, if there is none.
    pub fn response(&mut self, status: u16, description: impl Into<String>) -> &mut Self {
        let status = Status::Code(status);
        match self.answers.iter_mut().find(|answer| answer.status == status) {
            Some(answer) => answer.description = Some(description.into()),
            None => self.answers.push(Answer::new(status).describe(description)),
        }
        self
    }

    /// There is a problem with this status.
    pub fn problem(&mut self, status: u16, description: impl Into<String>) -> &mut Self {
        let problem = Answer::problem(Status::Code(status), &self.schemas).describe(description);
        self.answer(problem)
    }

    /// An example of the content of the response with this status.
    pub fn response_example(
        &mut self,
        status: u16,
        name: &str,
        value: impl Serialize,
    ) -> &mut Self {
        let status = Status::Code(status);
        for answer in self.answers.iter_mut().filter(|answer| answer.status == status) {
            for content in answer.content.values_mut() {
                add_example(content, name, &value);
            }
        }
        self
    }

    /// A parameter beside those that the extractors tell, or more about one of these.
    pub fn parameter(&mut self, parameter: Parameter) -> &mut Self {
        let parameter = parameter.resolved(&mut self.schemas.borrow_mut());
        let known = self.parameters.iter_mut().find(|known| known.is(&parameter));
        match known {
            Some(known) => known.complete(parameter),
            None => self.parameters.push(parameter),
        }
        self
    }

    /// A body of this media type, beside those that it has. What reads it may find it absent.
    pub fn body<T: JsonSchema>(&mut self, media_type: &str) -> &mut Self {
        let schema = self.schemas.borrow_mut().input::<T>();
        self.body_of(media_type, schema, true)
    }

    /// What the body is.
    pub fn body_description(&mut self, text: impl Into<String>) -> &mut Self {
        if let Some(body) = &mut self.body {
            body.description = Some(text.into());
        }
        self
    }

    /// An example of a body.
    pub fn body_example(&mut self, name: &str, value: impl Serialize) -> &mut Self {
        for content in self.body.iter_mut().flat_map(|body| body.content.values_mut()) {
            add_example(content, name, &value);
        }
        self
    }
}

/// Examples of a media type, by their names.
fn add_example(content: &mut Value, name: &str, value: &impl Serialize) {
    if let Ok(value) = serde_json::to_value(value) {
        content["examples"][name] = json!({ "value": value });
    }
}

/// For the descriptions of extractors.
impl Operation {
    /// The schemas of the document.
    pub fn schemas(&mut self) -> std::cell::RefMut<'_, Schemas> {
        self.schemas.borrow_mut()
    }

    /// A body with a schema of [`Operation::schemas`], beside those that it has.
    pub fn body_of(&mut self, media_type: &str, schema: Value, is_required: bool) -> &mut Self {
        let body = self.body.get_or_insert_with(|| Body {
            is_required,
            description: None,
            content: BTreeMap::new(),
        });
        let content = if schema == json!({}) { schema } else { json!({ "schema": schema }) };
        body.content.insert(media_type.to_owned(), content);
        self
    }

    /// Requests may be refused with these statuses.
    pub fn problems(&mut self, statuses: &[u16]) -> &mut Self {
        for status in statuses {
            let problem = Answer::problem(Status::Code(*status), &self.schemas);
            self.answer(problem);
        }
        self
    }

    /// The properties of `T` as parameters of the query.
    pub fn query<T: JsonSchema>(&mut self) -> &mut Self {
        let schema = self.schemas.borrow_mut().input::<T>();
        let properties = self.schemas.borrow().properties(&schema);
        let Some(properties) = properties else {
            // A map, or pairs: all names are free.
            let parameter = Parameter::query("params").schema_of(json!({
                "type": "object",
                "additionalProperties": { "type": "string" },
            }));
            return self.parameter(parameter);
        };
        for property in properties {
            let mut parameter = Parameter::query(&property.name).of_property(property.schema);
            if property.is_required {
                parameter = parameter.required();
            }
            self.parameter(parameter);
        }
        self
    }

    /// What `T` says of the path's parameters: a value, a tuple of them, or an object by their names.
    pub fn path<T: JsonSchema>(&mut self) -> &mut Self {
        let schema = self.schemas.borrow_mut().input::<T>();
        let resolved = self.schemas.borrow().resolved(&schema);
        let properties = self.schemas.borrow().properties(&schema);
        let mut own = self.parameters.iter_mut().filter(|parameter| parameter.place == Place::Path);
        if let Some(properties) = properties {
            for parameter in own {
                if let Some(property) = properties.iter().find(|one| one.name == parameter.name) {
                    parameter.refine(property.schema.clone());
                }
            }
        } else if let Some(items) = resolved.get("prefixItems").and_then(Value::as_array) {
            for (parameter, item) in own.zip(items) {
                parameter.refine(item.clone());
            }
        } else if resolved.get("type").is_none_or(|kind| kind != "object" && kind != "array")
            && let Some(parameter) = own.next()
        {
            parameter.refine(without_null(schema));
        }
        self
    }

    /// What `describe` adds is optional.
    pub(crate) fn optionally(&mut self, describe: impl FnOnce(&mut Self)) {
        let (count, has_body) = (self.parameters.len(), self.body.is_some());
        let ways = self.security.as_ref().map_or(0, Vec::len);
        describe(self);
        // Who lets in by it lets in without it as well: OpenAPI 3.1, Operation Object.
        if let Some(all) = self.security.as_mut().filter(|all| all.len() > ways) {
            all.push(json!({}));
        }
        for parameter in &mut self.parameters[count..] {
            parameter.is_required = false;
        }
        if let Some(body) = self.body.as_mut().filter(|_| !has_body) {
            body.is_required = false;
        }
    }

    /// What `describe` adds refuses nothing.
    pub(crate) fn without_problems(&mut self, describe: impl FnOnce(&mut Self)) {
        let answers = std::mem::take(&mut self.answers);
        self.optionally(describe);
        let more = std::mem::replace(&mut self.answers, answers);
        for answer in more.into_iter().filter(|answer| !answer.is_problem()) {
            self.answer(answer);
        }
    }

    /// Adds a response, to the one with the same status if there is one.
    fn answer(&mut self, answer: Answer) -> &mut Self {
        let is_same = |known: &&mut Answer| {
            known.status == answer.status && known.is_problem() == answer.is_problem()
        };
        match self.answers.iter_mut().find(is_same) {
            Some(known) => known.join(answer),
            None => self.answers.push(answer),
        }
        self
    }
}

/// For the document.
impl Operation {
    pub(crate) fn asked_methods(&self) -> Option<&[Method]> {
        self.methods.as_deref()
    }

    pub(crate) fn own_id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// The names of the security schemes that it asks for.
    pub(crate) fn schemes(&self) -> impl Iterator<Item = &str> {
        let ways = self.security.iter().flatten();
        ways.filter_map(Value::as_object).flat_map(|way| way.keys().map(String::as_str))
    }

    /// What a doc comment says, where nothing else was said.
    pub(crate) fn comment(&mut self, text: &str) {
        let (first, rest) = text.split_once("\n\n").unwrap_or((text, ""));
        if !first.trim().is_empty() {
            let words: Vec<_> = first.split_whitespace().collect();
            self.summary = Some(words.join(" "));
        }
        if !rest.trim().is_empty() {
            self.description = Some(rest.trim().to_owned());
        }
    }

    pub(crate) fn to_value(&self, id: Option<&str>) -> Value {
        let mut all = self.more.clone();
        let mut set = |name: &str, value: Value| {
            all.insert(name.to_owned(), value);
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
        Value::Object(all)
    }

    fn responses(&self) -> Value {
        let mut joined: BTreeMap<Status, Answer> = BTreeMap::new();
        // Those that are no problems speak first.
        let (problems, others): (Vec<_>, Vec<_>) =
            self.answers.iter().partition(|answer| answer.is_problem());
        for answer in others.into_iter().chain(problems) {
            match joined.get_mut(&answer.status) {
                Some(known) => known.join(answer.clone()),
                None => {
                    joined.insert(answer.status, answer.clone());
                }
            }
        }
        let named = joined.iter().map(|(status, answer)| (status.to_string(), answer.to_value()));
        let mut all: Map<String, Value> = named.collect();
        if all.is_empty() {
            let text = "The handler decides what it is.";
            all.insert("default".to_owned(), json!({ "description": text }));
        }
        Value::Object(all)
    }
}
