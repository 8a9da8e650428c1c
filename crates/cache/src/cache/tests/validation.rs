//! Revalidation of stale responses.

use super::sharing::{cached, page_of};
use super::*;
use http::HeaderValue;
use std::cell::RefCell;

const CONTROL: (&str, &str) = ("cache-control", "max-age=10");

/// The conditions that handlers saw: `If-None-Match` and `If-Modified-Since`.
type Asked = Rc<RefCell<Vec<(String, String)>>>;

/// A page with these fields, which answers matching conditions with a 304 that has the others.
fn tagged(
    fields: &'static [(&'static str, &'static str)],
    news: impl Fn(u32) -> Vec<(&'static str, &'static str)> + 'static,
) -> (TestClient, Asked) {
    let asked = Asked::default();
    let said = Rc::clone(&asked);
    let (client, _) = page_of(cached, move |number, parts| {
        let text = |name| parts.head.header(name).unwrap_or_default().to_owned();
        let conditions = (text("if-none-match"), text("if-modified-since"));
        let is_asked = !conditions.0.is_empty() || !conditions.1.is_empty();
        said.borrow_mut().push(conditions);
        let mut response = match is_asked {
            true => StatusCode::NOT_MODIFIED.into_response(),
            false => format!("page {number}").into_response(),
        };
        let all = if is_asked { news(number) } else { fields.to_vec() };
        for (name, value) in all {
            let value = HeaderValue::from_static(value);
            response.headers.insert(HeaderName::from_static(name), value);
        }
        response
    });
    (client, asked)
}

#[test]
fn a_handler_may_say_that_what_is_kept_is_good_still() {
    run(async {
        const FIELDS: &[(&str, &str)] = &[
            CONTROL,
            ("etag", "\"1\""),
            ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
            ("x-old", "stays"),
        ];
        let news =
            |_| vec![CONTROL, ("etag", "W/\"1\""), ("x-new", "comes"), ("content-type", "a/b")];
        let (client, asked) = tagged(FIELDS, news);
        assert_eq!(client.get("/a").send().await.text(), "page 1");
        // However old the response is.
        for round in 1..4 {
            sleep(1000 * SECOND).await;
            let known = client.get("/a").header("if-none-match", "\"1\"").send().await;
            assert_eq!((known.status().as_u16(), known.header("etag")), (304, Some("\"1\"")));
            let again = client.get("/a").send().await;
            assert_eq!((again.text().as_str(), again.header("age")), ("page 1", Some("0")));
            assert_eq!(again.header("content-type"), Some("text/plain; charset=utf-8"));
            assert_eq!(
                (again.header("x-old"), again.header("x-new")),
                (Some("stays"), Some("comes"))
            );
            assert_eq!(asked.borrow().len(), 1 + round, "the response is fresh again");
        }
        let conditions = ("\"1\"".to_owned(), "Sun, 06 Nov 1994 08:49:37 GMT".to_owned());
        assert!(asked.borrow()[1..].iter().all(|asked| *asked == conditions), "{asked:?}");
    });
}

#[test]
fn what_has_no_tag_or_another_one_is_fetched_as_a_whole() {
    run(async {
        let (client, asked) = tagged(&[CONTROL], |_| vec![CONTROL]);
        assert_eq!(client.get("/a").send().await.text(), "page 1");
        sleep(20 * SECOND).await;
        let sent = client.get("/a").header("if-none-match", "\"of the client's\"").send().await;
        assert_eq!(sent.text(), "page 2");
        assert_eq!(asked.borrow()[1], (String::new(), String::new()));

        let (client, asked) = tagged(&[CONTROL, ("etag", "\"1\"")], |_| vec![("etag", "\"2\"")]);
        assert_eq!(client.get("/a").send().await.text(), "page 1");
        sleep(20 * SECOND).await;
        assert_eq!(
            client.get("/a").send().await.text(),
            "page 3",
            "the 304 was about another state"
        );
        assert_eq!(asked.borrow().len(), 3);
    });
}

#[test]
fn a_304_may_say_that_nothing_is_to_be_kept_any_more() {
    run(async {
        let news = |_| vec![("cache-control", "private"), ("etag", "\"1\"")];
        let (client, asked) = tagged(&[CONTROL, ("etag", "\"1\"")], news);
        assert_eq!(client.get("/a").send().await.text(), "page 1");
        sleep(20 * SECOND).await;
        let last = client.get("/a").send().await;
        let both = (last.text(), last.header("cache-control"));
        assert_eq!((both.0.as_str(), both.1), ("page 1", Some("private")));
        assert_eq!(client.get("/a").send().await.text(), "page 3");
        assert_eq!(
            asked.borrow()[2],
            (String::new(), String::new()),
            "there is nothing to validate"
        );
    });
}

#[test]
fn what_is_validated_beside_or_for_many_is_asked_for_once() {
    run(async {
        const FIELDS: &[(&str, &str)] =
            &[("cache-control", "max-age=10, stale-while-revalidate=50"), ("etag", "\"1\"")];
        let (client, asked) = tagged(FIELDS, |_| vec![]);
        assert_eq!(client.get("/a").send().await.text(), "page 1");
        sleep(20 * SECOND).await;
        assert_eq!(client.get("/a").send().await.header("age"), Some("20"));
        sleep(SECOND).await;
        let again = client.get("/a").send().await;
        assert_eq!((again.text().as_str(), again.header("age")), ("page 1", Some("1")));
        assert_eq!(asked.borrow().len(), 2);
        sleep(100 * SECOND).await;
        let all: Vec<_> = (0..5).map(|_| spawn_local(client.get("/a").send())).collect();
        for one in all {
            assert_eq!(one.await.expect("the task ends").text(), "page 1");
        }
        assert_eq!(asked.borrow().len(), 3);
    });
}

#[test]
fn tags_by_etag_further_in_are_good_for_this_too() {
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
        let counts = store.stats();
        assert_eq!((counts.revalidated, counts.misses, counts.entries), (1, 2, 1));
    });
}
