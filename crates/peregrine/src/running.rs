//! A server at work: its threads, its addresses, and its end.

use crate::choice::Choice;
use crate::error::Error;
use crate::listen::Place;
use crate::server::{IntoApplication, SocketFiles, url};
use crate::signals::Signals;
use crate::watch;
use peregrine_driver::{Driver, Options, Socket};
use peregrine_driver_tokio::Tokio;
use peregrine_server::{Cut, Door, Limits, Observed, Order, Pulse, Report, Snapshot};
use peregrine_web::BuildError;
use peregrine_web::application::Application;
use std::cell::Cell;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use tokio::sync::watch as watched;

/// Beyond the shutdown timeout, how long a worker may take to end before it is given up. Only a
/// handler that blocks its thread makes one take longer.
const GRACE: Duration = Duration::from_secs(5);

/// How long a shutdown may take before the terminal says what it waits for.
const SILENCE: Duration = Duration::from_secs(1);

/// How soon an order is noticed by the thread that waits for the workers.
const POLL_PAUSE: Duration = Duration::from_millis(100);

/// What one worker's thread is given.
pub(crate) struct Worker {
    pub(crate) number: usize,
    pub(crate) doors: Vec<Door<Socket>>,
    pub(crate) limits: Limits,
    pub(crate) options: Options,
    pub(crate) choice: Choice,
}

/// A running server. Dropping it cuts every connection.
pub struct Running {
    orders: watched::Sender<Order>,
    reports: mpsc::Receiver<Ended>,
    workers: usize,
    places: Vec<(Place, bool)>,
    shutdown_timeout: Duration,
    quiet: bool,
    /// The thread that looks for handlers which block.
    watch: Option<Thread>,
    _files: SocketFiles,
}

/// Orders a running server to shut down, from any thread.
#[derive(Clone, Debug)]
pub struct Handle(watched::Sender<Order>);

/// What a worker's thread ended with.
struct Ended {
    number: usize,
    result: Result<Report, Error>,
}

/// What the server did, told when it has ended.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Stopped {
    /// Each worker's figures, in order; `None` for a worker that did not end.
    pub workers: Vec<Option<Snapshot>>,
    /// Connections that were cut because they were still busy at the deadline.
    pub cut: Vec<Cut>,
}

impl Handle {
    /// No new connections; idle ones are closed, the rest after their response. Tasks and blocking
    /// functions that outlive them are waited for, and what is left at
    /// [`Limits::shutdown_timeout`] is cut.
    pub fn shut_down(&self) {
        self.0.send_if_modified(|order| forward(order, Order::Drain));
    }

    /// Ends every connection at once.
    pub fn cut(&self) {
        self.0.send_if_modified(|order| forward(order, Order::Cut));
    }
}

/// Waits until all workers have what they need.
fn await_ready(ready: &mpsc::Receiver<Result<(), Error>>, count: usize) -> Result<(), Error> {
    for _ in 0..count {
        ready.recv().unwrap_or_else(|_| {
            let cause = "the function that makes the application panicked";
            Err(Error::Config(cause.to_owned()))
        })?;
    }
    Ok(())
}

fn forward(order: &mut Order, to: Order) -> bool {
    let is_new = *order < to;
    *order = to.max(*order);
    is_new
}

impl Running {
    pub(crate) fn start<A, M>(
        workers: Vec<Worker>,
        make: M,
        places: Vec<(Place, bool)>,
        files: SocketFiles,
        limits: &Limits,
        quiet: bool,
    ) -> Result<Self, Error>
    where
        A: IntoApplication + 'static,
        M: Fn() -> A + Clone + Send + 'static,
    {
        let (orders, receiver) = watched::channel(Order::Serve);
        let (ready_sender, ready) = mpsc::channel();
        let (report_sender, reports) = mpsc::channel();
        let count = workers.len();
        // Its drop ends the workers that have begun, if anything below fails.
        let mut running = Self {
            orders,
            reports,
            workers: count,
            places,
            shutdown_timeout: limits.shutdown_timeout,
            quiet,
            watch: None,
            _files: files,
        };
        let mut pulses = Vec::with_capacity(count);
        for worker in workers {
            let make = make.clone();
            let pulse = Arc::new(Pulse::default());
            pulses.push(Arc::downgrade(&pulse));
            let (ready, report) = (ready_sender.clone(), report_sender.clone());
            let orders = receiver.clone();
            let number = worker.number;
            let body = move || {
                // Taken when the worker has all that it needs, so that one that could not start is told
                // as that.
                let ready = Rc::new(Cell::new(Some(ready)));
                let started = Rc::clone(&ready);
                let make = move || {
                    let application = make().into_application();
                    // What it holds must not keep tasks alive that end with the application.
                    drop(make);
                    application
                };
                let result = worker.run(make, orders, pulse, move || {
                    if let Some(ready) = started.take() {
                        let _ = ready.send(Ok(()));
                    }
                });
                match (ready.take(), result) {
                    (Some(ready), Err(error)) => {
                        let _ = ready.send(Err(error));
                    }
                    (_, result) => {
                        let _ = report.send(Ended { number, result });
                    }
                }
            };
            let name = format!("peregrine-{number}");
            thread::Builder::new().name(name).spawn(body).map_err(Error::Worker)?;
        }
        drop((ready_sender, report_sender));
        await_ready(&ready, count)?;
        if let Some(budget) = limits.poll_budget {
            running.watch = Some(watch::start(pulses, budget).map_err(Error::Worker)?);
        }
        Ok(running)
    }

    /// Where the server listens, with the ports that were chosen for port 0.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().map(|(place, _)| place)
    }

    /// The same as URLs.
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

    /// For orders from elsewhere.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle(self.orders.clone())
    }

    /// Orders the server to shut down and waits for its end.
    ///
    /// # Errors
    /// A worker ended by an error.
    pub fn shut_down(self) -> Result<Stopped, Error> {
        self.handle().shut_down();
        self.wait()
    }

    /// Waits until the server has ended by an order of a [`Handle`], or by an error.
    ///
    /// # Errors
    /// A worker ended by an error; the others are shut down then.
    pub fn wait(self) -> Result<Stopped, Error> {
        self.wait_with("")
    }

    /// Waits until the server has ended. `way_out` is what the terminal is told besides, when the
    /// wait is long.
    fn wait_with(self, way_out: &str) -> Result<Stopped, Error> {
        let mut stopped = Stopped { workers: vec![None; self.workers], cut: Vec::new() };
        let mut failed = None;
        let mut deadline = Deadline::default();
        for _ in 0..self.workers {
            let Some(ended) = self.next_report(&mut deadline, way_out) else { break };
            match ended.result {
                Ok(report) => {
                    stopped.workers[ended.number] = Some(report.snapshot);
                    stopped.cut.extend(report.cut);
                }
                Err(error) => {
                    self.handle().shut_down();
                    failed = Some(error);
                }
            }
        }
        failed.map_or(Ok(stopped), Err)
    }

    /// The next worker's end; `None` if it does not come in time after the order.
    fn next_report(&self, deadline: &mut Deadline, way_out: &str) -> Option<Ended> {
        loop {
            let now = Instant::now();
            deadline.follow(*self.orders.borrow(), self.shutdown_timeout, now);
            if deadline.is_silent_too_long(now) && !self.quiet {
                eprintln!(
                    "peregrine: shutting down; waiting up to {:?} for requests and tasks in \
                     progress{way_out}",
                    self.shutdown_timeout
                );
            }
            let patience = match deadline.at {
                None => POLL_PAUSE,
                Some(at) => at.checked_duration_since(Instant::now())?.min(POLL_PAUSE),
            };
            match self.reports.recv_timeout(patience) {
                Ok(ended) => return Some(ended),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Waits for SIGTERM or Ctrl-C, shuts down, and waits for the end. A second signal cuts.
    ///
    /// # Errors
    /// A worker ended by an error, or signals cannot be received.
    pub fn wait_for_signal(self) -> Result<Stopped, Error> {
        let signals = Signals::listen().map_err(Error::Signals)?;
        self.wait_for(signals)
    }

    pub(crate) fn wait_for(self, mut signals: Signals) -> Result<Stopped, Error> {
        let handle = self.handle();
        let obey = move || {
            signals.wait();
            handle.shut_down();
            signals.wait();
            handle.cut();
        };
        thread::Builder::new()
            .name("peregrine-signals".to_owned())
            .spawn(obey)
            .map_err(Error::Signals)?;
        self.wait_with(" (a second signal ends them at once)")
    }
}

/// When workers that did not end are given up.
#[derive(Debug, Default)]
struct Deadline {
    order: Order,
    at: Option<Instant>,
    /// When somebody should be told what is waited for; none when there is no need.
    tell_at: Option<Instant>,
}

impl Deadline {
    /// An order may only bring the end nearer.
    fn follow(&mut self, order: Order, shutdown_timeout: Duration, now: Instant) {
        if order <= self.order {
            return;
        }
        self.order = order;
        self.tell_at = (order == Order::Drain).then_some(now + SILENCE);
        let patience =
            if order == Order::Cut { GRACE } else { shutdown_timeout.saturating_add(GRACE) };
        // What is too far away for the clock never comes.
        self.at = self.at.into_iter().chain(now.checked_add(patience)).min();
    }

    /// True once, when a shutdown has taken long enough for somebody to wonder.
    fn is_silent_too_long(&mut self, now: Instant) -> bool {
        self.tell_at.take_if(|at| *at <= now).is_some()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Cut);
        // When the workers have ended, so does this.
        self.watch.iter().for_each(Thread::unpark);
    }
}

impl Worker {
    /// Runs to the end. `make` is called inside the worker's runtime, and `started` when the worker
    /// has all that it needs.
    fn run(
        self,
        make: impl FnOnce() -> Result<Application, BuildError>,
        orders: watched::Receiver<Order>,
        pulse: Arc<Pulse>,
        started: impl FnOnce(),
    ) -> Result<Report, Error> {
        match self.choice {
            Choice::Tokio => self.run_on::<Tokio>(make, orders, pulse, started),
            #[cfg(target_os = "linux")]
            Choice::Uring => {
                self.run_on::<peregrine_driver_uring::Uring>(make, orders, pulse, started)
            }
            #[cfg(not(target_os = "linux"))]
            Choice::Uring => unreachable!("the probe refuses io_uring on this system"),
        }
    }

    fn run_on<D: Driver<Socket = Socket>>(
        self,
        make: impl FnOnce() -> Result<Application, BuildError>,
        orders: watched::Receiver<Order>,
        pulse: Arc<Pulse>,
        started: impl FnOnce(),
    ) -> Result<Report, Error> {
        let Self { doors, limits, options, .. } = self;
        let observed = Rc::new(Observed::new(pulse));
        let counts = Rc::clone(&observed);
        let report = D::run(&options, |driver| async move {
            // What a driver needs besides its handle is there when it polls.
            let application = make().map_err(Error::Build)?;
            started();
            let running =
                peregrine_server::run(driver, doors, application, limits, observed, orders);
            running.await.map_err(Error::Worker)
        });
        // The driver has waited for blocking functions since.
        Ok(Report { snapshot: counts.snapshot(), ..report.map_err(Error::Worker)?? })
    }
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

    /// Blocking functions of all workers that were not waited for any longer.
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
        match self.cut.len() {
            0 => f.write_str("; none was cut")?,
            cut => write!(f, "; {cut} cut at the deadline:")?,
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
            write!(f, "\n  worker {number} did not end: a handler blocks its thread")?;
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

    #[test]
    fn what_did_not_end_is_in_the_last_line() {
        let worker = |tasks_cut, functions_left| {
            Some(Snapshot { tasks_cut, functions_left, ..Snapshot::default() })
        };
        let mut stopped = Stopped { workers: vec![worker(0, 0)], cut: Vec::new() };
        assert!(!stopped.to_string().contains("did not end"), "{stopped}");
        stopped.workers = vec![worker(2, 1), None, worker(1, 0)];
        let text = stopped.to_string();
        assert!(text.contains("3 tasks and 1 blocking functions did not end in time"), "{text}");
        assert!(text.contains("worker 1 did not end"), "{text}");
    }

    #[test]
    fn a_long_shutdown_is_told_of_once() {
        let (now, hour) = (Instant::now(), Duration::from_secs(3600));
        let mut deadline = Deadline::default();
        assert!(!deadline.is_silent_too_long(now + hour));
        deadline.follow(Order::Drain, hour, now);
        assert!(!deadline.is_silent_too_long(now));
        assert!(deadline.is_silent_too_long(now + SILENCE));
        assert!(!deadline.is_silent_too_long(now + SILENCE));
    }

    #[test]
    fn an_order_to_cut_brings_the_end_nearer_and_nothing_moves_it_away() {
        let (now, hour) = (Instant::now(), Duration::from_secs(3600));
        let mut deadline = Deadline::default();
        deadline.follow(Order::Serve, hour, now);
        assert_eq!(deadline.at, None);
        deadline.follow(Order::Drain, hour, now);
        deadline.follow(Order::Drain, hour, now + hour);
        assert_eq!(deadline.at, Some(now + hour + GRACE));
        deadline.follow(Order::Cut, hour, now);
        assert_eq!(deadline.at, Some(now + GRACE));
    }

    #[test]
    fn a_shutdown_may_take_for_ever_until_it_is_cut() {
        let now = Instant::now();
        let mut deadline = Deadline::default();
        deadline.follow(Order::Drain, Duration::MAX, now);
        assert_eq!(deadline.at, None);
        deadline.follow(Order::Cut, Duration::MAX, now);
        assert_eq!(deadline.at, Some(now + GRACE));
    }
}
