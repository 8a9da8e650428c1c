//! Routing of requests: to routes, automatic responses, redirects and fallbacks.

use http::Method;
use peregrine_web::extract::Path;
use peregrine_web::middleware::Next;
use peregrine_web::testing::{TestClient, TestRequest};
use peregrine_web::{App, Problem, Request, RequestHead, Response, TrailingSlash, route};

async fn echo(request: Request) -> String {
    let pattern = request.parts.pattern().unwrap_or("none").to_owned();
    format!("{} {pattern}", request.method())
}

fn extension(name: &str) -> Method {
    Method::from_bytes(name.as_bytes()).expect("a token")
}

/// Sends each request; `expected` is the status, and the `Allow` field or the body.
fn check(client: &TestClient, rows: &[(&str, &str, u16, &str)]) {
    for (method, target, status, expected) in rows {
        let response = client.request(extension(method), target).send_blocking();
        let row = format!("{method} {target}");
        assert_eq!(response.status(), *status, "{row}");
        match *status {
            405 | 204 => assert_eq!(response.field("allow").unwrap_or(""), *expected, "{row}"),
            404 => assert!(response.text().contains(expected), "{row}: {}", response.text()),
            308 => assert_eq!(response.field("location"), Some(*expected), "{row}"),
            _ => assert_eq!(response.text(), *expected, "{row}"),
        }
    }
}

#[test]
fn routes_by_method_and_path_or_responds_automatically() {
    let app = App::new()
        .get("/", echo)
        .get("/users", echo)
        .post("/users", echo)
        .get("/users/{id}", echo)
        .post("/users/new", echo)
        .head("/own", echo)
        .get("/own", echo)
        .options("/asked", echo)
        .put("/asked", echo)
        .delete("/gone/{*rest}", echo)
        .patch("/patch", echo)
        .query("/search", echo)
        .on(extension("PURGE"), "/cache", echo)
        .any("/any", echo)
        .get("/mixed/{a}", echo)
        .any("/mixed/{b}", echo);
    check(
        &app.test(),
        &[
            ("GET", "/", 200, "GET /"),
            ("GET", "/users?page=2", 200, "GET /users"),
            ("POST", "/users", 200, "POST /users"),
            ("GET", "/users/7", 200, "GET /users/{id}"),
            // Another pattern that matches the path answers methods that the first one lacks.
            ("GET", "/users/new", 200, "GET /users/{id}"),
            ("POST", "/users/new", 200, "POST /users/new"),
            ("DELETE", "/users/new", 405, "GET, HEAD, POST, OPTIONS"),
            ("DELETE", "/users", 405, "GET, HEAD, POST, OPTIONS"),
            ("TRACE", "/users", 405, "GET, HEAD, POST, OPTIONS"),
            ("PURGE", "/users", 405, "GET, HEAD, POST, OPTIONS"),
            ("NONSENSE", "/users", 405, "GET, HEAD, POST, OPTIONS"),
            // The client drops the body of a response to HEAD, as the server does.
            ("HEAD", "/users", 200, ""),
            ("HEAD", "/own", 200, ""),
            ("HEAD", "/patch", 405, "OPTIONS, PATCH"),
            ("OPTIONS", "/users", 204, "GET, HEAD, POST, OPTIONS"),
            ("OPTIONS", "/asked", 200, "OPTIONS /asked"),
            ("OPTIONS", "/cache", 204, "OPTIONS, PURGE"),
            ("OPTIONS", "/nowhere", 404, "/nowhere"),
            ("OPTIONS", "*", 204, ""),
            ("GET", "/search", 405, "OPTIONS, QUERY"),
            ("QUERY", "/search", 200, "QUERY /search"),
            ("PURGE", "/cache", 200, "PURGE /cache"),
            ("purge", "/cache", 405, "OPTIONS, PURGE"),
            ("DELETE", "/gone/a/b", 200, "DELETE /gone/{*rest}"),
            ("GET", "/any", 200, "GET /any"),
            ("NONSENSE", "/any", 200, "NONSENSE /any"),
            ("OPTIONS", "/any", 200, "OPTIONS /any"),
            // `any` gets the methods that other routes of the same shape lack. Names do not matter.
            ("GET", "/mixed/1", 200, "GET /mixed/{a}"),
            ("PUT", "/mixed/1", 200, "PUT /mixed/{b}"),
            ("GET", "/nowhere", 404, "No route matches GET /nowhere"),
            ("GET", "/users/", 404, "/users/"),
            ("GET", "http://example.com", 200, "GET /"),
            ("GET", "http://example.com/users", 200, "GET /users"),
        ],
    );
}

#[test]
fn a_get_handler_sees_the_method_head() {
    async fn name(request: Request) -> Response {
        let value = http::HeaderValue::from_str(request.method().as_str()).expect("a token");
        Response::new(http::StatusCode::OK).with_field(http::header::SERVER, value)
    }
    let client = App::new().get("/", name).test();
    assert_eq!(client.head("/").send_blocking().field("server"), Some("HEAD"));
}

#[test]
fn applies_the_trailing_slash_policy() {
    let app = |policy| {
        App::new().trailing_slash(policy).get("/a", echo).get("/b/", echo).post("/a", echo).test()
    };
    check(
        &app(TrailingSlash::Strict),
        &[("GET", "/a", 200, "GET /a"), ("GET", "/a/", 404, "/a/"), ("GET", "/b", 404, "/b")],
    );
    check(
        &app(TrailingSlash::Redirect),
        &[
            ("GET", "/a", 200, "GET /a"),
            ("GET", "/a/", 308, "/a"),
            ("POST", "/a/?x=1&y=/", 308, "/a?x=1&y=/"),
            ("GET", "/b", 308, "/b/"),
            ("GET", "/b?", 308, "/b/?"),
            ("GET", "//a/", 404, "//a/"),
            ("GET", "/a//", 404, "/a//"),
        ],
    );
    check(
        &app(TrailingSlash::Ignore),
        &[("GET", "/a/", 200, "GET /a"), ("GET", "/b", 200, "GET /b/"), ("GET", "/c/", 404, "/c/")],
    );
}

#[test]
fn scopes_prefix_their_patterns() {
    let app = App::new().scope("/api", |api| {
        api.get("/", echo).get("/x", echo).scope("/v{version}/", |version| {
            version
                .get("", echo)
                .get("/{id}", echo)
                .route("/both", route::get(echo).post(echo).any(echo))
        })
    });
    check(
        &app.test(),
        &[
            ("GET", "/api", 200, "GET /api"),
            ("GET", "/api/", 404, "/api/"),
            ("GET", "/api/x", 200, "GET /api/x"),
            ("GET", "/api/v2", 200, "GET /api/v{version}"),
            ("GET", "/api/v2/7", 200, "GET /api/v{version}/{id}"),
            ("POST", "/api/v2/both", 200, "POST /api/v{version}/both"),
            ("LOCK", "/api/v2/both", 200, "LOCK /api/v{version}/both"),
            ("GET", "/x", 404, "/x"),
        ],
    );
}

#[test]
fn a_handler_gets_the_parameters_of_scope_and_pattern() {
    async fn join(Path((user, post)): Path<(String, u32)>) -> String {
        format!("{user} {post}")
    }
    let app = App::new().scope("/users/{user}", |user| user.get("/posts/{post}", join));
    let client = app.test();
    assert_eq!(client.get("/users/a%20b/posts/7").send_blocking().text(), "a b 7");
    assert_eq!(client.get("/users/a/posts/x").send_blocking().status(), 400);
}

#[test]
fn the_innermost_fallback_replaces_a_404_but_not_a_405() {
    let app = App::new().get("/", echo).fallback(|| "outer").scope("/api/{v}", |api| {
        api.get("/x", echo)
            .fallback(async |request: Request| format!("inner {}", request.path()))
            .scope("/deep", |deep| deep.get("/", echo))
    });
    check(
        &app.test(),
        &[
            ("GET", "/nowhere", 200, "outer"),
            ("GET", "/api", 200, "outer"),
            ("GET", "/api/1", 200, "inner /api/1"),
            ("GET", "/api/1/deep/y", 200, "inner /api/1/deep/y"),
            ("POST", "/api/1/x", 405, "GET, HEAD, OPTIONS"),
        ],
    );
}

#[test]
fn the_prefix_of_a_fallback_matches_like_a_route() {
    let app = App::new()
        .fallback(|| "outer")
        .scope("/v{n}", |scope| scope.fallback(|| "version"))
        .scope("/{tenant}", |scope| scope.fallback(|| "tenant"))
        .scope("/users", |scope| scope.get("/known", echo).fallback(|| "users"))
        .scope("/users/{id}/posts", |scope| scope.fallback(|| "posts"))
        .scope("/{a}/mine/posts", |scope| scope.fallback(|| "mine"))
        .scope("/a{{b", |scope| scope.fallback(|| "brace"));
    let app = app.scope("/m", |scope| {
        scope.merge(App::new().scope("/{x}", |scope| scope.fallback(|| "merged")))
    });
    check(
        &app.test(),
        &[
            // Literal text precedes a parameter with text, which precedes a plain parameter.
            ("GET", "/about/nothing", 200, "tenant"),
            ("GET", "/v1", 200, "version"),
            ("GET", "/v1/nothing", 200, "version"),
            ("GET", "/v/nothing", 200, "tenant"),
            ("GET", "/users", 200, "users"),
            ("GET", "/users/", 200, "users"),
            ("GET", "/users/none", 200, "users"),
            ("GET", "/users/1/posts/none", 200, "posts"),
            ("GET", "/users/mine/posts/none", 200, "posts"),
            ("GET", "/others/mine/posts/none", 200, "mine"),
            // The first segment that differs decides, not the length.
            ("GET", "/users/mine/none", 200, "users"),
            // A parameter does not match an empty segment.
            ("GET", "/", 200, "outer"),
            // Escapes are decoded as for routes.
            ("GET", "/%75sers/known", 200, "GET /users/known"),
            ("GET", "/%75sers/none", 200, "users"),
            ("GET", "/a%7Bb/none", 200, "brace"),
            ("GET", "/m/1/none", 200, "merged"),
            ("GET", "/m", 200, "tenant"),
        ],
    );
}

#[test]
fn merged_applications_keep_their_own_states() {
    use peregrine_web::extract::State;
    use peregrine_web::middleware::from_fn;
    #[derive(Clone)]
    struct Pool(&'static str);
    #[derive(Clone)]
    struct Common(&'static str);
    async fn show(State(pool): State<Pool>, State(common): State<Common>) -> String {
        format!("{} {}", pool.0, common.0)
    }
    async fn add_via(State(pool): State<Pool>, request: Request, next: Next<'_>) -> Response {
        let mut response = next.run(request).await;
        response.headers.append(http::header::VIA, http::HeaderValue::from_static(pool.0));
        response
    }
    let module = |name| App::new().state(Pool(name)).wrap(from_fn(add_via)).get("/", show);
    let inner = App::new().state(Pool("inner")).get("/", show).fallback(show);
    let app = App::new()
        .state(Pool("ours"))
        .wrap(from_fn(add_via))
        .get("/", show)
        .scope("/a", |scope| scope.merge(module("a")))
        .scope("/b", |scope| scope.merge(module("b").scope("/inner", |scope| scope.merge(inner))))
        .scope("/plain", |scope| scope.merge(App::new().get("/", show)))
        .state(Common("common"));
    let client = app.test();
    for (target, text, via) in [
        ("/", "ours common", &["ours"][..]),
        ("/a", "a common", &["a", "ours"]),
        ("/b", "b common", &["b", "ours"]),
        ("/b/inner", "inner common", &["b", "ours"]),
        ("/b/inner/nothing", "inner common", &["b", "ours"]),
        ("/plain", "ours common", &["ours"]),
    ] {
        let response = client.get(target).send_blocking();
        assert_eq!(response.text(), text, "{target}");
        assert_eq!(response.header_values("via").collect::<Vec<_>>(), via, "{target}");
    }
    // A 405 passes through the middleware of the merged application too.
    let rejected = client.post("/a").send_blocking();
    assert_eq!(rejected.header_values("via").collect::<Vec<_>>(), ["a", "ours"]);
}

#[test]
fn a_problem_renderer_that_panics_leaves_the_default_format() {
    let app =
        App::new().on_problem(|_: Problem, _: &RequestHead| -> &'static str { panic!("no form") });
    let response = app.get("/x", echo).test().post("/x").send_blocking();
    assert_eq!(response.field("content-type"), Some("application/problem+json"));
    assert_eq!(response.field("allow"), Some("GET, HEAD, OPTIONS"));
    assert_eq!(response.json::<serde_json::Value>()["status"], 405);
}

#[test]
fn a_merged_application_adds_its_routes_states_and_fallback_under_the_prefix() {
    use peregrine_web::extract::State;
    let other = App::new()
        .state(7u32)
        .state("theirs")
        .get("/number", async |State(number): State<u32>| format!("{number}"))
        .get("/text", async |State(text): State<&'static str>| text)
        .fallback(|| "their fallback");
    let app = App::new().state("ours").get("/", echo).scope("/m", |scope| scope.merge(other));
    check(
        &app.test(),
        &[
            ("GET", "/m/number", 200, "7"),
            ("GET", "/m/text", 200, "theirs"),
            ("GET", "/m/other", 200, "their fallback"),
            ("POST", "/m/text", 405, "GET, HEAD, OPTIONS"),
            ("GET", "/other", 404, "/other"),
        ],
    );
}

#[test]
fn problems_of_every_origin_are_rendered_by_the_application() {
    async fn guard(request: Request, next: Next<'_>) -> Result<Response, Problem> {
        if request.field("x-stop").is_some() {
            return Err(Problem::new(http::StatusCode::FORBIDDEN, "stopped", ""));
        }
        let response = next.run(request).await;
        Ok(response.with_field(http::header::SERVER, http::HeaderValue::from_static("s")))
    }
    async fn refuse() -> Result<(), Problem> {
        Err(Problem::new(http::StatusCode::CONFLICT, "refused", ""))
    }
    let app = App::new()
        .on_problem(|problem: Problem, head: &RequestHead| {
            (problem.status, format!("{} at {}", problem.kind, head.path()))
        })
        .wrap(guard)
        .get("/refuse", refuse)
        .get("/path/{number}", async |Path(number): Path<u8>| number.to_string());
    let client = app.test();
    let rows: [(TestRequest, u16, &str, bool); 6] = [
        (client.get("/refuse"), 409, "refused at /refuse", true),
        (client.get("/path/x"), 400, "invalid-path at /path/x", true),
        (client.get("/none"), 404, "unknown-route at /none", true),
        (client.post("/refuse"), 405, "method-not-allowed at /refuse", true),
        (client.get("/refuse").header("x-stop", "1"), 403, "stopped at /refuse", false),
        (client.get("/path/7"), 200, "7", true),
    ];
    for (request, status, text, passes_middleware) in rows {
        let response = request.send_blocking();
        assert_eq!((response.status().as_u16(), response.text().as_str()), (status, text));
        assert_eq!(response.field("server").is_some(), passes_middleware, "{text}");
        assert!(
            response.field("content-type").is_some_and(|value| value.starts_with("text/plain"))
        );
    }
    let response = client.post("/refuse").send_blocking();
    assert_eq!(response.field("allow"), Some("GET, HEAD, OPTIONS"));
}

#[test]
fn the_servers_own_responses_are_rendered_by_the_application() {
    let renderer = |name: &'static str| {
        move |problem: Problem, head: &RequestHead| {
            let text = format!("{name}: {} at {}{}", problem.kind, head.method(), head.path());
            (problem.status, text)
        }
    };
    let other = App::new().on_problem(renderer("theirs")).get("/x", echo);
    let app = App::new().get("/x", echo).scope("/m", |scope| scope.merge(other));
    let plain = App::new().build().expect("a valid application");
    let app = app.on_problem(renderer("ours")).build().expect("a valid application");
    let routed = |target: &str| {
        let bytes = format!("GET {target} HTTP/1.1\r\nhost: a\r\n\r\n");
        let limits = peregrine_proto::Limits::DEFAULT;
        let mut head = RequestHead::from_pool();
        let (consumed, _) = peregrine_proto::h1::Connection::new(&limits).receive(
            &limits,
            bytes.as_bytes(),
            head.index_mut(),
        );
        head.set_bytes(&bytes.as_bytes()[..consumed]);
        let _ = app.find(&mut head, &Default::default());
        head
    };
    // The methods of an empty head return defaults.
    let empty_head = RequestHead::from_pool();
    assert_eq!(
        (empty_head.header_bytes("host"), empty_head.uri().path(), empty_head.authority()),
        (None, "/", "")
    );
    assert!(empty_head.to_header_map().is_empty() && empty_head.query().is_none());
    let rejected =
        || Problem::from(peregrine_proto::RequestError::ContentLengthWithTransferEncoding);
    for (problem, head, status, text) in [
        (Problem::internal_error(), routed("/x"), 500, "ours: internal-error at GET/x".to_owned()),
        (
            Problem::handler_timeout(),
            routed("/m/x"),
            503,
            "theirs: handler-timeout at GET/m/x".to_owned(),
        ),
        (
            Problem::head_timeout(),
            RequestHead::from_pool(),
            408,
            "ours: head-timeout at GET/".to_owned(),
        ),
        (rejected(), RequestHead::from_pool(), 400, "ours: invalid-request at GET/".to_owned()),
    ] {
        assert_eq!(
            plain.render_problem(problem.clone(), &head).body.as_slice(),
            Some(problem.to_json().as_bytes())
        );
        let response = app.render_problem(problem, &head);
        let body = response.body.as_slice().expect("the body is in memory");
        assert_eq!(
            (response.status.as_u16(), String::from_utf8_lossy(body).into_owned()),
            (status, text)
        );
    }
    let panicking =
        App::new().on_problem(|_: Problem, _: &RequestHead| -> &'static str { panic!("no form") });
    let panicking = panicking.build().expect("a valid application");
    let response = panicking.render_problem(Problem::head_timeout(), &RequestHead::from_pool());
    assert_eq!(response.body.as_slice(), Some(Problem::head_timeout().to_json().as_bytes()));
}

#[test]
fn problems_are_rendered_as_problem_json_by_default() {
    let client = App::new().get("/x", echo).test();
    let response = client.post("/x").send_blocking();
    assert_eq!(response.field("content-type"), Some("application/problem+json"));
    let json: serde_json::Value = response.json();
    assert_eq!(json["type"], "/problems/method-not-allowed");
    assert_eq!(json["detail"], "/x does not support POST. It supports GET, HEAD, OPTIONS.");
    assert_eq!(json["allow"], serde_json::json!(["GET", "HEAD", "OPTIONS"]));
    assert_eq!(response.field("allow"), Some("GET, HEAD, OPTIONS"));
}

#[test]
fn a_merged_application_keeps_its_problem_renderer_or_inherits_the_outer_one() {
    let renderer =
        |text: &'static str| move |problem: Problem, _: &RequestHead| (problem.status, text);
    let with_renderer = App::new().on_problem(renderer("theirs")).get("/x", echo);
    let without_renderer = App::new().get("/x", echo);
    let app = App::new()
        .scope("/own", |scope| scope.merge(with_renderer))
        .scope("/none", |scope| scope.merge(without_renderer))
        .on_problem(renderer("ours"));
    let client = app.test();
    assert_eq!(client.post("/own/x").send_blocking().text(), "theirs");
    assert_eq!(client.post("/none/x").send_blocking().text(), "ours");
    assert_eq!(client.get("/none/y").send_blocking().text(), "ours");
}

#[test]
fn a_built_application_is_a_handler_with_its_own_routes_and_states() {
    use peregrine_web::extract::State;
    async fn show(State(n): State<u8>, Path(name): Path<String>) -> String {
        format!("{n} {name}")
    }
    let inner = App::new().state(1u8).get("/in/{name}", show).build().expect("a valid application");
    let app = App::new().state(2u8).get("/out/{name}", show).any("/in/{*rest}", inner);
    let client = app.test();
    assert_eq!(client.get("/out/a").send_blocking().text(), "2 a");
    assert_eq!(client.get("/in/b").send_blocking().text(), "1 b");
    assert_eq!(client.get("/in/b/c").send_blocking().status(), 404);
    assert_eq!(client.post("/in/b").send_blocking().status(), 405);
}
