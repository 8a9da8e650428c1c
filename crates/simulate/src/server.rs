//! [`SimServer`]: a server on the simulated network.

use super::client::SimClient;
use super::connection::SimConnection;
use super::sim::{Sim, catch_panic};
use peregrine::ShutdownReport;
use peregrine::internal::{BoxedMakeApp, ListenerSettings, SimulatedServer, stopped};
use peregrine_driver_sim::{Port, SimHandoff};
use peregrine_server::{
    Balancer, BoundListener, Instrumentation, Lifecycle, SocketSharing, WorkerLimits, WorkerLocals,
    WorkerReport, WorkerStats,
};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{Notify, watch};

/// A server on the simulated network. It serves until it is shut down or the test ends. This is a
/// handle: clones refer to the same server.
#[derive(Clone)]
pub struct SimServer {
    sim: Sim,
    running: Rc<SimServerState>,
}

/// The shared state of a running server.
pub(super) struct SimServerState {
    lifecycle: watch::Sender<Lifecycle>,
    /// For each listener, the port of each worker, and whether it speaks TLS.
    addresses: Vec<(Vec<u64>, bool)>,
    workers: Vec<Rc<Instrumentation>>,
    reports: RefCell<Vec<Option<WorkerReport>>>,
    exited: Notify,
    is_force_close_requested: Cell<bool>,
}

impl SimServer {
    pub(super) fn start(
        sim: &Sim,
        settings: SimulatedServer,
        makes: &mut dyn FnMut() -> BoxedMakeApp,
    ) -> Self {
        let SimulatedServer { workers, limits, traces, listeners } = settings;
        let network = &sim.shared().network;
        let count = workers;
        let mut places: Vec<_> =
            listeners.iter().map(|listener| (Vec::new(), listener.is_tls())).collect();
        let (orders, _) = watch::channel(Lifecycle::Serving);
        let members = Balancer::for_workers(count, listeners.len()).into_iter();
        let members = members.map(|member| (count > 1).then_some(member));
        let mut starts = Vec::new();
        for member in members {
            let bind = |(listener, (ports, _)): (&ListenerSettings, &mut (Vec<u64>, bool))| {
                let port = network.bind();
                ports.push(port.id());
                listener.bound_listener(port, SocketSharing::default())
            };
            let listens = listeners.iter().zip(&mut places).map(bind).collect();
            let observed =
                Rc::new(Instrumentation::new(Arc::default()).with_tracing(traces.clone()));
            let limits = limits.clone().into();
            let orders = orders.subscribe();
            starts.push(SimWorker {
                make: makes(),
                listeners: listens,
                limits,
                instrumentation: observed,
                lifecycle: orders,
                balancer: member,
            });
        }
        let running = Rc::new(SimServerState {
            lifecycle: orders,
            addresses: places,
            workers: starts.iter().map(|worker| Rc::clone(&worker.instrumentation)).collect(),
            reports: RefCell::new((0..count).map(|_| None).collect()),
            exited: Notify::new(),
            is_force_close_requested: Cell::new(false),
        });
        for (number, worker) in starts.into_iter().enumerate() {
            let (sim, running) = (sim.clone(), Rc::clone(&running));
            network.spawn(async move {
                let ran = catch_panic(worker.run(&sim)).await;
                match ran.unwrap_or_else(|text| Err(format!("a worker panicked: {text}"))) {
                    Ok(report) => {
                        running.reports.borrow_mut()[number] = Some(report);
                        running.exited.notify_waiters();
                    }
                    Err(cause) => sim.fail(cause),
                }
            });
        }
        sim.shared().servers.borrow_mut().push(Rc::clone(&running));
        Self { sim: sim.clone(), running }
    }

    /// An HTTP/1.1 client for the first listener that speaks plain HTTP.
    ///
    /// # Panics
    /// If there is no such listener.
    #[must_use]
    pub fn client(&self) -> SimClient {
        let plain = self.running.addresses.iter().position(|(_, is_tls)| !is_tls);
        let listener = plain.expect("a client needs plain HTTP, but all listeners speak TLS");
        SimClient::new(self.clone(), listener)
    }

    /// Connects to the first listener. The connection transfers raw bytes.
    #[must_use]
    pub fn connect(&self) -> SimConnection {
        self.connect_to(0)
    }

    /// Connects to a listener, by its index among those of the server. The connection transfers raw
    /// bytes. The seed determines which worker accepts it.
    ///
    /// # Panics
    /// If there is no listener with this index.
    #[must_use]
    pub fn connect_to(&self, listener: usize) -> SimConnection {
        let places = &self.running.addresses;
        let (ports, _) = places.get(listener).unwrap_or_else(|| {
            panic!("there is no listener {listener}: the server has {}", places.len())
        });
        let port = *self.sim.choose(ports);
        SimConnection::new(self.sim.shared().network.connect_to(port), self.sim.clone())
    }

    /// Shuts down gracefully, like SIGTERM, and waits until the server has ended. Connections that
    /// are left after [`Limits::shutdown_timeout`](peregrine::Limits::shutdown_timeout) are cut,
    /// and listed in the result.
    pub async fn graceful_shutdown(&self) -> ShutdownReport {
        self.advance_lifecycle(Lifecycle::Draining);
        self.stopped().await
    }

    /// Ends the server immediately, like a second signal: handlers are dropped at their current
    /// `await`, and connections are closed.
    pub async fn force_close(&self) -> ShutdownReport {
        self.running.is_force_close_requested.set(true);
        self.advance_lifecycle(Lifecycle::ForceClosing);
        self.stopped().await
    }

    /// The current counters of each worker.
    #[must_use]
    pub fn worker_stats(&self) -> Vec<WorkerStats> {
        self.running.workers.iter().map(|observed| observed.stats()).collect()
    }

    /// The simulation that this server is part of.
    #[must_use]
    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    fn advance_lifecycle(&self, order: Lifecycle) {
        self.sim.log(match order {
            Lifecycle::ForceClosing => "a server is ordered to cut its connections",
            _ => "a server is ordered to shut down",
        });
        self.running.advance_lifecycle(order);
    }

    async fn stopped(&self) -> ShutdownReport {
        self.running.stopped().await;
        let reports = self.running.reports.borrow();
        let reports = reports.iter().flatten();
        let workers = reports.clone().map(|report| Some(report.stats.clone())).collect();
        let cut = reports.flat_map(|report| report.force_closed.iter().cloned()).collect();
        stopped(workers, cut, self.running.is_force_close_requested.get())
    }
}

impl fmt::Debug for SimServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimServer").field("workers", &self.worker_stats()).finish_non_exhaustive()
    }
}

impl SimServerState {
    /// Sets the lifecycle state, unless a later one was set before.
    pub(super) fn advance_lifecycle(&self, order: Lifecycle) {
        self.lifecycle.send_if_modified(|present| {
            let is_further = order > *present;
            *present = order.max(*present);
            is_further
        });
    }

    /// Completes when all workers have ended.
    pub(super) async fn stopped(&self) {
        loop {
            let mut ended = pin!(self.exited.notified());
            ended.as_mut().enable();
            if self.reports.borrow().iter().all(Option::is_some) {
                return;
            }
            ended.await;
        }
    }
}

/// The inputs of one worker.
struct SimWorker {
    make: BoxedMakeApp,
    listeners: Vec<BoundListener<Port>>,
    limits: WorkerLimits,
    instrumentation: Rc<Instrumentation>,
    lifecycle: watch::Receiver<Lifecycle>,
    balancer: Option<Balancer<SimHandoff>>,
}

impl SimWorker {
    /// Runs the worker until it ends. Returns an error if it cannot start.
    async fn run(self, sim: &Sim) -> Result<WorkerReport, String> {
        let Self {
            make,
            listeners: listens,
            limits,
            instrumentation: observed,
            lifecycle: orders,
            balancer: member,
        } = self;
        let wrong = |error: &dyn fmt::Display| format!("the server cannot start: {error}");
        let application = make().await.map_err(|error| wrong(&error))?;
        // All workers share this thread, so each announces its worker-local state before it is
        // polled.
        let locals = Rc::new(RefCell::new(None::<WorkerLocals>));
        let mine = Rc::clone(&locals);
        let announce = move || {
            if let Some(locals) = &*mine.borrow() {
                locals.install();
            }
        };
        let driver = sim.driver().on_before_poll(announce.clone());
        let counts = Rc::clone(&observed);
        let mut running = pin!(peregrine_server::run_worker(
            driver,
            listens,
            application,
            limits,
            observed,
            orders,
            member
        ));
        let report = poll_fn(|cx| {
            announce();
            let polled = running.as_mut().poll(cx);
            locals.borrow_mut().get_or_insert_with(WorkerLocals::current);
            polled
        });
        let report = report.await.map_err(|error| wrong(&error))?;
        Ok(WorkerReport { stats: counts.stats(), ..report })
    }
}
