//! Layers that require a `Send` service, and layers that move calls and bodies to other threads.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use http_body_util::BodyExt;
use peregrine_mount::{LayerMiddleware, NextService, SendBody, layer};
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

type Asked = http::Request<SendBody>;
type Answered = http::Response<SendBody>;

/// A runtime on the current thread, like that of a worker.
fn in_runtime<F: Future>(future: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime starts").block_on(future)
}

/// Runs `work` on another thread.
async fn elsewhere<F>(work: F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || drop(sender.send(in_runtime(work))));
    receiver.await.expect("the other thread does not panic")
}

/// A layer made from an async function whose future must be `Send`, as in tower-sessions.
fn sending<F, R>(
    function: F,
) -> LayerMiddleware<impl tower::Layer<NextService, Service = Sending<F>> + Clone>
where
    F: Fn(NextService, Asked) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Answered> + Send + 'static,
{
    layer(layer_fn(move |inner: NextService| Sending { inner, function: function.clone() }))
}

#[derive(Clone)]
struct Sending<F> {
    inner: NextService,
    function: F,
}

impl<F, R> tower::Service<Asked> for Sending<F>
where
    F: Fn(NextService, Asked) -> R,
    R: Future<Output = Answered> + Send + 'static,
{
    type Response = Answered;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answered, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        tower::Service::<Asked>::poll_ready(&mut self.inner, cx)
    }

    fn call(&mut self, request: Asked) -> Self::Future {
        let answer = (self.function)(self.inner.clone(), request);
        Box::pin(async move { Ok(answer.await) })
    }
}

/// Calls another middleware from its own `run`, so that the other is set up for each request.
struct Always<M>(M);

impl<M: Middleware> Middleware for Always<M> {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        self.0.run(request, next).await
    }
}

/// A client of the layer around a handler, and one of the same layer inside another middleware.
fn clients<M, H, Args, Via>(make: impl Fn() -> M, handler: H) -> [TestClient; 2]
where
    M: Middleware + 'static,
    H: Handler<Args, Via> + Clone + 'static,
    Args: 'static,
    Via: 'static,
{
    let around = App::new().wrap(make()).post("/", handler.clone()).test();
    [around, App::new().wrap(Always(make())).post("/", handler).test()]
}

async fn call(mut inner: NextService, request: Asked) -> Answered {
    let Ok(response) = inner.call(request).await;
    response
}

async fn read(body: SendBody) -> Bytes {
    body.collect().await.expect("a whole body").to_bytes()
}

/// Polls `future` once.
async fn begin<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}

/// A stream with a number of one-byte pieces, which counts the pieces it has yielded.
struct Counted(usize, Arc<AtomicUsize>);

impl futures_core::Stream for Counted {
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

/// An iterator over a number of large pieces, which counts the pieces it has yielded.
struct Large(usize, Arc<AtomicUsize>);

impl Iterator for Large {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        self.0 = self.0.checked_sub(1)?;
        self.1.fetch_add(1, Ordering::SeqCst);
        Some(Bytes::from_static(&[0; 65536]))
    }
}

/// Sends the id of the thread on which it is dropped.
struct Dropped(Option<oneshot::Sender<ThreadId>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.take().map(|sender| sender.send(here()));
    }
}

fn here() -> ThreadId {
    std::thread::current().id()
}

#[test]
fn a_layer_that_wants_send_is_around_a_handler_that_is_not() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let layer = || {
        sending(async |inner, request: Asked| {
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
        for (number, client) in (0..).step_by(3).zip(clients(layer, handler)) {
            let empty = client.post("/").send().await;
            assert_eq!(empty.text(), format!("{} 0", number + 1));
            let whole = client.post("/").body("abc").send().await;
            assert_eq!(whole.text(), format!("{} 3", number + 2));
            let pieces = client.post("/").chunks(["ab", "cd"]).send().await;
            assert_eq!(pieces.text(), format!("{} 4", number + 3));
        }
    });
}

#[test]
fn extensions_go_both_ways() {
    #[derive(Clone)]
    struct Mark(&'static str);
    let layer = || {
        sending(async |inner, mut request: Asked| {
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
fn a_call_that_goes_to_another_thread_runs_its_handler_at_home() {
    let home = here();
    let handler = async move |body: Body| {
        tokio::task::yield_now().await;
        assert_eq!(here(), home);
        // The request's content is returned piece by piece.
        body.into_response()
    };
    let all = || sending(async |inner, request| elsewhere(call(inner, request)).await);
    let rest = || {
        sending(async |inner, request| {
            let mut call = Box::pin(call(inner, request));
            match begin(&mut call).await {
                Poll::Ready(response) => response,
                Poll::Pending => elsewhere(call).await,
            }
        })
    };
    in_runtime(async {
        for client in clients(all, handler).into_iter().chain(clients(rest, handler)) {
            assert_eq!(client.post("/").body("abc").send().await.text(), "abc");
            let mut response = client.post("/").chunks(["ab", "cd"]).send().await;
            assert_eq!(response.collect().await.expect("a whole body"), "abcd");
        }
    });
}

#[test]
fn bodies_may_be_read_on_another_thread() {
    let layer = || {
        sending(async |inner, request: Asked| {
            let (parts, body) = request.into_parts();
            let body = elsewhere(read(body)).await;
            let response = call(inner, Asked::from_parts(parts, body.into())).await;
            let (parts, body) = response.into_parts();
            Answered::from_parts(parts, elsewhere(read(body)).await.into())
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
fn a_body_that_moves_to_another_thread_and_back_is_read_to_its_end() {
    let layer = || {
        sending(async |inner, request: Asked| {
            let (parts, mut body) = request.into_parts();
            let first = body.frame().await.expect("a frame").expect("no error");
            let (second, body) = elsewhere(async move {
                let second = body.frame().await.expect("a frame").expect("no error");
                (second, body)
            })
            .await;
            let [first, second] = [first, second].map(|frame| frame.into_data().expect("data"));
            let rest = read(body).await;
            let all = [first, second, rest].concat();
            call(inner, Asked::from_parts(parts, all.into())).await
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
fn nothing_is_read_ahead_of_who_reads_here_or_elsewhere() {
    let read_some = async |mut body: SendBody, count: usize| {
        for _ in 0..count {
            body.frame().await.expect("a frame").expect("no error");
        }
        body
    };
    for is_here in [true, false] {
        let asked = Arc::new(AtomicUsize::new(0));
        let made = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&asked);
        let layer = || {
            let asked = Arc::clone(&counts);
            sending(move |inner, request: Asked| {
                let asked = Arc::clone(&asked);
                async move {
                    let (parts, body) = request.into_parts();
                    let some = read_some(body, 3);
                    let body = if is_here { some.await } else { elsewhere(some).await };
                    let asked = asked.load(Ordering::SeqCst);
                    assert!((3..10).contains(&asked), "{asked} of 100");
                    let response = call(inner, Asked::from_parts(parts, SendBody::default())).await;
                    drop(body);
                    let (parts, body) = response.into_parts();
                    let some = read_some(body, 2);
                    let body = if is_here { some.await } else { elsewhere(some).await };
                    Answered::from_parts(parts, body)
                }
            })
        };
        let counts = Arc::clone(&made);
        let handler = move || Body::from_stream(Counted(100, Arc::clone(&counts)));
        in_runtime(async {
            for client in clients(layer, handler) {
                asked.store(0, Ordering::SeqCst);
                made.store(0, Ordering::SeqCst);
                let pieces = Large(100, Arc::clone(&asked));
                let mut response = client.post("/").chunks(pieces).send().await;
                assert_eq!(made.load(Ordering::SeqCst), 2);
                for count in 3..10 {
                    response.chunk().await.expect("a piece").expect("no error");
                    assert_eq!(made.load(Ordering::SeqCst), count);
                }
                assert_eq!(response.collect().await.expect("the rest").len(), 91);
            }
        });
    }
}

#[test]
fn a_call_that_is_dropped_on_another_thread_drops_its_handler_at_home() {
    let home = here();
    for is_begun_here in [true, false] {
        let (sender, dropped) = oneshot::channel();
        let dropped = Arc::new(Mutex::new(Some(dropped)));
        let began = Arc::new(Notify::new());
        let begins = Arc::clone(&began);
        let gives_up = sending(move |inner, request| {
            let began = Arc::clone(&began);
            let dropped = dropped.lock().expect("no panic").take().expect("one call");
            async move {
                let mut call = Box::pin(call(inner, request));
                if is_begun_here {
                    assert!(begin(&mut call).await.is_pending());
                }
                elsewhere(async move {
                    tokio::select! {
                        _ = call => unreachable!("the handler never completes"),
                        () = began.notified() => {}
                    }
                })
                .await;
                let place = dropped.await.expect("the handler is dropped");
                Answered::new((place == home).to_string().into())
            }
        });
        let sender = Rc::new(Cell::new(Some(sender)));
        let handler = move || {
            let guard = Dropped(sender.take());
            begins.notify_one();
            async move {
                let _guard = guard;
                pending::<()>().await;
            }
        };
        let client = App::new().wrap(gives_up).post("/", handler).test();
        in_runtime(async {
            assert_eq!(client.post("/").send().await.text(), "true", "{is_begun_here}");
        });
    }
}

#[test]
fn a_request_that_ends_takes_its_handler_along_and_fails_who_waits_elsewhere() {
    let (sender, answered) = oneshot::channel();
    let sender = Arc::new(Mutex::new(Some(sender)));
    let waits = sending(move |inner, request| {
        let sender = sender.lock().expect("no panic").take().expect("one call");
        async move {
            elsewhere(async move {
                let response = call(inner, request).await;
                sender.send(response.status()).expect("the test is waiting");
            })
            .await;
            unreachable!("the request ended earlier")
        }
    });
    let (sender, mut dropped) = oneshot::channel();
    let sender = Cell::new(Some(sender));
    let began = Rc::new(Notify::new());
    let begins = Rc::clone(&began);
    let handler = Rc::new(move || {
        let guard = Dropped(sender.take());
        begins.notify_one();
        async move {
            let _guard = guard;
            pending::<()>().await;
        }
    });
    let handler = move || handler();
    let client = App::new().wrap(waits).post("/", handler).test();
    in_runtime(async {
        let request = client.post("/").send();
        tokio::select! {
            _ = request => unreachable!("the handler never completes"),
            () = began.notified() => {}
        }
        assert_eq!(dropped.try_recv(), Ok(here()));
        assert_eq!(answered.await, Ok(StatusCode::INTERNAL_SERVER_ERROR));
    });
}

#[test]
fn a_panic_of_a_handler_goes_to_the_layer_that_called_it_here_and_elsewhere() {
    let handler = async |body: String| {
        tokio::task::yield_now().await;
        assert_eq!(body, "calm");
        body
    };
    let here = || layer(CatchPanicLayer::new());
    let there = || {
        sending(async |inner, request| {
            let caught = elsewhere(async { tokio::spawn(call(inner, request)).await });
            caught.await.unwrap_or_else(|_| Answered::new("caught".into()))
        })
    };
    in_runtime(async {
        for client in clients(here, handler) {
            assert_eq!(client.post("/").body("calm").send().await.text(), "calm");
            assert_eq!(client.post("/").body("wild").send().await.status(), 500);
            assert_eq!(client.post("/").body("calm").send().await.text(), "calm");
        }
        for client in clients(there, handler) {
            assert_eq!(client.post("/").body("calm").send().await.text(), "calm");
            assert_eq!(client.post("/").body("wild").send().await.text(), "caught");
            assert_eq!(client.post("/").body("calm").send().await.text(), "calm");
        }
    });
}

#[test]
fn each_attempt_of_towers_retry_gets_its_own_response() {
    #[derive(Clone)]
    struct Thrice(usize);
    impl tower::retry::Policy<Asked, Answered, Infallible> for Thrice {
        type Future = std::future::Ready<()>;

        fn retry(
            &mut self,
            _: &mut Asked,
            result: &mut Result<Answered, Infallible>,
        ) -> Option<Self::Future> {
            self.0 -= 1;
            let is_failed = result
                .as_ref()
                .is_ok_and(|answer| answer.status() == StatusCode::SERVICE_UNAVAILABLE);
            (is_failed && self.0 > 0).then(|| std::future::ready(()))
        }

        fn clone_request(&mut self, request: &Asked) -> Option<Asked> {
            let mut again = Asked::new(SendBody::default());
            *again.method_mut() = request.method().clone();
            *again.uri_mut() = request.uri().clone();
            *again.headers_mut() = request.headers().clone();
            *again.extensions_mut() = request.extensions().clone();
            Some(again)
        }
    }
    let attempts = Rc::new(Cell::new(0));
    let handler = move || {
        let number = attempts.get() + 1;
        attempts.set(number);
        async move {
            tokio::task::yield_now().await;
            let status =
                if number % 3 == 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            (status, format!("attempt {number}"))
        }
    };
    in_runtime(async {
        for (client, expected) in clients(|| layer(RetryLayer::new(Thrice(3))), handler.clone())
            .into_iter()
            .zip(["attempt 3", "attempt 6"])
        {
            let response = client.post("/").send().await;
            assert_eq!((response.status().as_u16(), response.text().as_str()), (200, expected));
        }
        let [client, _] = clients(|| layer(RetryLayer::new(Thrice(2))), handler);
        let response = client.post("/").send().await;
        assert_eq!((response.status().as_u16(), response.text().as_str()), (503, "attempt 8"));
    });
}

#[test]
fn a_buffer_of_tower_is_a_layer_as_others_are() {
    in_runtime(async {
        let make = || layer(BufferLayer::<Asked>::new(4));
        for client in clients(make, async |body: Bytes| body) {
            assert_eq!(client.post("/").body("abc").send().await.text(), "abc");
            assert_eq!(client.post("/").chunks(["ab", "cd"]).send().await.text(), "abcd");
        }
    });
}

#[test]
fn a_request_is_never_taken_for_one_of_another_thread() {
    // While a request of this thread is inside the layer, the other thread has one with the same
    // number and calls the inner service with this thread's request.
    let lends = || {
        sending(async |inner: NextService, request: Asked| {
            let ours = Arc::new(Mutex::new(Some((inner, request))));
            let (sender, answer) = oneshot::channel();
            std::thread::spawn(move || {
                let borrows = sending(move |_, _| {
                    let (inner, request) = ours.lock().expect("no panic").take().expect("one call");
                    call(inner, request)
                });
                let client = App::new().wrap(borrows).get("/", || "theirs").test();
                drop(sender.send(in_runtime(async { client.get("/").send().await.text() })));
            });
            Answered::new(answer.await.expect("a response").into())
        })
    };
    in_runtime(async {
        for client in clients(lends, |body: String| format!("ours: {body}")) {
            assert_eq!(client.post("/").body("abc").send().await.text(), "ours: abc");
        }
    });
}

#[test]
fn a_call_after_the_answer_is_a_500_here_and_elsewhere() {
    for is_here in [true, false] {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let keeps = || {
            let kept = Arc::clone(&kept);
            sending(move |inner, request| {
                kept.lock().expect("no panic").push((inner, request));
                std::future::ready(Answered::default())
            })
        };
        let clients = clients(keeps, || "never");
        in_runtime(async {
            for client in clients {
                assert_eq!(client.post("/").send().await.status(), 200);
                let (inner, request) = kept.lock().expect("no panic").pop().expect("one call");
                let late = call(inner, request);
                let response = if is_here { late.await } else { elsewhere(late).await };
                assert_eq!(response.status(), 500);
            }
        });
    }
}

#[test]
fn a_body_that_is_kept_beyond_its_request_ends_with_an_error_here_and_elsewhere() {
    for is_here in [true, false] {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let keeps = || {
            let kept = Arc::clone(&kept);
            sending(move |_, request: Asked| {
                kept.lock().expect("no panic").push(request.into_body());
                std::future::ready(Answered::default())
            })
        };
        let clients = clients(keeps, || "never");
        in_runtime(async {
            for client in clients {
                drop(client.post("/").chunks(["a", "b"]).send().await);
                let mut body = kept.lock().expect("no panic").pop().expect("one body");
                let late = async move { body.frame().await.is_some_and(|frame| frame.is_err()) };
                assert!(if is_here { late.await } else { elsewhere(late).await });
            }
        });
    }
}
