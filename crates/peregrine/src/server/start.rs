//! Starts a server: its listeners, its workers, and its other threads.

use super::{Server, UpgradeOptions};
#[cfg(feature = "acme")]
use crate::acme::AcmeClients;
use crate::error::Error;
use crate::listen::listener::Listener;
use crate::listen::listeners::Listeners;
#[cfg(feature = "tls")]
use crate::reload::CertificateReloader;
#[cfg(feature = "config")]
use crate::reload::InitialSettings;
use crate::reload::Reloaders;
use crate::runtime::console::{report, url};
use crate::runtime::driver_choice::SelectedDriver;
use crate::runtime::handle::{ControlChannel, ReloadFn, ServerHandle};
use crate::runtime::make_app::BoxedMakeApp;
use crate::runtime::memory_limits;
use crate::runtime::running::{RunSettings, RunningServer};
use crate::runtime::threads;
use crate::runtime::worker::{RoutePatterns, Worker};
use crate::trace;
use peregrine_admin::internal::{AccessLogFlush, AdminState, StartedAccessLog, WorkerReporter};
use peregrine_driver::{Handoff, Options, Socket, SocketOptions};
use peregrine_restart::internal::{InheritedListeners, ListenerFds};
use peregrine_server::{Balancer, BoundListener, Limits, WorkerAccessLog, WorkerLimits};
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
    fn admin_state(&self, workers: usize, handle: &ServerHandle) -> Option<Arc<AdminState>> {
        let state = self.admin.as_ref()?.new_state(workers, handle.subscribe());
        #[cfg(feature = "tls")]
        state.set_certificates(self.listeners.iter().filter_map(Listener::tls_config));
        Some(state)
    }

    /// Returns the driver options of one worker.
    fn worker_driver_options(&self, worker: usize, reporter: Option<&WorkerReporter>) -> Options {
        Options {
            cpu: if self.pin_workers { Some(worker) } else { self.driver_options.cpu },
            metrics: reporter.map(|reporter| Arc::clone(&reporter.view().driver_metrics)),
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
        let state = self.admin_state(worker_count, &control.handle);
        let patterns = Arc::default();
        let reloaders = self.reloaders(worker_count, state.as_deref(), &patterns);
        let limits = self.worker_limits(worker_count, &reloaders);
        let reporter = |worker| Some(WorkerReporter { state: Arc::clone(state.as_ref()?), worker });
        let options = |worker| self.worker_driver_options(worker, reporter(worker).as_ref());
        let options: Vec<_> = (0..worker_count).map(options).collect();
        init_tokio().map_err(Error::Worker)?;
        let SelectedDriver { drivers, description } = self.driver.choose(&options)?;
        let (proxies, socket_options) =
            (self.trusted_proxies.as_ref(), &self.driver_options.socket_options);
        let mut listeners =
            Listeners::bind(self.listeners, proxies, worker_count, socket_options, inherited)?;
        let admin = self.admin.map(|admin| admin.bind_listener(&mut listeners, inherited));
        let admin = admin.transpose()?.flatten();
        // Started before the workers, so that probes respond during startup.
        let admin =
            admin.zip(state.as_ref()).map(|(admin, state)| admin.start(state)).transpose()?;
        let Listeners { per_worker, addresses, socket_files, listener_fds } = listeners;
        let traces = self.traces.map(trace::with_recorder);
        let log = self.access_log.map(|log| log.start(worker_count)).transpose()?;
        let reload_fn = start_reloaders(reloaders.with_log_control(log.as_ref()), &control.handle)?;
        let (logs, flush) = distribute_log(log, worker_count, &control.handle, state.as_deref());
        let balancers = balancers(&per_worker);
        let parts = per_worker.into_iter().zip(options).zip(drivers).zip(logs).zip(balancers);
        let workers: Vec<_> = parts
            .enumerate()
            .map(|(id, ((((listeners, options), driver), access_log), balancer))| Worker {
                id,
                listeners,
                limits: limits.clone(),
                options,
                driver,
                reporter: reporter(id),
                access_log,
                traces: traces.clone(),
                patterns: Arc::clone(&patterns),
                balancer,
            })
            .collect();
        // If sockets were inherited, the previous process still accepts on them until `take_over`.
        let inherited = inherited.as_mut().filter(|inherited| inherited.is_used());
        if inherited.is_some() {
            control.handle.stand_by();
        }
        if self.notifies_service_manager {
            control.handle.restart_state().enable_notifications();
        }
        let settings = RunSettings { limits: self.limits.clone(), quiet: self.quiet };
        let mut running =
            RunningServer::start(workers, make_app, addresses, socket_files, &settings, control)?;
        running.set_admin(admin);
        running.set_reload_fn(ensure_spare_thread(reload_fn).map_err(Error::Worker)?);
        running.set_access_log(flush);
        #[cfg(feature = "acme")]
        running.set_acme_threads(acme.start(&running.handle())?);
        if let Some(inherited) = inherited {
            running.take_over(inherited)?;
            running.start_admin();
        }
        let line = startup_line(&running, &description, worker_count, &limits);
        report_started(&running, &line, listener_fds, self.upgrade_options, self.quiet);
        Ok(running)
    }

    /// Returns the limits of each worker, with the channel that updates the overload limits.
    fn worker_limits(&self, workers: usize, reloaders: &Reloaders) -> WorkerLimits {
        let overload = memory_limits::resolve(&self.limits.overload, workers);
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

/// Reports that the server is serving, and makes its listeners available to successors. If a
/// shutdown has ended the startup early, reports that instead.
fn report_started(
    running: &RunningServer,
    line: &str,
    listener_fds: Vec<ListenerFds>,
    options: UpgradeOptions,
    quiet: bool,
) {
    if running.is_serving() {
        // Must precede the report: a process that reads the line may request an upgrade at once.
        let handle = running.handle();
        handle.restart_state().set_serving(&handle, listener_fds, options, quiet, line);
        report(line, quiet);
    } else {
        report("peregrine: a shutdown was requested before all workers had started", quiet);
    }
}

/// Formats the startup line: the version, the URLs, the number of workers, and the driver.
fn startup_line(
    running: &RunningServer,
    driver_description: &str,
    workers: usize,
    limits: &WorkerLimits,
) -> String {
    let urls: Vec<_> = running.urls().collect();
    let plural = if workers == 1 { "" } else { "s" };
    let memory = match memory_limits::describe(&limits.limits.overload).as_str() {
        "" => String::new(),
        memory => format!(", memory_max {memory} per worker"),
    };
    let admin = running
        .admin_address()
        .map_or_else(String::new, |address| format!("; admin {}", url(address, false)));
    format!(
        "peregrine {}: {}; {workers} worker{plural}{memory}; driver {driver_description}{admin}",
        env!("CARGO_PKG_VERSION"),
        urls.join(", "),
    )
}

/// Creates the workers' balancers, which move connections between workers. A single worker needs
/// none. All workers must have the same listeners in the same order.
fn balancers(
    listeners_per_worker: &[Vec<BoundListener<Socket>>],
) -> Vec<Option<Balancer<Handoff>>> {
    let (workers, listeners) =
        (listeners_per_worker.len(), listeners_per_worker.first().map_or(0, Vec::len));
    let balancers = Balancer::for_workers(workers, listeners).into_iter();
    balancers.map(|balancer| (workers > 1).then_some(balancer)).collect()
}

/// Returns the number of cores that this process may use.
fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Starts the reloaders, and lets `handle` request reloads.
fn start_reloaders(
    reloaders: Reloaders,
    handle: &ServerHandle,
) -> Result<Option<Arc<ReloadFn>>, Error> {
    let reload_fn = reloaders.start().map_err(Error::Worker)?;
    if let Some(reload_fn) = &reload_fn {
        handle.set_reload_fn(reload_fn);
    }
    Ok(reload_fn)
}

/// Gives each worker its part of the access log. Also registers the log with `handle`, which can
/// reopen it, and with the admin state. The returned [`AccessLogFlush`] flushes and closes the log.
fn distribute_log(
    started_log: Option<StartedAccessLog>,
    workers: usize,
    handle: &ServerHandle,
    admin_state: Option<&AdminState>,
) -> (Vec<Option<WorkerAccessLog>>, Option<AccessLogFlush>) {
    if let Some(started_log) = &started_log {
        if let Some(control) = started_log.control() {
            handle.set_access_log(control);
        }
        if let Some(admin_state) = admin_state {
            admin_state.set_access_log(started_log.metrics());
        }
    }
    StartedAccessLog::distribute(started_log, workers)
}

/// Returns `value` unchanged, or an error if no further thread can be started. Without this check,
/// tokio would panic when the first blocking function needs a thread.
fn ensure_spare_thread<T>(value: T) -> std::io::Result<T> {
    let thread = threads::spawn_thread("peregrine-probe", Box::new(|| ()))?;
    drop(thread.join());
    Ok(value)
}

/// Initializes the state that all tokio runtimes share. It needs descriptors, and tokio panics if
/// there are none, so this function first checks that six are free.
fn init_tokio() -> std::io::Result<()> {
    #[cfg(unix)]
    {
        let pair = std::os::unix::net::UnixStream::pair;
        drop([pair()?, pair()?, pair()?]);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // The caller may be inside a runtime, where a blocking drop of another runtime panics.
    runtime.shutdown_background();
    Ok(())
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
