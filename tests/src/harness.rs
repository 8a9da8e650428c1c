//! The interface that a driver must provide to be tested by the suite.

use std::future::Future;
use std::io;

use peregrine_driver::{Driver, Listener};

/// A driver under test, and how peers reach it.
pub trait Harness {
    /// The driver.
    type Driver: Driver;
    /// The address that a peer connects to.
    type ServerAddress: Clone;
    /// A peer.
    type Peer: Peer + 'static;

    /// Runs `case` on the driver: once, or, in a simulation, once per seed. A panic in it fails the
    /// test.
    fn check(&self, case: impl AsyncFn(Self::Driver));

    /// Binds a new socket, and returns it with its address.
    fn bind(
        &self,
        driver: &Self::Driver,
    ) -> (<Self::Driver as Driver>::Socket, Self::ServerAddress);

    /// A peer that is connected, or at least in the backlog.
    fn connect(&self, driver: &Self::Driver, server_address: &Self::ServerAddress) -> Self::Peer;

    /// The size of a send that cannot complete before the peer reads.
    fn large(&self) -> usize;

    /// Listens on a new address.
    fn listen(
        &self,
        driver: &Self::Driver,
    ) -> (<Self::Driver as Driver>::Listener, Self::ServerAddress) {
        let (socket, server_address) = self.bind(driver);
        (driver.listen(socket).expect("a bound socket can listen"), server_address)
    }

    /// Both ends of one connection.
    fn pair(
        &self,
        driver: &Self::Driver,
    ) -> impl Future<Output = (<Self::Driver as Driver>::Stream, Self::Peer)> {
        async {
            let (listener, server_address) = self.listen(driver);
            let peer = self.connect(driver, &server_address);
            (accept(&listener).await, peer)
        }
    }
}

/// The other end of a connection. Dropping it closes the connection.
pub trait Peer {
    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// If the connection broke.
    fn send(&self, bytes: Vec<u8>) -> impl Future<Output = io::Result<()>>;

    /// Some bytes; none at the end of the stream.
    ///
    /// # Errors
    /// If the connection broke.
    fn recv(&self) -> impl Future<Output = io::Result<Vec<u8>>>;

    /// Ends the sending side.
    ///
    /// # Errors
    /// If the connection broke.
    fn half_close(&self) -> impl Future<Output = io::Result<()>>;

    /// Resets the connection. Returns false if the transport has no reset; the connection is closed
    /// instead.
    fn reset(self) -> impl Future<Output = bool>;

    /// Exactly `count` bytes.
    ///
    /// # Errors
    /// If the connection broke or ended early.
    fn recv_exact(&self, count: usize) -> impl Future<Output = io::Result<Vec<u8>>> {
        async move {
            let mut all = Vec::new();
            while all.len() < count {
                let bytes = self.recv().await?;
                if bytes.is_empty() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                all.extend(bytes);
            }
            assert_eq!(all.len(), count, "more bytes arrived than requested");
            Ok(all)
        }
    }

    /// Everything until the end of the stream.
    ///
    /// # Errors
    /// If the connection broke.
    fn recv_all(&self) -> impl Future<Output = io::Result<Vec<u8>>> {
        async move {
            let mut all = Vec::new();
            loop {
                let bytes = self.recv().await?;
                if bytes.is_empty() {
                    return Ok(all);
                }
                all.extend(bytes);
            }
        }
    }
}

/// How many consecutive failed attempts to accept are tolerated.
const ATTEMPTS_MAX: usize = 1000;

/// Accepts one connection, retrying: one failed attempt does not mean that the next one fails.
pub(crate) async fn accept<L: Listener>(listener: &L) -> L::Stream {
    for _ in 0..ATTEMPTS_MAX {
        if let Ok(stream) = listener.accept().await {
            return stream;
        }
    }
    panic!("{ATTEMPTS_MAX} attempts to accept failed");
}
