//! The servers: ours with everything that one port can serve, and tonic's own.

use crate::service::{Seen, TestService};
use peregrine::prelude::TlsConfig;
use peregrine::tower::{Mount, tower};
use peregrine::{App, DriverChoice, Error, Limits, RunningServer, Server};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::service::Routes;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

/// All services: the test service, health and reflection.
///
/// # Panics
/// If a service description is invalid.
#[must_use]
pub fn routes(service: TestService) -> Routes {
    let (reporter, health) = tonic_health::server::health_reporter();
    // The status is set without waiting.
    let serving = reporter.set_service_status("test", tonic_health::ServingStatus::Serving);
    poll_once(serving);
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("the descriptions are right");
    Routes::new(service).add_service(health).add_service(reflection).prepare()
}

/// Polls a future that is ready at once, even where a tokio task has used up its budget.
fn poll_once(future: impl Future) {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let future = tokio::task::unconstrained(future);
    assert!(std::pin::pin!(future).poll(&mut cx).is_ready(), "the future is ready at once");
}

/// An application with its own routes, an axum router and gRPC services, on one address.
#[must_use]
pub fn application(routes: &Routes) -> App {
    let router = axum::Router::new().route("/hello", axum::routing::get("hello from axum"));
    App::new().get("/hello", || "hello").mount("/axum", router).subtree("/", tower(routes.clone()))
}

/// A Peregrine server, plain and with TLS.
#[derive(Debug)]
pub struct Ours {
    running: RunningServer,
    certificate: String,
    /// The counters of its service.
    pub seen: Arc<Seen>,
}

impl Ours {
    /// Starts the server; `None` if the kernel refuses the driver, which is reported on standard
    /// error.
    ///
    /// # Panics
    /// If the server fails to start for another reason.
    #[must_use]
    pub fn start(choice: DriverChoice, limits: Limits) -> Option<Self> {
        let (service, seen) = TestService::new();
        let routes = routes(service);
        Some(Self { seen, ..Self::with(choice, limits, move || application(&routes))? })
    }

    /// The same with another application.
    ///
    /// # Panics
    /// If the server fails to start for another reason than a refused driver.
    #[must_use]
    pub fn with<M>(choice: DriverChoice, limits: Limits, make: M) -> Option<Self>
    where
        M: Fn() -> App + Clone + Send + 'static,
    {
        let made = TlsConfig::self_signed(&["localhost", "127.0.0.1"]);
        let made = made.expect("a certificate can be made");
        let limits = Limits { background_task_timeout: Duration::ZERO, ..limits };
        let server = Server::bind("127.0.0.1:0").listen_tls("127.0.0.1:0", made.tls).driver(choice);
        let workers = NonZeroUsize::new(2).expect("two is not zero");
        match server.workers(workers).limits(limits).quiet().start(make) {
            Err(error @ Error::Driver { .. }) => {
                eprintln!("skipped: {error}");
                None
            }
            running => Some(Self {
                running: running.expect("the server starts"),
                certificate: made.certificate_pem,
                seen: Arc::default(),
            }),
        }
    }

    /// The address of the plain listener.
    ///
    /// # Panics
    /// If it has none.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.running.http_address().expect("the server listens on this port")
    }

    /// A channel without TLS.
    ///
    /// # Panics
    /// If the connection fails.
    pub async fn plain(&self) -> Channel {
        channel(self.address()).await
    }

    /// A channel with TLS.
    ///
    /// # Panics
    /// If the connection fails.
    pub async fn secure(&self) -> Channel {
        let address = self.running.https_address().expect("the server has an HTTPS listener");
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.certificate))
            .domain_name("localhost");
        let endpoint = endpoint(&format!("https://{address}"));
        let endpoint = endpoint.tls_config(tls).expect("the configuration is valid");
        endpoint.connect().await.expect("the server accepts")
    }

    /// Requests the shutdown without waiting for it.
    pub fn order(&self) {
        self.running.handle().graceful_shutdown();
    }

    /// Shuts the server down.
    ///
    /// # Panics
    /// If a worker does not shut down cleanly.
    pub fn end(self) {
        self.running.graceful_shutdown().expect("the workers shut down cleanly");
    }
}

fn endpoint(url: &str) -> Endpoint {
    Endpoint::from_shared(url.to_owned()).expect("the URL is valid")
}

/// A channel without TLS.
///
/// # Panics
/// If the connection fails.
pub async fn channel(address: SocketAddr) -> Channel {
    endpoint(&format!("http://{address}")).connect().await.expect("the server accepts")
}

/// tonic's own server, without TLS. It ends when it is dropped.
#[derive(Debug)]
pub struct Theirs {
    address: SocketAddr,
    serving: JoinHandle<()>,
    /// The counters of its service.
    pub seen: Arc<Seen>,
}

impl Theirs {
    /// Starts the server.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn start() -> Self {
        let (service, seen) = TestService::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("the socket is bound");
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        let serving = tokio::spawn(async move {
            let server = tonic::transport::Server::builder().add_routes(routes(service));
            server.serve_with_incoming(incoming).await.expect("the server runs");
        });
        Self { address, serving, seen }
    }

    /// The server's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
