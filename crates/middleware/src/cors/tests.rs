use super::*;
use http::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, ETAG};
use peregrine_web::testing::{TestClient, TestResponse};
use peregrine_web::{App, guard};

const PAGE: &str = "https://app.test";

fn client(cors: Cors) -> TestClient {
    let fails = || Err::<(), _>(Problem::new(StatusCode::CONFLICT, "taken", "no"));
    App::new().wrap(cors).get("/", || "here").put("/", || "put").post("/taken", fails).test()
}

fn strict() -> Cors {
    Cors::new().allow_origin(PAGE)
}

/// The fields of CORS, and `Vary`, as lines.
fn cors_fields(response: &TestResponse) -> Vec<String> {
    let fields = response.headers().iter();
    let selected =
        fields.filter(|(name, _)| name.as_str().starts_with("access-control-") || *name == "vary");
    let mut lines: Vec<_> = selected
        .map(|(name, value)| {
            let name = name.as_str().trim_start_matches("access-control-");
            format!("{name}: {}", value.to_str().expect("text"))
        })
        .collect();
    lines.sort_unstable();
    lines
}

fn preflight(client: &TestClient, path: &str, headers: &[(&str, &str)]) -> TestResponse {
    headers
        .iter()
        .fold(client.options(path), |request, (name, value)| request.header(*name, *value))
        .send_blocking()
}

const REQUEST_PUT: &[(&str, &str)] = &[("origin", PAGE), ("access-control-request-method", "PUT")];
const VARIES: [&str; 3] =
    ["vary: access-control-request-headers", "vary: access-control-request-method", "vary: origin"];

#[test]
fn every_response_has_the_fields_including_problems() {
    let client = client(strict());
    for (method, path, status) in [
        (Method::GET, "/", 200),
        (Method::HEAD, "/", 200),
        (Method::DELETE, "/", 405),
        (Method::POST, "/taken", 409),
        (Method::GET, "/nowhere", 404),
    ] {
        let response = client.request(method.clone(), path).header("origin", PAGE).send_blocking();
        let expected = ["allow-origin: https://app.test", "vary: origin"];
        assert_eq!(
            (response.status().as_u16(), cors_fields(&response)),
            (status, expected.map(str::to_owned).to_vec())
        );
        for origin in
            [Some("https://b.test"), Some("null"), Some(""), Some("https://app.test.b.test"), None]
        {
            let request = client.request(method.clone(), path);
            let request = match origin {
                Some(origin) => request.header("origin", origin),
                None => request,
            };
            let response = request.send_blocking();
            assert_eq!(
                (response.status().as_u16(), cors_fields(&response)),
                (status, vec!["vary: origin".into()]),
                "{origin:?}"
            );
        }
    }
}

#[test]
fn any_origin_gives_all_clients_the_same_response() {
    let client = client(Cors::new().allow_any_origin().expose_headers([ETAG]));
    for origin in [Some(PAGE), Some("null"), None] {
        let request = client.get("/");
        let request =
            origin.into_iter().fold(request, |request, origin| request.header("origin", origin));
        assert_eq!(
            cors_fields(&request.send_blocking()),
            ["allow-origin: *", "expose-headers: etag"]
        );
    }
}

#[test]
fn a_preflight_is_answered_for_every_route_without_calling_the_handler() {
    let cors = strict().allow_credentials().max_age(Duration::from_secs(60));
    let never = || -> &'static str { panic!("a preflight has no handler") };
    let app = App::new().wrap(cors).put("/a", never).options("/b", never).any("/c/{x}", never);
    let client = app.test();
    for path in ["/a", "/b", "/c/1"] {
        let response = preflight(&client, path, REQUEST_PUT);
        let mut expected = vec![
            "allow-credentials: true",
            "allow-methods: PUT",
            "allow-origin: https://app.test",
            "max-age: 60",
        ];
        expected.extend(VARIES);
        assert_eq!(
            (response.status().as_u16(), cors_fields(&response)),
            (204, expected.into_iter().map(str::to_owned).collect())
        );
    }
    let missing = preflight(&client, "/d", REQUEST_PUT);
    assert_eq!(missing.status(), 404);
    assert_eq!(
        cors_fields(&missing),
        ["allow-credentials: true", "allow-origin: https://app.test", "vary: origin"]
    );
}

#[test]
fn a_preflight_is_answered_by_the_scope_of_the_requested_method() {
    let purge = || Method::from_bytes(b"PURGE").expect("a method");
    let app = App::new()
        .scope("/a", |scope| scope.wrap(Cors::new().allow_any_origin()).get("/x", || "open"))
        .scope("/a", |scope| scope.wrap(strict()).put("/x", || "put").on(purge(), "/x", || ""))
        .scope("/a", |scope| scope.delete("/x", || "for nobody else"));
    let client = app.test();
    let allowed = |origin: &str, method: &str| {
        let headers = [("origin", origin), ("access-control-request-method", method)];
        let response = preflight(&client, "/a/x", &headers);
        response.field("access-control-allow-origin").map(str::to_owned)
    };
    for method in ["GET", "HEAD"] {
        assert_eq!(allowed("https://b.test", method).as_deref(), Some("*"), "{method}");
    }
    for method in ["PUT", "PURGE"] {
        assert_eq!(allowed("https://b.test", method), None, "{method}");
        assert_eq!(allowed(PAGE, method).as_deref(), Some(PAGE), "{method}");
    }
    assert_eq!(allowed(PAGE, "DELETE"), None);
}

#[test]
fn a_preflight_is_answered_by_the_most_specific_route() {
    let app = App::new()
        .scope("/files", |scope| {
            scope.wrap(Cors::new().allow_any_origin()).any("/{*rest}", || "open")
        })
        .put("/files/secret", || "for nobody else")
        .scope("/files", |scope| scope.wrap(strict()).put("/named", || "named"));
    let client = app.test();
    let allowed = |path: &str, origin: &'static str| {
        let response = preflight(&client, path, &[("origin", origin), REQUEST_PUT[1]]);
        response.field("access-control-allow-origin").map(str::to_owned)
    };
    assert_eq!(allowed("/files/other", "https://b.test").as_deref(), Some("*"));
    assert_eq!(allowed("/files/secret", "https://b.test"), None);
    assert_eq!(allowed("/files/named", "https://b.test"), None);
    assert_eq!(allowed("/files/named", PAGE).as_deref(), Some(PAGE));
}

#[test]
fn an_explicit_options_route_answers_preflights() {
    let app = App::new()
        .options("/{*rest}", || {
            Response::new(StatusCode::OK).with_header(
                ACCESS_CONTROL_ALLOW_ORIGIN,
                HeaderValue::from_static("https://by-hand.test"),
            )
        })
        .scope("/a", |scope| scope.wrap(strict()).put("/x", || "put"));
    let response = preflight(&app.test(), "/a/x", REQUEST_PUT);
    assert_eq!(response.field("access-control-allow-origin"), Some("https://by-hand.test"));
}

#[test]
fn a_preflight_of_a_guarded_route_is_answered_by_its_scope() {
    let puts = || vec![Method::PUT];
    let app = App::new()
        .scope("/a", |scope| scope.guard(guard::methods(puts())).wrap(strict()).any("/x", || "put"))
        .scope("/a", |scope| scope.wrap(Cors::new().allow_any_origin()).any("/x", || "all others"))
        .scope("/b", |scope| {
            scope.guard(guard::header("x-version", "2")).wrap(strict()).put("/x", || "second")
        })
        .scope("/c", |scope| {
            scope
                .guard(guard::host("one.test"))
                .wrap(Cors::new().allow_any_origin())
                .put("/x", || "one")
        })
        .scope("/c", |scope| {
            scope.guard(guard::host("two.test")).wrap(strict()).put("/x", || "two")
        });
    let client = app.test();
    let allowed = |path: &str, headers: &[(&str, &str)]| {
        let response = preflight(&client, path, headers);
        response.field("access-control-allow-origin").map(str::to_owned)
    };
    let request = |method| [("origin", PAGE), ("access-control-request-method", method)];
    assert_eq!(allowed("/a/x", &request("PUT")).as_deref(), Some(PAGE));
    assert_eq!(allowed("/a/x", &request("PATCH")).as_deref(), Some("*"));
    assert_eq!(allowed("/b/x", &request("PUT")).as_deref(), Some(PAGE));
    for (host, expected) in [("one.test", "*"), ("two.test", PAGE)] {
        let mut headers = request("PUT").to_vec();
        headers.push(("host", host));
        assert_eq!(allowed("/c/x", &headers).as_deref(), Some(expected), "{host}");
    }
}

#[test]
fn other_options_requests_are_not_treated_as_preflights() {
    let client = client(strict());
    for headers in [&REQUEST_PUT[..1], &REQUEST_PUT[1..], &[]] {
        let response = preflight(&client, "/", headers);
        assert_eq!(response.status(), 204, "{headers:?}");
        assert!(response.field(ALLOW.as_str()).is_some_and(|allow| allow.contains("PUT")));
    }
}

#[test]
fn requested_methods_and_headers_are_allowed_if_there_is_no_list() {
    let listed =
        || strict().allow_methods([Method::PUT]).allow_headers([AUTHORIZATION, CONTENT_TYPE]);
    const REFUSED: &str = "";
    for (is_listed, method, headers, granted) in [
        (false, "PUT", &[][..], "PUT|"),
        (false, "PURGE", &["x-a, X-B"], "PURGE|x-a, X-B"),
        (false, "PUT", &["x-a", "x-b"], "PUT|x-a|x-b"),
        (false, "PUT", &[""], "PUT|"),
        (false, "PUT", &[" , ,"], "PUT|"),
        (false, "PUT", &["x a"], REFUSED),
        (false, "PUT", &["x\"a"], REFUSED),
        (false, "P T", &[], REFUSED),
        (false, "", &[], REFUSED),
        (false, "G\u{e4}T", &[], REFUSED),
        (true, "PUT", &[], "PUT|"),
        (true, "GET", &[], "PUT|"),
        (true, "put", &[], REFUSED),
        (true, "DELETE", &[], REFUSED),
        (true, "PUT", &["Authorization"], "PUT|authorization, content-type"),
        (true, "PUT", &["content-type,authorization"], "PUT|authorization, content-type"),
        (true, "PUT", &["authorization", "content-type"], "PUT|authorization, content-type"),
        (true, "PUT", &["authorization,x-a"], REFUSED),
        (true, "PUT", &["authorization", "x-a"], REFUSED),
    ] {
        let client = client(if is_listed { listed() } else { strict() });
        let mut fields = vec![("origin", PAGE), ("access-control-request-method", method)];
        fields.extend(headers.iter().map(|value| ("access-control-request-headers", *value)));
        let response = preflight(&client, "/", &fields);
        let values = |name| response.header_values(name).collect::<Vec<_>>().join("|");
        let methods = values("access-control-allow-methods");
        let actual = match response.status().as_u16() {
            204 => format!("{methods}|{}", values("access-control-allow-headers")),
            403 => {
                assert!(
                    methods.is_empty() && response.text().contains("/problems/cors-"),
                    "{method} {headers:?}"
                );
                String::new()
            }
            other => panic!("{other}: {}", response.text()),
        };
        assert_eq!(actual, granted, "{is_listed} {method} {headers:?}");
    }
}

#[test]
fn a_rejected_preflight_has_a_reason_and_vary() {
    let client = client(strict());
    let response = preflight(&client, "/", &[("origin", "https://b.test"), REQUEST_PUT[1]]);
    assert_eq!(
        (response.status().as_u16(), cors_fields(&response)),
        (403, VARIES.map(str::to_owned).to_vec())
    );
    let text = response.text();
    assert!(
        text.contains("/problems/cors-origin-refused") && text.contains("https://b.test"),
        "{text}"
    );
    let long = "x".repeat(4000);
    let response = preflight(&client, "/", &[("origin", &long), REQUEST_PUT[1]]);
    assert!(response.status() == 403 && response.text().len() < 400);
}

#[test]
fn private_network_access_is_opt_in() {
    let mut headers = REQUEST_PUT.to_vec();
    headers.push(("access-control-request-private-network", "true"));
    let name = "access-control-allow-private-network";
    let open = client(strict().allow_private_network());
    let response = preflight(&open, "/", &headers);
    assert_eq!(response.field(name), Some("true"));
    assert!(
        cors_fields(&response).contains(&"vary: access-control-request-private-network".to_owned())
    );
    assert_eq!(preflight(&open, "/", REQUEST_PUT).field(name), None);
    assert_eq!(preflight(&client(strict()), "/", &headers).field(name), None);
}

#[test]
fn a_function_can_decide_and_overrides_the_handler() {
    let cors = Cors::new().allow_origin_fn(|origin, head| origin == "null" && head.path() == "/");
    let fields = [
        ("access-control-allow-origin", "*"),
        ("access-control-allow-credentials", "true"),
        ("vary", "Origin"),
    ];
    let client = App::new().wrap(cors).get("/", move || fields).get("/b", move || fields).test();
    let response = client.get("/").header("origin", "null").send_blocking();
    assert_eq!(cors_fields(&response), ["allow-origin: null", "vary: Origin"]);
    for (path, origin) in [("/b", "null"), ("/", PAGE)] {
        assert_eq!(
            cors_fields(&client.get(path).header("origin", origin).send_blocking()),
            ["vary: Origin"]
        );
    }
}

#[test]
fn contradictory_settings_are_reported_at_build() {
    for (cors, word) in [
        (Cors::new(), "allows no origins"),
        (Cors::new().allow_any_origin().allow_credentials(), "every page could act as its visitor"),
        (strict().allow_credentials().expose_any_header(), "as the name of one field"),
        (strict().allow_origin("https://a.test/"), "not even a slash"),
        (Cors::new().allow_origins(["*"]), "allow_any_origin()"),
    ] {
        let error = App::new()
            .wrap(cors)
            .get("/", || "")
            .build()
            .expect_err("an invalid setting")
            .to_string();
        assert!(error.contains(word) && error.contains("cors/tests.rs"), "{error}");
    }
}

#[test]
fn no_variation_of_an_origin_is_allowed() {
    let client = client(Cors::new().allow_origin(PAGE).allow_origin("https://*.app.test:*"));
    let seeds = ["https://app.test", "https://x.app.test:1", "null", "https://app.test:443"];
    let bytes = b"\x80/:.*@ ,%a\\0";
    for seed in seeds {
        for index in 0..=seed.len() {
            for byte in bytes {
                let mut origin = seed.as_bytes().to_vec();
                origin.insert(index, *byte);
                let response = client.get("/").header("origin", origin.clone()).send_blocking();
                let Some(allowed_origin) = response.field("access-control-allow-origin") else {
                    continue;
                };
                assert_eq!(allowed_origin.as_bytes(), origin.trim_ascii(), "the origin is echoed");
                let host = allowed_origin.strip_prefix("https://").expect("the same scheme");
                let host = host.split(':').next().expect("a host");
                assert!(host == "app.test" || host.ends_with(".app.test"), "{allowed_origin}");
            }
        }
    }
}
