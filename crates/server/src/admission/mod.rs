//! Decides whether a worker admits a request or rejects it because of overload. The decision is
//! made before the request's body is read and before any application code runs for the request.
//!
//! Start with [`AdmissionController::admit`], which performs the cheapest checks first.

mod clients;
pub(crate) mod connections;
pub(crate) mod handshakes;
mod queue_delay;
pub(crate) mod reserved_slots;
mod responses;

use self::clients::{ClientKey, ClientResource, PerClientLimits};
use self::queue_delay::QueueDelayMonitor;
use self::responses::ShedResponses;
use crate::limits::OverloadLimits;
use crate::observe::metrics::{ErrorType, WorkerMetrics};
use peregrine_web::built::{BuiltApp, MatchedEndpoint};
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::handler::RouteOptions;
use peregrine_web::head::RequestHead;
use peregrine_web::in_flight::{InFlightCounter, WorkerRef};
use peregrine_web::memory::{self, MemoryPressure};
use peregrine_web::{ClientInfo, Response};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// The queue delay of one in this many requests is measured. For a small request, the cost of
/// reading the clock is noticeable.
const DELAY_SAMPLE_INTERVAL: u32 = 16;

/// The overload limits of a worker, and the requests, connections and clients that currently count
/// towards them.
pub(crate) struct AdmissionController {
    config: RefCell<AdmissionConfig>,
    metrics: Arc<WorkerMetrics>,
    routes: Box<[RouteLoad]>,
    per_client: PerClientLimits,
    /// How many requests to skip until the next one whose delay is measured.
    until_sample: Cell<u32>,
    /// Whether a task is already waiting to end queue-delay rejections if no more requests arrive.
    is_watched: Cell<bool>,
    responses: ShedResponses,
    /// Through this, work that continues without an exchange finds this `AdmissionController` and
    /// is counted.
    worker_ref: WorkerRef,
}

/// A route, and its number of requests in progress if that is limited.
struct RouteLoad {
    count: Cell<usize>,
    requests_max: Option<usize>,
    is_never_shed: bool,
}

impl RouteLoad {
    fn new(options: &RouteOptions) -> Self {
        let RouteOptions { requests_max, is_never_shed, .. } = *options;
        Self { count: Cell::new(0), requests_max, is_never_shed }
    }
}

/// The limits in effect, which may change.
#[derive(Debug)]
struct AdmissionConfig {
    limits: OverloadLimits,
    queue: Option<QueueDelayMonitor>,
}

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShedReason {
    Memory,
    Requests,
    Route,
    QueueDelay,
    Client,
}

impl ShedReason {
    /// The name in metrics.
    fn label(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Requests => "requests",
            Self::Route => "route",
            Self::QueueDelay => "queue_delay",
            Self::Client => "client",
        }
    }

    /// The error type to report. Too many requests from one client are the client's fault, not the
    /// server's.
    pub(crate) fn error_type(self) -> ErrorType {
        match self {
            Self::Memory | Self::Requests | Self::Route | Self::QueueDelay => ErrorType::Overloaded,
            Self::Client => ErrorType::None,
        }
    }

    /// The name of the limit that was reached.
    fn limit_name(self) -> &'static str {
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
pub(crate) struct AdmissionRequest<'a> {
    pub(crate) target: &'a MatchedEndpoint<'a>,
    pub(crate) head: &'a RequestHead,
    pub(crate) info: &'a ConnectionInfo,
    /// Whether content of the request is still to be received.
    pub(crate) has_content: bool,
    /// Whether its connection uses a reserved slot.
    pub(crate) is_reserved: bool,
}

/// Counts a request as in progress, until this is dropped.
#[derive(Debug)]
pub(crate) struct AdmissionPermit {
    controller: Rc<AdmissionController>,
    pub(crate) is_never_shed: bool,
    route: Option<u32>,
    client: Option<ClientKey>,
}

/// Counts a connection towards its client's limit, until this is dropped.
#[derive(Debug)]
pub(crate) struct ClientConnectionPermit {
    controller: Rc<AdmissionController>,
    client: ClientKey,
}

impl AdmissionController {
    pub(crate) fn new(
        limits: OverloadLimits,
        application: &BuiltApp,
        counts: &Arc<WorkerMetrics>,
    ) -> Rc<Self> {
        let overload = Rc::new_cyclic(|weak: &Weak<Self>| Self {
            config: RefCell::new(AdmissionConfig { queue: queue_monitor(&limits), limits }),
            metrics: Arc::clone(counts),
            routes: application.routes().map(|route| RouteLoad::new(route.options)).collect(),
            per_client: PerClientLimits::default(),
            until_sample: Cell::new(0),
            is_watched: Cell::new(false),
            responses: ShedResponses::default(),
            worker_ref: WorkerRef::new(weak.clone()),
        });
        overload.apply_memory_max();
        overload
    }

    /// The number that distinguishes this worker from others on the same thread.
    pub(crate) fn worker_id(&self) -> u64 {
        self.worker_ref.id()
    }

    /// Applies new limits. Requests in progress continue and still count, even if they exceed the
    /// new limits.
    pub(crate) fn set_limits(&self, limits: &OverloadLimits) {
        let mut rules = self.config.borrow_mut();
        let delay = |of: &OverloadLimits| (of.queue_delay_target, of.queue_delay_interval);
        if delay(limits) != delay(&rules.limits) {
            rules.queue = queue_monitor(limits);
            self.metrics.is_shedding.set(0);
        }
        rules.limits = limits.clone();
        drop(rules);
        self.apply_memory_max();
    }

    /// Sets the memory limit of this worker, which is that of the current thread.
    fn apply_memory_max(&self) {
        let most = self.config.borrow().limits.memory_max.bytes();
        memory::set_limit(most.map(|most| usize::try_from(most).unwrap_or(usize::MAX)));
        let shown = most.unwrap_or(0);
        self.metrics.memory_bytes_max.set(i64::try_from(shown).unwrap_or(i64::MAX));
    }

    /// Admits a request, or returns why it is rejected. `delay` returns two times: when the worker
    /// last polled the kernel, and the current time.
    #[inline]
    pub(crate) fn admit(
        self: &Rc<Self>,
        asking: &AdmissionRequest<'_>,
        delay: impl FnOnce() -> (Duration, Duration),
    ) -> Result<AdmissionPermit, ShedReason> {
        let (options, rules) = (asking.target.options(), self.config.borrow());
        if !options.is_never_shed {
            self.check(asking, &rules.limits)?;
        }
        if self.exceeds_queue_delay(rules.queue.as_ref(), delay) && !options.is_never_shed {
            return Err(self.record_shed(ShedReason::QueueDelay));
        }
        let route = asking.head.route_id();
        let counted = (route, options.requests_max, options.is_never_shed);
        let taken = self.acquire(counted, asking.head, asking.info, &rules.limits, 0);
        taken.map_err(|refusal| self.record_shed(refusal))
    }

    /// Counts one more request in progress. Fails if the request then exceeds the limit of its
    /// route or client by more than `more`.
    #[inline]
    fn acquire(
        self: &Rc<Self>,
        (route, requests_max, is_never_shed): (Option<u32>, Option<usize>, bool),
        head: &RequestHead,
        info: &ConnectionInfo,
        limits: &OverloadLimits,
        more: usize,
    ) -> Result<AdmissionPermit, ShedReason> {
        let route = requests_max.and_then(|most| Some((route?, most.saturating_add(more))));
        if let Some((route, most)) = route
            && !self.acquire_route(route, most)
        {
            return Err(ShedReason::Route);
        }
        let mut admitted = AdmissionPermit {
            controller: Rc::clone(self),
            is_never_shed,
            route: route.map(|(route, _)| route),
            client: None,
        };
        self.metrics.in_flight.add(1);
        if let Some(most) = limits.requests_per_client_max.filter(|_| !is_never_shed) {
            let address = match info.trusted_proxies {
                None => info.peer.socket_addr().map(|peer| peer.ip()),
                Some(_) => ClientInfo::new(head, info).ip(),
            };
            let client =
                address.map(|address| ClientKey::of(address, limits.client_ipv6_prefix_len));
            let most = most.saturating_add(more);
            if client.is_some_and(|client| {
                !self.per_client.try_acquire(client, ClientResource::Request, most)
            }) {
                return Err(ShedReason::Client);
            }
            admitted.client = client;
        }
        Ok(admitted)
    }

    /// Checks the limits that apply to the whole worker and need no clock: memory and requests.
    #[inline]
    fn check(
        &self,
        asking: &AdmissionRequest<'_>,
        limits: &OverloadLimits,
    ) -> Result<(), ShedReason> {
        let may_grow = asking.has_content || asking.is_reserved;
        self.shed_reason(may_grow, limits, 0)
            .map_or(Ok(()), |refusal| Err(self.record_shed(refusal)))
    }

    #[inline]
    fn shed_reason(
        &self,
        may_grow: bool,
        limits: &OverloadLimits,
        more: usize,
    ) -> Option<ShedReason> {
        let filling = memory::pressure();
        if filling >= MemoryPressure::Moderate && (may_grow || filling >= MemoryPressure::High) {
            return Some(ShedReason::Memory);
        }
        let in_flight = usize::try_from(self.metrics.in_flight.get()).unwrap_or(0);
        let is_full = |most: usize| in_flight >= most.saturating_add(more);
        limits.requests_max.is_some_and(is_full).then_some(ShedReason::Requests)
    }

    /// Returns whether a request has waited too long. Reads the clock only if the limit is set or
    /// this request is sampled.
    #[inline]
    fn exceeds_queue_delay(
        &self,
        queue: Option<&QueueDelayMonitor>,
        delay: impl FnOnce() -> (Duration, Duration),
    ) -> bool {
        let left = self.until_sample.get();
        self.until_sample.set(left.checked_sub(1).unwrap_or(DELAY_SAMPLE_INTERVAL - 1));
        let is_measured = left == 0 && self.metrics.has_request_histograms();
        if queue.is_none() && !is_measured {
            return false;
        }
        let (look, now) = delay();
        if is_measured {
            self.metrics.record_queue_delay(now.saturating_sub(look));
        }
        queue.is_some_and(|queue| {
            !queue.is_below_target(look, now) && {
                let is_late = queue.should_shed(look, now);
                self.metrics.is_shedding.set(i64::from(queue.is_shedding()));
                is_late
            }
        })
    }

    /// Returns true if the caller must start a task that ends queue-delay rejections. There is at
    /// most one such task at a time.
    #[inline]
    pub(crate) fn needs_watcher(&self) -> bool {
        self.metrics.is_shedding.get() != 0 && !self.is_watched.replace(true)
    }

    /// When to check again whether queue-delay rejections can end; `None` if they have ended. They
    /// end if no requests arrive for an interval.
    pub(crate) fn next_check(&self, now: Duration) -> Option<Duration> {
        let rules = self.config.borrow();
        let quiet_at = rules.queue.as_ref().map(QueueDelayMonitor::idle_at);
        let at = quiet_at.filter(|at| self.metrics.is_shedding.get() != 0 && *at > now);
        if at.is_none() {
            self.metrics.is_shedding.set(0);
            self.is_watched.set(false);
        }
        at
    }

    fn acquire_route(&self, route: u32, most: usize) -> bool {
        let Some(RouteLoad { count, .. }) = self.routes.get(route as usize) else { return true };
        let is_room = count.get() < most;
        count.set(count.get() + usize::from(is_room));
        is_room
    }

    #[cold]
    fn record_shed(&self, refusal: ShedReason) -> ShedReason {
        self.metrics.shed.increment(refusal.label());
        self.metrics.limits_hit.increment(refusal.limit_name());
        refusal
    }

    /// The response to a rejected request.
    #[cold]
    pub(crate) fn shed_response(&self, refusal: ShedReason, application: &BuiltApp) -> Response {
        let base = self.config.borrow().limits.retry_after_seconds();
        self.responses.response(refusal == ShedReason::Client, base, application)
    }

    /// Counts a connection of the client at `address`, if connections per client are limited.
    ///
    /// # Errors
    /// The client has reached the limit.
    pub(crate) fn acquire_connection(
        self: &Rc<Self>,
        address: Option<IpAddr>,
    ) -> Result<Option<Box<ClientConnectionPermit>>, TooManyConnections> {
        let limits = &self.config.borrow().limits;
        let most = limits.connections_per_client_max;
        let (Some(most), Some(address)) = (most, address) else { return Ok(None) };
        let client = ClientKey::of(address, limits.client_ipv6_prefix_len);
        if !self.per_client.try_acquire(client, ClientResource::Connection, most) {
            return Err(TooManyConnections);
        }
        Ok(Some(Box::new(ClientConnectionPermit { controller: Rc::clone(self), client })))
    }

    /// Updates the metric of the memory that the worker's connections use.
    #[inline]
    pub(crate) fn publish_memory(&self) {
        self.metrics.memory_bytes.set(i64::try_from(memory::reserved()).unwrap_or(i64::MAX));
    }
}

/// Counts work that runs outside an exchange, or continues after its exchange has ended.
impl InFlightCounter for AdmissionController {
    fn try_acquire(
        self: Rc<Self>,
        head: &RequestHead,
        connection: &ConnectionInfo,
        must: bool,
    ) -> Option<Box<dyn Any>> {
        let rules = self.config.borrow();
        // Allow one more than the limit: the exchange that starts this work still counts, although
        // its own work is done.
        let more = if must { usize::MAX } else { 1 };
        let number = head.outer_route_id();
        let route = number.and_then(|number| self.routes.get(number as usize));
        let (requests_max, is_never_shed) =
            route.map_or((None, false), |route| (route.requests_max, route.is_never_shed));
        let is_free =
            must || is_never_shed || self.shed_reason(true, &rules.limits, more).is_none();
        let counted = (number, requests_max, is_never_shed);
        let taken = || self.acquire(counted, head, connection, &rules.limits, more).ok();
        Some(Box::new(is_free.then(taken).flatten()?))
    }
}

fn queue_monitor(limits: &OverloadLimits) -> Option<QueueDelayMonitor> {
    limits
        .queue_delay_target
        .map(|target| QueueDelayMonitor::new(target, limits.queue_delay_interval))
}

/// A client has reached its limit of connections.
#[derive(Debug)]
pub(crate) struct TooManyConnections;

impl Drop for AdmissionPermit {
    #[inline]
    fn drop(&mut self) {
        self.controller.metrics.in_flight.add(-1);
        if let Some(route) = self.route.and_then(|at| self.controller.routes.get(at as usize)) {
            route.count.set(route.count.get() - 1);
        }
        if let Some(client) = self.client {
            self.controller.per_client.release(client, ClientResource::Request);
        }
    }
}

impl fmt::Debug for AdmissionController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmissionController").field("rules", &self.config).finish_non_exhaustive()
    }
}

impl Drop for ClientConnectionPermit {
    fn drop(&mut self) {
        self.controller.per_client.release(self.client, ClientResource::Connection);
    }
}
