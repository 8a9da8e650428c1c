//! Prepares the parts of a server from its settings, and starts it.

use super::Server;
#[cfg(feature = "acme")]
use crate::acme::AcmeClients;
#[cfg(feature = "tls")]
use crate::reload::CertificateReloader;
#[cfg(feature = "config")]
use crate::reload::InitialSettings;
use crate::reload::Reloaders;
use crate::trace;
use peregrine_admin::internal::AdminState;
use peregrine_driver::{Options, SocketOptions};
use peregrine_restart::internal::InheritedListeners;
use peregrine_runtime::internal::{
    BoxedMakeApp, ControlChannel, RoutePatterns, ServerParts, new_admin_state, resolve_memory_max,
    start,
};
use peregrine_runtime::{Error, Listener, RunningServer};
use peregrine_server::{Limits, WorkerLimits};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

impl Server {
    /// Starts the server. If a shutdown was or is requested through `control`, ends the startup
    /// early.
    pub(crate) fn start_with(
        self,
        make_app: &mut dyn FnMut() -> BoxedMakeApp,
        control: ControlChannel,
    ) -> Result<RunningServer, Error> {
        let mut inherited = InheritedListeners::from_env()?;
        let running = self.start_from(&mut inherited, make_app, control);
        if let (Err(error), Some(inherited)) = (&running, &inherited) {
            // Tells the previous process to keep serving.
            inherited.report_failure(error);
        }
        if let Some(unused) = inherited.filter(|inherited| !inherited.is_used()) {
            // Another server of this process may use the sockets.
            unused.put_back();
        }
        running
    }

    /// Checks that there is a listener and that the overload limits are valid.
    pub(super) fn validate(&self) -> Result<(), Error> {
        if self.listeners.is_empty() {
            let cause = "the server has no listeners: call `Server::bind(address)`";
            return Err(Error::Config(cause.to_owned()));
        }
        self.limits.overload.config_error().map_or(Ok(()), |error| Err(Error::Config(error)))
    }

    /// Installs the span exporter, if the configuration contains one.
    fn install_otlp(&mut self) -> Result<(), Error> {
        #[cfg(all(feature = "otlp", feature = "config"))]
        if let Some(otlp) = self.otlp.take() {
            let config_error = |error| Error::Config(format!("`traces.otlp.endpoint`: {error}"));
            otlp.install_if_absent().map_err(config_error)?;
        }
        #[cfg(not(all(feature = "otlp", feature = "config")))]
        let _ = self;
        Ok(())
    }

    /// Creates the state that the admin pages show, if the server has an [`Admin`](crate::Admin).
    fn admin_state(&self, workers: usize, control: &ControlChannel) -> Option<Arc<AdminState>> {
        let state = new_admin_state(self.admin.as_ref()?, workers, control.subscribe());
        #[cfg(feature = "tls")]
        state.set_certificates(self.listeners.iter().filter_map(Listener::tls_config));
        Some(state)
    }

    /// Returns the driver options of one worker.
    fn worker_driver_options(&self, worker: usize, admin_state: Option<&AdminState>) -> Options {
        let metrics = |state: &AdminState| Arc::clone(&state.workers[worker].driver_metrics);
        Options {
            cpu: if self.pin_workers { Some(worker) } else { self.driver_options.cpu },
            metrics: admin_state.map(metrics),
            socket_options: SocketOptions {
                tcp_user_timeout: self.tcp_user_timeout(),
                ..self.driver_options.socket_options.clone()
            },
            ..self.driver_options.clone()
        }
    }

    /// Returns `SocketOptions::tcp_user_timeout`, raised to 1.25 times the longest
    /// `transfer_rate_grace` if it is less. The kernel's timeout also runs while a client keeps its
    /// receive window closed, so a shorter one would close connections of slow readers that the
    /// server's own limit tolerates. The factor allows for the server's check of that limit, which
    /// may be late.
    fn tcp_user_timeout(&self) -> Option<Duration> {
        let grace_periods = self.listeners.iter().filter_map(Listener::transfer_rate_grace);
        let longest_grace = grace_periods.fold(self.limits.transfer_rate_grace, Duration::max);
        let timeout_min = longest_grace.saturating_add(longest_grace / 4);
        self.driver_options.socket_options.tcp_user_timeout.map(|timeout| timeout.max(timeout_min))
    }

    /// Starts the server, with the sockets that the previous process passed on, if any.
    fn start_from(
        mut self,
        inherited: &mut Option<InheritedListeners>,
        make_app: &mut dyn FnMut() -> BoxedMakeApp,
        control: ControlChannel,
    ) -> Result<RunningServer, Error> {
        self.validate().and_then(|()| self.install_otlp())?;
        let worker_count = self.workers.map_or_else(available_cores, NonZeroUsize::get);
        #[cfg(feature = "acme")]
        let acme = AcmeClients::new(self.listeners.iter().filter_map(Listener::tls_config));
        #[cfg(feature = "acme")]
        let mut intercepting = acme.intercepting_challenges(make_app);
        #[cfg(feature = "acme")]
        let make_app = &mut *intercepting;
        let admin_state = self.admin_state(worker_count, &control);
        let route_patterns = Arc::default();
        let reloaders = self.reloaders(worker_count, admin_state.as_deref(), &route_patterns);
        let limits = self.worker_limits(worker_count, &reloaders);
        let options = |worker| self.worker_driver_options(worker, admin_state.as_deref());
        let driver_options = (0..worker_count).map(options).collect();
        let parts = ServerParts {
            listeners: self.listeners,
            trusted_proxies: self.trusted_proxies,
            socket_options: self.driver_options.socket_options,
            limits,
            driver: self.driver,
            driver_options,
            admin: self.admin,
            admin_state,
            access_log: self.access_log,
            traces: self.traces.map(trace::with_recorder),
            route_patterns,
            start_reloaders: Box::new(|log| reloaders.with_log_control(log).start()),
            #[cfg(feature = "acme")]
            start_acme: Some(Box::new(|lifecycle| acme.start(lifecycle))),
            #[cfg(not(feature = "acme"))]
            start_acme: None,
            upgrade_options: self.upgrade_options,
            notifies_service_manager: self.notifies_service_manager,
            quiet: self.quiet,
        };
        start(parts, inherited, make_app, control)
    }

    /// Returns the limits of each worker, with the channel that updates the overload limits.
    fn worker_limits(&self, workers: usize, reloaders: &Reloaders) -> WorkerLimits {
        let overload = resolve_memory_max(&self.limits.overload, workers);
        let limits = Limits { overload, ..self.limits.clone() };
        WorkerLimits { overload_updates: reloaders.overload_updates(), ..limits.into() }
    }

    /// Creates the reloaders of the configuration and the certificates. Also connects the
    /// listeners, the access log and the traces to the reloader of the configuration, so that
    /// reloads can change their settings.
    fn reloaders(
        &mut self,
        worker_count: usize,
        admin_state: Option<&AdminState>,
        route_patterns: &RoutePatterns,
    ) -> Reloaders {
        #[cfg(feature = "config")]
        let config_reloader = self.config_reloader.take().map(|mut config_reloader| {
            config_reloader.initialize(&InitialSettings {
                limits: &self.limits,
                trusted_proxies: self.trusted_proxies.as_ref(),
                workers: self.workers,
                worker_count,
                pin_workers: self.pin_workers,
                driver: self.driver,
                socket_options: &self.driver_options.socket_options,
                quiet: self.quiet,
            });
            self.listeners
                .iter_mut()
                .for_each(|listener| config_reloader.attach_listener(listener));
            if let Some(log) = &mut self.access_log {
                config_reloader.attach_access_log(log);
            }
            self.traces = self.traces.take().map(|traces| config_reloader.attach_traces(traces));
            config_reloader.set_route_patterns(route_patterns);
            if let Some(admin_state) = admin_state {
                let _ = admin_state.config.set(config_reloader.text());
                let _ = admin_state.reload_metrics.set(config_reloader.metrics());
            }
            config_reloader
        });
        #[cfg(not(feature = "config"))]
        let _ = (worker_count, admin_state, route_patterns);
        Reloaders {
            #[cfg(feature = "tls")]
            certificates: self.certificate_reloader(),
            #[cfg(feature = "config")]
            config: config_reloader,
        }
    }

    /// Creates the reloader of the certificates of all listeners.
    #[cfg(feature = "tls")]
    fn certificate_reloader(&self) -> CertificateReloader {
        let reloader =
            CertificateReloader::new(self.listeners.iter().filter_map(Listener::tls_config));
        #[cfg(feature = "tls-watch")]
        let reloader = if self.watches_certificates { reloader.watch_files() } else { reloader };
        reloader
    }
}

/// Returns the number of cores that this process may use.
fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tcp_user_timeout_exceeds_every_transfer_rate_grace() {
        let limits = |seconds| Limits {
            transfer_rate_grace: Duration::from_secs(seconds),
            ..Limits::default()
        };
        let tcp_user_timeout =
            |server: &Server| server.worker_driver_options(0, None).socket_options.tcp_user_timeout;
        let server = Server::bind("127.0.0.1:0");
        assert_eq!(tcp_user_timeout(&server), SocketOptions::default().tcp_user_timeout);
        let server = server.limits(limits(400));
        assert_eq!(tcp_user_timeout(&server), Some(Duration::from_secs(500)));
        let server = server.listen(Listener::bind("127.0.0.1:0").limits(limits(800)));
        assert_eq!(tcp_user_timeout(&server), Some(Duration::from_secs(1000)));
        let none = SocketOptions { tcp_user_timeout: None, ..SocketOptions::default() };
        assert_eq!(tcp_user_timeout(&server.socket_options(none)), None);
    }
}
