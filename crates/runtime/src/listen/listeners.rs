//! Opens all listeners of a server, or inherits them from the previous process, and distributes
//! their sockets among the workers.

use super::bind::{self, BoundSockets, ListenAddr, UnixSocketFile};
use crate::error::Error;
use crate::listen::listener::{ListenSource, Listener, ListenerSettings};
use crate::listen::socket_file::SocketFilePermissions;
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
    /// The addresses, each with whether it uses TLS.
    pub(crate) addresses: Vec<(ListenAddr, bool)>,
    /// Kept by the running server, because dropping them removes the files.
    pub(crate) socket_files: Vec<UnixSocketFile>,
    /// The sockets to pass to a successor.
    pub(crate) listener_fds: Vec<ListenerFds>,
}

/// Removes the sockets of one listen address from `bound`, in the form that is passed to a
/// successor.
fn take_listener_fds(key: &str, bound: &mut BoundSockets) -> ListenerFds {
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
    /// Whether the sockets were inherited. If so, the previous process still accepts on them until
    /// it hands over the serving.
    pub(crate) is_inherited: bool,
}

impl Listeners {
    /// Opens all `listeners` for this number of `workers`, or inherits those that the previous
    /// process passed on. `proxies` are the server's trusted proxies.
    pub(crate) fn bind(
        listeners: Vec<Listener>,
        proxies: Option<&TrustedProxies>,
        workers: usize,
        socket_options: &SocketOptions,
        inherited: &mut Option<InheritedListeners>,
    ) -> Result<Self, Error> {
        let mut bound_listeners =
            Self { per_worker: (0..workers).map(|_| Vec::new()).collect(), ..Self::default() };
        for listener in listeners {
            let (source, settings) = listener.into_parts(proxies)?;
            let key = source.key();
            let (bound_sockets, _) = source.bind_or_inherit(
                &settings.permissions,
                workers,
                socket_options,
                inherited,
            )?;
            for bound in bound_sockets {
                bound_listeners.add(&key, bound, &settings)?;
            }
        }
        Ok(bound_listeners)
    }

    /// Opens or inherits the sockets of the admin listener.
    pub(crate) fn bind_admin(
        &mut self,
        source: ListenSource,
        permissions: &SocketFilePermissions,
        inherited: &mut Option<InheritedListeners>,
    ) -> Result<AdminListener, Error> {
        let (key, socket_options) = (source.key(), SocketOptions::default());
        // The sockets are for one worker: the admin listener's own thread.
        let (bound_sockets, is_inherited) =
            source.bind_or_inherit(permissions, 1, &socket_options, inherited)?;
        let first = bound_sockets.first().expect("a source has at least one socket");
        let (address, sharing) = (first.address.clone(), first.sharing.clone());
        let mut listeners = Vec::new();
        for mut bound in bound_sockets {
            let sockets = distribute(&bound, 1)?.into_iter().flatten();
            let to_listener = |socket| BoundListener {
                sharing: bound.sharing.clone(),
                ..BoundListener::new(socket)
            };
            listeners.extend(sockets.map(to_listener));
            self.listener_fds.push(take_listener_fds(&key, &mut bound));
            self.socket_files.extend(bound.socket_file);
        }
        Ok(AdminListener { listeners, address, sharing, is_inherited })
    }

    /// Distributes the sockets of one listen address among the workers.
    fn add(
        &mut self,
        key: &str,
        mut bound: BoundSockets,
        settings: &ListenerSettings,
    ) -> Result<(), Error> {
        settings.inherit_ticket_secrets(&bound.ticket_secrets);
        let distributed = distribute(&bound, self.per_worker.len())?;
        for (listeners, sockets) in self.per_worker.iter_mut().zip(distributed) {
            let to_listener = |socket| settings.bound_listener(socket, bound.sharing.clone());
            listeners.extend(sockets.into_iter().map(to_listener));
        }
        self.listener_fds.push(ListenerFds {
            #[cfg(feature = "tls")]
            ticket_keys: settings.ticket_keys(),
            ..take_listener_fds(key, &mut bound)
        });
        self.addresses.push((bound.address, settings.is_tls()));
        self.socket_files.extend(bound.socket_file);
        Ok(())
    }
}

fn distribute(bound: &BoundSockets, workers: usize) -> Result<Vec<Vec<Socket>>, Error> {
    let distributed = bound.distribute(workers);
    distributed.map_err(|cause| Error::Bind { address: bound.address.to_string(), cause })
}

impl ListenSource {
    /// The key by which a successor identifies the sockets of this source.
    fn key(&self) -> String {
        match self {
            Self::Address(address) => format!("address {address}"),
            Self::FromProgram(socket) => {
                let address = bind::local_addr(socket).map(|address| address.to_string());
                format!("listener {}", address.unwrap_or_default())
            }
            #[cfg(all(target_os = "linux", feature = "restart"))]
            Self::Activated(name, _) => format!("activated {name}"),
        }
    }

    /// Removes the sockets of this source from those that the previous process passed on, and
    /// returns them. A socket that the program passed is used in place of inherited ones.
    fn inherit(&self, inherited: &mut InheritedListeners) -> Vec<InheritedListener> {
        match self {
            Self::Address(address) => inherited.take(&self.key(), Some(address)),
            Self::FromProgram(_) => Vec::new(),
            #[cfg(all(target_os = "linux", feature = "restart"))]
            Self::Activated(..) => inherited.take(&self.key(), None),
        }
    }

    /// Inherits the sockets, or opens them. Also returns whether they were inherited.
    fn bind_or_inherit(
        self,
        permissions: &SocketFilePermissions,
        workers: usize,
        socket_options: &SocketOptions,
        inherited: &mut Option<InheritedListeners>,
    ) -> Result<(Vec<BoundSockets>, bool), Error> {
        let listeners =
            inherited.as_mut().map(|inherited| self.inherit(inherited)).unwrap_or_default();
        if listeners.is_empty() {
            return self.bind(permissions, workers, socket_options).map(|bound| (bound, false));
        }
        let bound: io::Result<Vec<_>> =
            listeners.into_iter().map(BoundSockets::inherited).collect();
        Ok((bound.map_err(Error::Handover)?, true))
    }

    /// Opens the sockets: those that the service manager passed, or new ones.
    fn bind(
        self,
        permissions: &SocketFilePermissions,
        workers: usize,
        socket_options: &SocketOptions,
    ) -> Result<Vec<BoundSockets>, Error> {
        let bound = match self {
            Self::Address(address) => bind::bind(&address, permissions, workers, socket_options)?,
            Self::FromProgram(socket) => bind::from_socket(socket)?,
            #[cfg(all(target_os = "linux", feature = "restart"))]
            Self::Activated(name, address) => {
                let has_other_address = address.is_some();
                let sockets_passed = activated(&name, has_other_address);
                let sockets_passed =
                    sockets_passed.map_err(|error| Error::Config(error.to_string()))?;
                match address.filter(|_| sockets_passed.is_empty()) {
                    Some(address) => bind::bind(&address, permissions, workers, socket_options)?,
                    None => return sockets_passed.into_iter().map(bind::from_socket).collect(),
                }
            }
        };
        Ok(vec![bound])
    }
}
