//! Documents of whole applications, validated against the official OpenAPI schema.

use crate::{
    ApiScope, DescribeExt, Document, OpenApi, OpenApiError, OpenApiExt, Parameter, SecurityScheme,
    WithStatus, api_scope,
};
use http::{Method, StatusCode};
use peregrine_web::extract::{Form, Json, Path, Query, State};
use peregrine_web::response::{Html, IntoResponse, Redirect};
use peregrine_web::sse::{LastEventId, Sse};
use peregrine_web::{App, HandlerExt, Problem, Response, Scope};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::rc::Rc;

/// The official schema of OpenAPI 3.1 (Apache-2.0); see `schema/README.md`.
const SCHEMA: &str = include_str!("../../schema/openapi-3.1-2022-10-07.json");

fn document(app: App) -> Rc<Document> {
    let document = app.openapi().unwrap_or_else(|error| panic!("{error}"));
    let schema: Value = serde_json::from_str(SCHEMA).expect("the schema is JSON");
    let validator = jsonschema::draft202012::new(&schema).expect("the schema is valid");
    let errors: Vec<_> = validator
        .iter_errors(document.value())
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{document}\n{}", errors.join("\n"));
    document
}

fn api() -> OpenApi {
    OpenApi::new("Test", "1")
}

/// The only operation of the route at `path`.
fn operation(app: App, path: &str) -> Value {
    let document = document(app.register(api()));
    let item = document.value()["paths"][path].as_object().unwrap_or_else(|| panic!("{document}"));
    item.values().next().expect("the path has an operation").clone()
}

/// A stored bird.
#[derive(Deserialize, Serialize, JsonSchema)]
struct Bird {
    /// The bird's name.
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
#[expect(dead_code, reason = "only its schema is used")]
struct Page {
    /// Counted from 1.
    page: u32,
    size: Option<u8>,
    #[serde(default)]
    tag: Vec<String>,
    kind: Option<Kind>,
}

#[test]
fn describes_paths_queries_bodies_and_results_by_their_types() {
    async fn put(
        Path((flock, id)): Path<(String, u64)>,
        Query(_): Query<Page>,
        State(_): State<u8>,
        Json(bird): Json<Bird>,
    ) -> Result<WithStatus<201, Json<Bird>>, Problem> {
        let _ = (flock, id);
        Ok(WithStatus(Json(bird)))
    }
    let app = App::new().state(1u8).put("/{flock}/birds/{id}", put.described());
    let operation = operation(app, "/{flock}/birds/{id}");
    assert_eq!(
        operation["parameters"],
        json!([
            { "in": "path", "name": "flock", "required": true, "schema": { "type": "string" } },
            { "in": "path", "name": "id", "required": true, "schema": { "type": "integer", "format": "uint64", "minimum": 0 } },
            { "in": "query", "name": "kind", "required": false, "schema": { "$ref": "#/components/schemas/Kind" } },
            { "in": "query", "name": "page", "required": true, "description": "Counted from 1.",
                "schema": { "type": "integer", "format": "uint32", "minimum": 0 } },
            { "in": "query", "name": "size", "required": false,
                "schema": { "type": "integer", "format": "uint8", "minimum": 0, "maximum": 255 } },
            { "in": "query", "name": "tag", "required": false, "schema": { "type": "array", "items": { "type": "string" }, "default": [] } },
        ])
    );
    let body = &operation["requestBody"];
    assert_eq!(body["required"], true);
    assert_eq!(
        body["content"]["application/json"]["schema"]["$ref"],
        "#/components/schemas/BirdInput"
    );
    let responses = operation["responses"].as_object().expect("responses");
    assert_eq!(
        responses.keys().collect::<Vec<_>>(),
        ["201", "400", "408", "413", "415", "422", "default"]
    );
    assert_eq!(
        responses["201"]["content"]["application/json"]["schema"]["$ref"],
        "#/components/schemas/BirdOutput"
    );
    for problem in ["400", "422", "default"] {
        let schema = &responses[problem]["content"]["application/problem+json"]["schema"];
        assert_eq!(schema["$ref"], "#/components/schemas/Problem");
    }
}

#[test]
fn describes_the_statuses_of_every_kind_of_result() {
    fn statuses(app: App) -> Vec<String> {
        let operation = operation(app, "/x");
        operation["responses"].as_object().expect("responses").keys().cloned().collect()
    }
    async fn dynamic() -> (StatusCode, [(&'static str, &'static str); 1], Json<u8>) {
        (StatusCode::CREATED, [("x-a", "b")], Json(1))
    }
    async fn failing() -> Result<(StatusCode, Json<u8>), Problem> {
        Ok((StatusCode::ACCEPTED, Json(1)))
    }
    async fn opaque() -> Response {
        "a".into_response()
    }
    assert_eq!(statuses(App::new().get("/x", (|| "a").described())), ["200"]);
    assert_eq!(statuses(App::new().get("/x", (|| ()).described())), ["200"]);
    assert_eq!(statuses(App::new().get("/x", (|| WithStatus::<204, _>(())).described())), ["204"]);
    assert_eq!(statuses(App::new().get("/x", (|| Redirect::to("/")).described())), ["3XX"]);
    assert_eq!(statuses(App::new().get("/x", dynamic.described())), ["default"]);
    assert_eq!(statuses(App::new().get("/x", opaque.described())), ["default"]);
    let created = dynamic.describe(|it| it.status(StatusCode::CREATED));
    assert_eq!(statuses(App::new().get("/x", created)), ["201"]);
    let described = failing.describe(|it| {
        it.status(StatusCode::ACCEPTED)
            .problem(409, "It is there already.")
            .response(202, "Some time.")
    });
    let operation = operation(App::new().get("/x", described), "/x");
    let responses = &operation["responses"];
    assert_eq!(responses["202"]["description"], "Some time.");
    assert!(responses["202"]["content"]["application/json"].is_object());
    assert_eq!(responses["409"]["description"], "It is there already.");
    let default = responses["default"]["content"].as_object().expect("content");
    assert_eq!(
        default.keys().collect::<Vec<_>>(),
        ["application/problem+json"],
        "the JSON response now has a status"
    );
    let html = || Html("a");
    assert!(self::operation(App::new().get("/x", html.described()), "/x")["responses"]["200"]["content"]["text/html"].is_object());
    async fn events(_: Option<LastEventId>) -> Sse {
        Sse::new(empty_events())
    }
    let events = self::operation(App::new().get("/x", events.described()), "/x");
    assert!(events["responses"]["200"]["content"]["text/event-stream"].is_object());
    assert_eq!(
        (&events["parameters"][0]["name"], &events["parameters"][0]["required"]),
        (&json!("Last-Event-ID"), &json!(false))
    );
}

fn empty_events() -> impl futures_core::Stream<Item = peregrine_web::sse::Event> + 'static {
    struct EmptyStream;
    impl futures_core::Stream for EmptyStream {
        type Item = peregrine_web::sse::Event;

        fn poll_next(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Self::Item>> {
            std::task::Poll::Ready(None)
        }
    }
    EmptyStream
}

#[test]
fn options_are_not_required_and_results_add_no_problems() {
    async fn optional(_: Option<Query<Page>>, _: Option<Json<Bird>>) {}
    async fn lenient(_: Result<Query<Page>, Problem>, _: Result<Json<Bird>, Problem>) {}
    let optional = operation(App::new().post("/x", optional.described()), "/x");
    let parameters = optional["parameters"].as_array().expect("parameters");
    assert!(
        parameters.len() == 4 && parameters.iter().all(|parameter| parameter["required"] == false)
    );
    assert_eq!(optional["requestBody"]["required"], false);
    assert!(optional["responses"]["422"].is_object());
    let lenient = operation(App::new().post("/x", lenient.described()), "/x");
    let statuses = lenient["responses"].as_object().expect("responses");
    assert_eq!(statuses.keys().collect::<Vec<_>>(), ["200"]);
}

#[test]
fn a_form_is_in_the_query_of_get_and_in_the_body_otherwise() {
    async fn search(Form(_): Form<Page>) {}
    let get = operation(App::new().get("/x", search.described()), "/x");
    assert!(
        get.get("requestBody").is_none()
            && get["parameters"].as_array().is_some_and(|parameters| parameters.len() == 4)
    );
    let post = operation(App::new().post("/x", search.described()), "/x");
    assert!(
        post["requestBody"]["content"]["application/x-www-form-urlencoded"]["schema"].is_object()
    );
    async fn any_query(_: Query<HashMap<String, String>>) {}
    let any_query = operation(App::new().get("/x", any_query.described()), "/x");
    assert_eq!(any_query["parameters"][0]["schema"]["additionalProperties"]["type"], "string");
}

#[test]
fn a_query_enum_has_the_parameters_of_all_variants() {
    #[derive(Deserialize, JsonSchema)]
    #[serde(tag = "kind")]
    #[expect(dead_code, reason = "only its schema is used")]
    enum Search {
        Name { text: String, exact: bool },
        Tag { text: String, exact: Option<u32> },
        Words(Words),
        Again { exact: bool },
        All,
    }
    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Words {
        text: String,
    }
    async fn search(_: Query<Search>) {}
    let search = operation(App::new().get("/x", search.described()), "/x");
    let parameters = search["parameters"].as_array().expect("parameters");
    let schema = |name: &str| {
        let matching: Vec<_> =
            parameters.iter().filter(|parameter| parameter["name"] == name).collect();
        assert_eq!(matching.len(), 1, "{name}");
        matching[0]["schema"].clone()
    };
    assert_eq!(
        schema("kind"),
        json!({ "type": "string", "enum": ["Name", "Tag", "Words", "Again", "All"] })
    );
    assert_eq!(schema("text"), json!({ "type": "string" }));
    let kinds: Vec<_> = schema("exact")["anyOf"].as_array().expect("two").clone();
    let kinds: Vec<_> = kinds.iter().map(|kind| kind["type"].clone()).collect();
    assert_eq!(kinds, ["boolean", "integer"], "a query has no null values");
}

#[test]
fn every_pattern_becomes_a_path_template() {
    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct PostPath {
        /// The user.
        user: String,
        post: Option<u64>,
    }
    let app = App::new()
        .get("/users/{user}/{post?}", (|_: Path<PostPath>| ()).named("posts").described())
        .get("/typed/{id:u32}/{word:alpha}", (|_: Path<(u32, String)>| ()).described())
        .get("/bare/{id:uuid}", (|| ()).described())
        .get("/files/{*path}", (|Path(_): Path<String>| ()).described())
        .get("/{{x}}/v{major}", (|_: Path<u8>| ()).described())
        .delete("/bare/{name}", (|_: Path<String>| ()).described())
        .register(api());
    let document = document(app);
    let paths: Vec<_> = document.value()["paths"].as_object().expect("paths").keys().collect();
    assert_eq!(
        paths,
        [
            "/%7Bx%7D/v{major}",
            "/bare/{id}",
            "/files/{path}",
            "/typed/{id}/{word}",
            "/users/{user}",
            "/users/{user}/{post}"
        ]
    );
    let get = |path: &str| document.operation("GET", path).expect(path).clone();
    assert_eq!(get("/users/{user}/{post}")["operationId"], "posts");
    assert_eq!(get("/users/{user}")["operationId"], "posts_2");
    assert_eq!(get("/users/{user}/{post}")["parameters"][0]["description"], "The user.");
    assert_eq!(get("/users/{user}/{post}")["parameters"][1]["schema"]["type"], "integer");
    assert_eq!(get("/typed/{id}/{word}")["parameters"][1]["schema"]["pattern"], "^[A-Za-z]+$");
    assert_eq!(get("/bare/{id}")["parameters"][0]["schema"]["format"], "uuid");
    assert_eq!(get("/files/{path}")["parameters"][0]["x-rest-of-path"], true);
    // Routes with the same shape are one path, with common parameter names.
    assert_eq!(
        document.operation("delete", "/bare/{id}").expect("the operation exists")["parameters"][0]
            ["name"],
        "id"
    );
}

#[test]
fn undescribed_routes_are_listed_or_an_error_if_descriptions_are_required() {
    async fn plain() -> &'static str {
        "a"
    }
    let app = || {
        App::new()
            .get("/described", plain.described())
            .get("/plain", plain)
            .get("/hidden", plain.hidden())
            .scope("/inside", |scope| scope.with_metadata(crate::hidden()).get("/", plain))
            .any("/any", plain.described())
            .any("/some", plain.describe(|it| it.methods([Method::GET, Method::PUT])))
            .query("/query", plain.described())
            .subtree("/tree", plain)
    };
    let document = document(app().register(api()));
    let undescribed: Vec<_> = document
        .undescribed()
        .iter()
        .map(|route| (route.method.as_str(), route.pattern.as_str()))
        .collect();
    assert_eq!(
        undescribed,
        [("GET", "/plain"), ("any method", "/any"), ("QUERY", "/query"), ("any method", "/tree")]
    );
    assert!(
        document.operation("PUT", "/some").is_some()
            && document.operation("POST", "/some").is_none()
    );

    let Err(OpenApiError::Build(error)) = app().register(api().require_descriptions()).openapi()
    else {
        panic!("the application must not build")
    };
    let text = error.to_string();
    assert_eq!(error.errors.len(), 4, "{text}");
    assert!(
        text.contains("GET /plain (")
            && text.contains("tests/mod.rs:")
            && text.contains("`.described()`"),
        "{text}"
    );
    assert_eq!(App::new().openapi(), Err(OpenApiError::Missing));
}

#[test]
fn scopes_set_defaults_for_their_routes_and_routes_override_them() {
    fn birds(api: ApiScope) -> ApiScope {
        api.tag("birds")
            .security("token")
            .get("/", || "all")
            .get(
                "/open",
                (|| "open").describe(|it| it.no_security().tag("more").operation_id("open")),
            )
            .scope("/keys", |api| api.security("key").get("/", || "keys"))
            .undescribed(|scope: Scope| scope.get("/plain", (|| "plain").described()))
    }
    let inner = App::new().get("/merged", (|| "merged").named("merged").described());
    let app = App::new()
        .scope("/birds", api_scope(birds))
        .scope("/other", |scope| {
            scope.with_metadata(crate::operation_defaults(|it| it.tag("other"))).merge(inner)
        })
        .register(
            api()
                .tag("birds", "All about birds.")
                .server("https://birds.example")
                .security_scheme(
                    "token",
                    SecurityScheme::bearer("JWT").description("From the login."),
                )
                .security_scheme("key", SecurityScheme::api_key_header("X-Key"))
                .default_security("token"),
        );
    let document = document(app);
    let get = |path: &str| document.operation("GET", path).expect(path).clone();
    assert_eq!(
        (&get("/birds")["tags"], &get("/birds")["security"]),
        (&json!(["birds"]), &json!([{ "token": [] }]))
    );
    assert_eq!(
        (&get("/birds/open")["tags"], &get("/birds/open")["security"]),
        (&json!(["birds", "more"]), &json!([]))
    );
    assert_eq!(get("/birds/open")["operationId"], "open");
    assert_eq!(get("/birds/keys")["security"], json!([{ "key": [] }]));
    assert_eq!(get("/birds/plain")["tags"], json!(["birds"]));
    assert_eq!(
        (&get("/other/merged")["tags"], &get("/other/merged")["operationId"]),
        (&json!(["other"]), &json!("merged"))
    );
}

#[test]
fn reports_unknown_security_schemes_and_duplicate_ids() {
    let build_error = |app: App| match app.openapi() {
        Err(OpenApiError::Build(error)) => error.to_string(),
        other => panic!("the application must not build: {other:?}"),
    };
    let text = build_error(
        App::new().get("/x", (|| ()).describe(|it| it.security("tokn"))).register(api()),
    );
    assert!(
        text.contains("GET /x (")
            && text.contains("`tokn`")
            && text.contains(".security_scheme(\"tokn\", ..)"),
        "{text}"
    );
    let text = build_error(App::new().register(api().default_security("key")));
    assert!(text.contains("the application requires the security scheme `key`"), "{text}");
    let with_id = |id: &'static str| (|| ()).describe(move |operation| operation.operation_id(id));
    let text =
        build_error(App::new().get("/x", with_id("a")).get("/y", with_id("a")).register(api()));
    assert!(text.contains("both have the id `a`"), "{text}");
}

#[test]
fn routes_with_the_same_name_have_ids_with_their_methods() {
    let app = App::new()
        .get("/x", (|| ()).named("x").described())
        .post("/x", (|| ()).named("x").described());
    let document = document(app.register(api()));
    assert_eq!(
        document.operation("GET", "/x").expect("the operation exists")["operationId"],
        "get_x"
    );
    assert_eq!(
        document.operation("POST", "/x").expect("the operation exists")["operationId"],
        "post_x"
    );
}

#[test]
fn a_route_with_several_paths_may_have_one_id() {
    let any = (|| ()).described_manually(|it| it.operation_id("files").methods([Method::GET]));
    let app = App::new()
        .subtree("/files", any)
        .get("/birds/{id?}", (|| ()).describe(|it| it.operation_id("birds")))
        .get("/x", (|| ()).describe(|it| it.operation_id("birds_2")));
    let document = document(app.register(api()));
    let mut ids: Vec<_> = document.value()["paths"]
        .as_object()
        .expect("paths")
        .values()
        .map(|item| item["get"]["operationId"].as_str().expect("an id"))
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, ["birds", "birds_2", "birds_3", "files", "files_2"]);
    assert_eq!(
        document.operation("GET", "/birds/{id}").expect("the operation exists")["operationId"],
        "birds"
    );
}

#[test]
fn optional_credentials_allow_anonymous_access() {
    struct Token;
    impl peregrine_web::extract::FromRequestParts for Token {
        async fn from_request_parts(_: &mut peregrine_web::Parts) -> Result<Self, Problem> {
            Ok(Self)
        }
    }
    impl crate::OperationInput for Token {
        fn describe(operation: &mut crate::Operation) {
            operation.security("token").response(103, "A hint.").problem_statuses(&[401]);
        }
    }
    let api = api().security_scheme("token", SecurityScheme::bearer(""));
    let app = App::new()
        .get("/must", (|_: Token| ()).described())
        .get("/may", (|_: Option<Token>| ()).described())
        .get("/kept", (|_: Result<Token, Problem>| ()).described());
    let document = document(app.register(api));
    let get = |path: &str| document.operation("GET", path).expect("the operation exists").clone();
    assert_eq!(get("/must")["security"], json!([{ "token": [] }]));
    assert_eq!(get("/may")["security"], json!([{ "token": [] }, {}]));
    // An extractor that rejects nothing may still cause other responses.
    let lenient = get("/kept");
    assert_eq!(lenient["security"], json!([{ "token": [] }, {}]));
    let statuses: Vec<_> = lenient["responses"].as_object().expect("some").keys().collect();
    assert_eq!(statuses, ["103", "200"]);
}

#[test]
fn middleware_adds_its_problems_to_the_routes_inside_it() {
    struct Auth;
    impl peregrine_web::Middleware for Auth {
        async fn run<S: peregrine_web::Service>(
            &self,
            request: peregrine_web::Request,
            next: &S,
        ) -> Response {
            next.call(request).await
        }

        fn require(&self, requirements: &mut peregrine_web::extract::RouteRequirements) {
            requirements.problem(401, "Nobody is there.");
            requirements.problem(429, "Too often.");
        }
    }
    let with_problem = (|| "own").describe(|it| it.problem(429, "Far too often."));
    let app = App::new().get("/outside", (|| "all").described()).scope("/inside", |scope| {
        scope.wrap(Auth).get("/", (|| "some").described()).get("/own", with_problem)
    });
    let document = document(app.register(api()));
    let text = |path: &str, status: &str| {
        let operation = document.operation("GET", path).expect("the operation exists");
        operation["responses"][status]["description"].as_str().map(str::to_owned)
    };
    assert_eq!((text("/outside", "401"), text("/outside", "429")), (None, None));
    assert_eq!(text("/inside", "401").as_deref(), Some("Nobody is there."));
    assert_eq!(text("/inside", "429").as_deref(), Some("Too often."));
    assert_eq!(text("/inside/own", "429").as_deref(), Some("Too often.\n\nFar too often."));
}

#[cfg(all(
    feature = "auth-jwt",
    feature = "cbor",
    feature = "fast-json",
    feature = "message-pack",
    feature = "protobuf"
))]
#[test]
fn describes_every_content_type_and_credential() {
    use peregrine_auth::{ApiKey, BasicAuth, BearerToken, Jwt, User};
    use peregrine_web::extract::{
        Accept, Cbor, MessagePack, NdJson, Preconditions, Protobuf, SimdJson,
    };
    let credentials = |_: BasicAuth, _: BearerToken, _: ApiKey| ();
    let app = App::new()
        .post("/pack", (|bird: MessagePack<Bird>| bird).described())
        .post("/cbor", (|bird: Cbor<Bird>| bird).described())
        .post("/fast", (|bird: SimdJson<Bird>| bird).described())
        .post("/proto", (|name: Protobuf<String>| name).described())
        .post("/lines", (|_: NdJson<Bird>| ()).described())
        .put("/state", (|_: Preconditions, _: Accept, _: User<u8>| ()).described())
        .get("/credentials", credentials.described())
        .get("/jwt", (|| ()).describe(|it| it.input::<Jwt<Bird>>()));
    let document = document(app.register(api()));
    let operation_at =
        |method: &str, path: &str| document.operation(method, path).expect("one").clone();
    for (path, media_type, has_schema) in [
        ("/pack", "application/vnd.msgpack", true),
        ("/cbor", "application/cbor", true),
        ("/fast", "application/json", true),
        ("/proto", "application/protobuf", false),
    ] {
        let operation = operation_at("POST", path);
        for content in [&operation["requestBody"], &operation["responses"]["200"]] {
            let content = &content["content"][media_type];
            assert!(content.is_object(), "{operation}");
            assert_eq!(content["schema"]["$ref"].is_string(), has_schema, "{operation}");
        }
        assert!(operation["responses"]["415"].is_object(), "{operation}");
    }
    let lines = operation_at("POST", "/lines");
    let schema = &lines["requestBody"]["content"]["application/x-ndjson"]["schema"];
    let line = schema["contentSchema"]["$ref"].as_str().expect("a reference");
    assert!(document.value().pointer(&line[1..]).is_some(), "{line}");
    let state = operation_at("PUT", "/state");
    assert_eq!(state["parameters"].as_array().expect("some").len(), 4);
    for status in ["401", "406", "412"] {
        assert!(state["responses"][status].is_object(), "{state}");
    }
    for path in ["/credentials", "/jwt"] {
        assert!(operation_at("GET", path)["responses"]["401"].is_object());
    }
}

#[test]
fn the_page_links_to_its_files_even_if_its_path_ends_with_a_slash() {
    let app = App::new().trailing_slash(peregrine_web::TrailingSlash::Ignore);
    let client = app.scope("/v1", |scope| scope.register(api())).test();
    for (path, folder) in [("/v1/docs", "docs/"), ("/v1/docs/", "")] {
        let text = client.get(path).send_blocking().text();
        assert!(text.contains(&format!("src=\"{folder}page.js\"")), "{path} {text}");
        let up = if folder.is_empty() { "../" } else { "" };
        assert!(text.contains(&format!("content=\"{up}openapi.json\"")), "{path} {text}");
    }
}

#[test]
fn an_unchanged_document_gets_a_304() {
    let client = App::new().get("/birds", (|| "all").described()).register(api()).test();
    let paths = ["/openapi.json", "/docs", "/docs/page.css", "/docs/page.js"];
    let mut tags: Vec<String> = Vec::new();
    for path in paths {
        let first = client.get(path).send_blocking();
        let tag = first.header("etag").unwrap_or_else(|| panic!("{path}")).to_owned();
        let second = client.get(path).header("if-none-match", tag.as_str()).send_blocking();
        assert_eq!((second.status().as_u16(), second.header("etag")), (304, Some(tag.as_str())));
        assert!(second.bytes().is_empty() && second.header("content-type").is_none());
        let other = client.get(path).header("if-none-match", "\"other\"").send_blocking();
        assert_eq!((other.status().as_u16(), other.bytes()), (200, first.bytes()));
        assert_eq!(client.get(path).header("if-match", "\"other\"").send_blocking().status(), 412);
        assert_eq!(client.head(path).send_blocking().header("etag"), Some(tag.as_str()));
        assert!(!tags.contains(&tag));
        tags.push(tag);
    }
    // The same document has the same tag in every worker, and another document has another tag.
    let same = App::new().get("/birds", (|| "all").described()).register(api()).test();
    assert_eq!(same.get(paths[0]).send_blocking().header("etag"), Some(tags[0].as_str()));
    let different = App::new().get("/fish", (|| "all").described()).register(api()).test();
    assert_ne!(different.get(paths[0]).send_blocking().header("etag"), Some(tags[0].as_str()));
}

#[test]
fn describe_adds_what_types_cannot_express() {
    async fn put(Json(_): Json<Bird>) -> Json<Bird> {
        Json(Bird { name: String::new(), weight: None, kind: Kind::Kite })
    }
    let put = put.describe(|it| {
        it.summary("Puts")
            .description("Puts *one*.")
            .deprecated()
            .parameter(Parameter::header("X-Trace").description("Where from.").example("one", "a"))
            .parameter(Parameter::cookie("theme").schema::<Option<Kind>>())
            .body_example("kite", json!({ "name": "a", "kind": "kite" }))
            .body_description("A bird.")
            .response_example(200, "kite", json!({ "name": "a", "weight": null, "kind": "kite" }))
            .extension("x-cost", 7)
    });
    let operation = operation(App::new().put("/x", put), "/x");
    assert_eq!(
        (&operation["summary"], &operation["deprecated"], &operation["x-cost"]),
        (&json!("Puts"), &json!(true), &json!(7))
    );
    assert_eq!(operation["parameters"][1]["schema"]["$ref"], "#/components/schemas/Kind");
    assert_eq!(
        operation["requestBody"]["content"]["application/json"]["examples"]["kite"]["value"]["kind"],
        "kite"
    );
    assert_eq!(
        operation["responses"]["200"]["content"]["application/json"]["examples"]["kite"]["value"]["name"],
        "a"
    );
}

#[test]
fn opaque_results_are_described_manually() {
    async fn opaque(Query(_): Query<Page>) -> impl IntoResponse {
        "a"
    }
    let opaque = opaque.described_manually(|it| {
        it.input::<Query<Page>>()
            .output::<Json<Bird>>()
            .output_with_status::<Json<u8>>(202, "Later.")
    });
    let operation = operation(App::new().get("/x", opaque), "/x");
    assert_eq!(operation["parameters"].as_array().map(Vec::len), Some(4));
    assert_eq!(operation["responses"]["202"]["description"], "Later.");
    // It is only read, so it has one schema.
    assert_eq!(
        operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"],
        "#/components/schemas/Bird"
    );
}

#[test]
fn two_types_with_the_same_name_are_two_components() {
    mod other {
        #[derive(serde::Deserialize, schemars::JsonSchema)]
        #[expect(dead_code, reason = "only its schema is used")]
        pub(super) struct Bird {
            wings: u8,
        }
        #[derive(serde::Deserialize, schemars::JsonSchema)]
        #[expect(dead_code, reason = "only its schema is used")]
        #[schemars(rename = "Problem")]
        pub(super) struct OtherProblem {
            mine: u8,
        }
    }
    async fn handler(
        Json(_): Json<(other::Bird, other::OtherProblem)>,
    ) -> Result<Json<Bird>, Problem> {
        Ok(Json(Bird { name: String::new(), weight: None, kind: Kind::Falcon }))
    }
    let document = document(App::new().post("/x", handler.described()).register(api()));
    let schemas = document.value()["components"]["schemas"].as_object().expect("schemas");
    assert!(
        schemas.values().filter(|schema| schema["properties"].get("wings").is_some()).count() == 1,
        "{document}"
    );
    assert!(
        schemas.values().filter(|schema| schema["properties"].get("mine").is_some()).count() == 1
    );
    assert!(
        schemas.values().filter(|schema| schema["properties"].get("detail").is_some()).count() == 1
    );
}

#[test]
fn the_page_and_the_document_are_served_at_their_configured_paths() {
    let inner = || App::new().get("/birds", (|| "all").described());
    let client = App::new()
        .scope("/v1", |scope| {
            scope.merge(inner().register(OpenApi::new("A <b>", "1").server("https://x.example/v1")))
        })
        .test();
    let page = client.get("/v1/docs").send_blocking();
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").expect("a policy").to_owned();
    assert!(
        policy.contains("script-src 'self'")
            && policy.contains("connect-src 'self' https://x.example;"),
        "{policy}"
    );
    let text = page.text();
    assert!(
        text.contains("A &lt;b&gt;")
            && text.contains("content=\"openapi.json\"")
            && text.contains("src=\"docs/page.js\""),
        "{text}"
    );
    // Nothing is inline, which a strict policy would reject.
    assert!(
        !text.contains("<style")
            && !text.contains(" style=")
            && !text.contains("<script>")
            && !text.contains(" onclick"),
        "{text}"
    );
    assert_eq!(
        client.get("/v1/docs/page.js").send_blocking().header("content-type"),
        Some("text/javascript; charset=utf-8")
    );
    assert_eq!(client.get("/v1/docs/page.css").send_blocking().status(), 200);
    let document: Value = client.get("/v1/openapi.json").send_blocking().json();
    assert!(document["paths"]["/v1/birds"].is_object(), "the paths are those of the application");

    let client = inner().register(api().json_path("/api.json").without_ui()).test();
    assert_eq!(client.get("/api.json").send_blocking().status(), 200);
    assert_eq!(client.get("/docs").send_blocking().status(), 404);
}

#[test]
fn an_application_can_set_the_schema_of_problems() {
    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Failure {
        code: u16,
    }
    let app = App::new()
        .get("/x", (|_: Query<Page>| ()).described())
        .register(api().problem_schema::<Failure>("application/json"));
    let document = document(app);
    let content =
        &document.operation("GET", "/x").expect("it exists")["responses"]["400"]["content"];
    assert_eq!(content["application/json"]["schema"]["$ref"], "#/components/schemas/Failure");
}

#[test]
fn renamed_types_are_separate_components() {
    mod users {
        #[derive(serde::Deserialize, schemars::JsonSchema)]
        #[schemars(rename = "UserChange")]
        #[expect(dead_code, reason = "only its schema is used")]
        pub(super) struct Change {
            name: String,
        }
    }
    mod birds {
        #[derive(serde::Deserialize, schemars::JsonSchema)]
        #[expect(dead_code, reason = "only its schema is used")]
        pub(super) struct Change {
            wingspan: u32,
        }
    }
    let routes = |api: crate::ApiScope| {
        api.register(|api| api.tag("a").post("/a", async |_: Json<users::Change>| ()))
            .register(|api| api.post("/b", async |_: Json<birds::Change>| ()))
    };
    let document = document(App::new().register(crate::api_scope(routes)).register(api()));
    let schemas = document.value()["components"]["schemas"].as_object().expect("there are some");
    let names: Vec<_> = schemas.keys().filter(|name| name.contains("Change")).collect();
    assert_eq!(names, ["Change", "UserChange"]);
    let tags = |path: &str| {
        document.operation("POST", path).expect("the operation exists").get("tags").cloned()
    };
    assert_eq!((tags("/a"), tags("/b")), (Some(serde_json::json!(["a"])), None));
}

#[cfg(all(feature = "validate", feature = "multipart"))]
#[test]
fn describes_validation_rules_and_files() {
    use garde::Validate;
    use peregrine_multipart::{MultipartForm, UploadedFile};
    use peregrine_validate::Valid;

    #[derive(Deserialize, JsonSchema, Validate)]
    struct Account {
        #[garde(length(min = 3, max = 20))]
        name: String,
        #[garde(range(min = 18))]
        age: u8,
        #[garde(length(max = 3), inner(length(min = 2, max = 9)))]
        tags: Vec<String>,
    }
    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Sighting {
        bird: String,
        photo: UploadedFile,
    }
    async fn create(Valid(Json(_)): Valid<Json<Account>>) {}
    async fn report(MultipartForm(_): MultipartForm<Sighting>) {}
    let document = document(
        App::new().post("/x", create.described()).put("/x", report.described()).register(api()),
    );
    let schemas = &document.value()["components"]["schemas"];
    assert_eq!(schemas["Account"]["properties"]["name"]["minLength"], 3);
    assert_eq!(schemas["Account"]["properties"]["age"]["minimum"], 18);
    let tags = &schemas["Account"]["properties"]["tags"];
    assert_eq!((&tags["maxItems"], &tags["maxLength"]), (&3.into(), &Value::Null), "{tags}");
    assert_eq!(
        (&tags["items"]["maxLength"], &tags["items"]["minLength"]),
        (&9.into(), &2.into()),
        "{tags}"
    );
    assert_eq!(schemas["Sighting"]["properties"]["photo"]["format"], "binary");
    let response =
        &document.operation("POST", "/x").expect("the operation exists")["responses"]["422"];
    assert!(response["description"].as_str().is_some_and(|text| text.contains("JSON pointers")));
}
