//! Connections to upstreams that wait for another request, a stock per worker.

use crate::body::Sent;
use crate::upstreams::Upstream;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// What hyper keeps of a head that is not whole yet.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The way to one request at a time on a connection.
pub(crate) type Sender = SendRequest<Sent>;

/// The connections to one upstream that have nothing to do.
pub(crate) struct Pool {
    idle: RefCell<Vec<(Sender, Instant)>>,
    idle_max: usize,
    idle_timeout: Duration,
}

impl Pool {
    pub(crate) fn new(idle_max: usize, idle_timeout: Duration) -> Rc<Self> {
        Rc::new(Self { idle: RefCell::default(), idle_max, idle_timeout })
    }

    /// The one that was used last and is sound still.
    pub(crate) fn take(&self) -> Option<Sender> {
        let mut idle = self.idle.borrow_mut();
        self.drop_old(&mut idle);
        let mut busy = Vec::new();
        let found = loop {
            let Some((mut sender, since)) = idle.pop() else { break None };
            // What its task has not heard of yet, this does not tell; then the request comes back unsent.
            let mut context = std::task::Context::from_waker(Waker::noop());
            match sender.poll_ready(&mut context) {
                Poll::Ready(Ok(())) => break Some(sender),
                Poll::Ready(Err(_)) => {}
                Poll::Pending => busy.push((sender, since)),
            }
        };
        idle.extend(busy.into_iter().rev().filter(|(sender, _)| !sender.is_closed()));
        found
    }

    /// Closes all: one has ended under a request, and the others may be as old.
    pub(crate) fn clear(&self) {
        self.idle.borrow_mut().clear();
    }

    pub(crate) fn give(&self, sender: Sender) {
        let mut idle = self.idle.borrow_mut();
        self.drop_old(&mut idle);
        if !sender.is_closed() && idle.len() < self.idle_max {
            idle.push((sender, Instant::now()));
        }
    }

    /// The oldest come first.
    fn drop_old(&self, idle: &mut Vec<(Sender, Instant)>) {
        let old = idle.iter().take_while(|(_, since)| since.elapsed() >= self.idle_timeout).count();
        idle.drain(..old);
    }
}

/// A new connection. Its task ends with its sender, or with the response that is under way.
pub(crate) async fn connect(upstream: &Upstream) -> io::Result<Sender> {
    let stream = TcpStream::connect((upstream.host.as_str(), upstream.port)).await?;
    stream.set_nodelay(true)?;
    let handshake = Builder::new().max_buf_size(HEAD_BYTES_MAX).handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(io::Error::other)?;
    drop(tokio::task::spawn_local(async move {
        // How it ended, whoever waits for its response is told.
        let _ = connection.with_upgrades().await;
    }));
    poll_fn(|context| sender.poll_ready(context)).await.map_err(io::Error::other)?;
    Ok(sender)
}
