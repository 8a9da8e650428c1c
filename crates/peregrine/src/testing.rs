//! A server on a free port of the loopback interface, for tests that require real sockets.
//!
//! Most tests do not need real sockets: `App::test` calls the application in process, which is
//! faster.

use crate::server::Server;
use crate::server::make_app::MakeApp;
use peregrine_runtime::{Error, RunningServer};
use std::net::SocketAddr;
use std::num::NonZeroUsize;

/// A server for the duration of a test. Dropping it cuts all of its connections.
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
    /// Starts a server for the application that `make` returns, with one worker, on the driver that
    /// [`Server`] chooses by default.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn start<Via, M: MakeApp<Via>>(make: M) -> Result<Self, Error> {
        Self::start_with(|server| server, make)
    }

    /// Like [`start`](Self::start), but `configure` can first change the server's settings.
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

    /// Returns the server's URL: `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the address to connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the running server.
    #[must_use]
    pub fn server(&self) -> &RunningServer {
        &self.server
    }

    /// Converts this into the running server, for a graceful shutdown.
    #[must_use]
    pub fn into_server(self) -> RunningServer {
        self.server
    }
}
