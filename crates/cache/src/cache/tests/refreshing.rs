//! Background refreshes and their outcomes.

use super::*;
use peregrine::session::{Session, SessionManager};
use peregrine_compression::{Compression, NoCompression};
use peregrine_web::cookies::CookieKeys;
use std::rc::Rc;

const CONTROL: &str = "public, max-age=10, stale-while-revalidate=600";

#[test]
fn a_page_that_needs_a_session_is_refreshed_in_the_foreground() {
    run(async {
        let calls = Count::default();
        let counter = Rc::clone(&calls);
        let page = move |session: Session| {
            counter.set(counter.get() + 1);
            drop(session);
            ([("cache-control", CONTROL)], format!("page {}", counter.get()))
        };
        let client = App::new()
            .wrap(SessionManager::cookie_store(CookieKeys::new(&[7; 32])))
            .wrap(Cache::new(CacheStore::new()))
            .get("/", page)
            .test();
        let send = async || client.get("/").send().await.text();
        for round in 1..4 {
            assert_eq!(send().await, format!("page {round}"));
            sleep(20 * SECOND).await;
            // A background refresh has no session.
            assert_eq!(send().await, format!("page {round}"));
            sleep(SECOND).await;
            assert_eq!(
                send().await,
                format!("page {}", round + 1),
                "one client waits for the refresh"
            );
        }
        assert_eq!(calls.get(), 4);
    });
}

#[test]
fn failed_refreshes_are_not_retried_on_every_hit() {
    run(async {
        let calls = Count::default();
        let counter = Rc::clone(&calls);
        let page = move || {
            counter.set(counter.get() + 1);
            let fields = [("cache-control", CONTROL)];
            match counter.get() {
                1 => (fields, "page").into_response(),
                _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            }
        };
        let client = App::new().wrap(Cache::new(CacheStore::new())).get("/", page).test();
        let send = async || client.get("/").send().await.text();
        assert_eq!(send().await, "page");
        sleep(20 * SECOND).await;
        for _ in 0..100 {
            assert_eq!(send().await, "page");
            sleep(SECOND / 10).await;
        }
        // In ten seconds there are two background and two foreground attempts.
        assert_eq!(calls.get(), 1 + 4);
    });
}

#[test]
fn only_one_request_waits_for_a_slow_refresh() {
    run(async {
        let calls = Count::default();
        let counter = Rc::clone(&calls);
        let page = move |session: Session| {
            counter.set(counter.get() + 1);
            drop(session);
            let is_first = counter.get() == 1;
            async move {
                if !is_first {
                    sleep(1000 * SECOND).await;
                }
                ([("cache-control", CONTROL)], "page")
            }
        };
        let client = App::new()
            .wrap(SessionManager::cookie_store(CookieKeys::new(&[7; 32])))
            .wrap(Cache::new(CacheStore::new()))
            .get("/", page)
            .test();
        let send = async || {
            let response = tokio::time::timeout(SECOND / 10, client.get("/").send()).await;
            response.is_ok_and(|response| response.text() == "page")
        };
        assert!(send().await);
        sleep(20 * SECOND).await;
        let mut timed_out = 0;
        for _ in 0..100 {
            timed_out += usize::from(!send().await);
            sleep(SECOND / 10).await;
        }
        // In ten seconds, only one or two clients time out, not every second one.
        assert!((1..=2).contains(&timed_out), "{timed_out} of 100 timed out");
        assert_eq!(
            calls.get(),
            1 + timed_out as u32,
            "the other requests do not reach the handler, which needs a session"
        );
    });
}

#[test]
fn a_rejected_client_does_not_prevent_a_refresh() {
    run(async {
        let calls = Count::default();
        let counter = Rc::clone(&calls);
        let page = move |request: Request| {
            if request.header("authorization").is_some() {
                return StatusCode::UNAUTHORIZED.into_response();
            }
            counter.set(counter.get() + 1);
            ([("cache-control", CONTROL)], format!("page {}", counter.get())).into_response()
        };
        let client = App::new().wrap(Cache::new(CacheStore::new())).get("/", page).test();
        assert_eq!(client.get("/").send().await.text(), "page 1");
        sleep(20 * SECOND).await;
        for status in [200, 401, 200, 401, 200, 401] {
            let refused = client.get("/").header("authorization", "Bearer garbage").send().await;
            assert_eq!(refused.status(), status, "first the stale response, then its own");
            sleep(SECOND / 10).await;
        }
        assert_eq!(client.get("/").send().await.text(), "page 1");
        sleep(SECOND / 10).await;
        assert_eq!(client.get("/").send().await.text(), "page 2");
    });
}

#[test]
fn head_does_not_start_a_refresh() {
    run(async {
        let calls = Count::default();
        let counter = Rc::clone(&calls);
        let page = move || {
            counter.set(counter.get() + 1);
            ([("cache-control", CONTROL)], "page")
        };
        let app = App::new().wrap(Cache::new(CacheStore::new())).get("/", page);
        let client = app.on(Method::HEAD, "/", || [("cache-control", CONTROL)]).test();
        assert_eq!(client.get("/").send().await.text(), "page");
        sleep(20 * SECOND).await;
        assert_eq!(client.head("/").send().await.header("age"), Some("20"));
        sleep(SECOND).await;
        let again = client.get("/").send().await;
        assert_eq!((again.text().as_str(), again.header("age")), ("page", Some("21")));
    });
}

#[test]
fn stored_responses_keep_no_compression() {
    run(async {
        let page = |request: Request| {
            let fields = [("cache-control", "max-age=10"), ("etag", "\"1\"")];
            match request.header("if-none-match") {
                Some(_) => (StatusCode::NOT_MODIFIED, fields).into_response(),
                None => (NoCompression, fields, "secret ".repeat(1000)).into_response(),
            }
        };
        let app = App::new().wrap(Compression::new()).wrap(Cache::new(CacheStore::new()));
        let client = app.get("/", page).test();
        for age in [None, Some("0"), None, Some("0")] {
            let response = client.get("/").header("accept-encoding", "gzip").send().await;
            // A revalidated response has a new age.
            assert_eq!(response.header("content-encoding"), None, "{age:?}");
            assert_eq!(response.bytes().len(), 7000);
            sleep(if age.is_some() { 20 * SECOND } else { Duration::ZERO }).await;
        }
    });
}
