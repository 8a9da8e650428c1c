//! The changes between two documents, and which of them break clients. The command
//! `contract diff OLD NEW` prints them.
//!
//! A client built for the old document must work with a server that implements the new one. So the
//! new server must accept every request that the old document allows, and must send only responses
//! that the old document allows:
//!
//! | rule | breaking | notes |
//! |---|---|---|
//! | `path-removed`, `operation-removed` | yes | names of path parameters do not matter |
//! | `path-added`, `operation-added` | no | |
//! | `parameter-removed` | yes | clients' values are no longer read |
//! | `parameter-added` | if it is required | |
//! | `parameter-required` | yes | it was optional |
//! | `parameter-optional` | no | |
//! | `parameter-changed` | yes | its `style`, `explode`, `allowReserved` or `content` |
//! | `body-removed`, `body-required` | yes | also if there was none before |
//! | `body-added`, `body-optional` | no | |
//! | `media-type-removed` | yes | of requests and responses |
//! | `media-type-added` | no | |
//! | `response-removed` | if the status is below 400 | unless `2XX` or `default` covers it |
//! | `response-added` | no | |
//! | `header-removed` | yes | of responses |
//! | `property-removed` | yes | of requests and responses |
//! | `property-added` | no | a required one in requests is `narrowed` |
//! | `narrowed` | yes | a request's schema: types, values, bounds, formats, patterns, required |
//! | `widened` | yes | a response's schema: the same |
//! | `security-added`, `security-changed` | yes | previously sufficient credentials are not |
//! | `security-removed` | no | |
//! | `security-scheme-changed` | yes | |
//! | `deprecated` | no | |
//! | `id-changed` | no | but newly generated clients have another name for it |
//!
//! Start with [`diff`]; `schema.rs` compares schemas.

mod normalize;
mod reference;
mod schema;

use crate::path_template::PathTemplate;
use reference::resolve_ref;
use schema::SchemaDiff;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;

pub use reference::find_dangling_ref;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// Whether it breaks clients.
    pub is_breaking: bool,
    /// The location: the operation, and the part of it.
    pub location: String,
    /// The rule that applies.
    pub rule: &'static str,
    /// The change in words.
    pub message: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = if self.is_breaking { "breaking" } else { "compatible" };
        write!(f, "{severity}: {}: {} [{}]", self.location, self.message, self.rule)
    }
}

/// All changes from `old` to `new`, breaking ones first.
///
/// ```
/// use peregrine::openapi::diff::diff;
/// use serde_json::json;
///
/// let old = json!({ "paths": { "/birds": { "get": {}, "post": {} } } });
/// let new = json!({ "paths": { "/birds": { "get": {} } } });
/// let changes = diff(&old, &new);
/// assert_eq!(changes[0].to_string(), "breaking: POST /birds: it was removed [operation-removed]");
/// ```
#[must_use]
pub fn diff(old: &Value, new: &Value) -> Vec<Change> {
    let mut report = ChangeList::default();
    let (before, after) = (collect_paths(old), collect_paths(new));
    for (template, (path, item)) in &before {
        match after.get(template) {
            None => report.breaking(path, "path-removed", "it was removed"),
            Some((new_path, new_item)) => {
                DocumentDiff { old, new, report: &mut report }
                    .compare_path_item((path, item), (new_path, new_item));
            }
        }
    }
    for (template, (path, _)) in &after {
        if !before.contains_key(template) {
            report.compatible(path, "path-added", "it was added");
        }
    }
    compare_security_schemes(old, new, &mut report);
    let mut changes = report.0;
    changes.sort_by(|left, right| {
        (!left.is_breaking, &left.location).cmp(&(!right.is_breaking, &right.location))
    });
    changes.dedup();
    changes
}

/// The changes found so far.
#[derive(Default)]
struct ChangeList(Vec<Change>);

impl ChangeList {
    fn add(
        &mut self,
        is_breaking: bool,
        location: &str,
        rule: &'static str,
        message: impl Into<String>,
    ) {
        self.0.push(Change {
            is_breaking,
            location: location.to_owned(),
            rule,
            message: message.into(),
        });
    }

    fn breaking(&mut self, location: &str, rule: &'static str, message: impl Into<String>) {
        self.add(true, location, rule, message);
    }

    fn compatible(&mut self, location: &str, rule: &'static str, message: impl Into<String>) {
        self.add(false, location, rule, message);
    }
}

const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

/// The path items by normalized template, each with its path as written.
fn collect_paths(document: &Value) -> BTreeMap<String, (String, Value)> {
    let paths = document.get("paths").and_then(Value::as_object).into_iter().flatten();
    paths
        .map(|(path, item)| {
            (
                PathTemplate::from_pattern(path).normalized,
                (path.clone(), resolve_ref(document, item)),
            )
        })
        .collect()
}

fn members<'v>(
    value: &'v Value,
    name: &str,
) -> impl Iterator<Item = (&'v String, &'v Value)> + use<'v> {
    value.get(name).and_then(Value::as_object).into_iter().flatten()
}

/// Whether the member `name` is `true`.
fn is_set(value: &Value, name: &str) -> bool {
    value.get(name) == Some(&Value::Bool(true))
}

/// Two documents during a comparison.
struct DocumentDiff<'d> {
    old: &'d Value,
    new: &'d Value,
    report: &'d mut ChangeList,
}

impl DocumentDiff<'_> {
    fn compare_path_item(&mut self, (path, old): (&str, &Value), (new_path, new): (&str, &Value)) {
        for method in METHODS {
            let location = format!("{} {path}", method.to_ascii_uppercase());
            match (old.get(method), new.get(method)) {
                (Some(_), None) => {
                    self.report.breaking(&location, "operation-removed", "it was removed");
                }
                (None, Some(_)) => {
                    self.report.compatible(&location, "operation-added", "it was added")
                }
                (None, None) => {}
                (Some(before), Some(after)) => {
                    let before_parameters = collect_parameters(self.old, path, old, before);
                    let after_parameters = collect_parameters(self.new, new_path, new, after);
                    self.compare_parameters(&location, &before_parameters, &after_parameters);
                    self.compare_bodies(&location, before, after);
                    self.compare_responses(&location, before, after);
                    self.compare_security(&location, before, after);
                    self.compare_metadata(&location, before, after);
                }
            }
        }
    }

    fn compare_parameters(&mut self, location: &str, before: &Parameters, after: &Parameters) {
        for (key, old) in before {
            let location = format!("{location} {} parameter `{}`", key.0, str_member(old, "name"));
            let Some(new) = after.get(key) else {
                self.report.breaking(&location, "parameter-removed", "it is no longer read");
                continue;
            };
            match (is_set(old, "required"), is_set(new, "required")) {
                (false, true) => {
                    self.report.breaking(&location, "parameter-required", "it is now required")
                }
                (true, false) => {
                    self.report.compatible(&location, "parameter-optional", "it is now optional")
                }
                _ => {}
            }
            if serialization_style(old) != serialization_style(new) {
                self.report.breaking(&location, "parameter-changed", "its serialization changed");
            }
            self.compare_schemas(
                &location,
                DiffSide::Request,
                old.get("schema"),
                new.get("schema"),
            );
            if old.get("content").is_some() && new.get("content").is_some() {
                self.compare_content(&location, DiffSide::Request, old, new);
            }
        }
        for (key, new) in after {
            if !before.contains_key(key) {
                let location =
                    format!("{location} {} parameter `{}`", key.0, str_member(new, "name"));
                let is_required = is_set(new, "required");
                let message =
                    if is_required { "it was added and is required" } else { "it was added" };
                self.report.add(is_required, &location, "parameter-added", message);
            }
        }
    }

    fn compare_bodies(&mut self, location: &str, before: &Value, after: &Value) {
        let location = format!("{location} body");
        let body = |document, operation: &Value| {
            operation.get("requestBody").map(|body| resolve_ref(document, body))
        };
        match (body(self.old, before), body(self.new, after)) {
            (None, None) => {}
            (None, Some(new)) if is_set(&new, "required") => {
                self.report.breaking(&location, "body-required", "it was added and is required");
            }
            (None, Some(_)) => self.report.compatible(&location, "body-added", "it was added"),
            (Some(_), None) => {
                self.report.breaking(&location, "body-removed", "it is no longer read")
            }
            (Some(old), Some(new)) => {
                match (is_set(&old, "required"), is_set(&new, "required")) {
                    (false, true) => {
                        self.report.breaking(&location, "body-required", "it is now required")
                    }
                    (true, false) => {
                        self.report.compatible(&location, "body-optional", "it is now optional")
                    }
                    _ => {}
                }
                self.compare_content(&location, DiffSide::Request, &old, &new);
            }
        }
    }

    fn compare_content(&mut self, location: &str, side: DiffSide, old: &Value, new: &Value) {
        let after = new.get("content").cloned().unwrap_or_else(|| json!({}));
        for (media_type, content) in members(old, "content") {
            let location = format!("{location} {media_type}");
            let kind = media_type.split('/').next().unwrap_or_default();
            let wildcards = [format!("{kind}/*"), "*/*".to_owned()];
            match (after.get(media_type), wildcards.iter().find_map(|name| after.get(name))) {
                (Some(new_content), _) => {
                    self.compare_schemas(
                        &location,
                        side,
                        content.get("schema"),
                        new_content.get("schema"),
                    );
                }
                (None, Some(new_content)) if side == DiffSide::Request => {
                    self.compare_schemas(
                        &location,
                        side,
                        content.get("schema"),
                        new_content.get("schema"),
                    );
                }
                // In a response, a wildcard does not promise this media type.
                _ => self.report.breaking(&location, "media-type-removed", "it was removed"),
            }
        }
        for (media_type, _) in members(new, "content") {
            if old.get("content").is_none_or(|content| content.get(media_type).is_none()) {
                self.report.compatible(
                    &format!("{location} {media_type}"),
                    "media-type-added",
                    "it was added",
                );
            }
        }
    }

    fn compare_responses(&mut self, location: &str, before: &Value, after: &Value) {
        for (status, old) in members(before, "responses") {
            let location = format!("{location} response {status}");
            let class = format!("{}XX", status.chars().next().unwrap_or_default());
            let new_response = [status.as_str(), &class, "default"]
                .into_iter()
                .find_map(|status| after.get("responses")?.get(status));
            let Some(new_response) = new_response else {
                let is_failure = status.starts_with(['4', '5']) || status == "default";
                self.report.add(!is_failure, &location, "response-removed", "it was removed");
                continue;
            };
            let (old, new) = (resolve_ref(self.old, old), resolve_ref(self.new, new_response));
            self.compare_content(&location, DiffSide::Response, &old, &new);
            for (name, _) in members(&old, "headers") {
                let is_present = members(&new, "headers")
                    .any(|(new_name, _)| new_name.eq_ignore_ascii_case(name));
                if !is_present {
                    let location = format!("{location} header `{name}`");
                    self.report.breaking(&location, "header-removed", "it was removed");
                }
            }
        }
        for (status, _) in members(after, "responses") {
            if before.get("responses").is_none_or(|responses| responses.get(status).is_none()) {
                self.report.compatible(
                    &format!("{location} response {status}"),
                    "response-added",
                    "it was added",
                );
            }
        }
    }

    fn compare_schemas(
        &mut self,
        location: &str,
        side: DiffSide,
        old: Option<&Value>,
        new: Option<&Value>,
    ) {
        let anything = Value::Bool(true);
        let (old, new) = (old.unwrap_or(&anything), new.unwrap_or(&anything));
        let mut comparison = SchemaDiff::new(self.old, self.new, side);
        comparison.compare(old, new);
        for change in comparison.into_changes() {
            let location = if change.location.is_empty() {
                location.to_owned()
            } else {
                format!("{location} {}", change.location)
            };
            self.report.0.push(Change { location, ..change });
        }
    }

    fn compare_security(&mut self, location: &str, before: &Value, after: &Value) {
        let (old, new) =
            (security_alternatives(self.old, before), security_alternatives(self.new, after));
        if old == new || allows_anonymous(&old) && allows_anonymous(&new) {
            return;
        }
        if allows_anonymous(&new) {
            self.report.compatible(
                location,
                "security-removed",
                "no credentials are required any more",
            );
        } else if allows_anonymous(&old) {
            self.report.breaking(location, "security-added", "credentials are now required");
        } else {
            for alternative in
                old.iter().filter(|alternative| !new.iter().any(|new| satisfies(alternative, new)))
            {
                let names: Vec<_> = alternative.keys().map(String::as_str).collect();
                let message = format!("`{}` is no longer sufficient", names.join("` with `"));
                self.report.breaking(location, "security-changed", message);
            }
        }
    }

    fn compare_metadata(&mut self, location: &str, before: &Value, after: &Value) {
        if !is_set(before, "deprecated") && is_set(after, "deprecated") {
            self.report.compatible(location, "deprecated", "it is now deprecated");
        }
        let (old, new) = (str_member(before, "operationId"), str_member(after, "operationId"));
        if !old.is_empty() && old != new {
            let new_id = if new.is_empty() { "none".to_owned() } else { format!("`{new}`") };
            self.report.compatible(
                location,
                "id-changed",
                format!("its ID was `{old}` and is now {new_id}"),
            );
        }
    }
}

/// Whether a part of a request or of a response is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiffSide {
    Request,
    Response,
}

/// How a parameter is serialized, with the defaults of OpenAPI 3.1, Parameter Object.
fn serialization_style(parameter: &Value) -> (&str, bool, bool, bool) {
    let default_style = match str_member(parameter, "in") {
        "query" | "cookie" => "form",
        _ => "simple",
    };
    let style = match str_member(parameter, "style") {
        "" => default_style,
        style => style,
    };
    let explode = parameter.get("explode").and_then(Value::as_bool).unwrap_or(style == "form");
    (style, explode, is_set(parameter, "allowReserved"), parameter.get("content").is_some())
}

/// Parameters by location and name; those in the path by location and position.
type Parameters = BTreeMap<(String, String), Value>;

fn collect_parameters(document: &Value, path: &str, item: &Value, operation: &Value) -> Parameters {
    let names = PathTemplate::from_pattern(path).parameters;
    let lists =
        [item, operation].into_iter().filter_map(|owner| owner.get("parameters")?.as_array());
    let resolved = lists.flatten().map(|parameter| resolve_ref(document, parameter));
    resolved
        .map(|parameter| {
            let (location, name) = (str_member(&parameter, "in"), str_member(&parameter, "name"));
            let key = match location {
                "path" => names
                    .iter()
                    .position(|parameter_name| parameter_name == name)
                    .map_or(name.to_owned(), |index| index.to_string()),
                "header" => name.to_ascii_lowercase(),
                _ => name.to_owned(),
            };
            ((location.to_owned(), key), parameter)
        })
        .collect()
}

fn str_member<'v>(value: &'v Value, name: &str) -> &'v str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The alternative security requirements of an operation.
fn security_alternatives(document: &Value, operation: &Value) -> Vec<Map<String, Value>> {
    let alternatives = operation.get("security").or_else(|| document.get("security"));
    let alternatives = alternatives.and_then(Value::as_array).into_iter().flatten();
    alternatives.filter_map(Value::as_object).cloned().collect()
}

fn allows_anonymous(alternatives: &[Map<String, Value>]) -> bool {
    alternatives.is_empty() || alternatives.iter().any(Map::is_empty)
}

/// Whether credentials that satisfy `old` also satisfy `new`.
fn satisfies(old: &Map<String, Value>, new: &Map<String, Value>) -> bool {
    new.iter().all(|(name, scopes)| {
        let old_scopes = old.get(name).and_then(Value::as_array);
        let mut scopes = scopes.as_array().into_iter().flatten();
        old_scopes.is_some_and(|old_scopes| scopes.all(|scope| old_scopes.contains(scope)))
    })
}

fn compare_security_schemes(old: &Value, new: &Value, report: &mut ChangeList) {
    let schemes = |document: &Value| {
        document.pointer("/components/securitySchemes").cloned().unwrap_or_else(|| json!({}))
    };
    let (before, after) = (schemes(old), schemes(new));
    for (name, scheme) in before.as_object().into_iter().flatten() {
        let Some(new_scheme) = after.get(name) else { continue };
        let normalized = |scheme: &Value| {
            let mut scheme = scheme.clone();
            if let Value::Object(members) = &mut scheme {
                members.remove("description");
                members.remove("bearerFormat");
            }
            scheme
        };
        if normalized(scheme) != normalized(new_scheme) {
            let location = format!("security scheme `{name}`");
            report.breaking(&location, "security-scheme-changed", "the scheme changed");
        }
    }
}
