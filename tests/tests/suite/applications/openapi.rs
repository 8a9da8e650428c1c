//! OpenAPI documents through a server on every driver.

use peregrine::auth::{Authenticate, BearerToken, User};
use peregrine::openapi::{
    ApiScope, DescribeExt, JsonSchema, OpenApi, OpenApiExt, SecurityScheme, WithStatus, api_scope,
    schemars,
};
use peregrine::prelude::*;
use peregrine::rate_limit::RateLimit;
use peregrine::validate::Valid;
use peregrine::websocket::WebSocketUpgrade;
use peregrine::{DriverChoice, Error, RunningServer};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::time::Duration;

macro_rules! on_both_drivers {
    ($($case:ident,)*) => {
        mod on_tokio {
            $(#[test] fn $case() { super::$case(super::DriverChoice::Tokio); })*
        }
        #[cfg(target_os = "linux")]
        mod on_uring {
            $(#[test] fn $case() { super::$case(super::DriverChoice::Uring); })*
        }
    };
}

on_both_drivers! {
    every_worker_has_the_same_document,
    what_the_document_says_is_what_the_handlers_do,
    middleware_that_refuses_is_in_the_document_of_what_it_guards,
    the_page_comes_with_its_files_and_may_load_nothing_else,
    an_application_with_a_route_that_nobody_described_does_not_start,
}

/// Only a hang takes this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A stored bird.
#[derive(serde::Deserialize, serde::Serialize, JsonSchema, garde::Validate)]
struct Bird {
    #[garde(length(min = 2))]
    name: String,
    #[garde(skip)]
    #[serde(default)]
    tags: Vec<String>,
}

async fn create(Valid(Json(bird)): Valid<Json<Bird>>) -> WithStatus<201, Json<Bird>> {
    WithStatus(Json(bird))
}

async fn show(Path(id): Path<u32>) -> Result<Json<Bird>, Problem> {
    match id {
        7 => Ok(Json(Bird { name: "lanner".to_owned(), tags: Vec::new() })),
        _ => Err(Problem::new(StatusCode::NOT_FOUND, "unknown-bird", "There is none.")),
    }
}

async fn live(upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async |_| {})
}

fn birds(api: ApiScope) -> ApiScope {
    api.tag("birds")
        .security("token")
        .post("/", create.named("create"))
        .get("/{id}", show.describe(|it| it.problem(404, "There is no such bird.")))
        .get("/live", live)
}

/// A doc comment
/// of two lines.
///
/// And what else there is to say.
#[peregrine::macros::get("/hello", described)]
async fn hello() -> &'static str {
    "hello"
}

/// This one is said otherwise.
#[peregrine::macros::get("/bye", name = "bye", describe = |it| it.summary("Bye"))]
async fn bye() -> &'static str {
    "bye"
}

#[derive(Clone)]
struct Robot;

async fn robot(_: User<Robot>) -> &'static str {
    "beep"
}

fn api() -> OpenApi {
    OpenApi::new("Birds", "1.0")
        .security_scheme("token", SecurityScheme::bearer(""))
        .require_descriptions()
}

fn app() -> App {
    let robots =
        Authenticate::bearer(async |BearerToken(token)| (token == "good").then_some(Robot));
    let guarded = |api: ApiScope| api.wrap(robots).wrap(RateLimit::per_hour(1)).get("/me", robot);
    App::new()
        .scope("/birds", api_scope(birds))
        .scope("/robots", api_scope(guarded))
        .register((hello, bye))
        .register(api())
}

fn start(choice: DriverChoice, app: fn() -> App) -> Option<Result<RunningServer, Error>> {
    let workers = NonZeroUsize::new(2).expect("the value is not zero");
    match Server::bind("127.0.0.1:0").driver(choice).workers(workers).quiet().start(app) {
        Err(error @ Error::Driver { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        running => Some(running),
    }
}

/// The head and the content of the response.
fn ask(running: &RunningServer, method: &str, path: &str, body: &str) -> (String, String) {
    let mut peer =
        TcpStream::connect(running.http_address().expect("the server has an HTTP listener"))
            .expect("the server accepts connections");
    peer.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    peer.write_all(request.as_bytes()).expect("connected");
    let mut text = String::new();
    peer.read_to_string(&mut text).expect("text");
    let (head, content) = text.split_once("\r\n\r\n").expect("a head");
    (head.to_ascii_lowercase(), content.to_owned())
}

fn every_worker_has_the_same_document(choice: DriverChoice) {
    let Some(running) = start(choice, app) else { return };
    let running = running.expect("the server starts");
    let expected = app().openapi().expect("every route is described").to_json();
    for _ in 0..20 {
        let (head, content) = ask(&running, "GET", "/openapi.json", "");
        assert!(
            head.starts_with("http/1.1 200") && head.contains("content-type: application/json"),
            "{head}"
        );
        assert_eq!(content, expected);
    }
}

fn what_the_document_says_is_what_the_handlers_do(choice: DriverChoice) {
    let Some(running) = start(choice, app) else { return };
    let running = running.expect("the server starts");
    let document: Value =
        serde_json::from_str(&ask(&running, "GET", "/openapi.json", "").1).expect("JSON");
    let operation = |method: &str, path: &str| document["paths"][path][method].clone();
    assert_eq!(operation("post", "/birds")["operationId"], "create");
    assert_eq!(operation("get", "/birds/{id}")["tags"], json!(["birds"]));
    let greeting = operation("get", "/hello");
    assert_eq!(
        (&greeting["summary"], &greeting["description"]),
        (&json!("A doc comment of two lines."), &json!("And what else there is to say."))
    );
    assert_eq!(
        (&operation("get", "/bye")["summary"], &operation("get", "/bye")["operationId"]),
        (&json!("Bye"), &json!("bye"))
    );
    // The document lists each response's status and media type.
    for (method, path, template, body, status) in [
        ("POST", "/birds", "/birds", r#"{"name":"hobby"}"#, 201),
        ("POST", "/birds", "/birds", r#"{"name":"h"}"#, 422),
        ("POST", "/birds", "/birds", "{", 400),
        ("GET", "/birds/7", "/birds/{id}", "", 200),
        ("GET", "/birds/8", "/birds/{id}", "", 404),
        ("GET", "/birds/x", "/birds/{id}", "", 400),
        ("GET", "/birds/live", "/birds/live", "", 426),
        ("GET", "/hello", "/hello", "", 200),
    ] {
        let (head, _) = ask(&running, method, path, body);
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{method} {path}: {head}");
        let response =
            &operation(&method.to_ascii_lowercase(), template)["responses"][status.to_string()];
        let content = response["content"]
            .as_object()
            .unwrap_or_else(|| panic!("{method} {path} {status} is not documented"));
        let is_documented =
            content.keys().any(|media_type| head.contains(&format!("content-type: {media_type}")));
        assert!(is_documented, "{method} {path}: {content:?}\n{head}");
    }
    assert!(operation("get", "/birds/live")["responses"]["101"].is_object());
}

fn middleware_that_refuses_is_in_the_document_of_what_it_guards(choice: DriverChoice) {
    let Some(running) = start(choice, app) else { return };
    let running = running.expect("the server starts");
    let document: Value =
        serde_json::from_str(&ask(&running, "GET", "/openapi.json", "").1).expect("JSON");
    let guarded = &document["paths"]["/robots/me"]["get"]["responses"];
    let mut refused = Vec::new();
    for token in ["bad", "good", "good", "good"] {
        let head = get_as(&running, "/robots/me", token);
        let status: u16 = head.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("a status");
        let documented = &guarded[status.to_string()]["content"];
        let media_type = if status == 200 { "text/plain" } else { "application/problem+json" };
        assert!(documented[media_type].is_object(), "{status} {guarded}");
        refused.push(status);
    }
    assert!(refused.starts_with(&[401, 200]) && refused.contains(&429), "{refused:?}");
    let open = &document["paths"]["/hello"]["get"]["responses"];
    assert!(open["401"].is_null() && open["429"].is_null(), "{open}");
}

fn get_as(running: &RunningServer, path: &str, token: &str) -> String {
    let mut peer =
        TcpStream::connect(running.http_address().expect("the server has an HTTP listener"))
            .expect("the server accepts connections");
    peer.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    peer.write_all(request.as_bytes()).expect("connected");
    let mut text = String::new();
    peer.read_to_string(&mut text).expect("text");
    text
}

fn the_page_comes_with_its_files_and_may_load_nothing_else(choice: DriverChoice) {
    let Some(running) = start(choice, app) else { return };
    let running = running.expect("the server starts");
    let (head, page) = ask(&running, "GET", "/docs", "");
    assert!(
        head.contains("content-security-policy: default-src 'none'; script-src 'self'"),
        "{head}"
    );
    for (file, media_type) in [
        ("docs/page.js", "text/javascript"),
        ("docs/page.css", "text/css"),
        ("openapi.json", "application/json"),
    ] {
        assert!(page.contains(&format!("\"{file}\"")), "{page}");
        let (head, _) = ask(&running, "GET", &format!("/{file}"), "");
        assert!(
            head.starts_with("http/1.1 200")
                && head.contains(&format!("content-type: {media_type}")),
            "{head}"
        );
    }
}

fn an_application_with_a_route_that_nobody_described_does_not_start(choice: DriverChoice) {
    let Some(started) = start(choice, || app().get("/forgotten", || "x")) else { return };
    let error = started.expect_err("a route is not described").to_string();
    assert!(error.contains("GET /forgotten (") && error.contains("`.described()`"), "{error}");
}
