//! Idle connections to one upstream. Each worker has its own pools.

use crate::body::UpstreamRequestBody;
use crate::slots::{SlotLimits, Slots};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use peregrine_web::panic::catch_panic;
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// The minimum time between two searches for expired connections.
const SWEEP_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Sends requests on a connection.
pub(crate) enum UpstreamConnection {
    /// One request at a time.
    Http1(http1::SendRequest<UpstreamRequestBody>),
    /// Many concurrent requests.
    #[cfg(feature = "tls")]
    Http2(Http2Connection),
}

/// An HTTP/2 connection, which many requests share.
#[cfg(feature = "tls")]
#[derive(Clone)]
pub(crate) struct Http2Connection {
    sender: hyper::client::conn::http2::SendRequest<UpstreamRequestBody>,
    /// Counts the requests that use the connection.
    streams: Rc<()>,
    /// The maximum number of requests that use the connection at once.
    concurrent_streams_max: u32,
}

/// The maximum number of requests that share a connection, unless its server allows fewer. Further
/// requests use another connection.
#[cfg(feature = "tls")]
pub(crate) const STREAMS_PER_CONNECTION_MAX: u32 = 100;

impl UpstreamConnection {
    #[cfg(feature = "tls")]
    pub(crate) fn new_http2(
        sender: hyper::client::conn::http2::SendRequest<UpstreamRequestBody>,
        concurrent_streams_max: Option<u32>,
    ) -> Self {
        // A server that allows no streams at first may allow them later. The request that opened
        // the connection waits for that.
        let concurrent_streams_max = concurrent_streams_max
            .unwrap_or(STREAMS_PER_CONNECTION_MAX)
            .clamp(1, STREAMS_PER_CONNECTION_MAX);
        Self::Http2(Http2Connection { sender, streams: Rc::new(()), concurrent_streams_max })
    }

    pub(crate) fn is_http2(&self) -> bool {
        !matches!(self, Self::Http1(_))
    }

    pub(crate) async fn send(
        &mut self,
        request: Request<UpstreamRequestBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<UpstreamRequestBody>>> {
        match self {
            Self::Http1(sender) => sender.try_send_request(request).await,
            #[cfg(feature = "tls")]
            Self::Http2(shared) => shared.sender.try_send_request(request).await,
        }
    }
}

/// The connections to one upstream that can accept requests: idle ones, and shared HTTP/2 ones.
pub(crate) struct ConnectionPool {
    /// HTTP/1.1 connections with the time at which they became idle, oldest first.
    idle: RefCell<Vec<(http1::SendRequest<UpstreamRequestBody>, Instant)>>,
    #[cfg(feature = "tls")]
    /// Shared connections with the time of their last use.
    http2: RefCell<Vec<(Http2Connection, Instant)>>,
    idle_max: usize,
    idle_timeout: Duration,
    pub(crate) slots: Rc<Slots>,
    /// The task that closes expired connections, while there are any.
    sweeper: RefCell<Option<JoinHandle<()>>>,
}

impl Drop for ConnectionPool {
    fn drop(&mut self) {
        if let Some(sweeper) = self.sweeper.take() {
            sweeper.abort();
        }
    }
}

impl ConnectionPool {
    pub(crate) fn new(idle_max: usize, idle_timeout: Duration, limits: SlotLimits) -> Rc<Self> {
        Rc::new(Self {
            slots: Slots::new(limits),
            idle: RefCell::default(),
            #[cfg(feature = "tls")]
            http2: RefCell::default(),
            idle_max,
            idle_timeout,
            sweeper: RefCell::default(),
        })
    }

    /// Checks out the most recently used connection that is still open. An upgrade needs an
    /// HTTP/1.1 connection, because it uses a whole connection.
    pub(crate) fn checkout(&self, is_upgrade: bool) -> Option<UpstreamConnection> {
        #[cfg(feature = "tls")]
        if !is_upgrade && let Some(shared) = self.checkout_http2() {
            return Some(UpstreamConnection::Http2(shared));
        }
        // Unused without the feature `tls`.
        let _ = is_upgrade;
        let mut idle = self.idle.borrow_mut();
        self.evict_expired(&mut idle, Instant::now());
        let mut busy = Vec::new();
        let connection = loop {
            let Some((mut sender, since)) = idle.pop() else { break None };
            // This does not report a close that the connection's task has not seen yet. In that
            // case the request is returned unsent.
            let mut cx = Context::from_waker(Waker::noop());
            match sender.poll_ready(&mut cx) {
                Poll::Ready(Ok(())) => break Some(sender),
                Poll::Ready(Err(_)) => {}
                Poll::Pending => busy.push((sender, since)),
            }
        };
        idle.extend(busy.into_iter().rev().filter(|(sender, _)| !sender.is_closed()));
        connection.map(UpstreamConnection::Http1)
    }

    #[cfg(feature = "tls")]
    fn checkout_http2(&self) -> Option<Http2Connection> {
        let mut connections = self.http2.borrow_mut();
        let has_room = |shared: &Http2Connection| {
            u32::try_from(shared.active_streams())
                .is_ok_and(|streams| streams < shared.concurrent_streams_max)
        };
        self.evict_expired_http2(&mut connections, Instant::now());
        let (shared, since) = connections.iter_mut().find(|(shared, _)| has_room(shared))?;
        *since = Instant::now();
        Some(shared.clone())
    }

    /// Makes a new connection available to other requests, if it can be shared.
    pub(crate) fn insert_http2(self: &Rc<Self>, sender: &UpstreamConnection) {
        #[cfg(feature = "tls")]
        if let UpstreamConnection::Http2(shared) = sender {
            let mut connections = self.http2.borrow_mut();
            if connections.len() < self.idle_max {
                connections.push((shared.clone(), Instant::now()));
                self.schedule_sweep();
            }
        }
        let _ = sender;
    }

    /// Makes a shared connection unavailable to further requests.
    pub(crate) fn remove(&self, sender: &UpstreamConnection) {
        #[cfg(feature = "tls")]
        if let UpstreamConnection::Http2(removed) = sender {
            self.http2
                .borrow_mut()
                .retain(|(other, _)| !Rc::ptr_eq(&other.streams, &removed.streams));
        }
        let _ = sender;
    }

    /// Drops all connections. Called when one has ended during a request, or the upstream was down:
    /// the others have probably ended too.
    pub(crate) fn clear(&self) {
        self.idle.borrow_mut().clear();
        #[cfg(feature = "tls")]
        self.http2.borrow_mut().clear();
    }

    /// Returns a connection whose response was read completely.
    pub(crate) fn put_idle(self: &Rc<Self>, sender: UpstreamConnection) {
        match sender {
            UpstreamConnection::Http1(sender) => {
                let mut idle = self.idle.borrow_mut();
                self.evict_expired(&mut idle, Instant::now());
                if !sender.is_closed() && idle.len() < self.idle_max {
                    idle.push((sender, Instant::now()));
                    self.schedule_sweep();
                }
            }
            #[cfg(feature = "tls")]
            UpstreamConnection::Http2(connection) => {
                let mut connections = self.http2.borrow_mut();
                let entry = connections
                    .iter_mut()
                    .find(|(other, _)| Rc::ptr_eq(&other.streams, &connection.streams));
                if let Some((_, since)) = entry {
                    *since = Instant::now();
                    self.schedule_sweep();
                }
            }
        }
    }

    /// Drops expired connections. The oldest are first.
    fn evict_expired<T>(&self, idle: &mut Vec<(T, Instant)>, now: Instant) {
        let is_old = |since: Instant| now.saturating_duration_since(since) >= self.idle_timeout;
        let expired = idle.iter().take_while(|(_, since)| is_old(*since)).count();
        idle.drain(..expired);
    }

    #[cfg(feature = "tls")]
    fn evict_expired_http2(&self, connections: &mut Vec<(Http2Connection, Instant)>, now: Instant) {
        connections.retain(|(shared, since)| {
            let idle_time = now.saturating_duration_since(*since);
            let is_old = shared.active_streams() == 0 && idle_time >= self.idle_timeout;
            !shared.sender.is_closed() && !is_old
        });
    }

    /// Starts a task that closes expired connections even if no request arrives. Without a runtime,
    /// the next request or response closes them.
    fn schedule_sweep(self: &Rc<Self>) {
        let mut sweeper = self.sweeper.borrow_mut();
        let is_running = sweeper.as_ref().is_some_and(|sweeper| !sweeper.is_finished());
        let can_expire = Instant::now().checked_add(self.idle_timeout).is_some();
        if !is_running && can_expire && Handle::try_current().is_ok() {
            let sweep = sweep(Rc::downgrade(self));
            // `spawn_local` panics if the application runs in a runtime without a `LocalSet`.
            *sweeper = catch_panic("the start of a task", || tokio::task::spawn_local(sweep));
        }
    }

    /// Closes expired connections. Returns when to call this again; `None` if no connection can
    /// expire.
    fn sweep(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut idle = self.idle.borrow_mut();
        self.evict_expired(&mut idle, now);
        let oldest = idle.first().map(|(_, since)| *since);
        #[cfg(feature = "tls")]
        let oldest = {
            let mut connections = self.http2.borrow_mut();
            self.evict_expired_http2(&mut connections, now);
            // Connections in use are checked again later.
            let idle_since =
                |(shared, since): &(Http2Connection, Instant)| match shared.active_streams() {
                    0 => *since,
                    _ => now,
                };
            oldest.into_iter().chain(connections.iter().map(idle_since)).min()
        };
        oldest?.checked_add(self.idle_timeout)
    }
}

#[cfg(feature = "tls")]
impl Http2Connection {
    /// The number of requests on the connection. The pool holds one of the references.
    fn active_streams(&self) -> usize {
        Rc::strong_count(&self.streams) - 1
    }
}

/// Closes expired connections of the pool until it is empty.
async fn sweep(pool: Weak<ConnectionPool>) {
    while let Some(next) = pool.upgrade().and_then(|pool| pool.sweep()) {
        // The time left may be zero; without a minimum, this would be a busy loop.
        let wait = next.saturating_duration_since(Instant::now());
        tokio::time::sleep(wait.max(SWEEP_INTERVAL_MIN)).await;
    }
}
