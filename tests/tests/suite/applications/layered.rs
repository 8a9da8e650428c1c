//! Tower layers that require `Send` around handlers that are not, on every driver, including the
//! simulated network with its faults.

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use peregrine::prelude::*;
use peregrine::tower::{BoxError, Mount, NextService, SendBody, into_tower, layer, tower};
use peregrine::web::upgrade::UpgradeHandler;
use peregrine::{DriverChoice, Limits};
use peregrine_tests::server::app::pattern;
use peregrine_tests::server::bench::{Bench, Served};
use peregrine_tests::server::peer::Peer;
use peregrine_tests::server::{KernelBenches, SimulatedBenches};
use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tower::layer::layer_fn;
use tower::{Service, service_fn};

/// Generates a test of each case on each driver.
macro_rules! on_every_driver {
    ($($case:ident,)*) => {
        mod on_sim {
            $(
                #[test]
                fn $case() {
                    super::SimulatedBenches::seeds(0..20)
                        .check(async |bench| super::$case(bench).await);
                }
            )*
        }
        on_every_driver!(@kernel on_tokio Tokio $($case,)*);
        on_every_driver!(@kernel on_uring Uring $($case,)*);
    };
    (@kernel $module:ident $driver:ident $($case:ident,)*) => {
        mod $module {
            $(
                #[test]
                fn $case() {
                    super::KernelBenches::tcp(super::DriverChoice::$driver)
                        .check(async |bench| super::$case(bench).await);
                }
            )*
            /// Real threads cannot be used in simulated time.
            #[test]
            fn a_thread_may_read_on_after_the_response() {
                super::KernelBenches::tcp(super::DriverChoice::$driver)
                    .check(async |bench| super::who_reads_on(bench, "/thread").await);
            }
        }
    };
}

on_every_driver! {
    bodies_stream_through_a_layer_that_wraps_them,
    a_task_of_a_layer_may_read_on_after_the_response,
    a_task_of_a_service_inside_a_layer_may_read_on_after_the_response,
    a_task_of_a_service_inside_an_application_inside_may_read_on_after_the_response,
    a_handler_inside_a_layer_ends_when_its_peer_leaves,
    a_panic_inside_a_layer_is_a_500_and_harms_nobody_else,
    an_upgrade_goes_through_a_layer,
}

type Asked = http::Request<SendBody>;

/// A body that hides its inner type.
struct Wrapped(SendBody);

impl http_body::Body for Wrapped {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<http::Response<Wrapped>, Infallible>> + Send>>;

/// Wraps the bodies in both directions, with a future that must be `Send`.
fn wraps(mut inner: NextService, request: Asked) -> Answering {
    let call = inner.call(request.map(Wrapped));
    Box::pin(async move { call.await.map(|response| response.map(Wrapped)) })
}

/// Observations that the cases check.
#[derive(Clone, Default)]
struct Seen {
    bytes: Arc<AtomicUsize>,
    started: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
}

struct Watch(Arc<AtomicUsize>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Seen {
    async fn read(self, mut body: SendBody) {
        let _watch = Watch(self.dropped);
        while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            self.bytes.fetch_add(bytes, Ordering::SeqCst);
        }
    }

    async fn wait(self, local: Rc<()>) {
        let _watch = Watch(self.dropped);
        self.started.fetch_add(1, Ordering::SeqCst);
        pending::<()>().await;
        drop(local);
    }

    /// Leaves reading the request to a task or a thread, and responds.
    fn leave(&self, body: SendBody, is_task: bool) -> http::Response<SendBody> {
        let reading = self.clone().read(body);
        if is_task {
            tokio::spawn(reading);
        } else {
            std::thread::spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().build();
                runtime.expect("a runtime starts").block_on(reading);
            });
        }
        http::Response::new("answered".into())
    }

    fn app(&self) -> App {
        let reads = |is_task| {
            let seen = self.clone();
            layer(layer_fn(move |_: NextService| {
                let seen = seen.clone();
                service_fn(move |request: Asked| {
                    std::future::ready(Ok::<_, Infallible>(
                        seen.leave(request.into_body(), is_task),
                    ))
                })
            }))
        };
        let wraps = || {
            layer(layer_fn(|inner: NextService| {
                service_fn(move |request: Asked| wraps(inner.clone(), request))
            }))
        };
        let (seen, mounted) = (self.clone(), self.clone());
        let mounted = tower(service_fn(move |request: Asked| {
            std::future::ready(Ok::<_, Infallible>(mounted.leave(request.into_body(), true)))
        }));
        let inside = into_tower(App::new().post("/mounted", mounted.clone()))
            .expect("the application is valid");
        App::new()
            .get("/hello", || "hello")
            .mount("/inside", inside.clone())
            .scope("/task", |scope| scope.wrap(reads(true)).post("/", || "never"))
            .scope("/thread", |scope| scope.wrap(reads(false)).post("/", || "never"))
            .scope("/wrapped", |scope| {
                scope
                    .wrap(wraps())
                    .post("/echo", async |body: Body| body)
                    .post("/mounted", mounted)
                    .mount("/inside", inside)
                    .get("/wait", move || seen.clone().wait(Rc::new(())))
                    .get("/panic", async || {
                        tokio::task::yield_now().await;
                        if true {
                            panic!("on purpose");
                        }
                    })
                    .get("/upgrade", || {
                        let says = UpgradeHandler::new(async |mut upgraded| {
                            upgraded.start_send(b"hello");
                        });
                        Response::new(StatusCode::SWITCHING_PROTOCOLS).with_upgrade(says)
                    })
            })
    }
}

fn begin<B: Bench>(bench: &B) -> (B::Server, Seen) {
    let seen = Seen::default();
    let shared = seen.clone();
    (bench.start(Limits::default(), None, move || shared.app()), seen)
}

async fn bodies_stream_through_a_layer_that_wraps_them<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    for body in [&b""[..], b"short", &pattern(bench.large(300_000))] {
        let length = body.len();
        peer.send(format!(
            "POST /wrapped/echo HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
        ));
        peer.send(body);
        let reply = peer.reply().await;
        assert_eq!(reply.status, 200);
        assert!(reply.body == body, "{length} bytes");
    }
    peer.expect_alive().await;
    server.cut();
}

async fn a_task_of_a_layer_may_read_on_after_the_response<B: Bench>(bench: &B) {
    who_reads_on(bench, "/task").await;
}

async fn a_task_of_a_service_inside_a_layer_may_read_on_after_the_response<B: Bench>(bench: &B) {
    who_reads_on(bench, "/wrapped/mounted").await;
}

async fn a_task_of_a_service_inside_an_application_inside_may_read_on_after_the_response<
    B: Bench,
>(
    bench: &B,
) {
    who_reads_on(bench, "/inside/mounted").await;
    who_reads_on(bench, "/wrapped/inside/mounted").await;
}

async fn who_reads_on<B: Bench>(bench: &B, path: &str) {
    let (server, seen) = begin(bench);
    let mut peer = Peer::new(server.connect());
    let body = pattern(bench.large(700_000));
    let length = body.len();
    for round in 1..=2 {
        peer.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"));
        peer.send(&body[..10]);
        let reply = peer.reply().await;
        assert_eq!((reply.text(), reply.field("connection")), ("answered", None));
        peer.send(&body[10..]);
        let is_read = || seen.bytes.load(Ordering::SeqCst) == round * length;
        bench.wait_until("the whole body was read", is_read).await;
        let is_over = || seen.dropped.load(Ordering::SeqCst) == round;
        bench.wait_until("the task has ended", is_over).await;
        peer.expect_alive().await;
    }
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

async fn a_handler_inside_a_layer_ends_when_its_peer_leaves<B: Bench>(bench: &B) {
    let (server, seen) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.get("/wrapped/wait");
    bench.wait_until("the handler waits", || seen.started.load(Ordering::SeqCst) == 1).await;
    drop(peer);
    bench.wait_until("the handler is dropped", || seen.dropped.load(Ordering::SeqCst) == 1).await;
    server.cut();
}

async fn a_panic_inside_a_layer_is_a_500_and_harms_nobody_else<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut other = Peer::new(server.connect());
    let mut peer = Peer::new(server.connect());
    peer.get("/wrapped/panic");
    assert_eq!(peer.reply().await.status, 500);
    other.post("/wrapped/echo", b"still here");
    assert_eq!(other.reply().await.text(), "still here");
    server.cut();
}

async fn an_upgrade_goes_through_a_layer<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.send(
        "GET /wrapped/upgrade HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: hello\r\n\r\n",
    );
    assert_eq!(peer.reply().await.status, 101);
    peer.expect(b"hello").await;
    server.cut();
}
