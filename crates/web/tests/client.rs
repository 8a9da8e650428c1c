//! The test client itself: what it sends is what was asked for, and what came back is told.

use peregrine_web::connection::{ConnectionInfo, Peer};
use peregrine_web::test::{TestRequest, block_on};
use peregrine_web::{App, Body, Request, Response};
use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

/// Tells the request as it arrived.
async fn mirror(mut request: Request) -> String {
    let mut text = format!("{} {}\n", request.method(), request.path());
    for (name, value) in request.parts.head.fields() {
        let part = |bytes| String::from_utf8_lossy(bytes).into_owned();
        text.push_str(&format!("{}: {}\n", part(name), part(value)));
    }
    while let Some(piece) = request.body.next().await {
        text.push_str(&String::from_utf8_lossy(&piece.expect("no error")));
    }
    text
}

#[test]
fn requests_arrive_as_they_were_asked_for() {
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
            client.post("/a").pieces(["one ", "two"]),
            "POST /a\nhost: test.example\ntransfer-encoding: chunked\none two",
        ),
    ];
    for (request, expected) in rows {
        assert_eq!(request.send_now().text(), expected);
    }
}

#[test]
#[should_panic(expected = "GET /a b: a server would not accept this")]
fn a_request_that_is_not_http_fails_the_test() {
    let _ = App::new().test().get("/a b").send_now();
}

#[test]
#[should_panic(expected = "GET /{x (")]
fn an_application_that_is_not_right_fails_the_test_with_its_faults() {
    let _ = App::new().get("/{x", || "x").test();
}

#[test]
fn the_application_sees_the_connection_that_the_test_describes() {
    let address = "192.0.2.1:99".parse().expect("an address");
    let connection = ConnectionInfo { peer: Peer::Tcp(address), ..ConnectionInfo::default() };
    let app =
        App::new().get("/", async |request: Request| request.parts.connection().peer.to_string());
    assert_eq!(app.test().on(connection).get("/").send_now().text(), "192.0.2.1:99");
}

#[test]
fn a_streamed_response_is_read_piece_by_piece() {
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
        .get("/", || Response::new(http::StatusCode::OK).with_body(Body::stream(Three(0))));
    let client = app.test();
    block_on(async {
        let mut response = client.get("/").send().await;
        assert_eq!(response.chunk().await.expect("a piece").expect("no error"), "1");
        assert_eq!(response.collect().await.expect("no error"), "23");
        assert_eq!(response.text(), "23");
    });
    assert_eq!(client.get("/").send_now().json::<u8>(), 123);
}

#[test]
fn a_handler_that_waits_for_another_thread_wakes_the_test() {
    let app = App::new().get("/", async || {
        let started = Cell::new(false);
        poll_fn(|context| {
            if started.replace(true) {
                return Poll::Ready("woken");
            }
            let waker = context.waker().clone();
            std::thread::spawn(move || waker.wake());
            Poll::Pending
        })
        .await
    });
    assert_eq!(app.test().get("/").send_now().text(), "woken");
}
