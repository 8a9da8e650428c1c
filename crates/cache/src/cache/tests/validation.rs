//! Revalidation of stale responses.

use super::sharing::{cached, page_of};
use super::*;
use http::HeaderValue;
use std::cell::RefCell;

const CONTROL: (&str, &str) = ("cache-control", "max-age=10");

/// The conditions that the handler received: `If-None-Match` and `If-Modified-Since`.
type Conditions = Rc<RefCell<Vec<(String, String)>>>;

/// A page with `fields`. It answers any condition with a 304 that has the fields from `update`.
fn tagged(
    fields: &'static [(&'static str, &'static str)],
    update: impl Fn(u32) -> Vec<(&'static str, &'static str)> + 'static,
) -> (TestClient, Conditions) {
    let received = Conditions::default();
    let recorder = Rc::clone(&received);
    let (client, _) = page_of(cached, move |number, parts| {
        let text = |name| parts.head.header(name).unwrap_or_default().to_owned();
        let conditions = (text("if-none-match"), text("if-modified-since"));
        let is_conditional = !conditions.0.is_empty() || !conditions.1.is_empty();
        recorder.borrow_mut().push(conditions);
        let mut response = match is_conditional {
            true => StatusCode::NOT_MODIFIED.into_response(),
            false => format!("page {number}").into_response(),
        };
        let fields = if is_conditional { update(number) } else { fields.to_vec() };
        for (name, value) in fields {
            let value = HeaderValue::from_static(value);
            response.headers.insert(HeaderName::from_static(name), value);
        }
        response
    });
    (client, received)
}

#[test]
fn a_304_freshens_the_stored_response() {
    run(async {
        const FIELDS: &[(&str, &str)] = &[
            CONTROL,
            ("etag", "\"1\""),
            ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
            ("x-old", "stays"),
        ];
        let update =
            |_| vec![CONTROL, ("etag", "W/\"1\""), ("x-new", "comes"), ("content-type", "a/b")];
        let (client, received) = tagged(FIELDS, update);
        assert_eq!(client.get("/a").send().await.text(), "page 1");
        // A 304 suffices however old the response is.
        for round in 1..4 {
            sleep(1000 * SECOND).await;
            let not_modified = client.get("/a").header("if-none-match", "\"1\"").send().await;
            assert_eq!(
                (not_modified.status().as_u16(), not_modified.header("etag")),
                (304, Some("\"1\""))
            );
            let again = client.get("/a").send().await;
            assert_eq!((again.text().as_str(), again.header("age")), ("page 1", Some("0")));
            assert_eq!(again.header("content-type"), Some("text/plain; charset=utf-8"));
            assert_eq!(
                (again.header("x-old"), again.header("x-new")),
                (Some("stays"), Some("comes"))
            );
            assert_eq!(received.borrow().len(), 1 + round, "the response is fresh again");
        }
        let conditions = ("\"1\"".to_owned(), "Sun, 06 Nov 1994 08:49:37 GMT".to_owned());
        assert!(
            received.borrow()[1..].iter().all(|received| *received == conditions),
            "{received:?}"
        );
    });
}

#[test]
fn fetches_the_full_response_without_a_matching_tag() {
    run(async {
        let (client, received) = tagged(&[CONTROL], |_| vec![CONTROL]);
        assert_eq!(client.get("/a").send().await.text(), "page 1");
        sleep(20 * SECOND).await;
        let response = client.get("/a").header("if-none-match", "\"of the client's\"").send().await;
        assert_eq!(response.text(), "page 2");
        assert_eq!(received.borrow()[1], (String::new(), String::new()));

        let (client, received) = tagged(&[CONTROL, ("etag", "\"1\"")], |_| vec![("etag", "\"2\"")]);
        assert_eq!(client.get("/a").send().await.text(), "page 1");
        sleep(20 * SECOND).await;
        assert_eq!(
            client.get("/a").send().await.text(),
            "page 3",
            "the 304 was about another state"
        );
        assert_eq!(received.borrow().len(), 3);
    });
}

#[test]
fn a_304_may_forbid_further_storing() {
    run(async {
        let update = |_| vec![("cache-control", "private"), ("etag", "\"1\"")];
        let (client, received) = tagged(&[CONTROL, ("etag", "\"1\"")], update);
        assert_eq!(client.get("/a").send().await.text(), "page 1");
        sleep(20 * SECOND).await;
        let last = client.get("/a").send().await;
        let both = (last.text(), last.header("cache-control"));
        assert_eq!((both.0.as_str(), both.1), ("page 1", Some("private")));
        assert_eq!(client.get("/a").send().await.text(), "page 3");
        assert_eq!(
            received.borrow()[2],
            (String::new(), String::new()),
            "there is nothing to validate"
        );
    });
}

#[test]
fn concurrent_requests_share_one_revalidation() {
    run(async {
        const FIELDS: &[(&str, &str)] =
            &[("cache-control", "max-age=10, stale-while-revalidate=50"), ("etag", "\"1\"")];
        let (client, received) = tagged(FIELDS, |_| vec![]);
        assert_eq!(client.get("/a").send().await.text(), "page 1");
        sleep(20 * SECOND).await;
        assert_eq!(client.get("/a").send().await.header("age"), Some("20"));
        sleep(SECOND).await;
        let again = client.get("/a").send().await;
        assert_eq!((again.text().as_str(), again.header("age")), ("page 1", Some("1")));
        assert_eq!(received.borrow().len(), 2);
        sleep(100 * SECOND).await;
        let requests: Vec<_> = (0..5).map(|_| spawn_local(client.get("/a").send())).collect();
        for request in requests {
            assert_eq!(request.await.expect("the task ends").text(), "page 1");
        }
        assert_eq!(received.borrow().len(), 3);
    });
}

#[test]
fn tags_of_an_inner_etag_revalidate_stored_responses() {
    run(async {
        let store = CacheStore::new();
        let cache = Cache::new(store.clone());
        let client = App::new()
            .wrap(cache)
            .wrap(crate::Etag::new())
            .get("/a", || ([CONTROL], "page"))
            .test();
        assert_eq!(client.get("/a").send().await.text(), "page");
        sleep(20 * SECOND).await;
        assert_eq!(client.get("/a").send().await.text(), "page");
        let stats = store.stats();
        assert_eq!((stats.revalidated, stats.misses, stats.entries), (1, 2, 1));
    });
}
