//! Converts the router's patterns to OpenAPI path templates.

use crate::parameter::Parameter;
use peregrine_web::built::RouteInfo;
use peregrine_web::route::next_parameter;
use serde_json::{Value, json};

/// The path of a route in a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathTemplate {
    /// As written in documents: `/files/{path}`.
    pub(crate) text: String,
    /// The template without names. OpenAPI 3.1, Paths Object: templates that differ only in names
    /// are the same.
    pub(crate) normalized: String,
    /// The names of its parameters. The name of a catch-all begins with `*`.
    pub(crate) parameters: Vec<String>,
}

impl PathTemplate {
    pub(crate) fn from_pattern(pattern: &str) -> Self {
        let (mut text, mut normalized, mut parameters, mut rest) =
            (String::new(), String::new(), Vec::new(), pattern);
        while let Some((before, name, after)) = next_parameter(rest) {
            let before = escape_literal(before);
            let plain = name.trim_start_matches('*');
            text += &format!("{before}{{{plain}}}");
            normalized += &format!("{before}{{}}");
            parameters.push(name.to_owned());
            rest = after;
        }
        let rest = escape_literal(rest);
        Self { text: text + &rest, normalized: normalized + &rest, parameters }
    }

    /// The parameters, as far as the pattern of `route` describes them. They have the names in
    /// `template`, the document's template for this path.
    pub(crate) fn parameters(&self, route: &RouteInfo<'_>, template: &Self) -> Vec<Parameter> {
        let names = self.parameters.iter().zip(&template.parameters);
        let parameter = |(pattern_name, name): (&String, &String)| {
            let parameter = Parameter::path(name.trim_start_matches('*'));
            match route.parameter_type(pattern_name) {
                _ if pattern_name.starts_with('*') => {
                    let text = "The rest of the path, including slashes.";
                    parameter.description(text).extension("x-rest-of-path", json!(true))
                }
                Some(kind) => parameter.with_schema(pattern_schema(kind)),
                None => parameter,
            }
        };
        names.map(parameter).collect()
    }
}

/// Converts literal text of a pattern, in which braces are doubled.
fn escape_literal(text: &str) -> String {
    text.replace("{{", "%7B").replace("}}", "%7D")
}

/// The schema of a type in patterns.
fn pattern_schema(kind: &str) -> Value {
    let bounded_integer = |format: &str, minimum: Value, maximum: Value| json!({ "type": "integer", "format": format, "minimum": minimum, "maximum": maximum });
    match kind {
        "u8" => bounded_integer("uint8", u8::MIN.into(), u8::MAX.into()),
        "u16" => bounded_integer("uint16", u16::MIN.into(), u16::MAX.into()),
        "u32" => bounded_integer("uint32", u32::MIN.into(), u32::MAX.into()),
        "i8" => bounded_integer("int8", i8::MIN.into(), i8::MAX.into()),
        "i16" => bounded_integer("int16", i16::MIN.into(), i16::MAX.into()),
        "i32" => json!({ "type": "integer", "format": "int32" }),
        "i64" => json!({ "type": "integer", "format": "int64" }),
        "u64" => json!({ "type": "integer", "format": "uint64", "minimum": 0 }),
        "u128" => json!({ "type": "integer", "minimum": 0 }),
        "i128" => json!({ "type": "integer" }),
        "f32" => json!({ "type": "number", "format": "float" }),
        "f64" => json!({ "type": "number", "format": "double" }),
        "bool" => json!({ "type": "boolean" }),
        "ip" => json!({ "type": "string", "anyOf": [{ "format": "ipv4" }, { "format": "ipv6" }] }),
        "uuid" => json!({ "type": "string", "format": "uuid" }),
        "alpha" => json!({ "type": "string", "pattern": "^[A-Za-z]+$" }),
        "alnum" => json!({ "type": "string", "pattern": "^[0-9A-Za-z]+$" }),
        "digits" => json!({ "type": "string", "pattern": "^[0-9]+$" }),
        "hex" => json!({ "type": "string", "pattern": "^[0-9A-Fa-f]+$" }),
        _ => json!({ "type": "string" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_patterns_to_templates() {
        for (pattern, text, normalized) in [
            ("/", "/", "/"),
            ("/birds/{id}", "/birds/{id}", "/birds/{}"),
            ("/v{major}.{minor}/x", "/v{major}.{minor}/x", "/v{}.{}/x"),
            ("/files/{*path}", "/files/{path}", "/files/{}"),
            ("/{{a}}/{b}", "/%7Ba%7D/{b}", "/%7Ba%7D/{}"),
        ] {
            let template = PathTemplate::from_pattern(pattern);
            assert_eq!((template.text.as_str(), template.normalized.as_str()), (text, normalized));
        }
    }
}
