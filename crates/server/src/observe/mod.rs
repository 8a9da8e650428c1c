//! Metrics, access log, traces, and the detection of handlers that block.
//!
//! [`Instrumentation`] contains all of this for one worker and stays on the worker's thread. This
//! module only records. `admission`, which builds on it, decides what the worker accepts.

pub(crate) mod access_log;
pub(crate) mod close_reason;
pub(crate) mod metrics;
pub(crate) mod prometheus;
pub(crate) mod request_metrics;
pub(crate) mod span;
pub(crate) mod trace;
pub(crate) mod watchdog;

use self::access_log::WorkerAccessLog;
use self::close_reason::CloseReason;
use self::metrics::{DURATION_BOUNDS, HandshakeParams, WorkerMetrics};
use self::trace::TraceConfig;
use self::watchdog::Heartbeat;
use peregrine_web::connection::TlsInfo;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// A worker's counters, log and traces. This value stays on the worker's thread, but any thread can
/// read its [`WorkerMetrics`].
#[derive(Default)]
pub struct Instrumentation {
    open_connections: Cell<usize>,
    aborted_tasks: Cell<usize>,
    aborted_handlers: Cell<usize>,
    abandoned_blocking_tasks: Cell<usize>,
    heartbeat: Arc<Heartbeat>,
    metrics: Arc<WorkerMetrics>,
    work_done_waker: RefCell<Option<Waker>>,
    /// How many listeners still accept connections, plus how many other tasks the worker must wait
    /// for: handlers that continue without their connection, and hand-offs that may fail.
    pending_count: Cell<usize>,
    /// How many rejected requests and handshakes have not been logged yet, by reason.
    unlogged_rejections: RefCell<BTreeMap<&'static str, u64>>,
    /// The access log, until the worker takes it when it starts.
    log: Cell<Option<WorkerAccessLog>>,
    traces: Option<TraceConfig>,
    /// Called with the number of open connections whenever it changes.
    on_open_connections: OnceCell<Box<dyn Fn(usize)>>,
    fd_reserve: Option<Box<dyn FdReserve>>,
}

/// File descriptors that are reserved for a worker that must stay reachable even if the process has
/// no other descriptors left.
///
/// While some reserved descriptors are in use, a new connection is closed after its first request.
/// When a connection closes, the missing descriptors are reserved again.
pub trait FdReserve {
    /// Closes one reserved descriptor, so that the process can open another one. Returns false if
    /// none is left.
    fn release_one(&self) -> bool;
    /// Reserves the missing descriptors again, as far as the process has free ones.
    fn refill(&self);
    /// Returns whether any reserved descriptors are missing.
    fn is_incomplete(&self) -> bool;
}

/// A worker's counters at one moment.
#[doc(alias = "RuntimeMetrics")]
#[doc(alias = "metrics")]
#[doc(alias = "stats")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerStats {
    /// Open connections.
    pub connections: usize,
    /// Connections accepted so far.
    pub accepted: u64,
    /// How often accepting failed, usually because the process was out of descriptors or memory.
    pub accept_errors: u64,
    /// Requests whose head was complete and valid.
    pub requests: u64,
    /// How often data was passed to the kernel to be sent.
    pub sends: u64,
    /// How often a handler blocked its thread for longer than
    /// [`Limits::blocking_poll_threshold`](crate::Limits::blocking_poll_threshold).
    pub blocking_polls: u64,
    /// Tokio tasks that were dropped at the end of the worker because they had not ended in time.
    pub aborted_tasks: usize,
    /// Handlers with `run_to_completion` that continued after their connection had ended and were
    /// aborted at the end of the worker.
    /// [`WorkerReport::force_closed`](crate::WorkerReport::force_closed) includes them.
    pub aborted_handlers: usize,
    /// Functions on Tokio's blocking threads that were still running when the worker stopped
    /// waiting for them. They stop only when the process ends.
    pub abandoned_blocking_tasks: usize,
    /// Requests rejected because of overload, by the limit that they exceeded: `memory`,
    /// `requests`, `route`, `queue_delay` or `client`. See
    /// [`OverloadLimits`](crate::OverloadLimits).
    pub shed: BTreeMap<&'static str, u64>,
    /// Connections that have ended, by reason ([`CloseReason::label`]).
    pub closed: BTreeMap<&'static str, u64>,
}

impl Instrumentation {
    /// Creates the instrumentation of a worker that records in `heartbeat` which handler it polls.
    #[must_use]
    pub fn new(heartbeat: Arc<Heartbeat>) -> Self {
        Self { heartbeat, ..Self::default() }
    }

    /// Like [`Instrumentation::new`], but with counters that the caller provides, so that other
    /// threads can read them.
    #[must_use]
    pub fn with_metrics(heartbeat: Arc<Heartbeat>, metrics: Arc<WorkerMetrics>) -> Self {
        Self { heartbeat, metrics, ..Self::default() }
    }

    /// Adds an access log.
    #[must_use]
    pub fn with_access_log(self, log: Option<WorkerAccessLog>) -> Self {
        self.log.set(log);
        self
    }

    /// Adds traces of requests.
    #[must_use]
    pub fn with_tracing(mut self, traces: Option<TraceConfig>) -> Self {
        self.traces = traces;
        self
    }

    /// Adds reserved descriptors.
    #[must_use]
    pub fn with_fd_reserve(mut self, reserve: impl FdReserve + 'static) -> Self {
        self.fd_reserve = Some(Box::new(reserve));
        self
    }

    /// Closes a reserved descriptor, so that the process can open another one. Returns false if
    /// none is left.
    pub(crate) fn release_reserved_fd(&self) -> bool {
        self.fd_reserve.as_ref().is_some_and(|reserve| reserve.release_one())
    }

    /// Reserves missing descriptors again. Called when a descriptor may have been closed.
    pub(crate) fn refill_reserved_fds(&self) {
        if let Some(reserve) = &self.fd_reserve {
            reserve.refill();
        }
    }

    /// Returns whether reserved descriptors are missing.
    pub(crate) fn is_fd_reserve_short(&self) -> bool {
        self.fd_reserve.as_ref().is_some_and(|reserve| reserve.is_incomplete())
    }

    pub(crate) fn take_log(&self) -> Option<WorkerAccessLog> {
        self.log.take()
    }

    pub(crate) fn traces(&self) -> Option<&TraceConfig> {
        self.traces.as_ref()
    }

    /// The counters.
    #[must_use]
    pub fn metrics(&self) -> &Arc<WorkerMetrics> {
        &self.metrics
    }

    pub(crate) fn heartbeat(&self) -> &Arc<Heartbeat> {
        &self.heartbeat
    }

    /// The current values of the counters.
    #[must_use]
    pub fn stats(&self) -> WorkerStats {
        WorkerStats {
            connections: self.open_connections.get(),
            accepted: self.metrics.accepted.get(),
            accept_errors: self.metrics.accept_errors.get(),
            requests: self.metrics.requests.get(),
            sends: self.metrics.sends.get(),
            blocking_polls: self.heartbeat.blocking_polls(),
            aborted_tasks: self.aborted_tasks.get(),
            aborted_handlers: self.aborted_handlers.get(),
            abandoned_blocking_tasks: self.abandoned_blocking_tasks.get(),
            shed: self.metrics.shed.iter().map(|(name, count)| (*name, count)).collect(),
            closed: self.metrics.closed.iter().map(|(name, count)| (*name, count)).collect(),
        }
    }

    /// Sets the function that is called with the number of open connections whenever it changes.
    pub(crate) fn set_on_open_connections(&self, callback: impl Fn(usize) + 'static) {
        // A worker starts only once, so the function is not set yet.
        let _ = self.on_open_connections.set(Box::new(callback));
    }

    /// Sets the number of open connections.
    pub(crate) fn set_open_connections(&self, connections: usize) {
        self.open_connections.set(connections);
        if let Some(callback) = self.on_open_connections.get() {
            callback(connections);
        }
    }

    pub(crate) fn record_accept_error(&self) {
        self.metrics.accept_errors.add(1);
    }

    pub(crate) fn record_request(&self) {
        self.metrics.requests.add(1);
    }

    pub(crate) fn record_send(&self, bytes: usize) {
        self.metrics.sends.add(1);
        self.metrics.sent_bytes.add(bytes as u64);
    }

    pub(crate) fn record_receive(&self, bytes: usize) {
        self.metrics.received_bytes.add(bytes as u64);
    }

    /// Counts a completed TLS handshake, unless `tls` is `None`. `elapsed` is the time from
    /// accepting the connection to the end of the handshake.
    pub(crate) fn record_handshake(&self, tls: Option<&TlsInfo>, elapsed: Duration) {
        let Some(tls) = tls else { return };
        let (version, cipher, resumed) = (tls.version, tls.cipher_suite, tls.resumed);
        self.metrics.handshakes.increment(HandshakeParams { version, cipher, resumed });
        let elapsed = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.metrics.handshake_durations.observe(elapsed, &DURATION_BOUNDS);
    }

    /// Counts that a limit had an effect. `name` is the limit's name in [`Limits`](crate::Limits),
    /// or `route_timeout`.
    pub(crate) fn record_limit(&self, name: &'static str) {
        self.metrics.limits_hit.increment(name);
    }

    pub(crate) fn set_aborted_tasks(&self, count: usize) {
        self.aborted_tasks.set(count);
    }

    pub(crate) fn set_abandoned_blocking_tasks(&self, count: usize) {
        self.abandoned_blocking_tasks.set(count);
    }

    /// Takes the counts of requests and handshakes that were rejected since the last call, by
    /// reason.
    pub(crate) fn take_rejections(&self) -> BTreeMap<&'static str, u64> {
        self.unlogged_rejections.take()
    }

    /// Counts a rejected request or handshake for the next log line.
    pub(crate) fn record_rejection(&self, reason: &CloseReason) {
        *self.unlogged_rejections.borrow_mut().entry(reason.label()).or_default() += 1;
    }

    /// Keeps the worker running until the returned guard is dropped: see `pending_count`.
    pub(crate) fn track_pending_work(self: &Rc<Self>) -> PendingWork {
        self.pending_count.set(self.pending_count.get() + 1);
        PendingWork(Rc::clone(self))
    }

    /// Counts a handler that continued after its connection had ended and was aborted.
    pub(crate) fn record_aborted_handler(&self) {
        self.aborted_handlers.set(self.aborted_handlers.get() + 1);
    }

    /// If no connection is open and `pending_count` is 0, wakes the task that waits in
    /// [`Instrumentation::wait_work_done`].
    pub(crate) fn wake_if_work_done(&self) {
        if self.is_work_done()
            && let Some(waker) = self.work_done_waker.take()
        {
            waker.wake();
        }
    }

    /// The number of open connections.
    pub(crate) fn connections(&self) -> usize {
        self.open_connections.get()
    }

    /// Returns whether no connection is open.
    pub(crate) fn has_no_connections(&self) -> bool {
        self.open_connections.get() == 0
    }

    fn is_work_done(&self) -> bool {
        self.has_no_connections() && self.pending_count.get() == 0
    }

    /// Completes when no connection is open and `pending_count` is 0.
    pub(crate) async fn wait_work_done(&self) {
        poll_fn(|cx| {
            if self.is_work_done() {
                return Poll::Ready(());
            }
            *self.work_done_waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl fmt::Debug for Instrumentation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

/// Keeps the worker running until this is dropped.
pub(crate) struct PendingWork(Rc<Instrumentation>);

impl Drop for PendingWork {
    fn drop(&mut self) {
        self.0.pending_count.set(self.0.pending_count.get() - 1);
        self.0.wake_if_work_done();
    }
}
