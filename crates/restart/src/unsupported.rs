//! Stubs for builds without upgrades: on systems other than Linux, and without the feature
//! `restart`. Nothing here has a value or does anything.
#![expect(missing_docs, reason = "the types with the same names in the other modules have docs")]

use crate::host::{TakeOverError, UpgradeHost};
use crate::listener::{Holding, Inherited};
use peregrine_server::Order;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::Arc;
use tokio::sync::watch as watched;

#[derive(Clone, Debug, Default)]
pub struct Successor(());

impl Successor {
    pub fn new() -> Self {
        Self(())
    }

    pub fn is_by_signal(&self) -> bool {
        let Self(()) = self;
        false
    }
}

#[derive(Debug, Default)]
pub struct Restart(());

/// A reload in progress, until this is dropped. It reports nothing.
#[derive(Debug)]
pub struct Reloading(());

impl Reloading {
    pub fn join(&mut self, other: Self) {
        let (Self(()), Self(())) = (self, other);
    }

    pub fn fails(&mut self, _: String) {
        let Self(()) = self;
    }
}

impl Restart {
    pub fn reloading(_: &Arc<Self>) -> Reloading {
        Reloading(())
    }

    pub fn tell_manager(&self) {
        let Self(()) = self;
    }

    pub fn is_by_signal(&self) -> bool {
        let Self(()) = self;
        false
    }

    pub fn watchdog(&self) -> Option<Watchdog> {
        let Self(()) = self;
        None
    }

    pub fn serves(&self, _: &dyn UpgradeHost, _: Vec<Holding>, _: Successor, _: bool, _: &str) {
        let Self(()) = self;
    }

    pub fn ordered(&self, _: Order) {
        let Self(()) = self;
    }

    pub fn reload_asked(&self, _: &dyn UpgradeHost) -> bool {
        let Self(()) = self;
        false
    }

    pub fn finish(&self) {
        let Self(()) = self;
    }
}

#[derive(Debug)]
pub struct Heir(Infallible);

impl Heir {
    pub fn find() -> Result<Option<Self>, TakeOverError> {
        Ok(None)
    }

    pub fn put_back(self) {
        match self.0 {}
    }

    pub fn is_used(&self) -> bool {
        match self.0 {}
    }

    pub fn take(&mut self, _: &str, _: Option<&str>) -> Vec<Inherited> {
        match self.0 {}
    }

    pub fn succeed<E: From<TakeOverError>>(
        &mut self,
        _: &dyn UpgradeHost,
        _: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        match self.0 {}
    }

    pub fn fail(&self, _: &dyn fmt::Display) {
        match self.0 {}
    }
}

#[derive(Debug)]
pub struct Watchdog(Infallible);

impl Watchdog {
    pub fn answering(&mut self) -> Answering {
        match self.0 {}
    }

    pub fn start(self, _: impl UpgradeHost + 'static) -> io::Result<()> {
        match self.0 {}
    }
}

#[derive(Debug)]
pub struct Answering(Infallible);

impl Answering {
    pub async fn run(self, _: watched::Receiver<Order>) {
        match self.0 {}
    }
}
