//! What a driver needs so that the suite can test it.

use std::future::Future;
use std::io;

use peregrine_driver::{Driver, Listener};

/// A driver under test, with the means to reach it from outside.
pub trait Harness {
    /// The driver.
    type Driver: Driver;
    /// Where a peer connects to.
    type Place: Clone;
    /// A peer.
    type Peer: Peer + 'static;

    /// Runs `case` on the driver, once or (in a simulation) once for each seed. A panic in it
    /// fails the test.
    fn check(&self, case: impl AsyncFn(Self::Driver));

    /// A new place to listen at, and how to get there.
    fn bind(&self, driver: &Self::Driver) -> (<Self::Driver as Driver>::Socket, Self::Place);

    /// A peer that is connected, or at least in the backlog.
    fn connect(&self, driver: &Self::Driver, place: &Self::Place) -> Self::Peer;

    /// Bytes of one send that cannot be done before the peer reads.
    fn large(&self) -> usize;

    /// Listens at a new place.
    fn listen(&self, driver: &Self::Driver) -> (<Self::Driver as Driver>::Listener, Self::Place) {
        let (socket, place) = self.bind(driver);
        (driver.listen(socket).expect("a bound socket can listen"), place)
    }

    /// One connection, both ends.
    fn pair(
        &self,
        driver: &Self::Driver,
    ) -> impl Future<Output = (<Self::Driver as Driver>::Stream, Self::Peer)> {
        async {
            let (listener, place) = self.listen(driver);
            let peer = self.connect(driver, &place);
            (accept(&listener).await, peer)
        }
    }
}

/// The other end of a connection. The connection is closed when it is dropped.
pub trait Peer {
    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// The connection broke.
    fn send(&self, bytes: Vec<u8>) -> impl Future<Output = io::Result<()>>;

    /// Some bytes, none at the end.
    ///
    /// # Errors
    /// The connection broke.
    fn recv(&self) -> impl Future<Output = io::Result<Vec<u8>>>;

    /// Ends the sending side.
    ///
    /// # Errors
    /// The connection broke.
    fn half_close(&self) -> impl Future<Output = io::Result<()>>;

    /// Breaks the connection off. Returns false where the transport knows no reset: then the
    /// connection is closed.
    fn reset(self) -> impl Future<Output = bool>;

    /// Exactly `count` bytes.
    ///
    /// # Errors
    /// The connection broke or ended before.
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
            assert_eq!(all.len(), count, "more came than was asked for");
            Ok(all)
        }
    }

    /// Everything until the end.
    ///
    /// # Errors
    /// The connection broke.
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

/// The most failed attempts in a row that pass for bad luck.
const ATTEMPTS_MAX: usize = 1000;

/// Accepts one connection. A failed attempt says nothing about the next one.
pub(crate) async fn accept<L: Listener>(listener: &L) -> L::Stream {
    for _ in 0..ATTEMPTS_MAX {
        if let Ok(stream) = listener.accept().await {
            return stream;
        }
    }
    panic!("{ATTEMPTS_MAX} attempts to accept failed");
}
