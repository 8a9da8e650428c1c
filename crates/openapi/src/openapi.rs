//! The description of an application, and its document.

use crate::document::Document;
use crate::operation::Operation;
use crate::operation_handler::{MetadataKind, OperationMetadata};
use crate::path_template::PathTemplate;
use crate::schemas::{SchemaFn, Schemas};
use crate::security::SecurityScheme;
use http::Method;
use peregrine_web::BuiltApp;
use peregrine_web::built::RouteInfo;
use peregrine_web::requirements::DeclaredProblem;
use peregrine_web::route::{DocComment, display_pattern};
use peregrine_web::scope::CATCH_ALL;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

/// The OpenAPI version of the documents.
pub const OPENAPI_VERSION: &str = "3.1.0";

/// The description of an application as a whole. Pass it to
/// [`App::register`](peregrine_web::App::register) to add a route that serves the document, and a
/// page that displays it.
///
/// ```
/// use peregrine::openapi::{DescribeExt, OpenApi, SecurityScheme};
/// use peregrine::prelude::*;
///
/// let api = OpenApi::new("Birds", "1.2.0")
///     .description("Which birds were seen.")
///     .security_scheme("token", SecurityScheme::bearer(""))
///     .default_security("token")
///     .require_descriptions();
/// let app = App::new().get("/birds", (|| "all").described()).register(api);
/// let client = app.test();
/// assert_eq!(client.get("/openapi.json").send_blocking().status(), 200);
/// assert!(client.get("/docs").send_blocking().text().contains("Birds"));
/// ```
#[derive(Clone)]
pub struct OpenApi {
    pub(crate) title: String,
    info: Map<String, Value>,
    pub(crate) servers: Vec<Value>,
    tags: Vec<Value>,
    schemes: Map<String, Value>,
    security: Vec<Value>,
    require_descriptions: bool,
    /// The format of problems, if it is not the default.
    problem: Option<(String, SchemaFn)>,
    extensions: Map<String, Value>,
    pub(crate) json_path: String,
    pub(crate) ui_path: Option<String>,
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
            require_descriptions: false,
            problem: None,
            extensions: Map::new(),
            json_path: "/openapi.json".to_owned(),
            ui_path: Some("/docs".to_owned()),
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

    /// Adds an alternative security requirement for all operations that do not override it. One of
    /// several alternatives suffices.
    #[must_use]
    pub fn default_security(mut self, scheme: &str) -> Self {
        self.security.push(json!({ scheme: [] }));
        self
    }

    /// Makes it an error at start-up if a route is neither described nor
    /// [hidden](crate::DescribeExt::hidden). By default, such routes are only listed
    /// ([`Document::undescribed`]).
    #[must_use]
    pub fn require_descriptions(mut self) -> Self {
        self.require_descriptions = true;
        self
    }

    /// Sets the format of problems, if [`App::on_problem`](peregrine_web::App::on_problem) changes
    /// it.
    #[must_use]
    pub fn problem_schema<T: JsonSchema>(mut self, media_type: &str) -> Self {
        self.problem = Some((media_type.to_owned(), SchemaGenerator::subschema_for::<T>));
        self
    }

    /// Adds an extension member of the document, whose name begins with `x-`.
    #[must_use]
    pub fn extension(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extensions.insert(name.into(), value.into());
        self
    }

    /// Sets the path of the document. The default is `/openapi.json`.
    #[must_use]
    pub fn json_path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.json_path);
        self
    }

    /// Sets the path of the page. The default is `/docs`.
    #[doc(alias = "swagger_ui")]
    #[must_use]
    pub fn ui_path(mut self, path: &str) -> Self {
        self.ui_path = Some(path.trim_end_matches('/').to_owned());
        self
    }

    /// Disables the page.
    #[must_use]
    pub fn without_ui(mut self) -> Self {
        self.ui_path = None;
        self
    }

    /// Creates the document of an application.
    ///
    /// # Errors
    /// All errors together: operations that require an unknown security scheme or share an ID and,
    /// with [`OpenApi::require_descriptions`], undescribed routes. Each error contains the location
    /// of the route and the fix.
    pub fn build_document(&self, application: &BuiltApp) -> Result<Document, Vec<String>> {
        let mut builder = DocumentBuilder::default();
        for route in application.routes().filter(|route| !route.is_slash_variant()) {
            builder.add(&route, self);
        }
        let mut errors = std::mem::take(&mut builder.errors);
        self.check(&builder, &mut errors);
        if !errors.is_empty() {
            return Err(errors);
        }
        let DocumentBuilder { paths, undescribed, schemas, .. } = builder;
        let ids = operation_ids(&paths);
        let mut path_items = Map::new();
        for path in paths.into_values() {
            let mut item = Map::new();
            for (method, described) in path.operations {
                let id = ids.get(&(path.template.normalized.clone(), method.clone()));
                item.insert(method, described.operation.to_value(id.map(String::as_str)));
            }
            path_items.insert(path.template.text, Value::Object(item));
        }
        let mut document = self.document_root(path_items);
        let schemas = Rc::into_inner(schemas).map(RefCell::into_inner);
        let schemas =
            schemas.expect("the operations, which held the other references, are dropped");
        let components = schemas.into_components(&mut document);
        if !components.is_empty() {
            document["components"]["schemas"] = Value::Object(components);
        }
        Ok(Document::new(document, undescribed))
    }

    /// The document around its paths.
    fn document_root(&self, paths: Map<String, Value>) -> Value {
        let mut document = json!({ "openapi": OPENAPI_VERSION, "info": self.info, "paths": paths });
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
        for (name, value) in &self.extensions {
            document[name] = value.clone();
        }
        document
    }

    /// Reports unknown security schemes, IDs that operations share and, if descriptions are
    /// required, undescribed routes.
    fn check(&self, builder: &DocumentBuilder, errors: &mut Vec<String>) {
        let operations = builder.paths.values().flat_map(|path| path.operations.values());
        let default_schemes = self
            .security
            .iter()
            .filter_map(Value::as_object)
            .flat_map(|requirement| requirement.keys());
        // The required schemes, each with the first route that requires it.
        let mut required: BTreeMap<&str, String> =
            default_schemes.map(|name| (name.as_str(), "the application".to_owned())).collect();
        for described in operations {
            for scheme in described.operation.schemes() {
                required.entry(scheme).or_insert_with(|| described.route.clone());
            }
        }
        for (scheme, route) in required {
            if !self.schemes.contains_key(scheme) {
                errors.push(format!(
                    "{route} requires the security scheme `{scheme}`, which the OpenApi does not have: add \
                     `.security_scheme(\"{scheme}\", ..)`"
                ));
            }
        }
        let mut ids: BTreeMap<&str, &RouteOperation> = BTreeMap::new();
        for described in builder.paths.values().flat_map(|path| path.operations.values()) {
            let Some(id) = described.operation.explicit_id() else { continue };
            let first = *ids.entry(id).or_insert(described);
            // A subtree, or a pattern with optional parameters, has several paths, which cannot be
            // named separately.
            if first.location != described.location {
                errors.push(format!(
                    "{} and {} both have the id `{id}`: rename one",
                    first.route, described.route
                ));
            }
        }
        if self.require_descriptions {
            let missing = builder.undescribed.iter();
            errors.extend(missing.map(|route| {
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
pub struct UndescribedRoute {
    /// The method, or `any method`.
    pub method: String,
    /// The full pattern.
    pub pattern: String,
    /// The source location where the route was added.
    pub location: String,
    /// Why the route is not in the document.
    pub reason: &'static str,
}

impl fmt::Display for UndescribedRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({}) {}", self.method, self.pattern, self.location, self.reason)
    }
}

/// The routes of a document.
#[derive(Default)]
struct DocumentBuilder {
    schemas: Rc<RefCell<Schemas>>,
    /// By normalized template.
    paths: BTreeMap<String, PathItem>,
    undescribed: Vec<UndescribedRoute>,
    errors: Vec<String>,
}

struct PathItem {
    template: PathTemplate,
    operations: BTreeMap<String, RouteOperation>,
}

struct RouteOperation {
    operation: Operation,
    /// The route's name in error messages.
    route: String,
    /// The source location where the route was added.
    location: String,
    name: Option<String>,
    omitted_parameters: usize,
}

impl DocumentBuilder {
    fn add(&mut self, route: &RouteInfo<'_>, api: &OpenApi) {
        // The format of problems must be set before the first operation refers to it.
        if self.paths.is_empty()
            && let Some((media_type, schema)) = &api.problem
        {
            self.schemas =
                Rc::new(RefCell::new(Schemas::with_problem(media_type.clone().into(), *schema)));
        }
        let kinds = || route.metadata::<OperationMetadata>().map(|metadata| &metadata.0);
        if kinds().any(|kind| matches!(kind, MetadataKind::Hidden)) {
            return;
        }
        if !kinds()
            .any(|kind| matches!(kind, MetadataKind::Inferred(_) | MetadataKind::Explicit(_)))
        {
            self.skip(route, "is not described");
            return;
        }
        let own_template = PathTemplate::from_pattern(route.pattern);
        let existing = self.paths.get(&own_template.normalized).map(|path| path.template.clone());
        let template = existing.unwrap_or_else(|| own_template.clone());
        let describe = |method: &Method| {
            let parameters = own_template.parameters(route, &template);
            apply_metadata(route, Operation::new(method.clone(), parameters, &self.schemas))
        };
        let operations: Vec<_> = match Method::from_bytes(route.methods.as_bytes()) {
            Ok(method) => vec![(method.clone(), describe(&method))],
            Err(_) => {
                let operation = describe(&Method::GET);
                let Some(methods) = operation.documented_methods() else {
                    self.skip(route, "handles any method; specify which with `it.methods([..])`");
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
        template: &PathTemplate,
        method: &Method,
        operation: Operation,
    ) {
        const METHODS: [&str; 8] =
            ["GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE"];
        if !METHODS.contains(&method.as_str()) {
            self.skip(route, "has a method that OpenAPI 3.1 does not support; hide it");
            return;
        }
        let path = self.paths.entry(template.normalized.clone());
        let path = path.or_insert_with(|| PathItem {
            template: template.clone(),
            operations: BTreeMap::new(),
        });
        let method = method.as_str().to_ascii_lowercase();
        if path.operations.contains_key(&method) {
            self.skip(
                route,
                "has the same path and method as another route, and a document can have only one; hide it",
            );
            return;
        }
        let name = route.name().map(str::to_owned);
        let location = route.location.to_string();
        let route_name =
            format!("{} {} ({location})", route.methods, display_pattern(route.pattern));
        let described = RouteOperation {
            operation,
            route: route_name,
            location,
            name,
            omitted_parameters: route.omitted_parameters(),
        };
        path.operations.insert(method, described);
    }

    fn skip(&mut self, route: &RouteInfo<'_>, reason: &'static str) {
        let (method, location) = (route.methods.to_owned(), route.location.to_string());
        // A subtree has three routes, of which one is listed.
        let pattern = display_pattern(route.pattern).into_owned();
        let is_listed = self.undescribed.iter().any(|listed| {
            listed.location == location
                && listed.method == method
                && pattern.trim_end_matches("/*") == listed.pattern
        });
        if !(is_listed && route.pattern.ends_with(CATCH_ALL)) {
            self.undescribed.push(UndescribedRoute { method, pattern, location, reason });
        }
    }
}

/// Combines all metadata of a route: first that of scopes, then that of its types, then its own.
fn apply_metadata(route: &RouteInfo<'_>, mut operation: Operation) -> Operation {
    let kinds = || route.metadata::<OperationMetadata>().map(|metadata| &metadata.0);
    if let Some(DocComment(text)) = route.metadata::<DocComment>().last() {
        operation.apply_doc_comment(text);
    }
    for kind in kinds() {
        if let MetadataKind::Scope(edit) = kind {
            edit(&mut operation);
        }
    }
    for DeclaredProblem { status, description } in route.metadata::<DeclaredProblem>() {
        operation.problem(*status, *description);
    }
    for kind in kinds() {
        if let MetadataKind::Inferred(describe) = kind {
            describe(&mut operation);
        }
    }
    for kind in kinds() {
        if let MetadataKind::Explicit(edit) = kind {
            edit(&mut operation);
        }
    }
    operation
}

/// The operation IDs by normalized template and method: explicit ones, otherwise the names of
/// routes, made unique where several routes have the same name.
fn operation_ids(paths: &BTreeMap<String, PathItem>) -> BTreeMap<(String, String), String> {
    let operations = || {
        paths.iter().flat_map(|(template, path)| {
            path.operations.iter().map(move |(method, described)| (template, method, described))
        })
    };
    let mut used_ids: BTreeSet<String> = operations()
        .filter_map(|(_, _, described)| described.operation.explicit_id())
        .map(str::to_owned)
        .collect();
    let mut methods: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (_, method, described) in operations() {
        if let Some(name) = &described.name {
            methods.entry(name).or_default().insert(method);
        }
    }
    let (mut ids, mut assigned) = (BTreeMap::new(), BTreeSet::new());
    // The pattern with all optional parameters gets the plain name; those without some get a
    // number.
    let mut ordered: Vec<_> = operations().collect();
    ordered.sort_by_key(|(_, _, described)| described.omitted_parameters);
    for (template, method, described) in ordered {
        let key = (template.clone(), method.clone());
        if let Some(id) = described.operation.explicit_id().filter(|id| assigned.insert(*id)) {
            ids.insert(key, id.to_owned());
        } else if let Some(id) = described.operation.explicit_id() {
            ids.insert(key, unique_id(id, &mut used_ids));
        } else if let Some(name) = &described.name {
            let name = match methods[name.as_str()].len() {
                1 => name.clone(),
                _ => format!("{method}_{name}"),
            };
            let id =
                if used_ids.insert(name.clone()) { name } else { unique_id(&name, &mut used_ids) };
            ids.insert(key, id);
        }
    }
    ids
}

/// The name with the first number that makes it unique.
fn unique_id(name: &str, used_ids: &mut BTreeSet<String>) -> String {
    let mut names = (2..).map(|number| format!("{name}_{number}"));
    names.find(|id| used_ids.insert(id.clone())).expect("the numbers do not run out")
}
