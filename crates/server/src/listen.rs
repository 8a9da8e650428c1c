//! What a worker listens on.

use crate::limits::Limits;
use crate::live::Live;
use crate::proxied::ProxyProtocol;
use crate::shared::Shared;
use peregrine_tls::Tls;
use peregrine_web::TrustedProxies;
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
