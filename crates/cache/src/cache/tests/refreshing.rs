//! Newer responses that are fetched beside, and what comes of them.

use super::*;
use peregrine::session::{Session, Sessions};
use peregrine_compression::{Compression, Uncompressed};
use peregrine_web::cookies::CookieKeys;
use std::rc::Rc;

const CONTROL: &str = "public, max-age=10, stale-while-revalidate=600";

#[test]
fn a_page_that_needs_a_session_gets_fresh_again() {
    run(async {
        let made = Count::default();
        let count = Rc::clone(&made);
        let page = move |session: Session| {
            count.set(count.get() + 1);
            drop(session);
            ([("cache-control", CONTROL)], format!("page {}", count.get()))
        };
        let client = App::new()
            .with(Sessions::in_cookies(CookieKeys::new(&[7; 32])))
            .with(Cache::new(CacheStore::new()))
            .get("/", page)
            .test();
        let ask = async || client.get("/").send().await.text();
        for round in 1..4 {
            assert_eq!(ask().await, format!("page {round}"));
            sleep(20 * SECOND).await;
            // A refresh beside has no session.
            assert_eq!(ask().await, format!("page {round}"));
            sleep(SECOND).await;
            assert_eq!(ask().await, format!("page {}", round + 1), "somebody waits for it");
        }
        assert_eq!(made.get(), 4);
    });
}

#[test]
fn what_cannot_be_refreshed_is_not_asked_for_at_every_hit() {
    run(async {
        let asked = Count::default();
        let count = Rc::clone(&asked);
        let page = move || {
            count.set(count.get() + 1);
            let fields = [("cache-control", CONTROL)];
            match count.get() {
                1 => (fields, "page").into_response(),
                _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            }
        };
        let client = App::new().with(Cache::new(CacheStore::new())).get("/", page).test();
        let ask = async || client.get("/").send().await.text();
        assert_eq!(ask().await, "page");
        sleep(20 * SECOND).await;
        for _ in 0..100 {
            assert_eq!(ask().await, "page");
            sleep(SECOND / 10).await;
        }
        // In ten seconds two times beside and two times for somebody.
        assert_eq!(asked.get(), 1 + 4);
    });
}

#[test]
fn head_refreshes_nothing() {
    run(async {
        let made = Count::default();
        let count = Rc::clone(&made);
        let page = move || {
            count.set(count.get() + 1);
            ([("cache-control", CONTROL)], "page")
        };
        let app = App::new().with(Cache::new(CacheStore::new())).get("/", page);
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
fn what_must_not_be_compressed_is_not_when_it_comes_from_the_cache() {
    run(async {
        let page = |request: Request| {
            let fields = [("cache-control", "max-age=10"), ("etag", "\"1\"")];
            match request.header("if-none-match") {
                Some(_) => (StatusCode::NOT_MODIFIED, fields).into_response(),
                None => (Uncompressed, fields, "secret ".repeat(1000)).into_response(),
            }
        };
        let app = App::new().with(Compression::new()).with(Cache::new(CacheStore::new()));
        let client = app.get("/", page).test();
        for age in [None, Some("0"), None, Some("0")] {
            let response = client.get("/").header("accept-encoding", "gzip").send().await;
            // What was validated has an age of its own again.
            assert_eq!(response.header("content-encoding"), None, "{age:?}");
            assert_eq!(response.bytes().len(), 7000);
            sleep(if age.is_some() { 20 * SECOND } else { Duration::ZERO }).await;
        }
    });
}
