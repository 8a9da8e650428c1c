//! The settings of a listener: some are fixed when the listener is opened, and some may change
//! later.

use super::proxy_protocol::ProxyProtocol;
use crate::limits::Limits;
use peregrine_tls::TlsConfig;
use peregrine_web::TrustedProxies;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

/// A socket to listen on, with its settings.
#[derive(Debug)]
pub struct BoundListener<S> {
    /// The bound socket.
    pub socket: S,
    /// The TLS settings, if the listener uses TLS.
    pub tls: Option<TlsConfig>,
    /// Whether other processes also have the socket.
    pub sharing: SocketSharing,
    /// The listener's own limits, which replace the worker's. Limits that apply to the worker as a
    /// whole (`blocking_poll_threshold`, `lame_duck_period`, `shutdown_timeout`,
    /// `background_task_timeout`, `overload`) are ignored here.
    pub limits: Option<Limits>,
    /// How connections may begin with a PROXY header. `None` if the listener accepts none.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// The proxies that are trusted to report the client of a request.
    pub trusted_proxies: Option<TrustedProxies>,
    /// Updates of `limits` and `trusted_proxies`. Each update applies to connections that are
    /// accepted after it.
    pub updates: Option<watch::Receiver<ReloadableConfig>>,
}

impl<S> BoundListener<S> {
    /// Creates settings for plain HTTP on `socket`.
    pub fn new(socket: S) -> Self {
        Self {
            socket,
            tls: None,
            sharing: SocketSharing::default(),
            limits: None,
            proxy_protocol: None,
            trusted_proxies: None,
            updates: None,
        }
    }
}

/// Settings of a listener that may change while it is open. They apply to connections that are
/// accepted after the change; open connections keep their settings.
///
/// Limits that apply to the worker as a whole (`blocking_poll_threshold`, `lame_duck_period`,
/// `shutdown_timeout`, `background_task_timeout`, `overload`) are ignored here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReloadableConfig {
    /// The new limits.
    pub limits: Limits,
    /// The proxies that are trusted to report the client of a request.
    pub trusted_proxies: Option<TrustedProxies>,
}

/// Whether another process also has the listening socket and continues to use it after this server
/// ends: a service manager, or the process that replaces this one. If so, draining leaves the
/// socket and its backlog to that process. If not, draining closes the socket to new connections
/// and then serves those in its backlog.
///
/// The value may change while the server runs. Clones share the value.
#[derive(Clone, Debug, Default)]
pub struct SocketSharing(Arc<AtomicBool>);

impl SocketSharing {
    /// Returns whether other processes also have the socket.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Sets whether other processes also have the socket.
    pub fn set(&self, is_shared: bool) {
        self.0.store(is_shared, Ordering::SeqCst);
    }
}

impl From<bool> for SocketSharing {
    fn from(is_shared: bool) -> Self {
        Self(Arc::new(AtomicBool::new(is_shared)))
    }
}
