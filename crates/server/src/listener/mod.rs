//! The state that all connections of one listener share, on one worker.

pub(crate) mod config;
pub(crate) mod proxy_protocol;

use self::config::{BoundListener, ReloadableConfig};
use self::proxy_protocol::{Preamble, ProxyProtocol};
use crate::admission::connections::ConnectionLimiter;
use crate::admission::handshakes::HandshakeLimiter;
use crate::limits::Limits;
use crate::worker::Worker;
use peregrine_driver::{self as driver, Address, Driver};
use peregrine_proto::h2;
use peregrine_tls::TlsConfig;
use peregrine_web::TrustedProxies;
use peregrine_web::connection::{ConnectionAddr, PeerCredentials};
use peregrine_web::memory::{self, MemoryPressure};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

/// The state that all connections of one listener share, on one worker.
pub(crate) struct ListenerContext {
    pub(crate) limits: Limits,
    /// `limits`, as the protocol cores use them.
    pub(crate) proto_limits: peregrine_proto::Limits,
    pub(crate) http2_proto_limits: h2::Limits,
    /// Limits the number of open connections. All listeners without their own limits share this.
    pub(crate) connection_limiter: Rc<ConnectionLimiter>,
    /// Limits the number of handshakes in progress. Shared like `connection_limiter`.
    pub(crate) handshake_limiter: Rc<HandshakeLimiter>,
    pub(crate) tls: Option<TlsConfig>,
    pub(crate) proxy_protocol: Option<ProxyProtocol>,
    trusted_proxies: Option<Arc<TrustedProxies>>,
}

impl ListenerContext {
    /// Creates the state of a listener, and returns it with the listener's socket.
    pub(crate) fn new<D: Driver>(
        worker: &Worker<D>,
        bound: BoundListener<D::Socket>,
    ) -> (Self, D::Socket) {
        let BoundListener { socket, tls, limits, proxy_protocol, trusted_proxies, .. } = bound;
        let (connection_limiter, handshake_limiter) = match &limits {
            None => (Rc::clone(&worker.connection_limiter), Rc::clone(&worker.handshake_limiter)),
            Some(_) => (ConnectionLimiter::new(&worker.instrumentation), Rc::default()),
        };
        let limits = limits.unwrap_or_else(|| worker.limits.clone());
        let context = Self {
            proto_limits: limits.to_proto(),
            http2_proto_limits: limits.to_proto_http2(),
            limits,
            connection_limiter,
            handshake_limiter,
            tls,
            proxy_protocol,
            // A copy for this worker, so that workers do not share a reference count and its cache
            // line.
            trusted_proxies: trusted_proxies.map(Arc::new),
        };
        (context, socket)
    }

    /// Returns the state for new connections after a change of the settings. Connections accepted
    /// before and after the change count towards the same limit.
    pub(crate) fn reloaded(&self, config: &ReloadableConfig) -> Self {
        let ReloadableConfig { limits, trusted_proxies } = config;
        Self {
            proto_limits: limits.to_proto(),
            http2_proto_limits: limits.to_proto_http2(),
            limits: limits.clone(),
            connection_limiter: Rc::clone(&self.connection_limiter),
            handshake_limiter: Rc::clone(&self.handshake_limiter),
            tls: self.tls.clone(),
            proxy_protocol: self.proxy_protocol.clone(),
            trusted_proxies: trusted_proxies.clone().map(Arc::new),
        }
    }

    /// Returns whether new connections need reserved slots, because memory is short, fewer than
    /// `reserved_slots` connection slots are left, or some of the reserved file descriptors are in
    /// use.
    #[inline]
    pub(crate) fn needs_reserved_slot(&self, reserved_slots: usize) -> bool {
        memory::pressure() >= MemoryPressure::Moderate
            || self
                .connection_limiter
                .is_nearly_exhausted(self.limits.connections_max, reserved_slots)
    }

    /// Returns the client's address, for the limit of connections per client, when a connection is
    /// accepted. `None` if a PROXY header may report another address, if the peer is a trusted
    /// proxy, which serves many clients, or if the connection does not use TCP.
    pub(crate) fn client_ip(&self, address: Address) -> Option<IpAddr> {
        let Address::Tcp(address) = address else { return None };
        let peer = ConnectionAddr::Tcp(address);
        let preamble = self.proxy_protocol.as_ref().map(|settings| settings.preamble_for(&peer));
        let may_have_header = preamble == Some(Preamble::ProxyHeader);
        let is_trusted_proxy =
            || self.trusted_proxies.as_ref().is_some_and(|proxies| proxies.trusts(&peer));
        (!may_have_header && !is_trusted_proxy()).then(|| address.ip())
    }

    /// The trusted proxies, if `peer` is one of them.
    pub(crate) fn trusted_proxies_for(&self, peer: &ConnectionAddr) -> Option<Arc<TrustedProxies>> {
        self.trusted_proxies.as_ref().filter(|proxies| proxies.trusts(peer)).map(Arc::clone)
    }
}

/// Converts the address of one end of a connection. For a Unix domain socket, `peer_credentials`
/// returns the credentials of the process at that end.
pub(crate) fn to_connection_addr(
    address: Address,
    peer_credentials: impl FnOnce() -> Option<driver::UnixCredentials>,
) -> ConnectionAddr {
    match address {
        Address::Tcp(address) => ConnectionAddr::Tcp(address),
        Address::Unix(path) => {
            let credentials = peer_credentials()
                .map(|driver::UnixCredentials { uid, gid, pid }| PeerCredentials { uid, gid, pid });
            ConnectionAddr::Unix { path, credentials }
        }
        Address::Unknown => ConnectionAddr::None,
    }
}
