//! Several routes with the same target: no route's response answers a request to another.

use super::*;
use crate::{Idempotency, MemoryIdempotencyStore};
use peregrine_web::guard::{self, Guard, GuardContext};

const FOR_A_MINUTE: [(&str, &str); 1] = [("cache-control", "max-age=60")];

fn is_two(context: &GuardContext<'_>) -> bool {
    context.head().header_bytes("x-version") == Some(b"2")
}

/// A guarded route for version 2, and one for all other versions.
fn versions(app: App, guard: impl Guard + 'static) -> TestClient {
    app.get("/v", (|| (FOR_A_MINUTE, "2")).guard(guard)).get("/v", || (FOR_A_MINUTE, "1")).test()
}

fn cache() -> App {
    App::new().wrap(Cache::new(CacheStore::new()))
}

fn version(client: &TestClient, version: Option<&str>) -> TestResponse {
    match version {
        Some(version) => client.get("/v").header("x-version", version).send_blocking(),
        None => client.get("/v").send_blocking(),
    }
}

#[test]
fn responses_vary_by_the_fields_that_guards_read() {
    let either = || guard::either(guard::header("x-version", "2"), guard::secure());
    let not = || guard::not(guard::not(guard::header("X-Version", "2")));
    let varying = || guard::varying_by(["x-version"], is_two);
    for (name, client) in [
        ("header", versions(cache(), guard::header("x-version", "2"))),
        ("either", versions(cache(), either())),
        ("not", versions(cache(), not())),
        ("both", versions(cache(), guard::both(not(), guard::not(guard::secure())))),
        ("closure", versions(cache(), varying())),
        (
            "scope",
            cache()
                .scope("", |scope| {
                    scope.guard(guard::header("x-version", "2")).get("/v", || (FOR_A_MINUTE, "2"))
                })
                .get("/v", || (FOR_A_MINUTE, "1"))
                .test(),
        ),
        (
            "pattern",
            cache()
                .get("/v", (|| (FOR_A_MINUTE, "2")).guard(guard::header("x-version", "2")))
                .get("/{any}", || (FOR_A_MINUTE, "1"))
                .test(),
        ),
        (
            "application",
            cache()
                .subtree(
                    "/",
                    App::new()
                        .get("/v", || (FOR_A_MINUTE, "2"))
                        .build()
                        .expect("sound")
                        .guard(varying()),
                )
                .subtree("/", App::new().get("/v", || (FOR_A_MINUTE, "1")).build().expect("sound"))
                .test(),
        ),
    ] {
        for first in [Some("2"), None] {
            drop(version(&client, first));
            for sent in [Some("2"), None, Some("3"), Some("2"), None] {
                let expected = if sent == Some("2") { "2" } else { "1" };
                let response = version(&client, sent);
                assert_eq!(response.text(), expected, "{name}: {sent:?} after {first:?}");
                assert_eq!(response.header("vary"), Some("x-version"), "{name}");
            }
        }
        assert!(version(&client, None).header("age").is_some(), "{name}: the response is stored");
    }
}

/// Caches between the client and the server need the same information.
#[test]
fn responses_name_guard_fields_in_vary_without_a_cache() {
    for (client, vary) in [
        (versions(App::new(), guard::header("x-version", "2")), "x-version"),
        (versions(App::new(), is_two), "*"),
    ] {
        for sent in [Some("2"), None] {
            assert_eq!(version(&client, sent).header("vary"), Some(vary), "{sent:?}");
        }
    }
}

#[test]
fn a_response_to_get_is_not_used_for_a_guarded_head_route() {
    let by = |name: &'static str| move || ([("x-by", name)], "");
    let opaque = |context: &GuardContext<'_>| is_two(context);
    for app in [
        cache().head("/v", by("head").guard(guard::header("x-version", "2"))),
        cache().head("/v", by("head").guard(opaque)),
    ] {
        let client = app.get("/v", || (FOR_A_MINUTE, [("x-by", "get")], "page")).test();
        assert_eq!(get(&client, "/v"), "page");
        assert!(version(&client, None).header("age").is_some(), "the response is stored");
        let guarded = client.head("/v").header("x-version", "2").send_blocking();
        assert_eq!((guarded.header("x-by"), guarded.header("age")), (Some("head"), None));
        assert_eq!(client.head("/v").send_blocking().header("x-by"), Some("get"));
    }
}

#[test]
fn routes_with_closure_guards_are_stored_only_with_varying_by() {
    let client = versions(cache(), is_two);
    for sent in [Some("2"), None, Some("2"), None] {
        let response = version(&client, sent);
        let expected = if sent.is_some() { "2" } else { "1" };
        assert_eq!((response.text().as_str(), response.header("vary")), (expected, Some("*")));
        assert_eq!(response.header("age"), None);
    }
    // A decision by host alone, which is part of every key.
    let by_host = |context: &GuardContext<'_>| context.client().host() == "two.example";
    let client = versions(cache(), guard::varying_by([], by_host));
    for _ in 0..2 {
        for (host, expected) in [("two.example", "2"), ("one.example", "1")] {
            let response = client.get("/v").header("host", host).send_blocking();
            assert_eq!((response.text().as_str(), response.header("vary")), (expected, None));
        }
    }
    assert!(version(&client, None).header("age").is_none(), "another host");
    assert!(version(&client, None).header("age").is_some());
}

#[test]
fn a_key_without_the_query_keeps_query_guarded_routes_apart() {
    let cache = Cache::new(CacheStore::new()).key(|parts| Some(parts.head.path().to_owned()));
    let client = versions(App::new().wrap(cache), guard::query("version", "2"));
    for _ in 0..2 {
        assert_eq!(get(&client, "/v?version=2"), "2");
        assert_eq!(
            (get(&client, "/v").as_str(), get(&client, "/v?version=3").as_str()),
            ("1", "1")
        );
    }
}

#[test]
fn an_unsafe_request_removes_responses_of_all_routes_of_its_target() {
    let client = cache()
        .get("/v", (|| (FOR_A_MINUTE, "2")).guard(guard::header("x-version", "2")))
        .get("/v", || (FOR_A_MINUTE, "1"))
        .post("/v", || "changed")
        .test();
    let ages = || [Some("2"), None].map(|sent| version(&client, sent).header("age").is_some());
    assert_eq!((ages(), ages()), ([false, false], [true, true]));
    drop(client.post("/v").send_blocking());
    assert_eq!((ages(), ages()), ([false, false], [true, true]));
}

#[test]
fn an_idempotency_key_of_one_route_does_not_replay_on_another() {
    let opaque = |context: &GuardContext<'_>| is_two(context);
    for is_opaque in [false, true] {
        let app = App::new().wrap(Idempotency::new(MemoryIdempotencyStore::new()));
        let app = match is_opaque {
            true => app.post("/v", (|| "2").guard(opaque)),
            false => app.post("/v", (|| "2").guard(guard::header("x-version", "2"))),
        };
        let client = app.post("/v", || "1").test();
        let send = |version: Option<&str>| {
            let request = client.post("/v").header("idempotency-key", "\"a\"");
            version
                .into_iter()
                .fold(request, |request, version| request.header("x-version", version))
                .send_blocking()
        };
        assert_eq!((send(Some("2")).text(), send(Some("2")).text()), ("2".into(), "2".into()));
        assert_eq!(send(None).status(), 422, "the request is a different one");
    }
}
