//! Starts a server: its listeners, its workers, and the threads beside them.

use super::Server;
#[cfg(feature = "acme")]
use crate::acme::Suppliers;
use crate::error::Error;
use crate::listen::listener::Listener;
use crate::listen::listeners::Entrances;
#[cfg(feature = "config")]
use crate::reload::Began;
#[cfg(feature = "tls")]
use crate::reload::Keeper;
use crate::reload::Readers;
use crate::runtime::console::{tell, url};
use crate::runtime::driver_choice::Chosen;
use crate::runtime::handle::{Handle, Orders, Reload};
use crate::runtime::make_app::Make;
use crate::runtime::memory_limits;
use crate::runtime::running::{Running, Settings};
use crate::runtime::threads;
use crate::runtime::worker::{Patterns, Worker};
use crate::trace;
use peregrine_admin::internal::{Begun, Ending, Logging, Views};
use peregrine_driver::{Options, Passed, Socket, SocketOptions};
use peregrine_restart::internal::Heir;
use peregrine_server::{Limits, Listen, Log, Member, WorkerLimits};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

impl Server {
    /// Starts a server that may already have been given orders. An order to stop ends the startup
    /// early.
    pub(crate) fn start_under(
        self,
        makes: &mut dyn FnMut() -> Make,
        orders: Orders,
    ) -> Result<Running, Error> {
        let mut heir = Heir::find()?;
        let running = self.start_from(&mut heir, makes, orders);
        if let (Err(error), Some(heir)) = (&running, &heir) {
            heir.fail(error);
        }
        if let Some(unused) = heir.filter(|heir| !heir.is_used()) {
            unused.put_back();
        }
        running
    }

    /// Checks settings that would prevent the server from serving.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.listeners.is_empty() {
            let cause = "the server has no listeners: call `Server::bind(address)`";
            return Err(Error::Config(cause.to_owned()));
        }
        self.limits.overload.fault().map_or(Ok(()), |fault| Err(Error::Config(fault)))
    }

    /// Installs the exporter for spans, if the configuration has one.
    fn send_spans(&mut self) -> Result<(), Error> {
        #[cfg(all(feature = "otlp", feature = "config"))]
        if let Some(otlp) = self.otlp.take() {
            let wrong = |error| Error::Config(format!("`traces.otlp.endpoint`: {error}"));
            otlp.install_unless_done().map_err(wrong)?;
        }
        #[cfg(not(all(feature = "otlp", feature = "config")))]
        let _ = self;
        Ok(())
    }

    /// The data shown by the admin listener, if there is one.
    fn views(&self, workers: usize, handle: &Handle) -> Option<Arc<Views>> {
        let views = self.admin.as_ref()?.views(workers, handle.subscribe());
        #[cfg(feature = "tls")]
        views.show_certificates(self.listeners.iter().filter_map(Listener::certificates));
        Some(views)
    }

    /// The driver options of one worker.
    fn options_of(&self, number: usize, shown: Option<&Begun>) -> Options {
        Options {
            cpu: if self.pin { Some(number) } else { self.options.cpu },
            figures: shown.map(|shown| Arc::clone(&shown.view().figures)),
            sockets: SocketOptions {
                user_timeout: self.user_timeout(),
                ..self.options.sockets.clone()
            },
            ..self.options.clone()
        }
    }

    /// `SocketOptions::user_timeout`, raised above `rate_slack`: the kernel's timeout also counts
    /// the time in which a client keeps its receive window closed, so it would close connections of
    /// slow readers that the server's own limit tolerates.
    fn user_timeout(&self) -> Option<Duration> {
        let own = self.listeners.iter().filter_map(Listener::rate_slack);
        let slack = own.fold(self.limits.rate_slack, Duration::max);
        let least = slack.saturating_add(slack / 4);
        self.options.sockets.user_timeout.map(|time| time.max(least))
    }

    fn start_from(
        mut self,
        heir: &mut Option<Heir>,
        makes: &mut dyn FnMut() -> Make,
        orders: Orders,
    ) -> Result<Running, Error> {
        self.check().and_then(|()| self.send_spans())?;
        let workers = self.workers.map_or_else(cores, NonZeroUsize::get);
        #[cfg(feature = "acme")]
        let suppliers = Suppliers::of(self.listeners.iter().filter_map(Listener::certificates));
        #[cfg(feature = "acme")]
        let mut answering = suppliers.answering(makes);
        #[cfg(feature = "acme")]
        let makes = &mut *answering;
        let views = self.views(workers, &orders.handle);
        let patterns = Arc::default();
        let readers = self.readers(workers, views.as_deref(), &patterns);
        let limits = self.limits_of_worker(workers, &readers);
        let shown = |number| Some(Begun { views: Arc::clone(views.as_ref()?), number });
        let options = |number| self.options_of(number, shown(number).as_ref());
        let options: Vec<_> = (0..workers).map(options).collect();
        begin_tokio().map_err(Error::Worker)?;
        let Chosen { seats, reason } = self.choice.choose(&options)?;
        let (proxies, sockets) = (self.proxies.as_ref(), &self.options.sockets);
        let mut all = Entrances::open(self.listeners, proxies, workers, sockets, heir)?;
        let admin = self.admin.map(|admin| admin.open(&mut all, heir)).transpose()?.flatten();
        // Started before the workers, so that probes respond during startup.
        let admin =
            admin.zip(views.as_ref()).map(|(admin, views)| admin.start(views)).transpose()?;
        let Entrances { plans, places, files, holdings } = all;
        let traces = self.traces.map(trace::recorded);
        let logging = self.log.map(|log| log.start(workers)).transpose()?;
        let reload = begin_reading(readers.logging_at(logging.as_ref()), &orders.handle)?;
        let (logs, log) = deal_log(logging, workers, &orders.handle, views.as_deref());
        let members = members(&plans);
        let given = plans.into_iter().zip(options).zip(seats).zip(logs).zip(members).enumerate();
        let starts = given.map(|(number, ((((listeners, options), seat), log), member))| Worker {
            number,
            listeners,
            limits: limits.clone(),
            options,
            seat,
            shown: shown(number),
            log,
            traces: traces.clone(),
            patterns: Arc::clone(&patterns),
            member,
        });
        let heir = heir.as_mut().filter(|heir| heir.is_used());
        if heir.is_some() {
            orders.handle.hold_back();
        }
        if self.tells_manager {
            orders.handle.restart().tell_manager();
        }
        let settings = Settings { limits: self.limits.clone(), quiet: self.quiet };
        let mut running =
            Running::start(starts.collect(), makes, places, files, &settings, orders)?;
        running.administered_by(admin);
        running.reloads_by(with_thread_to_spare(reload).map_err(Error::Worker)?);
        running.logged_by(log);
        #[cfg(feature = "acme")]
        running.certified_by(suppliers.start(&running.handle())?);
        if let Some(heir) = heir {
            running.succeed(heir)?;
            running.open_admin();
        }
        if running.is_whole() {
            let memory = memory_limits::text(&limits.limits.overload);
            let line = first_line(&running, &reason, workers, &memory);
            // Readers of the line may request an upgrade immediately.
            let handle = running.handle();
            handle.restart().serves(&handle, holdings, self.successor, self.quiet, &line);
            tell(&line, self.quiet);
        } else {
            tell("peregrine: ordered to stop before all workers had started", self.quiet);
        }
        Ok(running)
    }

    /// The limits of each worker, and the channel with their changes.
    fn limits_of_worker(&self, workers: usize, readers: &Readers) -> WorkerLimits {
        let overload = memory_limits::settled(&self.limits.overload, workers);
        let limits = Limits { overload, ..self.limits.clone() };
        WorkerLimits { overload: readers.overload(), ..limits.into() }
    }

    /// Creates the readers of files that can be reloaded, with the server's current settings.
    fn readers(&mut self, count: usize, views: Option<&Views>, patterns: &Patterns) -> Readers {
        #[cfg(feature = "config")]
        let configured = self.configured.take().map(|mut configured| {
            configured.begin(&Began {
                limits: &self.limits,
                proxies: self.proxies.as_ref(),
                workers: self.workers,
                count,
                pin_workers: self.pin,
                driver: self.choice,
                sockets: &self.options.sockets,
                quiet: self.quiet,
            });
            self.listeners.iter_mut().for_each(|listener| configured.include(listener));
            if let Some(log) = &mut self.log {
                configured.include_log(log);
            }
            self.traces = self.traces.take().map(|traces| configured.include_traces(traces));
            configured.knows(patterns);
            if let Some(views) = views {
                let _ = views.config.set(configured.text());
                let _ = views.reloads.set(configured.figures());
            }
            configured
        });
        #[cfg(not(feature = "config"))]
        let _ = (count, views, patterns);
        Readers {
            #[cfg(feature = "tls")]
            keeper: self.keeper(),
            #[cfg(feature = "config")]
            configured,
        }
    }

    /// Creates the reloader of the certificates of all listeners.
    #[cfg(feature = "tls")]
    fn keeper(&self) -> Keeper {
        let keeper = Keeper::of(self.listeners.iter().filter_map(Listener::certificates));
        #[cfg(feature = "tls-watch")]
        let keeper = if self.watches_certificates { keeper.watching() } else { keeper };
        keeper
    }
}

/// The startup line: version, URLs, workers, driver.
fn first_line(running: &Running, reason: &str, workers: usize, memory: &str) -> String {
    let urls: Vec<_> = running.urls().collect();
    let plural = if workers == 1 { "" } else { "s" };
    let memory = match memory {
        "" => String::new(),
        memory => format!(", memory_max {memory} per worker"),
    };
    let tls =
        if running.urls().any(|url| url.starts_with("https")) { "; TLS 1.3 and 1.2" } else { "" };
    let admin = running
        .admin_place()
        .map_or_else(String::new, |place| format!("; admin {}", url(place, false)));
    format!(
        "peregrine {}: {}; {workers} worker{plural}{memory}; driver {reason}{tls}{admin}",
        env!("CARGO_PKG_VERSION"),
        urls.join(", "),
    )
}

/// Creates each worker's part in balancing connections, if there are several workers. All workers
/// have the same listeners in the same order.
fn members(plans: &[Vec<Listen<Socket>>]) -> Vec<Option<Member<Passed>>> {
    let (workers, listeners) = (plans.len(), plans.first().map_or(0, Vec::len));
    let members = Member::all(workers, listeners).into_iter();
    members.map(|member| (workers > 1).then_some(member)).collect()
}

/// The number of cores that this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Enables reloads, which may be requested as soon as the server is ready.
fn begin_reading(readers: Readers, handle: &Handle) -> Result<Option<Arc<Reload>>, Error> {
    let reload = readers.start().map_err(Error::Worker)?;
    if let Some(reload) = &reload {
        handle.reload_by(reload);
    }
    Ok(reload)
}

/// Distributes the log to the workers, and registers it with the server's handle, which can reopen
/// it, and with the admin listener. The returned [`Ending`] ends the log.
fn deal_log(
    logging: Option<Logging>,
    workers: usize,
    handle: &Handle,
    views: Option<&Views>,
) -> (Vec<Option<Log>>, Option<Ending>) {
    if let Some(logging) = &logging {
        if let Some(place) = logging.place() {
            handle.logs_at(place);
        }
        if let Some(views) = views {
            views.show_log(logging.figures());
        }
    }
    Logging::deal(logging, workers)
}

/// Returns `begun`, or an error if no further thread can be started: tokio would then panic in the
/// first caller that needs a thread for a blocking function.
fn with_thread_to_spare<T>(begun: T) -> std::io::Result<T> {
    let thread = threads::start("peregrine-spare", Box::new(|| ()))?;
    drop(thread.join());
    Ok(begun)
}

/// Initializes the parts that all tokio runtimes share. They need descriptors, and tokio panics
/// without them, so this first checks that some are free.
fn begin_tokio() -> std::io::Result<()> {
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
        let limits =
            |seconds| Limits { rate_slack: Duration::from_secs(seconds), ..Limits::default() };
        let kept = |server: &Server| server.options_of(0, None).sockets.user_timeout;
        let server = Server::bind("127.0.0.1:0");
        assert_eq!(kept(&server), SocketOptions::default().user_timeout);
        let server = server.limits(limits(400));
        assert_eq!(kept(&server), Some(Duration::from_secs(500)));
        let server = server.listen(Listener::at("127.0.0.1:0").limits(limits(800)));
        assert_eq!(kept(&server), Some(Duration::from_secs(1000)));
        let none = SocketOptions { user_timeout: None, ..SocketOptions::default() };
        assert_eq!(kept(&server.sockets(none)), None);
    }
}
