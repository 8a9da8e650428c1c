//! The description of an application, and its document.

use crate::document::Document;
use crate::handler::{Kind, Note};
use crate::operation::Operation;
use crate::schemas::{MakeSchema, Schemas};
use crate::security::SecurityScheme;
use crate::template::Template;
use http::Method;
use peregrine_web::Application;
use peregrine_web::application::RouteInfo;
use peregrine_web::requirements::Refusal;
use peregrine_web::route::{DocComment, readable};
use peregrine_web::scope::REST;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

/// The OpenAPI version of the documents.
pub const VERSION: &str = "3.1.0";

/// The description of an application as a whole. Pass it to [`App::add`](peregrine_web::App::add)
/// to add a route that serves the document, and a page that displays it.
///
/// ```
/// use peregrine::openapi::{DescribeExt, OpenApi, SecurityScheme};
/// use peregrine::prelude::*;
///
/// let api = OpenApi::new("Birds", "1.2.0")
///     .description("Which birds were seen.")
///     .security_scheme("token", SecurityScheme::bearer(""))
///     .security("token")
///     .all_described();
/// let app = App::new().get("/birds", (|| "all").described()).add(api);
/// let client = app.test();
/// assert_eq!(client.get("/openapi.json").send_now().status(), 200);
/// assert!(client.get("/docs").send_now().text().contains("Birds"));
/// ```
#[derive(Clone)]
pub struct OpenApi {
    pub(crate) title: String,
    info: Map<String, Value>,
    pub(crate) servers: Vec<Value>,
    tags: Vec<Value>,
    schemes: Map<String, Value>,
    security: Vec<Value>,
    must_describe_all: bool,
    /// The format of problems, if it is not the default.
    problem: Option<(String, MakeSchema)>,
    more: Map<String, Value>,
    pub(crate) json_at: String,
    pub(crate) page_at: Option<String>,
}

impl OpenApi {
    /// Describes an API with this name and version.
    #[must_use]
    pub fn new(title: impl Into<String>, version: impl Into<String>) -> Self {
        let (title, version) = (title.into(), version.into());
        let info = Map::from_iter([
            ("title".to_owned(), json!(title)),
            ("version".to_owned(), json!(version)),
        ]);
        Self {
            title,
            info,
            servers: Vec::new(),
            tags: Vec::new(),
            schemes: Map::new(),
            security: Vec::new(),
            must_describe_all: false,
            problem: None,
            more: Map::new(),
            json_at: "/openapi.json".to_owned(),
            page_at: Some("/docs".to_owned()),
        }
    }

    /// Sets the description, in Markdown.
    #[must_use]
    pub fn description(self, text: impl Into<String>) -> Self {
        self.info("description", text.into())
    }

    /// Sets a member of the document's `info`, such as `contact` or `license`.
    #[must_use]
    pub fn info(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.info.insert(name.to_owned(), value.into());
        self
    }

    /// Adds a server URL. The default is the server that sent the document.
    #[must_use]
    pub fn server(mut self, url: &str) -> Self {
        self.servers.push(json!({ "url": url }));
        self
    }

    /// Describes a tag. Tags are listed in the order of these calls.
    #[must_use]
    pub fn tag(mut self, name: &str, description: &str) -> Self {
        self.tags.push(json!({ "name": name, "description": description }));
        self
    }

    /// Adds a security scheme, to which operations refer by `name`.
    #[must_use]
    pub fn security_scheme(mut self, name: &str, scheme: SecurityScheme) -> Self {
        self.schemes.insert(name.to_owned(), scheme.0);
        self
    }

    /// Adds an alternative security requirement of all operations, unless they override it. One of
    /// several alternatives suffices.
    #[must_use]
    pub fn security(mut self, scheme: &str) -> Self {
        self.security.push(json!({ scheme: [] }));
        self
    }

    /// Makes it an error at start-up if a route is neither described nor
    /// [hidden](crate::DescribeExt::hidden). By default, such routes are only listed
    /// ([`Document::undescribed`]).
    #[must_use]
    pub fn all_described(mut self) -> Self {
        self.must_describe_all = true;
        self
    }

    /// Sets the format of problems, if [`App::on_problem`](peregrine_web::App::on_problem) changes
    /// it.
    #[must_use]
    pub fn problems_as<T: JsonSchema>(mut self, media_type: &str) -> Self {
        self.problem = Some((media_type.to_owned(), SchemaGenerator::subschema_for::<T>));
        self
    }

    /// Adds an extension member of the document, whose name begins with `x-`.
    #[must_use]
    pub fn extension(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.more.insert(name.into(), value.into());
        self
    }

    /// Sets the path of the document. The default is `/openapi.json`.
    #[must_use]
    pub fn json_at(mut self, path: &str) -> Self {
        path.clone_into(&mut self.json_at);
        self
    }

    /// Sets the path of the page. The default is `/docs`.
    #[must_use]
    pub fn page_at(mut self, path: &str) -> Self {
        self.page_at = Some(path.trim_end_matches('/').to_owned());
        self
    }

    /// Serves no page.
    #[must_use]
    pub fn without_page(mut self) -> Self {
        self.page_at = None;
        self
    }

    /// Creates the document of an application.
    ///
    /// # Errors
    /// All errors at once: operations that require an unknown security scheme or share an ID and,
    /// with [`OpenApi::all_described`], undescribed routes. Each error contains the location of the
    /// route and the fix.
    pub fn document(&self, application: &Application) -> Result<Document, Vec<String>> {
        let mut plan = Plan::default();
        for route in application.routes().filter(|route| !route.is_slash_twin()) {
            plan.add(&route, self);
        }
        let mut faults = std::mem::take(&mut plan.faults);
        self.check(&plan, &mut faults);
        if !faults.is_empty() {
            return Err(faults);
        }
        let Plan { paths, undescribed, schemas, .. } = plan;
        let ids = ids(&paths);
        let mut all = Map::new();
        for path in paths.into_values() {
            let mut item = Map::new();
            for (method, described) in path.operations {
                let id = ids.get(&(path.template.shape.clone(), method.clone()));
                item.insert(method, described.operation.to_value(id.map(String::as_str)));
            }
            all.insert(path.template.text, Value::Object(item));
        }
        let mut document = self.around(all);
        let schemas = Rc::into_inner(schemas).map(RefCell::into_inner);
        let schemas =
            schemas.expect("the operations, which held the other references, are dropped");
        let components = schemas.finish(&mut document);
        if !components.is_empty() {
            document["components"]["schemas"] = Value::Object(components);
        }
        Ok(Document::new(document, undescribed))
    }

    /// The document around its paths.
    fn around(&self, paths: Map<String, Value>) -> Value {
        let mut document = json!({ "openapi": VERSION, "info": self.info, "paths": paths });
        for (name, list) in
            [("servers", &self.servers), ("tags", &self.tags), ("security", &self.security)]
        {
            if !list.is_empty() {
                document[name] = json!(list);
            }
        }
        if !self.schemes.is_empty() {
            document["components"] = json!({ "securitySchemes": self.schemes });
        }
        for (name, value) in &self.more {
            document[name] = value.clone();
        }
        document
    }

    fn check(&self, plan: &Plan, faults: &mut Vec<String>) {
        let all = plan.paths.values().flat_map(|path| path.operations.values());
        let own = self.security.iter().filter_map(Value::as_object).flat_map(|way| way.keys());
        let mut unknown: BTreeMap<&str, String> =
            own.map(|name| (name.as_str(), "the application".to_owned())).collect();
        for described in all {
            for scheme in described.operation.schemes() {
                unknown.entry(scheme).or_insert_with(|| described.route.clone());
            }
        }
        for (scheme, route) in unknown {
            if !self.schemes.contains_key(scheme) {
                faults.push(format!(
                    "{route} requires the security scheme `{scheme}`, which the OpenApi does not have: add \
                     `.security_scheme(\"{scheme}\", ..)`"
                ));
            }
        }
        let mut ids: BTreeMap<&str, &Described> = BTreeMap::new();
        for described in plan.paths.values().flat_map(|path| path.operations.values()) {
            let Some(id) = described.operation.own_id() else { continue };
            let first = *ids.entry(id).or_insert(described);
            // A subtree, or a pattern with optional parts, has several paths, which cannot be named
            // separately.
            if first.place != described.place {
                faults.push(format!(
                    "{} and {} both have the id `{id}`: rename one",
                    first.route, described.route
                ));
            }
        }
        if self.must_describe_all {
            let missing = plan.undescribed.iter();
            faults.extend(missing.map(|route| {
                format!(
                    "{route}; call `.described()` on its handler, or `.hidden()` to leave it out"
                )
            }));
        }
    }
}

impl fmt::Debug for OpenApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenApi").field("title", &self.title).finish_non_exhaustive()
    }
}

/// A route that is not in a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undescribed {
    /// The method, or `any method`.
    pub method: String,
    /// The whole pattern.
    pub pattern: String,
    /// The source location where it was added.
    pub place: String,
    /// Why it is missing.
    pub reason: &'static str,
}

impl fmt::Display for Undescribed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({}) {}", self.method, self.pattern, self.place, self.reason)
    }
}

/// The routes of a document.
#[derive(Default)]
struct Plan {
    schemas: Rc<RefCell<Schemas>>,
    /// By shape.
    paths: BTreeMap<String, Path>,
    undescribed: Vec<Undescribed>,
    faults: Vec<String>,
}

struct Path {
    template: Template,
    operations: BTreeMap<String, Described>,
}

struct Described {
    operation: Operation,
    /// Its name in error messages.
    route: String,
    /// The source location where it was added.
    place: String,
    name: Option<String>,
    absent: usize,
}

impl Plan {
    fn add(&mut self, route: &RouteInfo<'_>, api: &OpenApi) {
        if self.paths.is_empty()
            && let Some((media_type, schema)) = &api.problem
        {
            self.schemas =
                Rc::new(RefCell::new(Schemas::with_problem(media_type.clone().into(), *schema)));
        }
        let notes = || route.notes::<Note>().map(|note| &note.0);
        if notes().any(|note| matches!(note, Kind::Hidden)) {
            return;
        }
        if !notes().any(|note| matches!(note, Kind::Signature(_) | Kind::Edit(_))) {
            self.leave_out(route, "is not described");
            return;
        }
        let own = Template::of(route.pattern);
        let known = self.paths.get(&own.shape).map(|path| path.template.clone());
        let template = known.unwrap_or_else(|| own.clone());
        let describe = |method: &Method| {
            let parameters = own.parameters(route, &template);
            described(route, Operation::new(method.clone(), parameters, &self.schemas))
        };
        let operations: Vec<_> = match Method::from_bytes(route.methods.as_bytes()) {
            Ok(method) => vec![(method.clone(), describe(&method))],
            Err(_) => {
                let asked = describe(&Method::GET);
                let Some(methods) = asked.asked_methods() else {
                    self.leave_out(
                        route,
                        "answers any method; specify which with `it.methods([..])`",
                    );
                    return;
                };
                methods.iter().map(|method| (method.clone(), describe(method))).collect()
            }
        };
        for (method, operation) in operations {
            self.insert(route, &template, &method, operation);
        }
    }

    fn insert(
        &mut self,
        route: &RouteInfo<'_>,
        template: &Template,
        method: &Method,
        operation: Operation,
    ) {
        const METHODS: [&str; 8] =
            ["GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE"];
        if !METHODS.contains(&method.as_str()) {
            self.leave_out(route, "has a method that OpenAPI 3.1 does not support; hide it");
            return;
        }
        let path = self.paths.entry(template.shape.clone());
        let path = path
            .or_insert_with(|| Path { template: template.clone(), operations: BTreeMap::new() });
        let method = method.as_str().to_ascii_lowercase();
        if path.operations.contains_key(&method) {
            self.leave_out(
                route,
                "has the same path and method as another route, and a document can have only one; hide it",
            );
            return;
        }
        let name = route.name().map(str::to_owned);
        let place = route.place.to_string();
        let named = format!("{} {} ({place})", route.methods, readable(route.pattern));
        let described = Described { operation, route: named, place, name, absent: route.absent() };
        path.operations.insert(method, described);
    }

    fn leave_out(&mut self, route: &RouteInfo<'_>, reason: &'static str) {
        let (method, place) = (route.methods.to_owned(), route.place.to_string());
        // A subtree has three routes, of which one is listed.
        let pattern = readable(route.pattern).into_owned();
        let is_told = self.undescribed.iter().any(|told| {
            told.place == place
                && told.method == method
                && pattern.trim_end_matches("/*") == told.pattern
        });
        if !(is_told && route.pattern.ends_with(REST)) {
            self.undescribed.push(Undescribed { method, pattern, place, reason });
        }
    }
}

/// Combines all notes of a route: first those of scopes, then its types, then its own.
fn described(route: &RouteInfo<'_>, mut operation: Operation) -> Operation {
    let notes = || route.notes::<Note>().map(|note| &note.0);
    if let Some(DocComment(text)) = route.notes::<DocComment>().last() {
        operation.comment(text);
    }
    for note in notes() {
        if let Kind::Around(edit) = note {
            edit(&mut operation);
        }
    }
    for Refusal { status, why } in route.notes::<Refusal>() {
        operation.problem(*status, *why);
    }
    for note in notes() {
        if let Kind::Signature(describe) = note {
            describe(&mut operation);
        }
    }
    for note in notes() {
        if let Kind::Edit(edit) = note {
            edit(&mut operation);
        }
    }
    operation
}

/// The operation IDs by shape and method: explicit ones, otherwise the names of routes, made unique
/// where several routes have the same name.
fn ids(paths: &BTreeMap<String, Path>) -> BTreeMap<(String, String), String> {
    let all = || {
        paths.iter().flat_map(|(shape, path)| {
            path.operations.iter().map(move |(method, described)| (shape, method, described))
        })
    };
    let mut taken: BTreeSet<String> = all()
        .filter_map(|(_, _, described)| described.operation.own_id())
        .map(str::to_owned)
        .collect();
    let mut methods: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (_, method, described) in all() {
        if let Some(name) = &described.name {
            methods.entry(name).or_default().insert(method);
        }
    }
    let (mut ids, mut given) = (BTreeMap::new(), BTreeSet::new());
    // The complete pattern gets the plain name; those without optional parts get a number.
    let mut ordered: Vec<_> = all().collect();
    ordered.sort_by_key(|(_, _, described)| described.absent);
    for (shape, method, described) in ordered {
        let at = (shape.clone(), method.clone());
        if let Some(id) = described.operation.own_id().filter(|id| given.insert(*id)) {
            ids.insert(at, id.to_owned());
        } else if let Some(id) = described.operation.own_id() {
            ids.insert(at, numbered(id, &mut taken));
        } else if let Some(name) = &described.name {
            let name = match methods[name.as_str()].len() {
                1 => name.clone(),
                _ => format!("{method}_{name}"),
            };
            let id = if taken.insert(name.clone()) { name } else { numbered(&name, &mut taken) };
            ids.insert(at, id);
        }
    }
    ids
}

/// The name with the first number that makes it unique.
fn numbered(name: &str, taken: &mut BTreeSet<String>) -> String {
    let mut names = (2..).map(|number| format!("{name}_{number}"));
    names.find(|id| taken.insert(id.clone())).expect("the numbers do not run out")
}
