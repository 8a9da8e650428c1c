//! The state that all connections of a worker share.

pub(crate) mod detached;
pub(crate) mod lifecycle;
pub(crate) mod locals;
pub(crate) mod shutdown;

use self::lifecycle::{ForceClosed, Lifecycle};
use crate::admission::AdmissionController;
use crate::admission::connections::ConnectionLimiter;
use crate::admission::handshakes::HandshakeLimiter;
use crate::admission::reserved_slots::ReservedSlots;
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
    /// How many of the `connections_max` slots are reserved. They are used when all others are
    /// taken. A connection in a reserved slot may send one request. If another connection needs a
    /// slot, the oldest one without a request is closed. For listeners that must stay reachable
    /// when clients occupy all other slots. Usually 0.
    pub reserved_connections: usize,
}

impl From<Limits> for WorkerLimits {
    fn from(limits: Limits) -> Self {
        Self { limits, overload_updates: None, reserved_connections: 0 }
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
    /// The reserved slots for connections that are accepted when memory or connection slots are
    /// short.
    pub(crate) reserved_slots: Rc<ReservedSlots>,
    /// How many connection slots are reserved: see [`WorkerLimits`].
    pub(crate) reserved_connections: usize,
    pub(crate) force_closed: RefCell<Vec<ForceClosed>>,
    lifecycle: Cell<Lifecycle>,
    /// When the current lifecycle state began.
    lifecycle_since: Cell<Duration>,
    date: Cell<(u64, Date)>,
    /// The local address of the latest connection.
    last_local_addr: RefCell<Arc<ConnectionAddr>>,
}

/// Makes the request metrics, if metrics, the access log or traces are enabled.
fn build_request_recorder<D: Driver>(
    driver: &D,
    application: &BuiltApp,
    observed: &Instrumentation,
) -> Option<Rc<RequestRecorder>> {
    let is_measured = observed.metrics().request_histograms.get().is_some();
    let (clock, unix) = (driver.clone(), driver.clone());
    let log = observed.take_log();
    let log = log.map(|log| AccessLogger::new(log, application, move || unix.unix_time()));
    let tracing = observed.traces().map(|traces| Tracer::new(traces, application));
    let is_wanted = is_measured || log.is_some() || tracing.is_some();
    let clock = move || clock.precise_now();
    let meters =
        is_wanted.then(|| RequestRecorder::new(observed.metrics(), clock, log, tracing))?;
    let weak = Rc::downgrade(&meters);
    let end = move |now| weak.upgrade().iter().for_each(|meters| meters.flush_batch(now));
    if driver.on_iteration_end(end) {
        meters.enable_batching();
    }
    Some(meters)
}

impl<D: Driver> Worker<D> {
    pub(crate) fn new(
        driver: D,
        application: BuiltApp,
        (limits, spare_connections): (Limits, usize),
        observed: Rc<Instrumentation>,
        present: Lifecycle,
    ) -> Self {
        peregrine_web::coop::set_self_wake_yields(D::SELF_WAKE_YIELDS);
        let pulse = Arc::clone(observed.heartbeat());
        pulse.register_routes(&application);
        observed.metrics().init_request_histograms(&application);
        let meters = build_request_recorder(&driver, &application, &observed);
        let overload =
            AdmissionController::new(limits.overload.clone(), &application, observed.metrics());
        Self {
            timers: TimerWheel::new(),
            connection_limiter: ConnectionLimiter::new(&observed),
            instrumentation: observed,
            heartbeat: pulse,
            recorder: meters,
            handshake_limiter: Rc::default(),
            admission: overload,
            reserved_slots: Rc::default(),
            reserved_connections: spare_connections,
            force_closed: RefCell::default(),
            lifecycle: Cell::new(present.min(Lifecycle::Serving)),
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

    pub(crate) fn set_lifecycle(&self, order: Lifecycle) {
        self.lifecycle.set(order);
        self.lifecycle_since.set(self.driver.now());
        self.timers.wake_all();
    }

    /// Completes when an order of at least `order` is given.
    pub(crate) fn lifecycle_reached(
        &self,
        alarm: &Timer,
        order: Lifecycle,
    ) -> impl Future<Output = ()> {
        alarm.clear();
        poll_fn(
            move |cx| {
                if self.lifecycle.get() >= order { Poll::Ready(()) } else { alarm.poll(cx) }
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

    /// Shares one copy of the local address among consecutive connections with the same one.
    pub(crate) fn intern_local_addr(&self, address: ConnectionAddr) -> Arc<ConnectionAddr> {
        let mut latest = self.last_local_addr.borrow_mut();
        if **latest != address {
            *latest = Arc::new(address);
        }
        Arc::clone(&latest)
    }
}
