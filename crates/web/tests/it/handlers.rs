//! Every form of a handler, and how its arguments are extracted.

use http::StatusCode;
use peregrine_web::extract::RouteRequirements;
use peregrine_web::extract::{FromRequest, FromRequestParts};
use peregrine_web::handler::OnDisconnect;
use peregrine_web::{App, Body, Handler, HandlerExt, Parts, Problem, Request, Response, Service};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// The path's length plus `N`, so that arguments can be distinguished.
struct Number<const N: usize>(usize);

impl<const N: usize> FromRequestParts for Number<N> {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        if parts
            .head
            .header_bytes("x-refuse")
            .is_some_and(|value| value == N.to_string().as_bytes())
        {
            return Err(Problem::new(StatusCode::IM_A_TEAPOT, "refused", format!("by {N}")));
        }
        Ok(Self(parts.head.path().len() + N))
    }

    fn require(requirements: &mut RouteRequirements) {
        requirements.state::<[u8; N]>();
    }
}

/// The body as text.
struct Text(String);

impl FromRequest for Text {
    async fn from_request(request: Request) -> Result<Self, Problem> {
        let limit = request.body.limit().unwrap_or(1000);
        let bytes = request.body.collect(limit).await;
        let too_large = |_| Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "large", "Send less.");
        Ok(Self(String::from_utf8(bytes.map_err(too_large)?).expect("the test sends text")))
    }
}

fn sync_text() -> &'static str {
    "sync"
}

async fn async_text() -> &'static str {
    "async"
}

fn sync_with_parts(Number(n): Number<1>) -> String {
    format!("{n}")
}

async fn async_with_parts(Number(n): Number<1>, Number(m): Number<2>) -> String {
    format!("{n} {m}")
}

async fn async_with_body(Number(n): Number<1>, Text(text): Text) -> String {
    format!("{n} {text}")
}

fn sync_with_body(Text(text): Text) -> String {
    text
}

async fn fallible(request: Request) -> Result<&'static str, Problem> {
    match request.method().as_str() {
        "POST" => Ok("fine"),
        _ => Err(Problem::new(StatusCode::CONFLICT, "conflict", "Use POST.")),
    }
}

fn impl_trait() -> impl peregrine_web::IntoResponse {
    StatusCode::ACCEPTED
}

struct Echo;

impl Service for Echo {
    async fn call(&self, request: Request) -> Response {
        Response::new(StatusCode::OK).with_body(request.body)
    }
}

fn call<Args: 'static, Via: 'static>(handler: impl Handler<Args, Via> + 'static) -> (u16, String) {
    // `Number` requires states of these types.
    let app = App::new().state([0u8; 1]).state([0u8; 2]).any("/abc", handler);
    let response = app.test().post("/abc").body("body").send_blocking();
    (response.status().as_u16(), response.text())
}

#[test]
fn functions_and_closures_sync_and_async_are_handlers() {
    let captured = String::from("captured");
    let cloned = captured.clone();
    let borrowed = captured.clone();
    let rows = [
        ("a function", call(sync_text), "sync"),
        ("an async function", call(async_text), "async"),
        ("a function of parts", call(sync_with_parts), "5"),
        ("an async function of parts", call(async_with_parts), "5 6"),
        ("an async function of parts and body", call(async_with_body), "5 body"),
        ("a function of the body", call(sync_with_body), "body"),
        ("an async function with a result", call(fallible), "fine"),
        ("a closure", call(|| "closure"), "closure"),
        ("a closure of an async block", call(|| async { "block" }), "block"),
        ("an async closure", call(async || "async closure"), "async closure"),
        ("a closure that captures", call(move || captured.clone()), "captured"),
        (
            "a closure of an async block that captures",
            call(move || {
                let text = cloned.clone();
                async move { text }
            }),
            "captured",
        ),
        ("an async closure that borrows", call(async move || format!("{borrowed}")), "captured"),
        ("a closure with an argument", call(|Number::<2>(n)| format!("{n}")), "6"),
        ("a closure of parts and body", call(|_: Number<1>, Text(text)| async { text }), "body"),
        ("a service", call(Echo), "body"),
        ("a function pointer", call(sync_text as fn() -> &'static str), "sync"),
    ];
    for (form, (status, text), expected) in rows {
        assert_eq!((status, text.as_str()), (200, expected), "{form}");
    }
    assert_eq!(call(impl_trait), (202, String::new()));
}

#[test]
fn extracts_twelve_arguments_in_order_and_returns_the_first_rejection() {
    #[expect(clippy::too_many_arguments, reason = "the maximum for a handler")]
    async fn twelve(
        Number(a): Number<1>,
        Number(b): Number<2>,
        Number(c): Number<3>,
        Number(d): Number<4>,
        Number(e): Number<5>,
        Number(f): Number<6>,
        Number(g): Number<7>,
        Number(h): Number<8>,
        Number(i): Number<9>,
        Number(j): Number<10>,
        Number(k): Number<11>,
        Text(text): Text,
    ) -> String {
        format!("{:?} {text}", [a, b, c, d, e, f, g, h, i, j, k])
    }
    let app = App::new()
        .state(([0u8; 1], 0))
        .state([0u8; 1])
        .state([0u8; 2])
        .state([0u8; 3])
        .state([0u8; 4])
        .state([0u8; 5])
        .state([0u8; 6])
        .state([0u8; 7])
        .state([0u8; 8])
        .state([0u8; 9])
        .state([0u8; 10])
        .state([0u8; 11])
        .post("/", twelve);
    let client = app.test();
    let response = client.post("/").body("last").send_blocking();
    assert_eq!(response.text(), "[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12] last");
    let response = client.post("/").header("x-refuse", "7").send_blocking();
    assert_eq!(response.status(), 418);
    assert!(response.text().contains("by 7"));
}

#[test]
fn a_problem_of_a_handler_becomes_the_response() {
    let app = App::new().get("/", fallible).post("/", fallible);
    let client = app.test();
    assert_eq!(client.get("/").send_blocking().status(), 409);
    assert_eq!(client.post("/").send_blocking().status(), 200);
}

#[test]
fn options_accumulate_and_the_outer_one_wins() {
    let second = Duration::from_secs(1);
    let app = App::new()
        .get("/plain", sync_text)
        .post(
            "/all",
            async_with_body.run_to_completion().body_limit(3).timeout(second).body_limit(4),
        )
        .get("/closure", (|| async { "x" }).run_to_completion().cancel_on_disconnect())
        .state([0u8; 1]);
    let app = app.build().expect("a valid application");
    let options: Vec<_> = app.routes().map(|route| route.options.clone()).collect();
    assert_eq!(options[0], Default::default());
    assert_eq!(options[1].on_disconnect, OnDisconnect::RunToCompletion);
    assert_eq!(options[1].body_bytes_max, Some(4));
    assert_eq!(options[1].timeout, Some(second));
    assert_eq!(options[2].on_disconnect, OnDisconnect::Cancel);
}

#[test]
fn a_body_limit_applies_to_whole_and_streamed_bodies() {
    let app = App::new().post("/", sync_with_body.body_limit(4));
    let client = app.test();
    assert_eq!(client.post("/").body("four").send_blocking().text(), "four");
    assert_eq!(client.post("/").body("five!").send_blocking().status(), 413);
    assert_eq!(client.post("/").chunks(["fo", "ur"]).send_blocking().text(), "four");
    assert_eq!(client.post("/").chunks(["fi", "ve!"]).send_blocking().status(), 413);
}

#[test]
fn dropping_the_future_drops_a_waiting_handler() {
    struct DropFlag(Rc<Cell<bool>>);
    impl Drop for DropFlag {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    let dropped = Rc::new(Cell::new(false));
    let flag = Rc::clone(&dropped);
    let app = App::new().get("/", move || {
        let flag = DropFlag(Rc::clone(&flag));
        async move {
            std::future::pending::<()>().await;
            drop(flag);
        }
    });
    let client = app.test();
    let mut future = Box::pin(client.get("/").send());
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(future.as_mut().poll(&mut cx).is_pending());
    assert!(!dropped.get());
    drop(future);
    assert!(dropped.get());
}

#[test]
fn a_body_can_be_streamed_in_both_directions_at_once() {
    async fn echo(mut request: Request) -> Response {
        // The first chunk is awaited here, the others while the response is read.
        let first = request.body.next().await.expect("a chunk").expect("no error");
        assert_eq!(first, "a");
        Response::new(StatusCode::OK).with_body(Body::new(request.body))
    }
    let app = App::new().post("/", echo);
    let mut response = app.test().post("/").chunks(["a", "b", "c"]).send_blocking();
    let next = peregrine_web::testing::block_on(response.chunk());
    assert_eq!(next.expect("a chunk").expect("no error"), "b");
    assert_eq!(response.text(), "c");
    assert_eq!(response.text(), "c", "a second read returns the same text");
}
