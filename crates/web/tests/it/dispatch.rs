//! Routing and answering a request does not allocate.

use peregrine_proto::Limits;
use peregrine_proto::h1::{Connection, Event};
use peregrine_slot::FutureSlot;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::extract::{Path, State, StateRef};
use peregrine_web::middleware::{Middleware, Next};
use peregrine_web::{App, Body, BuiltApp, Request, RequestHead, Response, Service};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

thread_local! {
    /// The number of allocations on this thread, which the threads of other tests do not change.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct CountingAllocator;

#[expect(unsafe_code, reason = "only a global allocator can count allocations")]
// SAFETY: every call is passed on unchanged to the system's allocator, which upholds the contract.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller upholds the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `alloc` above got the pointer from the system allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The state that a connection keeps between requests.
struct Server {
    app: BuiltApp,
    slot: FutureSlot,
    connection: Rc<ConnectionInfo>,
}

impl Server {
    fn new(app: App) -> Self {
        let app = app.build().expect("a valid application");
        Self { app, slot: FutureSlot::new(), connection: Rc::default() }
    }

    fn serve(&mut self, bytes: &[u8]) -> Response {
        let limits = Limits::DEFAULT;
        let mut head = RequestHead::from_pool();
        let (consumed, event) = Connection::new(&limits).receive(&limits, bytes, head.index_mut());
        assert!(matches!(event, Event::Head(_)), "{event:?}");
        head.set_bytes(&bytes[..consumed]);
        let target = self.app.find(&mut head, &self.connection);
        let (states, connection) = (Rc::clone(self.app.states()), Rc::clone(&self.connection));
        let request = Request::new(head, Body::empty(), states, connection);
        let mut future = target.call(std::mem::take(&mut self.slot), request);
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(response) = Pin::new(&mut future).poll(&mut cx) else {
            panic!("a handler was not ready at the first poll");
        };
        self.slot = future.into_slot();
        response
    }

    /// The number of allocations for one request, once all pools are filled.
    fn allocations(&mut self, bytes: &[u8], status: u16) -> u64 {
        for _ in 0..3 {
            assert_eq!(self.serve(bytes).status, status);
        }
        let before = ALLOCATIONS.with(Cell::get);
        let response = self.serve(bytes);
        let after = ALLOCATIONS.with(Cell::get);
        drop(response);
        after - before
    }
}

struct Typed;

impl Middleware for Typed {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        next.call(request).await
    }
}

async fn function(request: Request, next: Next<'_>) -> Response {
    next.run(request).await
}

async fn text() -> &'static str {
    "hello"
}

async fn typed(State(n): State<u32>, Path((a, b)): Path<(u32, u32)>) -> &'static str {
    assert_eq!(n + a + b, 12);
    "hello"
}

#[test]
fn a_request_for_static_text_allocates_nothing() {
    let mut server = Server::new(App::new().get("/", text).get("/sync", || "hello"));
    assert_eq!(server.allocations(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", 200), 0);
    assert_eq!(server.allocations(b"GET /sync?x=1 HTTP/1.1\r\nhost: a\r\n\r\n", 200), 0);
}

#[test]
fn extractors_and_middleware_of_both_forms_allocate_nothing() {
    let app = App::new()
        .state(7u32)
        .wrap(Typed)
        .wrap(function)
        .wrap(function)
        .scope("/s", |scope| scope.wrap(Typed).wrap(function).get("/{a}/{b}", typed))
        .fallback(text);
    let mut server = Server::new(app);
    assert_eq!(server.allocations(b"GET /s/2/3 HTTP/1.1\r\nhost: a\r\n\r\n", 200), 0);
    // A request without a route does not allocate either if a fallback answers it.
    assert_eq!(server.allocations(b"GET /none HTTP/1.1\r\nhost: a\r\n\r\n", 200), 0);
    // An extension method may have any length, and is compared in place.
    assert_eq!(server.allocations(b"PURGE /none HTTP/1.1\r\nhost: a\r\n\r\n", 200), 0);
}

#[test]
fn a_merged_route_inside_more_middleware_allocates_nothing() {
    async fn reference(n: StateRef<u32>) -> &'static str {
        assert_eq!(*n, 7);
        "hello"
    }
    let other = App::new().state(7_u32).wrap(function).get("/x", reference);
    let mut server = Server::new(App::new().wrap(Typed).scope("/m", |scope| scope.merge(other)));
    assert_eq!(server.allocations(b"GET /m/x HTTP/1.1\r\nhost: a\r\n\r\n", 200), 0);
}

#[test]
fn a_problem_renderer_does_not_allocate_without_a_problem() {
    let app = App::new().on_problem(|problem, _: &RequestHead| problem.status).get("/", text);
    let mut server = Server::new(app);
    assert_eq!(server.allocations(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", 200), 0);
}
