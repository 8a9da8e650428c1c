//! Which services each middleware wraps, and in which order.

use http::{HeaderName, HeaderValue, StatusCode};
use peregrine_web::extract::State;
use peregrine_web::middleware::{Middleware, Next, from_fn, optional};
use peregrine_web::{App, Problem, Request, Response, Service};
use std::cell::RefCell;
use std::rc::Rc;

/// The middleware and handlers that ran, in order; cleared before each request.
type Trace = Rc<RefCell<String>>;

/// A middleware that records its name before and after the next service.
struct Recorder(&'static str, Trace);

impl Middleware for Recorder {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        self.1.borrow_mut().push_str(&format!("{}( ", self.0));
        let response = next.call(request).await;
        self.1.borrow_mut().push_str(&format!("){} ", self.0));
        response
    }
}

#[test]
fn middleware_wraps_later_routes_of_its_scope_and_responses_without_a_route() {
    let trace = Trace::default();
    let recorder = |name| Recorder(name, Rc::clone(&trace));
    let handler = |name: &'static str| {
        let trace = Rc::clone(&trace);
        move || trace.borrow_mut().push_str(&format!("{name} "))
    };
    let merged = App::new().wrap(recorder("M")).get("/merged", handler("merged"));
    let app = App::new()
        .get("/bare", handler("bare"))
        .wrap(recorder("A"))
        .get("/a", handler("a"))
        .scope("/s", |scope| {
            scope
                .get("/outside", handler("outside"))
                .wrap(recorder("S"))
                .wrap(recorder("T"))
                .get("/inside", handler("inside"))
                .scope("/deep", |deep| deep.wrap(recorder("D")).get("/", handler("deep")))
        })
        .merge(merged)
        .wrap(recorder("B"))
        .get("/b", handler("b"));
    let client = app.test();
    for (method, target, expected) in [
        ("GET", "/bare", "bare "),
        ("GET", "/a", "A( a )A "),
        ("GET", "/s/outside", "A( outside )A "),
        ("GET", "/s/inside", "A( S( T( inside )T )S )A "),
        ("GET", "/s/deep", "A( S( T( D( deep )D )T )S )A "),
        ("GET", "/merged", "A( M( merged )M )A "),
        ("GET", "/b", "A( B( b )B )A "),
        // A 404 passes through all of the application's own middleware.
        ("GET", "/none", "A( B( )B )A "),
        ("GET", "/s/none", "A( B( )B )A "),
        ("OPTIONS", "*", "A( B( )B )A "),
        // A 405 and the automatic OPTIONS response pass through the middleware of the path's route.
        ("POST", "/s/inside", "A( S( T( )T )S )A "),
        ("OPTIONS", "/s/deep", "A( S( T( D( )D )T )S )A "),
        ("POST", "/bare", ""),
        ("POST", "/merged", "A( M( )M )A "),
    ] {
        trace.borrow_mut().clear();
        let method = http::Method::from_bytes(method.as_bytes()).expect("a token");
        let request = format!("{method} {target}");
        client.request(method, target).send_blocking();
        assert_eq!(*trace.borrow(), expected, "{request}");
    }
}

#[test]
fn a_fallback_runs_inside_all_middleware_of_its_scope() {
    let trace = Trace::default();
    let recorder = |name| Recorder(name, Rc::clone(&trace));
    let app = App::new()
        .fallback(|| "outer")
        .wrap(recorder("A"))
        .scope("/s", |scope| scope.fallback(|| "inner").wrap(recorder("S")).get("/", || "s"));
    let client = app.test();
    assert_eq!(client.get("/s/none").send_blocking().text(), "inner");
    assert_eq!(client.get("/none").send_blocking().text(), "outer");
    assert_eq!(*trace.borrow(), "A( S( )S )A A( )A ");
}

#[test]
fn every_kind_of_function_can_be_middleware() {
    fn add_header(response: Response, name: &'static str) -> Response {
        response.with_field(HeaderName::from_static(name), HeaderValue::from_static("1"))
    }
    async fn plain(request: Request, next: Next<'_>) -> Response {
        add_header(next.run(request).await, "x-plain")
    }
    async fn with_result(request: Request, next: Next<'_>) -> Result<Response, Problem> {
        if request.path() == "/stop" {
            return Err(Problem::new(StatusCode::FORBIDDEN, "stop", "Stop."));
        }
        Ok(add_header(next.run(request).await, "x-result"))
    }
    async fn with_state(State(n): State<u32>, request: Request, next: Next<'_>) -> Response {
        assert_eq!(n, 7);
        add_header(next.run(request).await, "x-state")
    }
    let name = String::from("x-closure");
    let app = App::new()
        .state(7u32)
        .wrap(plain)
        .wrap(with_result)
        .wrap(from_fn(with_state))
        .wrap(from_fn(plain))
        .wrap(optional(None::<Recorder>))
        .wrap(async move |request: Request, next: Next<'_>| {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a token");
            next.run(request).await.with_field(name, HeaderValue::from_static("1"))
        })
        .get("/", || "hello")
        .get("/stop", || "never");
    let client = app.test();
    let response = client.get("/").send_blocking();
    assert_eq!(response.text(), "hello");
    for name in ["x-plain", "x-result", "x-state", "x-closure"] {
        assert_eq!(response.field(name), Some("1"), "{name}");
    }
    let response = client.get("/stop").send_blocking();
    assert_eq!((response.status().as_u16(), response.field("x-plain")), (403, Some("1")));
}

#[test]
fn middleware_can_pass_values_to_handlers() {
    use peregrine_web::extract::Extension;
    async fn identify(mut request: Request, next: Next<'_>) -> Response {
        request.parts.extensions_mut().insert(42u64);
        next.run(request).await
    }
    let app =
        App::new().wrap(identify).get("/", async |Extension(id): Extension<u64>| id.to_string());
    assert_eq!(app.test().get("/").send_blocking().text(), "42");
}
