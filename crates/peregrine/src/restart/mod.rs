//! Restarts without loss: sockets that a service manager made, what such a manager is told, and upgrades
//! in place.
//!
//! An *upgrade in place* starts the program again, which may be a newer one, and hands it the listening
//! sockets. When the successor is ready it serves, and only then this process drains, as
//! [`Handle::shut_down`] says. Nobody who is connected is disturbed, and nobody who waits in a listen
//! queue is lost: the queues themselves are handed over. A successor that dies, or is not ready in time,
//! is given up, and this process goes on as if nothing had happened.
//!
//! [`Server::serve`](crate::Server::serve) upgrades at SIGUSR2, unless the program has a handler of its
//! own for that signal; [`Handle::upgrade`] does it at any time. [`Successor`] says what is started.
//!
//! What listens at an address in both programs is handed over: the address as it is written, else where
//! it leads, decides; for sockets of a service manager it is their name. What only the old program
//! listens on is drained and closed, and what only the new one does is bound. A process upgrades one
//! [`Server`](crate::Server): what it listens on belongs into one. The successor is a process of its
//! own, so that a program that is the first one of its container cannot be upgraded in place.
//!
//! This works on Linux. How it is made: `upgrade.rs` is the side that hands over, `heir.rs` the one that
//! takes over, and `parcel.rs` what is between them.

mod activation;
mod heir;
mod notify;
mod parcel;
mod successor;
mod telling;
mod upgrade;
mod watchdog;

pub(crate) use heir::Heir;
pub use successor::Successor;
pub(crate) use telling::Reloading;
pub use upgrade::UpgradeError;
pub(crate) use watchdog::Answering;

use crate::entrances::Holding;
use crate::error::Error;
use crate::orders::Handle;
use notify::Manager;
use peregrine_driver::Socket;
use peregrine_server::Order;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use telling::Telling;
use upgrade::Estate;
use watchdog::Watchdog;

/// Names of what the two processes say to each other, in the order in which they say it.
mod step {
    /// The standard input of the process that hands over, which the link has taken the place of.
    pub(super) const INPUT: &str = "input";
    /// A place to listen: the rest of the name is its key.
    pub(super) const LISTENER: &str = "listener ";
    // Whatever else a successor is to have goes here: a parcel with a name of its own, which a successor
    // that does not know it passes over.
    /// Everything was handed over.
    pub(super) const END: &str = "end";
    /// The successor does not listen where this key leads.
    pub(super) const UNTAKEN: &str = "untaken";
    /// The successor is ready, and accepts nobody.
    pub(super) const READY: &str = "ready";
    /// The successor cannot begin; the bytes say why.
    pub(super) const FAILED: &str = "failed";
    /// Accept.
    pub(super) const GO: &str = "go";
    /// Somebody asked the predecessor to read its settings again while the successor may have read them already.
    pub(super) const RELOAD: &str = "reload";
    /// The successor accepts.
    pub(super) const SERVING: &str = "serving";
    /// The sockets, and the name of being the service, are the successor's alone.
    pub(super) const YOURS: &str = "yours";
}

/// What a server keeps for its successor and its service manager.
#[derive(Debug, Default)]
pub(crate) struct Restart {
    /// Held while an upgrade is under way.
    under_way: Mutex<()>,
    /// There is one while the server serves.
    estate: Mutex<Option<Arc<Estate>>>,
    manager: OnceLock<Option<Manager>>,
    telling: Mutex<Telling>,
    /// Was there an order to read settings again since the last upgrade began?
    reload_asked: AtomicBool,
}

impl Restart {
    /// From now on the service manager is told of the server, if there is one.
    pub(crate) fn tell_manager(&self) {
        self.manager.get_or_init(Manager::from_environment);
    }

    fn manager(&self) -> Option<&Manager> {
        self.manager.get().and_then(Option::as_ref)
    }

    /// Does SIGUSR2 upgrade the server?
    pub(crate) fn is_by_signal(&self) -> bool {
        lock(&self.estate).as_ref().is_some_and(|estate| estate.is_by_signal())
    }

    /// A watchdog, if the service manager wants one and is told of the server.
    pub(crate) fn watchdog(&self) -> Option<Watchdog> {
        self.manager().and_then(|_| Watchdog::from_environment())
    }

    /// The server serves, and this is what a successor would get.
    pub(crate) fn serves(
        &self,
        handle: &Handle,
        holdings: Vec<Holding>,
        successor: Successor,
        quiet: bool,
        status: &str,
    ) {
        let estate = Estate::new(holdings, successor, quiet);
        *lock(&self.estate) = Some(Arc::new(estate));
        // An order may have come in between.
        if handle.present() > Order::Serve {
            lock(&self.estate).take();
        } else {
            self.is_ready(status);
        }
    }

    /// There is a new order: sockets that are to close must not stay open for a successor.
    pub(crate) fn ordered(&self, order: Order) {
        if order <= Order::Serve {
            return;
        }
        let has_served = lock(&self.estate).take().is_some();
        // For its manager a process that has a successor is not the service any more.
        self.is_ending(has_served && order != Order::Leave);
    }

    /// There is an order to read settings again: a successor that is on its way hears of it. Says whether another process
    /// serves in place of this one, whose order it is then.
    pub(crate) fn reload_asked(&self, handle: &Handle) -> bool {
        // In this order: who leaves looks at the one after it has done the other.
        self.reload_asked.store(true, Ordering::SeqCst);
        handle.present() == Order::Leave
    }

    /// Waits until an upgrade that is under way was given up: its successor must not outlive an order to
    /// end.
    pub(crate) fn finish(&self) {
        drop(lock(&self.under_way));
    }
}

/// What is called `name` among the sockets that a service manager made; nothing if it made none at all
/// and there is something `or` else to do.
pub(crate) fn activated(name: &str, has_other: bool) -> Result<Vec<Socket>, Error> {
    match activation::take(name) {
        Ok(sockets) => Ok(sockets),
        Err(activation::Missing::All(_)) if has_other => Ok(Vec::new()),
        Err(missing) => Err(Error::Config(format!(
            "there is no socket `{name}` of the service manager: {missing}"
        ))),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // None of them is left half changed by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
