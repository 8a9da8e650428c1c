//! Decides whether a worker admits a request or rejects it because of overload. The decision is
//! made before the request's body is read and before any application code runs for the request.
//!
//! Start with [`Overload::admit`], which performs the cheapest checks first.

mod clients;
pub(crate) mod connections;
pub(crate) mod handshakes;
mod queue_delay;
pub(crate) mod reserved_slots;
mod responses;

use self::clients::{Address, Clients, Kind};
use self::queue_delay::Queue;
use self::responses::Answers;
use crate::limits::OverloadLimits;
use crate::observe::metrics::{Counts, Fault};
use peregrine_web::account::{self, Filling};
use peregrine_web::application::{Application, Target};
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::handler::RouteOptions;
use peregrine_web::head::Head;
use peregrine_web::in_progress::{Counting, Known};
use peregrine_web::{Client, Response};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// The queue delay of one in this many requests is measured. For a small request, the cost of
/// reading the clock is noticeable.
const SAMPLED: u32 = 16;

/// The overload limits of a worker, and the requests, connections and clients that currently count
/// towards them.
pub(crate) struct Overload {
    rules: RefCell<Rules>,
    counts: Arc<Counts>,
    routes: Box<[Route]>,
    clients: Clients,
    /// How many requests to skip until the next one whose delay is measured.
    unsampled: Cell<u32>,
    /// Whether a task is already waiting to end queue-delay rejections if no more requests arrive.
    is_watched: Cell<bool>,
    answers: Answers,
    /// Through this, work that continues without an exchange finds this `Overload` and is counted.
    known: Known,
}

/// A route, and its number of requests in progress if that is limited.
struct Route {
    count: Cell<usize>,
    requests_max: Option<usize>,
    is_never_shed: bool,
}

impl Route {
    fn new(options: &RouteOptions) -> Self {
        let RouteOptions { requests_max, is_never_shed, .. } = *options;
        Self { count: Cell::new(0), requests_max, is_never_shed }
    }
}

/// The limits in effect, which may change.
#[derive(Debug)]
struct Rules {
    limits: OverloadLimits,
    queue: Option<Queue>,
}

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Memory,
    Requests,
    Route,
    QueueDelay,
    Client,
}

impl Refusal {
    /// The name in metrics.
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Requests => "requests",
            Self::Route => "route",
            Self::QueueDelay => "queue_delay",
            Self::Client => "client",
        }
    }

    /// The fault to report. Too many requests from one client are the client's fault, not the
    /// server's.
    pub(crate) fn fault(self) -> Fault {
        match self {
            Self::Memory | Self::Requests | Self::Route | Self::QueueDelay => Fault::Overloaded,
            Self::Client => Fault::None,
        }
    }

    /// The name of the limit that was reached.
    fn limit(self) -> &'static str {
        match self {
            Self::Memory => "overload.memory_max",
            Self::Requests => "overload.requests_max",
            Self::Route => "route_requests_max",
            Self::QueueDelay => "overload.queue_delay_target",
            Self::Client => "overload.requests_per_client_max",
        }
    }
}

/// A request to be admitted.
pub(crate) struct Asking<'a> {
    pub(crate) target: &'a Target<'a>,
    pub(crate) head: &'a Head,
    pub(crate) info: &'a ConnectionInfo,
    /// Whether content of the request is still to be received.
    pub(crate) has_content: bool,
    /// Whether its connection uses a reserved slot.
    pub(crate) is_by_wicket: bool,
}

/// Counts a request as in progress, until this is dropped.
#[derive(Debug)]
pub(crate) struct Admitted {
    overload: Rc<Overload>,
    pub(crate) is_never_shed: bool,
    route: Option<u32>,
    client: Option<Address>,
}

/// Counts a connection towards its client's limit, until this is dropped.
#[derive(Debug)]
pub(crate) struct Connected {
    overload: Rc<Overload>,
    client: Address,
}

impl Overload {
    pub(crate) fn new(
        limits: OverloadLimits,
        application: &Application,
        counts: &Arc<Counts>,
    ) -> Rc<Self> {
        let overload = Rc::new_cyclic(|weak: &Weak<Self>| Self {
            rules: RefCell::new(Rules { queue: queue_of(&limits), limits }),
            counts: Arc::clone(counts),
            routes: application.routes().map(|route| Route::new(route.options)).collect(),
            clients: Clients::default(),
            unsampled: Cell::new(0),
            is_watched: Cell::new(false),
            answers: Answers::default(),
            known: Known::new(weak.clone()),
        });
        overload.set_ceiling();
        overload
    }

    /// The number that distinguishes this worker from others on the same thread.
    pub(crate) fn number(&self) -> u64 {
        self.known.number()
    }

    /// Applies new limits. Requests in progress continue and still count, even if they exceed the
    /// new limits.
    pub(crate) fn renew(&self, limits: &OverloadLimits) {
        let mut rules = self.rules.borrow_mut();
        let delay = |of: &OverloadLimits| (of.queue_delay_target, of.queue_delay_interval);
        if delay(limits) != delay(&rules.limits) {
            rules.queue = queue_of(limits);
            self.counts.is_refusing.set(0);
        }
        rules.limits = limits.clone();
        drop(rules);
        self.set_ceiling();
    }

    /// Sets the memory limit of this worker, which is that of the current thread.
    fn set_ceiling(&self) {
        let most = self.rules.borrow().limits.memory_max.bytes();
        account::limit(most.map(|most| usize::try_from(most).unwrap_or(usize::MAX)));
        let shown = most.unwrap_or(0);
        self.counts.memory_bytes_max.set(i64::try_from(shown).unwrap_or(i64::MAX));
    }

    /// Admits a request, or returns why it is rejected. `delay` returns two times: when the worker
    /// last polled the kernel, and the current time.
    #[inline]
    pub(crate) fn admit(
        self: &Rc<Self>,
        asking: &Asking<'_>,
        delay: impl FnOnce() -> (Duration, Duration),
    ) -> Result<Admitted, Refusal> {
        let (options, rules) = (asking.target.options(), self.rules.borrow());
        if !options.is_never_shed {
            self.check(asking, &rules.limits)?;
        }
        if self.is_late(rules.queue.as_ref(), delay) && !options.is_never_shed {
            return Err(self.refuse(Refusal::QueueDelay));
        }
        let route = asking.head.route();
        let counted = (route, options.requests_max, options.is_never_shed);
        let taken = self.take(counted, asking.head, asking.info, &rules.limits, 0);
        taken.map_err(|refusal| self.refuse(refusal))
    }

    /// Counts one more request in progress. Fails if the request then exceeds the limit of its
    /// route or client by more than `more`.
    #[inline]
    fn take(
        self: &Rc<Self>,
        (route, requests_max, is_never_shed): (Option<u32>, Option<usize>, bool),
        head: &Head,
        info: &ConnectionInfo,
        limits: &OverloadLimits,
        more: usize,
    ) -> Result<Admitted, Refusal> {
        let route = requests_max.and_then(|most| Some((route?, most.saturating_add(more))));
        if let Some((route, most)) = route
            && !self.enter_route(route, most)
        {
            return Err(Refusal::Route);
        }
        let mut admitted = Admitted {
            overload: Rc::clone(self),
            is_never_shed,
            route: route.map(|(route, _)| route),
            client: None,
        };
        self.counts.in_flight.add(1);
        if let Some(most) = limits.requests_per_client_max.filter(|_| !is_never_shed) {
            let address = match info.proxies {
                None => info.peer.tcp().map(|peer| peer.ip()),
                Some(_) => Client::of(head, info).ip(),
            };
            let client = address.map(|address| Address::of(address, limits.client_prefix_v6));
            let most = most.saturating_add(more);
            if client.is_some_and(|client| !self.clients.take(client, Kind::Request, most)) {
                return Err(Refusal::Client);
            }
            admitted.client = client;
        }
        Ok(admitted)
    }

    /// Checks the limits that apply to the whole worker and need no clock: memory and requests.
    #[inline]
    fn check(&self, asking: &Asking<'_>, limits: &OverloadLimits) -> Result<(), Refusal> {
        let may_grow = asking.has_content || asking.is_by_wicket;
        self.hindrance(may_grow, limits, 0).map_or(Ok(()), |refusal| Err(self.refuse(refusal)))
    }

    #[inline]
    fn hindrance(&self, may_grow: bool, limits: &OverloadLimits, more: usize) -> Option<Refusal> {
        let filling = account::filling();
        if filling >= Filling::Tight && (may_grow || filling >= Filling::Scarce) {
            return Some(Refusal::Memory);
        }
        let in_flight = usize::try_from(self.counts.in_flight.get()).unwrap_or(0);
        let is_full = |most: usize| in_flight >= most.saturating_add(more);
        limits.requests_max.is_some_and(is_full).then_some(Refusal::Requests)
    }

    /// Returns whether a request has waited too long. Reads the clock only if the limit is set or
    /// this request is sampled.
    #[inline]
    fn is_late(&self, queue: Option<&Queue>, delay: impl FnOnce() -> (Duration, Duration)) -> bool {
        let left = self.unsampled.get();
        self.unsampled.set(left.checked_sub(1).unwrap_or(SAMPLED - 1));
        let is_measured = left == 0 && self.counts.is_measuring();
        if queue.is_none() && !is_measured {
            return false;
        }
        let (look, now) = delay();
        if is_measured {
            self.counts.queue_delay(now.saturating_sub(look));
        }
        queue.is_some_and(|queue| {
            !queue.is_short(look, now) && {
                let is_late = queue.refuses(look, now);
                self.counts.is_refusing.set(i64::from(queue.is_refusing()));
                is_late
            }
        })
    }

    /// Returns true if the caller must start a task that ends queue-delay rejections. There is at
    /// most one such task at a time.
    #[inline]
    pub(crate) fn is_to_be_watched(&self) -> bool {
        self.counts.is_refusing.get() != 0 && !self.is_watched.replace(true)
    }

    /// When to check again whether queue-delay rejections can end; `None` if they have ended. They
    /// end if no requests arrive for an interval.
    pub(crate) fn look_again_at(&self, now: Duration) -> Option<Duration> {
        let rules = self.rules.borrow();
        let quiet_at = rules.queue.as_ref().map(Queue::quiet_at);
        let at = quiet_at.filter(|at| self.counts.is_refusing.get() != 0 && *at > now);
        if at.is_none() {
            self.counts.is_refusing.set(0);
            self.is_watched.set(false);
        }
        at
    }

    fn enter_route(&self, route: u32, most: usize) -> bool {
        let Some(Route { count, .. }) = self.routes.get(route as usize) else { return true };
        let is_room = count.get() < most;
        count.set(count.get() + usize::from(is_room));
        is_room
    }

    #[cold]
    fn refuse(&self, refusal: Refusal) -> Refusal {
        self.counts.shed.note(refusal.name());
        self.counts.limits.note(refusal.limit());
        refusal
    }

    /// The response to a rejected request.
    #[cold]
    pub(crate) fn answer(&self, refusal: Refusal, application: &Application) -> Response {
        let base = self.rules.borrow().limits.retry_after_seconds();
        self.answers.response(refusal == Refusal::Client, base, application)
    }

    /// Counts a connection of the client at `address`, if connections per client are limited.
    ///
    /// # Errors
    /// The client has reached the limit.
    pub(crate) fn connect(
        self: &Rc<Self>,
        address: Option<IpAddr>,
    ) -> Result<Option<Box<Connected>>, TooMany> {
        let limits = &self.rules.borrow().limits;
        let most = limits.connections_per_client_max;
        let (Some(most), Some(address)) = (most, address) else { return Ok(None) };
        let client = Address::of(address, limits.client_prefix_v6);
        if !self.clients.take(client, Kind::Connection, most) {
            return Err(TooMany);
        }
        Ok(Some(Box::new(Connected { overload: Rc::clone(self), client })))
    }

    /// Updates the metric of the memory that the worker's connections use.
    #[inline]
    pub(crate) fn show_memory(&self) {
        self.counts.memory_bytes.set(i64::try_from(account::held()).unwrap_or(i64::MAX));
    }
}

/// Counts work that runs outside an exchange, or continues after its exchange has ended.
impl Counting for Overload {
    fn count(
        self: Rc<Self>,
        head: &Head,
        connection: &ConnectionInfo,
        must: bool,
    ) -> Option<Box<dyn Any>> {
        let rules = self.rules.borrow();
        // Allow one more than the limit: the exchange that starts this work still counts, although
        // its own work is done.
        let more = if must { usize::MAX } else { 1 };
        let number = head.server_route();
        let route = number.and_then(|number| self.routes.get(number as usize));
        let (requests_max, is_never_shed) =
            route.map_or((None, false), |route| (route.requests_max, route.is_never_shed));
        let is_free = must || is_never_shed || self.hindrance(true, &rules.limits, more).is_none();
        let counted = (number, requests_max, is_never_shed);
        let taken = || self.take(counted, head, connection, &rules.limits, more).ok();
        Some(Box::new(is_free.then(taken).flatten()?))
    }
}

fn queue_of(limits: &OverloadLimits) -> Option<Queue> {
    limits.queue_delay_target.map(|target| Queue::new(target, limits.queue_delay_interval))
}

/// A client has reached its limit of connections.
#[derive(Debug)]
pub(crate) struct TooMany;

impl Drop for Admitted {
    #[inline]
    fn drop(&mut self) {
        self.overload.counts.in_flight.add(-1);
        if let Some(route) = self.route.and_then(|at| self.overload.routes.get(at as usize)) {
            route.count.set(route.count.get() - 1);
        }
        if let Some(client) = self.client {
            self.overload.clients.give(client, Kind::Request);
        }
    }
}

impl fmt::Debug for Overload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overload").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.overload.clients.give(self.client, Kind::Connection);
    }
}
