//! One worker: a thread's listeners, connections and clock, from its first accept to its last byte.

use crate::accept;
use crate::connection::Desk;
use crate::deadline::{Alarm, Wheel};
use crate::handshakes::Handshakes;
use crate::limits::Limits;
use crate::observe::{Observed, Snapshot};
use crate::pulse::Pulse;
use crate::shutdown;
use peregrine_driver::{Driver, Stream};
use peregrine_proto::Date;
use peregrine_slot::FutureSlot;
use peregrine_tls::Tls;
use peregrine_web::application::Application;
use peregrine_web::connection::Peer;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::watch;

/// Desks kept for the next request; more are freed.
const DESKS_MAX: usize = 128;

/// What a worker listens on.
#[derive(Debug)]
pub struct Door<S> {
    /// The bound socket.
    pub socket: S,
    /// Speak TLS on it.
    pub tls: Option<Tls>,
}

/// An order to all workers. Orders only go forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// Serve.
    #[default]
    Serve,
    /// Stop accepting, close what is idle, let the rest finish until the shutdown timeout.
    Drain,
    /// End everything at once.
    Cut,
}

/// What a worker did, told when it has ended.
#[derive(Debug, Default)]
pub struct Report {
    /// Its figures.
    pub snapshot: Snapshot,
    /// Connections that were still busy when the time to shut down was over.
    pub cut: Vec<Cut>,
}

/// A connection that was ended in the middle of its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Who was at the other end.
    pub peer: String,
    /// Method and route of the request whose response was not sent yet; `None` if there was none.
    pub request: Option<String>,
    /// How long the connection had existed.
    pub age: Duration,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = self.request.as_deref().unwrap_or("(no whole request)");
        write!(f, "{} during {request}, connected for {:.1?}", self.peer, self.age)
    }
}

/// What all connections of a worker share.
pub(crate) struct Worker<D: Driver> {
    pub(crate) driver: D,
    pub(crate) limits: Limits,
    pub(crate) protocol: peregrine_proto::Limits,
    pub(crate) application: Application,
    pub(crate) wheel: Rc<Wheel>,
    pub(crate) observed: Rc<Observed>,
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) handshakes: Handshakes,
    pub(crate) cut: RefCell<Vec<Cut>>,
    order: Cell<Order>,
    date: Cell<(u64, Date)>,
    desks: RefCell<Vec<Lease<D>>>,
    /// Where the latest connection arrived.
    local: RefCell<Arc<Peer>>,
}

/// What a connection needs while it works on requests, and gives back while it waits for one.
pub(crate) struct Lease<D: Driver> {
    pub(crate) desk: Box<Desk<<D::Stream as Stream>::Chunk>>,
    /// Where the future that does the work lives, so that a waiting connection does not keep room
    /// for it.
    pub(crate) place: FutureSlot,
}

/// Runs a worker until an order ends it. Work that requests left behind is waited for as
/// [`Limits::background_timeout`] says; [`Driver::run`] goes on with that for blocking functions, and
/// `observed` has their number only after it.
///
/// # Errors
/// The driver cannot listen on one of the sockets.
pub async fn run<D: Driver>(
    driver: D,
    doors: Vec<Door<D::Socket>>,
    application: Application,
    limits: Limits,
    observed: Rc<Observed>,
    orders: watch::Receiver<Order>,
) -> std::io::Result<Report> {
    shutdown::announce(&orders);
    let pulse = Arc::clone(observed.pulse());
    pulse.name_routes(&application);
    let worker = Rc::new(Worker {
        protocol: limits.protocol(),
        wheel: Wheel::new(limits.connections_max),
        observed,
        pulse,
        handshakes: Handshakes::default(),
        cut: RefCell::default(),
        order: Cell::new(Order::Serve),
        date: Cell::new((0, Date::from_unix_seconds(0))),
        desks: RefCell::default(),
        local: RefCell::default(),
        application,
        driver,
        limits,
    });
    for door in doors {
        let listener = worker.driver.listen(door.socket)?;
        worker.driver.spawn(accept::run(Rc::clone(&worker), listener, door.tls));
    }
    worker.driver.spawn(turn_wheel(Rc::clone(&worker)));
    Ok(shutdown::run(worker, orders).await)
}

/// The next order that goes beyond `present`. When nobody can give orders any more, none comes.
pub(crate) async fn next_order(orders: &mut watch::Receiver<Order>, present: Order) -> Order {
    // What is borrowed from the channel must not be held while this waits: tasks on any thread may.
    let order = orders.wait_for(|order| *order > present).await.map(|order| *order);
    match order {
        Ok(order) => order,
        Err(_) => pending().await,
    }
}

/// Ends with whichever of the two ends first.
pub(crate) async fn first_of(a: impl Future<Output = ()>, b: impl Future<Output = ()>) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|context| {
        if a.as_mut().poll(context).is_ready() { Poll::Ready(()) } else { b.as_mut().poll(context) }
    })
    .await;
}

async fn turn_wheel<D: Driver>(worker: Rc<Worker<D>>) {
    while !worker.wheel.is_stopped() {
        let sooner = poll_fn(|context| worker.wheel.poll_sooner(context));
        match worker.wheel.next() {
            Some(at) => first_of(worker.driver.sleep_until(at), sooner).await,
            None => sooner.await,
        }
        worker.wheel.turn(worker.driver.now());
    }
}

/// How long to wait for something.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    Never,
    /// A time on the driver's clock.
    At(Duration),
    /// So long from the moment at which waiting begins.
    In(Duration),
}

/// Why a wait ended before what was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupt {
    Deadline,
    Order,
}

impl<D: Driver> Worker<D> {
    pub(crate) fn order(&self) -> Order {
        self.order.get()
    }

    pub(crate) fn give(&self, order: Order) {
        self.order.set(order);
        self.wheel.wake_all();
    }

    /// Waits for `future`, but not beyond `until`, nor beyond an order of at least `order`.
    ///
    /// The future is pinned by the caller: one that is moved into an `async fn` is kept there twice,
    /// and idle connections are made of what their futures keep.
    pub(crate) fn within<'w, F: Future>(
        &'w self,
        alarm: &'w Alarm,
        until: Until,
        order: Order,
        mut future: Pin<&'w mut F>,
    ) -> impl Future<Output = Result<F::Output, Interrupt>> + 'w {
        let mut is_set = false;
        poll_fn(move |context| {
            if let Poll::Ready(value) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(value));
            }
            if self.order.get() >= order {
                return Poll::Ready(Err(Interrupt::Order));
            }
            if !is_set {
                is_set = true;
                match until {
                    Until::Never => alarm.clear(),
                    Until::At(at) => alarm.set(at),
                    Until::In(time) => alarm.set(self.driver.now().saturating_add(time)),
                }
            }
            alarm.poll(context).map(|()| Err(Interrupt::Deadline))
        })
    }

    /// The value of the `Date` field for a response of now.
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

    /// One copy of an address for all connections that arrive at it one after the other.
    pub(crate) fn local(&self, address: Peer) -> Arc<Peer> {
        let mut latest = self.local.borrow_mut();
        if **latest != address {
            *latest = Arc::new(address);
        }
        Arc::clone(&latest)
    }

    /// What a connection needs to work on requests.
    pub(crate) fn lease(&self) -> Lease<D> {
        let kept = self.desks.borrow_mut().pop();
        kept.unwrap_or_else(|| Lease { desk: Box::default(), place: FutureSlot::new() })
    }

    pub(crate) fn give_back(&self, mut lease: Lease<D>) {
        lease.desk.reset();
        let mut desks = self.desks.borrow_mut();
        if desks.len() < DESKS_MAX {
            desks.push(lease);
        }
    }
}
