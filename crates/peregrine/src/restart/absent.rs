//! Stubs for builds without upgrades: on systems other than Linux, and without the feature
//! `restart`. Nothing here has a value or does anything.

use crate::entrances::Holding;
use crate::error::Error;
use crate::listen::Bound;
use crate::orders::Handle;
use peregrine_server::Order;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use tokio::sync::watch as watched;

#[derive(Clone, Debug)]
pub(crate) struct Successor(());

impl Successor {
    pub(crate) fn new() -> Self {
        Self(())
    }

    pub(crate) fn is_by_signal(&self) -> bool {
        let Self(()) = self;
        false
    }
}

#[derive(Debug, Default)]
pub(crate) struct Restart(());

/// A reload in progress, until this is dropped. It reports nothing.
#[derive(Debug)]
pub(crate) struct Reloading(());

#[cfg(feature = "config")]
impl Reloading {
    pub(crate) fn join(&mut self, other: Self) {
        let (Self(()), Self(())) = (self, other);
    }

    pub(crate) fn fails(&mut self, _: String) {
        let Self(()) = self;
    }
}

impl Restart {
    pub(crate) fn reloading(_: &Arc<Self>) -> Reloading {
        Reloading(())
    }

    pub(crate) fn tell_manager(&self) {
        let Self(()) = self;
    }

    pub(crate) fn is_by_signal(&self) -> bool {
        let Self(()) = self;
        false
    }

    pub(crate) fn watchdog(&self) -> Option<Watchdog> {
        let Self(()) = self;
        None
    }

    pub(crate) fn serves(&self, _: &Handle, _: Vec<Holding>, _: Successor, _: bool, _: &str) {
        let Self(()) = self;
    }

    pub(crate) fn ordered(&self, _: Order) {
        let Self(()) = self;
    }

    pub(crate) fn reload_asked(&self, _: &Handle) -> bool {
        let Self(()) = self;
        false
    }

    pub(crate) fn finish(&self) {
        let Self(()) = self;
    }
}

#[cfg(unix)]
impl Handle {
    pub(crate) fn upgrade_beside(&self) {
        tracing::warn!(target: "peregrine", "this program was built without upgrades");
    }
}

#[derive(Debug)]
pub(crate) struct Heir(Infallible);

impl Heir {
    #[expect(clippy::unnecessary_wraps, reason = "the signature of the Linux version")]
    pub(crate) fn find() -> Result<Option<Self>, Error> {
        Ok(None)
    }

    pub(crate) fn put_back(self) {
        match self.0 {}
    }

    pub(crate) fn is_used(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn take(&mut self, _: &str, _: Option<&str>) -> Vec<Bound> {
        match self.0 {}
    }

    pub(crate) fn succeed(
        &mut self,
        _: &Handle,
        _: impl FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        match self.0 {}
    }

    pub(crate) fn fail(&self, _: &Error) {
        match self.0 {}
    }
}

#[derive(Debug)]
pub(crate) struct Watchdog(Infallible);

impl Watchdog {
    pub(crate) fn answering(&mut self) -> Answering {
        match self.0 {}
    }

    pub(crate) fn start(self, _: Handle) -> io::Result<()> {
        match self.0 {}
    }
}

#[derive(Debug)]
pub(crate) struct Answering(Infallible);

impl Answering {
    pub(crate) async fn run(self, _: watched::Receiver<Order>) {
        match self.0 {}
    }
}
