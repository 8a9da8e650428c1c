//! Conditions of routes: guards, typed parameters and optional parameters.

use http::Method;
use peregrine_web::extract::{MatchedPath, Path};
use peregrine_web::{App, HandlerExt, Problem, Scope, TrailingSlash, guard, route};
use peregrine_web::{UrlError, Urls};

fn text(app: App, target: &str) -> (u16, String) {
    let response = app.test().get(target).send_blocking();
    (response.status().as_u16(), response.text())
}

fn hosted(app: App, host: &str, target: &str) -> String {
    app.test().get(target).header("host", host).send_blocking().text()
}

#[test]
fn the_first_route_whose_guard_accepts_answers_and_the_unguarded_one_is_last() {
    let app = || {
        App::new()
            .get("/", || "anybody")
            .get("/", (|| "first").guard(guard::has_query("a")))
            .get("/", (|| "second").guard(guard::query("b", "c d")))
            .get("/", (|| "both").guard(guard::has_header("x-a")).guard(guard::header("X-B", "1")))
    };
    for (target, expected) in [
        ("/", "anybody"),
        ("/?a", "first"),
        ("/?b=c+d", "second"),
        ("/?b=c%20d", "second"),
        ("/?b=c", "anybody"),
        ("/?b=c+d&a=", "first"),
        ("/?aa", "anybody"),
    ] {
        assert_eq!(text(app(), target), (200, expected.to_owned()), "{target}");
    }
    let with = |headers: &[(&'static str, &'static str)]| {
        let client = app().test();
        let request = client.get("/");
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.send_blocking().text()
    };
    assert_eq!(with(&[("x-a", "")]), "anybody");
    assert_eq!(with(&[("x-b", "1")]), "anybody");
    assert_eq!(with(&[("x-a", ""), ("x-b", "2"), ("x-b", "1")]), "both");
}

#[test]
fn a_request_that_no_guard_accepts_tries_the_next_pattern_and_gets_a_404_at_the_end() {
    let app = || {
        App::new()
            .get("/users/new", (|| "a form").guard(guard::has_query("form")))
            .get("/users/{id:u32}", |Path(id): Path<u32>| format!("number {id}"))
            .get("/users/{id:uuid}", |Path(id): Path<String>| format!("uuid {}", id.len()))
            .get("/users/{name}", |Path(name): Path<String>| format!("name {name}"))
            .post("/users/{id:u32}", || "changed")
            .get("/only/{id:u8}", || "a byte")
            .get("/{*rest}", (|| "the rest").guard(guard::has_query("all")))
    };
    for (target, status, expected) in [
        ("/users/new", 200, "name new"),
        ("/users/new?form", 200, "a form"),
        ("/users/7", 200, "number 7"),
        ("/users/%37", 200, "number 7"),
        ("/users/4294967296", 200, "name 4294967296"),
        ("/users/01234567-89ab-cdef-0123-456789abcdef", 200, "uuid 36"),
        ("/only/255", 200, "a byte"),
        ("/only/256?all", 200, "the rest"),
    ] {
        assert_eq!(text(app(), target), (status, expected.to_owned()), "{target}");
    }
    assert_eq!(text(app(), "/only/256").0, 404);
    assert_eq!(text(app(), "/nothing").0, 404);
    // Only routes whose conditions hold count: the route for names has no POST.
    let client = app().test();
    assert_eq!(client.post("/users/7").send_blocking().text(), "changed");
    let rejected = client.post("/users/ada").send_blocking();
    assert_eq!(
        (rejected.status().as_u16(), rejected.header("allow")),
        (405, Some("GET, HEAD, OPTIONS"))
    );
    let options = client.request(Method::OPTIONS, "/users/7").send_blocking();
    assert_eq!(options.header("allow"), Some("GET, HEAD, POST, OPTIONS"));
    assert_eq!(client.post("/only/256").send_blocking().status(), 404);
    assert_eq!(client.post("/only/25").send_blocking().status(), 405);
}

#[test]
fn guarded_scopes_separate_hosts() {
    fn admin(scope: Scope) -> Scope {
        scope.guard(guard::host("admin.example.org")).get("/", || "admin").get("/x", || "admin x")
    }
    let app = || {
        App::new()
            .scope("", admin)
            .scope("", |scope| {
                scope
                    .guard(guard::host("*.example.org"))
                    .get("/", || "tenant")
                    .merge(App::new().guard(guard::has_query("y")).get("/y", || "tenant y"))
            })
            .get("/", || "main")
    };
    for (host, target, expected) in [
        ("admin.example.org", "/", "admin"),
        ("ADMIN.example.org:8080", "/x", "admin x"),
        ("shop.example.org", "/", "tenant"),
        ("shop.example.org", "/y?y", "tenant y"),
        ("example.org", "/", "main"),
    ] {
        assert_eq!(hosted(app(), host, target), expected, "{host} {target}");
    }
    assert!(hosted(app(), "example.org", "/x").contains("unknown-route"));
    assert!(hosted(app(), "shop.example.org", "/y").contains("unknown-route"));
    assert!(hosted(app(), "example.org", "/y?y").contains("unknown-route"));
}

#[test]
fn guards_can_be_combined_check_methods_and_be_closures() {
    let app = || {
        let odd = |context: &guard::GuardContext<'_>| context.head().path().len() % 2 == 1;
        App::new()
            .any("/any", (|| "read").guard(guard::methods([Method::GET, Method::HEAD])))
            .any("/any", (|| "written").guard(guard::not(guard::methods([Method::GET]))))
            .get("/{word}", (|| "odd").guard(guard::both(odd, guard::not(guard::secure()))))
            .get("/{word}", (|| "even").guard(guard::either(guard::secure(), guard::not(odd))))
    };
    let client = app().test();
    assert_eq!(client.get("/any").send_blocking().text(), "read");
    assert_eq!(client.delete("/any").send_blocking().text(), "written");
    assert_eq!((text(app(), "/ab").1, text(app(), "/abc").1), ("odd".into(), "even".into()));
}

#[test]
fn a_head_handler_is_checked_before_a_get_handler() {
    let app = App::new()
        .get("/", (|| [("x-from", "get")]).guard(guard::has_query("a")))
        .head("/", (|| [("x-from", "head")]).guard(guard::has_query("a")))
        .get("/", || [("x-from", "any")]);
    let client = app.test();
    let from = |method, target: &str| {
        client.request(method, target).send_blocking().header("x-from").map(str::to_owned)
    };
    assert_eq!(from(Method::HEAD, "/?a").as_deref(), Some("head"));
    assert_eq!(from(Method::GET, "/?a").as_deref(), Some("get"));
    assert_eq!(from(Method::HEAD, "/").as_deref(), Some("any"));
}

#[test]
fn omitted_optional_parameters_are_none() {
    let app = || {
        App::new()
            .get("/", || "home")
            .get(
                "/archive/{year:u16}/{month:u8?}/{day:u8?}",
                |Path((year, month, day)): Path<(u16, Option<u8>, Option<u8>)>| {
                    format!("{year} {month:?} {day:?}")
                },
            )
            .get(
                "/page/{page?}",
                |Path(page): Path<Option<u32>>, MatchedPath(pattern): MatchedPath| {
                    format!("{page:?} {pattern}")
                },
            )
            .scope("/files", |scope| {
                scope.get("/{*path?}", |path: Option<Path<String>>| format!("{path:?}"))
            })
    };
    for (target, status, expected) in [
        ("/archive/2026", 200, "2026 None None"),
        ("/archive/2026/11", 200, "2026 Some(11) None"),
        ("/archive/2026/11/23", 200, "2026 Some(11) Some(23)"),
        ("/page", 200, "None /page"),
        ("/page/3", 200, "Some(3) /page/{page}"),
        ("/files", 200, "None"),
        ("/files/", 200, "None"),
        ("/files/a/b", 200, "Some(Path(\"a/b\"))"),
    ] {
        assert_eq!(text(app(), target), (status, expected.to_owned()), "{target}");
    }
    for target in ["/archive", "/archive/x", "/archive/2026/13x", "/archive/2026/11/23/1"] {
        assert_eq!(text(app(), target).0, 404, "{target}");
    }
    // Too few parameters for the type, in which none is an `Option`.
    let few = App::new().get("/{a}/{b?}", |Path((a, b)): Path<(u8, u8)>| format!("{a}{b}"));
    assert_eq!(text(few, "/1").0, 500);
}

#[test]
fn a_nested_application_checks_its_own_guards() {
    let inner = App::new()
        .get("/in/{id:u8}", || "number")
        .get("/in/{id}", |Path(id): Path<String>| id)
        .build()
        .expect("a valid application");
    let app = App::new().subtree("/in", inner);
    assert_eq!(text(app, "/in/300").1, "300");
}

#[test]
fn builds_urls_from_route_names() {
    async fn links(urls: Urls) -> Result<String, UrlError> {
        let page = urls.path("pages", &None::<u8>)?;
        Ok(format!("{} {page} {}", urls.url("user", &7)?, urls.path("pages", &2)?))
    }
    async fn misspelled(urls: Urls) -> Result<String, UrlError> {
        urls.path("usr", &7)
    }
    let app = App::new().get("/links", links).get("/wrong", misspelled).scope("/api", |scope| {
        scope
            .route(
                "/users/{id:u32}",
                route::get((|| "user").named("user")).post((|| "made").named("user")),
            )
            .merge(App::new().get("/pages/{page:u8?}", (|| "page").named("pages")))
    });
    let client = app.test();
    let links = client.get("/links").header("host", "example.org").send_blocking().text();
    assert_eq!(links, "http://example.org/api/users/7 /api/pages /api/pages/2");
    let response = client.get("/wrong").send_blocking();
    assert_eq!(response.status(), 500);
    assert!(!response.text().contains("usr"), "the reason is only logged");
}

#[test]
fn routes_with_the_same_pattern_may_have_the_same_name() {
    async fn links(urls: Urls) -> Result<String, UrlError> {
        let (none, page) = (urls.path("pages", &None::<u8>)?, urls.path("pages", &2)?);
        Ok(format!("{none} {page} {}", urls.path("files", "a/b")?))
    }
    let app = App::new()
        .get("/links", links)
        .get("/pages/{page?}", (|| "shown").named("pages"))
        .post("/pages/{page?}", (|| "changed").named("pages"))
        .get("/files/{*path?}", (|| "shown").named("files"))
        .post("/files/{*path?}", (|| "changed").named("files"));
    let links = app.test().get("/links").send_blocking();
    assert_eq!(links.text(), "/pages /pages/2 /files/a/b");
}

#[test]
fn reports_invalid_patterns_guards_and_names_at_build() {
    async fn handler() -> Result<(), Problem> {
        Ok(())
    }
    let error_text = |app: App| app.build().expect_err("an application with errors").to_string();
    for (app, message) in [
        (App::new().get("/{a:thing}", handler), "`thing` in `{a:thing}` is not a segment type"),
        (App::new().get("/{a?}/b", handler), "`/b` follows an optional parameter"),
        (App::new().scope("/{a?}", |scope| scope.get("/b", handler)), "follows an optional"),
        (
            App::new().fallback(handler.guard(guard::secure())),
            "has a guard, but handles every request without a route",
        ),
        (
            App::new().scope("/a", |scope| scope.guard(guard::secure()).fallback(handler)),
            "is in a scope or an application with a guard",
        ),
        (
            App::new().get("/a", handler.named("x")).get("/b", handler.named("x")),
            "are both named `x`; rename one",
        ),
        (
            App::new().get("/a/{b?}", handler.named("x")).post("/a", handler.named("x")),
            "are both named `x`; rename one",
        ),
        (App::new().get("/{a}", handler).get("/{b}", handler), "match the same paths"),
        (App::new().get("/{a:u8}/{a}", handler), "already used"),
        (
            App::new().get("/{a}/{b?}", |Path((a, b, c)): Path<(u8, u8, u8)>| format!("{a}{b}{c}")),
            "takes 3 parameters from the path",
        ),
    ] {
        let text = error_text(app);
        assert!(text.contains(message), "{message:?} is not in {text}");
    }
}

#[test]
fn reports_unreachable_routes_at_build() {
    let a = || guard::has_query("a");
    let apps: [(App, usize); 7] = [
        (App::new().get("/", (|| "1").guard(a())).get("/", (|| "2").guard(a())), 1),
        // A later route with more guards is unreachable too.
        (
            App::new()
                .get("/", (|| "1").guard(a()))
                .get("/", (|| "2").guard(guard::secure()).guard(a())),
            1,
        ),
        (App::new().get("/{a:u8}", || "1").get("/{b:u8}", (|| "2").guard(a())), 1),
        (App::new().any("/", (|| "1").guard(a())).any("/", (|| "2").guard(a())), 1),
        (App::new().guard(|_: &guard::GuardContext<'_>| true).get("/", || "1").get("/", || "2"), 1),
        (
            App::new()
                .get("/", (|| "1").guard(guard::header("X-A", "b")))
                .get("/", (|| "2").guard(guard::header("x-a", "b"))),
            1,
        ),
        (
            App::new()
                .get("/", (|| "1").guard(guard::methods([Method::GET, Method::PUT])))
                .get("/", (|| "2").guard(guard::methods([Method::PUT, Method::GET]))),
            1,
        ),
    ];
    for (index, (app, count)) in apps.into_iter().enumerate() {
        let error = app.build().expect_err("one route is unreachable");
        assert_eq!(error.errors.len(), count, "{index}: {error}");
        assert!(error.to_string().contains("is unreachable"), "{index}: {error}");
    }
}

#[test]
fn accepts_reachable_routes() {
    let a = || guard::has_query("a");
    let always = || |_: &guard::GuardContext<'_>| true;
    let apps = [
        App::new()
            .get("/", (|| "1").guard(guard::secure()).guard(a()))
            .get("/", (|| "2").guard(a())),
        App::new().get("/", (|| "1").guard(a())).post("/", (|| "2").guard(a())),
        App::new().any("/", (|| "1").guard(a())).get("/", (|| "2").guard(a())),
        App::new().get("/", (|| "1").guard(a())).head("/", (|| "2").guard(a())),
        App::new().get("/", (|| "1").guard(a())).get("/", || "2"),
        App::new().get("/{a:u8}", (|| "1").guard(a())).get("/{a}", (|| "2").guard(a())),
        App::new().get("/", (|| "1").guard(always())).get("/", (|| "2").guard(always())),
        App::new()
            .get("/", (|| "1").guard(guard::query("a=b", "c")))
            .get("/", (|| "2").guard(guard::query("a", "b=c"))),
        App::new().guard(a()).subtree("/x", || "1").get("/x/y", || "2").get("/z/{a?}/{b?}", || "3"),
        App::new().scope("/s", |scope| scope.guard(a()).get("/", || "1").get("/b/", || "2")),
    ];
    for (index, app) in apps.into_iter().enumerate() {
        let built = app.build();
        assert!(built.is_ok(), "{index}: {}", built.expect_err("an error"));
    }
}

#[test]
fn route_lists_describe_the_conditions_of_routes() {
    let app = App::new()
        .guard(guard::host("A.org"))
        .get("/{id:u8}", (|| "").guard(guard::not(guard::has_query("x"))))
        .build()
        .expect("a valid application");
    let route = app.routes().next().expect("one route was added");
    assert_eq!(route.pattern, "/{id}");
    assert_eq!(route.conditions, "id is u8, the host is a.org, not (the query has x)");
}

#[test]
fn redirects_only_to_a_route_that_would_answer() {
    let app = || {
        App::new()
            .trailing_slash(TrailingSlash::Redirect)
            .subtree("/users/{id:u64}", || "number")
            .get("/v/{n:u8}/", || "slash")
            .scope("", |scope| scope.guard(guard::host("a.org")).subtree("/admin", || "admin"))
    };
    let client = app().fallback(|| "fallback").test();
    for (target, status, location) in [
        ("/users/7", 200, None),
        ("/users/x", 200, None),
        ("/users/x/", 200, None),
        ("/admin", 200, None),
        ("/admin/", 200, None),
        ("/v/7", 308, Some("/v/7/")),
        ("/v/x", 200, None),
    ] {
        let response = client.get(target).send_blocking();
        assert_eq!(
            (response.status().as_u16(), response.header("location")),
            (status, location),
            "{target}"
        );
    }
    assert_eq!(client.get("/users/x/").send_blocking().text(), "fallback");
    assert_eq!(text(app(), "/users/x").0, 404);
    assert_eq!(hosted(app(), "a.org", "/admin/"), "admin");
}

#[test]
fn a_merged_root_route_also_matches_the_prefix_with_a_slash() {
    let other = || App::new().subtree("/", || "all");
    let rest = |Path(path): Path<Option<String>>| format!("{path:?}");
    let optional = || App::new().get("/{*path?}", rest);
    let app = || {
        App::new()
            .scope("/s", |scope| scope.merge(other()))
            .scope("/o", |scope| scope.scope("/p", |scope| scope.merge(optional())))
            .scope("/twice", |scope| {
                scope.merge(App::new().scope("/", |scope| scope.merge(other())))
            })
    };
    for policy in [TrailingSlash::Strict, TrailingSlash::Redirect, TrailingSlash::Ignore] {
        for (target, expected) in [
            ("/s", "all"),
            ("/s/", "all"),
            ("/s/a", "all"),
            ("/o/p", "None"),
            ("/o/p/", "None"),
            ("/o/p/a", "Some(\"a\")"),
            ("/twice/", "all"),
        ] {
            let response = text(app().trailing_slash(policy), target);
            assert_eq!(response, (200, expected.to_owned()), "{target} {policy:?}");
        }
    }
}

#[test]
fn a_guarded_any_handler_skips_methods_with_a_handler_behind_the_same_guard() {
    let app = || {
        App::new()
            .route("/{id:u8}", route::any(|| "any").get(|| "get"))
            .any("/late/{id:u8}", || "any")
            .head("/late/{id:u8}", || "head")
            .scope("/s", |scope| {
                scope
                    .guard(guard::host("localhost"))
                    .subtree("/", || "any")
                    .post("/", || "post")
                    .get("/{*rest}", || "rest")
            })
            // Routes with different guards are checked in order, whatever their methods are.
            .any("/order", (|| "first").guard(guard::has_query("a")))
            .get("/order", (|| "second").guard(guard::has_query("b")))
    };
    let client = app().test();
    for (method, target, expected) in [
        (Method::GET, "/7", "get"),
        (Method::POST, "/7", "any"),
        (Method::GET, "/late/7", "any"),
        (Method::POST, "/s", "post"),
        (Method::PUT, "/s", "any"),
        (Method::GET, "/s/x", "rest"),
        (Method::PUT, "/s/x", "any"),
        (Method::GET, "/order?a&b", "first"),
        (Method::GET, "/order?b", "second"),
    ] {
        let request = client.request(method.clone(), target).header("host", "localhost");
        assert_eq!(request.send_blocking().text(), expected, "{method} {target}");
    }
}

#[test]
fn a_fallback_answers_only_if_the_types_of_its_prefix_match() {
    let app = || {
        App::new()
            .fallback(|| "outer")
            .scope("/users/{id:u64}", |scope| scope.fallback(|| "number"))
            .scope("/users/{name:alpha}", |scope| scope.fallback(|| "letters"))
            .scope("/t/{tenant:u8}", |scope| {
                scope.merge(App::new().scope("/a", |scope| scope.fallback(|| "merged")))
            })
    };
    for (target, expected) in [
        ("/users/7/x", "number"),
        ("/users/7", "number"),
        ("/users/ada/", "letters"),
        ("/users/a7/x", "outer"),
        ("/t/7/a/x", "merged"),
        ("/t/x/a/x", "outer"),
    ] {
        assert_eq!(text(app(), target), (200, expected.to_owned()), "{target}");
    }
}

#[test]
fn reports_a_merged_fallback_behind_a_guard() {
    let inner = || App::new().scope("/secret", |scope| scope.fallback(|| "secret"));
    let guarded = App::new().scope("", |scope| scope.guard(guard::host("a.org")).merge(inner()));
    let error = guarded.build().expect_err("a guard has no effect here").to_string();
    assert!(error.contains("with a guard, but handles every request"), "{error}");
    let result = App::new().guard(guard::secure()).merge(inner()).build();
    assert!(result.is_err());
    // At the root, the fallback handles requests that the guard rejects. Merged into another
    // application, it would also handle that application's requests without a route.
    let app =
        || App::new().guard(guard::host("a.org")).get("/", || "a").fallback(|| "nothing at a");
    assert!(app().build().is_ok());
    let error =
        App::new().get("/", || "").merge(app()).build().expect_err("a guard has no effect here");
    assert!(error.to_string().contains("with a guard, but handles every request"), "{error}");
}
