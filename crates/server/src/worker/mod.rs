//! The state that all connections of a worker share.

pub(crate) mod detached;
pub(crate) mod lifecycle;
pub(crate) mod locals;
pub(crate) mod shutdown;

use self::lifecycle::{ForceClosed, Lifecycle};
use crate::admission::AdmissionController;
use crate::admission::connections::ConnectionLimiter;
use crate::admission::handshakes::HandshakeLimiter;
use crate::admission::reserved_slots::{RESERVED_SLOTS_MAX, ReservedSlots};
use crate::limits::{Limits, OverloadLimits};
use crate::observe::Instrumentation;
use crate::observe::access_log::AccessLogger;
use crate::observe::request_metrics::RequestRecorder;
use crate::observe::trace::Tracer;
use crate::observe::watchdog::Heartbeat;
use crate::timer_wheel::{Timer, TimerWheel};
use peregrine_driver::Driver;
use peregrine_proto::Date;
use peregrine_web::built::BuiltApp;
use peregrine_web::connection::ConnectionAddr;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::watch;

/// The limits of a worker, and their updates. A value converted from `Limits` has no updates.
#[derive(Clone, Debug)]
pub struct WorkerLimits {
    /// The initial limits.
    pub limits: Limits,
    /// Updates of `limits.overload`. Requests in progress are not affected.
    pub overload_updates: Option<watch::Receiver<OverloadLimits>>,
    /// Whether the last 64 of the `connections_max` slots are reserved for when all others are
    /// taken, so that a new connection, for example to the admin listener, is still accepted. A
    /// connection in a reserved slot is closed after its first request. If a new connection needs a
    /// reserved slot and none is left, the connection that has been in one for longest is closed,
    /// as soon as it has no request in progress. Usually false.
    pub reserves_connections: bool,
}

impl From<Limits> for WorkerLimits {
    fn from(limits: Limits) -> Self {
        Self { limits, overload_updates: None, reserves_connections: false }
    }
}

/// The state that all connections of a worker share.
pub(crate) struct Worker<D: Driver> {
    pub(crate) driver: D,
    pub(crate) limits: Limits,
    pub(crate) application: BuiltApp,
    pub(crate) timers: Rc<TimerWheel>,
    pub(crate) instrumentation: Rc<Instrumentation>,
    /// Limits the connections of listeners without their own limits.
    pub(crate) connection_limiter: Rc<ConnectionLimiter>,
    pub(crate) heartbeat: Arc<Heartbeat>,
    /// Measures each request, if metrics, the access log or traces are enabled.
    pub(crate) recorder: Option<Rc<RequestRecorder>>,
    pub(crate) handshake_limiter: Rc<HandshakeLimiter>,
    /// Rejects requests and connections when the worker is overloaded.
    pub(crate) admission: Rc<AdmissionController>,
    /// Limits the connections that are accepted while memory, connection slots or file descriptors
    /// are short.
    pub(crate) reserved_slots: Rc<ReservedSlots>,
    /// How many connection slots are reserved: see [`WorkerLimits::reserves_connections`].
    pub(crate) reserved_slot_count: usize,
    /// The entries so far for [`WorkerReport::force_closed`](lifecycle::WorkerReport).
    pub(crate) force_closed: RefCell<Vec<ForceClosed>>,
    lifecycle: Cell<Lifecycle>,
    /// When the current lifecycle state began.
    lifecycle_since: Cell<Duration>,
    /// A second since the Unix epoch, and the value of the `Date` field in that second.
    date: Cell<(u64, Date)>,
    /// The local address of the latest connection.
    last_local_addr: RefCell<Arc<ConnectionAddr>>,
}

/// Creates the request recorder, if metrics, the access log or traces are enabled.
fn build_request_recorder<D: Driver>(
    driver: &D,
    application: &BuiltApp,
    instrumentation: &Instrumentation,
) -> Option<Rc<RequestRecorder>> {
    let is_measured = instrumentation.metrics().request_histograms.get().is_some();
    let (clock_driver, log_driver) = (driver.clone(), driver.clone());
    let log = instrumentation.take_log();
    let log = log.map(|log| AccessLogger::new(log, application, move || log_driver.unix_time()));
    let tracer = instrumentation.traces().map(|config| Tracer::new(config, application));
    let is_needed = is_measured || log.is_some() || tracer.is_some();
    let clock = move || clock_driver.precise_now();
    let recorder =
        is_needed.then(|| RequestRecorder::new(instrumentation.metrics(), clock, log, tracer))?;
    let weak = Rc::downgrade(&recorder);
    let flush = move |now| weak.upgrade().iter().for_each(|recorder| recorder.flush_batch(now));
    // If this returns false, the driver never calls `flush`. The recorder then reads the clock for
    // each request.
    if driver.on_iteration_end(flush) {
        recorder.enable_batching();
    }
    Some(recorder)
}

impl<D: Driver> Worker<D> {
    pub(crate) fn new(
        driver: D,
        application: BuiltApp,
        (limits, reserves_connections): (Limits, bool),
        instrumentation: Rc<Instrumentation>,
        initial: Lifecycle,
    ) -> Self {
        peregrine_web::coop::set_self_wake_yields(D::SELF_WAKE_YIELDS);
        let heartbeat = Arc::clone(instrumentation.heartbeat());
        heartbeat.register_routes(&application);
        instrumentation.metrics().init_request_histograms(&application);
        let recorder = build_request_recorder(&driver, &application, &instrumentation);
        let admission = AdmissionController::new(
            limits.overload.clone(),
            &application,
            instrumentation.metrics(),
        );
        Self {
            timers: TimerWheel::new(),
            connection_limiter: ConnectionLimiter::new(&instrumentation),
            instrumentation,
            heartbeat,
            recorder,
            handshake_limiter: Rc::default(),
            admission,
            reserved_slots: Rc::default(),
            reserved_slot_count: if reserves_connections { RESERVED_SLOTS_MAX } else { 0 },
            force_closed: RefCell::default(),
            // At most `Serving`: the later states start timeouts, so only `shutdown::run` enters
            // them.
            lifecycle: Cell::new(initial.min(Lifecycle::Serving)),
            lifecycle_since: Cell::new(Duration::ZERO),
            date: Cell::new((0, Date::from_unix_seconds(0))),
            last_local_addr: RefCell::default(),
            application,
            driver,
            limits,
        }
    }

    pub(crate) fn lifecycle(&self) -> Lifecycle {
        self.lifecycle.get()
    }

    /// When the current lifecycle state began, on the driver's clock.
    pub(crate) fn lifecycle_since(&self) -> Duration {
        self.lifecycle_since.get()
    }

    pub(crate) fn set_lifecycle(&self, lifecycle: Lifecycle) {
        self.lifecycle.set(lifecycle);
        self.lifecycle_since.set(self.driver.now());
        self.timers.wake_all();
    }

    /// Completes when the worker has reached `lifecycle` or a later state.
    pub(crate) fn lifecycle_reached(
        &self,
        timer: &Timer,
        lifecycle: Lifecycle,
    ) -> impl Future<Output = ()> {
        // A timer that is not set never fires: it only registers the task for `set_lifecycle`,
        // which wakes the waiters of all timers.
        timer.clear();
        poll_fn(
            move |cx| {
                if self.lifecycle.get() >= lifecycle { Poll::Ready(()) } else { timer.poll(cx) }
            },
        )
    }

    /// The value of the `Date` field for a response sent now.
    pub(crate) fn date(&self) -> Date {
        let now = self.driver.unix_time().as_secs();
        let (second, date) = self.date.get();
        if second == now {
            return date;
        }
        let date = Date::from_unix_seconds(now);
        self.date.set((now, date));
        date
    }

    /// Shares one copy of the local address among consecutive connections to the same address.
    pub(crate) fn intern_local_addr(&self, address: ConnectionAddr) -> Arc<ConnectionAddr> {
        let mut latest = self.last_local_addr.borrow_mut();
        if **latest != address {
            *latest = Arc::new(address);
        }
        Arc::clone(&latest)
    }
}
