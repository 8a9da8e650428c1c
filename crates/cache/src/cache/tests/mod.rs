mod identities;
mod refreshing;
mod routes;
mod sharing;
mod validation;

use super::*;
use peregrine_web::extract::Path;
use peregrine_web::testing::{TestClient, TestResponse};
use peregrine_web::{App, HandlerExt, TrustedProxies};
use std::cell::Cell;
use std::panic::AssertUnwindSafe as Safe;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);

/// Runs `future` with paused time, which advances when all tasks wait.
fn run<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
    LocalSet::new().block_on(&runtime, future)
}

type Count = Rc<Cell<u32>>;

/// `/{name}` responds with the name and the number of the call, and with the `Cache-Control` in its
/// query. Some names have special behavior.
fn app(cache: Cache) -> (TestClient, Count) {
    let count = Count::default();
    let calls = Rc::clone(&count);
    let page = async move |Path(name): Path<String>, request: Request| {
        calls.set(calls.get() + 1);
        let number = calls.get();
        let control = request.parts.head.query().unwrap_or_default().replace('&', ", ");
        let mut response = format!("{name} {number}").into_response();
        let mut set = |name: &'static str, value: &str| {
            let value = http::HeaderValue::try_from(value).expect("text");
            response.headers.insert(HeaderName::from_static(name), value);
        };
        if !control.is_empty() {
            set("cache-control", &control);
        }
        match name.as_str() {
            "slow" => sleep(SECOND).await,
            "vary" => set("vary", "Accept-Language, x-a"),
            "cookie" => set("set-cookie", "a=b"),
            "tagged" => set("etag", "\"t\""),
            "limited" => {
                set("etag", "\"t\"");
                set("ratelimit", "\"default\";r=9");
                set("ratelimit-policy", "\"default\";q=10;w=1");
                set("x-own", "kept");
            }
            "panic" => {
                sleep(SECOND).await;
                panic!("requested by the test");
            }
            "panics-once" => {
                sleep(SECOND).await;
                assert!(number > 1, "requested by the test");
            }
            "flaky" if number > 1 => response.status = StatusCode::BAD_GATEWAY,
            "gone" if number > 1 => response.status = StatusCode::IM_A_TEAPOT,
            "stream" => response.body = Body::new(response.body),
            "long" => response.body = Body::from("x".repeat(300)),
            "refused" => {
                let problem = Problem::new(StatusCode::NOT_FOUND, "nothing", "nothing here");
                response = problem.into_response();
                let value = http::HeaderValue::from_static("max-age=60");
                response.headers.insert(http::header::CACHE_CONTROL, value);
            }
            _ => {}
        }
        response
    };
    let changed = |Path(name): Path<String>| match name.as_str() {
        "fails" => StatusCode::CONFLICT.into_response(),
        "prefixed" => {
            (StatusCode::CREATED, [("location", "/shop/other?max-age=60")]).into_response()
        }
        _ => (
            StatusCode::CREATED,
            [("location", "/other?max-age=60"), ("content-location", "//evil/x")],
        )
            .into_response(),
    };
    let app = App::new()
        .on_problem(|problem, _| (problem.status, format!("form: {}", problem.kind)))
        .wrap(cache)
        .get("/{name}", page.body_limit(1000))
        .post("/{name}", changed);
    (app.test(), count)
}

fn client() -> (TestClient, CacheStore, Count) {
    let store = CacheStore::new();
    let (client, count) = app(Cache::new(store.clone()).entry_bytes_max(200));
    (client, store, count)
}

fn get(client: &TestClient, target: &str) -> String {
    client.get(target).send_blocking().text()
}

fn with(client: &TestClient, target: &str, name: &str, value: &str) -> TestResponse {
    client.get(target).header(name, value).send_blocking()
}

#[test]
fn rate_limit_fields_are_not_stored() {
    let (client, ..) = client();
    let present_fields = |response: &TestResponse| {
        ["ratelimit", "ratelimit-policy", "x-own"].map(|name| response.header(name).is_some())
    };
    assert_eq!(
        present_fields(&client.get("/limited?max-age=60").send_blocking()),
        [true, true, true]
    );
    let stored = client.get("/limited?max-age=60").send_blocking();
    assert_eq!((present_fields(&stored), stored.header("age")), ([false, false, true], Some("0")));
}

#[test]
fn stores_only_shareable_responses_with_a_lifetime() {
    let (client, store, _) = client();
    for (target, is_stored) in [
        ("/a?max-age=60", true),
        ("/b?s-maxage=60", true),
        ("/c", false),
        ("/d?no-store&max-age=60", false),
        ("/e?private&max-age=60", false),
        ("/cookie?max-age=60", false),
        ("/stream?max-age=60", true),
        ("/long?max-age=60", false),
        ("/refused", true),
    ] {
        let first = client.get(target).send_blocking();
        assert_eq!(first.header("age"), None, "{target}");
        let (first, again) = (first.text(), client.get(target).send_blocking());
        let is_same = again.text() == first && again.header("age") == Some("0");
        assert_eq!(is_same, is_stored, "{target}: {first}, {}", again.text());
    }
    assert_eq!(get(&client, "/refused"), "form: nothing", "in the application's format");
    assert_eq!(with(&client, "/a?max-age=60", "host", "other").text(), "a 15");
    let stats = store.stats();
    assert_eq!((stats.entries, stats.hits, stats.stale_hits, stats.evicted), (5, 5, 0, 0));
    store.clear();
    assert_eq!((store.stats().entries, store.stats().bytes), (0, 0));
}

#[test]
fn a_stored_response_has_an_age_and_expires() {
    run(async {
        let (client, _, _) = client();
        let get = || client.get("/a?max-age=60").send();
        assert_eq!(get().await.text(), "a 1");
        sleep(59 * SECOND).await;
        let old = get().await;
        assert_eq!((old.text().as_str(), old.header("age")), ("a 1", Some("59")));
        assert_eq!(old.header("content-type"), Some("text/plain; charset=utf-8"));
        sleep(SECOND).await;
        assert_eq!(get().await.text(), "a 2");
    });
}

#[test]
fn stores_a_response_per_value_of_a_vary_field() {
    let (client, store, _) = client();
    let send = |value: &str| with(&client, "/vary?max-age=60", "accept-language", value).text();
    assert_eq!(
        (send("de").as_str(), send("en").as_str(), send("de").as_str()),
        ("vary 1", "vary 2", "vary 1")
    );
    assert_eq!((send("de , en").as_str(), send("de,en").as_str()), ("vary 3", "vary 3"));
    assert_eq!(
        get(&client, "/vary?max-age=60"),
        "vary 4",
        "an absent field differs from an empty one"
    );
    assert_eq!((send("").as_str(), send("en").as_str()), ("vary 5", "vary 2"));
    for number in 0..40 {
        send(&number.to_string());
    }
    assert_eq!(store.stats().entries, 16);
}

/// An upstream response that was made without a field is not stored as one for a value of that
/// field.
#[test]
fn requests_with_nominated_fields_bypass_the_cache() {
    let language = |mut request: Request| {
        // A proxy does this.
        request.parts.head.remove_nominated_headers();
        let language = request.parts.head.header("accept-language").unwrap_or("none");
        ([("cache-control", "max-age=60"), ("vary", "accept-language")], language.to_owned())
    };
    let app = App::new().wrap(Cache::new(CacheStore::new())).get("/", language);
    let client = app.test();
    let send = |connection: &str| {
        let request = client.get("/").header("accept-language", "de");
        request.header("connection", connection).send_blocking().text()
    };
    assert_eq!(send("accept-language"), "none");
    assert_eq!(send("keep-alive"), "de");
}

#[test]
fn ranges_conditions_and_bodies_bypass_the_cache() {
    let (client, _, count) = client();
    assert_eq!(get(&client, "/a?max-age=60"), "a 1");
    for (name, value) in [("range", "bytes=0-1"), ("if-match", "*"), ("cache-control", "no-store")]
    {
        let before = count.get();
        drop(with(&client, "/a?max-age=60", name, value));
        assert_eq!(count.get(), before + 1, "{name}");
    }
    assert_eq!(with(&client, "/a?max-age=60", "cache-control", "no-cache").text(), "a 1");
    let before = count.get();
    assert_eq!(
        client.get("/a?max-age=60").body("x").send_blocking().text(),
        format!("a {}", before + 1)
    );
    assert_eq!(with(&client, "/a?max-age=60", "cache-control", "only-if-cached").text(), "a 1");
    let absent = with(&client, "/b?max-age=60", "cache-control", "only-if-cached");
    assert_eq!((absent.status().as_u16(), count.get()), (504, before + 1));
}

#[test]
fn honored_request_directives_fetch_and_store_a_new_response() {
    let (client, _) = app(Cache::new(CacheStore::new()).honor_request_directives());
    assert_eq!(get(&client, "/a?max-age=60"), "a 1");
    assert_eq!(with(&client, "/a?max-age=60", "cache-control", "no-cache").text(), "a 2");
    assert_eq!(with(&client, "/a?max-age=60", "cache-control", "max-age=5").text(), "a 2");
    assert_eq!(with(&client, "/a?max-age=60", "pragma", "no-cache").text(), "a 3");
    assert_eq!(get(&client, "/a?max-age=60"), "a 3");
}

#[test]
fn responses_to_requests_with_credentials_are_not_shared() {
    let store = CacheStore::new();
    let (client, _) = app(Cache::new(store).default_ttl(60 * SECOND));
    for (name, value) in
        [("cookie", "session=1"), ("authorization", "Bearer a"), ("x-api-key", "a")]
    {
        let first = with(&client, "/mine", name, value).text();
        assert_ne!(with(&client, "/mine", name, value).text(), first, "{name}");
        assert_ne!(get(&client, "/mine"), first, "{name}");
        let private = with(&client, "/mine?max-age=60", "authorization", value).text();
        assert_ne!(with(&client, "/mine?max-age=60", "authorization", "b").text(), private);
    }
    assert_eq!(get(&client, "/page"), get(&client, "/page"));
    let public = with(&client, "/all?max-age=60&public", "authorization", "a").text();
    assert_eq!(get(&client, "/all?max-age=60&public"), public);
}

#[test]
fn head_and_conditions_are_answered_from_the_store() {
    let (client, _, count) = client();
    let target = "/tagged?max-age=60";
    let first = with(&client, target, "if-none-match", "\"t\"");
    assert_eq!((first.status().as_u16(), first.text().as_str(), count.get()), (304, "", 1));
    assert_eq!(get(&client, target), "tagged 1", "the handler did not see the condition");
    let again = with(&client, target, "if-none-match", "W/\"t\"");
    assert_eq!((again.status().as_u16(), again.header("age")), (304, Some("0")));
    assert_eq!(with(&client, target, "if-none-match", "\"other\"").text(), "tagged 1");
    let head = client.head(target).send_blocking();
    assert_eq!((head.header("etag"), head.text().as_str()), (Some("\"t\""), ""));
    assert_eq!(count.get(), 1);
    drop(client.head("/a?max-age=60").send_blocking());
    assert_eq!(get(&client, "/a?max-age=60"), "a 3", "the response to HEAD is not that to GET");
}

#[test]
fn unsafe_requests_and_invalidation_remove_responses() {
    let (client, store, _) = client();
    let responses =
        ["/a?max-age=60", "/other?max-age=60", "/a?max-age=61"].map(|target| get(&client, target));
    assert_eq!(responses, ["a 1", "other 2", "a 3"]);
    assert_eq!(client.post("/fails").send_blocking().status(), 409);
    drop(client.post("/a?max-age=60").send_blocking());
    let responses =
        ["/a?max-age=60", "/other?max-age=60", "/a?max-age=61"].map(|target| get(&client, target));
    assert_eq!(responses, ["a 4", "other 5", "a 3"], "the target and its Location");
    store.invalidate("/a");
    store.invalidate_prefix("/oth");
    let responses =
        ["/a?max-age=60", "/other?max-age=60", "/a?max-age=61"].map(|target| get(&client, target));
    assert_eq!(responses, ["a 6", "other 5", "a 7"]);
    store.invalidate_prefix("/");
    assert_eq!(store.stats().entries, 0);
}

/// The client's paths begin with the prefix that a proxy has removed.
#[test]
fn a_location_with_the_prefix_of_a_proxy_is_invalidated() {
    let (client, _, _) = client();
    let client = client.with_trusted_proxies(TrustedProxies::hops(1).x_forwarded_prefix());
    let get = |prefix: &str| {
        let request = client.get("/other?max-age=60").header("x-forwarded-prefix", prefix);
        request.send_blocking().text()
    };
    assert_eq!(
        (get("/shop"), get("/shop"), get("/else")),
        ("other 1".into(), "other 1".into(), "other 2".into())
    );
    let post = client.post("/prefixed").header("x-forwarded-prefix", "/shop");
    assert_eq!(post.send_blocking().status(), 201);
    assert_eq!((get("/shop"), get("/else")), ("other 3".into(), "other 2".into()));
}

#[test]
fn concurrent_requests_share_one_fetch() {
    run(async {
        let (client, store, count) = client();
        let spawn_get = |target: &'static str| spawn_local(client.get(target).send());
        let requests: Vec<_> = (0..50).map(|_| spawn_get("/slow?max-age=60")).collect();
        for request in requests {
            assert_eq!(request.await.expect("the task ends").text(), "slow 1");
        }
        assert_eq!((count.get(), store.stats().misses, store.stats().hits), (1, 1, 49));
        // A private response is generated for each client, without queueing.
        let start = tokio::time::Instant::now();
        let requests: Vec<_> = (0..10).map(|_| spawn_get("/slow?private")).collect();
        for request in requests {
            drop(request.await.expect("the task ends"));
        }
        assert_eq!(count.get(), 11);
        assert!(start.elapsed() < 3 * SECOND, "{:?}", start.elapsed());
        let requests: Vec<_> = (0..10).map(|_| spawn_get("/slow?private")).collect();
        for request in requests {
            drop(request.await.expect("the task ends"));
        }
        assert!(
            start.elapsed() < 4 * SECOND,
            "the responses are known to be private, so no request waits"
        );
    });
}

#[test]
fn an_abandoned_fetch_continues_only_for_waiting_requests() {
    run(async {
        let (client, _, count) = client();
        let send = || client.get("/slow?max-age=60").send();
        let leader = spawn_local(send());
        sleep(SECOND / 10).await;
        let follower = spawn_local(send());
        sleep(SECOND / 10).await;
        leader.abort();
        assert_eq!(
            (follower.await.expect("the task ends").text().as_str(), count.get()),
            ("slow 1", 1)
        );
        let abandoned =
            tokio::time::timeout(SECOND / 10, client.get("/slow?max-age=61").send()).await;
        assert!(abandoned.is_err());
        let next = client.get("/slow?max-age=61").send().await;
        assert_eq!(
            (next.text().as_str(), count.get()),
            ("slow 3", 3),
            "no request waited for the second"
        );
    });
}

#[test]
fn a_panic_fails_only_the_request_that_fetched() {
    run(async {
        let (client, _, count) = client();
        let spawn_get = || spawn_local(client.get("/panics-once?max-age=60").send());
        let (leader, followers) = (spawn_get(), [spawn_get(), spawn_get()]);
        assert!(leader.await.is_err(), "the panic reaches the server");
        for follower in followers {
            follower.await.expect("the task does not panic").assert_status(200);
        }
        assert_eq!(count.get(), 3, "each request called the handler");
        assert_eq!(spawn_get().await.expect("the task does not panic").text(), "panics-once 4");
        assert_eq!(spawn_get().await.expect("the task does not panic").text(), "panics-once 4");
    });
}

#[test]
fn a_request_that_waits_too_long_calls_the_handler() {
    run(async {
        let store = CacheStore::new();
        let (client, count) = app(Cache::new(store).coalesce_timeout(SECOND / 10));
        let spawn_get = || spawn_local(client.get("/slow?max-age=60").send());
        let (first, second) = (spawn_get(), spawn_get());
        assert_eq!(first.await.expect("the task ends").text(), "slow 1");
        assert_eq!(
            (second.await.expect("the task ends").text().as_str(), count.get()),
            ("slow 2", 2)
        );
        assert_eq!(spawn_get().await.expect("the task ends").text(), "slow 1");
    });
}

#[test]
fn a_response_invalidated_during_its_fetch_is_not_stored() {
    run(async {
        let (client, _, _) = client();
        let spawn_get = || spawn_local(client.get("/slow?max-age=60").send());
        let before = spawn_get();
        sleep(SECOND / 2).await;
        drop(client.post("/slow?max-age=60").send().await);
        let after = spawn_get();
        assert_eq!(before.await.expect("the task ends").text(), "slow 1");
        assert_eq!(
            after.await.expect("the task ends").text(),
            "slow 2",
            "the new request does not wait for the old one"
        );
        assert_eq!(spawn_get().await.expect("the task ends").text(), "slow 2");
    });
}

#[test]
fn a_stale_response_is_sent_while_a_newer_one_is_fetched() {
    run(async {
        let (client, store, count) = client();
        let target = "/slow?max-age=10&stale-while-revalidate=30";
        assert_eq!(client.get(target).send().await.text(), "slow 1");
        sleep(20 * SECOND).await;
        let start = tokio::time::Instant::now();
        for _ in 0..5 {
            assert_eq!(client.get(target).send().await.text(), "slow 1");
        }
        assert_eq!((start.elapsed(), store.stats().stale_hits), (Duration::ZERO, 5));
        sleep(2 * SECOND).await;
        assert_eq!((client.get(target).send().await.text().as_str(), count.get()), ("slow 2", 2));
        sleep(50 * SECOND).await;
        assert_eq!(client.get(target).send().await.text(), "slow 3", "the response is too old");
    });
}

#[test]
fn a_stale_response_replaces_an_error_for_a_while() {
    run(async {
        let (client, _, count) = client();
        let target = "/flaky?max-age=10&stale-if-error=30";
        assert_eq!(client.get(target).send().await.text(), "flaky 1");
        sleep(20 * SECOND).await;
        let stale = client.get(target).send().await;
        assert_eq!(
            (stale.status().as_u16(), stale.text().as_str(), count.get()),
            (200, "flaky 1", 2)
        );
        assert_eq!(stale.header("age"), Some("20"));
        sleep(20 * SECOND).await;
        assert_eq!(client.get(target).send().await.status(), 502);
        // Any response that is not a server error replaces the stored one.
        let target = "/gone?max-age=10&stale-if-error=30&stale-while-revalidate=30";
        count.set(0);
        assert_eq!(client.get(target).send().await.text(), "gone 1");
        sleep(20 * SECOND).await;
        assert_eq!(client.get(target).send().await.status(), 200);
        sleep(SECOND).await;
        assert_eq!(client.get(target).send().await.status(), 418);
    });
}

#[test]
fn evicts_the_least_recently_used_response() {
    let store = CacheStore::with_capacity_bytes(5000);
    let (client, _) = app(Cache::new(store.clone()));
    for number in 0..30 {
        drop(get(&client, &format!("/p{number}?max-age=60")));
        assert_eq!(get(&client, "/p0?max-age=60"), "p0 1", "the response is used all the time");
        assert!(store.stats().bytes <= 5000);
    }
    let stats = store.stats();
    assert!(stats.evicted > 10 && stats.entries > 2, "{stats:?}");
    assert_ne!(get(&client, "/p1?max-age=60"), "p1 2");
}

#[test]
fn works_without_a_runtime() {
    let (client, _, _) = client();
    let panicked = std::panic::catch_unwind(Safe(|| get(&client, "/panic?max-age=60")));
    assert!(panicked.is_err());
    assert_eq!(get(&client, "/a?max-age=60&stale-while-revalidate=9"), "a 2");
}

#[test]
fn custom_keys_may_omit_the_query_or_bypass_the_cache() {
    let cache = Cache::new(CacheStore::new());
    let cache =
        cache.key(|parts| (parts.head.path() != "/x").then(|| parts.head.path().to_owned()));
    let (client, _) = app(cache.default_ttl(60 * SECOND));
    assert_eq!((get(&client, "/a?utm=1").as_str(), get(&client, "/x").as_str()), ("a 1", "x 2"));
    assert_eq!((get(&client, "/a?utm=2").as_str(), get(&client, "/x").as_str()), ("a 1", "x 3"));
}
