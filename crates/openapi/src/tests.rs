//! Documents of whole applications, held to the schema that the OpenAPI Initiative publishes.

use crate::{
    Api, DescribeExt, Document, HasOpenApi, OpenApi, OpenApiError, Parameter, SecurityScheme, Status, describe,
};
use http::{Method, StatusCode};
use peregrine_web::extract::{Form, Json, Path, Query, State};
use peregrine_web::respond::{Html, IntoResponse, Redirect};
use peregrine_web::sse::{LastEventId, Sse};
use peregrine_web::{App, HandlerExt, Problem, Response, Scope};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::rc::Rc;

/// The official schema of OpenAPI 3.1 (Apache-2.0); see `schema/README.md`.
const SCHEMA: &str = include_str!("../schema/openapi-3.1-2022-10-07.json");

fn document(app: App) -> Rc<Document> {
    let document = app.openapi().unwrap_or_else(|error| panic!("{error}"));
    let schema: Value = serde_json::from_str(SCHEMA).expect("it is JSON");
    let validator = jsonschema::draft202012::new(&schema).expect("it is a schema");
    let wrong: Vec<_> = validator.iter_errors(document.value()).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(wrong.is_empty(), "{document}\n{}", wrong.join("\n"));
    document
}

fn api() -> OpenApi {
    OpenApi::new("Test", "1")
}

/// The one operation of `handler` for `GET /x`.
fn operation(app: App, path: &str) -> Value {
    let document = document(app.add(api()));
    let item = document.value()["paths"][path].as_object().unwrap_or_else(|| panic!("{document}"));
    item.values().next().expect("there is one").clone()
}

/// A bird as it is stored.
#[derive(Deserialize, Serialize, JsonSchema)]
struct Bird {
    /// What it is called.
    name: String,
    #[serde(default)]
    weight: Option<u32>,
    kind: Kind,
}

#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Falcon,
    Kite,
}

#[derive(Deserialize, JsonSchema)]
struct Page {
    /// Counted from 1.
    page: u32,
    size: Option<u8>,
    #[serde(default)]
    tag: Vec<String>,
    kind: Option<Kind>,
}

#[test]
fn paths_queries_bodies_and_results_are_told_by_their_types() {
    async fn put(
        Path((flock, id)): Path<(String, u64)>,
        Query(_): Query<Page>,
        State(_): State<u8>,
        Json(bird): Json<Bird>,
    ) -> Result<Status<201, Json<Bird>>, Problem> {
        let _ = (flock, id);
        Ok(Status(Json(bird)))
    }
    let app = App::new().state(1u8).put("/{flock}/birds/{id}", put.described());
    let operation = operation(app, "/{flock}/birds/{id}");
    assert_eq!(operation["parameters"], json!([
        { "in": "path", "name": "flock", "required": true, "schema": { "type": "string" } },
        { "in": "path", "name": "id", "required": true, "schema": { "type": "integer", "format": "uint64", "minimum": 0 } },
        { "in": "query", "name": "kind", "required": false, "schema": { "$ref": "#/components/schemas/Kind" } },
        { "in": "query", "name": "page", "required": true, "description": "Counted from 1.",
            "schema": { "type": "integer", "format": "uint32", "minimum": 0 } },
        { "in": "query", "name": "size", "required": false,
            "schema": { "type": "integer", "format": "uint8", "minimum": 0, "maximum": 255 } },
        { "in": "query", "name": "tag", "required": false, "schema": { "type": "array", "items": { "type": "string" }, "default": [] } },
    ]));
    let body = &operation["requestBody"];
    assert_eq!(body["required"], true);
    assert_eq!(body["content"]["application/json"]["schema"]["$ref"], "#/components/schemas/BirdInput");
    let responses = operation["responses"].as_object().expect("responses");
    assert_eq!(responses.keys().collect::<Vec<_>>(), ["201", "400", "408", "413", "415", "422", "default"]);
    assert_eq!(responses["201"]["content"]["application/json"]["schema"]["$ref"], "#/components/schemas/BirdOutput");
    for problem in ["400", "422", "default"] {
        let schema = &responses[problem]["content"]["application/problem+json"]["schema"];
        assert_eq!(schema["$ref"], "#/components/schemas/Problem");
    }
}
