//! Body limits: the innermost limit applies, and is checked as the body is read.

use peregrine_web::testing::{TestClient, TestResponse};
use peregrine_web::{
    App, Body, Handler, HandlerExt, Middleware, Problem, Request, Response, Service,
};
use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// A middleware that sets a body limit.
struct Limit(u64);

impl Middleware for Limit {
    async fn run<S: Service>(&self, mut request: Request, next: &S) -> Response {
        request.body = request.body.limited(self.0);
        next.call(request).await
    }
}

async fn text(text: String) -> String {
    text
}

async fn stream(mut body: Body) -> Result<String, Problem> {
    let mut bytes = 0;
    while let Some(piece) = body.next().await {
        bytes += piece?.len();
    }
    Ok("x".repeat(bytes))
}

/// The responses to a body of `length` bytes: sent whole, chunked, and in chunks with a length.
fn answers(client: &TestClient, target: &str, length: usize) -> [TestResponse; 3] {
    let body = "x".repeat(length);
    let (start, end) = body.split_at(length / 2);
    let pieces = [start.to_owned(), end.to_owned()];
    let announced = client.post(target).header("content-length", length.to_string());
    [
        client.post(target).body(body).send_blocking(),
        client.post(target).chunks(pieces.clone()).send_blocking(),
        announced.chunks(pieces).send_blocking(),
    ]
}

/// Checks that `target` accepts bodies of up to `most` bytes and rejects larger ones.
fn holds(client: &TestClient, target: &str, most: usize) {
    for length in [most - 1, most, most + 1, 4 * most] {
        for (way, response) in answers(client, target, length).iter().enumerate() {
            let expected = if length > most { 413 } else { 200 };
            assert_eq!(response.status(), expected, "{target}: {length} bytes, way {way}");
            if expected == 200 {
                assert_eq!(response.bytes().len(), length, "{target}: way {way}");
            } else {
                let problem: serde_json::Value = response.json();
                assert_eq!(problem["limit"], most, "{target}: way {way}");
            }
        }
    }
}

#[test]
fn the_innermost_limit_counts_whichever_is_larger_and_however_the_body_arrives() {
    fn with_all<Args: 'static, Via: 'static>(
        handler: impl Handler<Args, Via> + Copy + 'static,
    ) -> TestClient {
        App::new()
            .post("/server", handler)
            .post("/route-lowers-server", handler.body_limit(10))
            .post("/route-raises-server", handler.body_limit(400))
            .scope("/lowered", |scope| {
                scope
                    .wrap(Limit(50))
                    .post("/", handler)
                    .post("/route-lowers", handler.body_limit(10))
                    .post("/route-raises", handler.body_limit(70))
                    .post("/route-raises-over-server", handler.body_limit(400))
                    .scope("/in", |scope| scope.wrap(Limit(20)).post("/", handler))
                    .scope("/up", |scope| scope.wrap(Limit(80)).post("/", handler))
                    .fallback(handler.body_limit(30))
            })
            .scope("/raised", |scope| {
                scope
                    .wrap(Limit(300))
                    .post("/", handler)
                    .post("/route-lowers", handler.body_limit(10))
                    .post("/route-raises", handler.body_limit(400))
            })
            .scope("/merged", |scope| {
                let other = App::new().wrap(Limit(60)).post("/", handler);
                scope.wrap(Limit(40)).merge(other.post("/own", handler.body_limit(5)))
            })
            .test()
            .body_limit(100)
    }
    for client in [with_all(text), with_all(stream)] {
        for (target, most) in [
            ("/server", 100),
            ("/route-lowers-server", 10),
            ("/route-raises-server", 400),
            ("/lowered", 50),
            ("/lowered/route-lowers", 10),
            ("/lowered/route-raises", 70),
            ("/lowered/route-raises-over-server", 400),
            ("/lowered/in", 20),
            ("/lowered/up", 80),
            ("/lowered/nothing", 30),
            ("/raised", 300),
            ("/raised/route-lowers", 10),
            ("/raised/route-raises", 400),
            ("/merged", 60),
            ("/merged/own", 5),
        ] {
            holds(&client, target, most);
        }
    }
}

#[test]
fn a_test_keeps_the_servers_limit_of_2_mib() {
    let client = App::new().post("/", text).post("/large", text.body_limit(4 << 20)).test();
    holds(&client, "/", 2 << 20);
    holds(&client, "/large", 4 << 20);
}

#[test]
fn a_body_that_nobody_reads_is_not_judged() {
    let client = App::new().post("/", (|| "unread").body_limit(3)).test();
    for response in answers(&client, "/", 100) {
        assert_eq!(response.text(), "unread");
    }
}

#[test]
fn an_endless_body_is_read_until_it_is_too_large_and_no_further() {
    struct Endless(Rc<Cell<u32>>);
    impl futures_core::Stream for Endless {
        type Item = &'static str;
        fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<&'static str>> {
            self.0.set(self.0.get() + 1);
            Poll::Ready(Some("xxxx"))
        }
    }
    let pieces = Rc::new(Cell::new(0));
    let client = App::new().post("/", text.body_limit(1_000_000)).test();
    let request = client.post("/").stream(Endless(Rc::clone(&pieces)));
    assert_eq!(request.send_blocking().status(), 413);
    let taken = pieces.get();
    assert!((250_001..260_000).contains(&taken), "{taken} pieces of 4 bytes");
}
