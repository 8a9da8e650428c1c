//! [`Running`], a server that has started: starts its workers, lists its addresses, and waits for
//! it to end.

use crate::error::Error;
use crate::listen::bind::{Place, SocketFiles};
use crate::runtime::blocking;
use crate::runtime::console::{tell, url};
use crate::runtime::deadline::Deadline;
use crate::runtime::handle::{Ended, Handle, News, Orders, Reload};
use crate::runtime::make_app::Make;
use crate::runtime::report::Stopped;
use crate::runtime::signals::Hears;
use crate::runtime::threads;
use crate::runtime::worker::Worker;
#[cfg(feature = "acme")]
use peregrine_acme::Working;
use peregrine_admin::internal::{Administering, Ending};
use peregrine_restart::internal::Heir;
use peregrine_server::{Limits, Order, Pulse, Snapshot};
use peregrine_web::panics::contained;
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Settings of the server as a whole.
pub(crate) struct Settings {
    pub(crate) limits: Limits,
    pub(crate) quiet: bool,
}

/// A running server. Dropping it cuts every connection.
pub struct Running {
    handle: Handle,
    news: mpsc::Receiver<News>,
    /// Workers that have not ended yet.
    awaited: BTreeSet<usize>,
    stopped: Stopped,
    /// The first error of a worker, which shut the server down.
    failed: Option<Error>,
    places: Vec<(Place, bool)>,
    shutdown_timeout: Duration,
    quiet: bool,
    admin: Option<(Administering, Place)>,
    log: Option<Ending>,
    _files: SocketFiles,
    /// Reloads certificates and settings. Kept until the server has ended.
    _reload: Option<Arc<Reload>>,
    /// Obtains certificates. Kept until the server has ended.
    #[cfg(feature = "acme")]
    supplying: Vec<Working>,
}

impl Running {
    pub(crate) fn start(
        workers: Vec<Worker>,
        makes: &mut dyn FnMut() -> Make,
        places: Vec<(Place, bool)>,
        files: SocketFiles,
        settings: &Settings,
        orders: Orders,
    ) -> Result<Self, Error> {
        let Orders { handle, news } = orders;
        let count = workers.len();
        // If anything below fails, dropping it stops the workers that have started.
        let mut running = Self {
            handle,
            news,
            awaited: BTreeSet::new(),
            stopped: Stopped { workers: vec![None; count], ..Stopped::default() },
            failed: None,
            places,
            shutdown_timeout: settings.limits.shutdown_timeout,
            quiet: settings.quiet,
            admin: None,
            log: None,
            _files: files,
            _reload: None,
            #[cfg(feature = "acme")]
            supplying: Vec::new(),
        };
        let mut pulses = Vec::with_capacity(count);
        let mut watchdog = running.handle.restart().watchdog();
        for worker in workers {
            let pulse = Arc::new(Pulse::default());
            pulses.push(Arc::downgrade(&pulse));
            if let Some(shown) = &worker.shown {
                shown.view().show_pulse(&pulse);
            }
            let name = format!("peregrine-{}", worker.number);
            let answering = watchdog.as_mut().map(|watchdog| watchdog.answering());
            let body = worker.body(makes(), &running.handle, pulse, answering);
            threads::start(name, Box::new(body)).map_err(Error::Worker)?;
        }
        running.await_start(count)?;
        if let Some(budget) = settings.limits.poll_budget {
            blocking::start(pulses, budget).map_err(Error::Worker)?;
        }
        if let Some(watchdog) = watchdog {
            watchdog.start(running.handle()).map_err(Error::Worker)?;
        }
        Ok(running)
    }

    /// Waits until all workers are ready, or until the server is ordered to shut down. In that case
    /// it does not wait for workers that are still starting, because building an application may
    /// take arbitrarily long.
    fn await_start(&mut self, count: usize) -> Result<(), Error> {
        let mut ready = 0;
        while ready < count {
            let news = self.news.recv().expect("`self.handle` holds a sender");
            match news {
                News::Ordered => break,
                News::Ready(number) => {
                    ready += 1;
                    self.awaited.insert(number);
                }
                News::Ended(Ended { result: Err(error), .. }) => return Err(error),
                News::Ended(ended) => self.note(ended),
            }
        }
        for (number, worker) in self.stopped.workers.iter_mut().enumerate() {
            if !self.awaited.contains(&number) && worker.is_none() {
                *worker = Some(Snapshot::default());
            }
        }
        Ok(())
    }

    /// Attaches an admin listener, which is stopped when the server has ended.
    pub(crate) fn administered_by(&mut self, admin: Option<(Administering, Place)>) {
        self.admin = admin;
    }

    /// Starts accepting on the admin listener after the previous process has stopped using it.
    pub(crate) fn open_admin(&self) {
        self.admin.iter().for_each(|(admin, _)| admin.open());
    }

    /// Attaches the access log, which is flushed and closed when the server has ended.
    pub(crate) fn logged_by(&mut self, log: Option<Ending>) {
        self.log = log;
    }

    /// The address of the admin listener, if there is one. Contains the actual port if port 0 was
    /// requested.
    #[must_use]
    pub fn admin_place(&self) -> Option<&Place> {
        self.admin.as_ref().map(|(_, place)| place)
    }

    /// Lets this reload certificates and settings, until the server has ended.
    pub(crate) fn reloads_by(&mut self, reload: Option<Arc<Reload>>) {
        if let Some(reload) = &reload {
            self.handle.reload_by(reload);
        }
        self._reload = reload;
    }

    /// Starts to obtain certificates through ACME, until the server is ordered to shut down.
    #[cfg(feature = "acme")]
    pub(crate) fn certified_by(&mut self, supplying: Vec<Working>) {
        self.supplying = supplying;
    }

    /// Takes over from the previous process: serves as soon as that process stops accepting.
    pub(crate) fn succeed(&mut self, heir: &mut Heir) -> Result<(), Error> {
        let handle = self.handle();
        heir.succeed(&handle, || {
            while let Ok(news) = self.news.try_recv() {
                if let News::Ended(ended) = news {
                    self.note(ended);
                }
            }
            self.failed.take().map_or(Ok(()), Err)
        })
    }

    /// Whether no order to shut down arrived before all workers were ready.
    pub(crate) fn is_whole(&self) -> bool {
        self.handle.present() == Order::Serve
    }

    /// The addresses that the server listens on, with the actual ports where port 0 was requested.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().map(|(place, _)| place)
    }

    /// The addresses as URLs.
    pub fn urls(&self) -> impl Iterator<Item = String> {
        self.places.iter().map(|(place, is_tls)| url(place, *is_tls))
    }

    /// The first TCP address that speaks HTTP.
    #[must_use]
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.address(false)
    }

    /// The first TCP address that speaks HTTPS.
    #[must_use]
    pub fn https_address(&self) -> Option<SocketAddr> {
        self.address(true)
    }

    fn address(&self, tls: bool) -> Option<SocketAddr> {
        self.places.iter().find_map(|(place, is_tls)| match place {
            Place::Tcp(address) if *is_tls == tls => Some(*address),
            _ => None,
        })
    }

    /// Returns a handle, with which any thread can shut the server down.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Shuts the server down and waits until it has ended.
    ///
    /// # Errors
    /// A worker failed or panicked.
    pub fn shut_down(self) -> Result<Stopped, Error> {
        self.handle.shut_down();
        self.wait()
    }

    /// Waits until the server has ended, because of a [`Handle`] or an error.
    ///
    /// # Errors
    /// A worker failed or panicked; the other workers are then shut down.
    pub fn wait(self) -> Result<Stopped, Error> {
        self.wait_with("")
    }

    /// Waits until the server has ended. If that takes long, prints a message that ends with
    /// `way_out`.
    fn wait_with(mut self, way_out: &str) -> Result<Stopped, Error> {
        let mut deadline = Deadline::default();
        while !self.awaited.is_empty() && self.next_news(&mut deadline, way_out).is_some() {}
        self.handle.restart().finish();
        self.stopped.is_cut_ordered = deadline.is_cut_ordered;
        if let Some(log) = self.log.take() {
            log.end();
        }
        #[cfg(feature = "otlp")]
        peregrine_admin::internal::flush();
        if let Some((admin, _)) = self.admin.take() {
            admin.end();
        }
        let failed = self.failed.take();
        failed.map_or_else(|| Ok(std::mem::take(&mut self.stopped)), Err)
    }

    /// Waits for and handles the next event. Returns `None` if none arrives before the deadline of
    /// a shutdown.
    fn next_news(&mut self, deadline: &mut Deadline, way_out: &str) -> Option<()> {
        let now = Instant::now();
        deadline.follow(self.handle.present(), self.shutdown_timeout, now);
        if deadline.is_silent_too_long(now) {
            let patience = self.shutdown_timeout;
            let text = format!(
                "peregrine: shutting down; waiting up to {patience:?} for requests and tasks in \
                 progress{way_out}"
            );
            tell(&text, self.quiet);
        }
        let news = match deadline.next(now)? {
            None => self.news.recv().ok()?,
            Some(patience) => match self.news.recv_timeout(patience) {
                Ok(news) => news,
                Err(mpsc::RecvTimeoutError::Timeout) => return Some(()),
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            },
        };
        if let News::Ended(ended) = news {
            // An order to cut may have arrived just before this event, which may be the last one.
            deadline.follow(self.handle.present(), self.shutdown_timeout, now);
            self.note(ended);
        }
        Some(())
    }

    /// Records that a worker has ended. If it failed, the other workers are shut down too.
    fn note(&mut self, Ended { number, result }: Ended) {
        self.awaited.remove(&number);
        match result {
            Ok(report) => {
                self.stopped.workers[number] = Some(report.snapshot);
                self.stopped.cut.extend(report.cut);
            }
            Err(error) => {
                contained(|| {
                    tracing::error!(target: "peregrine", worker = number, %error,
                    "a worker failed; the server shuts down")
                });
                self.handle.shut_down();
                self.failed.get_or_insert(error);
            }
        }
    }

    /// Waits for SIGTERM or Ctrl-C, shuts down, and waits until the server has ended. A second
    /// signal cuts all connections. SIGHUP reloads certificates, and the configuration if it came
    /// from a file. On Linux, SIGUSR2 upgrades in place.
    ///
    /// # Errors
    /// A worker failed or panicked, or the signal handlers cannot be installed.
    pub fn wait_for_signal(self) -> Result<Stopped, Error> {
        let upgrade = self.handle.restart().is_by_signal();
        let (reload, reopen) = (self.handle.can_reload(), self.handle.can_reopen());
        let hears = Hears { reload, upgrade, reopen };
        let _signals = self.handle.obey_signals(hears)?;
        self.wait_obeying()
    }

    /// Waits until the server has ended, while the caller has signal handlers installed.
    pub(crate) fn wait_obeying(self) -> Result<Stopped, Error> {
        self.wait_with(" (a second signal ends them at once)")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.cut();
        self.handle.restart().finish();
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("places", &self.places).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::deadline::GRACE;
    use peregrine_server::{Cut, Report};
    use std::thread;

    #[test]
    fn what_did_not_end_is_in_the_last_line() {
        let worker = |tasks_cut, functions_left| {
            Some(Snapshot { tasks_cut, functions_left, ..Snapshot::default() })
        };
        let mut stopped = Stopped { workers: vec![worker(0, 0)], ..Stopped::default() };
        let text = stopped.to_string();
        assert!(!text.contains("did not end") && text.contains("none was cut"), "{text}");
        stopped.workers = vec![worker(2, 1), None, worker(1, 0)];
        let text = stopped.to_string();
        assert!(!text.contains("none was cut"), "unknown for worker 1: {text}");
        assert!(text.contains("3 tasks and 1 blocking functions did not end in time"), "{text}");
        assert!(text.contains("worker 1 did not end"), "{text}");
    }

    #[test]
    fn a_worker_that_dies_in_the_middle_ends_the_others_in_order_and_the_wait_with_its_error() {
        let Orders { handle, news } = Orders::new();
        let running = Running {
            admin: None,
            log: None,
            handle: handle.clone(),
            news,
            awaited: BTreeSet::from([0, 1]),
            stopped: Stopped { workers: vec![None; 2], ..Stopped::default() },
            failed: None,
            places: Vec::new(),
            shutdown_timeout: Duration::from_secs(3600),
            quiet: true,
            _files: Vec::new(),
            _reload: None,
            #[cfg(feature = "acme")]
            supplying: Vec::new(),
        };
        let other = thread::spawn(move || {
            let panicked = Error::Panicked { worker: 0, cause: "on purpose".to_owned() };
            handle.tell(News::Ended(Ended { number: 0, result: Err(panicked) }));
            let started = Instant::now();
            while handle.present() == Order::Serve && started.elapsed() < GRACE {
                thread::yield_now();
            }
            let order = handle.present();
            handle.tell(News::Ended(Ended { number: 1, result: Ok(Report::default()) }));
            order
        });
        let error = running.wait().expect_err("a worker panicked").to_string();
        assert!(error.starts_with("worker 0 panicked: on purpose"), "{error}");
        assert_eq!(other.join().expect("no panic"), Order::Drain);
    }

    #[test]
    fn the_report_says_whether_connections_were_cut_by_the_clock_or_by_an_order() {
        let (now, hour) = (Instant::now(), Duration::from_secs(3600));
        for (drained, cut, expected) in [
            (Some(now), None, "1 cut at the deadline"),
            (Some(now), Some(now), "1 cut before the deadline, as ordered"),
            (None, Some(now), "1 cut before the deadline, as ordered"),
            (Some(now), Some(now + hour), "1 cut at the deadline"),
        ] {
            let mut deadline = Deadline::default();
            for (order, at) in [(Order::Drain, drained), (Order::Cut, cut)] {
                at.into_iter().for_each(|at| deadline.follow(order, hour, at));
            }
            let unfinished = peregrine_server::Unfinished::Head;
            let peer = "a".to_owned();
            let peer = Cut { peer, request: None, unfinished, busy: None, age: hour };
            let is_cut_ordered = deadline.is_cut_ordered;
            let stopped = Stopped { cut: vec![peer], is_cut_ordered, ..Stopped::default() };
            assert!(stopped.to_string().contains(expected), "{stopped}");
        }
    }
}
