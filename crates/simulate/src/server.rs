//! A server on the simulated network.

use super::client::SimClient;
use super::connection::SimConnection;
use super::sim::{Sim, caught};
use peregrine::Stopped;
use peregrine::internal::{Make, Settings, Simulated, stopped};
use peregrine_driver_sim::{Passed, Port};
use peregrine_server::{
    Listen, Locals, Member, Observed, Order, Report, Shared, Snapshot, WorkerLimits,
};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{Notify, watch};

/// A server on the simulated network. It serves until it is told to end, or the test is over. A handle, cloned freely.
#[derive(Clone)]
pub struct SimServer {
    sim: Sim,
    running: Rc<Running>,
}

/// What there is to know of a server.
pub(super) struct Running {
    orders: watch::Sender<Order>,
    /// Of each listener, the port of each worker, and whether TLS is spoken there.
    places: Vec<(Vec<u64>, bool)>,
    workers: Vec<Rc<Observed>>,
    reports: RefCell<Vec<Option<Report>>>,
    ended: Notify,
    is_cut_ordered: Cell<bool>,
}

impl SimServer {
    pub(super) fn start(sim: &Sim, settings: Simulated, makes: &mut dyn FnMut() -> Make) -> Self {
        let Simulated { workers, limits, traces, listeners } = settings;
        let network = &sim.shared().network;
        let count = workers;
        let mut places: Vec<_> =
            listeners.iter().map(|listener| (Vec::new(), listener.is_tls())).collect();
        let (orders, _) = watch::channel(Order::Serve);
        let members = Member::all(count, listeners.len()).into_iter();
        let members = members.map(|member| (count > 1).then_some(member));
        let mut starts = Vec::new();
        for member in members {
            let bind = |(listener, (ports, _)): (&Settings, &mut (Vec<u64>, bool))| {
                let port = network.bind();
                ports.push(port.id());
                listener.listen(port, Shared::default())
            };
            let listens = listeners.iter().zip(&mut places).map(bind).collect();
            let observed = Rc::new(Observed::new(Arc::default()).tracing(traces.clone()));
            let limits = limits.clone().into();
            let orders = orders.subscribe();
            starts.push(Worker { make: makes(), listens, limits, observed, orders, member });
        }
        let running = Rc::new(Running {
            orders,
            places,
            workers: starts.iter().map(|worker| Rc::clone(&worker.observed)).collect(),
            reports: RefCell::new((0..count).map(|_| None).collect()),
            ended: Notify::new(),
            is_cut_ordered: Cell::new(false),
        });
        for (number, worker) in starts.into_iter().enumerate() {
            let (sim, running) = (sim.clone(), Rc::clone(&running));
            network.spawn(async move {
                let ran = caught(worker.run(&sim)).await;
                match ran.unwrap_or_else(|text| Err(format!("a worker panicked: {text}"))) {
                    Ok(report) => {
                        running.reports.borrow_mut()[number] = Some(report);
                        running.ended.notify_waiters();
                    }
                    Err(cause) => sim.fail(cause),
                }
            });
        }
        sim.shared().servers.borrow_mut().push(Rc::clone(&running));
        Self { sim: sim.clone(), running }
    }

    /// A client of HTTP/1.1, at the first listener that speaks plain HTTP.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    pub fn client(&self) -> SimClient {
        let plain = self.running.places.iter().position(|(_, is_tls)| !is_tls);
        let listener = plain.expect("a client speaks plain HTTP, and all listeners speak TLS");
        SimClient::new(self.clone(), listener)
    }

    /// A connection to the first listener, as bytes.
    #[must_use]
    pub fn connect(&self) -> SimConnection {
        self.connect_to(0)
    }

    /// A connection to a listener, by its place among those of the server, as bytes. Which worker accepts it follows from
    /// the seed.
    ///
    /// # Panics
    /// There are not so many listeners.
    #[must_use]
    pub fn connect_to(&self, listener: usize) -> SimConnection {
        let places = &self.running.places;
        let (ports, _) = places.get(listener).unwrap_or_else(|| {
            panic!("there is no listener {listener}: the server has {}", places.len())
        });
        let port = *self.sim.choose(ports);
        SimConnection::new(self.sim.shared().network.connect_to(port), self.sim.clone())
    }

    /// Shuts down in order, as SIGTERM does, and waits for the end: what is left at
    /// [`Limits::shutdown_timeout`](peregrine::Limits::shutdown_timeout) is cut. The result names that.
    pub async fn shut_down(&self) -> Stopped {
        self.order(Order::Drain);
        self.ended().await
    }

    /// Ends everything at once, as a second signal does: handlers are dropped where they wait, and connections are closed.
    pub async fn cut(&self) -> Stopped {
        self.running.is_cut_ordered.set(true);
        self.order(Order::Cut);
        self.ended().await
    }

    /// The figures of each worker so far.
    #[must_use]
    pub fn snapshots(&self) -> Vec<Snapshot> {
        self.running.workers.iter().map(|observed| observed.snapshot()).collect()
    }

    /// The simulation that it is part of.
    #[must_use]
    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    fn order(&self, order: Order) {
        self.sim.note(match order {
            Order::Cut => "a server is told to end at once",
            _ => "a server is told to shut down",
        });
        self.running.order(order);
    }

    async fn ended(&self) -> Stopped {
        self.running.ended().await;
        let reports = self.running.reports.borrow();
        let reports = reports.iter().flatten();
        let workers = reports.clone().map(|report| Some(report.snapshot.clone())).collect();
        let cut = reports.flat_map(|report| report.cut.iter().cloned()).collect();
        stopped(workers, cut, self.running.is_cut_ordered.get())
    }
}

impl fmt::Debug for SimServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimServer").field("workers", &self.snapshots()).finish_non_exhaustive()
    }
}

impl Running {
    /// Orders only go forward.
    pub(super) fn order(&self, order: Order) {
        self.orders.send_if_modified(|present| {
            let is_further = order > *present;
            *present = order.max(*present);
            is_further
        });
    }

    /// Ends when all workers have ended.
    pub(super) async fn ended(&self) {
        loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            if self.reports.borrow().iter().all(Option::is_some) {
                return;
            }
            ended.await;
        }
    }
}

/// What one worker begins with.
struct Worker {
    make: Make,
    listens: Vec<Listen<Port>>,
    limits: WorkerLimits,
    observed: Rc<Observed>,
    orders: watch::Receiver<Order>,
    member: Option<Member<Passed>>,
}

impl Worker {
    /// Runs to the end, or says why it cannot.
    async fn run(self, sim: &Sim) -> Result<Report, String> {
        let Self { make, listens, limits, observed, orders, member } = self;
        let wrong = |error: &dyn fmt::Display| format!("the server cannot begin: {error}");
        let application = make().await.map_err(|error| wrong(&error))?;
        // Workers take turns on this thread.
        let locals = Rc::new(RefCell::new(None::<Locals>));
        let mine = Rc::clone(&locals);
        let announce = move || {
            if let Some(locals) = &*mine.borrow() {
                locals.announce();
            }
        };
        let driver = sim.driver().before_polls(announce.clone());
        let counts = Rc::clone(&observed);
        let mut running = pin!(peregrine_server::run(
            driver,
            listens,
            application,
            limits,
            observed,
            orders,
            member
        ));
        let report = poll_fn(|context| {
            announce();
            let polled = running.as_mut().poll(context);
            locals.borrow_mut().get_or_insert_with(Locals::current);
            polled
        });
        let report = report.await.map_err(|error| wrong(&error))?;
        Ok(Report { snapshot: counts.snapshot(), ..report })
    }
}
