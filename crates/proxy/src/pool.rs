//! Connections to upstreams that wait for another request, a stock per worker.

use crate::body::Sent;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The way to requests on a connection.
pub(crate) enum Sender {
    /// One at a time.
    Http1(http1::SendRequest<Sent>),
    /// Many at once.
    #[cfg(feature = "tls")]
    Http2(Shared),
}

/// A connection that many requests share.
#[cfg(feature = "tls")]
#[derive(Clone)]
pub(crate) struct Shared {
    sender: hyper::client::conn::http2::SendRequest<Sent>,
    /// Counts who has one.
    users: Rc<()>,
    /// As many may have one.
    users_max: u32,
}

/// So many requests share a connection, or as many as its server takes at a time; for more there is another one.
#[cfg(feature = "tls")]
pub(crate) const USERS_MAX: u32 = 100;

impl Sender {
    #[cfg(feature = "tls")]
    pub(crate) fn shared(
        sender: hyper::client::conn::http2::SendRequest<Sent>,
        streams_max: Option<u32>,
    ) -> Self {
        // A server that takes none at present may later, and the one that asked for the connection waits for that.
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

/// The connections to one upstream that have nothing to do, and those that have room for more.
pub(crate) struct Pool {
    idle: RefCell<Vec<(http1::SendRequest<Sent>, Instant)>>,
    #[cfg(feature = "tls")]
    shared: RefCell<Vec<(Shared, Instant)>>,
    idle_max: usize,
    idle_timeout: Duration,
}

impl Pool {
    pub(crate) fn new(idle_max: usize, idle_timeout: Duration) -> Rc<Self> {
        Rc::new(Self {
            idle: RefCell::default(),
            #[cfg(feature = "tls")]
            shared: RefCell::default(),
            idle_max,
            idle_timeout,
        })
    }

    /// The one that was used last and is sound still. An upgrade takes a whole connection, so that only one of HTTP/1.1 will do.
    pub(crate) fn take(&self, is_upgrade: bool) -> Option<Sender> {
        #[cfg(feature = "tls")]
        if !is_upgrade && let Some(shared) = self.take_shared() {
            return Some(Sender::Http2(shared));
        }
        let _ = is_upgrade;
        let mut idle = self.idle.borrow_mut();
        self.drop_old(&mut idle);
        let mut busy = Vec::new();
        let found = loop {
            let Some((mut sender, since)) = idle.pop() else { break None };
            // What its task has not heard of yet, this does not tell; then the request comes back unsent.
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
        // The stock itself has one.
        let users = |shared: &Shared| Rc::strong_count(&shared.users) - 1;
        let has_room = |shared: &Shared| {
            u32::try_from(users(shared)).is_ok_and(|users| users < shared.users_max)
        };
        all.retain(|(shared, since)| {
            let is_old = users(shared) == 0 && since.elapsed() >= self.idle_timeout;
            !shared.sender.is_closed() && !is_old
        });
        let (shared, since) = all.iter_mut().find(|(shared, _)| has_room(shared))?;
        *since = Instant::now();
        Some(shared.clone())
    }

    /// Notes a connection that others may share from now on.
    pub(crate) fn share(&self, sender: &Sender) {
        #[cfg(feature = "tls")]
        if let Sender::Http2(shared) = sender {
            let mut all = self.shared.borrow_mut();
            if all.len() < self.idle_max {
                all.push((shared.clone(), Instant::now()));
            }
        }
        let _ = sender;
    }

    /// Gives nobody a connection any more that many share.
    pub(crate) fn forget(&self, sender: &Sender) {
        #[cfg(feature = "tls")]
        if let Sender::Http2(gone) = sender {
            self.shared.borrow_mut().retain(|(one, _)| !Rc::ptr_eq(&one.users, &gone.users));
        }
        let _ = sender;
    }

    /// Forgets all: one has ended under a request, and the others may be as old.
    pub(crate) fn clear(&self) {
        self.idle.borrow_mut().clear();
        #[cfg(feature = "tls")]
        self.shared.borrow_mut().clear();
    }

    pub(crate) fn give(&self, sender: Sender) {
        match sender {
            Sender::Http1(sender) => {
                let mut idle = self.idle.borrow_mut();
                self.drop_old(&mut idle);
                if !sender.is_closed() && idle.len() < self.idle_max {
                    idle.push((sender, Instant::now()));
                }
            }
            #[cfg(feature = "tls")]
            Sender::Http2(mine) => {
                let mut all = self.shared.borrow_mut();
                let known = all.iter_mut().find(|(one, _)| Rc::ptr_eq(&one.users, &mine.users));
                if let Some((_, since)) = known {
                    *since = Instant::now();
                }
            }
        }
    }

    /// The oldest come first.
    fn drop_old<T>(&self, idle: &mut Vec<(T, Instant)>) {
        let old = idle.iter().take_while(|(_, since)| since.elapsed() >= self.idle_timeout).count();
        idle.drain(..old);
    }
}
