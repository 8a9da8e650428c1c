//! The state that all connections of a worker share.

pub(crate) mod detached;
pub(crate) mod lifecycle;
pub(crate) mod locals;
pub(crate) mod shutdown;

use self::lifecycle::{Cut, Order};
use crate::admission::Overload;
use crate::admission::connections::Rooms;
use crate::admission::handshakes::Handshakes;
use crate::admission::reserved_slots::Wicket;
use crate::limits::{Limits, OverloadLimits};
use crate::observe::Observed;
use crate::observe::access_log::Logger;
use crate::observe::request_metrics::Meters;
use crate::observe::trace::Tracing;
use crate::observe::watchdog::Pulse;
use crate::timer_wheel::{Alarm, Wheel};
use peregrine_driver::Driver;
use peregrine_proto::Date;
use peregrine_web::application::Application;
use peregrine_web::connection::Peer;
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
    pub overload: Option<watch::Receiver<OverloadLimits>>,
    /// How many of the `connections_max` slots are reserved. They are used when all others are
    /// taken. A connection in a reserved slot may send one request. If another connection needs a
    /// slot, the oldest one without a request is closed. For listeners that must stay reachable
    /// when clients occupy all other slots. Usually 0.
    pub spare_connections: usize,
}

impl From<Limits> for WorkerLimits {
    fn from(limits: Limits) -> Self {
        Self { limits, overload: None, spare_connections: 0 }
    }
}

/// The state that all connections of a worker share.
pub(crate) struct Worker<D: Driver> {
    pub(crate) driver: D,
    pub(crate) limits: Limits,
    pub(crate) application: Application,
    pub(crate) wheel: Rc<Wheel>,
    pub(crate) observed: Rc<Observed>,
    /// Limits the connections of listeners without their own limits.
    pub(crate) rooms: Rc<Rooms>,
    pub(crate) pulse: Arc<Pulse>,
    /// Measures each request, if metrics, the access log or traces are enabled.
    pub(crate) meters: Option<Rc<Meters>>,
    pub(crate) handshakes: Rc<Handshakes>,
    /// Rejects requests and connections when the worker is overloaded.
    pub(crate) overload: Rc<Overload>,
    /// The reserved slots for connections that are accepted when memory or connection slots are
    /// short.
    pub(crate) wicket: Rc<Wicket>,
    /// How many connection slots are reserved: see [`WorkerLimits`].
    pub(crate) spare_connections: usize,
    pub(crate) cut: RefCell<Vec<Cut>>,
    order: Cell<Order>,
    /// When the current order was given.
    ordered_at: Cell<Duration>,
    date: Cell<(u64, Date)>,
    /// The local address of the latest connection.
    local: RefCell<Arc<Peer>>,
}

/// Makes the request metrics, if metrics, the access log or traces are enabled.
fn meters<D: Driver>(
    driver: &D,
    application: &Application,
    observed: &Observed,
) -> Option<Rc<Meters>> {
    let is_measured = observed.counts().measured.get().is_some();
    let (clock, unix) = (driver.clone(), driver.clone());
    let log = observed.take_log();
    let log = log.map(|log| Logger::new(log, application, move || unix.unix_time()));
    let tracing = observed.traces().map(|traces| Tracing::new(traces, application));
    let is_wanted = is_measured || log.is_some() || tracing.is_some();
    let clock = move || clock.read_clock();
    let meters = is_wanted.then(|| Meters::new(observed.counts(), clock, log, tracing))?;
    let weak = Rc::downgrade(&meters);
    let end = move |now| weak.upgrade().iter().for_each(|meters| meters.end_turn(now));
    if driver.at_turn_end(end) {
        meters.expect_turns();
    }
    Some(meters)
}

impl<D: Driver> Worker<D> {
    pub(crate) fn new(
        driver: D,
        application: Application,
        (limits, spare_connections): (Limits, usize),
        observed: Rc<Observed>,
        present: Order,
    ) -> Self {
        peregrine_web::turn::set_fair(D::IS_FAIR_TO_OTHERS);
        let pulse = Arc::clone(observed.pulse());
        pulse.name_routes(&application);
        observed.counts().prepare(&application);
        let meters = meters(&driver, &application, &observed);
        let overload = Overload::new(limits.overload.clone(), &application, observed.counts());
        Self {
            wheel: Wheel::new(),
            rooms: Rooms::new(&observed),
            observed,
            pulse,
            meters,
            handshakes: Rc::default(),
            overload,
            wicket: Rc::default(),
            spare_connections,
            cut: RefCell::default(),
            order: Cell::new(present.min(Order::Serve)),
            ordered_at: Cell::new(Duration::ZERO),
            date: Cell::new((0, Date::from_unix_seconds(0))),
            local: RefCell::default(),
            application,
            driver,
            limits,
        }
    }

    pub(crate) fn order(&self) -> Order {
        self.order.get()
    }

    /// When the current order was given, on the driver's clock.
    pub(crate) fn ordered_at(&self) -> Duration {
        self.ordered_at.get()
    }

    pub(crate) fn give(&self, order: Order) {
        self.order.set(order);
        self.ordered_at.set(self.driver.now());
        self.wheel.wake_all();
    }

    /// Completes when an order of at least `order` is given.
    pub(crate) fn ordered(&self, alarm: &Alarm, order: Order) -> impl Future<Output = ()> {
        alarm.clear();
        poll_fn(
            move |context| {
                if self.order.get() >= order { Poll::Ready(()) } else { alarm.poll(context) }
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
    pub(crate) fn local(&self, address: Peer) -> Arc<Peer> {
        let mut latest = self.local.borrow_mut();
        if **latest != address {
            *latest = Arc::new(address);
        }
        Arc::clone(&latest)
    }
}
