//! Stubs for builds without upgrades: on systems other than Linux, and without the feature
//! `restart`. The types have no values, or values that do nothing.
#![expect(missing_docs, reason = "the types of the same names in the other modules have docs")]

use crate::host::{HandoverError, UpgradeHost};
use crate::listener::{InheritedListener, ListenerFds};
use peregrine_server::Lifecycle;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::Arc;
use tokio::sync::watch;

#[derive(Clone, Debug, Default)]
pub struct UpgradeOptions(());

impl UpgradeOptions {
    pub fn new() -> Self {
        Self(())
    }

    pub fn upgrades_on_sigusr2(&self) -> bool {
        let Self(()) = self;
        false
    }
}

#[derive(Debug, Default)]
pub struct RestartState(());

/// A reload in progress, until this is dropped. It reports nothing.
#[derive(Debug)]
pub struct ReloadGuard(());

impl ReloadGuard {
    pub fn join(&mut self, other: Self) {
        let (Self(()), Self(())) = (self, other);
    }

    pub fn set_failed(&mut self, _: String) {
        let Self(()) = self;
    }
}

impl RestartState {
    pub fn begin_reload(_: &Arc<Self>) -> ReloadGuard {
        ReloadGuard(())
    }

    pub fn enable_notifications(&self) {
        let Self(()) = self;
    }

    pub fn upgrades_on_sigusr2(&self) -> bool {
        let Self(()) = self;
        false
    }

    pub fn watchdog(&self) -> Option<Watchdog> {
        let Self(()) = self;
        None
    }

    pub fn set_serving(
        &self,
        _: &dyn UpgradeHost,
        _: Vec<ListenerFds>,
        _: UpgradeOptions,
        _: bool,
        _: &str,
    ) {
        let Self(()) = self;
    }

    pub fn on_lifecycle_change(&self, _: Lifecycle) {
        let Self(()) = self;
    }

    pub fn request_successor_reload(&self, _: &dyn UpgradeHost) -> bool {
        let Self(()) = self;
        false
    }

    pub fn finish(&self) {
        let Self(()) = self;
    }
}

#[derive(Debug)]
pub struct InheritedListeners(Infallible);

impl InheritedListeners {
    pub fn from_env() -> Result<Option<Self>, HandoverError> {
        Ok(None)
    }

    pub fn put_back(self) {
        match self.0 {}
    }

    pub fn is_used(&self) -> bool {
        match self.0 {}
    }

    pub fn take(&mut self, _: &str, _: Option<&str>) -> Vec<InheritedListener> {
        match self.0 {}
    }

    pub fn take_over<E: From<HandoverError>>(
        &mut self,
        _: &dyn UpgradeHost,
        _: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        match self.0 {}
    }

    pub fn report_failure(&self, _: &dyn fmt::Display) {
        match self.0 {}
    }
}

#[derive(Debug)]
pub struct Watchdog(Infallible);

impl Watchdog {
    pub fn responder(&mut self) -> WatchdogResponder {
        match self.0 {}
    }

    pub fn start(self, _: impl UpgradeHost + 'static) -> io::Result<()> {
        match self.0 {}
    }
}

#[derive(Debug)]
pub struct WatchdogResponder(Infallible);

impl WatchdogResponder {
    pub async fn run(self, _: watch::Receiver<Lifecycle>) {
        match self.0 {}
    }
}
