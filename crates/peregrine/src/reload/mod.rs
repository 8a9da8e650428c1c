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
pub(crate) use self::certificates::CertificateReloader;
#[cfg(feature = "config")]
pub(crate) use self::config::{ConfigReloader, InitialSettings};

use peregrine_admin::internal::StartedAccessLog;
use peregrine_runtime::internal::ReloadFn;
use peregrine_server::OverloadLimits;
use std::io;
use std::sync::Arc;
use tokio::sync::watch;

/// The reloaders, before they are started.
pub(crate) struct Reloaders {
    #[cfg(feature = "tls")]
    pub(crate) certificates: CertificateReloader,
    #[cfg(feature = "config")]
    pub(crate) config: Option<ConfigReloader>,
}

impl Reloaders {
    /// Returns the channel through which a reload changes the workers' overload limits.
    pub(crate) fn overload_updates(&self) -> Option<watch::Receiver<OverloadLimits>> {
        #[cfg(feature = "config")]
        return self.config.as_ref().and_then(ConfigReloader::overload_updates);
        #[cfg(not(feature = "config"))]
        None
    }

    /// Lets reloads of the configuration change the access log's target.
    #[cfg(feature = "config")]
    pub(crate) fn with_log_control(mut self, log: Option<&StartedAccessLog>) -> Self {
        let control = || log.and_then(StartedAccessLog::control);
        self.config = self.config.map(|config| config.with_log_control(control()));
        self
    }

    #[cfg(not(feature = "config"))]
    pub(crate) fn with_log_control(self, _: Option<&StartedAccessLog>) -> Self {
        self
    }

    /// Starts the reloaders. Returns the function that requests a reload, or `None` if there is
    /// nothing to reload. Dropping the function ends the reloaders.
    ///
    /// # Errors
    /// The system cannot start another thread.
    pub(crate) fn start(self) -> io::Result<Option<Arc<ReloadFn>>> {
        #[cfg(feature = "tls")]
        let reload = self.certificates.start()?;
        #[cfg(not(feature = "tls"))]
        let reload = None;
        #[cfg(feature = "config")]
        let reload = match self.config {
            Some(config) => config.start(reload)?,
            None => reload,
        };
        Ok(reload)
    }
}
