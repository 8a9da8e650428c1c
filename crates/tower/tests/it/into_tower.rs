//! Applications as tower services, for axum and hyper.

use axum::Router;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use peregrine::cache::{Idempotency, MemoryIdempotencyStore};
use peregrine_tower::{Mount, into_make_service, into_tower, spawn_tower};
use peregrine_web::connection::{ConnectionAddr, ConnectionInfo};
use peregrine_web::extract::Path;
use peregrine_web::sse::{Event, Sse};
use peregrine_web::{App, Body, HandlerExt};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use tower::{Service, ServiceExt};

fn in_runtime<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime starts").block_on(future)
}

async fn late() -> &'static str {
    tokio::time::sleep(Duration::from_secs(600)).await;
    "late"
}

fn app() -> App {
    let count = Rc::new(Cell::new(0));
    App::new()
        .get("/hello/{name}", async |Path(name): Path<String>| format!("hello {name}"))
        .post("/echo", async |body: Body| body)
        .post("/small", (async |body: Bytes| body).body_limit(3))
        .get("/reset", || (StatusCode::RESET_CONTENT, "not to be sent"))
        .get("/count", move || {
            count.set(count.get() + 1);
            count.get().to_string()
        })
        .get("/late", late.timeout(Duration::from_millis(10)))
        .get("/panic", || -> &'static str { panic!("on purpose") })
        .get("/peer", async |info: ConnectionInfo| info.peer.to_string())
}

fn get(path: &str) -> Request<Empty<Bytes>> {
    Request::get(path).body(Empty::new()).expect("a request")
}

async fn text<B>(response: http::Response<B>) -> String
where
    B: http_body::Body<Error: std::fmt::Debug>,
{
    let bytes = response.into_body().collect().await.expect("a whole body").to_bytes();
    String::from_utf8(bytes.into()).expect("text")
}

#[test]
fn an_application_responds_as_a_tower_service() {
    in_runtime(async {
        let service = into_tower(app()).expect("the application is valid");
        let send = |path: &'static str| service.clone().oneshot(get(path));
        assert_eq!(text(send("/hello/Ada").await.expect("cannot fail")).await, "hello Ada");
        assert_eq!(text(send("/count").await.expect("cannot fail")).await, "1");
        assert_eq!(text(send("/count").await.expect("cannot fail")).await, "2");
        assert_eq!(send("/nowhere").await.expect("cannot fail").status(), 404);
        assert_eq!(send("/late").await.expect("cannot fail").status(), 503);
        let absolute = send("http://example.com/hello/you").await.expect("cannot fail");
        assert_eq!(text(absolute).await, "hello you");
    });
}

#[test]
fn head_has_the_length_of_get_and_no_body() {
    in_runtime(async {
        let service = into_tower(app()).expect("the application is valid");
        // RFC 9110 §15.3.6: a 205 has no content.
        for (path, length) in [("/hello/Ada", Some("9")), ("/reset", None)] {
            let request = Request::head(path).body(Empty::<Bytes>::new()).expect("a request");
            let response = service.clone().oneshot(request).await.expect("cannot fail");
            let content_length = response.headers().get("content-length");
            assert_eq!(
                content_length.and_then(|content_length| content_length.to_str().ok()),
                length,
                "{path}"
            );
            assert_eq!(text(response).await, "");
        }
    });
}

#[test]
fn a_routes_body_limit_applies_to_any_body_type() {
    in_runtime(async {
        let service = into_tower(app()).expect("the application is valid");
        for (body, status) in [("abc", 200), ("abcd", 413)] {
            let request = Request::post("/small").body(Full::new(Bytes::from(body)));
            let response = service.clone().oneshot(request.expect("a request")).await;
            assert_eq!(response.expect("cannot fail").status(), status, "{body}");
        }
    });
}

#[test]
fn a_request_that_violates_http_is_rejected() {
    in_runtime(async {
        let service = into_tower(app()).expect("the application is valid");
        let request = Request::get("/hello/a").header("host", "a").header("host", "b");
        let request = request.body(Empty::<Bytes>::new()).expect("a request");
        assert_eq!(service.oneshot(request).await.expect("cannot fail").status(), 400);
    });
}

#[test]
fn connection_info_is_taken_from_the_extensions() {
    in_runtime(async {
        let service = into_tower(app()).expect("the application is valid");
        let peer = ConnectionAddr::Tcp("192.0.2.1:9".parse().expect("an address"));
        let mut request = get("/peer");
        request.extensions_mut().insert(ConnectionInfo { peer, ..ConnectionInfo::default() });
        let response = service.oneshot(request).await.expect("cannot fail");
        assert_eq!(text(response).await, "192.0.2.1:9");
    });
}

#[test]
fn a_make_service_returns_clones_of_one_application() {
    in_runtime(async {
        let mut make = into_make_service(app()).expect("the application is valid");
        for expected in ["1", "2"] {
            let service = make.call("a connection").await.expect("cannot fail");
            let response = service.oneshot(get("/count")).await.expect("cannot fail");
            assert_eq!(text(response).await, expected);
        }
    });
}

#[test]
fn an_application_runs_inside_an_axum_router() {
    in_runtime(async {
        let service = spawn_tower(app).expect("the application is valid");
        let router: Router = Router::new().nest_service("/ours", service);
        let send = |request| router.clone().oneshot(request);
        let hello = Request::get("/ours/hello/Ada").body(axum::body::Body::empty());
        let response = send(hello.expect("a request")).await.expect("cannot fail");
        assert_eq!(text(response).await, "hello Ada");
        let body = Bytes::from(vec![b'x'; 1_000_000]);
        let chunks: Vec<_> = body
            .chunks(1000)
            .map(|chunk| Ok::<_, std::io::Error>(Bytes::copy_from_slice(chunk)))
            .collect();
        let stream = axum::body::Body::from_stream(stream_of(chunks));
        let echo = Request::post("/ours/echo").body(stream).expect("a request");
        let response = send(echo).await.expect("cannot fail");
        assert_eq!(text(response).await.len(), body.len());
    });
}

/// A stream whose items are all available.
fn stream_of<T: Unpin>(items: Vec<T>) -> impl futures_core::Stream<Item = T> {
    struct Iter<I>(I);
    impl<I: Iterator + Unpin> futures_core::Stream for Iter<I> {
        type Item = I::Item;
        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<I::Item>> {
            std::task::Poll::Ready(self.0.next())
        }
    }
    Iter(items.into_iter())
}

#[test]
fn a_panic_while_a_timed_out_handler_is_dropped_does_not_change_the_response() {
    struct PanicOnDrop;
    impl Drop for PanicOnDrop {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }
    async fn late_and_panics_on_drop() -> &'static str {
        let _guard = PanicOnDrop;
        late().await
    }
    let app = || App::new().get("/", late_and_panics_on_drop.timeout(Duration::from_millis(10)));
    in_runtime(async {
        let local_response = into_tower(app())
            .expect("a valid application")
            .oneshot(get("/"))
            .await
            .expect("cannot fail");
        let remote_response = spawn_tower(app)
            .expect("a valid application")
            .oneshot(get("/"))
            .await
            .expect("cannot fail");
        assert_eq!(
            (local_response.status().as_u16(), remote_response.status().as_u16()),
            (503, 503)
        );
    });
}

#[test]
fn event_streams_of_a_spawned_application_send_keep_alives() {
    struct Silent;
    impl futures_core::Stream for Silent {
        type Item = Event;
        fn poll_next(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Event>> {
            std::task::Poll::Pending
        }
    }
    in_runtime(async {
        let app = || App::new().get("/", || Sse::new(Silent).keep_alive(Duration::from_millis(5)));
        let service = spawn_tower(app).expect("the application is valid");
        let mut body = service.oneshot(get("/")).await.expect("cannot fail").into_body();
        for _ in 0..3 {
            let frame = body.frame().await.expect("a frame").expect("no error");
            assert_eq!(frame.data_ref().map(|data| &data[..]), Some(&b":\n\n"[..]));
        }
    });
}

#[test]
fn a_spawned_application_finishes_work_whose_client_has_disconnected() {
    let (sender, mut steps) = tokio::sync::mpsc::unbounded_channel();
    let store = MemoryIdempotencyStore::new();
    let app = move || {
        let order = async move || {
            let _ = sender.send("started");
            tokio::time::sleep(Duration::from_millis(20)).await;
            let _ = sender.send("finished");
            "ordered"
        };
        App::new().wrap(Idempotency::new(store)).post("/orders", order)
    };
    in_runtime(async {
        let service = spawn_tower(app).expect("the application is valid");
        let closed = service.closed();
        let request = Request::post("/orders").header("idempotency-key", "\"a1\"");
        let response = service.oneshot(request.body(String::new()).expect("a request"));
        tokio::select! {
            _ = response => panic!("the response comes after the second step"),
            step = steps.recv() => assert_eq!(step, Some("started")),
        }
        closed.await;
        assert_eq!(steps.try_recv(), Ok("finished"));
    });
}

#[test]
fn a_handler_panic_in_a_spawned_application_yields_a_500() {
    in_runtime(async {
        let service = spawn_tower(app).expect("the application is valid");
        let response = service.clone().oneshot(get("/panic")).await.expect("cannot fail");
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let response = service.oneshot(get("/hello/again")).await.expect("cannot fail");
        assert_eq!(text(response).await, "hello again");
    });
}

#[test]
fn a_task_of_a_nested_service_can_read_the_body_after_the_response() {
    in_runtime(async {
        for is_nested_twice in [false, true] {
            let (sender, mut lengths) = tokio::sync::mpsc::unbounded_channel();
            let service = spawn_tower(move || {
                let read_in_task = async move |body: axum::body::Body| {
                    tokio::spawn(async move {
                        let body = body.collect().await.ok();
                        let _ = sender.send(body.map(|body| body.to_bytes().len()));
                    });
                    "answered"
                };
                let router = Router::new().route("/", axum::routing::post(read_in_task));
                let app = App::new().mount("/", router);
                if !is_nested_twice {
                    return app;
                }
                App::new().mount("/", into_tower(app).expect("a valid application"))
            });
            let chunks = (0..10).map(|_| Ok::<_, std::io::Error>(Bytes::from_static(b"piece")));
            let stream = axum::body::Body::from_stream(stream_of(chunks.collect()));
            let request = Request::post("/").body(stream).expect("a request");
            let response =
                service.expect("a valid application").oneshot(request).await.expect("cannot fail");
            assert_eq!(text(response).await, "answered");
            assert_eq!(lengths.recv().await, Some(Some(50)), "{is_nested_twice}");
        }
    });
}

#[test]
fn dropping_a_call_drops_its_handler() {
    struct OnDrop(tokio::sync::mpsc::UnboundedSender<&'static str>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            let _ = self.0.send("dropped");
        }
    }
    in_runtime(async {
        let (sender, mut events) = tokio::sync::mpsc::unbounded_channel();
        let service = spawn_tower(move || {
            App::new().get("/", move || {
                let sender = sender.clone();
                async move {
                    let _ = sender.send("began");
                    let _on_drop = OnDrop(sender);
                    std::future::pending::<&'static str>().await
                }
            })
        });
        let call = service.expect("a valid application").oneshot(get("/"));
        let call = tokio::spawn(call);
        assert_eq!(events.recv().await, Some("began"));
        call.abort();
        assert_eq!(events.recv().await, Some("dropped"));
    });
}

#[test]
fn an_application_with_conflicting_routes_is_not_spawned() {
    let error = spawn_tower(|| App::new().get("/a", || "").get("/a", || "")).expect_err("twice");
    assert!(error.to_string().contains("/a"), "{error}");
}
