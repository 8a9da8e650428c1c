//! The settings of one listener: those it is opened with, and those that may change later.

use super::proxy_protocol::ProxyProtocol;
use crate::limits::Limits;
use peregrine_tls::Tls;
use peregrine_web::TrustedProxies;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

/// What a worker listens on.
#[derive(Debug)]
pub struct Listen<S> {
    /// The bound socket.
    pub socket: S,
    /// Speak TLS on it.
    pub tls: Option<Tls>,
    /// Do others have the socket too?
    pub shared: Shared,
    /// Limits of its own in place of the worker's. What concerns a worker as a whole (`poll_budget`, `lame_duck`,
    /// `shutdown_timeout`, `background_timeout`, `overload`) is not taken from here.
    pub limits: Option<Limits>,
    /// Whether connections begin with a PROXY header.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Whose word counts about who sent a request.
    pub proxies: Option<TrustedProxies>,
    /// What holds in place of limits and proxies from the next connection on, each time that it changes.
    pub live: Option<watch::Receiver<Live>>,
}

impl<S> Listen<S> {
    /// Plain HTTP on a socket.
    pub fn on(socket: S) -> Self {
        Self {
            socket,
            tls: None,
            shared: Shared::default(),
            limits: None,
            proxy_protocol: None,
            proxies: None,
            live: None,
        }
    }
}

/// What holds for connections of a listener, and may change while it is open: for those that are accepted from then on.
/// Connections that are open go on with what they began with.
///
/// What concerns a worker as a whole (`poll_budget`, `lame_duck`, `shutdown_timeout`, `background_timeout`,
/// `overload`) is not taken from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// Limits in place of those that it had.
    pub limits: Limits,
    /// Whose word counts about who sent a request.
    pub proxies: Option<TrustedProxies>,
}

/// Whether others have a listening socket too, and go on with it after this server: a service manager,
/// or the process that takes over from this one. A drain leaves such a socket as it is, with those who
/// wait in its queue; any other is closed to new connections first, and its queue is answered.
///
/// It may change while the server runs. Clones change together.
#[derive(Clone, Debug, Default)]
pub struct Shared(Arc<AtomicBool>);

impl Shared {
    /// Do others have the socket?
    #[must_use]
    pub fn is_so(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Others have the socket from now on, or nobody else any more.
    pub fn set(&self, is_so: bool) {
        self.0.store(is_so, Ordering::SeqCst);
    }
}

impl From<bool> for Shared {
    fn from(is_so: bool) -> Self {
        Self(Arc::new(AtomicBool::new(is_so)))
    }
}
