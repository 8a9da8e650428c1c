//! What a worker reports about itself: metrics, access log, traces, and handlers that block.
//!
//! [`Observed`] holds all of this for one worker and stays on its thread. Nothing here decides what
//! the worker accepts; `admission` does, and imports this module.

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

/// What a worker knows of its connections. It stays on the worker's thread; its counts may be read from
/// any.
#[derive(Default)]
pub struct Observed {
    connections: Cell<usize>,
    tasks_cut: Cell<usize>,
    handlers_cut: Cell<usize>,
    functions_left: Cell<usize>,
    pulse: Arc<Pulse>,
    counts: Arc<Counts>,
    waiting_for_empty: RefCell<Option<Waker>>,
    /// Handlers that run to their end without their connection, and listeners that still accept.
    pending: Cell<usize>,
    /// Refusals that no line of the log has summed up yet, by their reason.
    untold: RefCell<BTreeMap<&'static str, u64>>,
    /// Until the worker begins.
    log: Cell<Option<Log>>,
    traces: Option<Traces>,
    /// Is told how many connections are open, each time that it changes.
    told_open: OnceCell<Box<dyn Fn(usize)>>,
    reserve: Option<Box<dyn Reserve>>,
}

/// Descriptors that are kept for a worker that is to be heard when the process has no others.
///
/// Who comes while some are missing has one request answered, and the descriptor comes back.
pub trait Reserve {
    /// Gives one of them back to the process. False: there is none.
    fn spend(&self) -> bool;
    /// Takes those that are missing, as far as the process has some.
    fn refill(&self);
    /// Are some missing?
    fn is_short(&self) -> bool;
}

/// A worker's counts at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Connections open.
    pub connections: usize,
    /// Connections accepted so far.
    pub accepted: u64,
    /// Times that accepting failed because the process was out of descriptors or memory.
    pub refused: u64,
    /// Requests whose head was complete and valid.
    pub requests: u64,
    /// Times that something was given to the kernel to send.
    pub sends: u64,
    /// Times that a handler was found to keep its thread for longer than
    /// [`Limits::poll_budget`](crate::Limits::poll_budget).
    pub blocked: u64,
    /// Tasks of tokio's that were dropped at the end, because they did not end in time.
    pub tasks_cut: usize,
    /// Handlers that were promised to run to their end, had outlived their connection, and were cut at
    /// the end. The report names them beside the connections that were cut.
    pub handlers_cut: usize,
    /// Functions on tokio's blocking threads that were not waited for any longer at the end. Nothing
    /// can stop them but the end of the process.
    pub functions_left: usize,
    /// Requests that were refused because there was too much to do, by what there was too much of:
    /// `memory`, `requests`, `route`, `queue_delay` or `client`. See
    /// [`OverloadLimits`](crate::OverloadLimits).
    pub shed: BTreeMap<&'static str, u64>,
    /// Connections that are over, by how they ended ([`Ended::name`]).
    pub ended: BTreeMap<&'static str, u64>,
}

impl Observed {
    /// Counts of a worker that shows which handler has its thread in `pulse`.
    #[must_use]
    pub fn new(pulse: Arc<Pulse>) -> Self {
        Self { pulse, ..Self::default() }
    }

    /// The same with these counts, which others may read.
    #[must_use]
    pub fn counting(pulse: Arc<Pulse>, counts: Arc<Counts>) -> Self {
        Self { pulse, counts, ..Self::default() }
    }

    /// The same with an access log.
    #[must_use]
    pub fn logging(self, log: Option<Log>) -> Self {
        self.log.set(log);
        self
    }

    /// The same with traces of requests.
    #[must_use]
    pub fn tracing(mut self, traces: Option<Traces>) -> Self {
        self.traces = traces;
        self
    }

    /// The same with descriptors of its own.
    #[must_use]
    pub fn reserving(mut self, reserve: impl Reserve + 'static) -> Self {
        self.reserve = Some(Box::new(reserve));
        self
    }

    /// Gives a descriptor back to the process, if one is kept.
    pub(crate) fn spend_reserve(&self) -> bool {
        self.reserve.as_ref().is_some_and(|reserve| reserve.spend())
    }

    /// Something was closed, or may have been.
    pub(crate) fn refill_reserve(&self) {
        if let Some(reserve) = &self.reserve {
            reserve.refill();
        }
    }

    /// Are descriptors missing of those that are kept?
    pub(crate) fn is_reserve_short(&self) -> bool {
        self.reserve.as_ref().is_some_and(|reserve| reserve.is_short())
    }

    pub(crate) fn take_log(&self) -> Option<Log> {
        self.log.take()
    }

    pub(crate) fn traces(&self) -> Option<&Traces> {
        self.traces.as_ref()
    }

    /// What is counted.
    #[must_use]
    pub fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    pub(crate) fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    /// The counts now.
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

    /// Tells `told` from now on how many connections are open, once for a worker.
    pub(crate) fn tell_open(&self, told: impl Fn(usize) + 'static) {
        // A worker begins once.
        let _ = self.told_open.set(Box::new(told));
    }

    /// So many connections are open from now on.
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

    /// A TLS handshake is complete, so long after its connection was accepted.
    pub(crate) fn agreed(&self, tls: Option<&TlsInfo>, took: Duration) {
        let Some(tls) = tls else { return };
        let (version, cipher, resumed) = (tls.version, tls.cipher_suite, tls.resumed);
        self.counts.handshakes.note(Agreed { version, cipher, resumed });
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counts.handshake_times.note(took, &DURATION_BOUNDS);
    }

    /// A limit was reached, by its name in [`Limits`](crate::Limits).
    pub(crate) fn limit(&self, name: &'static str) {
        self.counts.limits.note(name);
    }

    pub(crate) fn tasks_cut(&self, count: usize) {
        self.tasks_cut.set(count);
    }

    pub(crate) fn functions_left(&self, count: usize) {
        self.functions_left.set(count);
    }

    /// Requests and handshakes that were refused since the last call, by their reason.
    pub(crate) fn take_refusals(&self) -> BTreeMap<&'static str, u64> {
        self.untold.take()
    }

    /// A request or a handshake is refused.
    pub(crate) fn refusal(&self, ended: &Ended) {
        *self.untold.borrow_mut().entry(ended.name()).or_default() += 1;
    }

    /// Something beside the connections is not over until the result is dropped: a handler that runs
    /// to its end without its connection, or a listener that accepts.
    pub(crate) fn pending(self: &Rc<Self>) -> Pending {
        self.pending.set(self.pending.get() + 1);
        Pending(Rc::clone(self))
    }

    /// A handler that had outlived its connection is cut before its end.
    pub(crate) fn handler_cut(&self) {
        self.handlers_cut.set(self.handlers_cut.get() + 1);
    }

    /// Wakes whoever waits for [`Observed::empty`], if nothing is left.
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

    /// Is no connection open?
    pub(crate) fn has_no_connection(&self) -> bool {
        self.connections.get() == 0
    }

    fn is_empty(&self) -> bool {
        self.has_no_connection() && self.pending.get() == 0
    }

    /// Ends when no connection is open and nothing else is pending.
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

/// Something that is not over until this is dropped.
pub(crate) struct Pending(Rc<Observed>);

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.set(self.0.pending.get() - 1);
        self.0.wake_if_empty();
    }
}
