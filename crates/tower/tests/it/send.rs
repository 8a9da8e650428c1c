//! Layers that require a `Send` service, and layers that move calls and bodies to other threads.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use http_body_util::BodyExt;
use peregrine_tower::{LayerMiddleware, NextService, SendBody, layer};
use peregrine_web::extract::Extension;
use peregrine_web::testing::TestClient;
use peregrine_web::{App, Body, Handler, IntoResponse, Middleware, Request, Response, Service};
use std::cell::Cell;
use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread::ThreadId;
use tokio::sync::{Notify, oneshot};
use tower::Service as _;
use tower::buffer::BufferLayer;
use tower::layer::layer_fn;
use tower::retry::RetryLayer;
use tower_http::catch_panic::CatchPanicLayer;

type TowerRequest = http::Request<SendBody>;
type TowerResponse = http::Response<SendBody>;

/// A runtime on the current thread, like that of a worker.
fn in_runtime<F: Future>(future: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime starts").block_on(future)
}

/// Runs `work` on another thread.
async fn on_other_thread<F>(work: F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || drop(sender.send(in_runtime(work))));
    receiver.await.expect("the other thread does not panic")
}

/// A layer made from an async function whose future must be `Send`, as in tower-sessions.
fn send_layer<F, R>(
    function: F,
) -> LayerMiddleware<impl tower::Layer<NextService, Service = SendService<F>> + Clone>
where
    F: Fn(NextService, TowerRequest) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = TowerResponse> + Send + 'static,
{
    layer(layer_fn(move |inner: NextService| SendService { inner, function: function.clone() }))
}

#[derive(Clone)]
struct SendService<F> {
    inner: NextService,
    function: F,
}

impl<F, R> tower::Service<TowerRequest> for SendService<F>
where
    F: Fn(NextService, TowerRequest) -> R,
    R: Future<Output = TowerResponse> + Send + 'static,
{
    type Response = TowerResponse;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<TowerResponse, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        tower::Service::<TowerRequest>::poll_ready(&mut self.inner, cx)
    }

    fn call(&mut self, request: TowerRequest) -> Self::Future {
        let future = (self.function)(self.inner.clone(), request);
        Box::pin(async move { Ok(future.await) })
    }
}

/// Calls another middleware from its own `run`, so that the other is set up for each request.
struct RunInside<M>(M);

impl<M: Middleware> Middleware for RunInside<M> {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        self.0.run(request, next).await
    }
}

/// A client for `handler` inside the layer, and one for the same layer inside another middleware.
fn clients<M, H, Args, Via>(make: impl Fn() -> M, handler: H) -> [TestClient; 2]
where
    M: Middleware + 'static,
    H: Handler<Args, Via> + Clone + 'static,
    Args: 'static,
    Via: 'static,
{
    let in_app = App::new().wrap(make()).post("/", handler.clone()).test();
    [in_app, App::new().wrap(RunInside(make())).post("/", handler).test()]
}

async fn call(mut inner: NextService, request: TowerRequest) -> TowerResponse {
    let Ok(response) = inner.call(request).await;
    response
}

async fn read(body: SendBody) -> Bytes {
    body.collect().await.expect("a whole body").to_bytes()
}

/// Polls `future` once.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}

/// A stream of a number of one-byte chunks, which counts the chunks it has yielded.
struct CountingStream(usize, Arc<AtomicUsize>);

impl futures_core::Stream for CountingStream {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.0 == 0 {
            return Poll::Ready(None);
        }
        self.0 -= 1;
        self.1.fetch_add(1, Ordering::SeqCst);
        Poll::Ready(Some(Ok(Bytes::from_static(b"x"))))
    }
}

/// An iterator over a number of large chunks, which counts the chunks it has yielded.
struct CountingIter(usize, Arc<AtomicUsize>);

impl Iterator for CountingIter {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        self.0 = self.0.checked_sub(1)?;
        self.1.fetch_add(1, Ordering::SeqCst);
        Some(Bytes::from_static(&[0; 65536]))
    }
}

/// Sends the id of the thread on which it is dropped.
struct SendThreadOnDrop(Option<oneshot::Sender<ThreadId>>);

impl Drop for SendThreadOnDrop {
    fn drop(&mut self) {
        let _ = self.0.take().map(|sender| sender.send(current_thread()));
    }
}

fn current_thread() -> ThreadId {
    std::thread::current().id()
}

#[test]
fn a_layer_that_requires_send_wraps_a_handler_that_is_not_send() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let layer = || {
        send_layer(async |inner, request: TowerRequest| {
            let future = is_send(call(is_send(inner), is_send(request)));
            is_send(future.await)
        })
    };
    let count = Rc::new(Cell::new(0));
    let handler = move |body: Bytes| {
        let count = Rc::clone(&count);
        async move {
            tokio::task::yield_now().await;
            count.set(count.get() + 1);
            format!("{} {}", count.get(), body.len())
        }
    };
    in_runtime(async {
        for (requests_before, client) in (0..).step_by(3).zip(clients(layer, handler)) {
            let empty = client.post("/").send().await;
            assert_eq!(empty.text(), format!("{} 0", requests_before + 1));
            let complete = client.post("/").body("abc").send().await;
            assert_eq!(complete.text(), format!("{} 3", requests_before + 2));
            let streamed = client.post("/").chunks(["ab", "cd"]).send().await;
            assert_eq!(streamed.text(), format!("{} 4", requests_before + 3));
        }
    });
}

#[test]
fn extensions_pass_in_both_directions() {
    #[derive(Clone)]
    struct Mark(&'static str);
    let layer = || {
        send_layer(async |inner, mut request: TowerRequest| {
            request.extensions_mut().insert(Mark("in"));
            let mut response = call(inner, request).await;
            let mark = response.extensions().get::<Mark>().map_or("none", |mark| mark.0);
            response.headers_mut().insert("x-mark", HeaderValue::from_static(mark));
            response
        })
    };
    let handler = async |Extension(mark): Extension<Mark>| {
        let mut response = mark.0.into_response();
        response.extensions_mut().insert(Mark("out"));
        response
    };
    for client in clients(layer, handler) {
        let response = client.post("/").send_blocking();
        assert_eq!((response.header("x-mark"), response.text().as_str()), (Some("out"), "in"));
    }
}

#[test]
fn a_call_polled_on_another_thread_runs_its_handler_on_the_requests_thread() {
    let request_thread = current_thread();
    let handler = async move |body: Body| {
        tokio::task::yield_now().await;
        assert_eq!(current_thread(), request_thread);
        // The request's body is returned chunk by chunk.
        body.into_response()
    };
    let all_elsewhere =
        || send_layer(async |inner, request| on_other_thread(call(inner, request)).await);
    let rest_elsewhere = || {
        send_layer(async |inner, request| {
            let mut call = Box::pin(call(inner, request));
            match poll_once(&mut call).await {
                Poll::Ready(response) => response,
                Poll::Pending => on_other_thread(call).await,
            }
        })
    };
    in_runtime(async {
        for client in
            clients(all_elsewhere, handler).into_iter().chain(clients(rest_elsewhere, handler))
        {
            assert_eq!(client.post("/").body("abc").send().await.text(), "abc");
            let mut response = client.post("/").chunks(["ab", "cd"]).send().await;
            assert_eq!(response.collect().await.expect("a whole body"), "abcd");
        }
    });
}

#[test]
fn bodies_can_be_read_on_another_thread() {
    let layer = || {
        send_layer(async |inner, request: TowerRequest| {
            let (parts, body) = request.into_parts();
            let body = on_other_thread(read(body)).await;
            let response = call(inner, TowerRequest::from_parts(parts, body.into())).await;
            let (parts, body) = response.into_parts();
            TowerResponse::from_parts(parts, on_other_thread(read(body)).await.into())
        })
    };
    in_runtime(async {
        for client in clients(layer, async |body: Body| body) {
            for pieces in [&["ab", "cd"][..], &["abc"], &[]] {
                let response = client.post("/").chunks(pieces.to_vec()).send().await;
                assert_eq!(response.text(), pieces.concat());
            }
        }
    });
}

#[test]
fn a_body_can_be_read_on_several_threads_in_turn() {
    let layer = || {
        send_layer(async |inner, request: TowerRequest| {
            let (parts, mut body) = request.into_parts();
            let first = body.frame().await.expect("a frame").expect("no error");
            let (second, body) = on_other_thread(async move {
                let second = body.frame().await.expect("a frame").expect("no error");
                (second, body)
            })
            .await;
            let [first, second] = [first, second].map(|frame| frame.into_data().expect("data"));
            let rest = read(body).await;
            let body = [first, second, rest].concat();
            call(inner, TowerRequest::from_parts(parts, body.into())).await
        })
    };
    in_runtime(async {
        for client in clients(layer, async |body: Bytes| body) {
            let response = client.post("/").chunks(["ab", "cd", "ef", "gh"]).send().await;
            assert_eq!(response.text(), "abcdefgh");
        }
    });
}

#[test]
fn bodies_are_not_read_ahead_on_any_thread() {
    let read_some = async |mut body: SendBody, count: usize| {
        for _ in 0..count {
            body.frame().await.expect("a frame").expect("no error");
        }
        body
    };
    for is_here in [true, false] {
        let yielded_in = Arc::new(AtomicUsize::new(0));
        let yielded_out = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&yielded_in);
        let layer = || {
            let yielded_in = Arc::clone(&counts);
            send_layer(move |inner, request: TowerRequest| {
                let yielded_in = Arc::clone(&yielded_in);
                async move {
                    let (parts, body) = request.into_parts();
                    let partial = read_some(body, 3);
                    let body = if is_here { partial.await } else { on_other_thread(partial).await };
                    let yielded_in = yielded_in.load(Ordering::SeqCst);
                    assert!((3..10).contains(&yielded_in), "{yielded_in} of 100");
                    let response =
                        call(inner, TowerRequest::from_parts(parts, SendBody::default())).await;
                    drop(body);
                    let (parts, body) = response.into_parts();
                    let partial = read_some(body, 2);
                    let body = if is_here { partial.await } else { on_other_thread(partial).await };
                    TowerResponse::from_parts(parts, body)
                }
            })
        };
        let counts = Arc::clone(&yielded_out);
        let handler = move || Body::from_stream(CountingStream(100, Arc::clone(&counts)));
        in_runtime(async {
            for client in clients(layer, handler) {
                yielded_in.store(0, Ordering::SeqCst);
                yielded_out.store(0, Ordering::SeqCst);
                let pieces = CountingIter(100, Arc::clone(&yielded_in));
                let mut response = client.post("/").chunks(pieces).send().await;
                assert_eq!(yielded_out.load(Ordering::SeqCst), 2);
                for count in 3..10 {
                    response.chunk().await.expect("a piece").expect("no error");
                    assert_eq!(yielded_out.load(Ordering::SeqCst), count);
                }
                assert_eq!(response.collect().await.expect("the rest").len(), 91);
            }
        });
    }
}

#[test]
fn a_call_dropped_on_another_thread_drops_its_handler_on_the_requests_thread() {
    let request_thread = current_thread();
    for is_polled_here in [true, false] {
        let (sender, dropped) = oneshot::channel();
        let dropped = Arc::new(Mutex::new(Some(dropped)));
        let started = Arc::new(Notify::new());
        let handler_started = Arc::clone(&started);
        let cancelling_layer = send_layer(move |inner, request| {
            let started = Arc::clone(&started);
            let dropped = dropped.lock().expect("no panic").take().expect("one call");
            async move {
                let mut call = Box::pin(call(inner, request));
                if is_polled_here {
                    assert!(poll_once(&mut call).await.is_pending());
                }
                on_other_thread(async move {
                    tokio::select! {
                        _ = call => unreachable!("the handler never completes"),
                        () = started.notified() => {}
                    }
                })
                .await;
                let drop_thread = dropped.await.expect("the handler is dropped");
                TowerResponse::new((drop_thread == request_thread).to_string().into())
            }
        });
        let sender = Rc::new(Cell::new(Some(sender)));
        let handler = move || {
            let guard = SendThreadOnDrop(sender.take());
            handler_started.notify_one();
            async move {
                let _guard = guard;
                pending::<()>().await;
            }
        };
        let client = App::new().wrap(cancelling_layer).post("/", handler).test();
        in_runtime(async {
            assert_eq!(client.post("/").send().await.text(), "true", "{is_polled_here}");
        });
    }
}

#[test]
fn dropping_a_request_drops_its_handler_and_fails_calls_on_other_threads() {
    let (sender, status) = oneshot::channel();
    let sender = Arc::new(Mutex::new(Some(sender)));
    let waiting_layer = send_layer(move |inner, request| {
        let sender = sender.lock().expect("no panic").take().expect("one call");
        async move {
            on_other_thread(async move {
                let response = call(inner, request).await;
                sender.send(response.status()).expect("the test is waiting");
            })
            .await;
            unreachable!("the request ended earlier")
        }
    });
    let (sender, mut dropped) = oneshot::channel();
    let sender = Cell::new(Some(sender));
    let started = Rc::new(Notify::new());
    let handler_started = Rc::clone(&started);
    let handler = Rc::new(move || {
        let guard = SendThreadOnDrop(sender.take());
        handler_started.notify_one();
        async move {
            let _guard = guard;
            pending::<()>().await;
        }
    });
    let handler = move || handler();
    let client = App::new().wrap(waiting_layer).post("/", handler).test();
    in_runtime(async {
        let request = client.post("/").send();
        tokio::select! {
            _ = request => unreachable!("the handler never completes"),
            () = started.notified() => {}
        }
        assert_eq!(dropped.try_recv(), Ok(current_thread()));
        assert_eq!(status.await, Ok(StatusCode::INTERNAL_SERVER_ERROR));
    });
}

#[test]
fn a_handler_panic_propagates_to_the_layer_on_any_thread() {
    let handler = async |body: String| {
        tokio::task::yield_now().await;
        assert_eq!(body, "calm");
        body
    };
    let local_layer = || layer(CatchPanicLayer::new());
    let remote_layer = || {
        send_layer(async |inner, request| {
            let caught = on_other_thread(async { tokio::spawn(call(inner, request)).await });
            caught.await.unwrap_or_else(|_| TowerResponse::new("caught".into()))
        })
    };
    in_runtime(async {
        for client in clients(local_layer, handler) {
            assert_eq!(client.post("/").body("calm").send().await.text(), "calm");
            assert_eq!(client.post("/").body("wild").send().await.status(), 500);
            assert_eq!(client.post("/").body("calm").send().await.text(), "calm");
        }
        for client in clients(remote_layer, handler) {
            assert_eq!(client.post("/").body("calm").send().await.text(), "calm");
            assert_eq!(client.post("/").body("wild").send().await.text(), "caught");
            assert_eq!(client.post("/").body("calm").send().await.text(), "calm");
        }
    });
}

#[test]
fn each_attempt_of_the_tower_retry_layer_gets_its_own_response() {
    #[derive(Clone)]
    struct RetryPolicy(usize);
    impl tower::retry::Policy<TowerRequest, TowerResponse, Infallible> for RetryPolicy {
        type Future = std::future::Ready<()>;

        fn retry(
            &mut self,
            _: &mut TowerRequest,
            result: &mut Result<TowerResponse, Infallible>,
        ) -> Option<Self::Future> {
            self.0 -= 1;
            let has_failed = result
                .as_ref()
                .is_ok_and(|response| response.status() == StatusCode::SERVICE_UNAVAILABLE);
            (has_failed && self.0 > 0).then(|| std::future::ready(()))
        }

        fn clone_request(&mut self, request: &TowerRequest) -> Option<TowerRequest> {
            let mut clone = TowerRequest::new(SendBody::default());
            *clone.method_mut() = request.method().clone();
            *clone.uri_mut() = request.uri().clone();
            *clone.headers_mut() = request.headers().clone();
            *clone.extensions_mut() = request.extensions().clone();
            Some(clone)
        }
    }
    let attempts = Rc::new(Cell::new(0));
    let handler = move || {
        let attempt = attempts.get() + 1;
        attempts.set(attempt);
        async move {
            tokio::task::yield_now().await;
            let status =
                if attempt % 3 == 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            (status, format!("attempt {attempt}"))
        }
    };
    in_runtime(async {
        for (client, expected) in
            clients(|| layer(RetryLayer::new(RetryPolicy(3))), handler.clone())
                .into_iter()
                .zip(["attempt 3", "attempt 6"])
        {
            let response = client.post("/").send().await;
            assert_eq!((response.status().as_u16(), response.text().as_str()), (200, expected));
        }
        let [client, _] = clients(|| layer(RetryLayer::new(RetryPolicy(2))), handler);
        let response = client.post("/").send().await;
        assert_eq!((response.status().as_u16(), response.text().as_str()), (503, "attempt 8"));
    });
}

#[test]
fn the_tower_buffer_layer_works() {
    in_runtime(async {
        let make = || layer(BufferLayer::<TowerRequest>::new(4));
        for client in clients(make, async |body: Bytes| body) {
            assert_eq!(client.post("/").body("abc").send().await.text(), "abc");
            assert_eq!(client.post("/").chunks(["ab", "cd"]).send().await.text(), "abcd");
        }
    });
}

#[test]
fn a_request_is_not_mistaken_for_one_of_another_thread() {
    // While a request of this thread is inside the layer, the other thread has one with the same
    // number and calls the inner service with this thread's request.
    let lending_layer = || {
        send_layer(async |inner: NextService, request: TowerRequest| {
            let call_parts = Arc::new(Mutex::new(Some((inner, request))));
            let (sender, text) = oneshot::channel();
            std::thread::spawn(move || {
                let borrowing_layer = send_layer(move |_, _| {
                    let (inner, request) =
                        call_parts.lock().expect("no panic").take().expect("one call");
                    call(inner, request)
                });
                let client = App::new().wrap(borrowing_layer).get("/", || "theirs").test();
                drop(sender.send(in_runtime(async { client.get("/").send().await.text() })));
            });
            TowerResponse::new(text.await.expect("a response").into())
        })
    };
    in_runtime(async {
        for client in clients(lending_layer, |body: String| format!("ours: {body}")) {
            assert_eq!(client.post("/").body("abc").send().await.text(), "ours: abc");
        }
    });
}

#[test]
fn a_call_after_the_response_yields_a_500_on_any_thread() {
    for is_here in [true, false] {
        let stored = Arc::new(Mutex::new(Vec::new()));
        let storing_layer = || {
            let stored = Arc::clone(&stored);
            send_layer(move |inner, request| {
                stored.lock().expect("no panic").push((inner, request));
                std::future::ready(TowerResponse::default())
            })
        };
        let clients = clients(storing_layer, || "never");
        in_runtime(async {
            for client in clients {
                assert_eq!(client.post("/").send().await.status(), 200);
                let (inner, request) = stored.lock().expect("no panic").pop().expect("one call");
                let late_call = call(inner, request);
                let response =
                    if is_here { late_call.await } else { on_other_thread(late_call).await };
                assert_eq!(response.status(), 500);
            }
        });
    }
}

#[test]
fn a_body_read_after_its_request_fails_on_any_thread() {
    for is_here in [true, false] {
        let stored = Arc::new(Mutex::new(Vec::new()));
        let storing_layer = || {
            let stored = Arc::clone(&stored);
            send_layer(move |_, request: TowerRequest| {
                stored.lock().expect("no panic").push(request.into_body());
                std::future::ready(TowerResponse::default())
            })
        };
        let clients = clients(storing_layer, || "never");
        in_runtime(async {
            for client in clients {
                drop(client.post("/").chunks(["a", "b"]).send().await);
                let mut body = stored.lock().expect("no panic").pop().expect("one body");
                let late_read =
                    async move { body.frame().await.is_some_and(|frame| frame.is_err()) };
                assert!(if is_here { late_read.await } else { on_other_thread(late_read).await });
            }
        });
    }
}
