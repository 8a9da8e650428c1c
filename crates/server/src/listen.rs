//! What a worker listens on.

use crate::limits::Limits;
use crate::proxied::ProxyProtocol;
use peregrine_tls::Tls;
use peregrine_web::TrustedProxies;

/// What a worker listens on.
#[derive(Debug)]
pub struct Listen<S> {
    /// The bound socket.
    pub socket: S,
    /// Speak TLS on it.
    pub tls: Option<Tls>,
    /// Others may have the socket too, and go on with it after this server, as a service manager
    /// does. A drain does not close such a socket to new connections.
    pub is_shared: bool,
    /// Limits of its own in place of the worker's. What concerns a worker as a whole (`poll_budget`, `lame_duck`,
    /// `shutdown_timeout`, `background_timeout`) is not taken from here.
    pub limits: Option<Limits>,
    /// Whether connections begin with a PROXY header.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Whose word counts about who sent a request.
    pub proxies: Option<TrustedProxies>,
}

impl<S> Listen<S> {
    /// Plain HTTP on a socket.
    pub fn on(socket: S) -> Self {
        Self {
            socket,
            tls: None,
            is_shared: false,
            limits: None,
            proxy_protocol: None,
            proxies: None,
        }
    }
}
