//! The changes between two documents, and which of them break clients. The command
//! `contract diff OLD NEW` prints them.
//!
//! A client made for the old document must work with a server of the new one. Requests may
//! therefore only become more permissive, and responses only less:
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

mod parts;
mod reference;
mod schema;

use crate::template::Template;
use reference::resolved;
use schema::Comparison;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;

pub use reference::astray;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// Whether it breaks clients.
    pub is_breaking: bool,
    /// The location: the operation, and the part of it.
    pub place: String,
    /// The rule that applies.
    pub rule: &'static str,
    /// The change in words.
    pub what: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.is_breaking { "breaking" } else { "harmless" };
        write!(f, "{word}: {}: {} [{}]", self.place, self.what, self.rule)
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
    let mut report = Report::default();
    let (before, after) = (paths(old), paths(new));
    for (shape, (path, item)) in &before {
        match after.get(shape) {
            None => report.breaks(path, "path-removed", "it was removed"),
            Some((new_path, new_item)) => {
                Compared { old, new, report: &mut report }.item((path, item), (new_path, new_item));
            }
        }
    }
    for (shape, (path, _)) in &after {
        if !before.contains_key(shape) {
            report.passes(path, "path-added", "it was added");
        }
    }
    schemes(old, new, &mut report);
    let mut changes = report.0;
    changes.sort_by(|one, two| (!one.is_breaking, &one.place).cmp(&(!two.is_breaking, &two.place)));
    changes.dedup();
    changes
}

/// The changes found so far.
#[derive(Default)]
struct Report(Vec<Change>);

impl Report {
    fn say(&mut self, is_breaking: bool, place: &str, rule: &'static str, what: impl Into<String>) {
        self.0.push(Change { is_breaking, place: place.to_owned(), rule, what: what.into() });
    }

    fn breaks(&mut self, place: &str, rule: &'static str, what: impl Into<String>) {
        self.say(true, place, rule, what);
    }

    fn passes(&mut self, place: &str, rule: &'static str, what: impl Into<String>) {
        self.say(false, place, rule, what);
    }
}

const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

/// The path items by shape.
fn paths(document: &Value) -> BTreeMap<String, (String, Value)> {
    let paths = document.get("paths").and_then(Value::as_object).into_iter().flatten();
    paths
        .map(|(path, item)| (Template::of(path).shape, (path.clone(), resolved(document, item))))
        .collect()
}

fn members<'v>(
    value: &'v Value,
    name: &str,
) -> impl Iterator<Item = (&'v String, &'v Value)> + use<'v> {
    value.get(name).and_then(Value::as_object).into_iter().flatten()
}

fn is_set(value: &Value, name: &str) -> bool {
    value.get(name) == Some(&Value::Bool(true))
}

/// Two documents during a comparison.
struct Compared<'d> {
    old: &'d Value,
    new: &'d Value,
    report: &'d mut Report,
}

impl Compared<'_> {
    fn item(&mut self, (path, old): (&str, &Value), (new_path, new): (&str, &Value)) {
        for method in METHODS {
            let place = format!("{} {path}", method.to_ascii_uppercase());
            match (old.get(method), new.get(method)) {
                (Some(_), None) => {
                    self.report.breaks(&place, "operation-removed", "it was removed");
                }
                (None, Some(_)) => self.report.passes(&place, "operation-added", "it was added"),
                (None, None) => {}
                (Some(before), Some(after)) => {
                    let before_parameters = parameters(self.old, path, old, before);
                    let after_parameters = parameters(self.new, new_path, new, after);
                    self.parameters(&place, &before_parameters, &after_parameters);
                    self.bodies(&place, before, after);
                    self.responses(&place, before, after);
                    self.security(&place, before, after);
                    self.rest(&place, before, after);
                }
            }
        }
    }

    fn parameters(&mut self, place: &str, before: &Parameters, after: &Parameters) {
        for (key, old) in before {
            let place = format!("{place} {} parameter `{}`", key.0, text(old, "name"));
            let Some(new) = after.get(key) else {
                self.report.breaks(&place, "parameter-removed", "it is no longer read");
                continue;
            };
            match (is_set(old, "required"), is_set(new, "required")) {
                (false, true) => {
                    self.report.breaks(&place, "parameter-required", "it is now required")
                }
                (true, false) => {
                    self.report.passes(&place, "parameter-optional", "it is now optional")
                }
                _ => {}
            }
            if written(old) != written(new) {
                self.report.breaks(&place, "parameter-changed", "its serialization changed");
            }
            self.schemas(&place, Side::Request, old.get("schema"), new.get("schema"));
            if old.get("content").is_some() && new.get("content").is_some() {
                self.contents(&place, Side::Request, old, new);
            }
        }
        for (key, new) in after {
            if !before.contains_key(key) {
                let place = format!("{place} {} parameter `{}`", key.0, text(new, "name"));
                let is_required = is_set(new, "required");
                let what =
                    if is_required { "it was added and is required" } else { "it was added" };
                self.report.say(is_required, &place, "parameter-added", what);
            }
        }
    }

    fn bodies(&mut self, place: &str, before: &Value, after: &Value) {
        let place = format!("{place} body");
        let body = |document, operation: &Value| {
            operation.get("requestBody").map(|body| resolved(document, body))
        };
        match (body(self.old, before), body(self.new, after)) {
            (None, None) => {}
            (None, Some(new)) if is_set(&new, "required") => {
                self.report.breaks(&place, "body-required", "it was added and is required");
            }
            (None, Some(_)) => self.report.passes(&place, "body-added", "it was added"),
            (Some(_), None) => self.report.breaks(&place, "body-removed", "it is no longer read"),
            (Some(old), Some(new)) => {
                match (is_set(&old, "required"), is_set(&new, "required")) {
                    (false, true) => {
                        self.report.breaks(&place, "body-required", "it is now required")
                    }
                    (true, false) => {
                        self.report.passes(&place, "body-optional", "it is now optional")
                    }
                    _ => {}
                }
                self.contents(&place, Side::Request, &old, &new);
            }
        }
    }

    fn contents(&mut self, place: &str, side: Side, old: &Value, new: &Value) {
        let after = new.get("content").cloned().unwrap_or_else(|| json!({}));
        for (media_type, content) in members(old, "content") {
            let place = format!("{place} {media_type}");
            let kind = media_type.split('/').next().unwrap_or_default();
            let wide = [format!("{kind}/*"), "*/*".to_owned()];
            match (after.get(media_type), wide.iter().find_map(|name| after.get(name))) {
                (Some(found), _) => {
                    self.schemas(&place, side, content.get("schema"), found.get("schema"));
                }
                (None, Some(found)) if side == Side::Request => {
                    self.schemas(&place, side, content.get("schema"), found.get("schema"));
                }
                // A wildcard media type need not include this one.
                _ => self.report.breaks(&place, "media-type-removed", "it was removed"),
            }
        }
        for (media_type, _) in members(new, "content") {
            if old.get("content").is_none_or(|content| content.get(media_type).is_none()) {
                self.report.passes(
                    &format!("{place} {media_type}"),
                    "media-type-added",
                    "it was added",
                );
            }
        }
    }

    fn responses(&mut self, place: &str, before: &Value, after: &Value) {
        for (status, old) in members(before, "responses") {
            let place = format!("{place} response {status}");
            let class = format!("{}XX", status.chars().next().unwrap_or_default());
            let found = [status.as_str(), &class, "default"]
                .into_iter()
                .find_map(|status| after.get("responses")?.get(status));
            let Some(found) = found else {
                let is_failure = status.starts_with(['4', '5']) || status == "default";
                self.report.say(!is_failure, &place, "response-removed", "it was removed");
                continue;
            };
            let (old, new) = (resolved(self.old, old), resolved(self.new, found));
            self.contents(&place, Side::Response, &old, &new);
            for (name, _) in members(&old, "headers") {
                let is_there =
                    members(&new, "headers").any(|(one, _)| one.eq_ignore_ascii_case(name));
                if !is_there {
                    let place = format!("{place} header `{name}`");
                    self.report.breaks(&place, "header-removed", "it was removed");
                }
            }
        }
        for (status, _) in members(after, "responses") {
            if before.get("responses").is_none_or(|all| all.get(status).is_none()) {
                self.report.passes(
                    &format!("{place} response {status}"),
                    "response-added",
                    "it was added",
                );
            }
        }
    }

    fn schemas(&mut self, place: &str, side: Side, old: Option<&Value>, new: Option<&Value>) {
        let anything = Value::Bool(true);
        let (old, new) = (old.unwrap_or(&anything), new.unwrap_or(&anything));
        let mut comparison = Comparison::new(self.old, self.new, side);
        comparison.compare(old, new);
        for change in comparison.into_changes() {
            let place = if change.place.is_empty() {
                place.to_owned()
            } else {
                format!("{place} {}", change.place)
            };
            self.report.0.push(Change { place, ..change });
        }
    }

    fn security(&mut self, place: &str, before: &Value, after: &Value) {
        let (old, new) = (ways(self.old, before), ways(self.new, after));
        if old == new || is_open(&old) && is_open(&new) {
            return;
        }
        if is_open(&new) {
            self.report.passes(place, "security-removed", "no credentials are required any more");
        } else if is_open(&old) {
            self.report.breaks(place, "security-added", "credentials are now required");
        } else {
            for way in old.iter().filter(|way| !new.iter().any(|new| is_enough(way, new))) {
                let names: Vec<_> = way.keys().map(String::as_str).collect();
                let what = format!("`{}` is no longer sufficient", names.join("` with `"));
                self.report.breaks(place, "security-changed", what);
            }
        }
    }

    fn rest(&mut self, place: &str, before: &Value, after: &Value) {
        if !is_set(before, "deprecated") && is_set(after, "deprecated") {
            self.report.passes(place, "deprecated", "it is now deprecated");
        }
        let (old, new) = (text(before, "operationId"), text(after, "operationId"));
        if !old.is_empty() && old != new {
            let now = if new.is_empty() { "none".to_owned() } else { format!("`{new}`") };
            self.report.passes(place, "id-changed", format!("its ID was `{old}` and is now {now}"));
        }
    }
}

/// The side whose message is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Request,
    Response,
}

/// How a parameter is serialized, with the defaults of OpenAPI 3.1, Parameter Object.
fn written(parameter: &Value) -> (&str, bool, bool, bool) {
    let usual = match text(parameter, "in") {
        "query" | "cookie" => "form",
        _ => "simple",
    };
    let style = match text(parameter, "style") {
        "" => usual,
        style => style,
    };
    let explode = parameter.get("explode").and_then(Value::as_bool).unwrap_or(style == "form");
    (style, explode, is_set(parameter, "allowReserved"), parameter.get("content").is_some())
}

/// By location and name; path parameters by position.
type Parameters = BTreeMap<(String, String), Value>;

fn parameters(document: &Value, path: &str, item: &Value, operation: &Value) -> Parameters {
    let names = Template::of(path).names;
    let lists = [item, operation].into_iter().filter_map(|of| of.get("parameters")?.as_array());
    let all = lists.flatten().map(|parameter| resolved(document, parameter));
    all.map(|parameter| {
        let (place, name) = (text(&parameter, "in"), text(&parameter, "name"));
        let key = match place {
            "path" => names
                .iter()
                .position(|one| one == name)
                .map_or(name.to_owned(), |at| at.to_string()),
            "header" => name.to_ascii_lowercase(),
            _ => name.to_owned(),
        };
        ((place.to_owned(), key), parameter)
    })
    .collect()
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The alternative security requirements of an operation.
fn ways(document: &Value, operation: &Value) -> Vec<Map<String, Value>> {
    let ways = operation.get("security").or_else(|| document.get("security"));
    let ways = ways.and_then(Value::as_array).into_iter().flatten();
    ways.filter_map(Value::as_object).cloned().collect()
}

fn is_open(ways: &[Map<String, Value>]) -> bool {
    ways.is_empty() || ways.iter().any(Map::is_empty)
}

/// Whether credentials that satisfy `old` also satisfy `new`.
fn is_enough(old: &Map<String, Value>, new: &Map<String, Value>) -> bool {
    new.iter().all(|(name, scopes)| {
        let had = old.get(name).and_then(Value::as_array);
        let mut scopes = scopes.as_array().into_iter().flatten();
        had.is_some_and(|had| scopes.all(|scope| had.contains(scope)))
    })
}

fn schemes(old: &Value, new: &Value, report: &mut Report) {
    let all = |document: &Value| {
        document.pointer("/components/securitySchemes").cloned().unwrap_or_else(|| json!({}))
    };
    let (before, after) = (all(old), all(new));
    for (name, scheme) in before.as_object().into_iter().flatten() {
        let Some(now) = after.get(name) else { continue };
        let essence = |scheme: &Value| {
            let mut scheme = scheme.clone();
            if let Value::Object(members) = &mut scheme {
                members.remove("description");
                members.remove("bearerFormat");
            }
            scheme
        };
        if essence(scheme) != essence(now) {
            let place = format!("security scheme `{name}`");
            report.breaks(&place, "security-scheme-changed", "the scheme changed");
        }
    }
}
