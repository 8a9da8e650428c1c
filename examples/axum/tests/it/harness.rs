//! Runs one of three kinds of server during a test, and provides clients.

use crate::secure;
use axum::Router;
use axum::extract::connect_info::IntoMakeServiceWithConnectInfo;
use peregrine::tls::TlsConfig;
use peregrine::{DriverChoice, Error, Limits, RunningServer, Server};
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

/// The time limit of a case: only a hang takes this long, even in a debug build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// The number of server threads: more than one, so that shared state is shared across threads.
const THREADS: usize = 2;

/// The kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// `axum::serve`, the reference.
    Axum,
    /// Peregrine on the tokio driver.
    Tokio,
    /// Peregrine on the io_uring driver.
    Uring,
}

impl Engine {
    /// Whether it is Peregrine.
    pub(crate) fn is_peregrine(self) -> bool {
        self != Self::Axum
    }

    /// A Peregrine server without listeners.
    pub(crate) fn server(self) -> Server {
        self.configure(Server::new())
    }

    fn configure(self, server: Server) -> Server {
        let choice = if self == Self::Uring { DriverChoice::Uring } else { DriverChoice::Tokio };
        // Longer than the time limit, so that a hang during shutdown fails the test instead of
        // being cut off. Shutdown waits for tasks too, such as those of a connection pool.
        let (shutdown_timeout, background_task_timeout) = (PATIENCE * 2, PATIENCE * 2);
        let limits = Limits { shutdown_timeout, background_task_timeout, ..Limits::default() };
        let threads = NonZeroUsize::new(THREADS).expect("not zero");
        server.driver(choice).workers(threads).limits(limits).quiet()
    }

    /// Why the engine cannot run on this machine; `None` if it can.
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

/// Runs `case` if the kernel supports the engine.
pub(crate) fn check(engine: Engine, case: impl AsyncFnOnce(Host)) {
    if let Some(reason) = engine.refusal() {
        eprintln!("skipped: {reason}");
        return;
    }
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    runtime.block_on(async {
        let outcome = tokio::time::timeout(PATIENCE, case(Host { engine })).await;
        outcome.expect("the case does not hang");
    });
}

/// Generates a test for each case of each application under each server.
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
    /// The kind.
    pub(crate) engine: Engine,
}

/// The service to run.
enum App {
    Plain(Router),
    ByPeer(IntoMakeServiceWithConnectInfo<Router, SocketAddr>),
}

impl Host {
    /// Serves a router on a free port.
    pub(crate) fn serve(&self, router: Router) -> Served {
        self.start(App::Plain(router))
    }

    /// Serves a router that reads its clients' addresses.
    pub(crate) fn serve_by_peer(
        &self,
        make: IntoMakeServiceWithConnectInfo<Router, SocketAddr>,
    ) -> Served {
        self.start(App::ByPeer(make))
    }

    /// The same code for both servers, except for the name of the crate.
    fn start(&self, app: App) -> Served {
        let engine = self.engine;
        let (listener, address) = listener();
        Served::run(address, move |stop| {
            runtime().block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener);
                let listener = listener.expect("the listener is non-blocking");
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
                    ended.expect("a graceful shutdown");
                } else {
                    let ended = match app {
                        App::Plain(router) => {
                            axum::serve(listener, router).with_graceful_shutdown(stop).await
                        }
                        App::ByPeer(make) => {
                            axum::serve(listener, make).with_graceful_shutdown(stop).await
                        }
                    };
                    ended.expect("a graceful shutdown");
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
                listener.set_nonblocking(false).expect("a valid socket");
                let (certificate, key) = secure::pem();
                let tls = TlsConfig::from_pem(certificate.as_bytes(), key.as_bytes());
                let tls = tls.expect("the key matches the certificate");
                let server = engine.server().listen_tls_socket(listener, tls);
                run_until(server.start_tower(router), stop);
            } else {
                runtime().block_on(async move {
                    let listener = tokio::net::TcpListener::from_std(listener);
                    let listener = listener.expect("the listener is non-blocking");
                    let ended = axum::serve(secure::SecureListener::new(listener), router)
                        .with_graceful_shutdown(async { drop(stop.await) });
                    ended.await.expect("a graceful shutdown");
                });
            }
        })
    }

    /// Serves the Unix domain socket example at `path`.
    #[cfg(unix)]
    pub(crate) async fn serve_unix(&self, path: &Path) -> Served {
        let (engine, own) = (self.engine, path.to_owned());
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let served = Served::run(nowhere, move |stop| {
            if engine.is_peregrine() {
                let app = unix_domain_socket::app_with_peers();
                run_until(engine.server().listen_unix(own).start_tower(app), stop);
            } else {
                runtime().block_on(async move {
                    let listener = tokio::net::UnixListener::bind(own).expect("the path is free");
                    let make =
                        unix_domain_socket::app().into_make_service_with_connect_info::<UnixPeer>();
                    let ended = axum::serve(listener, make)
                        .with_graceful_shutdown(async { drop(stop.await) });
                    ended.await.expect("a graceful shutdown");
                });
            }
        });
        wait_until("the server listens", async || {
            tokio::net::UnixStream::connect(path).await.is_ok()
        })
        .await;
        served
    }
}

fn run_until(running: Result<RunningServer, Error>, stop: oneshot::Receiver<()>) {
    let running = running.expect("the server starts");
    drop(stop.blocking_recv());
    let stopped = running.graceful_shutdown().expect("a graceful shutdown");
    assert_eq!(stopped.force_closed, []);
}

/// axum's default limit on the body size, in bytes.
pub(crate) const BODY_BYTES_MAX: usize = 2 * 1024 * 1024;

/// A listener on a free port of the loopback interface.
pub(crate) fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    listener.set_nonblocking(true).expect("a valid socket");
    let address = listener.local_addr().expect("it is bound");
    (listener, address)
}

/// A multi-threaded runtime, as most tokio programs use.
pub(crate) fn runtime() -> Runtime {
    let runtime = Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
    runtime.expect("a runtime starts")
}

/// A running server.
pub(crate) struct Served {
    /// The address it listens on, unless that is a Unix socket.
    pub(crate) address: SocketAddr,
    client: reqwest::Client,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Served {
    /// Runs a server in a thread until it is stopped.
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
            .expect("the configuration is valid");
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

    /// The response to a GET request.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        answer(self.request(Method::GET, path)).await
    }

    /// The response to a POST request with this body.
    pub(crate) async fn post(
        &self,
        path: &str,
        kind: &str,
        body: impl Into<reqwest::Body>,
    ) -> Answer {
        let request = self.request(Method::POST, path).header("content-type", kind);
        answer(request.body(body)).await
    }

    /// A raw connection.
    pub(crate) async fn connect(&self) -> Raw {
        let stream = TcpStream::connect(self.address).await.expect("the server listens");
        Raw { stream, read: Vec::new() }
    }

    /// Starts the shutdown of the server without waiting for it.
    pub(crate) fn stop(self) -> Ending {
        // The client is kept open: the server must close idle connections.
        let Self { client, stop, thread, .. } = self;
        stop.send(()).expect("the server is still running");
        Ending { _client: client, thread }
    }

    /// Shuts the server down gracefully.
    pub(crate) async fn end(self) {
        self.stop().wait().await;
    }
}

/// A server that is shutting down.
pub(crate) struct Ending {
    _client: reqwest::Client,
    thread: JoinHandle<()>,
}

impl Ending {
    /// Waits until the server has stopped.
    pub(crate) async fn wait(self) {
        let joined = tokio::task::spawn_blocking(move || self.thread.join()).await;
        joined.expect("joining does not panic").expect("the server does not panic");
    }

    /// Whether the server has stopped.
    pub(crate) fn is_over(&self) -> bool {
        self.thread.is_finished()
    }
}

/// A response with its whole body.
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

    /// The first value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a valid name");
        self.fields.get(name).map(|value| value.to_str().expect("the value is text"))
    }
}

/// Sends a request and reads the whole response.
pub(crate) async fn answer(request: RequestBuilder) -> Answer {
    let response = request.send().await.expect("the server responds");
    let (status, fields) = (response.status(), response.headers().clone());
    let body = response.bytes().await.expect("the body is complete").to_vec();
    Answer { status, fields, body }
}

/// A connection on which the test sends and receives raw bytes.
pub(crate) struct Raw {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Raw {
    /// Sends bytes.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.expect("the server reads");
    }

    /// Shuts down the sending side.
    pub(crate) async fn half_close(&mut self) {
        self.stream.shutdown().await.expect("the connection is open");
    }

    /// Reads until `end` arrives and returns everything up to and including it.
    pub(crate) async fn read_until(&mut self, end: &str) -> String {
        loop {
            let found = self.read.windows(end.len()).position(|bytes| bytes == end.as_bytes());
            if let Some(place) = found {
                let rest = self.read.split_off(place + end.len());
                let read = std::mem::replace(&mut self.read, rest);
                return String::from_utf8(read).expect("the server sends text");
            }
            assert!(self.fill().await, "the server closed before sending {end:?}");
        }
    }

    /// Reads text to the end.
    pub(crate) async fn rest(self) -> String {
        String::from_utf8(self.bytes().await).expect("the server sends text")
    }

    /// Reads bytes to the end.
    pub(crate) async fn bytes(mut self) -> Vec<u8> {
        while self.fill().await {}
        self.read
    }

    /// The local address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.stream.local_addr().expect("it is connected")
    }

    async fn fill(&mut self) -> bool {
        self.stream.read_buf(&mut self.read).await.expect("the server closes properly") > 0
    }
}

/// A WebSocket.
pub(crate) type Socket = WebSocketStream<TcpStream>;

/// Opens a WebSocket, as `agent`.
pub(crate) async fn socket(server: &Served, path: &str, agent: Option<&str>) -> Socket {
    let url = format!("ws://{}{path}", server.address);
    let mut request = url.into_client_request().expect("a valid URL");
    if let Some(agent) = agent {
        request
            .headers_mut()
            .insert("user-agent", HeaderValue::from_str(agent).expect("it is text"));
    }
    let stream = TcpStream::connect(server.address).await.expect("the server listens");
    let opened = tokio_tungstenite::client_async(request, stream).await;
    opened.expect("the server speaks WebSocket").0
}

/// Waits until a condition is true; `what` describes it.
pub(crate) async fn wait_until<F: Future<Output = bool>>(
    description: &str,
    mut condition: impl FnMut() -> F,
) {
    let mut pauses = 0_u32;
    while !condition().await {
        pauses += 1;
        assert!(pauses < 6_000, "timed out waiting until {description}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
