//! Reloads certificates and settings while the server runs.

#[cfg(feature = "tls")]
mod certificates;
#[cfg(feature = "config")]
mod config;
#[cfg(all(test, feature = "config"))]
mod config_tests;
#[cfg(feature = "tls-watch")]
mod file_watcher;

#[cfg(feature = "tls")]
pub(crate) use self::certificates::Keeper;
#[cfg(feature = "config")]
pub(crate) use self::config::{Began, Configured};

use crate::runtime::handle::Reload;
use peregrine_admin::internal::Logging;
use peregrine_server::OverloadLimits;
use std::io;
use std::sync::Arc;
use tokio::sync::watch;

/// The reloaders, before they are started.
pub(crate) struct Readers {
    #[cfg(feature = "tls")]
    pub(crate) keeper: Keeper,
    #[cfg(feature = "config")]
    pub(crate) configured: Option<Configured>,
}

impl Readers {
    /// The channel through which a reload changes the workers' overload limits.
    pub(crate) fn overload(&self) -> Option<watch::Receiver<OverloadLimits>> {
        #[cfg(feature = "config")]
        return self.configured.as_ref().and_then(Configured::overload);
        #[cfg(not(feature = "config"))]
        None
    }

    /// Lets a reload change this access log.
    #[cfg(feature = "config")]
    pub(crate) fn logging_at(mut self, logging: Option<&Logging>) -> Self {
        let place = || logging.and_then(Logging::place);
        self.configured = self.configured.map(|configured| configured.logging_at(place()));
        self
    }

    #[cfg(not(feature = "config"))]
    pub(crate) fn logging_at(self, _: Option<&Logging>) -> Self {
        self
    }

    /// Starts the reloaders. Returns the function that requests a reload, or `None` if there is
    /// nothing to reload. Dropping the function ends the reloaders.
    ///
    /// # Errors
    /// The system cannot start another thread.
    pub(crate) fn start(self) -> io::Result<Option<Arc<Reload>>> {
        #[cfg(feature = "tls")]
        let reload = self.keeper.start()?;
        #[cfg(not(feature = "tls"))]
        let reload = None;
        #[cfg(feature = "config")]
        let reload = match self.configured {
            Some(configured) => configured.start(reload)?,
            None => reload,
        };
        Ok(reload)
    }
}
