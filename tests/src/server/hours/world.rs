//! State shared by all peers of a life: the network, the timeouts, the time of the shutdown order,
//! the faults.

use super::app::Ledger;
use crate::server::promises::Promises;
use peregrine::Limits;
use peregrine_driver_sim::{Client, Faults, Network, SocketBuffers};
use peregrine_server::ForceClosed;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// The world of one life.
pub(super) struct World {
    pub(super) network: Network,
    pub(super) promises: Promises,
    pub(super) ledger: Ledger,
    place: u64,
    /// When the shutdown was ordered, and when remaining connections are cut.
    ordered: Cell<Option<(Duration, Duration)>>,
    /// Until when the worker was last blocked.
    stalled_until: Cell<Duration>,
    faults: RefCell<Vec<String>>,
    /// By address.
    met: RefCell<BTreeMap<String, Met>>,
    last_id: Cell<u64>,
}

/// A peer as it may appear in the shutdown report.
pub(super) struct Met {
    kind: &'static str,
    /// Since when it waits for a response that has not arrived.
    pub(super) waits_since: Option<Duration>,
    /// When it disconnected, or saw the end.
    pub(super) over: Option<Duration>,
    /// From when its connection may end for another reason: it disconnects, or its end is due.
    pub(super) may_end: Option<Duration>,
}

impl Met {
    pub(super) fn may_end_from(&mut self, at: Duration) {
        self.may_end = Some(self.may_end.map_or(at, |other| other.min(at)));
    }

    /// Whether the server has work to do for this peer for as long as it waits.
    fn is_certain(&self) -> bool {
        ["patient", "half head", "uploader", "unwanted", "listener", "upgraded"]
            .contains(&self.kind)
    }
}

impl World {
    /// How late a timer may be: the server's resolution, late driver timers, and the round trip.
    pub(super) const TICK: Duration = Duration::from_millis(150);
    /// How much earlier than the peer a server may start a timeout: the network delay.
    pub(super) const EARLY: Duration = Duration::from_millis(45);

    pub(super) fn new(network: &Network, place: u64) -> Self {
        Self {
            promises: promises(network),
            network: network.clone(),
            ledger: Ledger::default(),
            place,
            ordered: Cell::default(),
            stalled_until: Cell::default(),
            faults: RefCell::default(),
            met: RefCell::default(),
            last_id: Cell::default(),
        }
    }

    /// A connection with these buffers, or a plain pipe.
    pub(super) fn connect(&self, sockets: Option<SocketBuffers>) -> Client {
        self.network.set_faults(Faults { socket_buffers: sockets, ..faults() });
        self.network.connect_to(self.place)
    }

    /// An ID that no other handler has.
    pub(super) fn next_id(&self) -> u64 {
        self.last_id.set(self.last_id.get() + 1);
        self.last_id.get()
    }

    /// The latest time for an event that is due `time` after `due`. A worker that was blocked may
    /// have noticed the start only then.
    pub(super) fn on_time(&self, due: Duration, time: Duration) -> Duration {
        let stalled_until = self.stalled_until.get();
        let began = due.saturating_sub(time);
        let late = if stalled_until > began { stalled_until.saturating_add(time) } else { due };
        due.max(late).saturating_add(Self::TICK)
    }

    /// Asserts that no waiting connection holds a receive buffer.
    pub(super) fn check_loans(&self) {
        let chunks = self.network.outstanding_chunks();
        if chunks > 0 {
            self.fault(format!("{chunks} receive buffers are held across a wait"));
        }
    }

    /// Records that a handler will block the worker for `time`.
    pub(super) fn stalls(&self, time: Duration) {
        let from = self.network.now().max(self.stalled_until.get());
        self.stalled_until.set(from + time + Self::TICK);
    }

    /// Whether a handler blocks the worker now, or did so just before.
    pub(super) fn may_be_stalled(&self) -> bool {
        self.network.now() < self.stalled_until.get() + Self::TICK
    }

    /// Waits until the worker has seen everything sent so far. Returns when it had.
    ///
    /// Time advances only once every ready task has run; it jumps while a handler blocks the
    /// worker.
    pub(super) async fn heard(&self) -> Duration {
        const MOMENT: Duration = Duration::from_millis(1);
        loop {
            let now = self.network.now();
            self.network.sleep(MOMENT).await;
            if self.network.now() == now + MOMENT {
                return now;
            }
        }
    }

    /// Records that the shutdown was ordered, with a cut at `cuts_at`.
    pub(super) fn order(&self, cuts_at: Duration) {
        let ordered = self.ordered.get().map_or(self.network.now(), |(ordered, _)| ordered);
        self.ordered.set(Some((ordered, cuts_at)));
    }

    /// Whether the shutdown was ordered.
    pub(super) fn is_ordered(&self) -> bool {
        self.ordered.get().is_some()
    }

    /// Whether a request made at this time must be answered in spite of a shutdown.
    pub(super) fn must_answer(&self, asked: Duration) -> bool {
        let now = self.network.now();
        self.ordered.get().is_none_or(|(at, cuts_at)| asked < at && now + Self::TICK < cuts_at)
    }

    pub(super) fn fault(&self, text: String) {
        self.faults.borrow_mut().push(text);
    }

    pub(super) fn faults(&self) -> Vec<String> {
        self.faults.take()
    }

    /// Records a peer of this kind.
    pub(super) fn meet(&self, kind: &'static str, address: SocketAddr) {
        let met = Met { kind, waits_since: None, over: None, may_end: None };
        self.met.borrow_mut().insert(address.to_string(), met);
    }

    /// Changes a peer's record, with the current time.
    pub(super) fn note(&self, client: &Client, change: impl FnOnce(&mut Met, Duration)) {
        if let Some(met) = self.met.borrow_mut().get_mut(&client.address().to_string()) {
            change(met, self.network.now());
        }
    }

    /// Whether a peer may have several exchanges at a time.
    pub(super) fn has_many(&self, address: &str) -> bool {
        let of_many = ["multiplexer", "half frame", "resetter", "shut", "websocket of HTTP/2"];
        self.met.borrow().get(address).is_some_and(|met| of_many.contains(&met.kind))
    }

    /// How many peers of each kind there were.
    pub(super) fn kinds(&self) -> BTreeMap<&'static str, u64> {
        let mut kinds = BTreeMap::new();
        for met in self.met.borrow().values() {
            *kinds.entry(met.kind).or_default() += 1;
        }
        kinds
    }

    /// Checks the connections reported as cut, after all peers are gone: each peer that waited for
    /// a response at that time and never got it must be reported, and no peer that had ended
    /// before. Every cut happened before `cuts_by`.
    pub(super) fn judge_cuts(&self, cut: &[ForceClosed], cuts_by: Duration) {
        let Some((ordered, cuts_at)) = self.ordered.get() else { return };
        let is_named = |address: &str| cut.iter().any(|cut| cut.peer == address);
        for (address, met) in self.met.borrow().iter() {
            let was_over = met.over.is_some_and(|over| over + Self::TICK < cuts_at);
            let was_there = met.over.is_none_or(|over| over >= cuts_at)
                && met.may_end.is_none_or(|may_end| may_end > cuts_by);
            let waited = met.waits_since.is_some_and(|since| since + Self::TICK < ordered);
            let kind = met.kind;
            if met.is_certain() && waited && was_there && !is_named(address) {
                self.fault(format!("{kind}, {address}, waits for ever and is not reported as cut"));
            }
            // If a stream has nothing to send, or a handler does not read the body, the server
            // cannot detect that the peer closed.
            let may_be_unknown = ["employer", "listener", "unwanted"].contains(&kind);
            // Work marked to run to completion continues without its stream.
            let of_work = |cut: &&ForceClosed| {
                cut.request.as_deref().is_some_and(|request| request.contains("/work/"))
            };
            let is_named = cut.iter().filter(|cut| !of_work(cut)).any(|cut| cut.peer == *address);
            if was_over && !may_be_unknown && is_named {
                self.fault(format!("{kind}, {address}, is reported as cut but had ended before"));
            }
        }
    }

    pub(super) fn choose<T: Clone>(&self, items: &[T]) -> T {
        choose(&self.network, items)
    }

    /// A random duration below `most`.
    pub(super) fn time(&self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_millis()).expect("lives are short");
        Duration::from_millis(self.network.random_below(most + 1))
    }
}

fn choose<T: Clone>(network: &Network, items: &[T]) -> T {
    let count = u64::try_from(items.len()).expect("the value is small");
    items[usize::try_from(network.random_below(count)).expect("the value is small")].clone()
}

/// The network delays and splits data, timers are late, wake-ups are spurious; nothing is lost.
pub(super) fn faults() -> Faults {
    Faults {
        split_per_mille: 100,
        delay_per_mille: 200,
        delay_ms_max: 15,
        spurious_wake_per_mille: 50,
        timer_late_ms_max: 3,
        ..Faults::none()
    }
}

fn promises(network: &Network) -> Promises {
    let seconds = |items: &[u64]| Duration::from_secs(choose(network, items));
    let limits = Limits {
        first_byte_timeout: seconds(&[5, 30, 400]),
        head_timeout: seconds(&[2, 10, 250]),
        idle_timeout: seconds(&[6, 75, 7_200]),
        shutdown_timeout: seconds(&[4, 30, 1_800]),
        background_task_timeout: 3_600 * SECOND,
        drain_bytes_max: choose(network, &[500, 256 * 1024]),
        write_buffer_bytes_max: choose(network, &[1_000, 64 * 1024]),
        ..Limits::default()
    };
    Promises {
        limits,
        transfer_rate_min: choose(network, &[1, 240, 2_000]),
        rate_window: seconds(&[5, 30]),
        upgrade_idle: choose(network, &[None, Some(600 * SECOND), Some(3 * 3_600 * SECOND)]),
        lame_duck_period: seconds(&[0, 0, 2]),
        ..Promises::default()
    }
}
