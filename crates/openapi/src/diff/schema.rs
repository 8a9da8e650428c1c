//! Determines whether everything that one schema allows is allowed by another.
//!
//! The requests of old clients must still be accepted, so the old schema of a request must be
//! within the new one. Old clients must understand all responses, so the new schema of a response
//! must be within the old one. Both directions use the same check.
//!
//! A schema is split into alternatives, of which a value must match at least one: each of `anyOf`
//! and `oneOf`, each of several types, each value of an `enum`; `allOf` and references are
//! combined. Each alternative of one schema must be within an alternative of the other. Keywords
//! that are not understood (`not`, `if`, `patternProperties` and others) must not change.

use super::normalize::disjuncts;
use super::{Change, DiffSide};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// The maximum depth of the comparison; deeper schemas count as equal.
pub(super) const DEPTH_MAX: usize = 32;

/// The maximum number of pairs of alternatives compared for one schema of an operation.
const PAIRS_MAX: usize = 100_000;

/// Keywords that are not understood and must not change.
const UNINTERPRETED_KEYWORDS: [&str; 10] = [
    "not",
    "if",
    "then",
    "else",
    "dependentSchemas",
    "dependentRequired",
    "patternProperties",
    "propertyNames",
    "contains",
    "unevaluatedProperties",
];

/// Bounds, and whether each is a lower bound.
const BOUND_KEYWORDS: [(&str, bool); 10] = [
    ("minimum", true),
    ("exclusiveMinimum", true),
    ("minLength", true),
    ("minItems", true),
    ("minProperties", true),
    ("maximum", false),
    ("exclusiveMaximum", false),
    ("maxLength", false),
    ("maxItems", false),
    ("maxProperties", false),
];

pub(super) struct SchemaDiff<'d> {
    old: &'d Value,
    new: &'d Value,
    side: DiffSide,
    changes: Vec<Change>,
    /// Pairs of references that have been compared, or are being compared.
    visited_refs: BTreeSet<(String, String)>,
    path: Vec<String>,
    /// The number of pairs of alternatives compared so far.
    pairs: usize,
}

impl<'d> SchemaDiff<'d> {
    pub(super) fn new(old: &'d Value, new: &'d Value, side: DiffSide) -> Self {
        let (changes, visited_refs, path) = <_>::default();
        Self { old, new, side, changes, visited_refs, path, pairs: 0 }
    }

    pub(super) fn into_changes(mut self) -> Vec<Change> {
        if self.pairs > PAIRS_MAX {
            let message = "it is too complex to be compared";
            self.push(true, "narrowed", message);
        }
        self.changes
    }

    /// Compares two schemas, each from its own document.
    pub(super) fn compare(&mut self, old: &Value, new: &Value) {
        if self.path.len() > DEPTH_MAX {
            return;
        }
        let name = |schema: &Value| schema.get("$ref").and_then(Value::as_str).map(str::to_owned);
        if let (Some(old), Some(new)) = (name(old), name(new))
            && !self.visited_refs.insert((old, new))
        {
            return;
        }
        let (before, after) =
            (disjuncts(self.old, old, &mut Vec::new()), disjuncts(self.new, new, &mut Vec::new()));
        let (subset, superset) = match self.side {
            DiffSide::Request => (&before, &after),
            DiffSide::Response => (&after, &before),
        };
        for part in subset {
            self.check_subset_of_any(part, superset);
        }
        self.report_property_changes(&before, &after);
    }

    /// Checks that `part` is within one of `alternatives`. If not, reports the differences to the
    /// closest one.
    fn check_subset_of_any(&mut self, part: &Value, alternatives: &[Value]) {
        // A constant has no references, so it means the same in both documents.
        if part.get("const").is_some() && alternatives.contains(part) {
            return;
        }
        let mut closest: Option<Vec<Change>> = None;
        let visited_before = self.visited_refs.clone();
        for other in alternatives {
            self.pairs += 1;
            if self.pairs > PAIRS_MAX {
                return;
            }
            let changes = std::mem::take(&mut self.changes);
            self.check_subset(part, other);
            let found = std::mem::replace(&mut self.changes, changes);
            let count = |found: &[Change]| {
                // A different type counts as further away than any other difference.
                let type_differences = found
                    .iter()
                    .filter(|change| {
                        change.location == self.location() && change.message.contains("type")
                    })
                    .count();
                (type_differences, found.iter().filter(|change| change.is_breaking).count())
            };
            if closest.as_ref().is_none_or(|best| count(&found) < count(best)) {
                closest = Some(found);
            }
            if closest.as_ref().is_some_and(|found| !found.iter().any(|change| change.is_breaking))
            {
                break;
            }
            // Comparisons in a rejected attempt do not count.
            self.visited_refs.clone_from(&visited_before);
        }
        match closest {
            Some(found) => self.changes.extend(found),
            None => self.report_difference("nothing is allowed", "nothing was allowed"),
        }
    }

    fn check_subset(&mut self, subset: &Value, superset: &Value) {
        if !self.check_type(subset, superset) {
            return;
        }
        let value = subset.get("const");
        if value.is_none() {
            if let Some(value) = superset.get("const") {
                self.report_difference(
                    &format!("only {value} is accepted"),
                    &format!("it is not always {value}"),
                );
            }
            self.check_bounds(subset, superset);
            self.check_formats(subset, superset);
        } else if superset.get("const").is_none() {
            self.check_value(value.unwrap_or(&Value::Null), superset);
        } else if superset.get("const").is_some_and(|other| Some(other) != value) {
            let value = value.map(Value::to_string).unwrap_or_default();
            self.report_difference(
                &format!("{value} is no longer accepted"),
                &format!("it may now be {value}"),
            );
        }
        self.check_objects(subset, superset);
        self.check_arrays(subset, superset);
        for key in UNINTERPRETED_KEYWORDS {
            if subset.get(key) != superset.get(key) {
                let message = format!("`{key}` changed, with unknown effect");
                self.report_difference(&message, &message);
            }
        }
    }

    /// Checks the types. Returns `false` if they differ; other differences are then not reported.
    fn check_type(&mut self, subset: &Value, superset: &Value) -> bool {
        let Some(allowed) = type_of(superset) else { return true };
        let actual = type_of(subset);
        let is_allowed =
            actual == Some(allowed) || actual == Some("integer") && allowed == "number";
        if !is_allowed {
            let actual = actual.unwrap_or("anything");
            self.report_difference(
                &format!("the type `{actual}` is no longer accepted, only `{allowed}`"),
                &format!("it may now be of the type `{actual}`, besides `{allowed}`"),
            );
        }
        is_allowed
    }

    /// Checks one value against a schema. Rules that cannot be checked here count as violated.
    fn check_value(&mut self, value: &Value, superset: &Value) {
        #[expect(clippy::cast_precision_loss, reason = "lengths and counts are small")]
        let size = match value {
            Value::String(text) => Some(text.chars().count() as f64),
            Value::Array(items) => Some(items.len() as f64),
            Value::Object(members) => Some(members.len() as f64),
            _ => value.as_f64(),
        };
        // The end of the keywords for values of this type. `minimum` and `maximum` end with `imum`.
        let keyword_suffix = match value {
            Value::String(_) => "Length",
            Value::Array(_) => "Items",
            Value::Object(_) => "Properties",
            _ => "imum",
        };
        let mut violated: Vec<&str> = BOUND_KEYWORDS
            .iter()
            .filter(|(key, is_lower)| {
                let limit = superset
                    .get(*key)
                    .and_then(Value::as_f64)
                    .filter(|_| key.ends_with(keyword_suffix));
                limit.zip(size).is_some_and(|(limit, size)| {
                    match (*is_lower, key.starts_with("exclusive")) {
                        (true, false) => size < limit,
                        (true, true) => size <= limit,
                        (false, false) => size > limit,
                        (false, true) => size >= limit,
                    }
                })
            })
            .map(|(key, _)| *key)
            .collect();
        if let (Some((minimum, maximum)), Value::Number(_), Some(number)) =
            (format_range(superset), value, size)
        {
            violated.extend((number < minimum || number > maximum).then_some("format"));
        } else if value.is_string() {
            violated.extend(
                ["pattern", "format"].into_iter().filter(|key| superset.get(*key).is_some()),
            );
        }
        for key in violated {
            self.report_difference(
                &format!("{value} may violate `{key}`, which was added"),
                &format!("it may now be {value}, which may violate `{key}`"),
            );
        }
    }

    fn check_bounds(&mut self, subset: &Value, superset: &Value) {
        for (key, is_lower) in BOUND_KEYWORDS {
            let Some(limit) = superset.get(key).and_then(Value::as_f64) else { continue };
            let bound = |key: &str| subset.get(key).and_then(Value::as_f64);
            let actual =
                bound(key).or_else(|| match key {
                    // The range of a format, or an exclusive bound, implies a bound.
                    "minimum" => bound("exclusiveMinimum")
                        .or(format_range(subset).map(|(minimum, _)| minimum)),
                    "maximum" => bound("exclusiveMaximum")
                        .or(format_range(subset).map(|(_, maximum)| maximum)),
                    "exclusiveMinimum" => bound("minimum").filter(|minimum| *minimum > limit),
                    "exclusiveMaximum" => bound("maximum").filter(|maximum| *maximum < limit),
                    // Lengths are never negative.
                    _ if is_lower => Some(0.0),
                    _ => None,
                });
            let is_within = actual
                .is_some_and(|actual| if is_lower { actual >= limit } else { actual <= limit });
            if !is_within {
                let actual_text = actual.map_or("none".to_owned(), |actual| actual.to_string());
                self.report_difference(
                    &format!("`{key}` is now {limit} and was {actual_text}"),
                    &format!("`{key}` was {limit} and is now {actual_text}"),
                );
            }
        }
        for key in ["pattern", "multipleOf", "uniqueItems"] {
            let Some(rule) = superset.get(key).filter(|rule| **rule != json!(false)) else {
                continue;
            };
            if subset.get(key) != Some(rule) {
                let actual = subset.get(key).map_or("none".to_owned(), Value::to_string);
                self.report_difference(
                    &format!("`{key}` is now {rule} and was {actual}"),
                    &format!("`{key}` was {rule} and is now {actual}"),
                );
            }
        }
    }

    fn check_formats(&mut self, subset: &Value, superset: &Value) {
        let format =
            |schema: &Value| schema.get("format").and_then(Value::as_str).map(str::to_owned);
        let Some(expected) = format(superset) else { return };
        let actual = format(subset);
        if actual.as_ref() == Some(&expected)
            || actual.as_deref() == Some("float") && expected == "double"
        {
            return;
        }
        if let (Some((minimum, maximum)), Some((actual_minimum, actual_maximum))) =
            (format_range(superset), format_range(subset))
            && actual_minimum >= minimum
            && actual_maximum <= maximum
        {
            return;
        }
        let actual = actual.unwrap_or_else(|| "none".to_owned());
        self.report_difference(
            &format!("`format` is now `{expected}` and was `{actual}`"),
            &format!("`format` was `{expected}` and is now `{actual}`"),
        );
    }

    fn check_objects(&mut self, subset: &Value, superset: &Value) {
        let additional_properties = |schema: &Value| {
            schema.get("additionalProperties").cloned().unwrap_or(Value::Bool(true))
        };
        let (subset_additional, superset_additional) =
            (additional_properties(subset), additional_properties(superset));
        let empty = Map::new();
        let properties = |schema: &'_ Value| {
            schema
                .get("properties")
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_else(|| empty.clone())
        };
        let (subset_properties, superset_properties) = (properties(subset), properties(superset));
        for (name, schema) in &subset_properties {
            match superset_properties.get(name) {
                Some(other) => self.descend(name, schema, other),
                None if superset_additional == json!(false) => self.with_path(name, |diff| {
                    diff.report_difference(
                        "it is no longer allowed",
                        "it may now be present, where no other property was allowed",
                    );
                }),
                None if superset_additional.is_object() => {
                    self.descend(name, schema, &superset_additional)
                }
                None => {}
            }
        }
        for name in required(superset).difference(&required(subset)) {
            // Removed properties are reported as such.
            if self.side == DiffSide::Request || subset_properties.contains_key(*name) {
                self.with_path(name, |diff| {
                    diff.report_difference("it is now required", "it is no longer always present")
                });
            }
        }
        let is_object = type_of(subset).is_none_or(|kind| kind == "object");
        if is_object && subset_additional != superset_additional {
            if superset_additional == json!(false) {
                self.report_difference(
                    "other properties are no longer allowed",
                    "other properties may now be present",
                );
            } else if superset_additional.is_object() && subset_additional != json!(false) {
                self.descend("*", &subset_additional, &superset_additional);
            }
        }
    }

    fn check_arrays(&mut self, subset: &Value, superset: &Value) {
        if type_of(subset).is_some_and(|kind| kind != "array") {
            return;
        }
        let anything = Value::Bool(true);
        if let Some(items) = superset.get("items") {
            self.descend("[]", subset.get("items").unwrap_or(&anything), items);
        }
        let prefix_items = |schema: &Value| {
            schema.get("prefixItems").and_then(Value::as_array).cloned().unwrap_or_default()
        };
        let subset_items = prefix_items(subset);
        for (index, item) in prefix_items(superset).iter().enumerate() {
            self.descend(&format!("[{index}]"), subset_items.get(index).unwrap_or(&anything), item);
        }
    }

    /// Reports properties that only the old schema has, and those that only the new one has.
    fn report_property_changes(&mut self, before: &[Value], after: &[Value]) {
        let names = |parts: &[Value]| -> BTreeSet<String> {
            let properties = parts.iter().filter_map(|part| part.get("properties")?.as_object());
            properties.flat_map(|properties| properties.keys().cloned()).collect()
        };
        let (old, new) = (names(before), names(after));
        if new.is_empty()
            && after.iter().all(|part| type_of(part).is_some_and(|kind| kind != "object"))
        {
            // Different types are reported as such.
            return;
        }
        for name in old.difference(&new) {
            let message = match self.side {
                DiffSide::Request => "it is no longer read",
                DiffSide::Response => "it is no longer sent",
            };
            self.with_path(name, |diff| diff.push(true, "property-removed", message));
        }
        for name in new.difference(&old) {
            self.with_path(name, |diff| diff.push(false, "property-added", "it was added"));
        }
    }

    /// Compares the schemas of a member.
    fn descend(&mut self, name: &str, subset: &Value, superset: &Value) {
        let (subset, superset) = (subset.clone(), superset.clone());
        self.with_path(name, |diff| match diff.side {
            DiffSide::Request => diff.compare(&subset, &superset),
            DiffSide::Response => diff.compare(&superset, &subset),
        });
    }

    fn with_path(&mut self, name: &str, visit: impl FnOnce(&mut Self)) {
        self.path.push(name.to_owned());
        visit(self);
        self.path.pop();
    }

    /// Reports that the subset schema allows something that the superset schema does not, with one
    /// text for requests and one for responses.
    fn report_difference(&mut self, request: &str, response: &str) {
        match self.side {
            DiffSide::Request => self.push(true, "narrowed", request),
            DiffSide::Response => self.push(true, "widened", response),
        }
    }

    fn push(&mut self, is_breaking: bool, rule: &'static str, message: &str) {
        self.changes.push(Change {
            is_breaking,
            location: self.location(),
            rule,
            message: message.to_owned(),
        });
    }

    fn location(&self) -> String {
        self.path.iter().map(|name| format!("/{name}")).collect()
    }
}

/// The type of a schema, or of its constant.
fn type_of(schema: &Value) -> Option<&str> {
    match schema.get("const") {
        Some(Value::Null) => Some("null"),
        Some(Value::Bool(_)) => Some("boolean"),
        Some(Value::String(_)) => Some("string"),
        Some(Value::Number(number)) if number.is_f64() => Some("number"),
        Some(Value::Number(_)) => Some("integer"),
        Some(Value::Array(_)) => Some("array"),
        Some(Value::Object(_)) => Some("object"),
        None => schema.get("type").and_then(Value::as_str),
    }
}

fn required(schema: &Value) -> BTreeSet<&str> {
    let names = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    names.filter_map(Value::as_str).collect()
}

/// The range of an integer format.
fn format_range(schema: &Value) -> Option<(f64, f64)> {
    #[expect(clippy::cast_precision_loss, reason = "comparing two formats needs less precision")]
    Some(match schema.get("format")?.as_str()? {
        "uint8" => (0.0, f64::from(u8::MAX)),
        "uint16" => (0.0, f64::from(u16::MAX)),
        "uint32" => (0.0, f64::from(u32::MAX)),
        "uint64" | "uint" => (0.0, u64::MAX as f64),
        "int8" => (f64::from(i8::MIN), f64::from(i8::MAX)),
        "int16" => (f64::from(i16::MIN), f64::from(i16::MAX)),
        "int32" => (f64::from(i32::MIN), f64::from(i32::MAX)),
        "int64" | "int" => (i64::MIN as f64, i64::MAX as f64),
        _ => return None,
    })
}
