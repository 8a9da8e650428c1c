//! Shared code of the driver's tests.

use std::cell::Cell;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use peregrine_driver::{Driver, Listener, Options, Socket, Stream};
use peregrine_driver_uring::{Uring, UringListener, UringStream};

/// How long a test waits before it fails.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn tcp() -> (Socket, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let loopback: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&loopback.into()).unwrap();
    // Bursts of connections that the worker cannot accept at once stay here, without a retry after
    // 1 s.
    socket.listen(1024).unwrap();
    let listener: TcpListener = socket.into();
    let address = listener.local_addr().unwrap();
    (Socket::Tcp(listener), address)
}

/// Runs `main` as a worker on a new thread.
pub(crate) fn worker<M, F>(options: Options, main: M) -> JoinHandle<F::Output>
where
    M: FnOnce(Uring) -> F + Send + 'static,
    F: Future,
    F::Output: Send + 'static,
{
    thread::spawn(move || Uring::run(&options, main).unwrap())
}

/// Joins a thread, and fails instead of hanging.
pub(crate) fn join<T: Send + 'static>(handle: JoinHandle<T>) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(handle.join()));
    match receiver.recv_timeout(TEST_TIMEOUT) {
        Ok(Ok(output)) => output,
        Ok(Err(payload)) => std::panic::resume_unwind(payload),
        Err(_) => panic!("the thread did not end"),
    }
}

/// Echoes received bytes until the end of input.
pub(crate) async fn echo(stream: UringStream) {
    let mut out = Vec::new();
    loop {
        let Ok(chunk) = stream.recv().await else { return };
        if chunk.is_empty() {
            let _ = finish(&stream).await;
            return;
        }
        out.extend_from_slice(&chunk);
        drop(chunk);
        stream.send(&mut out);
        if stream.flush().await.is_err() {
            return;
        }
    }
}

/// Sends `bytes` and waits until the kernel has them.
pub(crate) async fn send(stream: &UringStream, mut bytes: Vec<u8>) -> std::io::Result<()> {
    stream.send(&mut bytes);
    stream.flush().await
}

/// Shuts down sending and waits until that is done.
pub(crate) async fn finish(stream: &UringStream) -> std::io::Result<()> {
    stream.finish();
    stream.flush().await
}

/// Accepts and echoes `count` connections. Returns a counter of finished ones.
pub(crate) async fn echo_all(
    driver: &Uring,
    listener: &UringListener,
    count: usize,
) -> Rc<Cell<usize>> {
    let finished = Rc::new(Cell::new(0));
    for _ in 0..count {
        let stream = listener.accept().await.unwrap();
        let finished = Rc::clone(&finished);
        driver.spawn(async move {
            echo(stream).await;
            finished.set(finished.get() + 1);
        });
    }
    finished
}

/// Reads until `count` bytes were received.
pub(crate) async fn read(stream: &UringStream, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < count {
        let chunk = stream.recv().await.unwrap();
        assert!(!chunk.is_empty(), "the input ended after {} of {count} bytes", bytes.len());
        bytes.extend_from_slice(&chunk);
    }
    bytes
}

/// Lets the loop run for a while.
pub(crate) async fn pause(driver: &Uring, ms: u64) {
    driver.sleep_until(driver.now() + Duration::from_millis(ms)).await;
}

/// Waits until `condition` returns true, or fails.
pub(crate) async fn wait_until(driver: &Uring, what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = driver.now() + TEST_TIMEOUT;
    while !condition() {
        assert!(driver.now() < deadline, "timed out: {what}");
        pause(driver, 2).await;
    }
}

/// Bytes whose values depend on their position.
pub(crate) fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|index| (index % 251) as u8 ^ (index >> 8) as u8).collect()
}
