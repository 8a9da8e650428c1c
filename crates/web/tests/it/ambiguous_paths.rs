//! Paths that other servers may read as different paths: which ones are rejected, and which ones
//! reach the handler unchanged.

use http::StatusCode;
use peregrine_web::testing::TestClient;
use peregrine_web::{App, HandlerExt, IntoResponse, Next, Request, Response, Scope, guard};

async fn login(request: Request, next: Next<'_>) -> Response {
    match request.header("authorization") {
        Some(_) => next.run(request).await,
        None => StatusCode::UNAUTHORIZED.into_response(),
    }
}

/// Stands in for a proxy: returns the request that it would forward.
fn forwarded(request: Request) -> String {
    format!("{} {}", request.method(), request.path())
}

fn guarded(scope: Scope) -> Scope {
    scope.wrap(login).subtree("/", forwarded)
}

fn front_app() -> App {
    App::new().scope("/admin", guarded).subtree("/", forwarded)
}

/// Paths that some servers read as a path below `/admin`.
const SPELLINGS: [&str; 23] = [
    "//admin/x",
    "///admin/x",
    "/x/../admin/x",
    "/./admin/x",
    "/%2e/admin/x",
    "/x/%2e%2e/admin/x",
    "/x/.%2E/admin/x",
    "/x/%2e./admin/x",
    "/admin%2Fx",
    "/admin%2fx",
    "/x%2f..%2fadmin/x",
    "/public/..%2fadmin/x",
    "/public/..%5cadmin/x",
    "/public%5C..%5Cadmin/x",
    "/admin%5Cx",
    "/%5Cadmin/x",
    "/%2Fadmin/x",
    "/x/..;/admin/x",
    "/x/..;a=b/admin/x",
    "/admin;a=b/x",
    "/;a=b/admin/x",
    "/%2F%2Fadmin%2F%2Fx",
    "/;%2F/admin%5Cx",
];

fn status(client: &TestClient, method: &str, path: &str) -> u16 {
    let method = http::Method::from_bytes(method.as_bytes()).expect("a token");
    client.request(method, path).send_blocking().status().as_u16()
}

#[test]
fn rejects_spellings_that_could_bypass_the_middleware_of_a_route() {
    let client = front_app().test();
    assert_eq!(client.get("/admin/x").send_blocking().status(), 401);
    assert_eq!(client.get("/%61dmin/x").send_blocking().status(), 401);
    for path in SPELLINGS {
        for method in ["GET", "HEAD", "POST", "OPTIONS", "PURGE"] {
            assert_eq!(status(&client, method, path), 400, "{method} {path}");
        }
        let response = client.get(&format!("{path}?a=b")).send_blocking();
        assert_eq!(response.status(), 400, "{path}");
        assert!(response.text().contains("/problems/ambiguous-path"), "{path}");
    }
}

#[test]
fn rejects_ambiguous_paths_however_the_route_is_selected() {
    let merged = App::new().merge(front_app());
    let inner = App::new().subtree("/", front_app().build().expect("a valid application"));
    let host_scope = |scope: Scope| scope.guard(guard::host("a.example")).scope("/admin", guarded);
    let hosted = App::new().scope("", host_scope).subtree("/", forwarded);
    let path_guard =
        |context: &guard::GuardContext<'_>| context.head().path().starts_with("/admin/");
    let path_guarded = App::new().scope("", |scope| guarded(scope.guard(path_guard)));
    let path_guarded = path_guarded.scope("", |scope| scope.subtree("/", forwarded));
    let typed = App::new().scope("/{id:alpha}", |scope| scope.wrap(login).get("/x", forwarded));
    let typed = typed.subtree("/", forwarded);
    let fallback = App::new().scope("/admin", guarded).fallback(forwarded);
    let scope_fallbacks = App::new()
        .scope("/admin", |scope| scope.wrap(login).fallback(forwarded))
        .fallback(forwarded);
    for (name, app) in [
        ("merged", merged),
        ("inner", inner),
        ("hosted", hosted),
        ("path guard", path_guarded),
        ("typed", typed),
        ("fallback", fallback),
        ("scopes", scope_fallbacks),
    ] {
        let client = app.test();
        for path in SPELLINGS {
            let response = client.get(path).header("host", "a.example").send_blocking();
            assert_eq!(response.status(), 400, "{name} {path}");
        }
        let normal = client.get("/admin/x").header("host", "a.example").send_blocking();
        assert_eq!(normal.status(), 401, "{name}");
    }
}

#[test]
fn passes_paths_through_that_no_server_maps_to_another_route() {
    let app =
        || front_app().get("/packages/{name}", forwarded).get("/.well-known/{name}", forwarded);
    for client in [app().test(), App::new().merge(app()).test()] {
        for path in [
            "/",
            "//",
            "/a//b",
            "/a//",
            "/@scope%2fname",
            "/api/v4/projects/group%2Fproject/repository/files/a%2F.gitignore",
            "/a%5Cb",
            "/a;b=c/d;e",
            "/.hidden/...",
            "/.well-known/x",
            "/caf%C3%A9",
            "/a..b/..c/d..",
            "/administration%2Fx",
        ] {
            assert_eq!(client.get(path).send_blocking().text(), format!("GET {path}"));
        }
        for path in ["/admin//x", "/admin/a%2Fb", "/admin/", "/admin/;a"] {
            let response = client.get(path).header("authorization", "yes").send_blocking();
            assert_eq!(response.text(), format!("GET {path}"));
        }
    }
}

#[test]
fn a_parameter_keeps_encoded_slashes_unless_the_decoded_path_has_another_route() {
    let packages = || App::new().get("/packages/{name}", forwarded);
    let path = "/packages/@scope%2Fname";
    assert_eq!(packages().test().get(path).send_blocking().text(), format!("GET {path}"));
    let files = |scope: Scope| scope.wrap(login).get("/packages/@scope/{name}", forwarded);
    assert_eq!(packages().scope("", files).test().get(path).send_blocking().status(), 400);
    assert_eq!(packages().fallback(forwarded).test().get(path).send_blocking().status(), 400);
}

#[test]
fn a_route_or_a_scope_can_allow_ambiguous_paths() {
    let raw = |scope: Scope| scope.allow_ambiguous_paths().subtree("/", forwarded);
    let route = App::new()
        .scope("/admin", guarded)
        .subtree("/", forwarded.allow_ambiguous_paths())
        .subtree("/checked", forwarded);
    let scope = App::new().scope("/admin", guarded).scope("", raw).subtree("/checked", forwarded);
    let merged = App::new().scope("/admin", guarded).subtree("/checked", forwarded);
    let merged = merged.allow_ambiguous_paths().merge(App::new().subtree("/", forwarded));
    let fallback = App::new().scope("/admin", guarded).subtree("/checked", forwarded);
    let fallback = fallback.allow_ambiguous_paths().fallback(forwarded);
    for app in [route, scope, merged, fallback] {
        let client = app.test();
        for path in SPELLINGS {
            let expected =
                if path.starts_with("/admin/") { continue } else { format!("GET {path}") };
            assert_eq!(client.get(path).send_blocking().text(), expected, "{path}");
        }
        assert_eq!(client.get("/checked/../x").send_blocking().status(), 400);
        assert_eq!(client.get("/admin/../x").send_blocking().status(), 400);
    }
}

#[test]
fn a_nested_application_cannot_allow_paths_that_the_outer_one_rejects() {
    let inner =
        || App::new().subtree("/", forwarded.allow_ambiguous_paths()).build().expect("valid");
    let error = App::new().subtree("/", inner()).build().expect_err("the outer route checks paths");
    assert!(error.to_string().contains("allow_ambiguous_paths"), "{error}");
    let client = App::new().subtree("/", inner().allow_ambiguous_paths()).test();
    assert_eq!(client.get("/a/../b").send_blocking().text(), "GET /a/../b");
}

#[test]
fn the_response_names_the_cause_and_passes_through_the_middleware() {
    async fn add_mark(request: Request, next: Next<'_>) -> Response {
        let response = next.run(request).await;
        response.with_header(http::header::SERVER, http::HeaderValue::from_static("mark"))
    }
    let client = front_app().wrap(add_mark).test();
    let dots = client.get("/x/%2e%2e/admin/x").send_blocking();
    assert_eq!(dots.header("server"), Some("mark"));
    assert!(dots.text().contains("/x/%2e%2e/admin/x has a segment"));
    let slashes = client.get("//admin/x").send_blocking();
    assert!(slashes.text().contains("//admin/x has an empty segment"));
}

#[test]
fn a_path_without_a_route_is_a_404_unless_it_has_dot_segments() {
    let client = App::new().get("/a/b", forwarded).test();
    assert_eq!(status(&client, "GET", "/x//y"), 404);
    assert_eq!(status(&client, "GET", "/x%2Fy"), 404);
    assert_eq!(status(&client, "GET", "/a//b"), 404);
    assert_eq!(status(&client, "POST", "/a/b"), 405);
    assert_eq!(status(&client, "GET", "/x/../y"), 400);
    assert_eq!(status(&client, "OPTIONS", "*"), 204);
}
