//! What all connections of one listener share, on one worker.

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

/// What all connections of one listener share, on one worker.
pub(crate) struct Door {
    pub(crate) limits: Limits,
    pub(crate) protocol: peregrine_proto::Limits,
    pub(crate) http2: h2::Limits,
    /// The connections there may be: those of all listeners that have no limits of their own together.
    pub(crate) rooms: Rc<Rooms>,
    /// The same for handshakes in progress.
    pub(crate) handshakes: Rc<Handshakes>,
    pub(crate) tls: Option<Tls>,
    pub(crate) proxy_protocol: Option<ProxyProtocol>,
    proxies: Option<Arc<TrustedProxies>>,
}

impl Door {
    /// The way in by a listener, and its socket.
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
            // A copy of this worker's own, so that no other one counts its references.
            proxies: proxies.map(Arc::new),
        };
        (door, socket)
    }

    /// The same way in for connections that come from now on, with other settings. Connections are counted with those
    /// that are there.
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

    /// Is there little room: is memory short, or are no more than the `spare` places left?
    #[inline]
    pub(crate) fn is_narrow(&self, spare: usize) -> bool {
        account::filling() >= Filling::Tight
            || self.rooms.is_nearly_full(self.limits.connections_max, spare)
    }

    /// The address for which a connection counts, where it is known when that is accepted: a PROXY header
    /// may tell another one, and trusted proxies have many clients.
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

/// One end of a connection, as its driver tells it; `ask` asks whose process is there.
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
