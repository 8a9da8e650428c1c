//! Clients neither see nor affect each other's responses.

use super::*;
use crate::compact::testing::slice_of_large_buffer;
use bytes::Bytes;
use http::HeaderValue;
use http::header::CACHE_CONTROL;
use peregrine::auth::{ApiKey, ApiKeyLocation, Authenticate, User};
use peregrine::session::{Session, SessionManager};
use peregrine_web::Next;
use peregrine_web::cookies::CookieKeys;
use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::task::{Context, Poll, ready};

/// An application with one page, a function of the request and of the number of calls so far.
pub(super) fn page_of<R: IntoResponse + 'static>(
    configure: impl FnOnce(App) -> App,
    page: impl Fn(u32, Parts) -> R + 'static,
) -> (TestClient, Count) {
    let count = Count::default();
    let calls = Rc::clone(&count);
    let page = move |request: Request| {
        calls.set(calls.get() + 1);
        page(calls.get(), request.parts)
    };
    (configure(App::new()).get("/{name}", page).test(), count)
}

pub(super) fn cached(app: App) -> App {
    app.wrap(Cache::new(CacheStore::new()))
}

#[test]
fn must_revalidate_does_not_make_a_response_shareable() {
    let (client, _, _) = client();
    let send = |control: &str, token: &str| {
        with(&client, &format!("/a?max-age=60&{control}"), "authorization", token).text()
    };
    for control in ["s-maxage=60", "public"] {
        assert_eq!(send(control, "a"), send(control, "b"), "{control}");
    }
    for control in ["must-revalidate", "proxy-revalidate"] {
        assert_ne!(send(control, "a"), send(control, "b"), "{control}");
    }
}

#[test]
fn an_authenticated_client_gets_its_own_response_in_either_order() {
    for (is_outside, control) in
        [(true, None), (true, Some("max-age=60")), (false, None), (false, Some("max-age=60"))]
    {
        let verify = async |ApiKey(key): ApiKey| Some(key);
        let keys = Authenticate::api_key(ApiKeyLocation::header("x-key"), verify);
        let cache = Cache::new(CacheStore::new()).default_ttl(60 * SECOND);
        let app = match is_outside {
            true => App::new().wrap(cache).wrap(keys),
            false => App::new().wrap(keys).wrap(cache),
        };
        let page = move |User(name): User<String>| {
            let mut response = name.into_response();
            if let Some(control) = control {
                response.headers.insert(CACHE_CONTROL, HeaderValue::from_static(control));
            }
            response
        };
        let client = app.get("/me", page).test();
        for name in ["ali", "eve"] {
            let text = with(&client, "/me", "x-key", name).text();
            assert_eq!(text, name, "{is_outside} {control:?}");
        }
    }
}

#[test]
fn a_client_with_a_key_does_not_get_an_anonymous_response() {
    let app = App::new().wrap(Cache::new(CacheStore::new()).default_ttl(60 * SECOND));
    let page = |key: Option<ApiKey>| key.map_or("nobody".to_owned(), |ApiKey(key)| key);
    let client = app.get("/", page).test();
    assert_eq!((get(&client, "/").as_str(), get(&client, "/").as_str()), ("nobody", "nobody"));
    assert_eq!(with(&client, "/", "x-api-key", "ali").text(), "ali");
    assert_eq!(
        client.get("/").send_blocking().header("age"),
        Some("0"),
        "the shared response stays stored"
    );
}

#[test]
fn responses_that_read_a_session_are_not_shared() {
    let counter = Count::default();
    let calls = Rc::clone(&counter);
    // A page with session data, for a client without a session yet.
    let form = move |session: Session| -> Result<String, Problem> {
        calls.set(calls.get() + 1);
        session.insert("token", calls.get())?;
        Ok(format!("token {}", calls.get()))
    };
    let client = App::new()
        .wrap(SessionManager::cookie_store(CookieKeys::new(&[7; 32])))
        .wrap(Cache::new(CacheStore::new()).default_ttl(60 * SECOND))
        .get("/form", form)
        .get("/plain", || "plain")
        .test();
    let both = [get(&client, "/form"), get(&client, "/form")];
    assert_eq!(both, ["token 1", "token 2"]);
    drop(get(&client, "/plain"));
    assert_eq!(
        client.get("/plain").send_blocking().header("age"),
        Some("0"),
        "other pages are stored"
    );
}

#[test]
fn similar_values_of_a_vary_field_are_distinct() {
    let (client, _) = page_of(cached, |_, parts| {
        let values = parts.head.header_values("x-tenant").map(String::from_utf8_lossy);
        let values = format!("{:?}", values.collect::<Vec<_>>());
        ([("cache-control", "max-age=60"), ("vary", "x-tenant")], values)
    });
    let lists: [&[&str]; 8] =
        [&[",a"], &["a"], &["a", "b"], &["a,b"], &["\"a, b\""], &["\"a,b\""], &[""], &[]];
    for values in lists {
        let request = client.get("/a");
        let request =
            values.iter().fold(request, |request, value| request.header("x-tenant", *value));
        assert_eq!(request.send_blocking().text(), format!("{values:?}"));
    }
}

#[test]
fn maximum_durations_do_not_overflow() {
    let forever = Duration::MAX;
    let cache =
        Cache::new(CacheStore::new()).stale_if_error(forever).stale_while_revalidate(forever);
    let (client, _) = app(cache.default_ttl(forever).coalesce_timeout(forever));
    for target in ["/a", "/b?max-age=5", "/c?stale-while-revalidate=5"] {
        assert_eq!(get(&client, target), get(&client, target), "{target}");
    }
}

#[test]
fn nested_caches_with_the_same_store_do_not_deadlock() {
    run(async {
        let store = CacheStore::new();
        let (outer, inner) = (Cache::new(store.clone()), Cache::new(store.clone()));
        let calls = Count::default();
        let counter = Rc::clone(&calls);
        let page = async move |Path(name): Path<String>| {
            sleep(SECOND).await;
            counter.set(counter.get() + 1);
            let control = if name == "private" { "private" } else { "x" };
            ([("cache-control", control)], format!("page {}", counter.get()))
        };
        let client = App::new()
            .wrap(outer)
            .scope("/s", |scope| scope.wrap(inner.default_ttl(60 * SECOND)).get("/{name}", page))
            .test();
        let start = tokio::time::Instant::now();
        for target in ["/s/kept", "/s/private"] {
            let requests: Vec<_> = (0..3).map(|_| spawn_local(client.get(target).send())).collect();
            for request in requests {
                drop(request.await.expect("the task ends"));
            }
        }
        assert!(
            start.elapsed() <= 5 * SECOND,
            "no request waits for itself: {:?}",
            start.elapsed()
        );
        assert_eq!(calls.get(), 4, "one shared response, and one for each client");
        let again = client.get("/s/kept").send().await;
        assert_eq!((again.text().as_str(), again.header("age").is_some()), ("page 1", true));
    });
}

#[derive(Clone)]
struct Customer(&'static str);

async fn find_customer(mut request: Request, next: Next<'_>) -> Response {
    request.parts.extensions_mut().insert(Customer("kestrel"));
    next.run(request).await
}

#[test]
fn a_background_refresh_has_the_extensions_of_its_request() {
    run(async {
        let configure = |app: App| cached(app.wrap(find_customer));
        let (client, count) = page_of(configure, |number, parts| {
            let Some(Customer(name)) = parts.extensions().get::<Customer>() else {
                return StatusCode::INTERNAL_SERVER_ERROR.into_response();
            };
            let control = [("cache-control", "max-age=10, stale-while-revalidate=100")];
            (control, format!("{name} {number}")).into_response()
        });
        let send = async || client.get("/a").send().await.text();
        assert_eq!(send().await, "kestrel 1");
        sleep(20 * SECOND).await;
        assert_eq!(send().await, "kestrel 1");
        sleep(SECOND).await;
        assert_eq!((send().await.as_str(), count.get()), ("kestrel 2", 2));
    });
}

#[test]
fn stored_responses_do_not_retain_their_source_buffers() {
    let buffers = Rc::new(RefCell::new(Vec::new()));
    let recorder = Rc::clone(&buffers);
    let (client, _) = page_of(cached, move |_, _| {
        let ((content, one), (value, other)) = (slice_of_large_buffer(), slice_of_large_buffer());
        recorder.borrow_mut().extend([one, other]);
        let mut response = Response::new(StatusCode::OK).with_body(Body::from(content));
        let value = HeaderValue::from_maybe_shared(value).expect("a value");
        response.headers.insert(HeaderName::from_static("x-a"), value);
        response.headers.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=9"));
        response
    });
    for _ in 0..2 {
        let response = client.get("/a").send_blocking();
        let both = (response.text(), response.header("x-a").unwrap_or_default());
        assert_eq!((both.0.as_str(), both.1), ("xxxxxxxxxx", "xxxxxxxxxx"));
    }
    let buffers = buffers.borrow();
    let alive = buffers.iter().filter(|buffer| buffer.strong_count() > 0).count();
    assert_eq!((buffers.len(), alive), (2, 0), "the stored pieces must not hold their buffers");
}

#[test]
fn a_rejected_client_does_not_evict_a_shared_response() {
    run(async {
        let (client, _) = page_of(cached, |number, parts| {
            let control = [("cache-control", "max-age=10, stale-if-error=1000")];
            match (parts.head.header_bytes("authorization"), number) {
                (Some(_), _) => StatusCode::FORBIDDEN.into_response(),
                (None, 1) => (control, "page").into_response(),
                (None, _) => StatusCode::BAD_GATEWAY.into_response(),
            }
        });
        assert_eq!(client.get("/a").send().await.text(), "page");
        sleep(20 * SECOND).await;
        let refused = client.get("/a").header("authorization", "wrong").send().await;
        assert_eq!(refused.status(), 403);
        assert_eq!(
            client.get("/a").send().await.text(),
            "page",
            "the stale response is still stored"
        );
    });
}

#[test]
fn private_responses_do_not_prevent_storing_a_shared_one() {
    run(async {
        let (client, _, _) = client();
        let target = "/slow?max-age=60";
        let requests = (0..5).map(|number: u32| {
            let request = client.get(target).header("authorization", number.to_string());
            spawn_local(request.send())
        });
        for request in requests.collect::<Vec<_>>() {
            drop(request.await.expect("the task ends"));
        }
        let first = client.get(target).send().await.text();
        assert_eq!(client.get(target).send().await.text(), first, "this response is stored");
    });
}

#[test]
fn a_full_store_remembers_targets_that_are_not_shareable() {
    run(async {
        let store = CacheStore::with_capacity_bytes(5000);
        let (client, _) = app(Cache::new(store.clone()));
        for number in 0..30 {
            drop(client.get(&format!("/p{number}?max-age=60")).send().await);
        }
        // The store has no room for even a small response.
        let pad = "a".repeat(5000 - store.stats().bytes);
        let target = format!("/slow?private&{pad}");
        let send_three = async || {
            let start = tokio::time::Instant::now();
            let spawn_get = || spawn_local(client.get(&target).send());
            for request in [spawn_get(), spawn_get(), spawn_get()] {
                drop(request.await.expect("the task ends"));
            }
            start.elapsed()
        };
        assert!(
            send_three().await >= 2 * SECOND,
            "the requests wait for the first, then call the handler"
        );
        assert!(send_three().await < 2 * SECOND, "the second time, they do not wait");
        assert!(store.stats().bytes <= 5000);
    });
}

#[test]
fn a_stale_response_replaces_a_panic() {
    run(async {
        let (client, _) = page_of(cached, |number, _| {
            assert_eq!(number, 1, "requested by the test");
            ([("cache-control", "max-age=10, stale-if-error=30")], "page")
        });
        assert_eq!(client.get("/a").send().await.text(), "page");
        sleep(20 * SECOND).await;
        assert_eq!(client.get("/a").send().await.text(), "page");
        sleep(30 * SECOND).await;
        let panicked = spawn_local(client.get("/a").send()).await;
        assert!(panicked.is_err(), "the panic reaches the server");
    });
}

/// A body that takes three seconds.
struct Slow(Option<Pin<Box<tokio::time::Sleep>>>);

impl http_body::Body for Slow {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        let Some(sleep) = &mut self.0 else { return Poll::Ready(None) };
        ready!(sleep.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_static(b"slow")))))
    }
}

#[test]
fn the_age_is_measured_from_the_start_of_the_response() {
    run(async {
        let (client, _) = page_of(cached, |_, _| {
            let body = Body::new(Slow(Some(Box::pin(sleep(3 * SECOND)))));
            ([("cache-control", "max-age=60")], body)
        });
        assert_eq!(client.get("/a").send().await.text(), "slow");
        assert_eq!(client.get("/a").send().await.header("age"), Some("3"));
    });
}

#[test]
fn a_concurrent_invalidation_is_never_missed() {
    const CHANGES: u32 = 20_000;
    // A large store, so that an invalidation takes a while.
    let store = CacheStore::with_capacity_bytes(8 << 20);
    let (filler, _) = app(Cache::new(store.clone()));
    for number in 0..500 {
        drop(get(&filler, &format!("/p{number}?max-age=60")));
    }
    // A worker has its own application; the store is shared.
    let (version, is_over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let worker = {
        let (store, version) = (store.clone(), Arc::clone(&version));
        move || {
            let page =
                move |_, _| ([("cache-control", "max-age=60")], version.load(SeqCst).to_string());
            page_of(|app| app.wrap(Cache::new(store)), page).0
        }
    };
    let reader = {
        let (worker, is_over) = (worker.clone(), Arc::clone(&is_over));
        std::thread::spawn(move || {
            let client = worker();
            while !is_over.load(SeqCst) {
                drop(get(&client, "/a"));
            }
        })
    };
    let client = worker();
    let mut missed = 0;
    for change in 1..=CHANGES {
        version.store(change, SeqCst);
        store.invalidate("/a");
        missed += u32::from(get(&client, "/a") != change.to_string());
    }
    is_over.store(true, SeqCst);
    reader.join().expect("the thread ends");
    assert_eq!(missed, 0, "of {CHANGES} changes");
}
