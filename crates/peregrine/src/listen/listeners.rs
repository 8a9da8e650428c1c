//! Opens all listeners of a server, or inherits them from the previous process, and distributes
//! their sockets over the workers.

use super::bind::{self, Bound, Place, SocketFile};
use crate::error::Error;
use crate::listen::listener::{Listener, Settings, Source};
use crate::listen::socket_file::FileOwner;
use peregrine_driver::{Socket, SocketOptions};
#[cfg(all(target_os = "linux", feature = "restart"))]
use peregrine_restart::internal::activated;
use peregrine_restart::internal::{Heir, Holding, Inherited};
use peregrine_server::{Listen, Shared};
use peregrine_web::TrustedProxies;
use std::io;

/// All listen addresses, with their sockets.
#[derive(Default)]
pub(crate) struct Entrances {
    /// The listeners that each worker accepts from.
    pub(crate) plans: Vec<Vec<Listen<Socket>>>,
    /// The addresses, and whether they speak TLS.
    pub(crate) places: Vec<(Place, bool)>,
    pub(crate) files: Vec<SocketFile>,
    pub(crate) holdings: Vec<Holding>,
}

/// The sockets of one listen address, in the form in which a successor gets them.
fn holding(key: &str, bound: &mut Bound) -> Holding {
    Holding {
        key: key.to_owned(),
        sockets: std::mem::take(&mut bound.sockets),
        #[cfg(unix)]
        file: bound.file.as_ref().map(|file| file.identity),
        shared: bound.shared.clone(),
        is_foreign: bound.is_foreign,
        #[cfg(feature = "tls")]
        tickets: None,
    }
}

/// The sockets and the address of the admin listener.
pub(crate) struct AdminEntrance {
    pub(crate) listens: Vec<Listen<Socket>>,
    pub(crate) place: Place,
    pub(crate) shared: Shared,
    /// Whether the previous process answers on these sockets until it stops accepting.
    pub(crate) is_inherited: bool,
}

impl Entrances {
    /// Opens all `listeners` for this number of `workers`. Inherits those that `heir` contains.
    pub(crate) fn open(
        listeners: Vec<Listener>,
        proxies: Option<&TrustedProxies>,
        workers: usize,
        sockets: &SocketOptions,
        heir: &mut Option<Heir>,
    ) -> Result<Self, Error> {
        let mut all = Self { plans: (0..workers).map(|_| Vec::new()).collect(), ..Self::default() };
        for listener in listeners {
            let (source, settings) = listener.parts(proxies)?;
            let key = source.key();
            let (bound, _) = source.open_or_inherit(&settings.owner, workers, sockets, heir)?;
            for bound in bound {
                all.add(&key, bound, &settings)?;
            }
        }
        Ok(all)
    }

    /// Opens or inherits the sockets of the admin listener.
    pub(crate) fn open_admin(
        &mut self,
        source: Source,
        owner: &FileOwner,
        heir: &mut Option<Heir>,
    ) -> Result<AdminEntrance, Error> {
        let (key, sockets) = (source.key(), SocketOptions::default());
        let (all, is_inherited) = source.open_or_inherit(owner, 1, &sockets, heir)?;
        let first = all.first().expect("a source has at least one socket");
        let (place, shared) = (first.place.clone(), first.shared.clone());
        let mut listens = Vec::new();
        for mut bound in all {
            let sockets = dealt(&bound, 1)?.into_iter().flatten();
            let listen = |socket| Listen { shared: bound.shared.clone(), ..Listen::on(socket) };
            listens.extend(sockets.map(listen));
            self.holdings.push(holding(&key, &mut bound));
            self.files.extend(bound.file);
        }
        Ok(AdminEntrance { listens, place, shared, is_inherited })
    }

    fn add(&mut self, key: &str, mut bound: Bound, settings: &Settings) -> Result<(), Error> {
        settings.inherit(&bound.secrets);
        let dealt = dealt(&bound, self.plans.len())?;
        for (plan, sockets) in self.plans.iter_mut().zip(dealt) {
            let listen = |socket| settings.listen(socket, bound.shared.clone());
            plan.extend(sockets.into_iter().map(listen));
        }
        self.holdings.push(Holding {
            #[cfg(feature = "tls")]
            tickets: settings.tickets(),
            ..holding(key, &mut bound)
        });
        self.places.push((bound.place, settings.is_tls()));
        self.files.extend(bound.file);
        Ok(())
    }
}

fn dealt(bound: &Bound, workers: usize) -> Result<Vec<Vec<Socket>>, Error> {
    let dealt = bound.deal(workers);
    dealt.map_err(|cause| Error::Bind { address: bound.place.to_string(), cause })
}

impl Source {
    /// The key by which a successor identifies the sockets of this source.
    fn key(&self) -> String {
        match self {
            Self::Address(address) => format!("address {address}"),
            Self::Bound(listener) => {
                let place = bind::place_of(listener).map(|place| place.to_string());
                format!("listener {}", place.unwrap_or_default())
            }
            #[cfg(all(target_os = "linux", feature = "restart"))]
            Self::Activated(name, _) => format!("activated {name}"),
        }
    }

    /// Takes the sockets of this source that the previous process handed over. Sockets that the
    /// program bound itself are not inherited.
    fn inherit(&self, heir: &mut Heir) -> Vec<Inherited> {
        match self {
            Self::Address(address) => heir.take(&self.key(), Some(address)),
            Self::Bound(_) => Vec::new(),
            #[cfg(all(target_os = "linux", feature = "restart"))]
            Self::Activated(..) => heir.take(&self.key(), None),
        }
    }

    /// Inherits or opens the sockets. Also returns whether they were inherited.
    fn open_or_inherit(
        self,
        owner: &FileOwner,
        workers: usize,
        sockets: &SocketOptions,
        heir: &mut Option<Heir>,
    ) -> Result<(Vec<Bound>, bool), Error> {
        let inherited = heir.as_mut().map(|heir| self.inherit(heir)).unwrap_or_default();
        if inherited.is_empty() {
            return self.open(owner, workers, sockets).map(|bound| (bound, false));
        }
        let bound: io::Result<Vec<_>> = inherited.into_iter().map(Bound::inherited).collect();
        Ok((bound.map_err(Error::TakeOver)?, true))
    }

    fn open(
        self,
        owner: &FileOwner,
        workers: usize,
        sockets: &SocketOptions,
    ) -> Result<Vec<Bound>, Error> {
        let bound = match self {
            Self::Address(address) => bind::bind(&address, owner, workers, sockets)?,
            Self::Bound(listener) => bind::adopt(listener)?,
            #[cfg(all(target_os = "linux", feature = "restart"))]
            Self::Activated(name, address) => {
                let given = activated(&name, address.is_some());
                let given = given.map_err(|error| Error::Config(error.to_string()))?;
                match address.filter(|_| given.is_empty()) {
                    Some(address) => bind::bind(&address, owner, workers, sockets)?,
                    None => return given.into_iter().map(bind::adopt).collect(),
                }
            }
        };
        Ok(vec![bound])
    }
}
