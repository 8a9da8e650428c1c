//! The settings of a listener: some are fixed when the listener is opened, and some may change
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
    /// Whether other processes also have the socket.
    pub shared: Shared,
    /// The listener's own limits, which replace the worker's. Limits that apply to the worker as a
    /// whole (`poll_budget`, `lame_duck`, `shutdown_timeout`, `background_timeout`, `overload`) are
    /// ignored here.
    pub limits: Option<Limits>,
    /// Whether connections begin with a PROXY header.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// The proxies that are trusted to report the client of a request.
    pub proxies: Option<TrustedProxies>,
    /// Updates of the limits and proxies above. Each update applies to connections that are
    /// accepted after it.
    pub live: Option<watch::Receiver<Live>>,
}

impl<S> Listen<S> {
    /// Settings for plain HTTP on a socket.
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
/// Limits that apply to the worker as a whole (`poll_budget`, `lame_duck`, `shutdown_timeout`,
/// `background_timeout`, `overload`) are ignored here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// The new limits.
    pub limits: Limits,
    /// The proxies that are trusted to report the client of a request.
    pub proxies: Option<TrustedProxies>,
}

/// Whether another process also has the listening socket and continues to use it after this server
/// ends: a service manager, or the process that replaces this one. If so, draining leaves the
/// socket and its backlog to that process. If not, draining closes the socket to new connections
/// and then serves those in its backlog.
///
/// The value may change while the server runs. Clones share the value.
#[derive(Clone, Debug, Default)]
pub struct Shared(Arc<AtomicBool>);

impl Shared {
    /// Returns whether other processes also have the socket.
    #[must_use]
    pub fn is_so(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Sets whether other processes also have the socket.
    pub fn set(&self, is_so: bool) {
        self.0.store(is_so, Ordering::SeqCst);
    }
}

impl From<bool> for Shared {
    fn from(is_so: bool) -> Self {
        Self(Arc::new(AtomicBool::new(is_so)))
    }
}
