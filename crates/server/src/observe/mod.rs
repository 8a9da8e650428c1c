//! Metrics, access log, traces, and the detection of handlers that block.
//!
//! [`Observed`] contains all of this for one worker and stays on the worker's thread. This module
//! decides nothing. In particular, `admission` decides what the worker accepts, and imports this
//! module.

pub(crate) mod access_log;
pub(crate) mod close_reason;
pub(crate) mod metrics;
pub(crate) mod prometheus;
pub(crate) mod request_metrics;
pub(crate) mod span;
pub(crate) mod trace;
pub(crate) mod watchdog;

use self::access_log::Log;
use self::close_reason::Ended;
use self::metrics::{Agreed, Counts, DURATION_BOUNDS};
use self::trace::Traces;
use self::watchdog::Pulse;
use peregrine_web::connection::TlsInfo;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// A worker's counters, log and traces. This value stays on the worker's thread, but any thread may
/// read its [`Counts`].
#[derive(Default)]
pub struct Observed {
    connections: Cell<usize>,
    tasks_cut: Cell<usize>,
    handlers_cut: Cell<usize>,
    functions_left: Cell<usize>,
    pulse: Arc<Pulse>,
    counts: Arc<Counts>,
    waiting_for_empty: RefCell<Option<Waker>>,
    /// How many handlers continue without their connection, plus how many listeners still accept.
    pending: Cell<usize>,
    /// How many rejections have not been logged yet, by reason.
    untold: RefCell<BTreeMap<&'static str, u64>>,
    /// The access log, until the worker takes it when it starts.
    log: Cell<Option<Log>>,
    traces: Option<Traces>,
    /// Called with the number of open connections whenever it changes.
    told_open: OnceCell<Box<dyn Fn(usize)>>,
    reserve: Option<Box<dyn Reserve>>,
}

/// File descriptors that are reserved for a worker that must stay reachable when the process has no
/// other descriptors left.
///
/// While some reserved descriptors are in use, a new connection may send only one request. When the
/// connection closes, its descriptor is reserved again.
pub trait Reserve {
    /// Frees one reserved descriptor for the process. Returns false if none is left.
    fn spend(&self) -> bool;
    /// Reserves missing descriptors again, as far as the process has free descriptors.
    fn refill(&self);
    /// Returns whether any reserved descriptors are missing.
    fn is_short(&self) -> bool;
}

/// A worker's counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Open connections.
    pub connections: usize,
    /// Connections accepted so far.
    pub accepted: u64,
    /// How often accepting failed because the process was out of descriptors or memory.
    pub refused: u64,
    /// Requests whose head was complete and valid.
    pub requests: u64,
    /// How often data was passed to the kernel to be sent.
    pub sends: u64,
    /// How often a handler blocked its thread for longer than
    /// [`Limits::poll_budget`](crate::Limits::poll_budget).
    pub blocked: u64,
    /// Tokio tasks that were dropped at the end of the worker because they had not ended in time.
    pub tasks_cut: usize,
    /// Handlers with `run_to_end` that continued after their connection had ended and were cut at
    /// the end of the worker. The report lists them together with the connections that were cut.
    pub handlers_cut: usize,
    /// Functions on Tokio's blocking threads that were still running when the worker stopped
    /// waiting for them. They stop only when the process ends.
    pub functions_left: usize,
    /// Requests rejected because of overload, by the limit: `memory`, `requests`, `route`,
    /// `queue_delay` or `client`. See [`OverloadLimits`](crate::OverloadLimits).
    pub shed: BTreeMap<&'static str, u64>,
    /// Connections that have ended, by reason ([`Ended::name`]).
    pub ended: BTreeMap<&'static str, u64>,
}

impl Observed {
    /// Makes the state of a worker that records in `pulse` which handler it polls.
    #[must_use]
    pub fn new(pulse: Arc<Pulse>) -> Self {
        Self { pulse, ..Self::default() }
    }

    /// As [`Observed::new`], but with these counters, which other threads may read.
    #[must_use]
    pub fn counting(pulse: Arc<Pulse>, counts: Arc<Counts>) -> Self {
        Self { pulse, counts, ..Self::default() }
    }

    /// Adds an access log.
    #[must_use]
    pub fn logging(self, log: Option<Log>) -> Self {
        self.log.set(log);
        self
    }

    /// Adds traces of requests.
    #[must_use]
    pub fn tracing(mut self, traces: Option<Traces>) -> Self {
        self.traces = traces;
        self
    }

    /// Adds reserved descriptors.
    #[must_use]
    pub fn reserving(mut self, reserve: impl Reserve + 'static) -> Self {
        self.reserve = Some(Box::new(reserve));
        self
    }

    /// Frees a reserved descriptor for the process, if there is one.
    pub(crate) fn spend_reserve(&self) -> bool {
        self.reserve.as_ref().is_some_and(|reserve| reserve.spend())
    }

    /// Reserves missing descriptors again, because one may have been closed.
    pub(crate) fn refill_reserve(&self) {
        if let Some(reserve) = &self.reserve {
            reserve.refill();
        }
    }

    /// Returns whether reserved descriptors are missing.
    pub(crate) fn is_reserve_short(&self) -> bool {
        self.reserve.as_ref().is_some_and(|reserve| reserve.is_short())
    }

    pub(crate) fn take_log(&self) -> Option<Log> {
        self.log.take()
    }

    pub(crate) fn traces(&self) -> Option<&Traces> {
        self.traces.as_ref()
    }

    /// The counters.
    #[must_use]
    pub fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    pub(crate) fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    /// The current counters.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            connections: self.connections.get(),
            accepted: self.counts.accepted.get(),
            refused: self.counts.refused.get(),
            requests: self.counts.requests.get(),
            sends: self.counts.sends.get(),
            blocked: self.pulse.blocked(),
            tasks_cut: self.tasks_cut.get(),
            handlers_cut: self.handlers_cut.get(),
            functions_left: self.functions_left.get(),
            shed: self.counts.shed.counts().map(|(name, count)| (*name, count)).collect(),
            ended: self.counts.ended.counts().map(|(name, count)| (*name, count)).collect(),
        }
    }

    /// Sets the function that is called with the number of open connections. Must be called once
    /// per worker.
    pub(crate) fn tell_open(&self, told: impl Fn(usize) + 'static) {
        // A worker starts only once, so the function is not set yet.
        let _ = self.told_open.set(Box::new(told));
    }

    /// Sets the number of open connections.
    pub(crate) fn has_open(&self, connections: usize) {
        self.connections.set(connections);
        if let Some(told) = self.told_open.get() {
            told(connections);
        }
    }

    pub(crate) fn refused(&self) {
        self.counts.refused.add(1);
    }

    pub(crate) fn request(&self) {
        self.counts.requests.add(1);
    }

    pub(crate) fn send(&self, bytes: usize) {
        self.counts.sends.add(1);
        self.counts.sent_bytes.add(bytes as u64);
    }

    pub(crate) fn receive(&self, bytes: usize) {
        self.counts.received_bytes.add(bytes as u64);
    }

    /// Counts a completed TLS handshake. `took` is the time from accepting the connection to the
    /// end of the handshake.
    pub(crate) fn agreed(&self, tls: Option<&TlsInfo>, took: Duration) {
        let Some(tls) = tls else { return };
        let (version, cipher, resumed) = (tls.version, tls.cipher_suite, tls.resumed);
        self.counts.handshakes.note(Agreed { version, cipher, resumed });
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counts.handshake_times.note(took, &DURATION_BOUNDS);
    }

    /// Counts that a limit had an effect. `name` is the limit's name in [`Limits`](crate::Limits).
    pub(crate) fn limit(&self, name: &'static str) {
        self.counts.limits.note(name);
    }

    pub(crate) fn tasks_cut(&self, count: usize) {
        self.tasks_cut.set(count);
    }

    pub(crate) fn functions_left(&self, count: usize) {
        self.functions_left.set(count);
    }

    /// Takes the requests and handshakes that were rejected since the last call, by reason.
    pub(crate) fn take_refusals(&self) -> BTreeMap<&'static str, u64> {
        self.untold.take()
    }

    /// Counts a rejected request or handshake.
    pub(crate) fn refusal(&self, ended: &Ended) {
        *self.untold.borrow_mut().entry(ended.name()).or_default() += 1;
    }

    /// Keeps the worker alive until the result is dropped. Used for a handler that continues
    /// without its connection, and for a listener that still accepts.
    pub(crate) fn pending(self: &Rc<Self>) -> Pending {
        self.pending.set(self.pending.get() + 1);
        Pending(Rc::clone(self))
    }

    /// Counts a handler that continued after its connection had ended and was cut.
    pub(crate) fn handler_cut(&self) {
        self.handlers_cut.set(self.handlers_cut.get() + 1);
    }

    /// Wakes the task that waits for [`Observed::empty`], if no connection is open and nothing is
    /// pending.
    pub(crate) fn wake_if_empty(&self) {
        if self.is_empty()
            && let Some(waker) = self.waiting_for_empty.take()
        {
            waker.wake();
        }
    }

    /// The number of open connections.
    pub(crate) fn connections(&self) -> usize {
        self.connections.get()
    }

    /// Returns whether no connection is open.
    pub(crate) fn has_no_connection(&self) -> bool {
        self.connections.get() == 0
    }

    fn is_empty(&self) -> bool {
        self.has_no_connection() && self.pending.get() == 0
    }

    /// Completes when no connection is open and nothing else is pending.
    pub(crate) async fn empty(&self) {
        poll_fn(|context| {
            if self.is_empty() {
                return Poll::Ready(());
            }
            *self.waiting_for_empty.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

/// Keeps the worker alive until this is dropped.
pub(crate) struct Pending(Rc<Observed>);

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.set(self.0.pending.get() - 1);
        self.0.wake_if_empty();
    }
}
