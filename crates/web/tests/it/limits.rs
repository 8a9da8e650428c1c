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
    while let Some(chunk) = body.next().await {
        bytes += chunk?.len();
    }
    Ok("x".repeat(bytes))
}

/// The responses to a body of `length` bytes: sent whole, chunked, and in chunks with a length.
fn send_variants(client: &TestClient, target: &str, length: usize) -> [TestResponse; 3] {
    let body = "x".repeat(length);
    let (start, end) = body.split_at(length / 2);
    let chunks = [start.to_owned(), end.to_owned()];
    let with_length = client.post(target).header("content-length", length.to_string());
    [
        client.post(target).body(body).send_blocking(),
        client.post(target).chunks(chunks.clone()).send_blocking(),
        with_length.chunks(chunks).send_blocking(),
    ]
}

/// Checks that `target` accepts bodies of up to `limit` bytes and rejects larger ones.
fn assert_limit(client: &TestClient, target: &str, limit: usize) {
    for length in [limit - 1, limit, limit + 1, 4 * limit] {
        for (variant, response) in send_variants(client, target, length).iter().enumerate() {
            let expected = if length > limit { 413 } else { 200 };
            assert_eq!(response.status(), expected, "{target}: {length} bytes, variant {variant}");
            if expected == 200 {
                assert_eq!(response.bytes().len(), length, "{target}: variant {variant}");
            } else {
                let problem: serde_json::Value = response.json();
                assert_eq!(problem["limit"], limit, "{target}: variant {variant}");
            }
        }
    }
}

#[test]
fn the_innermost_limit_applies_to_every_kind_of_body() {
    fn client_with<Args: 'static, Via: 'static>(
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
    for client in [client_with(text), client_with(stream)] {
        for (target, limit) in [
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
            assert_limit(&client, target, limit);
        }
    }
}

#[test]
fn the_test_client_has_the_default_limit_of_2_mib() {
    let client = App::new().post("/", text).post("/large", text.body_limit(4 << 20)).test();
    assert_limit(&client, "/", 2 << 20);
    assert_limit(&client, "/large", 4 << 20);
}

#[test]
fn an_unread_body_is_not_checked() {
    let client = App::new().post("/", (|| "unread").body_limit(3)).test();
    for response in send_variants(&client, "/", 100) {
        assert_eq!(response.text(), "unread");
    }
}

#[test]
fn stops_reading_an_endless_body_at_the_limit() {
    struct Endless(Rc<Cell<u32>>);
    impl futures_core::Stream for Endless {
        type Item = &'static str;
        fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<&'static str>> {
            self.0.set(self.0.get() + 1);
            Poll::Ready(Some("xxxx"))
        }
    }
    let polls = Rc::new(Cell::new(0));
    let client = App::new().post("/", text.body_limit(1_000_000)).test();
    let request = client.post("/").stream(Endless(Rc::clone(&polls)));
    assert_eq!(request.send_blocking().status(), 413);
    let chunks_read = polls.get();
    assert!((250_001..260_000).contains(&chunks_read), "{chunks_read} chunks of 4 bytes");
}
