//! A server for the length of a test, of three kinds, and what its clients have in common.

use crate::secure;
use axum::Router;
use axum::extract::connect_info::IntoMakeServiceWithConnectInfo;
use peregrine::tls::Tls;
use peregrine::{DriverChoice, Error, Limits, Running, Server};
#[cfg(unix)]
use peregrine_axum_examples::unix_domain_socket::{self, UnixPeer};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, RequestBuilder, StatusCode};
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;
#[cfg(unix)]
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

/// How long a case may take before it counts as stuck, in a debug build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// How many threads serve, so that what requests share is shared over threads.
const THREADS: usize = 2;

/// What serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// `axum::serve`, whose answers are the right ones.
    Axum,
    /// Peregrine on tokio's driver.
    Tokio,
    /// Peregrine on io_uring.
    Uring,
}

impl Engine {
    /// Is it one of ours?
    pub(crate) fn is_peregrine(self) -> bool {
        self != Self::Axum
    }

    /// A server of ours that listens nowhere yet.
    pub(crate) fn server(self) -> Server {
        self.configure(Server::new())
    }

    fn configure(self, server: Server) -> Server {
        let choice = if self == Self::Uring { DriverChoice::Uring } else { DriverChoice::Tokio };
        // What hangs at the end is to be seen as that, instead of being cut.
        let limits = Limits { shutdown_timeout: PATIENCE * 2, ..Limits::default() };
        let threads = NonZeroUsize::new(THREADS).expect("it is not zero");
        server.driver(choice).workers(threads).limits(limits).quiet()
    }

    /// Why it cannot run on this machine.
    fn refusal(self) -> Option<String> {
        if !self.is_peregrine() {
            return None;
        }
        match self.server().listen("127.0.0.1:0").start(peregrine::App::new) {
            Err(error @ Error::Driver { .. }) => Some(error.to_string()),
            _ => None,
        }
    }
}

/// Runs `case`, if the kernel lets the engine run.
pub(crate) fn check(engine: Engine, case: impl AsyncFnOnce(Host)) {
    if let Some(reason) = engine.refusal() {
        eprintln!("skipped: {reason}");
        return;
    }
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    runtime.block_on(async {
        let outcome = tokio::time::timeout(PATIENCE, case(Host { engine })).await;
        outcome.expect("the case does not get stuck");
    });
}

/// Makes a test of each case of each application under each server.
#[macro_export]
macro_rules! under_every_server {
    ($($application:ident { $($case:ident)+ })+) => {
        $crate::under_every_server!(@one under_axum Axum $($application { $($case)+ })+);
        $crate::under_every_server!(@one on_tokio Tokio $($application { $($case)+ })+);
        $crate::under_every_server!(@one on_uring Uring $($application { $($case)+ })+);
    };
    (@one $module:ident $engine:ident $($application:ident { $($case:ident)+ })+) => {
        mod $module {
            $(
                mod $application {
                    $(
                        #[test]
                        fn $case() {
                            let engine = $crate::harness::Engine::$engine;
                            $crate::harness::check(engine, $crate::$application::$case);
                        }
                    )+
                }
            )+
        }
    };
}

/// Starts servers of one kind.
pub(crate) struct Host {
    /// Of which kind.
    pub(crate) engine: Engine,
}

/// What is served.
enum App {
    Plain(Router),
    ByPeer(IntoMakeServiceWithConnectInfo<Router, SocketAddr>),
}

impl Host {
    /// Serves a router on a free port.
    pub(crate) fn serve(&self, router: Router) -> Served {
        self.start(App::Plain(router))
    }

    /// Serves a router that is told its peers' addresses.
    pub(crate) fn serve_by_peer(
        &self,
        make: IntoMakeServiceWithConnectInfo<Router, SocketAddr>,
    ) -> Served {
        self.start(App::ByPeer(make))
    }

    /// The same lines for both servers, but for the name of the crate that serves.
    fn start(&self, app: App) -> Served {
        let engine = self.engine;
        let (listener, address) = listener();
        Served::run(address, move |stop| {
            runtime().block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener);
                let listener = listener.expect("the listener does not block");
                let stop = async { drop(stop.await) };
                if engine.is_peregrine() {
                    let ended = match app {
                        App::Plain(router) => {
                            peregrine::tower::serve(listener, router)
                                .configure(|server| engine.configure(server))
                                .with_graceful_shutdown(stop)
                                .await
                        }
                        App::ByPeer(make) => {
                            peregrine::tower::serve(listener, make)
                                .configure(|server| engine.configure(server))
                                .with_graceful_shutdown(stop)
                                .await
                        }
                    };
                    ended.expect("the server ends in order");
                } else {
                    let ended = match app {
                        App::Plain(router) => {
                            axum::serve(listener, router).with_graceful_shutdown(stop).await
                        }
                        App::ByPeer(make) => {
                            axum::serve(listener, make).with_graceful_shutdown(stop).await
                        }
                    };
                    ended.expect("the server ends in order");
                }
            });
        })
    }
}

impl Host {
    /// Serves a router behind TLS.
    pub(crate) fn serve_secure(&self, router: Router) -> Served {
        let engine = self.engine;
        let (listener, address) = listener();
        Served::run(address, move |stop| {
            if engine.is_peregrine() {
                listener.set_nonblocking(false).expect("a socket can be made so");
                let (certificate, key) = secure::pem();
                let tls = Tls::from_pem(certificate.as_bytes(), key.as_bytes());
                let tls = tls.expect("the key is that of the certificate");
                let server = engine.server().tls_listener(listener, tls);
                run_until(server.start_tower(router), stop);
            } else {
                runtime().block_on(async move {
                    let listener = tokio::net::TcpListener::from_std(listener);
                    let listener = listener.expect("the listener does not block");
                    let ended = axum::serve(secure::SecureListener::new(listener), router)
                        .with_graceful_shutdown(async { drop(stop.await) });
                    ended.await.expect("the server ends in order");
                });
            }
        })
    }

    /// Serves the application of Unix domain sockets at `path`.
    #[cfg(unix)]
    pub(crate) async fn serve_unix(&self, path: &Path) -> Served {
        let (engine, own) = (self.engine, path.to_owned());
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let served = Served::run(nowhere, move |stop| {
            if engine.is_peregrine() {
                let app = unix_domain_socket::app_with_peers();
                run_until(engine.server().unix(own).start_tower(app), stop);
            } else {
                runtime().block_on(async move {
                    let listener = tokio::net::UnixListener::bind(own).expect("the path is free");
                    let make =
                        unix_domain_socket::app().into_make_service_with_connect_info::<UnixPeer>();
                    let ended = axum::serve(listener, make)
                        .with_graceful_shutdown(async { drop(stop.await) });
                    ended.await.expect("the server ends in order");
                });
            }
        });
        until("the server listens", async || tokio::net::UnixStream::connect(path).await.is_ok())
            .await;
        served
    }
}

fn run_until(running: Result<Running, Error>, stop: oneshot::Receiver<()>) {
    let running = running.expect("the server starts");
    drop(stop.blocking_recv());
    let stopped = running.shut_down().expect("the server ends in order");
    assert_eq!(stopped.cut, []);
}

/// The most bytes of a body that axum reads if nobody says otherwise.
pub(crate) const BODY_BYTES_MAX: usize = 2 * 1024 * 1024;

/// A free port of the loopback interface.
pub(crate) fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    listener.set_nonblocking(true).expect("a socket can be made so");
    let address = listener.local_addr().expect("it is bound");
    (listener, address)
}

/// The runtime that a program of tokio has.
pub(crate) fn runtime() -> Runtime {
    let runtime = Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
    runtime.expect("a runtime starts")
}

/// A server at work.
pub(crate) struct Served {
    /// Where it listens, if that is a port.
    pub(crate) address: SocketAddr,
    client: reqwest::Client,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Served {
    /// Runs a server in a thread, until it is told to stop.
    pub(crate) fn run(
        address: SocketAddr,
        serve: impl FnOnce(oneshot::Receiver<()>) + Send + 'static,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || serve(stopped));
        let client = reqwest::Client::builder()
            .no_proxy()
            .use_preconfigured_tls(secure::client_config())
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .expect("the client needs nothing");
        Self { address, client, stop, thread }
    }

    /// A request, to be sent by [`answer`].
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://{}{path}", self.address))
    }

    /// A request over TLS, to be sent by [`answer`].
    pub(crate) fn secure_request(&self, method: Method, path: &str) -> RequestBuilder {
        let port = self.address.port();
        self.client.request(method, format!("https://localhost:{port}{path}"))
    }

    /// What GET is answered.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        answer(self.request(Method::GET, path)).await
    }

    /// What POST with this body is answered.
    pub(crate) async fn post(
        &self,
        path: &str,
        kind: &str,
        body: impl Into<reqwest::Body>,
    ) -> Answer {
        let request = self.request(Method::POST, path).header("content-type", kind);
        answer(request.body(body)).await
    }

    /// A connection without a client's help.
    pub(crate) async fn connect(&self) -> Raw {
        let stream = TcpStream::connect(self.address).await.expect("the server listens");
        Raw { stream, read: Vec::new() }
    }

    /// Tells the server to end, and does not wait for it.
    pub(crate) fn stop(self) -> Ending {
        // Idle connections are the server's to close.
        let Self { client, stop, thread, .. } = self;
        stop.send(()).expect("the server did not end by itself");
        Ending { _client: client, thread }
    }

    /// Ends the server in order.
    pub(crate) async fn end(self) {
        self.stop().wait().await;
    }
}

/// A server that was told to end.
pub(crate) struct Ending {
    _client: reqwest::Client,
    thread: JoinHandle<()>,
}

impl Ending {
    /// Waits until it has ended.
    pub(crate) async fn wait(self) {
        let joined = tokio::task::spawn_blocking(move || self.thread.join()).await;
        joined.expect("joining does not panic").expect("the server does not panic");
    }

    /// Has it ended?
    pub(crate) fn is_over(&self) -> bool {
        self.thread.is_finished()
    }
}

/// An answer with all of its body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) fields: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The body as text.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body is text")
    }

    /// The status and the text.
    pub(crate) fn brief(&self) -> (u16, &str) {
        (self.status.as_u16(), self.text())
    }

    /// A field's first value.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("it is a name");
        self.fields.get(name).map(|value| value.to_str().expect("it is text"))
    }
}

/// Sends a request and takes the whole answer.
pub(crate) async fn answer(request: RequestBuilder) -> Answer {
    let response = request.send().await.expect("the server answers");
    let (status, fields) = (response.status(), response.headers().clone());
    let body = response.bytes().await.expect("the body is whole").to_vec();
    Answer { status, fields, body }
}

/// A connection on which every byte is the test's own.
pub(crate) struct Raw {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Raw {
    /// Sends bytes.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.expect("the server reads");
    }

    /// Says that nothing more is sent.
    pub(crate) async fn half_close(&mut self) {
        self.stream.shutdown().await.expect("the server is there");
    }

    /// Reads until `end` has come, and gives everything up to there.
    pub(crate) async fn until(&mut self, end: &str) -> String {
        loop {
            let found = self.read.windows(end.len()).position(|bytes| bytes == end.as_bytes());
            if let Some(place) = found {
                let rest = self.read.split_off(place + end.len());
                let read = std::mem::replace(&mut self.read, rest);
                return String::from_utf8(read).expect("the server sends text");
            }
            assert!(self.fill().await, "the server ended without {end:?}");
        }
    }

    /// Reads to the end.
    pub(crate) async fn rest(self) -> String {
        String::from_utf8(self.bytes().await).expect("the server sends text")
    }

    /// Reads to the end what need not be text.
    pub(crate) async fn bytes(mut self) -> Vec<u8> {
        while self.fill().await {}
        self.read
    }

    /// The address of this end.
    pub(crate) fn address(&self) -> SocketAddr {
        self.stream.local_addr().expect("it is connected")
    }

    async fn fill(&mut self) -> bool {
        self.stream.read_buf(&mut self.read).await.expect("the server closes in order") > 0
    }
}

/// A WebSocket.
pub(crate) type Socket = WebSocketStream<TcpStream>;

/// Opens a WebSocket, as `agent`.
pub(crate) async fn socket(server: &Served, path: &str, agent: Option<&str>) -> Socket {
    let url = format!("ws://{}{path}", server.address);
    let mut request = url.into_client_request().expect("it is a URL");
    if let Some(agent) = agent {
        request
            .headers_mut()
            .insert("user-agent", HeaderValue::from_str(agent).expect("it is text"));
    }
    let stream = TcpStream::connect(server.address).await.expect("the server listens");
    let opened = tokio_tungstenite::client_async(request, stream).await;
    opened.expect("the server speaks WebSocket").0
}

/// Waits until something is so.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let mut pauses = 0_u32;
    while !is_so().await {
        pauses += 1;
        assert!(pauses < 6_000, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
