//! A full store: which requests are rejected, for how long, and which keys are still known.

use super::*;
use peregrine_web::cookies::Cookies;
use peregrine_web::extract::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use tracing::field::{Field, Visit};
use tracing::subscriber::NoSubscriber;
use tracing::{Event, Level, Metadata, Subscriber, span};

/// `/page` does not read an identity, `/mine` does; each responds with as many bytes as its request
/// body says.
fn pages(store: &MemoryIdempotencyStore) -> TestClient {
    pages_with(Idempotency::new(store.clone()))
}

fn pages_with(idempotency: Idempotency<MemoryIdempotencyStore>) -> TestClient {
    let content = |body: String| "x".repeat(body.parse().expect("a number"));
    let mine = move |cookies: Cookies, body: String| {
        drop(cookies);
        content(body)
    };
    App::new()
        .wrap(idempotency.retention(100 * SECOND))
        .post("/page", content)
        .post("/mine", mine)
        .test()
}

/// Sends a request with this key from a client with this cookie.
fn send(
    client: &TestClient,
    path: &str,
    user: Option<&str>,
    key: u32,
    length: usize,
) -> TestResponse {
    let request = client.post(path).header("idempotency-key", key.to_string());
    let request = user.into_iter().fold(request, |request, user| request.header("cookie", user));
    request.body(length.to_string()).send_blocking()
}

fn status(response: &TestResponse) -> u16 {
    response.status().as_u16()
}

#[test]
fn anonymous_requests_fill_only_a_quarter_of_the_store() {
    for length in [0, 500, 3000] {
        let store = MemoryIdempotencyStore::new().bytes_max(40_000);
        let client = pages(&store);
        let accepted =
            (0..1000).take_while(|key| status(&send(&client, "/page", None, *key, length)) == 200);
        let accepted = accepted.count();
        assert!((25..=31).contains(&accepted), "keys fill a quarter: {accepted}, {store:?}");
        for key in 2000..2060 {
            assert_eq!(status(&send(&client, "/mine", Some("user=ali"), key, 0)), 200, "{key}");
        }
        assert_eq!(
            status(&send(&client, "/page", None, 3000, 0)),
            503,
            "anonymous requests are still rejected"
        );
        // Finished requests are still known, with or without their response.
        for key in [0, 2000] {
            let (path, user) = if key == 0 { ("/page", None) } else { ("/mine", Some("user=ali")) };
            let again = send(&client, path, user, key, if key == 0 { length } else { 0 });
            let is_known = again.header("idempotent-replayed").is_some() || status(&again) == 409;
            assert!(is_known, "{key}: {}", again.text());
        }
    }
}

#[test]
fn requests_with_an_empty_scope_fill_a_quarter_only() {
    let store = MemoryIdempotencyStore::new().bytes_max(40_000);
    let scope = |parts: &Parts| parts.head.header("cookie").unwrap_or_default().to_owned();
    let client = pages_with(Idempotency::new(store.clone()).scope(scope));
    let accepted =
        (0..1000).take_while(|key| status(&send(&client, "/page", None, *key, 0)) == 200);
    assert!(accepted.count() <= 32, "{store:?}");
    assert_eq!(status(&send(&client, "/page", Some("user=ali"), 2000, 0)), 200);
}

#[test]
fn an_invented_identity_that_no_handler_reads_does_not_count() {
    let store = MemoryIdempotencyStore::new().bytes_max(40_000);
    let client = pages(&store);
    let accepted = (0..1000).take_while(|key| {
        let user = format!("user={key}");
        status(&send(&client, "/page", Some(&user), *key, 0)) == 200
    });
    assert!(accepted.count() <= 32, "{store:?}");
    assert_eq!(status(&send(&client, "/mine", Some("user=ali"), 5000, 0)), 200);
}

#[test]
fn responses_are_evicted_for_keys_but_keys_are_not() {
    let store = MemoryIdempotencyStore::new().bytes_max(20_000);
    let client = pages(&store);
    let user = Some("user=ali");
    for key in 0..20 {
        assert_eq!(status(&send(&client, "/mine", user, key, 2000)), 200, "{key}");
    }
    assert_eq!(
        status(&send(&client, "/mine", user, 0, 2000)),
        409,
        "the oldest response was evicted"
    );
    let last = send(&client, "/mine", user, 19, 2000);
    assert_eq!((status(&last), last.header("idempotent-replayed")), (200, Some("true")));
    let accepted =
        (100..1000).take_while(|key| status(&send(&client, "/mine", user, *key, 0)) == 200);
    assert!((30..60).contains(&accepted.count()), "{store:?}");
    for key in 0..20 {
        assert_eq!(
            status(&send(&client, "/mine", user, key, 2000)),
            409,
            "no key is evicted: {key}"
        );
    }
    assert_eq!(status(&send(&client, "/mine", user, 0, 1)), 422);
}

#[test]
fn strangers_whose_requests_fail_do_not_lock_out_the_users_of_a_route() {
    for users_come_first in [false, true] {
        let store = MemoryIdempotencyStore::new().bytes_max(20_000);
        // The path is read before the cookie, so the handler fails before it reads an identity.
        let pay = |Path(_): Path<u32>, cookies: Cookies| {
            drop(cookies);
            "paid"
        };
        let app = App::new().wrap(Idempotency::new(store.clone())).post("/pay/{amount}", pay);
        let client = app.test();
        let user = Some("user=ali");
        if users_come_first {
            assert_eq!(status(&send(&client, "/pay/3", user, 9000, 0)), 200);
        }
        let is_rejected = |key: u32| status(&send(&client, "/pay/x", None, key, 0)) == 503;
        assert!((0..1000).any(is_rejected), "the strangers' quarter is full");
        assert_eq!(status(&send(&client, "/pay/3", user, 9001, 0)), 200, "{store:?}");
    }
}

#[test]
fn a_panic_of_release_if_leaves_no_key_in_progress() {
    let panics = |_: &Response| panic!("requested by the test");
    let client = App::new()
        .wrap(Idempotency::new(MemoryIdempotencyStore::new()).release_if(panics))
        .post("/", || "done")
        .test();
    let first = std::panic::catch_unwind(Safe(|| send(&client, "/", None, 1, 0)));
    assert!(first.map_or(true, |response| status(&response) == 500));
    let again = send(&client, "/", None, 1, 0);
    assert_eq!((status(&again), again.header("idempotent-replayed")), (500, Some("true")));
}

#[test]
fn responses_to_requests_without_an_identity_are_evicted_first() {
    let store = MemoryIdempotencyStore::new().bytes_max(20_000);
    let client = pages(&store);
    let mine = |key: u32| send(&client, "/mine", Some("user=ali"), key, 2000);
    let anonymous = || send(&client, "/page", None, 1, 1000);
    assert_eq!((status(&mine(0)), status(&anonymous())), (200, 200));
    let evicted = (10..30).find(|key| {
        assert_eq!(status(&mine(*key)), 200, "{key}");
        assert_eq!(status(&mine(0)), 200, "it is older, but has an identity: {key}");
        status(&anonymous()) == 409
    });
    assert!(evicted.is_some(), "{store:?}");
}

#[test]
fn a_response_of_more_than_half_the_store_evicts_no_others() {
    let store = MemoryIdempotencyStore::new().bytes_max(20_000);
    let client = pages(&store);
    let mine = |key: u32, length: usize| send(&client, "/mine", Some("user=ali"), key, length);
    for key in 0..4 {
        assert_eq!(status(&mine(key, 2000)), 200);
    }
    assert_eq!((status(&mine(4, 12_000)), status(&mine(4, 12_000))), (200, 409));
    assert_eq!([0, 1, 2, 3].map(|key| status(&mine(key, 2000))), [200; 4]);
}

#[test]
fn a_full_quarter_reports_the_expiry_of_its_own_keys() {
    run(async {
        let client = pages(&MemoryIdempotencyStore::new().bytes_max(8_000));
        let post = |path: &'static str, key: u32| {
            client.post(path).header("idempotency-key", key.to_string()).body("0")
        };
        let mine = post("/mine", 1000).header("cookie", "user=ali");
        assert_eq!(mine.send().await.status(), 200);
        sleep(30 * SECOND).await;
        for key in 0.. {
            let response = post("/page", key).send().await;
            if response.status() != 200 {
                assert_eq!((key, response.header("retry-after")), (6, Some("100")));
                break;
            }
        }
    });
}

#[test]
fn a_rejected_client_learns_when_a_key_expires() {
    run(async {
        for (path, user) in [("/page", None), ("/mine", Some("user=ali"))] {
            let store = MemoryIdempotencyStore::new().bytes_max(4_000);
            let client = pages(&store);
            let post = |key: u32| {
                let request = client.post(path).header("idempotency-key", key.to_string());
                let request =
                    user.into_iter().fold(request, |request, user| request.header("cookie", user));
                request.body("0").send()
            };
            assert_eq!(post(0).await.status(), 200);
            sleep(30 * SECOND).await;
            let mut key = 1;
            let refused = loop {
                let response = post(key).await;
                key += 1;
                if response.status() != 200 {
                    break response;
                }
            };
            assert_eq!(
                (refused.status().as_u16(), refused.header("retry-after")),
                (503, Some("70"))
            );
            sleep(69 * SECOND).await;
            assert_eq!(post(key).await.status(), 503, "{path}");
            sleep(SECOND).await;
            assert_eq!(post(key).await.status(), 200, "{path}");
            assert_eq!(post(key + 1).await.status(), 503, "one key had expired");
        }
    });
}

/// Counts log messages about full stores.
struct Log(&'static AtomicUsize);

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" && format!("{value:?}").contains("of the store of") {
            self.0.fetch_add(1, SeqCst);
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Log(self.0));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn a_full_store_is_logged_once() {
    static LOGGED: AtomicUsize = AtomicUsize::new(0);
    // With only one subscriber in the process, tracing would ask whether the message is enabled on
    // the thread that logs it first, which may be that of a test without a subscriber.
    let _second = tracing::Dispatch::new(NoSubscriber::default());
    tracing::subscriber::with_default(Log(&LOGGED), || {
        let store = MemoryIdempotencyStore::new().bytes_max(4_000);
        let client = pages(&store);
        let refused = (0..100).filter(|key| status(&send(&client, "/page", None, *key, 0)) == 503);
        assert!(refused.count() > 90);
        assert_eq!(LOGGED.load(SeqCst), 1);
    });
}
