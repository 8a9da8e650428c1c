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
    state: Rc<SimServerState>,
}

/// The shared state of a running server.
pub(super) struct SimServerState {
    lifecycle: watch::Sender<Lifecycle>,
    /// For each listener, the ports of the workers and whether it uses TLS.
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
        make_app: &mut dyn FnMut() -> BoxedMakeApp,
    ) -> Self {
        let SimulatedServer { workers: worker_count, limits, traces, listeners } = settings;
        let network = &sim.shared().network;
        let mut addresses: Vec<_> =
            listeners.iter().map(|listener| (Vec::new(), listener.is_tls())).collect();
        let (lifecycle, _) = watch::channel(Lifecycle::Serving);
        let balancers = Balancer::for_workers(worker_count, listeners.len()).into_iter();
        let balancers = balancers.map(|balancer| (worker_count > 1).then_some(balancer));
        let mut sim_workers = Vec::new();
        for balancer in balancers {
            let bind = |(listener, (ports, _)): (&ListenerSettings, &mut (Vec<u64>, bool))| {
                let port = network.bind();
                ports.push(port.id());
                listener.bound_listener(port, SocketSharing::default())
            };
            let bound_listeners = listeners.iter().zip(&mut addresses).map(bind).collect();
            let instrumentation =
                Rc::new(Instrumentation::new(Arc::default()).with_tracing(traces.clone()));
            let limits = limits.clone().into();
            let lifecycle = lifecycle.subscribe();
            sim_workers.push(SimWorker {
                make: make_app(),
                listeners: bound_listeners,
                limits,
                instrumentation,
                lifecycle,
                balancer,
            });
        }
        let state = Rc::new(SimServerState {
            lifecycle,
            addresses,
            workers: sim_workers.iter().map(|worker| Rc::clone(&worker.instrumentation)).collect(),
            reports: RefCell::new((0..worker_count).map(|_| None).collect()),
            exited: Notify::new(),
            is_force_close_requested: Cell::new(false),
        });
        for (index, worker) in sim_workers.into_iter().enumerate() {
            let (sim, state) = (sim.clone(), Rc::clone(&state));
            network.spawn(async move {
                let result = catch_panic(worker.run(&sim)).await;
                match result.unwrap_or_else(|text| Err(format!("a worker panicked: {text}"))) {
                    Ok(report) => {
                        state.reports.borrow_mut()[index] = Some(report);
                        state.exited.notify_waiters();
                    }
                    Err(cause) => sim.fail(cause),
                }
            });
        }
        sim.shared().servers.borrow_mut().push(Rc::clone(&state));
        Self { sim: sim.clone(), state }
    }

    /// Creates an HTTP/1.1 client for the first listener without TLS.
    ///
    /// # Panics
    /// If there is no such listener.
    #[must_use]
    pub fn client(&self) -> SimClient {
        let plain = self.state.addresses.iter().position(|(_, is_tls)| !is_tls);
        let listener = plain.expect("a client needs plain HTTP, but all listeners use TLS");
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
        let addresses = &self.state.addresses;
        let (ports, _) = addresses.get(listener).unwrap_or_else(|| {
            panic!("there is no listener {listener}: the server has {}", addresses.len())
        });
        let port = *self.sim.choose(ports);
        SimConnection::new(self.sim.shared().network.connect_to(port), self.sim.clone())
    }

    /// Shuts down gracefully, like SIGTERM, and waits until the server has ended. Connections that
    /// remain after [`Limits::shutdown_timeout`](peregrine::Limits::shutdown_timeout) are cut, and
    /// listed in the result.
    pub async fn graceful_shutdown(&self) -> ShutdownReport {
        self.advance_lifecycle(Lifecycle::Draining);
        self.stopped().await
    }

    /// Ends the server immediately, like a second signal: handlers are dropped at their current
    /// `await`, and connections are closed.
    pub async fn force_close(&self) -> ShutdownReport {
        self.state.is_force_close_requested.set(true);
        self.advance_lifecycle(Lifecycle::ForceClosing);
        self.stopped().await
    }

    /// Returns the current counters of each worker.
    #[must_use]
    pub fn worker_stats(&self) -> Vec<WorkerStats> {
        self.state.workers.iter().map(|instrumentation| instrumentation.stats()).collect()
    }

    /// Returns the simulation that this server is part of.
    #[must_use]
    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    fn advance_lifecycle(&self, lifecycle: Lifecycle) {
        self.sim.log(match lifecycle {
            Lifecycle::ForceClosing => "a server begins to cut its connections",
            _ => "a server begins to shut down",
        });
        self.state.advance_lifecycle(lifecycle);
    }

    async fn stopped(&self) -> ShutdownReport {
        self.state.stopped().await;
        let reports = self.state.reports.borrow();
        let reports = reports.iter().flatten();
        let workers = reports.clone().map(|report| Some(report.stats.clone())).collect();
        let force_closed = reports.flat_map(|report| report.force_closed.iter().cloned()).collect();
        stopped(workers, force_closed, self.state.is_force_close_requested.get())
    }
}

impl fmt::Debug for SimServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimServer").field("workers", &self.worker_stats()).finish_non_exhaustive()
    }
}

impl SimServerState {
    /// Sets the lifecycle state, unless a later one was set before.
    pub(super) fn advance_lifecycle(&self, lifecycle: Lifecycle) {
        self.lifecycle.send_if_modified(|current| {
            let has_advanced = lifecycle > *current;
            *current = lifecycle.max(*current);
            has_advanced
        });
    }

    /// Completes when all workers have ended.
    pub(super) async fn stopped(&self) {
        loop {
            let mut exited = pin!(self.exited.notified());
            exited.as_mut().enable();
            if self.reports.borrow().iter().all(Option::is_some) {
                return;
            }
            exited.await;
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
        let Self { make, listeners, limits, instrumentation, lifecycle, balancer } = self;
        let start_error = |error: &dyn fmt::Display| format!("the server cannot start: {error}");
        let app = make().await.map_err(|error| start_error(&error))?;
        // All workers share this thread, so the worker-local state of a worker is installed before
        // each poll of that worker.
        let locals = Rc::new(RefCell::new(None::<WorkerLocals>));
        let worker_locals = Rc::clone(&locals);
        let install_locals = move || {
            if let Some(locals) = &*worker_locals.borrow() {
                locals.install();
            }
        };
        let driver = sim.driver().on_before_poll(install_locals.clone());
        let stats_source = Rc::clone(&instrumentation);
        let mut worker = pin!(peregrine_server::run_worker(
            driver,
            listeners,
            app,
            limits,
            instrumentation,
            lifecycle,
            balancer
        ));
        let report = poll_fn(|cx| {
            install_locals();
            let poll = worker.as_mut().poll(cx);
            locals.borrow_mut().get_or_insert_with(WorkerLocals::current);
            poll
        });
        let report = report.await.map_err(|error| start_error(&error))?;
        Ok(WorkerReport { stats: stats_source.stats(), ..report })
    }
}
