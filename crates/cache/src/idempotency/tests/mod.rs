mod full;

use super::*;
use http_body::Frame;
use peregrine_web::testing::{TestClient, TestResponse};
use peregrine_web::{App, HandlerExt, TrustedProxies};
use std::cell::Cell;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe as Safe;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);

/// Runs `future` with paused time, which advances when all tasks wait.
fn run<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
    LocalSet::new().block_on(&runtime, future)
}

/// A body that panics when it is polled.
struct Panics;

impl http_body::Body for Panics {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        panic!("requested by the test")
    }
}

/// How often the handler was called, and how often it finished.
type Counts = Rc<Cell<(u32, u32)>>;

fn app(idempotency: Idempotency<MemoryIdempotencyStore>) -> (TestClient, Counts) {
    let counts = Counts::default();
    let counter = Rc::clone(&counts);
    let order = async move |body: String| {
        let (calls, finished) = counter.get();
        counter.set((calls + 1, finished));
        match body.as_str() {
            "slow" => sleep(SECOND).await,
            "panic" => panic!("requested by the test"),
            "stream" => return Body::new(Panics).into_response(),
            "busy" => return StatusCode::TOO_MANY_REQUESTS.into_response(),
            "fail" => return StatusCode::BAD_GATEWAY.into_response(),
            "long" => return "x".repeat(1000).into_response(),
            "full" => return Problem::overloaded(1).into_response(),
            "down" => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
            "locked" => return (StatusCode::CONFLICT, [("retry-after", "1")]).into_response(),
            "who" => return StatusCode::UNAUTHORIZED.into_response(),
            _ => {}
        }
        let (calls, finished) = counter.get();
        counter.set((calls, finished + 1));
        (StatusCode::CREATED, [("location", "/orders/1")], format!("order {calls}: {body}"))
            .into_response()
    };
    let sold_out = || Problem::new(StatusCode::CONFLICT, "sold-out", "there are none left");
    let app = App::new()
        .on_problem(|problem, _| (problem.status, format!("form: {}", problem.kind)))
        .wrap(idempotency)
        .post("/orders", order.clone().body_limit(100))
        .patch("/orders", order)
        .post("/refused", move || -> Result<(), Problem> { Err(sold_out()) })
        .get("/orders", || "all");
    (app.test(), counts)
}

fn client() -> (TestClient, Counts) {
    app(Idempotency::new(MemoryIdempotencyStore::new()).response_bytes_max(500))
}

fn post(client: &TestClient, key: &str, body: &'static str) -> TestResponse {
    client.post("/orders").header("idempotency-key", key).body(body).send_blocking()
}

#[test]
fn a_repeated_request_gets_the_stored_response() {
    let (client, counts) = client();
    let first = post(&client, "\"a\"", "falcon");
    assert_eq!((first.status().as_u16(), first.header("idempotent-replayed")), (201, None));
    for _ in 0..3 {
        let again = post(&client, "\"a\"", "falcon");
        assert_eq!((again.status().as_u16(), again.header("location")), (201, Some("/orders/1")));
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
        assert_eq!(again.text(), "order 1: falcon");
    }
    assert_eq!(counts.get(), (1, 1));
    assert_eq!(post(&client, "\"b\"", "falcon").text(), "order 2: falcon");
    assert_eq!(client.post("/orders").body("no key").send_blocking().text(), "order 3: no key");
    assert_eq!(
        client.get("/orders").header("idempotency-key", "\"a\"").send_blocking().text(),
        "all"
    );
}

#[test]
fn a_key_belongs_to_one_request_of_one_client() {
    let (client, counts) = client();
    drop(post(&client, "\"a\"", "falcon"));
    assert_eq!(post(&client, "\"a\"", "kestrel").status(), 422);
    let with = |name: &str, value: &str| {
        let request = client.post("/orders").header("idempotency-key", "\"a\"").body("falcon");
        request.header(name, value).send_blocking().status().as_u16()
    };
    assert_eq!((with("content-type", "text/plain"), with("x-other", "1")), (422, 201));
    let patched = client.patch("/orders").header("idempotency-key", "\"a\"").body("falcon");
    assert_eq!(patched.send_blocking().status(), 422);
    let query = client.post("/orders?x=1").header("idempotency-key", "\"a\"").body("falcon");
    assert_eq!(query.send_blocking().status(), 422);
    assert_eq!(counts.get(), (1, 1));
    assert_eq!(with("authorization", "Bearer other"), 201);
    assert_eq!(counts.get(), (2, 2), "another client's keys are independent");
}

#[test]
fn rejects_invalid_keys_and_missing_required_keys() {
    let (client, counts) = app(Idempotency::new(MemoryIdempotencyStore::new()).required());
    let long = format!("\"{}\"", "k".repeat(256));
    for key in ["\"\"", "", "\"a", "a b", long.as_str()] {
        let refused = post(&client, key, "falcon");
        assert_eq!(
            (refused.status().as_u16(), refused.text().as_str()),
            (400, "form: invalid-idempotency-key")
        );
    }
    let duplicate =
        client.post("/orders").header("idempotency-key", "a").header("idempotency-key", "a");
    assert_eq!(duplicate.send_blocking().status(), 400);
    let missing = client.post("/orders").body("falcon").send_blocking();
    assert_eq!(missing.text(), "form: idempotency-key-missing");
    assert_eq!(client.get("/orders").send_blocking().status(), 200);
    assert_eq!(counts.get(), (0, 0));
}

#[test]
fn a_concurrent_repeat_gets_a_conflict() {
    run(async {
        let (client, counts) = client();
        let send = |client: &TestClient, body| {
            client.post("/orders").header("idempotency-key", "\"a\"").body(body).send()
        };
        let first = spawn_local(send(&client, "slow"));
        sleep(SECOND / 10).await;
        let second = send(&client, "slow").await;
        assert_eq!((second.status().as_u16(), second.header("retry-after")), (409, Some("1")));
        assert_eq!(send(&client, "other").await.status(), 422, "the request is a different one");
        assert_eq!(first.await.expect("the task ends").text(), "order 1: slow");
        assert_eq!(send(&client, "slow").await.text(), "order 1: slow");
        assert_eq!(counts.get(), (1, 1));
    });
}

#[test]
fn a_request_with_a_key_finishes_after_a_disconnect() {
    run(async {
        let (client, counts) = client();
        let send = || client.post("/orders").header("idempotency-key", "\"a\"").body("slow").send();
        let timed_out = tokio::time::timeout(SECOND / 10, send()).await;
        assert!(timed_out.is_err() && counts.get() == (1, 0));
        assert_eq!(send().await.status(), 409, "the request is in progress");
        sleep(SECOND).await;
        let again = send().await;
        assert_eq!((again.text().as_str(), counts.get()), ("order 1: slow", (1, 1)));
        // Without a key, the handler stops with its client.
        let request = client.post("/orders").body("slow").send();
        assert!(tokio::time::timeout(SECOND / 10, request).await.is_err());
        sleep(10 * SECOND).await;
        assert_eq!(counts.get(), (2, 1));
    });
}

#[test]
fn a_handler_that_panicked_is_not_called_again() {
    for body in ["panic", "stream"] {
        let (client, counts) = client();
        let panicked = std::panic::catch_unwind(Safe(|| post(&client, "\"a\"", body)));
        assert!(panicked.is_err(), "the panic reaches the server");
        let again = post(&client, "\"a\"", body);
        let (status, text) = (again.status().as_u16(), again.text());
        assert_eq!((status, text.as_str()), (500, "form: internal-error"), "{body}");
        assert_eq!(counts.get().0, 1);
    }
}

#[test]
fn errors_are_stored_unless_they_mean_that_nothing_was_done() {
    let (client, counts) = client();
    for calls in 1..3 {
        assert_eq!(post(&client, "\"busy\"", "busy").status(), 429);
        assert_eq!(counts.get().0, calls);
    }
    for _ in 0..2 {
        assert_eq!(post(&client, "\"fail\"", "fail").status(), 502);
        assert_eq!(counts.get().0, 3);
        let refused = client.post("/refused").header("idempotency-key", "\"r\"").send_blocking();
        assert_eq!((refused.status().as_u16(), refused.text().as_str()), (409, "form: sold-out"));
    }
}

#[test]
fn a_response_over_the_limit_is_sent_but_not_stored() {
    let (client, counts) = client();
    assert_eq!(post(&client, "\"a\"", "long").text().len(), 1000);
    let again = post(&client, "\"a\"", "long");
    assert_eq!(
        (again.status().as_u16(), again.text().as_str()),
        (409, "form: response-not-stored")
    );
    assert_eq!(counts.get().0, 1);
}

#[test]
fn a_body_over_its_limit_claims_no_key() {
    let (client, counts) = client();
    let long = client.patch("/orders").header("idempotency-key", "\"a\"").body("y".repeat(3 << 20));
    assert_eq!(long.send_blocking().status(), 413);
    assert_eq!(post(&client, "\"a\"", "falcon").status(), 201);
    assert_eq!(counts.get(), (1, 1));
}

#[test]
fn keys_are_scoped_by_api_key_and_bound_to_a_host() {
    let (client, counts) = client();
    let with = |name: &str, value: &str| {
        let request = client.post("/orders").header("idempotency-key", "\"a\"").body("falcon");
        request.header(name, value).send_blocking().status().as_u16()
    };
    assert_eq!((with("x-api-key", "ali"), with("x-api-key", "eve")), (201, 201));
    assert_eq!(counts.get(), (2, 2), "each client has its own keys");
    let several = |values: [&[u8]; 2]| {
        let request = client.post("/orders").header("idempotency-key", "\"b\"").body("falcon");
        let request = request.header("x-api-key", values[0]).header("x-api-key", values[1]);
        request.send_blocking().status().as_u16()
    };
    for values in [[&b"shared"[..], b"ali"], [b"shared", b"eve"], [b"\xfc", b""], [b"\xf6", b""]] {
        assert_eq!(several(values), 201);
    }
    assert_eq!(counts.take(), (6, 6), "each value of each field counts, as it was sent");
    counts.set((2, 2));
    assert_eq!((with("host", "a.example"), with("host", "A.example")), (201, 201));
    assert_eq!(with("host", "b.example"), 422, "another host makes it a different request");
    assert_eq!(counts.get(), (3, 3));
}

/// A guard may select the route by the scheme, and a gateway's prefix may name the tenant.
#[test]
fn keys_are_bound_to_the_scheme_and_the_prefix() {
    let (client, counts) = client();
    let proxies = TrustedProxies::hops(1).x_forwarded_prefix();
    let client = client.with_trusted_proxies(proxies);
    let with = |name: &str, value: &str| {
        let request = client.post("/orders").header("idempotency-key", "\"a\"").body("falcon");
        request.header(name, value).send_blocking().status().as_u16()
    };
    assert_eq!(with("x-forwarded-proto", "https"), 201);
    assert_eq!(with("x-forwarded-proto", "https"), 201);
    assert_eq!(with("x-forwarded-proto", "http"), 422);
    let with_prefix = |prefix: &str| {
        let request = client.post("/orders").header("idempotency-key", "\"b\"").body("falcon");
        request.header("x-forwarded-prefix", prefix).send_blocking().status().as_u16()
    };
    assert_eq!((with_prefix("/ali"), with_prefix("/ali"), with_prefix("/bob")), (201, 201, 422));
    assert_eq!(counts.get(), (2, 2));
}

#[test]
fn responses_with_401_or_retry_after_free_the_key() {
    let (client, counts) = client();
    for calls in 1..3 {
        assert_eq!(post(&client, "\"full\"", "full").status(), 503);
        assert_eq!(counts.get().0, calls);
    }
    for calls in 3..5 {
        assert_eq!(post(&client, "\"who\"", "who").status(), 401);
        assert_eq!(counts.get().0, calls);
    }
    for calls in 5..7 {
        assert_eq!(post(&client, "\"locked\"", "locked").status(), 409);
        assert_eq!(counts.get().0, calls);
    }
    for _ in 0..2 {
        assert_eq!(post(&client, "\"down\"", "down").status(), 503);
        assert_eq!(counts.get().0, 7, "the handler may have done something");
    }
}

#[test]
fn nested_middleware_executes_a_request_once() {
    let store = MemoryIdempotencyStore::new();
    let middleware = || Idempotency::new(store.clone());
    let app = App::new()
        .wrap(middleware())
        .scope("/s", |scope| scope.wrap(middleware().required()).post("/", || "done"));
    let client = app.test();
    let send = || client.post("/s").header("idempotency-key", "\"a\"").send_blocking();
    assert_eq!(send().text(), "done");
    let again = send();
    assert_eq!(
        (again.text().as_str(), again.header("idempotent-replayed")),
        ("done", Some("true"))
    );
}

/// Removes the extensions of requests, as a proxy between two applications would.
struct RemoveExtensions;

impl Middleware for RemoveExtensions {
    async fn run<N: Service>(&self, mut request: Request, next: &N) -> Response {
        request.parts.extensions_mut().clear();
        next.call(request).await
    }
}

/// The inner middleware cannot know that the outer one has claimed the key. The request is never
/// executed, and no response says that it was.
#[test]
fn nested_middleware_that_rejects_a_request_does_not_count_as_its_outcome() {
    let store = MemoryIdempotencyStore::new();
    let middleware = || Idempotency::new(store.clone());
    let app = App::new()
        .wrap(middleware())
        .wrap(RemoveExtensions)
        .scope("/s", |scope| scope.wrap(middleware()).post("/", || "done"));
    let client = app.test();
    for _ in 0..2 {
        let response = client.post("/s").header("idempotency-key", "\"a\"").send_blocking();
        assert_eq!(response.status(), 409);
        assert!(response.text().contains("request-in-progress"), "{}", response.text());
        assert_eq!(response.header("idempotent-replayed"), None);
    }
}

#[test]
fn stored_outcomes_do_not_retain_their_source_buffers() {
    let (piece, buffer) = crate::compact::testing::slice_of_large_buffer();
    let body = Cell::new(Some(piece));
    let app = App::new().wrap(Idempotency::new(MemoryIdempotencyStore::new()));
    let client = app.post("/", move || Body::from(body.take().unwrap_or_default())).test();
    for _ in 0..2 {
        let response = client.post("/").header("idempotency-key", "\"a\"").send_blocking();
        assert_eq!(response.text(), "xxxxxxxxxx");
    }
    assert_eq!(buffer.strong_count(), 0, "the outcome must not hold its buffer");
}

#[test]
fn replays_are_not_in_a_coding_that_the_client_rejects() {
    use peregrine_compression::Compression;
    let app =
        App::new().wrap(Idempotency::new(MemoryIdempotencyStore::new())).wrap(Compression::new());
    let client = app.post("/", || "words ".repeat(1000)).test();
    let send = |accept: &'static str| {
        let request = client.post("/").header("idempotency-key", "\"a\"");
        request.header("accept-encoding", accept).send_blocking()
    };
    for (accept, replayed) in [("gzip", None), ("identity", Some("true")), ("gzip", Some("true"))] {
        let response = send(accept);
        assert_eq!(response.header("idempotent-replayed"), replayed);
        assert_eq!((response.header("content-encoding"), response.bytes().len()), (None, 6000));
    }
}

#[test]
fn outer_compression_compresses_each_replay_but_never_secrets() {
    use peregrine_compression::{Compression, NoCompression};
    let app =
        App::new().wrap(Compression::new()).wrap(Idempotency::new(MemoryIdempotencyStore::new()));
    let client = app
        .post("/", || "words ".repeat(1000))
        .post("/secret", || (NoCompression, "words ".repeat(1000)))
        .test();
    for (path, coding) in [("/", Some("gzip")), ("/secret", None)] {
        for _ in 0..3 {
            let request = client.post(path).header("idempotency-key", path.replace('/', "k"));
            let response = request.header("accept-encoding", "gzip").send_blocking();
            assert_eq!(response.header("content-encoding"), coding, "{path}");
        }
    }
}

/// Sends the same request with the same key twice. Returns the status of each response, and whether
/// it is a replay.
fn twice(client: &TestClient, headers: &[(&str, &str)]) -> [(u16, bool); 2] {
    [0, 1].map(|_| {
        let request = client.post("/").header("idempotency-key", "\"a\"");
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let response = request.send_blocking();
        (response.status().as_u16(), response.header("idempotent-replayed").is_some())
    })
}

#[test]
fn personal_responses_without_a_scope_are_not_replayed() {
    use peregrine::auth::{ApiKey, ApiKeyLocation, Authenticate, BearerToken};
    use peregrine::session::{Session, SessionManager};
    use peregrine_web::cookies::CookieKeys;
    const REPLAYED: [(u16, bool); 2] = [(200, false), (200, true)];
    const NOT_STORED: [(u16, bool); 2] = [(200, false), (409, false)];
    let idempotency = || Idempotency::new(MemoryIdempotencyStore::new());
    let sessions = || SessionManager::cookie_store(CookieKeys::new(&[7; 32]));
    let handler = async |session: Session| {
        drop(session);
        "yours"
    };
    let sessions_outside =
        App::new().wrap(sessions()).wrap(idempotency()).post("/", handler).test();
    assert_eq!(twice(&sessions_outside, &[]), NOT_STORED);
    assert_eq!(twice(&sessions_outside, &[("authorization", "Bearer app")]), NOT_STORED);
    let scoped =
        idempotency().scope(|parts| parts.head.header("cookie").unwrap_or_default().into());
    let scoped = App::new().wrap(scoped).wrap(sessions()).post("/", handler).test();
    assert_eq!(twice(&scoped, &[("cookie", "session=ali")]), REPLAYED);
    // Identified before the handler runs: by a custom field, and by a field that is part of the
    // scope.
    for (location, name, expected) in [
        (ApiKeyLocation::header("X-Customer"), "x-customer", NOT_STORED),
        (ApiKeyLocation::header("X-API-Key"), "x-api-key", REPLAYED),
    ] {
        let verify = async |ApiKey(key): ApiKey| Some(key);
        let keys = Authenticate::api_key(location, verify);
        let client = App::new().wrap(keys).wrap(idempotency()).post("/", || "yours").test();
        assert_eq!(twice(&client, &[(name, "ali")]), expected, "{name}");
    }
    let token =
        App::new().wrap(idempotency()).post("/", |BearerToken(token): BearerToken| token).test();
    assert_eq!(twice(&token, &[("authorization", "Bearer ali")]), REPLAYED);
    let cookie = || ([("set-cookie", "session=ali")], "welcome");
    let cookie = App::new().wrap(idempotency()).post("/", cookie).test();
    assert_eq!(twice(&cookie, &[]), NOT_STORED);
    assert_eq!(twice(&cookie, &[("authorization", "Bearer ali")]), REPLAYED);
}

/// A body that identifies the client when it is sent.
struct Identifies(RequestHead);

impl http_body::Body for Identifies {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        PrivateResponse::mark_source(&self.0, IdentitySource::Other);
        Poll::Ready(None)
    }
}

#[test]
fn a_response_whose_body_identifies_the_client_is_not_replayed() {
    let body = |request: Request| Body::new(Identifies(request.parts.head.share()));
    let app = App::new().wrap(Idempotency::new(MemoryIdempotencyStore::new())).post("/", body);
    assert_eq!(twice(&app.test(), &[]), [(200, false), (409, false)]);
}

#[test]
fn request_content_is_reserved_while_the_handler_runs() {
    let app = App::new().wrap(Idempotency::new(MemoryIdempotencyStore::new())).post("/", || {
        // The handler does not read the content.
        peregrine_web::memory::reserved().to_string()
    });
    let request = app.test().post("/").header("idempotency-key", "\"a\"");
    let reserved_bytes: usize =
        request.body(vec![b'x'; 100_000]).send_blocking().text().parse().expect("a number");
    assert!(reserved_bytes >= 100_000, "{reserved_bytes}");
    assert_eq!(peregrine_web::memory::reserved(), 0);
}

#[test]
fn a_replay_is_not_stored_for_other_clients() {
    let page = |request: Request| {
        let user = request.header("cookie").unwrap_or("nobody").to_owned();
        ([("cache-control", "max-age=60")], user)
    };
    let idempotency = Idempotency::new(MemoryIdempotencyStore::new()).methods([Method::GET]);
    let cache = crate::Cache::new(crate::CacheStore::new());
    let client = run(async { App::new().wrap(cache).wrap(idempotency).get("/", page).test() });
    let get = |cookie: &str, key: &str| {
        let request = client.get("/");
        let request = if cookie.is_empty() { request } else { request.header("cookie", cookie) };
        let request = if key.is_empty() { request } else { request.header("idempotency-key", key) };
        run(async { request.send().await })
    };
    for key in ["\"a\"", "\"a\"", ""] {
        let response = get("ali", key).into_response();
        let controls = response.headers.iter().filter(|(name, _)| *name == "cache-control");
        let controls: Vec<_> = controls.map(|(_, value)| value.as_bytes()).collect();
        assert!(controls.contains(&&b"private"[..]), "{controls:?}");
        assert_eq!(response.body.as_slice(), Some(&b"ali"[..]));
    }
    assert_eq!(get("", "").text(), "nobody");
    assert_eq!(get("bob", "").text(), "bob");
}
