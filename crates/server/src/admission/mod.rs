//! Decides whether a worker admits a request or rejects it because of overload. The decision is
//! made before the request's body is read and before any application code runs for the request.
//!
//! Start with [`AdmissionController::admit`], which performs the cheapest checks first. The
//! submodules also limit connections and handshakes.

mod clients;
pub(crate) mod connections;
pub(crate) mod handshakes;
mod queue_delay;
pub(crate) mod reserved_slots;
mod responses;

use self::clients::{ClientKey, ClientResource, PerClientCounts};
use self::queue_delay::QueueDelayMonitor;
use self::responses::ShedResponses;
use crate::limits::OverloadLimits;
use crate::observe::metrics::{ErrorType, WorkerMetrics};
use peregrine_web::built::{BuiltApp, MatchedEndpoint};
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::handler::RouteOptions;
use peregrine_web::head::RequestHead;
use peregrine_web::in_flight::{InFlightCounter, WorkerRegistration};
use peregrine_web::memory::{self, MemoryPressure};
use peregrine_web::{ClientInfo, Response};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// The metric of the queue delay measures one in this many requests. For a small request, the cost
/// of reading the clock is noticeable.
const DELAY_SAMPLE_INTERVAL: u32 = 16;

/// The overload limits of a worker, and the requests, connections and clients that currently count
/// towards them.
pub(crate) struct AdmissionController {
    config: RefCell<AdmissionConfig>,
    metrics: Arc<WorkerMetrics>,
    /// Indexed by route ID.
    routes: Box<[RouteLoad]>,
    per_client: PerClientCounts,
    /// How many requests to skip until the next one whose delay is measured.
    until_sample: Cell<u32>,
    /// Whether a task is running that calls [`Self::update_shedding_metric`].
    is_watched: Cell<bool>,
    responses: ShedResponses,
    /// Lets work outside an exchange find this controller, so that the work counts as in progress.
    worker_ref: WorkerRegistration,
}

/// The limits of a route, and its number of requests in progress if that number is limited.
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
    queue_delay: Option<QueueDelayMonitor>,
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
    pub(crate) uses_reserved_slot: bool,
}

/// Counts a request as in progress, until this is dropped.
#[derive(Debug)]
pub(crate) struct AdmissionPermit {
    controller: Rc<AdmissionController>,
    pub(crate) is_never_shed: bool,
    /// The route, if its requests are limited.
    route: Option<u32>,
    /// The client, if the requests of each client are limited.
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
        metrics: &Arc<WorkerMetrics>,
    ) -> Rc<Self> {
        let controller = Rc::new_cyclic(|weak: &Weak<Self>| Self {
            config: RefCell::new(AdmissionConfig {
                queue_delay: new_queue_delay_monitor(&limits),
                limits,
            }),
            metrics: Arc::clone(metrics),
            routes: application.routes().map(|route| RouteLoad::new(route.options)).collect(),
            per_client: PerClientCounts::default(),
            until_sample: Cell::new(0),
            is_watched: Cell::new(false),
            responses: ShedResponses::default(),
            worker_ref: WorkerRegistration::new(weak.clone()),
        });
        controller.apply_memory_max();
        controller
    }

    /// The number that distinguishes this worker from others on the same thread.
    pub(crate) fn worker_id(&self) -> u64 {
        self.worker_ref.id()
    }

    /// Applies new limits. Requests in progress continue and still count, even if they exceed the
    /// new limits.
    pub(crate) fn set_limits(&self, limits: &OverloadLimits) {
        let mut config = self.config.borrow_mut();
        let delay_settings = |overload: &OverloadLimits| {
            (overload.queue_delay_target, overload.queue_delay_interval)
        };
        if delay_settings(limits) != delay_settings(&config.limits) {
            config.queue_delay = new_queue_delay_monitor(limits);
            self.metrics.is_shedding.set(0);
        }
        config.limits = limits.clone();
        drop(config);
        self.apply_memory_max();
    }

    /// Sets the memory limit of the current thread, which is this worker's thread.
    fn apply_memory_max(&self) {
        let bytes_max = self.config.borrow().limits.memory_max.bytes();
        memory::set_limit(
            bytes_max.map(|bytes_max| usize::try_from(bytes_max).unwrap_or(usize::MAX)),
        );
        // The metric shows 0 if there is no limit.
        let gauge_value = bytes_max.unwrap_or(0);
        self.metrics.memory_bytes_max.set(i64::try_from(gauge_value).unwrap_or(i64::MAX));
    }

    /// Admits a request, or returns why it is rejected. `times` reads the clock: it returns when
    /// the worker last polled the kernel, and the current time.
    #[inline]
    pub(crate) fn admit(
        self: &Rc<Self>,
        request: &AdmissionRequest<'_>,
        times: impl FnOnce() -> (Duration, Duration),
    ) -> Result<AdmissionPermit, ShedReason> {
        let (options, config) = (request.target.options(), self.config.borrow());
        if !options.is_never_shed {
            self.check_worker_limits(request, &config.limits)?;
        }
        // Called even if the request is never rejected, because it also measures the delay.
        if self.exceeds_queue_delay(config.queue_delay.as_ref(), times) && !options.is_never_shed {
            return Err(self.record_shed(ShedReason::QueueDelay));
        }
        let route = request.head.route_id();
        let route_limits = (route, options.requests_max, options.is_never_shed);
        let result = self.acquire(route_limits, request.head, request.info, &config.limits, 0);
        result.map_err(|reason| self.record_shed(reason))
    }

    /// Counts one more request in progress. Fails if its route or client would then exceed its
    /// limit by more than `extra`.
    #[inline]
    fn acquire(
        self: &Rc<Self>,
        (route, requests_max, is_never_shed): (Option<u32>, Option<usize>, bool),
        head: &RequestHead,
        info: &ConnectionInfo,
        limits: &OverloadLimits,
        extra: usize,
    ) -> Result<AdmissionPermit, ShedReason> {
        let limited_route = requests_max.and_then(|max| Some((route?, max.saturating_add(extra))));
        if let Some((route, max)) = limited_route
            && !self.try_acquire_route(route, max)
        {
            return Err(ShedReason::Route);
        }
        let mut permit = AdmissionPermit {
            controller: Rc::clone(self),
            is_never_shed,
            route: limited_route.map(|(route, _)| route),
            client: None,
        };
        self.metrics.in_flight.add(1);
        if let Some(max) = limits.requests_per_client_max.filter(|_| !is_never_shed) {
            let address = match info.trusted_proxies {
                None => info.peer.socket_addr().map(|peer| peer.ip()),
                // The peer is a trusted proxy: count the request for the proxy's client.
                Some(_) => ClientInfo::new(head, info).ip(),
            };
            let client =
                address.map(|address| ClientKey::new(address, limits.client_ipv6_prefix_len));
            let max = max.saturating_add(extra);
            if client.is_some_and(|client| {
                !self.per_client.try_acquire(client, ClientResource::Request, max)
            }) {
                // Dropping `permit` releases what was counted above.
                return Err(ShedReason::Client);
            }
            permit.client = client;
        }
        Ok(permit)
    }

    /// Checks the limits that apply to the whole worker and need no clock: memory and the number of
    /// requests.
    #[inline]
    fn check_worker_limits(
        &self,
        request: &AdmissionRequest<'_>,
        limits: &OverloadLimits,
    ) -> Result<(), ShedReason> {
        // A connection in a reserved slot is new, so its buffers may still have to grow.
        let may_grow = request.has_content || request.uses_reserved_slot;
        self.shed_reason(may_grow, limits, 0).map_or(Ok(()), |reason| Err(self.record_shed(reason)))
    }

    /// Returns why a request must be rejected, if the worker's memory is short or its number of
    /// requests has reached the limit. `may_grow` is whether the request or its connection may need
    /// more memory. `extra` raises the limit of requests.
    #[inline]
    fn shed_reason(
        &self,
        may_grow: bool,
        limits: &OverloadLimits,
        extra: usize,
    ) -> Option<ShedReason> {
        let pressure = memory::pressure();
        if pressure >= MemoryPressure::Moderate && (may_grow || pressure >= MemoryPressure::High) {
            return Some(ShedReason::Memory);
        }
        let in_flight = usize::try_from(self.metrics.in_flight.get()).unwrap_or(0);
        let is_full = |max: usize| in_flight >= max.saturating_add(extra);
        limits.requests_max.is_some_and(is_full).then_some(ShedReason::Requests)
    }

    /// Returns whether to reject a request because requests wait too long. Calls `times` only if
    /// the limit is set, or if this request is one of those whose delay is measured.
    #[inline]
    fn exceeds_queue_delay(
        &self,
        monitor: Option<&QueueDelayMonitor>,
        times: impl FnOnce() -> (Duration, Duration),
    ) -> bool {
        let skips_left = self.until_sample.get();
        self.until_sample.set(skips_left.checked_sub(1).unwrap_or(DELAY_SAMPLE_INTERVAL - 1));
        let is_measured = skips_left == 0 && self.metrics.has_request_histograms();
        if monitor.is_none() && !is_measured {
            return false;
        }
        let (polled_at, now) = times();
        if is_measured {
            self.metrics.record_queue_delay(now.saturating_sub(polled_at));
        }
        monitor.is_some_and(|monitor| {
            !monitor.is_clearly_on_time(polled_at, now) && {
                let should_shed = monitor.should_shed(polled_at, now);
                self.metrics.is_shedding.set(i64::from(monitor.is_shedding()));
                should_shed
            }
        })
    }

    /// Returns true if the caller must start a task that calls [`Self::update_shedding_metric`].
    /// There is at most one such task at a time.
    #[inline]
    pub(crate) fn needs_watcher(&self) -> bool {
        self.metrics.is_shedding.get() != 0 && !self.is_watched.replace(true)
    }

    /// Resets the `is_shedding` metric if no request has arrived for an interval, which ends
    /// queue-delay rejections. Returns when to call this again; `None` if they have ended.
    pub(crate) fn update_shedding_metric(&self, now: Duration) -> Option<Duration> {
        let config = self.config.borrow();
        let idle_at = config.queue_delay.as_ref().map(QueueDelayMonitor::idle_at);
        let check_at =
            idle_at.filter(|check_at| self.metrics.is_shedding.get() != 0 && *check_at > now);
        if check_at.is_none() {
            self.metrics.is_shedding.set(0);
            self.is_watched.set(false);
        }
        check_at
    }

    /// Counts one more request of `route`. Returns false if the route already has `max`.
    fn try_acquire_route(&self, route: u32, max: usize) -> bool {
        let Some(RouteLoad { count, .. }) = self.routes.get(route as usize) else { return true };
        let has_room = count.get() < max;
        count.set(count.get() + usize::from(has_room));
        has_room
    }

    #[cold]
    fn record_shed(&self, reason: ShedReason) -> ShedReason {
        self.metrics.shed.increment(reason.label());
        self.metrics.limits_hit.increment(reason.limit_name());
        reason
    }

    /// The response to a rejected request.
    #[cold]
    pub(crate) fn shed_response(&self, reason: ShedReason, application: &BuiltApp) -> Response {
        let retry_after = self.config.borrow().limits.retry_after_seconds();
        self.responses.response(reason == ShedReason::Client, retry_after, application)
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
        let max = limits.connections_per_client_max;
        let (Some(max), Some(address)) = (max, address) else { return Ok(None) };
        let client = ClientKey::new(address, limits.client_ipv6_prefix_len);
        if !self.per_client.try_acquire(client, ClientResource::Connection, max) {
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
        ignores_limit: bool,
    ) -> Option<Box<dyn Any>> {
        let config = self.config.borrow();
        // Allow one more than the limit: the exchange that starts this work still counts, although
        // its own work is done.
        let extra = if ignores_limit { usize::MAX } else { 1 };
        let route_id = head.outer_route_id();
        let route = route_id.and_then(|route_id| self.routes.get(route_id as usize));
        let (requests_max, is_never_shed) =
            route.map_or((None, false), |route| (route.requests_max, route.is_never_shed));
        let is_allowed = ignores_limit
            || is_never_shed
            || self.shed_reason(true, &config.limits, extra).is_none();
        let route_limits = (route_id, requests_max, is_never_shed);
        let acquire = || self.acquire(route_limits, head, connection, &config.limits, extra).ok();
        Some(Box::new(is_allowed.then(acquire).flatten()?))
    }
}

fn new_queue_delay_monitor(limits: &OverloadLimits) -> Option<QueueDelayMonitor> {
    limits
        .queue_delay_target
        .map(|target| QueueDelayMonitor::new(target, limits.queue_delay_interval))
}

/// A client already has as many connections as its limit allows.
#[derive(Debug)]
pub(crate) struct TooManyConnections;

impl Drop for AdmissionPermit {
    #[inline]
    fn drop(&mut self) {
        self.controller.metrics.in_flight.add(-1);
        if let Some(route) = self.route.and_then(|index| self.controller.routes.get(index as usize))
        {
            route.count.set(route.count.get() - 1);
        }
        if let Some(client) = self.client {
            self.controller.per_client.release(client, ClientResource::Request);
        }
    }
}

impl fmt::Debug for AdmissionController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmissionController").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Drop for ClientConnectionPermit {
    fn drop(&mut self) {
        self.controller.per_client.release(self.client, ClientResource::Connection);
    }
}
