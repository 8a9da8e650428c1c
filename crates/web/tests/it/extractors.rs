//! Extractors and responses in a whole application, as seen by the peer.

use http::{Method, StatusCode, header};
use peregrine_web::connection::{ConnectionAddr, ConnectionInfo, TlsInfo};
use peregrine_web::cookies::{Cookie, Cookies};
use peregrine_web::extract::{Form, Json, MatchedPath, Path, PeerAddr, Query, State};
use peregrine_web::response::{Html, IntoResponse, Redirect};
use peregrine_web::testing::TestResponse;
use peregrine_web::{App, Body, HandlerExt, Problem, RequestHead, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::rc::Rc;

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Bird {
    name: String,
    #[serde(default)]
    tags: Vec<Tag>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Tag {
    name: String,
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    page: u32,
}

type Birds = Rc<RefCell<Vec<Bird>>>;

async fn list(
    State(birds): State<Birds>,
    Query(page): Query<Page>,
    method: Method,
    MatchedPath(pattern): MatchedPath,
) -> impl IntoResponse {
    let names: Vec<_> = birds.borrow().iter().map(|bird| bird.name.clone()).collect();
    ([("x-page", page.page.to_string())], format!("{method} {pattern}: {}", names.join(" ")))
}

async fn add(
    State(birds): State<Birds>,
    Json(bird): Json<Bird>,
) -> Result<(StatusCode, Json<Bird>), Problem> {
    if birds.borrow().contains(&bird) {
        return Err(Problem::new(StatusCode::CONFLICT, "known", "this bird is here already"));
    }
    birds.borrow_mut().push(bird.clone());
    Ok((StatusCode::CREATED, Json(bird)))
}

async fn show(State(birds): State<Birds>, Path(index): Path<usize>) -> Result<Json<Bird>, Problem> {
    let bird = birds.borrow().get(index).cloned();
    bird.map(Json).ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, "no-bird", "count from 0"))
}

fn app() -> App {
    App::new()
        .state(Birds::default())
        .get("/birds", list)
        .post("/birds", add)
        .get("/birds/{place}", show)
}

fn problem(response: &TestResponse) -> Value {
    assert_eq!(response.field("content-type"), Some("application/problem+json"));
    let problem: Value = response.json();
    assert_eq!(problem["status"], response.status().as_u16());
    problem
}

#[test]
fn reads_and_writes_json_documents() {
    let client = app().test();
    let bird = json!({"name": "lanner", "tags": [{"name": "fast"}]});
    let added = client.post("/birds").json(&bird).send_blocking();
    assert_eq!(
        (added.status().as_u16(), added.field("content-type")),
        (201, Some("application/json"))
    );
    assert_eq!(added.json::<Value>(), bird);
    assert_eq!(client.get("/birds/0").send_blocking().json::<Value>(), bird);
    let list = client.get("/birds?page=3").send_blocking();
    assert_eq!((list.text().as_str(), list.field("x-page")), ("GET /birds: lanner", Some("3")));
    assert_eq!(
        problem(&client.post("/birds").json(&bird).send_blocking())["type"],
        "/problems/known"
    );
}

#[test]
fn every_rejection_says_how_to_fix_the_request() {
    let client = app().test();
    let post = || client.post("/birds");
    let typed = |body: &'static str| post().header("content-type", "application/json").body(body);
    for (request, status, kind, hint, member) in [
        (post().body("{}"), 415, "unsupported-media-type", "application/json", "expected"),
        (typed(""), 400, "empty-body", "empty", "detail"),
        (typed("{"), 400, "invalid-json", "line 1 column 1", "line"),
        (typed("{}"), 422, "unexpected-value", "name: missing field", "path"),
        (typed(r#"{"name":"a","tags":[{}]}"#), 422, "unexpected-value", "tags[0].name:", "path"),
        (client.get("/birds?page=x"), 400, "invalid-query", "page: invalid digit", "path"),
        (client.get("/birds/x"), 400, "invalid-path", "`place` is `x`", "expected"),
        (client.get("/birds/9"), 404, "no-bird", "count from 0", "detail"),
    ] {
        let response = request.send_blocking();
        let problem = problem(&response);
        assert_eq!(
            (response.status().as_u16(), &problem["type"]),
            (status, &json!(format!("/problems/{kind}")))
        );
        let detail = problem["detail"].as_str().expect("text");
        assert!(detail.contains(hint), "{detail}");
        assert!(problem.get(member).is_some(), "{problem}");
    }
}

#[test]
fn the_body_limit_of_a_handler_is_enforced_and_reported() {
    let app = App::new().post("/", (async |text: String| text).body_limit(4));
    let client = app.test();
    assert_eq!(client.post("/").body("1234").send_blocking().text(), "1234");
    for request in [client.post("/").body("12345"), client.post("/").chunks(["123", "45"])] {
        let response = request.send_blocking();
        assert_eq!(response.status(), 413);
        assert_eq!(problem(&response)["limit"], 4);
    }
}

#[test]
fn an_application_can_render_problems_differently() {
    let app = app().on_problem(|problem: Problem, head: &RequestHead| {
        Response::new(problem.status).with_body(format!("{} at {}", problem.kind, head.path()))
    });
    let client = app.test();
    assert_eq!(client.get("/birds/x").send_blocking().text(), "invalid-path at /birds/x");
    assert_eq!(client.post("/birds").send_blocking().text(), "empty-body at /birds");
}

#[test]
fn reports_path_types_that_do_not_match_their_routes_at_build() {
    #[derive(Deserialize)]
    #[expect(dead_code, reason = "the struct is never created")]
    struct EggPath {
        bird: u32,
        #[serde(default)]
        egg: u32,
    }
    let two = async |Path((a, b)): Path<(u8, u8)>| format!("{a}{b}");
    let named = async |_: Path<EggPath>| "named";
    let optional = async |_: Option<Path<u8>>| "optional";
    let app = App::new().get("/{bird}", named).get("/a/{x}", two).get("/b/{x}", named);
    let error = app.get("/c", optional).build().expect_err("two paths do not fit");
    let text = error.to_string();
    assert_eq!(error.errors.len(), 2, "{text}");
    assert!(text.contains("2 parameters") && text.contains("`bird`"), "{text}");
}

#[test]
fn forms_cookies_and_redirects_work_together() {
    #[derive(Deserialize)]
    struct Login {
        name: String,
    }
    async fn log_in(cookies: Cookies, Form(login): Form<Login>) -> (Cookies, Redirect) {
        (cookies.add(Cookie::build(("user", login.name)).path("/")), Redirect::to("/me"))
    }
    async fn me(cookies: Cookies) -> Result<Html<String>, Redirect> {
        let user = cookies.value("user").ok_or_else(|| Redirect::to("/login"))?;
        Ok(Html(format!("<p>{user}")))
    }
    let client = App::new().post("/login", log_in).get("/me", me).test();
    let response = client.post("/login").form(&[("name", "Ada L")]).send_blocking();
    assert_eq!((response.status().as_u16(), response.field("location")), (303, Some("/me")));
    assert_eq!(response.field("set-cookie"), Some("user=Ada%20L; Path=/"));
    let page = client.get("/me").header("cookie", "user=Ada%20L").send_blocking();
    assert_eq!(page.text(), "<p>Ada L");
    assert_eq!(client.get("/me").send_blocking().field("location"), Some("/login"));
}

#[test]
fn connection_info_reaches_handlers() {
    async fn describe(PeerAddr(peer): PeerAddr, tls: Option<TlsInfo>) -> String {
        format!("{peer} {}", tls.map_or("plain", |tls| tls.version))
    }
    let peer = ConnectionAddr::Tcp("192.0.2.1:99".parse().expect("an address"));
    let client = App::new().get("/", describe).test();
    let plain = ConnectionInfo { peer, ..ConnectionInfo::default() };
    let tls = Some(std::sync::Arc::new(TlsInfo { version: "TLSv1.3", ..TlsInfo::default() }));
    let secure = ConnectionInfo { tls, ..plain.clone() };
    assert_eq!(
        client.clone().with_connection(plain).get("/").send_blocking().text(),
        "192.0.2.1:99 plain"
    );
    assert_eq!(
        client.clone().with_connection(secure).get("/").send_blocking().text(),
        "192.0.2.1:99 TLSv1.3"
    );
    assert_eq!(problem(&client.get("/").send_blocking())["type"], "/problems/no-peer-address");
}

#[test]
fn echoes_a_streamed_body() {
    async fn echo(body: Body) -> impl IntoResponse {
        ([(header::CONTENT_TYPE, "text/x")], body)
    }
    let response = App::new().post("/", echo).test().post("/").chunks(["a", "b"]).send_blocking();
    assert_eq!((response.field("content-type"), response.text().as_str()), (Some("text/x"), "ab"));
}
