//! Tests of the test client: the requests that it sends, and the responses that it returns.

use peregrine_web::connection::{ConnectionAddr, ConnectionInfo};
use peregrine_web::extract::RawQuery;
use peregrine_web::testing::{TestRequest, block_on};
use peregrine_web::{App, Body, HandlerExt, Problem, Request, RequestHead, Response};
use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Responds with the received request as text.
async fn mirror(mut request: Request) -> String {
    let mut text = format!("{} {}\n", request.method(), request.path());
    for (name, value) in request.parts.head.headers() {
        let part = |bytes| String::from_utf8_lossy(bytes).into_owned();
        text.push_str(&format!("{}: {}\n", part(name), part(value)));
    }
    while let Some(chunk) = request.body.next().await {
        text.push_str(&String::from_utf8_lossy(&chunk.expect("no error")));
    }
    text
}

#[test]
fn sends_requests_as_specified() {
    let client = App::new().any("/{*rest}", mirror).test();
    let rows: [(TestRequest, &str); 6] = [
        (client.get("/a?b=c"), "GET /a\nhost: test.example\n"),
        (client.delete("/a").header("Host", "b"), "DELETE /a\nHost: b\n"),
        (
            client.put("/a").header("x", "1").header("x", "2").body("text"),
            "PUT /a\nhost: test.example\nx: 1\nx: 2\ncontent-length: 4\ntext",
        ),
        (
            client.post("/a").json(&["x"]),
            "POST /a\nhost: test.example\ncontent-type: application/json\ncontent-length: 5\n[\"x\"]",
        ),
        (
            client.patch("/a").form(&[("k", "v w")]),
            "PATCH /a\nhost: test.example\ncontent-type: application/x-www-form-urlencoded\n\
             content-length: 5\nk=v+w",
        ),
        (
            client.post("/a").chunks(["one ", "two"]),
            "POST /a\nhost: test.example\ntransfer-encoding: chunked\none two",
        ),
    ];
    for (request, expected) in rows {
        assert_eq!(request.send_blocking().text(), expected);
    }
}

#[test]
#[should_panic(expected = "GET /a b: a server would not accept this")]
fn a_request_that_is_not_http_fails_the_test() {
    let _ = App::new().test().get("/a b").send_blocking();
}

#[test]
#[should_panic(expected = "GET /{x (")]
fn an_invalid_application_fails_the_test_with_its_errors() {
    let _ = App::new().get("/{x", || "x").test();
}

#[test]
fn the_application_sees_the_connection_info_of_the_client() {
    let address = "192.0.2.1:99".parse().expect("an address");
    let connection =
        ConnectionInfo { peer: ConnectionAddr::Tcp(address), ..ConnectionInfo::default() };
    let app =
        App::new().get("/", async |request: Request| request.parts.connection().peer.to_string());
    assert_eq!(
        app.test().with_connection(connection).get("/").send_blocking().text(),
        "192.0.2.1:99"
    );
}

#[test]
fn reads_a_streamed_response_chunk_by_chunk() {
    struct Three(u8);
    impl futures_core::Stream for Three {
        type Item = Result<String, std::io::Error>;
        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> Poll<Option<Self::Item>> {
            self.0 += 1;
            Poll::Ready((self.0 <= 3).then(|| Ok(self.0.to_string())))
        }
    }
    let app = App::new()
        .get("/", || Response::new(http::StatusCode::OK).with_body(Body::from_stream(Three(0))));
    let client = app.test();
    block_on(async {
        let mut response = client.get("/").send().await;
        assert_eq!(response.chunk().await.expect("a chunk").expect("no error"), "1");
        assert_eq!(response.collect().await.expect("no error"), "23");
        assert_eq!(response.text(), "23");
    });
    assert_eq!(client.get("/").send_blocking().json::<u8>(), 123);
}

#[test]
fn a_handler_that_waits_for_another_thread_wakes_the_test() {
    let app = App::new().get("/", async || {
        let started = Cell::new(false);
        poll_fn(|cx| {
            if started.replace(true) {
                return Poll::Ready("woken");
            }
            let waker = cx.waker().clone();
            std::thread::spawn(move || waker.wake());
            Poll::Pending
        })
        .await
    });
    assert_eq!(app.test().get("/").send_blocking().text(), "woken");
}

#[test]
fn a_route_that_exceeds_its_timeout_gets_a_503() {
    struct DropFlag(Rc<Cell<bool>>);
    impl Drop for DropFlag {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    let dropped = Rc::new(Cell::new(false));
    let flag = Rc::clone(&dropped);
    let never = async move || {
        let _flag = DropFlag(Rc::clone(&flag));
        std::future::pending::<()>().await;
    };
    let limit = Duration::from_millis(1);
    let app = App::new()
        .get("/never", never.timeout(limit))
        .get("/at-once", (async || "at once").timeout(Duration::ZERO))
        .fallback((async || std::future::pending::<()>().await).timeout(limit));
    let client = app.test();
    let response = client.get("/never").send_blocking();
    assert_eq!((response.status().as_u16(), dropped.get()), (503, true));
    assert_eq!(response.json::<serde_json::Value>()["type"], "/problems/handler-timeout");
    assert_eq!(client.get("/nothing").send_blocking().status(), 503);
    // A response that is ready at the first poll is never late.
    assert_eq!(client.get("/at-once").send_blocking().text(), "at once");
}

#[test]
fn the_503_of_a_timeout_is_rendered_by_the_application() {
    let never = async || std::future::pending::<()>().await;
    let app = App::new()
        .on_problem(|problem: Problem, head: &RequestHead| {
            (problem.status, format!("{} at {}", problem.kind, head.path()))
        })
        .get("/never", never.timeout(Duration::from_secs(3600)));
    // This timer completes immediately.
    let client = app.test().with_timer(|limit| {
        assert_eq!(limit, Duration::from_secs(3600));
        std::future::ready(())
    });
    assert_eq!(client.get("/never").send_blocking().text(), "handler-timeout at /never");
}

#[test]
fn a_response_before_the_timeout_is_returned() {
    let polls = Rc::new(Cell::new(0));
    let counter = Rc::clone(&polls);
    let ready_at_third_poll = async move || {
        let counter = &counter;
        poll_fn(|cx| {
            counter.set(counter.get() + 1);
            cx.waker().wake_by_ref();
            if counter.get() == 3 { Poll::Ready("in time") } else { Poll::Pending }
        })
        .await
    };
    let app = App::new().get("/", ready_at_third_poll.timeout(Duration::from_secs(1)));
    let client = app.test().with_timer(|_| std::future::pending());
    assert_eq!((client.get("/").send_blocking().text().as_str(), polls.get()), ("in time", 3));
}

#[test]
fn headers_are_found_by_their_names_in_any_case() {
    async fn show(request: Request) -> Response {
        let names: Vec<_> = request.headers().map(|(name, _)| name.to_owned()).collect();
        assert_eq!(names, [&b"host"[..], b"X-Own", b"Accept"]);
        let found = ["x-own", "X-OWN", "accept", "ACCEPT", "none"].map(|name| request.header(name));
        assert_eq!(found, [Some("1"), Some("1"), Some("a/b"), Some("a/b"), None]);
        let mut response = Response::new(http::StatusCode::OK)
            .with_header(http::header::VIA, http::HeaderValue::from_static("x"));
        response.headers_mut().append(http::header::VIA, http::HeaderValue::from_static("y"));
        assert_eq!((response.header("Via"), response.headers().len()), (Some("x"), 2));
        response
    }
    let client = App::new().get("/", show).test();
    let response = client.get("/").header("X-Own", "1").header("Accept", "a/b").send_blocking();
    assert_eq!((response.header("VIA"), response.headers().len()), (Some("x"), 2));
}

#[test]
fn stores_cookies_if_enabled_and_shares_them_with_clones() {
    let show_cookie = |request: Request| request.header("cookie").unwrap_or("none").to_owned();
    let set = |RawQuery(query): RawQuery| ([("set-cookie", query.unwrap_or_default())], "");
    let app = || {
        App::new().get("/say", show_cookie).get("/set", set).get("/deep/say", show_cookie).test()
    };
    let plain = app();
    plain.get("/set?a=1").send_blocking().assert_status(200);
    assert_eq!(plain.get("/say").send_blocking().text(), "none");
    let client = app().save_cookies();
    for cookie in ["a=1", "b=2;Path=/deep", "c=3;Secure;HttpOnly"] {
        client.clone().get(&format!("/set?{cookie}")).send_blocking().assert_status(200);
    }
    assert_eq!(client.get("/say").send_blocking().text(), "a=1; c=3");
    assert_eq!(client.get("/deep/say?x").send_blocking().text(), "b=2; a=1; c=3");
    assert_eq!(client.get("/say").header("cookie", "own=1").send_blocking().text(), "own=1");
    assert_eq!(client.get("/say").header("host", "other.test").send_blocking().text(), "none");
    client.get("/set?a=;Max-Age=0").send_blocking().assert_status(200);
    assert_eq!(client.get("/say").send_blocking().text(), "c=3");
}

#[test]
fn follows_redirects_if_enabled() {
    let redirect = |status: u16, location: &'static str| {
        let status = http::StatusCode::from_u16(status).expect("a status");
        move || (status, [("location", location), ("set-cookie", "seen=1; Path=/")])
    };
    let app = || {
        App::new()
            .post("/login", redirect(303, "/home?new"))
            .post("/moved", redirect(308, "login2"))
            .any("/login2", mirror)
            .any("/home", mirror)
            .get("/away", redirect(302, "https://other.test/"))
            .get("/circle", redirect(302, "/circle"))
            .test()
    };
    let plain = app().post("/login").send_blocking();
    assert_eq!((plain.status().as_u16(), plain.redirects()), (303, [].as_slice()));
    let client = app().follow_redirects().save_cookies();
    let home = client.post("/login").json(&1).send_blocking();
    assert_eq!(home.redirects(), ["/home?new"]);
    assert_eq!(home.text(), "GET /home\nhost: test.example\ncookie: seen=1\n");
    let moved = client.post("/moved").body("kept").send_blocking();
    assert_eq!(moved.redirects(), ["/login2"]);
    let expected = "POST /login2\nhost: test.example\ncookie: seen=1\ncontent-length: 4\nkept";
    assert_eq!(moved.text(), expected);
    client.get("/away").send_blocking().assert_status(302);
    client.post("/moved").chunks(["a", "b"]).send_blocking().assert_status(308);
    let circle = std::panic::AssertUnwindSafe(|| client.get("/circle").send_blocking());
    let panic = std::panic::catch_unwind(circle).expect_err("an endless redirect");
    let message = panic.downcast_ref::<String>().expect("a text");
    assert!(message.contains("more than 20 times: /circle -> /circle"), "{message}");
}

#[test]
#[should_panic(expected = "/1/name: expected \"ada\", but it is \"bob\"")]
fn a_different_json_body_fails_the_test_with_the_pointer() {
    let json = r#"[{"name":"ada"},{"name":"bob"}]"#;
    let client =
        App::new().get("/", move || ([("content-type", "application/problem+json")], json));
    let expected = [("name", "ada")];
    let expected = [expected, expected].map(std::collections::BTreeMap::from);
    client.test().get("/").send_blocking().assert_status(200).assert_json(&expected);
}

#[test]
#[should_panic(expected = "the status is 404 Not Found, not 200; the body: {")]
fn a_different_status_fails_the_test_with_the_body() {
    App::new().test().get("/").send_blocking().assert_status(200);
}

#[test]
#[should_panic(expected = "the Content-Type is \"text/plain\", which is not JSON; the body: [1]")]
fn assert_json_rejects_another_content_type() {
    App::new().get("/", || "[1]").test().get("/").send_blocking().assert_json(&[1]);
}
