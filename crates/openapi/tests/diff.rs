//! Tables of changes: schemas in both directions, and all other parts of a document.

use peregrine_openapi::diff::{Change, diff};
use serde_json::{Value, json};
use std::process::{Command, Output, Stdio};
use std::{fs, io::Write};

/// A document with one schema in a request and in a response.
fn document(schema: &Value) -> Value {
    let content = json!({ "application/json": { "schema": schema } });
    json!({
        "openapi": "3.1.0",
        "info": { "title": "a", "version": "1" },
        "paths": { "/a": { "post": {
            "requestBody": { "required": true, "content": content },
            "responses": { "200": { "description": "", "content": content } },
        } } },
        "components": { "schemas": {
            "Bird": { "type": "object", "properties": { "name": { "type": "string" }, "mother": { "$ref": "#/components/schemas/Bird" } } },
            "Fish": { "type": "object", "properties": { "name": { "type": "integer" }, "mother": { "$ref": "#/components/schemas/Fish" } } },
        } },
    })
}

/// The rules and locations of breaking changes on one side.
fn breaking(changes: &[Change], side: &str) -> Vec<String> {
    let on_side =
        changes.iter().filter(|change| change.is_breaking && change.location.contains(side));
    let mut rules: Vec<_> = on_side
        .map(|change| {
            let location =
                change.location.rsplit("application/json").next().unwrap_or_default().trim();
            format!("{} {location}", change.rule).trim().to_owned()
        })
        .collect();
    rules.dedup();
    rules
}

/// A name, the schemas before and after, and the rules broken in requests and in responses.
type Row<'t> = (&'t str, Value, Value, &'t [&'t str], &'t [&'t str]);

#[test]
#[expect(clippy::too_many_lines, reason = "it is a table")]
fn reports_narrowed_request_schemas_and_widened_response_schemas() {
    let text = || json!({ "type": "string" });
    let object = |properties: Value, required: Value| json!({ "type": "object", "properties": properties, "required": required });
    // From one schema to the other: the rules broken in requests, and in responses.
    let narrowed = &["narrowed"][..];
    let widened = &["widened"][..];
    let none = &[][..];
    let table: &[Row<'_>] = &[
        ("the same", text(), text(), none, none),
        (
            "another description",
            text(),
            json!({ "type": "string", "description": "b" }),
            none,
            none,
        ),
        ("another type", text(), json!({ "type": "integer" }), narrowed, widened),
        ("a wider type", json!({ "type": "integer" }), json!({ "type": "number" }), none, widened),
        ("anything", text(), json!({}), none, widened),
        ("no longer anything", json!(true), text(), narrowed, none),
        ("null as well", text(), json!({ "type": ["string", "null"] }), none, widened),
        (
            "null by anyOf",
            text(),
            json!({ "anyOf": [{ "type": "string" }, { "type": "null" }] }),
            none,
            widened,
        ),
        (
            "null in two forms",
            json!({ "type": ["string", "null"] }),
            json!({ "anyOf": [{ "type": "null" }, { "type": "string" }] }),
            none,
            none,
        ),
        ("one value more", json!({ "enum": ["a"] }), json!({ "enum": ["a", "b"] }), none, widened),
        ("one value less", json!({ "enum": ["a", "b"] }), json!({ "enum": ["b"] }), narrowed, none),
        (
            "values as constants",
            json!({ "type": "string", "enum": ["a", "b"] }),
            json!({ "oneOf": [{ "const": "a" }, { "const": "b", "description": "x" }] }),
            none,
            none,
        ),
        ("free text becomes values", text(), json!({ "enum": ["a"] }), narrowed, none),
        (
            "a higher minimum",
            json!({ "type": "integer", "minimum": 1 }),
            json!({ "type": "integer", "minimum": 2 }),
            narrowed,
            none,
        ),
        (
            "a higher maximum",
            json!({ "type": "integer", "maximum": 1 }),
            json!({ "type": "integer", "maximum": 2 }),
            none,
            widened,
        ),
        ("a first bound", text(), json!({ "type": "string", "maxLength": 5 }), narrowed, none),
        (
            "a wider format",
            json!({ "type": "integer", "format": "uint8", "minimum": 0, "maximum": 255 }),
            json!({ "type": "integer", "format": "uint32", "minimum": 0 }),
            none,
            widened,
        ),
        (
            "a signed format",
            json!({ "type": "integer", "format": "uint8", "minimum": 0, "maximum": 255 }),
            json!({ "type": "integer", "format": "int32" }),
            none,
            widened,
        ),
        ("a format", text(), json!({ "type": "string", "format": "uuid" }), narrowed, none),
        (
            "another pattern",
            json!({ "type": "string", "pattern": "a" }),
            json!({ "type": "string", "pattern": "b" }),
            narrowed,
            widened,
        ),
        (
            "an optional property",
            object(json!({}), json!([])),
            object(json!({ "a": text() }), json!([])),
            none,
            none,
        ),
        (
            "a required property",
            object(json!({}), json!([])),
            object(json!({ "a": text() }), json!(["a"])),
            &["narrowed /a"],
            none,
        ),
        (
            "required now",
            object(json!({ "a": text() }), json!([])),
            object(json!({ "a": text() }), json!(["a"])),
            &["narrowed /a"],
            none,
        ),
        (
            "optional now",
            object(json!({ "a": text() }), json!(["a"])),
            object(json!({ "a": text() }), json!([])),
            none,
            &["widened /a"],
        ),
        (
            "a property less",
            object(json!({ "a": text() }), json!(["a"])),
            object(json!({}), json!([])),
            &["property-removed /a"],
            &["property-removed /a"],
        ),
        (
            "no unknown names any more",
            object(json!({}), json!([])),
            json!({ "type": "object", "additionalProperties": false }),
            narrowed,
            none,
        ),
        (
            "values of a map",
            json!({ "type": "object", "additionalProperties": { "type": "integer" } }),
            json!({ "type": "object", "additionalProperties": { "type": "string" } }),
            &["narrowed /*"],
            &["widened /*"],
        ),
        (
            "items",
            json!({ "type": "array", "items": { "type": "integer" } }),
            json!({ "type": "array", "items": { "type": "number" } }),
            none,
            &["widened /[]"],
        ),
        (
            "a tuple",
            json!({ "type": "array", "prefixItems": [{ "type": "integer" }] }),
            json!({ "type": "array", "prefixItems": [{ "type": "string" }] }),
            &["narrowed /[0]"],
            &["widened /[0]"],
        ),
        (
            "a variant more",
            json!({ "oneOf": [object(json!({ "a": text() }), json!(["a"]))] }),
            json!({ "oneOf": [object(json!({ "a": text() }), json!(["a"])), { "type": "integer" }] }),
            none,
            widened,
        ),
        (
            "a variant less",
            json!({ "oneOf": [text(), { "type": "integer" }] }),
            json!({ "oneOf": [text()] }),
            narrowed,
            none,
        ),
        (
            "combined by allOf",
            object(json!({ "a": text(), "b": text() }), json!(["a"])),
            json!({ "allOf": [object(json!({ "a": text() }), json!(["a"])), object(json!({ "b": text() }), json!([]))] }),
            none,
            none,
        ),
        (
            "a type by a name",
            json!({ "$ref": "#/components/schemas/Bird" }),
            json!({ "$ref": "#/components/schemas/Bird" }),
            none,
            none,
        ),
        (
            "within a type that contains itself",
            json!({ "$ref": "#/components/schemas/Bird" }),
            json!({ "$ref": "#/components/schemas/Fish" }),
            &["narrowed /name"],
            &["widened /name"],
        ),
        (
            "unknown keywords",
            json!({ "not": { "const": 1 } }),
            json!({ "not": { "const": 2 } }),
            narrowed,
            widened,
        ),
        ("nothing at all", text(), json!(false), narrowed, none),
        (
            "values that a shorter text cannot hold",
            json!({ "enum": ["a", "long"] }),
            json!({ "type": "string", "maxLength": 1 }),
            narrowed,
            widened,
        ),
        (
            "values that stay within",
            json!({ "enum": ["a", "long"] }),
            json!({ "type": "string", "minLength": 1, "maxLength": 4 }),
            none,
            widened,
        ),
        (
            "numbers beyond a bound",
            json!({ "enum": [1, 200] }),
            json!({ "type": "integer", "maximum": 100 }),
            narrowed,
            widened,
        ),
        (
            "a number beyond a format",
            json!({ "const": 300 }),
            json!({ "type": "integer", "format": "uint8", "minimum": 0 }),
            narrowed,
            widened,
        ),
        (
            "a number within a format",
            json!({ "const": 200 }),
            json!({ "type": "integer", "format": "uint8", "minimum": 0 }),
            none,
            widened,
        ),
        (
            "a value beside a pattern",
            json!({ "const": "a" }),
            json!({ "type": "string", "pattern": "^b$" }),
            narrowed,
            widened,
        ),
        (
            "an equivalent bound",
            json!({ "type": "integer", "exclusiveMinimum": 0, "maximum": 9 }),
            json!({ "type": "integer", "minimum": 0, "exclusiveMaximum": 10 }),
            none,
            widened,
        ),
        ("a bound without effect", text(), json!({ "type": "string", "minLength": 0 }), none, none),
        (
            "null as OpenAPI 3.0 writes it",
            json!({ "type": "string", "nullable": true }),
            text(),
            narrowed,
            none,
        ),
        (
            "null as OpenAPI 3.1 writes it",
            json!({ "type": "string", "nullable": true }),
            json!({ "type": ["string", "null"] }),
            none,
            none,
        ),
        (
            "a reference whose name is escaped",
            json!({ "$ref": "#/components/schemas/B%69rd" }),
            json!({ "$ref": "#/components/schemas/F%69sh" }),
            &["narrowed /mother/name", "narrowed /name"],
            &["widened /mother/name", "widened /name"],
        ),
    ];
    for (name, old, new, requests, responses) in table {
        let changes = diff(&document(old), &document(new));
        assert_eq!(breaking(&changes, " body"), *requests, "{name}, in requests: {changes:#?}");
        assert_eq!(
            breaking(&changes, " response"),
            *responses,
            "{name}, in responses: {changes:#?}"
        );
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "it is a table")]
fn compares_every_part_of_an_operation() {
    let old = json!({
        "openapi": "3.1.0",
        "paths": { "/birds/{id}": {
            "get": {
                "operationId": "bird",
                "parameters": [
                    { "in": "path", "name": "id", "required": true },
                    { "in": "query", "name": "size" },
                    { "$ref": "#/components/parameters/Trace" },
                ],
                "responses": {
                    "200": { "headers": { "ETag": {} }, "content": { "application/json": {}, "text/plain": {} } },
                    "404": {},
                },
            },
            "put": { "requestBody": { "content": { "application/json": {} } }, "security": [{ "token": [] }, { "key": [] }] },
            "patch": { "requestBody": { "required": true, "content": { "application/json": { "schema": { "type": "object" } } } } },
        } },
        "components": {
            "parameters": { "Trace": { "in": "header", "name": "X-Trace" } },
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" }, "key": { "type": "apiKey", "in": "header", "name": "k" } },
        },
    });
    // A pointer and a value to set there (or `None`), and the rules that apply, with `!` for
    // breaking ones.
    let table = [
        ("/info", Some(json!({ "title": "new" })), ""),
        ("/paths/~1birds~1{id}", None, "path-removed!"),
        ("/paths/~1fish", Some(json!({})), "path-added"),
        ("/paths/~1birds~1{id}/put", None, "operation-removed!"),
        ("/paths/~1birds~1{id}/post", Some(json!({})), "operation-added"),
        (
            "/paths/~1birds~1{id}/get/parameters/1",
            Some(json!({ "in": "query", "name": "length" })),
            "parameter-removed! parameter-added",
        ),
        (
            "/paths/~1birds~1{id}/get/parameters/1/required",
            Some(json!(true)),
            "parameter-required!",
        ),
        (
            "/paths/~1birds~1{id}/get/parameters/0/required",
            Some(json!(false)),
            "parameter-optional",
        ),
        ("/components/parameters/Trace/name", Some(json!("x-trace")), ""),
        (
            "/components/parameters/Trace/name",
            Some(json!("x-span")),
            "parameter-removed! parameter-added",
        ),
        (
            "/paths/~1birds~1{id}/get/parameters/1/schema",
            Some(json!({ "type": "integer" })),
            "narrowed!",
        ),
        (
            "/paths/~1birds~1{id}/get/requestBody",
            Some(json!({ "required": true })),
            "body-required!",
        ),
        ("/paths/~1birds~1{id}/get/requestBody", Some(json!({})), "body-added"),
        ("/paths/~1birds~1{id}/put/requestBody/required", Some(json!(true)), "body-required!"),
        ("/paths/~1birds~1{id}/patch/requestBody/required", Some(json!(false)), "body-optional"),
        ("/paths/~1birds~1{id}/put/requestBody", None, "body-removed!"),
        (
            "/paths/~1birds~1{id}/put/requestBody/content/application~1json",
            None,
            "media-type-removed!",
        ),
        (
            "/paths/~1birds~1{id}/put/requestBody/content",
            Some(json!({ "*/*": {} })),
            "media-type-added",
        ),
        (
            "/paths/~1birds~1{id}/put/requestBody/content/text~1csv",
            Some(json!({})),
            "media-type-added",
        ),
        (
            "/paths/~1birds~1{id}/patch/requestBody/content/application~1json/schema/properties",
            Some(json!({ "name": { "type": "string" } })),
            "property-added",
        ),
        ("/paths/~1birds~1{id}/get/responses/200", None, "response-removed!"),
        ("/paths/~1birds~1{id}/get/responses/404", None, "response-removed"),
        ("/paths/~1birds~1{id}/get/responses/201", Some(json!({})), "response-added"),
        ("/paths/~1birds~1{id}/get/responses/200/content/text~1plain", None, "media-type-removed!"),
        ("/paths/~1birds~1{id}/get/responses/200/headers/ETag", None, "header-removed!"),
        (
            "/paths/~1birds~1{id}/get/responses/200/content",
            Some(json!({ "application/json": {}, "*/*": {} })),
            "media-type-removed! media-type-added",
        ),
        (
            "/paths/~1birds~1{id}/get/parameters/1/style",
            Some(json!("spaceDelimited")),
            "parameter-changed!",
        ),
        ("/paths/~1birds~1{id}/get/parameters/1/style", Some(json!("form")), ""),
        ("/paths/~1birds~1{id}/get/parameters/1/explode", Some(json!(true)), ""),
        ("/paths/~1birds~1{id}/get/parameters/1/explode", Some(json!(false)), "parameter-changed!"),
        (
            "/paths/~1birds~1{id}/get/parameters/1/content",
            Some(json!({ "application/json": {} })),
            "parameter-changed!",
        ),
        ("/security", Some(json!([{ "token": [] }])), "security-added!"),
        ("/paths/~1birds~1{id}/put/security", Some(json!([])), "security-removed"),
        ("/paths/~1birds~1{id}/put/security", Some(json!([{ "token": [] }])), "security-changed!"),
        ("/paths/~1birds~1{id}/put/security", Some(json!([{ "key": [] }, { "token": [] }])), ""),
        ("/paths/~1birds~1{id}/put/security/0/token", Some(json!(["admin"])), "security-changed!"),
        ("/components/securitySchemes/key/name", Some(json!("other")), "security-scheme-changed!"),
        ("/paths/~1birds~1{id}/get/deprecated", Some(json!(true)), "deprecated"),
        ("/paths/~1birds~1{id}/get/operationId", Some(json!("one")), "id-changed"),
    ];
    for (pointer, value, expected) in table {
        let mut new = old.clone();
        change(&mut new, pointer, value);
        let mut rules: Vec<_> = diff(&old, &new)
            .iter()
            .map(|change| format!("{}{}", change.rule, if change.is_breaking { "!" } else { "" }))
            .collect();
        rules.dedup();
        assert_eq!(rules.join(" "), expected, "{pointer}");
    }
    let mut renamed = old.clone();
    let item = renamed["paths"]
        .as_object_mut()
        .and_then(|paths| paths.remove("/birds/{id}"))
        .expect("the path exists");
    renamed["paths"]["/birds/{name}"] = item;
    renamed["paths"]["/birds/{name}"]["get"]["parameters"][0]["name"] = json!("name");
    assert_eq!(diff(&old, &renamed), [], "the names of path parameters are not sent");
}

/// Sets the value at `pointer`, or removes it.
fn change(document: &mut Value, pointer: &str, value: Option<Value>) {
    let (parent, name) = pointer.rsplit_once('/').expect("the pointer begins with a slash");
    let name = name.replace("~1", "/");
    match (document.pointer_mut(parent).expect("the parent exists"), value) {
        (Value::Object(members), Some(value)) => drop(members.insert(name, value)),
        (Value::Object(members), None) => drop(members.remove(&name)),
        (Value::Array(items), Some(value)) => {
            items[name.parse::<usize>().expect("a number")] = value
        }
        (other, _) => panic!("{other} has no members"),
    }
}

fn contract(arguments: &[&str], input: &str) -> Output {
    let mut process = Command::new(env!("CARGO_BIN_EXE_contract"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command was built");
    // It may have exited without reading its input.
    let _ = process.stdin.take().expect("the input is piped").write_all(input.as_bytes());
    process.wait_with_output().expect("the command ends")
}

#[test]
fn the_exit_status_says_whether_clients_break() {
    let directory = std::env::temp_dir().join(format!("contract-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    let path = |name: &str| directory.join(name).to_str().expect("text").to_owned();
    let write = |name: &str, text: &str| {
        fs::write(path(name), text).expect("written");
        path(name)
    };
    let old = write("old.json", r#"{"openapi":"3.1.0","paths":{"/a":{"get":{},"post":{}}}}"#);
    let removed = write("less.json", r#"{"openapi":"3.1.0","paths":{"/a":{"get":{}}}}"#);
    let added =
        write("more.json", r#"{"openapi":"3.1.0","paths":{"/a":{"get":{},"post":{}},"/b":{}}}"#);
    let swagger = write("swagger.json", r#"{"swagger":"2.0"}"#);
    let yaml = write("a.yaml", "openapi: 3.1.0\n");
    let outside = write(
        "outside.json",
        r#"{"openapi":"3.1.0","paths":{"/a":{"get":{"responses":{"200":{"content":{"a/b":{"schema":{"$ref":"other.json#/Bird"}}}}}}}}}"#,
    );
    let dangling = write(
        "astray.json",
        r##"{"openapi":"3.1.0","paths":{"/a":{"get":{"parameters":[{"$ref":"#/components/parameters/A"}],"x-note":{"$ref":"mine"}}}}}"##,
    );
    let unusual = write(
        "odd.json",
        r#"{"openapi":"3.1.0","paths":{"/a":{"get":{"responses":{"\u00e9\u00e9":{},"":{}}},"post":{}}}}"#,
    );
    let (old, removed, added) = (old.as_str(), removed.as_str(), added.as_str());
    let missing = path("missing.json");
    for (arguments, status, expected) in [
        (&["diff", old, old][..], 0, "nothing changed"),
        (&["diff", old, added], 0, "nothing breaks clients"),
        (
            &["diff", old, removed],
            1,
            "breaking: POST /a: it was removed [operation-removed]\n1 change breaks",
        ),
        (&["diff", "--breaking", removed, old], 0, "nothing changed"),
        (&["diff", "--json", old, removed], 1, r#""rule": "operation-removed""#),
        (&["--help"], 0, "Exit status: 0"),
        (&["diff", old], 2, "two documents"),
        (&["patch", old, old], 2, "expected `diff`"),
        (&["diff", "--all", old, old], 2, "no option `--all`"),
        (&["diff", "-", "-"], 2, "only one"),
        (&["diff", old, &missing], 2, "cannot be read"),
        (&["diff", old, &yaml], 2, "is not JSON"),
        (&["diff", old, &swagger], 2, "no member `openapi`"),
        (&["diff", &outside, &outside], 2, "refers to `other.json#/Bird` outside of it"),
        (&["diff", old, &dangling], 2, "refers to `#/components/parameters/A`, which is not in it"),
        (&["diff", &unusual, &unusual], 0, "nothing changed"),
        (&["diff", &unusual, old], 1, "response-removed"),
    ] {
        let output = contract(arguments, "");
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
    let piped = contract(&["diff", old, "-"], r#"{"openapi":"3.1.0","paths":{}}"#);
    assert_eq!(piped.status.code(), Some(1));
    fs::remove_dir_all(&directory).expect("removed");
}

#[test]
fn compares_long_lists_of_values_completely() {
    let values = |count: u32| (0..count).map(|number| json!(format!("value-{number}")));
    for through_reference in [false, true] {
        let document_with = |values: Vec<Value>| {
            let list = json!({ "type": "string", "enum": values });
            if !through_reference {
                return document(&list);
            }
            let mut full = document(&json!({ "$ref": "#/components/schemas/List" }));
            full["components"]["schemas"]["List"] = list;
            full
        };
        let full = document_with(values(1000).collect());
        let reversed: Vec<_> = values(1000).rev().collect();
        assert_eq!(diff(&full, &document_with(reversed)), [], "the order does not matter");
        let changes = diff(&full, &document_with(values(999).collect()));
        assert_eq!(breaking(&changes, " body"), ["narrowed"], "{changes:#?}");
        assert!(changes[0].message.contains("value-999"), "{changes:#?}");
        let changes = diff(&document_with(values(999).collect()), &full);
        assert_eq!(breaking(&changes, " response"), ["widened"], "{changes:#?}");
    }
}

#[test]
fn comparing_malicious_documents_terminates() {
    // A reference to itself, a cycle of allOf, deep nesting, and wrong types everywhere.
    let mut deep = json!({ "type": "string" });
    for _ in 0..100 {
        deep = json!({ "type": "array", "items": deep });
    }
    let mut wide = json!({ "type": "object" });
    for _ in 0..8 {
        wide = json!({ "allOf": [{ "anyOf": [wide.clone(), wide.clone(), true] }, { "anyOf": [{ "type": "object" }, { "enum": [1, 2, 3] }] }] });
        if wide.to_string().len() > 20_000 {
            break;
        }
    }
    for schema in [
        json!({ "$ref": "#/paths/~1a/post/requestBody/content/application~1json/schema" }),
        json!({ "allOf": [{ "$ref": "#/components/schemas/Loop" }] }),
        deep,
        wide,
        json!({ "type": 7, "enum": "x", "properties": [], "required": {}, "anyOf": 1, "allOf": {}, "$ref": 3 }),
        json!([1]),
    ] {
        let mut left = document(&schema);
        left["components"]["schemas"]["Loop"] = json!({ "allOf": [{ "$ref": "#/components/schemas/Loop" }, { "anyOf": [{ "$ref": "#/components/schemas/Loop" }, true] }] });
        let right = document(&json!({ "type": "string" }));
        let _ = (diff(&left, &right), diff(&right, &left), diff(&left, &left));
    }
    for malformed in [
        json!(null),
        json!([]),
        json!({ "paths": [] }),
        json!({ "paths": { "/": 1, "{": { "get": 1 }, "": { "get": { "parameters": [1], "responses": { "": 1 } } } } }),
    ] {
        let _ = (
            diff(&malformed, &document(&json!({}))),
            diff(&document(&json!({})), &malformed),
            diff(&malformed, &malformed),
        );
    }
}
