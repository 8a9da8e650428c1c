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
    let mut conjuncts: Vec<Vec<Value>> = Vec::new();
    if let Some(Value::String(reference)) = schema.remove("$ref") {
        let target = resolve_ref(document, &json!({ "$ref": reference }));
        // A reference to a missing target, or to itself, does not constrain anything.
        if target.get("$ref").is_none() && !trail.contains(&reference) {
            trail.push(reference);
            conjuncts.push(disjuncts(document, &target, trail));
            trail.pop();
        }
    }
    trail.push(String::new());
    for part in schema.remove("allOf").as_ref().and_then(Value::as_array).into_iter().flatten() {
        conjuncts.push(disjuncts(document, part, trail));
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(Value::Array(parts)) = schema.remove(key) {
            let limit = DISJUNCTS_MAX.max(parts.len());
            let parts = parts.iter().flat_map(|part| disjuncts(document, part, trail));
            conjuncts.push(parts.take(limit).collect());
        }
    }
    trail.pop();
    let mut combined = split_types(schema);
    for alternatives in conjuncts {
        // A long list of values is allowed, but a long product of two lists is cut off.
        let limit = DISJUNCTS_MAX.max(alternatives.len()).max(combined.len());
        let products = combined
            .iter()
            .flat_map(|left| alternatives.iter().map(|right| intersect(left, right)));
        combined = products.take(limit).collect();
    }
    // `intersect` sets the type to `null` if the types differ. Nothing matches such a schema.
    combined.retain(|part| part.get("type").is_none_or(|kind| !kind.is_null()));
    combined
}

/// Splits a schema into one for each of its types, or for each value of its `enum`.
fn split_types(mut schema: Map<String, Value>) -> Vec<Value> {
    // OpenAPI 3.0 has `nullable` where 3.1 has a type.
    if schema.remove("nullable") == Some(Value::Bool(true)) {
        if let Some(Value::Array(values)) = schema.get_mut("enum") {
            values.retain(|value| !value.is_null());
        }
        let mut variants = split_types(schema);
        variants.push(json!({ "type": "null" }));
        return variants;
    }
    if let Some(Value::Array(values)) = schema.remove("enum") {
        schema.remove("type");
        let with_value = |value: Value| {
            let mut variant = schema.clone();
            variant.insert("const".to_owned(), value);
            Value::Object(variant)
        };
        return values.into_iter().map(with_value).collect();
    }
    match schema.get("type").cloned() {
        Some(Value::Array(types)) => {
            let with_type = |kind: Value| {
                let mut variant = schema.clone();
                // Bounds and contents concern one type only.
                if kind == "null" {
                    variant.clear();
                }
                variant.insert("type".to_owned(), kind);
                Value::Object(variant)
            };
            types.into_iter().map(with_type).collect()
        }
        _ => vec![Value::Object(schema)],
    }
}

/// The approximate intersection of two schemas. If their types differ, the type is `null` (the JSON
/// value), which matches nothing. If both have another keyword, that of `left` is used.
fn intersect(left: &Value, right: &Value) -> Value {
    let (Value::Object(left), Value::Object(right)) = (left, right) else { return left.clone() };
    let mut both = left.clone();
    for (key, value) in right {
        match (key.as_str(), both.get_mut(key)) {
            ("properties", Some(Value::Object(existing))) => {
                for (name, schema) in value.as_object().into_iter().flatten() {
                    existing.entry(name.clone()).or_insert_with(|| schema.clone());
                }
            }
            ("required", Some(Value::Array(existing))) => {
                existing.extend(value.as_array().into_iter().flatten().cloned());
            }
            ("type", Some(existing)) if existing != value => {
                let is_numeric = |kind: &Value| kind == "integer" || kind == "number";
                *existing = if is_numeric(existing) && is_numeric(value) {
                    json!("integer")
                } else {
                    Value::Null
                };
            }
            (_, Some(_)) => {}
            (_, None) => {
                both.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(both)
}
