//! Opens all listeners of a server, or inherits them from the previous process, and distributes
//! their sockets over the workers.

use super::bind::{self, BoundSockets, ListenAddr, UnixSocketFile};
use crate::error::Error;
use crate::listen::listener::{ListenSource, Listener, ListenerSettings};
use crate::listen::socket_file::SocketFileOwner;
use peregrine_driver::{Socket, SocketOptions};
#[cfg(all(target_os = "linux", feature = "restart"))]
use peregrine_restart::internal::activated;
use peregrine_restart::internal::{InheritedListener, InheritedListeners, ListenerFds};
use peregrine_server::{BoundListener, SocketSharing};
use peregrine_web::TrustedProxies;
use std::io;

/// All listen addresses, with their sockets.
#[derive(Default)]
pub(crate) struct Listeners {
    /// The listeners that each worker accepts from.
    pub(crate) per_worker: Vec<Vec<BoundListener<Socket>>>,
    /// The addresses, and whether they speak TLS.
    pub(crate) addresses: Vec<(ListenAddr, bool)>,
    pub(crate) socket_files: Vec<UnixSocketFile>,
    pub(crate) listener_fds: Vec<ListenerFds>,
}

/// The sockets of one listen address, in the form in which a successor gets them.
fn listener_fds(key: &str, bound: &mut BoundSockets) -> ListenerFds {
    ListenerFds {
        key: key.to_owned(),
        sockets: std::mem::take(&mut bound.sockets),
        #[cfg(unix)]
        file_id: bound.socket_file.as_ref().map(|file| file.file_id),
        sharing: bound.sharing.clone(),
        is_external: bound.is_external,
        #[cfg(feature = "tls")]
        ticket_keys: None,
    }
}

/// The sockets and the address of the admin listener.
pub(crate) struct AdminListener {
    pub(crate) listeners: Vec<BoundListener<Socket>>,
    pub(crate) address: ListenAddr,
    pub(crate) sharing: SocketSharing,
    /// Whether the previous process answers on these sockets until it stops accepting.
    pub(crate) is_inherited: bool,
}

impl Listeners {
    /// Opens all `listeners` for this number of `workers`. Inherits those that the predecessor
    /// passed.
    pub(crate) fn bind(
        listeners: Vec<Listener>,
        proxies: Option<&TrustedProxies>,
        workers: usize,
        sockets: &SocketOptions,
        heir: &mut Option<InheritedListeners>,
    ) -> Result<Self, Error> {
        let mut all =
            Self { per_worker: (0..workers).map(|_| Vec::new()).collect(), ..Self::default() };
        for listener in listeners {
            let (source, settings) = listener.into_parts(proxies)?;
            let key = source.key();
            let (bound, _) = source.bind_or_inherit(&settings.owner, workers, sockets, heir)?;
            for bound in bound {
                all.add(&key, bound, &settings)?;
            }
        }
        Ok(all)
    }

    /// Opens or inherits the sockets of the admin listener.
    pub(crate) fn bind_admin(
        &mut self,
        source: ListenSource,
        owner: &SocketFileOwner,
        heir: &mut Option<InheritedListeners>,
    ) -> Result<AdminListener, Error> {
        let (key, sockets) = (source.key(), SocketOptions::default());
        let (all, is_inherited) = source.bind_or_inherit(owner, 1, &sockets, heir)?;
        let first = all.first().expect("a source has at least one socket");
        let (place, shared) = (first.address.clone(), first.sharing.clone());
        let mut listens = Vec::new();
        for mut bound in all {
            let sockets = distribute(&bound, 1)?.into_iter().flatten();
            let listen = |socket| BoundListener {
                sharing: bound.sharing.clone(),
                ..BoundListener::new(socket)
            };
            listens.extend(sockets.map(listen));
            self.listener_fds.push(listener_fds(&key, &mut bound));
            self.socket_files.extend(bound.socket_file);
        }
        Ok(AdminListener { listeners: listens, address: place, sharing: shared, is_inherited })
    }

    fn add(
        &mut self,
        key: &str,
        mut bound: BoundSockets,
        settings: &ListenerSettings,
    ) -> Result<(), Error> {
        settings.inherit_ticket_secrets(&bound.ticket_secrets);
        let dealt = distribute(&bound, self.per_worker.len())?;
        for (plan, sockets) in self.per_worker.iter_mut().zip(dealt) {
            let listen = |socket| settings.bound_listener(socket, bound.sharing.clone());
            plan.extend(sockets.into_iter().map(listen));
        }
        self.listener_fds.push(ListenerFds {
            #[cfg(feature = "tls")]
            ticket_keys: settings.ticket_keys(),
            ..listener_fds(key, &mut bound)
        });
        self.addresses.push((bound.address, settings.is_tls()));
        self.socket_files.extend(bound.socket_file);
        Ok(())
    }
}

fn distribute(bound: &BoundSockets, workers: usize) -> Result<Vec<Vec<Socket>>, Error> {
    let dealt = bound.distribute(workers);
    dealt.map_err(|cause| Error::Bind { address: bound.address.to_string(), cause })
}

impl ListenSource {
    /// The key by which a successor identifies the sockets of this source.
    fn key(&self) -> String {
        match self {
            Self::Address(address) => format!("address {address}"),
            Self::Bound(listener) => {
                let place = bind::local_addr(listener).map(|place| place.to_string());
                format!("listener {}", place.unwrap_or_default())
            }
            #[cfg(all(target_os = "linux", feature = "restart"))]
            Self::Activated(name, _) => format!("activated {name}"),
        }
    }

    /// Takes the sockets of this source that the previous process handed over. Sockets that the
    /// program bound itself are not inherited.
    fn inherit(&self, heir: &mut InheritedListeners) -> Vec<InheritedListener> {
        match self {
            Self::Address(address) => heir.take(&self.key(), Some(address)),
            Self::Bound(_) => Vec::new(),
            #[cfg(all(target_os = "linux", feature = "restart"))]
            Self::Activated(..) => heir.take(&self.key(), None),
        }
    }

    /// Inherits or opens the sockets. Also returns whether they were inherited.
    fn bind_or_inherit(
        self,
        owner: &SocketFileOwner,
        workers: usize,
        sockets: &SocketOptions,
        heir: &mut Option<InheritedListeners>,
    ) -> Result<(Vec<BoundSockets>, bool), Error> {
        let inherited = heir.as_mut().map(|heir| self.inherit(heir)).unwrap_or_default();
        if inherited.is_empty() {
            return self.bind(owner, workers, sockets).map(|bound| (bound, false));
        }
        let bound: io::Result<Vec<_>> =
            inherited.into_iter().map(BoundSockets::inherited).collect();
        Ok((bound.map_err(Error::Handover)?, true))
    }

    fn bind(
        self,
        owner: &SocketFileOwner,
        workers: usize,
        sockets: &SocketOptions,
    ) -> Result<Vec<BoundSockets>, Error> {
        let bound = match self {
            Self::Address(address) => bind::bind(&address, owner, workers, sockets)?,
            Self::Bound(listener) => bind::from_socket(listener)?,
            #[cfg(all(target_os = "linux", feature = "restart"))]
            Self::Activated(name, address) => {
                let given = activated(&name, address.is_some());
                let given = given.map_err(|error| Error::Config(error.to_string()))?;
                match address.filter(|_| given.is_empty()) {
                    Some(address) => bind::bind(&address, owner, workers, sockets)?,
                    None => return given.into_iter().map(bind::from_socket).collect(),
                }
            }
        };
        Ok(vec![bound])
    }
}
