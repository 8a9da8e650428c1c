//! The settings of a listener: those that are fixed when it is opened, and those that may change
//! later.

use super::proxy_protocol::ProxyProtocol;
use crate::limits::Limits;
use peregrine_tls::Tls;
use peregrine_web::TrustedProxies;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

/// A socket to listen on, with its settings.
#[derive(Debug)]
pub struct Listen<S> {
    /// The bound socket.
    pub socket: S,
    /// The TLS settings, if the listener uses TLS.
    pub tls: Option<Tls>,
    /// Whether other processes have the socket as well.
    pub shared: Shared,
    /// The listener's own limits, in place of the worker's. Limits of the worker as a whole
    /// (`poll_budget`, `lame_duck`, `shutdown_timeout`, `background_timeout`, `overload`) are
    /// ignored here.
    pub limits: Option<Limits>,
    /// Whether connections begin with a PROXY header.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// The proxies that may report the client of a request.
    pub proxies: Option<TrustedProxies>,
    /// Limits and proxies that replace those above for new connections, whenever they change.
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

/// Settings of a listener that may change while it is open. They apply to connections that are
/// accepted after the change; open connections keep their settings.
///
/// Limits of the worker as a whole (`poll_budget`, `lame_duck`, `shutdown_timeout`,
/// `background_timeout`, `overload`) are ignored here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// The new limits.
    pub limits: Limits,
    /// The proxies that may report the client of a request.
    pub proxies: Option<TrustedProxies>,
}

/// Whether other processes have a listening socket as well and continue to use it after this server
/// ends: a service manager, or the process that replaces this one. Draining leaves such a socket
/// and the connections in its backlog alone. Any other socket is first closed to new connections,
/// and those in its backlog are then served.
///
/// The value may change while the server runs. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Shared(Arc<AtomicBool>);

impl Shared {
    /// Returns whether other processes have the socket.
    #[must_use]
    pub fn is_so(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Sets whether other processes have the socket.
    pub fn set(&self, is_so: bool) {
        self.0.store(is_so, Ordering::SeqCst);
    }
}

impl From<bool> for Shared {
    fn from(is_so: bool) -> Self {
        Self(Arc::new(AtomicBool::new(is_so)))
    }
}
