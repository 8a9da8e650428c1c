//! Starts a server: its listeners, its workers, and its other threads.

use crate::console::{report, url};
use crate::driver_choice::{DriverChoice, SelectedDriver};
use crate::error::Error;
use crate::handle::{ControlChannel, ReloadFn, ServerHandle};
use crate::listen::admin::Admin;
use crate::listen::listener::Listener;
use crate::listen::listeners::Listeners;
use crate::memory_limits;
use crate::running::{AcmeThreads, RunSettings, RunningServer};
use crate::threads;
use crate::worker::{BoxedMakeApp, RoutePatterns, Worker};
use peregrine_admin::AccessLogOptions;
use peregrine_admin::internal::{AccessLogFlush, AdminState, StartedAccessLog, WorkerReporter};
use peregrine_driver::{Handoff, Options, Socket, SocketOptions};
#[cfg(all(target_os = "linux", feature = "restart"))]
pub use peregrine_restart::UpgradeOptions;
#[cfg(not(all(target_os = "linux", feature = "restart")))]
pub use peregrine_restart::internal::UpgradeOptions;
use peregrine_restart::internal::{InheritedListeners, ListenerFds};
use peregrine_server::{
    Balancer, BoundListener, Lifecycle, TraceConfig, WorkerAccessLog, WorkerLimits,
};
use peregrine_web::TrustedProxies;
use std::io;
use std::sync::Arc;
use tokio::sync::watch;

/// The settings and parts of a server that is about to start.
pub struct ServerParts {
    /// The listeners, except the admin listener.
    pub listeners: Vec<Listener>,
    /// The default trusted proxies, for listeners that have none of their own.
    pub trusted_proxies: Option<TrustedProxies>,
    /// The options of the listening sockets.
    pub socket_options: SocketOptions,
    /// The limits of each worker.
    pub limits: WorkerLimits,
    /// The driver of all workers.
    pub driver: DriverChoice,
    /// The driver options of each worker. There are as many workers as entries.
    pub driver_options: Vec<Options>,
    /// The settings of the admin listener.
    pub admin: Option<Admin>,
    /// The state that the admin pages show, if the server has an [`Admin`].
    pub admin_state: Option<Arc<AdminState>>,
    /// The target and the format of the access log.
    pub access_log: Option<AccessLogOptions>,
    /// The tracing settings, which select the requests that are sampled.
    pub traces: Option<TraceConfig>,
    /// The cell that will contain the patterns of the application's routes.
    pub route_patterns: RoutePatterns,
    /// Starts the threads that reload certificates and settings.
    pub start_reloaders: StartReloaders,
    /// Starts the threads that obtain certificates through ACME.
    pub start_acme: Option<StartAcme>,
    /// The program that an upgrade in place starts.
    pub upgrade_options: UpgradeOptions,
    /// Whether to notify the service manager of the server's state.
    pub notifies_service_manager: bool,
    /// Whether to suppress messages on standard error.
    pub quiet: bool,
}

/// Starts the threads that reload certificates and settings, which can also change the target of
/// the access log. Returns the function that requests a reload, or `None` if there is nothing to
/// reload. Dropping the function ends the threads.
pub type StartReloaders =
    Box<dyn FnOnce(Option<&StartedAccessLog>) -> io::Result<Option<Arc<ReloadFn>>>>;

/// Starts the threads that obtain certificates through ACME.
pub type StartAcme = Box<dyn FnOnce(&watch::Receiver<Lifecycle>) -> Result<AcmeThreads, Error>>;

/// Starts the server, with the sockets that the previous process passed on, if any. If a shutdown
/// was or is requested through `control`, ends the startup early.
///
/// # Errors
/// See [`Error`].
pub fn start(
    parts: ServerParts,
    inherited: &mut Option<InheritedListeners>,
    make_app: &mut dyn FnMut() -> BoxedMakeApp,
    control: ControlChannel,
) -> Result<RunningServer, Error> {
    let ServerParts {
        limits,
        driver_options,
        admin_state: state,
        traces,
        route_patterns,
        quiet,
        ..
    } = parts;
    let worker_count = driver_options.len();
    init_tokio().map_err(Error::Thread)?;
    let SelectedDriver { drivers, description } = parts.driver.choose(&driver_options)?;
    let proxies = parts.trusted_proxies.as_ref();
    let mut listeners =
        Listeners::bind(parts.listeners, proxies, worker_count, &parts.socket_options, inherited)?;
    let admin = parts.admin.map(|admin| admin.bind_listener(&mut listeners, inherited));
    let admin = admin.transpose()?.flatten();
    // Started before the workers, so that probes respond during startup. If its sockets are
    // inherited, it accepts only after `let_admin_accept` below.
    let admin = admin.zip(state.as_ref()).map(|(admin, state)| admin.start(state)).transpose()?;
    let Listeners { per_worker, addresses, socket_files, listener_fds } = listeners;
    let log = parts.access_log.map(|log| log.start(worker_count)).transpose()?;
    let reload_fn = (parts.start_reloaders)(log.as_ref()).map_err(Error::Thread)?;
    if let Some(reload_fn) = &reload_fn {
        control.handle.set_reload_fn(reload_fn);
    }
    let (logs, flush) = distribute_log(log, worker_count, &control.handle, state.as_deref());
    let balancers = balancers(&per_worker);
    let workers = per_worker.into_iter().zip(driver_options).zip(drivers).zip(logs).zip(balancers);
    let workers: Vec<_> = workers
        .enumerate()
        .map(|(id, ((((listeners, options), driver), access_log), balancer))| Worker {
            id,
            listeners,
            limits: limits.clone(),
            options,
            driver,
            reporter: state.clone().map(|state| WorkerReporter { state, worker: id }),
            access_log,
            traces: traces.clone(),
            patterns: Arc::clone(&route_patterns),
            balancer,
        })
        .collect();
    // If sockets were inherited, the previous process still accepts on them until `take_over`.
    let inherited = inherited.as_mut().filter(|inherited| inherited.is_used());
    if inherited.is_some() {
        control.handle.stand_by();
    }
    if parts.notifies_service_manager {
        control.enable_notifications();
    }
    let settings = RunSettings { limits: limits.limits.clone(), quiet };
    let mut running =
        RunningServer::start(workers, make_app, addresses, socket_files, &settings, control)?;
    running.set_admin(admin);
    check_spare_thread().map_err(Error::Thread)?;
    running.set_reload_fn(reload_fn);
    running.set_access_log(flush);
    if let Some(start_acme) = parts.start_acme {
        running.set_acme_threads(start_acme(&running.handle().subscribe())?);
    }
    if let Some(inherited) = inherited {
        running.take_over(inherited)?;
        // After a shutdown request, the predecessor continues to serve, and to answer probes.
        if running.is_serving() {
            running.let_admin_accept();
        }
    }
    let line = startup_line(&running, &description, worker_count, &limits);
    report_started(&running, &line, listener_fds, parts.upgrade_options, quiet);
    Ok(running)
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

/// Checks that a thread can still be started besides the workers. Otherwise tokio would panic when
/// the first blocking function needs a thread.
fn check_spare_thread() -> io::Result<()> {
    let thread = threads::spawn_thread("peregrine-probe", Box::new(|| ()))?;
    drop(thread.join());
    Ok(())
}

/// Initializes the state that all tokio runtimes share. It needs descriptors, and tokio panics if
/// there are none, so this function first checks that six are free.
fn init_tokio() -> io::Result<()> {
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
