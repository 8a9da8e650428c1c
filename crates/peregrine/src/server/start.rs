//! Starts a server: its listeners, its workers, and the threads beside them.

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
    /// Starts a server whose shutdown may already have been requested. That ends the startup
    /// early.
    pub(crate) fn start_with(
        self,
        makes: &mut dyn FnMut() -> BoxedMakeApp,
        orders: ControlChannel,
    ) -> Result<RunningServer, Error> {
        let mut heir = InheritedListeners::from_env()?;
        let running = self.start_from(&mut heir, makes, orders);
        if let (Err(error), Some(heir)) = (&running, &heir) {
            heir.report_failure(error);
        }
        if let Some(unused) = heir.filter(|heir| !heir.is_used()) {
            unused.put_back();
        }
        running
    }

    /// Checks settings that would prevent the server from serving.
    pub(super) fn validate(&self) -> Result<(), Error> {
        if self.listeners.is_empty() {
            let cause = "the server has no listeners: call `Server::bind(address)`";
            return Err(Error::Config(cause.to_owned()));
        }
        self.limits.overload.config_error().map_or(Ok(()), |fault| Err(Error::Config(fault)))
    }

    /// Installs the exporter for spans, if the configuration has one.
    fn install_otlp(&mut self) -> Result<(), Error> {
        #[cfg(all(feature = "otlp", feature = "config"))]
        if let Some(otlp) = self.otlp.take() {
            let wrong = |error| Error::Config(format!("`traces.otlp.endpoint`: {error}"));
            otlp.install_if_absent().map_err(wrong)?;
        }
        #[cfg(not(all(feature = "otlp", feature = "config")))]
        let _ = self;
        Ok(())
    }

    /// The data shown by the admin listener, if there is one.
    fn admin_state(&self, workers: usize, handle: &ServerHandle) -> Option<Arc<AdminState>> {
        let views = self.admin.as_ref()?.new_state(workers, handle.subscribe());
        #[cfg(feature = "tls")]
        views.set_certificates(self.listeners.iter().filter_map(Listener::certificates));
        Some(views)
    }

    /// The driver options of one worker.
    fn worker_driver_options(&self, number: usize, shown: Option<&WorkerReporter>) -> Options {
        Options {
            cpu: if self.pin_workers { Some(number) } else { self.driver_options.cpu },
            metrics: shown.map(|shown| Arc::clone(&shown.view().driver_metrics)),
            socket_options: SocketOptions {
                tcp_user_timeout: self.tcp_user_timeout(),
                ..self.driver_options.socket_options.clone()
            },
            ..self.driver_options.clone()
        }
    }

    /// `SocketOptions::tcp_user_timeout`, raised above `transfer_rate_grace`: the kernel's timeout
    /// also counts the time in which a client keeps its receive window closed, so it would close
    /// connections of slow readers that the server's own limit tolerates.
    fn tcp_user_timeout(&self) -> Option<Duration> {
        let own = self.listeners.iter().filter_map(Listener::transfer_rate_grace);
        let slack = own.fold(self.limits.transfer_rate_grace, Duration::max);
        let least = slack.saturating_add(slack / 4);
        self.driver_options.socket_options.tcp_user_timeout.map(|time| time.max(least))
    }

    fn start_from(
        mut self,
        heir: &mut Option<InheritedListeners>,
        makes: &mut dyn FnMut() -> BoxedMakeApp,
        orders: ControlChannel,
    ) -> Result<RunningServer, Error> {
        self.validate().and_then(|()| self.install_otlp())?;
        let count = self.workers.map_or_else(cores, NonZeroUsize::get);
        #[cfg(feature = "acme")]
        let suppliers = AcmeClients::new(self.listeners.iter().filter_map(Listener::certificates));
        #[cfg(feature = "acme")]
        let mut answering = suppliers.intercepting_challenges(makes);
        #[cfg(feature = "acme")]
        let makes = &mut *answering;
        let views = self.admin_state(count, &orders.handle);
        let patterns = Arc::default();
        let readers = self.reloaders(count, views.as_deref(), &patterns);
        let limits = self.limits_of_worker(count, &readers);
        let reporter = |worker| Some(WorkerReporter { state: Arc::clone(views.as_ref()?), worker });
        let options = |worker| self.worker_driver_options(worker, reporter(worker).as_ref());
        let options: Vec<_> = (0..count).map(options).collect();
        init_tokio().map_err(Error::Worker)?;
        let SelectedDriver { drivers, reason } = self.driver.choose(&options)?;
        let (proxies, sockets) =
            (self.trusted_proxies.as_ref(), &self.driver_options.socket_options);
        let mut all = Listeners::bind(self.listeners, proxies, count, sockets, heir)?;
        let admin =
            self.admin.map(|admin| admin.bind_listener(&mut all, heir)).transpose()?.flatten();
        // Started before the workers, so that probes respond during startup.
        let admin =
            admin.zip(views.as_ref()).map(|(admin, views)| admin.start(views)).transpose()?;
        let Listeners { per_worker, addresses, socket_files, listener_fds } = all;
        let traces = self.traces.map(trace::with_recorder);
        let logging = self.access_log.map(|log| log.start(count)).transpose()?;
        let reload = start_reloaders(readers.with_log_control(logging.as_ref()), &orders.handle)?;
        let (logs, log) = distribute_log(logging, count, &orders.handle, views.as_deref());
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
        let heir = heir.as_mut().filter(|heir| heir.is_used());
        if heir.is_some() {
            orders.handle.stand_by();
        }
        if self.notifies_service_manager {
            orders.handle.restart().enable_notifications();
        }
        let settings = RunSettings { limits: self.limits.clone(), quiet: self.quiet };
        let mut running =
            RunningServer::start(workers, makes, addresses, socket_files, &settings, orders)?;
        running.set_admin(admin);
        running.set_reload_fn(ensure_spare_thread(reload).map_err(Error::Worker)?);
        running.set_access_log(log);
        #[cfg(feature = "acme")]
        running.start_acme(suppliers.start(&running.handle())?);
        if let Some(heir) = heir {
            running.take_over(heir)?;
            running.start_admin();
        }
        let line = startup_line(&running, &reason, count, &limits);
        report_started(&running, &line, listener_fds, self.upgrade_options, self.quiet);
        Ok(running)
    }

    /// The limits of each worker, and the channel with their changes.
    fn limits_of_worker(&self, workers: usize, readers: &Reloaders) -> WorkerLimits {
        let overload = memory_limits::resolve(&self.limits.overload, workers);
        let limits = Limits { overload, ..self.limits.clone() };
        WorkerLimits { overload_updates: readers.overload(), ..limits.into() }
    }

    /// Creates the readers of files that can be reloaded, with the server's current settings.
    fn reloaders(
        &mut self,
        count: usize,
        views: Option<&AdminState>,
        patterns: &RoutePatterns,
    ) -> Reloaders {
        #[cfg(feature = "config")]
        let configured = self.config_reloader.take().map(|mut configured| {
            configured.initialize(&InitialSettings {
                limits: &self.limits,
                trusted_proxies: self.trusted_proxies.as_ref(),
                workers: self.workers,
                worker_count: count,
                pin_workers: self.pin_workers,
                driver: self.driver,
                sockets: &self.driver_options.socket_options,
                quiet: self.quiet,
            });
            self.listeners.iter_mut().for_each(|listener| configured.attach_listener(listener));
            if let Some(log) = &mut self.access_log {
                configured.attach_access_log(log);
            }
            self.traces = self.traces.take().map(|traces| configured.attach_traces(traces));
            configured.set_route_patterns(patterns);
            if let Some(views) = views {
                let _ = views.config.set(configured.text());
                let _ = views.reload_metrics.set(configured.metrics());
            }
            configured
        });
        #[cfg(not(feature = "config"))]
        let _ = (count, views, patterns);
        Reloaders {
            #[cfg(feature = "tls")]
            certificates: self.certificate_reloader(),
            #[cfg(feature = "config")]
            config: configured,
        }
    }

    /// Creates the reloader of the certificates of all listeners.
    #[cfg(feature = "tls")]
    fn certificate_reloader(&self) -> CertificateReloader {
        let keeper =
            CertificateReloader::new(self.listeners.iter().filter_map(Listener::certificates));
        #[cfg(feature = "tls-watch")]
        let keeper = if self.watches_certificates { keeper.watch_files() } else { keeper };
        keeper
    }
}

/// Reports that the server is serving, and offers its listeners to successors.
fn report_started(
    running: &RunningServer,
    line: &str,
    listener_fds: Vec<ListenerFds>,
    options: UpgradeOptions,
    quiet: bool,
) {
    if running.is_serving() {
        // Readers of the line may request an upgrade immediately.
        let handle = running.handle();
        handle.restart().set_serving(&handle, listener_fds, options, quiet, line);
        report(line, quiet);
    } else {
        report("peregrine: told to stop before all workers had started", quiet);
    }
}

/// The startup line: version, URLs, workers, driver.
fn startup_line(
    running: &RunningServer,
    reason: &str,
    workers: usize,
    limits: &WorkerLimits,
) -> String {
    let urls: Vec<_> = running.urls().collect();
    let plural = if workers == 1 { "" } else { "s" };
    let memory = match memory_limits::describe(&limits.limits.overload).as_str() {
        "" => String::new(),
        memory => format!(", memory_max {memory} per worker"),
    };
    let tls =
        if running.urls().any(|url| url.starts_with("https")) { "; TLS 1.3 and 1.2" } else { "" };
    let admin = running
        .admin_address()
        .map_or_else(String::new, |place| format!("; admin {}", url(place, false)));
    format!(
        "peregrine {}: {}; {workers} worker{plural}{memory}; driver {reason}{tls}{admin}",
        env!("CARGO_PKG_VERSION"),
        urls.join(", "),
    )
}

/// Creates each worker's part in balancing connections, if there are several workers. All workers
/// have the same listeners in the same order.
fn balancers(plans: &[Vec<BoundListener<Socket>>]) -> Vec<Option<Balancer<Handoff>>> {
    let (workers, listeners) = (plans.len(), plans.first().map_or(0, Vec::len));
    let members = Balancer::for_workers(workers, listeners).into_iter();
    members.map(|member| (workers > 1).then_some(member)).collect()
}

/// The number of cores that this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Enables reloads, which may be requested as soon as the server is ready.
fn start_reloaders(
    readers: Reloaders,
    handle: &ServerHandle,
) -> Result<Option<Arc<ReloadFn>>, Error> {
    let reload = readers.start().map_err(Error::Worker)?;
    if let Some(reload) = &reload {
        handle.set_reload_fn(reload);
    }
    Ok(reload)
}

/// Distributes the log to the workers, and registers it with the server's handle, which can reopen
/// it, and with the admin listener. The returned [`AccessLogFlush`] ends the log.
fn distribute_log(
    logging: Option<StartedAccessLog>,
    workers: usize,
    handle: &ServerHandle,
    views: Option<&AdminState>,
) -> (Vec<Option<WorkerAccessLog>>, Option<AccessLogFlush>) {
    if let Some(logging) = &logging {
        if let Some(place) = logging.control() {
            handle.set_access_log(place);
        }
        if let Some(views) = views {
            views.set_access_log(logging.metrics());
        }
    }
    StartedAccessLog::distribute(logging, workers)
}

/// Returns `begun`, or an error if no further thread can be started: tokio would then panic in the
/// first caller that needs a thread for a blocking function.
fn ensure_spare_thread<T>(begun: T) -> std::io::Result<T> {
    let thread = threads::spawn_thread("peregrine-probe", Box::new(|| ()))?;
    drop(thread.join());
    Ok(begun)
}

/// Initializes the parts that all tokio runtimes share. They need descriptors, and tokio panics
/// without them, so this first checks that some are free.
fn init_tokio() -> std::io::Result<()> {
    #[cfg(unix)]
    {
        let pair = std::os::unix::net::UnixStream::pair;
        drop([pair()?, pair()?, pair()?]);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // The caller may be inside a runtime, where dropping another one in a blocking way panics.
    runtime.shutdown_background();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_ends_no_reader_before_the_server_does() {
        let limits = |seconds| Limits {
            transfer_rate_grace: Duration::from_secs(seconds),
            ..Limits::default()
        };
        let kept =
            |server: &Server| server.worker_driver_options(0, None).socket_options.tcp_user_timeout;
        let server = Server::bind("127.0.0.1:0");
        assert_eq!(kept(&server), SocketOptions::default().tcp_user_timeout);
        let server = server.limits(limits(400));
        assert_eq!(kept(&server), Some(Duration::from_secs(500)));
        let server = server.listen(Listener::bind("127.0.0.1:0").limits(limits(800)));
        assert_eq!(kept(&server), Some(Duration::from_secs(1000)));
        let none = SocketOptions { tcp_user_timeout: None, ..SocketOptions::default() };
        assert_eq!(kept(&server.socket_options(none)), None);
    }
}
