//! Splits a schema into alternatives.

use super::reference::resolve_ref;
use super::schema::DEPTH_MAX;
use serde_json::{Map, Value, json};

/// The maximum number of alternatives of a combined schema; further ones are ignored.
const DISJUNCTS_MAX: usize = 256;

/// The alternatives of which a value must match at least one. An empty list matches nothing.
///
/// `trail` contains the references that lead here, and an empty string for each step without one.
pub(super) fn disjuncts(document: &Value, schema: &Value, trail: &mut Vec<String>) -> Vec<Value> {
    let mut schema = match schema {
        Value::Bool(false) => return Vec::new(),
        Value::Object(members) => members.clone(),
        _ => return vec![json!({})],
    };
    if trail.len() > DEPTH_MAX {
        return vec![Value::Object(schema)];
    }
    let mut together: Vec<Vec<Value>> = Vec::new();
    if let Some(Value::String(reference)) = schema.remove("$ref") {
        let target = resolve_ref(document, &json!({ "$ref": reference }));
        // A reference to a missing target, or to itself, does not constrain anything.
        if target.get("$ref").is_none() && !trail.contains(&reference) {
            trail.push(reference);
            together.push(disjuncts(document, &target, trail));
            trail.pop();
        }
    }
    trail.push(String::new());
    for part in schema.remove("allOf").as_ref().and_then(Value::as_array).into_iter().flatten() {
        together.push(disjuncts(document, part, trail));
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(Value::Array(all)) = schema.remove(key) {
            let most = DISJUNCTS_MAX.max(all.len());
            let all = all.iter().flat_map(|part| disjuncts(document, part, trail));
            together.push(all.take(most).collect());
        }
    }
    trail.pop();
    let mut found = split_types(schema);
    for alternatives in together {
        // A long list of values is allowed, but not a long product.
        let most = DISJUNCTS_MAX.max(alternatives.len()).max(found.len());
        let joined =
            found.iter().flat_map(|one| alternatives.iter().map(|other| intersect(one, other)));
        found = joined.take(most).collect();
    }
    // A value has only one type.
    found.retain(|part| part.get("type").is_none_or(|kind| !kind.is_null()));
    found
}

/// One schema for each type, and for each value.
fn split_types(mut schema: Map<String, Value>) -> Vec<Value> {
    // OpenAPI 3.0 has `nullable` where 3.1 has a type.
    if schema.remove("nullable") == Some(Value::Bool(true)) {
        if let Some(Value::Array(values)) = schema.get_mut("enum") {
            values.retain(|value| !value.is_null());
        }
        let mut all = split_types(schema);
        all.push(json!({ "type": "null" }));
        return all;
    }
    if let Some(Value::Array(values)) = schema.remove("enum") {
        schema.remove("type");
        let with = |value: Value| {
            let mut one = schema.clone();
            one.insert("const".to_owned(), value);
            Value::Object(one)
        };
        return values.into_iter().map(with).collect();
    }
    match schema.get("type").cloned() {
        Some(Value::Array(types)) => {
            let with = |kind: Value| {
                let mut one = schema.clone();
                // Bounds and contents concern one type only.
                if kind == "null" {
                    one.clear();
                }
                one.insert("type".to_owned(), kind);
                Value::Object(one)
            };
            types.into_iter().map(with).collect()
        }
        _ => vec![Value::Object(schema)],
    }
}

/// The intersection of two schemas. If their types differ, the type is `null` (the JSON value),
/// which matches nothing.
fn intersect(one: &Value, other: &Value) -> Value {
    let (Value::Object(one), Value::Object(other)) = (one, other) else { return one.clone() };
    let mut both = one.clone();
    for (key, value) in other {
        match (key.as_str(), both.get_mut(key)) {
            ("properties", Some(Value::Object(known))) => {
                for (name, schema) in value.as_object().into_iter().flatten() {
                    known.entry(name.clone()).or_insert_with(|| schema.clone());
                }
            }
            ("required", Some(Value::Array(known))) => {
                known.extend(value.as_array().into_iter().flatten().cloned());
            }
            ("type", Some(known)) if known != value => {
                let is_whole = |kind: &Value| kind == "integer" || kind == "number";
                *known =
                    if is_whole(known) && is_whole(value) { json!("integer") } else { Value::Null };
            }
            (_, Some(_)) => {}
            (_, None) => {
                both.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(both)
}
