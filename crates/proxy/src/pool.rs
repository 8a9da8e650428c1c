//! Idle connections to one upstream. Each worker has its own pools.

use crate::body::Sent;
use crate::slots::{SlotLimits, Slots};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use peregrine_web::panics::guarded;
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// The minimum time between two searches for expired connections.
const SWEEP_TIME_MIN: Duration = Duration::from_millis(100);

/// Sends requests on a connection.
pub(crate) enum Sender {
    /// One request at a time.
    Http1(http1::SendRequest<Sent>),
    /// Many concurrent requests.
    #[cfg(feature = "tls")]
    Http2(Shared),
}

/// A connection that many requests share.
#[cfg(feature = "tls")]
#[derive(Clone)]
pub(crate) struct Shared {
    sender: hyper::client::conn::http2::SendRequest<Sent>,
    /// Counts the requests that use the connection.
    users: Rc<()>,
    /// The maximum number of requests that use the connection.
    users_max: u32,
}

/// The maximum number of requests that share a connection, unless its server allows fewer. Further
/// requests use another connection.
#[cfg(feature = "tls")]
pub(crate) const USERS_MAX: u32 = 100;

impl Sender {
    #[cfg(feature = "tls")]
    pub(crate) fn shared(
        sender: hyper::client::conn::http2::SendRequest<Sent>,
        streams_max: Option<u32>,
    ) -> Self {
        // A server that allows no streams at first may allow them later. The request that opened
        // the connection waits for that.
        let users_max = streams_max.unwrap_or(USERS_MAX).clamp(1, USERS_MAX);
        Self::Http2(Shared { sender, users: Rc::new(()), users_max })
    }

    pub(crate) fn is_http2(&self) -> bool {
        !matches!(self, Self::Http1(_))
    }

    pub(crate) async fn send(
        &mut self,
        request: Request<Sent>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Sent>>> {
        match self {
            Self::Http1(sender) => sender.try_send_request(request).await,
            #[cfg(feature = "tls")]
            Self::Http2(shared) => shared.sender.try_send_request(request).await,
        }
    }
}

/// The idle connections to one upstream, and those that can take further requests.
pub(crate) struct Pool {
    idle: RefCell<Vec<(http1::SendRequest<Sent>, Instant)>>,
    #[cfg(feature = "tls")]
    shared: RefCell<Vec<(Shared, Instant)>>,
    idle_max: usize,
    idle_timeout: Duration,
    pub(crate) slots: Rc<Slots>,
    /// The task that closes expired connections, while there are any.
    sweeper: RefCell<Option<JoinHandle<()>>>,
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(sweeper) = self.sweeper.take() {
            sweeper.abort();
        }
    }
}

impl Pool {
    pub(crate) fn new(idle_max: usize, idle_timeout: Duration, limits: SlotLimits) -> Rc<Self> {
        Rc::new(Self {
            slots: Slots::new(limits),
            idle: RefCell::default(),
            #[cfg(feature = "tls")]
            shared: RefCell::default(),
            idle_max,
            idle_timeout,
            sweeper: RefCell::default(),
        })
    }

    /// Takes the connection that was used last and is still open. An upgrade needs an HTTP/1.1
    /// connection, because it uses a whole connection.
    pub(crate) fn take(&self, is_upgrade: bool) -> Option<Sender> {
        #[cfg(feature = "tls")]
        if !is_upgrade && let Some(shared) = self.take_shared() {
            return Some(Sender::Http2(shared));
        }
        let _ = is_upgrade;
        let mut idle = self.idle.borrow_mut();
        self.drop_old(&mut idle, Instant::now());
        let mut busy = Vec::new();
        let found = loop {
            let Some((mut sender, since)) = idle.pop() else { break None };
            // This does not report a close that the connection's task has not seen yet. In that
            // case the request is returned unsent.
            let mut context = Context::from_waker(Waker::noop());
            match sender.poll_ready(&mut context) {
                Poll::Ready(Ok(())) => break Some(sender),
                Poll::Ready(Err(_)) => {}
                Poll::Pending => busy.push((sender, since)),
            }
        };
        idle.extend(busy.into_iter().rev().filter(|(sender, _)| !sender.is_closed()));
        found.map(Sender::Http1)
    }

    #[cfg(feature = "tls")]
    fn take_shared(&self) -> Option<Shared> {
        let mut all = self.shared.borrow_mut();
        let has_room = |shared: &Shared| {
            u32::try_from(shared.users()).is_ok_and(|users| users < shared.users_max)
        };
        self.drop_old_shared(&mut all, Instant::now());
        let (shared, since) = all.iter_mut().find(|(shared, _)| has_room(shared))?;
        *since = Instant::now();
        Some(shared.clone())
    }

    /// Makes a connection available to other requests, if it can be shared.
    pub(crate) fn share(self: &Rc<Self>, sender: &Sender) {
        #[cfg(feature = "tls")]
        if let Sender::Http2(shared) = sender {
            let mut all = self.shared.borrow_mut();
            if all.len() < self.idle_max {
                all.push((shared.clone(), Instant::now()));
                self.sweep_later();
            }
        }
        let _ = sender;
    }

    /// Makes a shared connection unavailable to further requests.
    pub(crate) fn forget(&self, sender: &Sender) {
        #[cfg(feature = "tls")]
        if let Sender::Http2(gone) = sender {
            self.shared.borrow_mut().retain(|(one, _)| !Rc::ptr_eq(&one.users, &gone.users));
        }
        let _ = sender;
    }

    /// Drops all connections: one has ended during a request, and the others may be as old.
    pub(crate) fn clear(&self) {
        self.idle.borrow_mut().clear();
        #[cfg(feature = "tls")]
        self.shared.borrow_mut().clear();
    }

    pub(crate) fn give(self: &Rc<Self>, sender: Sender) {
        match sender {
            Sender::Http1(sender) => {
                let mut idle = self.idle.borrow_mut();
                self.drop_old(&mut idle, Instant::now());
                if !sender.is_closed() && idle.len() < self.idle_max {
                    idle.push((sender, Instant::now()));
                    self.sweep_later();
                }
            }
            #[cfg(feature = "tls")]
            Sender::Http2(mine) => {
                let mut all = self.shared.borrow_mut();
                let known = all.iter_mut().find(|(one, _)| Rc::ptr_eq(&one.users, &mine.users));
                if let Some((_, since)) = known {
                    *since = Instant::now();
                    self.sweep_later();
                }
            }
        }
    }

    /// Drops expired connections. The oldest are first.
    fn drop_old<T>(&self, idle: &mut Vec<(T, Instant)>, now: Instant) {
        let is_old = |since: Instant| now.saturating_duration_since(since) >= self.idle_timeout;
        let old = idle.iter().take_while(|(_, since)| is_old(*since)).count();
        idle.drain(..old);
    }

    #[cfg(feature = "tls")]
    fn drop_old_shared(&self, all: &mut Vec<(Shared, Instant)>, now: Instant) {
        all.retain(|(shared, since)| {
            let passed = now.saturating_duration_since(*since);
            let is_old = shared.users() == 0 && passed >= self.idle_timeout;
            !shared.sender.is_closed() && !is_old
        });
    }

    /// Starts a task that closes expired connections even if no request arrives. Without a runtime,
    /// the next request or response closes them.
    fn sweep_later(self: &Rc<Self>) {
        let mut sweeper = self.sweeper.borrow_mut();
        let is_there = sweeper.as_ref().is_some_and(|sweeper| !sweeper.is_finished());
        let has_end = Instant::now().checked_add(self.idle_timeout).is_some();
        if !is_there && has_end && Handle::try_current().is_ok() {
            let sweep = sweep(Rc::downgrade(self));
            // A runtime of another server may not support `spawn_local`, which panics then.
            *sweeper = guarded("the start of a task", || tokio::task::spawn_local(sweep));
        }
    }

    /// Closes expired connections. Returns when to call this again; `None` if no connection can
    /// expire.
    fn sweep(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut idle = self.idle.borrow_mut();
        self.drop_old(&mut idle, now);
        let first = idle.first().map(|(_, since)| *since);
        #[cfg(feature = "tls")]
        let first = {
            let mut all = self.shared.borrow_mut();
            self.drop_old_shared(&mut all, now);
            // Connections in use are checked again later.
            let shared = |(shared, since): &(Shared, Instant)| match shared.users() {
                0 => *since,
                _ => now,
            };
            first.into_iter().chain(all.iter().map(shared)).min()
        };
        first?.checked_add(self.idle_timeout)
    }
}

#[cfg(feature = "tls")]
impl Shared {
    /// The number of requests on the connection. The pool's own reference does not count.
    fn users(&self) -> usize {
        Rc::strong_count(&self.users) - 1
    }
}

/// Closes expired connections of the pool until it is empty.
async fn sweep(pool: Weak<Pool>) {
    while let Some(next) = pool.upgrade().and_then(|pool| pool.sweep()) {
        // Connections in use are checked repeatedly, and the time left may be zero.
        let wait = next.saturating_duration_since(Instant::now());
        tokio::time::sleep(wait.max(SWEEP_TIME_MIN)).await;
    }
}
