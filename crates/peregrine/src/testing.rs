//! A server on a free port of the loopback interface, for tests that need real sockets.
//!
//! Most tests do not need them: `App::test` calls the application in process, which is faster.

use crate::error::Error;
use crate::runtime::make_app::MakeApp;
use crate::runtime::running::RunningServer;
use crate::server::Server;
use std::net::SocketAddr;
use std::num::NonZeroUsize;

/// A server for the duration of a test. Dropping it cuts all its connections.
///
/// ```no_run
/// use peregrine::prelude::*;
/// use peregrine::testing::TestServer;
///
/// let server = TestServer::start(|| App::new().get("/", || async { "Hello" })).unwrap();
/// // Any client: server.url() is http://127.0.0.1:PORT
/// ```
#[derive(Debug)]
pub struct TestServer {
    server: RunningServer,
    address: SocketAddr,
}

impl TestServer {
    /// Starts `make`'s application with one worker, on the driver that [`Server`] chooses by
    /// default.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn start<Via, M: MakeApp<Via>>(make: M) -> Result<Self, Error> {
        Self::start_with(|server| server, make)
    }

    /// Like [`start`](Self::start), with a server that `configure` changes first.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn start_with<Via, M: MakeApp<Via>>(
        configure: impl FnOnce(Server) -> Server,
        make: M,
    ) -> Result<Self, Error> {
        let server = Server::bind("127.0.0.1:0").workers(NonZeroUsize::MIN).quiet();
        let running = configure(server).start(make)?;
        let address = running.http_address().expect("the server was bound to a TCP address");
        Ok(Self { server: running, address })
    }

    /// The server's URL: `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The address to connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The server itself.
    #[must_use]
    pub fn server(&self) -> &RunningServer {
        &self.server
    }

    /// Returns the server, for a graceful shutdown.
    #[must_use]
    pub fn into_server(self) -> RunningServer {
        self.server
    }
}
