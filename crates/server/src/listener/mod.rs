//! The state that all connections of one listener share, on one worker.

pub(crate) mod config;
pub(crate) mod proxy_protocol;

use self::config::{Listen, Live};
use self::proxy_protocol::{Beginning, ProxyProtocol};
use crate::admission::connections::Rooms;
use crate::admission::handshakes::Handshakes;
use crate::limits::Limits;
use crate::worker::Worker;
use peregrine_driver::{self as driver, Address, Driver};
use peregrine_proto::h2;
use peregrine_tls::Tls;
use peregrine_web::TrustedProxies;
use peregrine_web::account::{self, Filling};
use peregrine_web::connection::{Credentials, Peer};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

/// The state that all connections of one listener share, on one worker.
pub(crate) struct Door {
    pub(crate) limits: Limits,
    pub(crate) protocol: peregrine_proto::Limits,
    pub(crate) http2: h2::Limits,
    /// Limits the number of open connections. All listeners without their own limits share this.
    pub(crate) rooms: Rc<Rooms>,
    /// Limits the number of handshakes in progress. Shared like `rooms`.
    pub(crate) handshakes: Rc<Handshakes>,
    pub(crate) tls: Option<Tls>,
    pub(crate) proxy_protocol: Option<ProxyProtocol>,
    proxies: Option<Arc<TrustedProxies>>,
}

impl Door {
    /// Makes the state of a listener; also returns the listener's socket.
    pub(crate) fn new<D: Driver>(
        worker: &Worker<D>,
        listen: Listen<D::Socket>,
    ) -> (Self, D::Socket) {
        let Listen { socket, tls, limits, proxy_protocol, proxies, .. } = listen;
        let (rooms, handshakes) = match &limits {
            None => (Rc::clone(&worker.rooms), Rc::clone(&worker.handshakes)),
            Some(_) => (Rooms::new(&worker.observed), Rc::default()),
        };
        let limits = limits.unwrap_or_else(|| worker.limits.clone());
        let door = Self {
            protocol: limits.protocol(),
            http2: limits.http2(),
            limits,
            rooms,
            handshakes,
            tls,
            proxy_protocol,
            // A copy for this worker, so that workers do not share a reference count and its cache
            // line.
            proxies: proxies.map(Arc::new),
        };
        (door, socket)
    }

    /// Returns the state for new connections after a change of the settings. The new and the
    /// existing connections count towards the same limits.
    pub(crate) fn with(&self, live: &Live) -> Self {
        let Live { limits, proxies } = live;
        Self {
            protocol: limits.protocol(),
            http2: limits.http2(),
            limits: limits.clone(),
            rooms: Rc::clone(&self.rooms),
            handshakes: Rc::clone(&self.handshakes),
            tls: self.tls.clone(),
            proxy_protocol: self.proxy_protocol.clone(),
            proxies: proxies.clone().map(Arc::new),
        }
    }

    /// Returns whether new connections must use reserved slots, because memory is short, fewer than
    /// `spare` connection slots are left, or reserved descriptors are missing.
    #[inline]
    pub(crate) fn is_narrow(&self, spare: usize) -> bool {
        account::filling() >= Filling::Tight
            || self.rooms.is_nearly_full(self.limits.connections_max, spare)
    }

    /// Returns the client address towards whose limit a connection counts, if it is known when the
    /// connection is accepted. It is not known if a PROXY header may report another address, or if
    /// the peer is a trusted proxy, which serves many clients.
    pub(crate) fn client_at(&self, address: Address) -> Option<IpAddr> {
        let Address::Tcp(address) = address else { return None };
        let peer = Peer::Tcp(address);
        let begins = self.proxy_protocol.as_ref().map(|settings| settings.beginning(&peer));
        let is_told_later = begins == Some(Beginning::Header);
        let is_proxy = || self.proxies.as_ref().is_some_and(|proxies| proxies.trusts(&peer));
        (!is_told_later && !is_proxy()).then(|| address.ip())
    }

    /// The trusted proxies, if `peer` is one of them.
    pub(crate) fn proxies_at(&self, peer: &Peer) -> Option<Arc<TrustedProxies>> {
        self.proxies.as_ref().filter(|proxies| proxies.trusts(peer)).map(Arc::clone)
    }
}

/// Converts the address of one end of a connection. For a Unix domain socket, `ask` returns the
/// credentials of the process at that end.
pub(crate) fn peer(address: Address, ask: impl FnOnce() -> Option<driver::Credentials>) -> Peer {
    match address {
        Address::Tcp(address) => Peer::Tcp(address),
        Address::Unix(path) => {
            let credentials =
                ask().map(|driver::Credentials { uid, gid, pid }| Credentials { uid, gid, pid });
            Peer::Unix { path, credentials }
        }
        Address::Unknown => Peer::None,
    }
}
