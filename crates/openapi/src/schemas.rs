//! The schemas of types, collected while operations are described.
//!
//! A type can have two schemas, one for requests and one for responses. They differ, for example,
//! if a field has a default. Each is generated separately. If they are the same, they become one
//! component of the document, otherwise two.

use http::StatusCode;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema, json_schema};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

const INPUT_REF_PREFIX: &str = "#/input/";
const OUTPUT_REF_PREFIX: &str = "#/output/";
const COMPONENTS_REF_PREFIX: &str = "#/components/schemas/";

/// Creates the schema of a type.
pub(crate) type SchemaFn = fn(&mut SchemaGenerator) -> Schema;

/// The schemas of one document.
#[derive(Debug)]
pub struct Schemas {
    input: SchemaGenerator,
    output: SchemaGenerator,
    /// The media type and schema of problems.
    problem: (Cow<'static, str>, SchemaFn),
}

impl Default for Schemas {
    fn default() -> Self {
        let generator = |path: &'static str, settings: SchemaSettings| {
            settings.with(|settings| settings.definitions_path = path.into()).into_generator()
        };
        let settings = SchemaSettings::draft2020_12;
        Self {
            input: generator("/input", settings().for_deserialize()),
            output: generator("/output", settings().for_serialize()),
            problem: (
                peregrine_web::problem::PROBLEM_JSON.into(),
                SchemaGenerator::subschema_for::<ProblemSchema>,
            ),
        }
    }
}

impl Schemas {
    pub(crate) fn with_problem(media_type: Cow<'static, str>, schema: SchemaFn) -> Self {
        Self { problem: (media_type, schema), ..Self::default() }
    }

    /// The schema of a `T` in requests.
    pub fn input<T: JsonSchema>(&mut self) -> Value {
        self.input.subschema_for::<T>().to_value()
    }

    /// The schema of a `T` in responses.
    pub fn output<T: JsonSchema>(&mut self) -> Value {
        self.output.subschema_for::<T>().to_value()
    }

    /// The media type and schema of problems.
    pub(crate) fn problem(&mut self) -> (String, Value) {
        let schema = (self.problem.1)(&mut self.output);
        (self.problem.0.clone().into_owned(), schema.to_value())
    }

    /// The target of `schema`, if it is a reference.
    pub(crate) fn resolve(&self, schema: &Value) -> Value {
        let mut schema = schema.clone();
        // Chains of references are short, unless a type is defined as itself.
        for _ in 0..16 {
            let Some(reference) = schema.get("$ref").and_then(Value::as_str) else { break };
            let (definitions, name) = match (
                reference.strip_prefix(INPUT_REF_PREFIX),
                reference.strip_prefix(OUTPUT_REF_PREFIX),
            ) {
                (Some(name), _) => (self.input.definitions(), name),
                (_, Some(name)) => (self.output.definitions(), name),
                _ => break,
            };
            let Some(found) = definitions.get(&decode_pointer(name)) else { break };
            schema = found.clone();
        }
        schema
    }

    /// Changes the references in `document` to refer to components. Returns the components that the
    /// document needs.
    pub(crate) fn into_components(mut self, document: &mut Value) -> Map<String, Value> {
        let sides = [
            (INPUT_REF_PREFIX, self.input.take_definitions(true)),
            (OUTPUT_REF_PREFIX, self.output.take_definitions(true)),
        ];
        let mut differing: BTreeSet<String> = BTreeSet::new();
        let [(_, input), (_, output)] = &sides;
        let common_names = || input.keys().filter(|name| output.contains_key(*name));
        // A schema also differs if it refers to one that differs.
        loop {
            let new = common_names().filter(|name| {
                !differing.contains(*name)
                    && (!equal_ignoring_side(&input[*name], &output[*name])
                        || references_any(&input[*name], &differing))
            });
            let new: Vec<_> = new.cloned().collect();
            if new.is_empty() {
                break;
            }
            differing.extend(new);
        }
        let mut used = BTreeSet::new();
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        let mut components: BTreeMap<String, Value> = BTreeMap::new();
        for (ref_prefix, definitions) in sides {
            for (name, schema) in definitions {
                let reference = format!("{ref_prefix}{name}");
                let is_shared = !differing.contains(&name)
                    && names.contains_key(&format!("{INPUT_REF_PREFIX}{name}"));
                let preferred_name = match (differing.contains(&name), ref_prefix) {
                    (false, _) => name.clone(),
                    (true, INPUT_REF_PREFIX) => format!("{name}Input"),
                    (true, _) => format!("{name}Output"),
                };
                let component = if is_shared {
                    names[&format!("{INPUT_REF_PREFIX}{name}")].clone()
                } else {
                    unique_name(&component_name(&preferred_name), &mut used)
                };
                names.insert(reference, component.clone());
                components.insert(component, schema);
            }
        }
        rewrite_refs(document, &names);
        for schema in components.values_mut() {
            rewrite_refs(schema, &names);
        }
        reachable_components(document, &components)
    }
}

/// Compares schemas as if references to input and to output schemas were the same.
fn equal_ignoring_side(input: &Value, output: &Value) -> bool {
    fn without_side(value: &Value) -> String {
        value.to_string().replace("\"#/output/", "\"#/input/")
    }
    without_side(input) == without_side(output)
}

fn references_any(schema: &Value, names: &BTreeSet<String>) -> bool {
    let mut found = false;
    for_each_ref(schema, &mut |reference| {
        let name = reference
            .strip_prefix(INPUT_REF_PREFIX)
            .or_else(|| reference.strip_prefix(OUTPUT_REF_PREFIX));
        found |= name.is_some_and(|name| names.contains(&decode_pointer(name)));
    });
    found
}

fn for_each_ref(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get("$ref") {
                visit(reference);
            }
            members.values().for_each(|member| for_each_ref(member, visit));
        }
        Value::Array(items) => items.iter().for_each(|item| for_each_ref(item, visit)),
        _ => {}
    }
}

fn rewrite_refs(value: &mut Value, names: &BTreeMap<String, String>) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get_mut("$ref")
                && let Some(name) = names.get(&decode_pointer(reference))
            {
                *reference = format!("{COMPONENTS_REF_PREFIX}{name}");
            }
            members.values_mut().for_each(|member| rewrite_refs(member, names));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rewrite_refs(item, names)),
        _ => {}
    }
}

/// The components that `document` refers to, directly or indirectly.
fn reachable_components(
    document: &Value,
    components: &BTreeMap<String, Value>,
) -> Map<String, Value> {
    let mut found = Map::new();
    let mut pending = Vec::new();
    for_each_ref(document, &mut |reference| pending.push(reference.to_owned()));
    while let Some(reference) = pending.pop() {
        let Some(name) = reference.strip_prefix(COMPONENTS_REF_PREFIX) else { continue };
        let Some(schema) = components.get(name) else { continue };
        if found.insert(name.to_owned(), schema.clone()).is_none() {
            for_each_ref(schema, &mut |reference| pending.push(reference.to_owned()));
        }
    }
    found
}

/// OpenAPI 3.1, Components Object: names of components consist of letters, digits and `.-_` only.
fn component_name(name: &str) -> String {
    let is_allowed =
        |character: char| character.is_ascii_alphanumeric() || ".-_".contains(character);
    let plain: String =
        name.chars().map(|character| if is_allowed(character) { character } else { '_' }).collect();
    let plain = plain.trim_matches('_');
    if plain.is_empty() { "Schema".to_owned() } else { plain.to_owned() }
}

fn unique_name(name: &str, used: &mut BTreeSet<String>) -> String {
    let numbered = (2..).map(|number| format!("{name}{number}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    names.find(|name| used.insert(name.clone())).expect("the numbers do not run out")
}

/// RFC 6901, section 6: a pointer in a fragment is percent-encoded, with `~0` and `~1` for `~` and
/// `/`.
fn decode_pointer(reference: &str) -> String {
    let mut bytes = Vec::with_capacity(reference.len());
    let mut rest = reference.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escape = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        let escaped = after.get(..2).filter(|_| first == b'%').and_then(escape);
        bytes.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).replace("~1", "/").replace("~0", "~")
}

/// The schema of problems.
struct ProblemSchema;

impl JsonSchema for ProblemSchema {
    fn schema_name() -> Cow<'static, str> {
        "Problem".into()
    }

    fn schema_id() -> Cow<'static, str> {
        concat!(module_path!(), "::Problem").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "A problem with the request (RFC 9457). It may have further members.",
            "properties": {
                "type": {
                    "type": "string",
                    "format": "uri-reference",
                    "description": "The kind of problem.",
                },
                "title": { "type": "string", "description": "The status as text." },
                "status": { "type": "integer", "minimum": 100, "maximum": 599 },
                "detail": { "type": "string", "description": "The cause of the problem, and how to fix it." },
            },
            "required": ["type", "status", "detail"],
        })
    }
}

/// The reason phrase of a status, or a substitute.
pub(crate) fn reason_phrase(status: u16) -> &'static str {
    let status = StatusCode::from_u16(status).ok();
    status.and_then(|status| status.canonical_reason()).unwrap_or("A non-standard status")
}

/// The schema without `null`.
pub(crate) fn without_null(mut schema: Value) -> Value {
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [kind] = &mut types[..] {
            schema["type"] = kind.take();
        }
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if let Some(Value::Array(alternatives)) = schema.get_mut("anyOf") {
        alternatives.retain(|part| part.get("type").is_none_or(|kind| kind != "null"));
        for part in std::mem::take(alternatives).into_iter().map(without_null) {
            if !alternatives.contains(&part) {
                alternatives.push(part);
            }
        }
        if let [part] = &mut alternatives[..] {
            let (part, Value::Object(mut outer)) = (part.take(), schema.take()) else {
                return Value::Bool(true);
            };
            outer.remove("anyOf");
            if let Value::Object(members) = part {
                outer.extend(members);
            }
            return Value::Object(outer);
        }
    }
    if schema.get("default").is_some_and(Value::is_null)
        && let Value::Object(members) = &mut schema
    {
        members.remove("default");
    }
    schema
}

/// A property of an object: its name, its schema, and whether it is required.
pub(crate) struct Property {
    pub(crate) name: String,
    pub(crate) schema: Value,
    pub(crate) is_required: bool,
    /// It belongs to one of several alternatives, such as a variant of an enum.
    is_from_union: bool,
}

/// Collects the properties that an object's schema lists itself. They are unconditional unless the
/// schema is one of several alternatives.
fn collect_own_properties(schema: &Value, is_unconditional: bool, found: &mut Vec<Property>) {
    let required: Vec<_> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().collect();
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        if let Some(existing) = found.iter_mut().find(|existing| existing.name == *name) {
            if existing.is_from_union && !is_unconditional {
                existing.schema = any_of(&existing.schema, property);
            }
            continue;
        }
        let is_required =
            is_unconditional && required.iter().any(|required_name| *required_name == name);
        let (name, schema) = (name.clone(), property.clone());
        found.push(Property { name, schema, is_required, is_from_union: !is_unconditional });
    }
}

/// The union of two schemas.
fn any_of(left: &Value, right: &Value) -> Value {
    let values = |schema: &Value| match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value.clone()]),
        (None, Some(Value::Array(values))) => Some(values.clone()),
        (None, _) => None,
    };
    let kind = left.get("type").filter(|kind| right.get("type") == Some(kind));
    if let (Some(mut merged), Some(added), Some(kind)) = (values(left), values(right), kind) {
        merged
            .extend(added.into_iter().filter(|value| !merged.contains(value)).collect::<Vec<_>>());
        return json!({ "type": kind, "enum": merged });
    }
    let parts = |schema: &Value| match schema.get("anyOf") {
        Some(Value::Array(parts)) => parts.clone(),
        _ => vec![schema.clone()],
    };
    let mut alternatives = parts(left);
    alternatives.extend(
        parts(right).into_iter().filter(|part| !alternatives.contains(part)).collect::<Vec<_>>(),
    );
    if alternatives.len() == 1 { left.clone() } else { json!({ "anyOf": alternatives }) }
}

impl Schemas {
    /// The properties of an object's schema, including those of its parts; `None` if it has none.
    pub(crate) fn properties(&self, schema: &Value) -> Option<Vec<Property>> {
        let mut found: Vec<Property> = Vec::new();
        self.collect_properties(schema, true, 0, &mut found);
        (!found.is_empty()).then_some(found)
    }

    fn collect_properties(
        &self,
        schema: &Value,
        is_unconditional: bool,
        depth: u8,
        found: &mut Vec<Property>,
    ) {
        // Recursive schemas are not followed further.
        if depth > 8 {
            return;
        }
        let resolved = self.resolve(schema);
        // A schema with a reference may have properties too, such as the tag of a variant.
        if *schema != resolved {
            collect_own_properties(schema, is_unconditional, found);
        }
        let schema = resolved;
        collect_own_properties(&schema, is_unconditional, found);
        for (key, is_unconditional) in
            [("allOf", is_unconditional), ("anyOf", false), ("oneOf", false)]
        {
            for part in schema.get(key).and_then(Value::as_array).into_iter().flatten() {
                self.collect_properties(part, is_unconditional, depth + 1, found);
            }
        }
    }
}
