//! A server at work: its threads, its addresses, and its end.

#[cfg(feature = "acme")]
use crate::acme::{Suppliers, Working};
use crate::admin::{Administering, Begun};
use crate::choice::Seat;
use crate::deadline::Deadline;
use crate::error::Error;
#[cfg(feature = "tls")]
use crate::keeper::Keeper;
use crate::listen::Place;
use crate::make::Make;
use crate::orders::{Ended, Handle, News, Orders, Reload};
use crate::restart::{Answering, Heir};
use crate::server::{SocketFiles, tell, url};
use crate::signals::Hears;
use crate::watch;
use peregrine_driver::{Driver, Options, Socket};
use peregrine_driver_tokio::Tokio;
use peregrine_server::{Cut, Limits, Listen, Observed, Order, Pulse, Report, Snapshot};
use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::watch as watched;

/// The inputs of one worker's thread.
pub(crate) struct Worker {
    pub(crate) number: usize,
    pub(crate) listeners: Vec<Listen<Socket>>,
    pub(crate) limits: Limits,
    pub(crate) options: Options,
    pub(crate) seat: Seat,
    /// What it shows to the admin listener.
    pub(crate) shown: Option<Begun>,
}

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
    /// Why the server cannot go on.
    failed: Option<Error>,
    places: Vec<(Place, bool)>,
    shutdown_timeout: Duration,
    quiet: bool,
    admin: Option<Administering>,
    _files: SocketFiles,
    /// What reads certificates again, until the server has ended.
    _reload: Option<Arc<Reload>>,
    /// What gets certificates, until the server has ended.
    #[cfg(feature = "acme")]
    supplying: Vec<Working>,
}

/// What the server did, reported when it has ended.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Stopped {
    /// Each worker's figures, in order; `None` for a worker that did not end.
    pub workers: Vec<Option<Snapshot>>,
    /// Connections that were cut because they were still busy at the deadline, or at the order to cut.
    pub cut: Vec<Cut>,
    /// Was there an order to cut before the deadline?
    is_cut_ordered: bool,
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
        // Dropping it ends the workers that have begun, if anything below fails.
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
            thread::Builder::new().name(name).spawn(body).map_err(Error::Worker)?;
        }
        running.await_start(count)?;
        if let Some(budget) = settings.limits.poll_budget {
            watch::start(pulses, budget).map_err(Error::Worker)?;
        }
        if let Some(watchdog) = watchdog {
            watchdog.start(running.handle()).map_err(Error::Worker)?;
        }
        Ok(running)
    }

    /// Waits until all workers are ready, or until an order makes that needless: then workers that are
    /// still starting are not waited for, since they may take as long as they like.
    fn await_start(&mut self, count: usize) -> Result<(), Error> {
        let mut ready = 0;
        while ready < count {
            let news = self.news.recv().expect("the server itself has a handle, which can send");
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

    /// This admin listener ends when the server has ended.
    pub(crate) fn administered_by(&mut self, admin: Option<Administering>) {
        self.admin = admin;
    }

    /// Where the admin listener is, if there is one, with the port that was chosen for port 0.
    #[must_use]
    pub fn admin_place(&self) -> Option<&Place> {
        self.admin.as_ref().map(Administering::place)
    }

    /// Has its certificates looked after until it has ended.
    #[cfg(feature = "tls")]
    pub(crate) fn kept_by(mut self, keeper: Keeper) -> Result<Self, Error> {
        let reload = keeper.start().map_err(Error::Worker)?;
        if let Some(reload) = &reload {
            self.handle.reload_by(reload);
        }
        self._reload = reload;
        Ok(self)
    }

    /// Has its certificates got by ACME until it is told to end.
    #[cfg(feature = "acme")]
    pub(crate) fn certified_by(&mut self, suppliers: Suppliers) -> Result<(), Error> {
        self.supplying = suppliers.start(&self.handle)?;
        Ok(())
    }

    /// Serves in place of the process before this one, as soon as that says so.
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

    /// Were all workers ready before any order?
    pub(crate) fn is_whole(&self) -> bool {
        self.handle.present() == Order::Serve
    }

    /// Where the server listens, with the ports that were chosen for port 0.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().map(|(place, _)| place)
    }

    /// The same places as URLs.
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

    /// A handle for orders from elsewhere.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Orders the server to shut down and waits for its end.
    ///
    /// # Errors
    /// A worker ended with an error or a panic.
    pub fn shut_down(self) -> Result<Stopped, Error> {
        self.handle.shut_down();
        self.wait()
    }

    /// Waits until the server has ended, by an order of a [`Handle`] or with an error.
    ///
    /// # Errors
    /// A worker ended with an error or a panic; the others are then shut down.
    pub fn wait(self) -> Result<Stopped, Error> {
        self.wait_with("")
    }

    /// Waits until the server has ended. `way_out` is added to what the terminal says when the wait is
    /// long.
    fn wait_with(mut self, way_out: &str) -> Result<Stopped, Error> {
        let mut deadline = Deadline::default();
        while !self.awaited.is_empty() && self.next_news(&mut deadline, way_out).is_some() {}
        self.handle.restart().finish();
        self.stopped.is_cut_ordered = deadline.is_cut_ordered;
        if let Some(admin) = self.admin.take() {
            admin.end();
        }
        let failed = self.failed.take();
        failed.map_or_else(|| Ok(std::mem::take(&mut self.stopped)), Err)
    }

    /// Waits for something to happen; `None` if nothing does in time after the order.
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
            // There is nothing to do until something happens.
            None => self.news.recv().ok()?,
            Some(patience) => match self.news.recv_timeout(patience) {
                Ok(news) => news,
                Err(mpsc::RecvTimeoutError::Timeout) => return Some(()),
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            },
        };
        if let News::Ended(ended) = news {
            // The order to cut may have arrived together with the last worker's end.
            deadline.follow(self.handle.present(), self.shutdown_timeout, now);
            self.note(ended);
        }
        Some(())
    }

    /// Notes that a worker has ended. If it failed, the others are shut down too.
    fn note(&mut self, Ended { number, result }: Ended) {
        self.awaited.remove(&number);
        match result {
            Ok(report) => {
                self.stopped.workers[number] = Some(report.snapshot);
                self.stopped.cut.extend(report.cut);
            }
            Err(error) => {
                tracing::error!(target: "peregrine", worker = number, %error,
                    "a worker failed; the server shuts down");
                self.handle.shut_down();
                self.failed.get_or_insert(error);
            }
        }
    }

    /// Waits for SIGTERM or Ctrl-C, shuts down, and waits for the end. A second signal cuts. Where the
    /// server speaks TLS, SIGHUP reloads its certificates. On Linux, SIGUSR2 upgrades in place.
    ///
    /// # Errors
    /// A worker ended with an error or a panic, or signals cannot be received.
    pub fn wait_for_signal(self) -> Result<Stopped, Error> {
        let upgrade = self.handle.restart().is_by_signal();
        let hears = Hears { reload: self.handle.can_reload(), upgrade };
        let _signals = self.handle.obey_signals(hears)?;
        self.wait_obeying()
    }

    /// Waits for the end while signals are obeyed.
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

impl Worker {
    /// The body of the worker's thread. It reports its end whatever the cause.
    fn body(
        self,
        make: Make,
        handle: &Handle,
        pulse: Arc<Pulse>,
        answering: Option<Answering>,
    ) -> impl FnOnce() + Send + use<> {
        let (number, handle, orders) = (self.number, handle.clone(), handle.subscribe());
        move || {
            let started = || handle.tell(News::Ready(number));
            // Nothing of the worker is used after it.
            let run = AssertUnwindSafe(|| self.run(make, orders, pulse, answering, &started));
            let result = catch_unwind(run).unwrap_or_else(|panic| {
                Err(Error::Panicked { worker: number, cause: message(&*panic) })
            });
            handle.tell(News::Ended(Ended { number, result }));
        }
    }

    /// Runs to the end. `make` is called inside the worker's runtime, and `started` when the worker has
    /// its application and listens.
    fn run(
        self,
        make: Make,
        orders: watched::Receiver<Order>,
        pulse: Arc<Pulse>,
        answering: Option<Answering>,
        started: &dyn Fn(),
    ) -> Result<Report, Error> {
        let Self { listeners, limits, options, seat, shown, .. } = self;
        let observed = Rc::new(match &shown {
            Some(shown) => Observed::counting(pulse, Arc::clone(&shown.view().counts)),
            None => Observed::new(pulse),
        });
        let counts = Rc::clone(&observed);
        let begin = Begin { make, started, listeners, limits, observed, orders, shown, answering };
        let report = match seat {
            Seat::Tokio => Tokio::run(&options, |driver| begin.on(driver)),
            #[cfg(target_os = "linux")]
            Seat::Uring(ring) => ring.run(&options, |driver| begin.on(driver)),
        };
        // The driver has waited for blocking functions in the meantime.
        Ok(Report { snapshot: counts.snapshot(), ..report.map_err(Error::Worker)?? })
    }
}

/// A worker's work once its driver exists.
struct Begin<'a> {
    make: Make,
    started: &'a dyn Fn(),
    listeners: Vec<Listen<Socket>>,
    limits: Limits,
    observed: Rc<Observed>,
    orders: watched::Receiver<Order>,
    shown: Option<Begun>,
    answering: Option<Answering>,
}

impl Begin<'_> {
    /// What a driver needs besides its handle exists when this is polled.
    async fn on<D: Driver<Socket = Socket>>(self, driver: D) -> Result<Report, Error> {
        let Self { make, started, listeners, limits, observed, mut orders, shown, answering } =
            self;
        if let Some(shown) = &shown {
            shown.before();
        }
        let application = {
            // What an application that takes time to make waits for, the driver does not know.
            let _hold = driver.hold();
            let (mut made, mut ended) =
                (pin!(make()), pin!(orders.wait_for(|o| *o > Order::Serve)));
            let made = poll_fn(|context| match made.as_mut().poll(context) {
                Poll::Ready(application) => Poll::Ready(Some(application)),
                Poll::Pending => ended.as_mut().poll(context).map(|_| None),
            });
            match made.await {
                Some(application) => application.map_err(Error::Build)?,
                None => return Ok(Report::default()),
            }
        };
        if let Some(shown) = &shown {
            shown.serve(&application);
        }
        if let Some(answering) = answering {
            driver.spawn(answering.run(orders.clone()));
        }
        let running =
            peregrine_server::run(driver, listeners, application, limits, observed, orders);
        let mut running = pin!(running);
        // The first poll listens.
        let ended = poll_fn(|context| Poll::Ready(running.as_mut().poll(context))).await;
        if ended.is_pending() {
            started();
        }
        match ended {
            Poll::Ready(report) => report,
            Poll::Pending => running.await,
        }
        .map_err(Error::Worker)
    }
}

/// The panic's message.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("(it said nothing)").to_owned()
}

impl Stopped {
    /// Requests answered by all workers.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.workers.iter().flatten().map(|worker| worker.requests).sum()
    }

    /// Tasks of all workers that were dropped because they did not end in time.
    #[must_use]
    pub fn tasks_cut(&self) -> usize {
        self.workers.iter().flatten().map(|worker| worker.tasks_cut).sum()
    }

    /// Blocking functions of all workers that were still running when the wait for them ended.
    #[must_use]
    pub fn functions_left(&self) -> usize {
        self.workers.iter().flatten().map(|worker| worker.functions_left).sum()
    }

    /// Connections accepted by all workers.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.workers.iter().flatten().map(|worker| worker.accepted).sum()
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (requests, connections) = (self.requests(), self.connections());
        write!(f, "peregrine: stopped after {requests} requests on {connections} connections")?;
        let not_ended = self.workers.iter().filter(|worker| worker.is_none()).count();
        match (self.cut.len(), self.is_cut_ordered) {
            (0, _) if not_ended > 0 => {}
            (0, _) => f.write_str("; none was cut")?,
            (cut, true) => write!(f, "; {cut} cut, as was ordered:")?,
            (cut, false) => write!(f, "; {cut} cut at the deadline:")?,
        }
        for cut in &self.cut {
            write!(f, "\n  {cut}")?;
        }
        let (tasks, functions) = (self.tasks_cut(), self.functions_left());
        if tasks + functions > 0 {
            write!(f, "\n  {tasks} tasks and {functions} blocking functions did not end in time")?;
            write!(f, " (tasks without an end should await peregrine::Shutdown)")?;
        }
        for (number, _) in self.workers.iter().enumerate().filter(|(_, worker)| worker.is_none()) {
            write!(
                f,
                "\n  worker {number} did not end: a handler blocks its thread; what it did, "
            )?;
            f.write_str("and what was cut with it, is not counted here")?;
        }
        Ok(())
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
    use crate::deadline::GRACE;

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
        assert!(!text.contains("none was cut"), "nobody knows: {text}");
        assert!(text.contains("3 tasks and 1 blocking functions did not end in time"), "{text}");
        assert!(text.contains("worker 1 did not end"), "{text}");
    }

    #[test]
    fn a_worker_that_dies_in_the_middle_ends_the_others_in_order_and_the_wait_with_its_error() {
        let Orders { handle, news } = Orders::new();
        let running = Running {
            admin: None,
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
        assert!(error.starts_with("worker 0 ended by a panic: on purpose"), "{error}");
        assert_eq!(other.join().expect("it does not panic"), Order::Drain);
    }

    #[test]
    fn the_report_says_whether_connections_were_cut_by_the_clock_or_by_an_order() {
        let (now, hour) = (Instant::now(), Duration::from_secs(3600));
        for (drained, cut, expected) in [
            (Some(now), None, "1 cut at the deadline"),
            (Some(now), Some(now), "1 cut, as was ordered"),
            (None, Some(now), "1 cut, as was ordered"),
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
