//! Determines whether everything that one schema allows is allowed by another.
//!
//! The requests of clients must still be accepted, so the old schema must be within the new one.
//! The responses of a server must have been expected, so the new schema must be within the old one.
//! The question is the same, in either direction.
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
    /// References that are being or were compared.
    visited_refs: BTreeSet<(String, String)>,
    path: Vec<String>,
    pairs: usize,
}

impl<'d> SchemaDiff<'d> {
    pub(super) fn new(old: &'d Value, new: &'d Value, side: DiffSide) -> Self {
        let (changes, seen, path) = <_>::default();
        Self { old, new, side, changes, visited_refs: seen, path, pairs: 0 }
    }

    pub(super) fn into_changes(mut self) -> Vec<Change> {
        if self.pairs > PAIRS_MAX {
            let what = "it is too complex to be compared";
            self.push(true, "narrowed", what);
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
        let (small, big) = match self.side {
            DiffSide::Request => (&before, &after),
            DiffSide::Response => (&after, &before),
        };
        for part in small {
            self.check_subset_of_any(part, big);
        }
        self.report_removed_properties(&before, &after);
    }

    /// Checks that `part` is within one of `all`; otherwise, reports the differences to the closest
    /// one.
    fn check_subset_of_any(&mut self, part: &Value, all: &[Value]) {
        // A constant has no references, so it means the same in both documents.
        if part.get("const").is_some() && all.contains(part) {
            return;
        }
        let mut closest: Option<Vec<Change>> = None;
        let begun = self.visited_refs.clone();
        for other in all {
            self.pairs += 1;
            if self.pairs > PAIRS_MAX {
                return;
            }
            let changes = std::mem::take(&mut self.changes);
            self.check_subset(part, other);
            let found = std::mem::replace(&mut self.changes, changes);
            let count = |found: &[Change]| {
                // A different type is further away than any other difference.
                let far = found
                    .iter()
                    .filter(|change| {
                        change.location == self.location() && change.message.contains("type")
                    })
                    .count();
                (far, found.iter().filter(|change| change.is_breaking).count())
            };
            if closest.as_ref().is_none_or(|known| count(&found) < count(known)) {
                closest = Some(found);
            }
            if closest.as_ref().is_some_and(|found| !found.iter().any(|change| change.is_breaking))
            {
                break;
            }
            // Comparisons in a rejected attempt do not count.
            self.visited_refs.clone_from(&begun);
        }
        match closest {
            Some(found) => self.changes.extend(found),
            None => self.report_difference("nothing is allowed", "nothing was allowed"),
        }
    }

    fn check_subset(&mut self, small: &Value, big: &Value) {
        if !self.check_type(small, big) {
            return;
        }
        let value = small.get("const");
        if value.is_none() {
            if let Some(value) = big.get("const") {
                self.report_difference(
                    &format!("only {value} is accepted"),
                    &format!("it is not always {value}"),
                );
            }
            self.check_bounds(small, big);
            self.check_formats(small, big);
        } else if big.get("const").is_none() {
            self.check_value(value.unwrap_or(&Value::Null), big);
        } else if big.get("const").is_some_and(|other| Some(other) != value) {
            let value = value.map(Value::to_string).unwrap_or_default();
            self.report_difference(
                &format!("{value} is no longer accepted"),
                &format!("it may now be {value}"),
            );
        }
        self.check_objects(small, big);
        self.check_arrays(small, big);
        for key in UNINTERPRETED_KEYWORDS {
            if small.get(key) != big.get(key) {
                let what = format!("`{key}` changed, with unknown effect");
                self.report_difference(&what, &what);
            }
        }
    }

    /// If the types differ, no further differences are reported.
    fn check_type(&mut self, small: &Value, big: &Value) -> bool {
        let Some(allowed) = type_of(big) else { return true };
        let given = type_of(small);
        let fits = given == Some(allowed) || given == Some("integer") && allowed == "number";
        if !fits {
            let given = given.unwrap_or("anything");
            self.report_difference(
                &format!("the type `{given}` is no longer accepted, only `{allowed}`"),
                &format!("it may now be of the type `{given}`, besides `{allowed}`"),
            );
        }
        fits
    }

    /// Checks one value against a schema. Rules that cannot be checked here count as violated.
    fn check_value(&mut self, value: &Value, big: &Value) {
        #[expect(clippy::cast_precision_loss, reason = "lengths and counts are small")]
        let size = match value {
            Value::String(text) => Some(text.chars().count() as f64),
            Value::Array(items) => Some(items.len() as f64),
            Value::Object(members) => Some(members.len() as f64),
            _ => value.as_f64(),
        };
        let kind = match value {
            Value::String(_) => "Length",
            Value::Array(_) => "Items",
            Value::Object(_) => "Properties",
            _ => "imum",
        };
        let mut broken: Vec<&str> = BOUND_KEYWORDS
            .iter()
            .filter(|(key, is_least)| {
                let limit = big.get(*key).and_then(Value::as_f64).filter(|_| key.ends_with(kind));
                limit.zip(size).is_some_and(|(limit, size)| {
                    match (*is_least, key.contains("sive")) {
                        (true, false) => size < limit,
                        (true, true) => size <= limit,
                        (false, false) => size > limit,
                        (false, true) => size >= limit,
                    }
                })
            })
            .map(|(key, _)| *key)
            .collect();
        if let (Some((least, most)), Value::Number(_), Some(number)) =
            (format_range(big), value, size)
        {
            broken.extend((number < least || number > most).then_some("format"));
        } else if value.is_string() {
            broken.extend(["pattern", "format"].into_iter().filter(|key| big.get(*key).is_some()));
        }
        for key in broken {
            self.report_difference(
                &format!("{value} may violate `{key}`, which was added"),
                &format!("it may now be {value}, which may violate `{key}`"),
            );
        }
    }

    fn check_bounds(&mut self, small: &Value, big: &Value) {
        for (key, is_least) in BOUND_KEYWORDS {
            let Some(limit) = big.get(key).and_then(Value::as_f64) else { continue };
            let said = |key: &str| small.get(key).and_then(Value::as_f64);
            let own = said(key).or_else(|| match key {
                // The range of a format, or an exclusive bound, implies a bound.
                "minimum" => {
                    said("exclusiveMinimum").or(format_range(small).map(|(least, _)| least))
                }
                "maximum" => said("exclusiveMaximum").or(format_range(small).map(|(_, most)| most)),
                "exclusiveMinimum" => said("minimum").filter(|least| *least > limit),
                "exclusiveMaximum" => said("maximum").filter(|most| *most < limit),
                // Lengths are never negative.
                _ if is_least => Some(0.0),
                _ => None,
            });
            let is_within =
                own.is_some_and(|own| if is_least { own >= limit } else { own <= limit });
            if !is_within {
                let was = own.map_or("none".to_owned(), |own| own.to_string());
                self.report_difference(
                    &format!("`{key}` is now {limit} and was {was}"),
                    &format!("`{key}` was {limit} and is now {was}"),
                );
            }
        }
        for key in ["pattern", "multipleOf", "uniqueItems"] {
            let Some(rule) = big.get(key).filter(|rule| **rule != json!(false)) else { continue };
            if small.get(key) != Some(rule) {
                let own = small.get(key).map_or("none".to_owned(), Value::to_string);
                self.report_difference(
                    &format!("`{key}` is now {rule} and was {own}"),
                    &format!("`{key}` was {rule} and is now {own}"),
                );
            }
        }
    }

    fn check_formats(&mut self, small: &Value, big: &Value) {
        let format =
            |schema: &Value| schema.get("format").and_then(Value::as_str).map(str::to_owned);
        let Some(wanted) = format(big) else { return };
        let own = format(small);
        if own.as_ref() == Some(&wanted) || own.as_deref() == Some("float") && wanted == "double" {
            return;
        }
        if let (Some((least, most)), Some((own_least, own_most))) =
            (format_range(big), format_range(small))
            && own_least >= least
            && own_most <= most
        {
            return;
        }
        let own = own.unwrap_or_else(|| "none".to_owned());
        self.report_difference(
            &format!("`format` is now `{wanted}` and was `{own}`"),
            &format!("`format` was `{wanted}` and is now `{own}`"),
        );
    }

    fn check_objects(&mut self, small: &Value, big: &Value) {
        let more = |schema: &Value| {
            schema.get("additionalProperties").cloned().unwrap_or(Value::Bool(true))
        };
        let (small_more, big_more) = (more(small), more(big));
        let empty = Map::new();
        let of = |schema: &'_ Value| {
            schema
                .get("properties")
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_else(|| empty.clone())
        };
        let (own, others) = (of(small), of(big));
        for (name, schema) in &own {
            match others.get(name) {
                Some(other) => self.descend(name, schema, other),
                None if big_more == json!(false) => self.with_path(name, |it| {
                    it.report_difference(
                        "it is no longer allowed",
                        "it may now be present, where no other property was allowed",
                    );
                }),
                None if big_more.is_object() => self.descend(name, schema, &big_more),
                None => {}
            }
        }
        for name in required(big).difference(&required(small)) {
            // Removed properties are reported as such.
            if self.side == DiffSide::Request || own.contains_key(*name) {
                self.with_path(name, |it| {
                    it.report_difference("it is now required", "it is no longer always present")
                });
            }
        }
        let is_object = type_of(small).is_none_or(|kind| kind == "object");
        if is_object && small_more != big_more {
            if big_more == json!(false) {
                self.report_difference(
                    "other properties are no longer allowed",
                    "other properties may now be present",
                );
            } else if big_more.is_object() && small_more != json!(false) {
                self.descend("*", &small_more, &big_more);
            }
        }
    }

    fn check_arrays(&mut self, small: &Value, big: &Value) {
        if type_of(small).is_some_and(|kind| kind != "array") {
            return;
        }
        let anything = Value::Bool(true);
        if let Some(items) = big.get("items") {
            self.descend("[]", small.get("items").unwrap_or(&anything), items);
        }
        let first = |schema: &Value| {
            schema.get("prefixItems").and_then(Value::as_array).cloned().unwrap_or_default()
        };
        let own = first(small);
        for (place, item) in first(big).iter().enumerate() {
            self.descend(&format!("[{place}]"), own.get(place).unwrap_or(&anything), item);
        }
    }

    /// Reports properties that only the old schema has, and those that only the new one has.
    fn report_removed_properties(&mut self, before: &[Value], after: &[Value]) {
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
            let what = match self.side {
                DiffSide::Request => "it is no longer read",
                DiffSide::Response => "it is no longer sent",
            };
            self.with_path(name, |it| it.push(true, "property-removed", what));
        }
        for name in new.difference(&old) {
            self.with_path(name, |it| it.push(false, "property-added", "it was added"));
        }
    }

    /// Compares the schemas of a member.
    fn descend(&mut self, name: &str, small: &Value, big: &Value) {
        let (small, big) = (small.clone(), big.clone());
        self.with_path(name, |it| match it.side {
            DiffSide::Request => it.compare(&small, &big),
            DiffSide::Response => it.compare(&big, &small),
        });
    }

    fn with_path(&mut self, name: &str, work: impl FnOnce(&mut Self)) {
        self.path.push(name.to_owned());
        work(self);
        self.path.pop();
    }

    /// Reports that the smaller schema allows something that the bigger one does not, in words for
    /// requests and responses.
    fn report_difference(&mut self, request: &str, response: &str) {
        match self.side {
            DiffSide::Request => self.push(true, "narrowed", request),
            DiffSide::Response => self.push(true, "widened", response),
        }
    }

    fn push(&mut self, is_breaking: bool, rule: &'static str, what: &str) {
        self.changes.push(Change {
            is_breaking,
            location: self.location(),
            rule,
            message: what.to_owned(),
        });
    }

    fn location(&self) -> String {
        self.path.iter().map(|name| format!("/{name}")).collect()
    }
}

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
    #[expect(
        clippy::cast_precision_loss,
        reason = "which of two formats is wider can be told from less"
    )]
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
