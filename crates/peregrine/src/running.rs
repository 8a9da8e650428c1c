//! A server at work: its threads, its addresses, and its end.

use crate::choice::Choice;
use crate::error::Error;
use crate::listen::Place;
use crate::server::{IntoApplication, SocketFiles, url};
use crate::signals::Signals;
use peregrine_driver::{Driver, Options, Socket};
use peregrine_driver_tokio::Tokio;
use peregrine_server::{Cut, Door, Limits, Observed, Order, Report, Snapshot};
use peregrine_web::application::Application;
use std::cell::Cell;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Beyond the shutdown timeout, how long a worker may take to end before it is given up. Only a
/// handler that blocks its thread makes one take longer.
const GRACE: Duration = Duration::from_secs(5);

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
    orders: watch::Sender<Order>,
    reports: mpsc::Receiver<Ended>,
    workers: usize,
    places: Vec<(Place, bool)>,
    shutdown_timeout: Duration,
    _files: SocketFiles,
}

/// Orders a running server to shut down, from any thread.
#[derive(Clone, Debug)]
pub struct Handle(watch::Sender<Order>);

/// What a worker's thread ended with.
struct Ended {
    number: usize,
    result: io::Result<Report>,
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
    /// No new connections; idle ones are closed, the rest after their response, and what is left at
    /// [`Limits::shutdown_timeout`] is cut.
    pub fn shut_down(&self) {
        self.0.send_if_modified(|order| forward(order, Order::Drain));
    }

    /// Ends every connection at once.
    pub fn cut(&self) {
        self.0.send_if_modified(|order| forward(order, Order::Cut));
    }
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
    ) -> Result<Self, Error>
    where
        A: IntoApplication + 'static,
        M: Fn() -> A + Clone + Send + 'static,
    {
        let (orders, receiver) = watch::channel(Order::Serve);
        let (ready_sender, ready) = mpsc::channel();
        let (report_sender, reports) = mpsc::channel();
        let count = workers.len();
        for worker in workers {
            let make = make.clone();
            let (ready, report) = (ready_sender.clone(), report_sender.clone());
            let orders = receiver.clone();
            let number = worker.number;
            let body = move || {
                let application = match make().into_application() {
                    Ok(application) => application,
                    Err(error) => {
                        let _ = ready.send(Err(Error::Build(error)));
                        return;
                    }
                };
                // Taken when the driver has started, so that a worker that could not start is told
                // as that.
                let ready = Rc::new(Cell::new(Some(ready)));
                let started = Rc::clone(&ready);
                let result = worker.run(application, orders, move || {
                    if let Some(ready) = started.take() {
                        let _ = ready.send(Ok(()));
                    }
                });
                match (ready.take(), result) {
                    (Some(ready), Err(error)) => {
                        let _ = ready.send(Err(Error::Worker(error)));
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
        // All workers are told to end by the drop of `orders` if one of them fails here.
        for _ in 0..count {
            match ready.recv() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    let _ = orders.send(Order::Cut);
                    return Err(error);
                }
                Err(_) => {
                    let _ = orders.send(Order::Cut);
                    let cause = "the function that makes the application panicked";
                    return Err(Error::Config(cause.to_owned()));
                }
            }
        }
        Ok(Self {
            orders,
            reports,
            workers: count,
            places,
            shutdown_timeout: limits.shutdown_timeout,
            _files: files,
        })
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
        let mut stopped = Stopped { workers: vec![None; self.workers], cut: Vec::new() };
        let mut failed = None;
        let mut deadline = Deadline::default();
        for _ in 0..self.workers {
            let Some(ended) = self.next_report(&mut deadline) else { break };
            match ended.result {
                Ok(report) => {
                    stopped.workers[ended.number] = Some(report.snapshot);
                    stopped.cut.extend(report.cut);
                }
                Err(error) => {
                    self.handle().shut_down();
                    failed = Some(Error::Worker(error));
                }
            }
        }
        failed.map_or(Ok(stopped), Err)
    }

    /// The next worker's end; `None` if it does not come in time after the order.
    fn next_report(&self, deadline: &mut Deadline) -> Option<Ended> {
        loop {
            deadline.follow(*self.orders.borrow(), self.shutdown_timeout, Instant::now());
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
        self.wait()
    }
}

/// When workers that did not end are given up.
#[derive(Debug, Default)]
struct Deadline {
    order: Order,
    at: Option<Instant>,
}

impl Deadline {
    /// An order may only bring the end nearer.
    fn follow(&mut self, order: Order, shutdown_timeout: Duration, now: Instant) {
        if order <= self.order {
            return;
        }
        self.order = order;
        let patience = if order == Order::Cut { GRACE } else { shutdown_timeout + GRACE };
        let at = now + patience;
        self.at = Some(self.at.map_or(at, |before| before.min(at)));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Cut);
    }
}

impl Worker {
    /// Runs to the end; `started` is called when the driver has all that it needs.
    fn run(
        self,
        application: Application,
        orders: watch::Receiver<Order>,
        started: impl FnOnce(),
    ) -> io::Result<Report> {
        match self.choice {
            Choice::Tokio => self.run_on::<Tokio>(application, orders, started),
            #[cfg(target_os = "linux")]
            Choice::Uring => {
                self.run_on::<peregrine_driver_uring::Uring>(application, orders, started)
            }
            #[cfg(not(target_os = "linux"))]
            Choice::Uring => unreachable!("the probe refuses io_uring on this system"),
        }
    }

    fn run_on<D: Driver<Socket = Socket>>(
        self,
        application: Application,
        orders: watch::Receiver<Order>,
        started: impl FnOnce(),
    ) -> io::Result<Report> {
        let Self { doors, limits, options, .. } = self;
        let observed = Rc::new(Observed::default());
        D::run(&options, |driver| async move {
            // What a driver needs besides its handle is there when it polls.
            started();
            peregrine_server::run(driver, doors, application, limits, observed, orders).await
        })?
    }
}

impl Stopped {
    /// Requests answered by all workers.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.workers.iter().flatten().map(|worker| worker.requests).sum()
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
}
