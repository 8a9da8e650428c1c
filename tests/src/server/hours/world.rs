//! What all peers of a life share: the network, the promises, the clock of the order, the faults.

use super::app::Ledger;
use crate::server::promises::Promises;
use peregrine::Limits;
use peregrine_driver_sim::{Client, Faults, Network, Sockets};
use peregrine_server::Cut;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// One life's world.
pub(super) struct World {
    pub(super) network: Network,
    pub(super) promises: Promises,
    pub(super) ledger: Ledger,
    place: u64,
    /// When the order to end was given, and when what is left then is cut.
    ordered: Cell<Option<(Duration, Duration)>>,
    /// Until when the worker stood still last.
    stalled_until: Cell<Duration>,
    faults: RefCell<Vec<String>>,
    /// By address.
    met: RefCell<BTreeMap<String, Met>>,
    last_id: Cell<u64>,
}

/// A peer as the report of a shutdown may know it.
pub(super) struct Met {
    kind: &'static str,
    /// From when it waits for an answer that has not come.
    pub(super) waits_since: Option<Duration>,
    /// When it left, or heard the end.
    pub(super) over: Option<Duration>,
    /// From when on its connection may be over for a reason of its own: it leaves, or its end is due.
    pub(super) may_end: Option<Duration>,
}

impl Met {
    pub(super) fn may_end_from(&mut self, at: Duration) {
        self.may_end = Some(self.may_end.map_or(at, |other| other.min(at)));
    }

    /// Does the server have something to do for it for as long as it waits?
    fn is_certain(&self) -> bool {
        ["patient", "half head", "uploader", "unwanted", "listener", "upgraded"]
            .contains(&self.kind)
    }
}

impl World {
    /// How late an alarm may be: the server's resolution, late timers, and the way there and back.
    pub(super) const TICK: Duration = Duration::from_millis(150);
    /// How much earlier than the peer a server may begin to count: what the way takes.
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

    /// A connection with such buffers, or a pipe.
    pub(super) fn connect(&self, sockets: Option<Sockets>) -> Client {
        self.network.set_faults(Faults { sockets, ..faults() });
        self.network.connect_to(self.place)
    }

    /// A number that no other handler has.
    pub(super) fn next_id(&self) -> u64 {
        self.last_id.set(self.last_id.get() + 1);
        self.last_id.get()
    }

    /// Until when something must have happened that is due at `due`, `time` after what began it. A
    /// worker that stood still may have heard of the beginning only then.
    pub(super) fn on_time(&self, due: Duration, time: Duration) -> Duration {
        let stalled_until = self.stalled_until.get();
        let began = due.saturating_sub(time);
        let late = if stalled_until > began { stalled_until.saturating_add(time) } else { due };
        due.max(late).saturating_add(Self::TICK)
    }

    /// Asserts that nobody keeps a receive buffer while it waits.
    pub(super) fn check_loans(&self) {
        let chunks = self.network.chunks_on_loan();
        if chunks > 0 {
            self.fault(format!("{chunks} receive buffers are kept across a wait"));
        }
    }

    /// A handler will block the worker for so long.
    pub(super) fn stalls(&self, time: Duration) {
        let from = self.network.now().max(self.stalled_until.get());
        self.stalled_until.set(from + time + Self::TICK);
    }

    /// Does a handler block the worker now, or did so just before?
    pub(super) fn may_be_stalled(&self) -> bool {
        self.network.now() < self.stalled_until.get() + Self::TICK
    }

    /// Waits until the worker has heard of what is told by now. Until when it had.
    ///
    /// Time goes on by itself only when everybody who can run has run; it jumps while a handler blocks
    /// the worker.
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

    /// The server is told to end, and cuts what is left at `cuts_at`.
    pub(super) fn order(&self, cuts_at: Duration) {
        let ordered = self.ordered.get().map_or(self.network.now(), |(ordered, _)| ordered);
        self.ordered.set(Some((ordered, cuts_at)));
    }

    /// Was the server told to end?
    pub(super) fn is_ordered(&self) -> bool {
        self.ordered.get().is_some()
    }

    /// Must a request that was made at `asked` be answered, in spite of an order to end?
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

    /// A peer of this kind came.
    pub(super) fn meet(&self, kind: &'static str, address: SocketAddr) {
        let met = Met { kind, waits_since: None, over: None, may_end: None };
        self.met.borrow_mut().insert(address.to_string(), met);
    }

    /// Something changes for a peer, now.
    pub(super) fn note(&self, client: &Client, change: impl FnOnce(&mut Met, Duration)) {
        if let Some(met) = self.met.borrow_mut().get_mut(&client.address().to_string()) {
            change(met, self.network.now());
        }
    }

    /// May a peer have many exchanges at a time?
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

    /// Judges who is named as cut, when all peers are gone: who waited for an answer at that time and
    /// never got it, and nobody who was over before. Whatever was cut was it until `cuts_by`.
    pub(super) fn judge_cuts(&self, cut: &[Cut], cuts_by: Duration) {
        let Some((ordered, cuts_at)) = self.ordered.get() else { return };
        let is_named = |address: &str| cut.iter().any(|cut| cut.peer == address);
        for (address, met) in self.met.borrow().iter() {
            let was_over = met.over.is_some_and(|over| over + Self::TICK < cuts_at);
            let was_there = met.over.is_none_or(|over| over >= cuts_at)
                && met.may_end.is_none_or(|may_end| may_end > cuts_by);
            let waited = met.waits_since.is_some_and(|since| since + Self::TICK < ordered);
            let kind = met.kind;
            if met.is_certain() && waited && was_there && !is_named(address) {
                self.fault(format!("{kind}, {address}, waits for ever and is not named as cut"));
            }
            // Where a stream has nothing to send, or nobody reads a body, nobody can tell that its peer
            // has closed.
            let may_be_unknown = ["employer", "listener", "unwanted"].contains(&kind);
            // Work that was promised its end goes on without its stream.
            let of_work = |cut: &&Cut| {
                cut.request.as_deref().is_some_and(|request| request.contains("/work/"))
            };
            let is_named = cut.iter().filter(|cut| !of_work(cut)).any(|cut| cut.peer == *address);
            if was_over && !may_be_unknown && is_named {
                self.fault(format!("{kind}, {address}, is named as cut and was gone before"));
            }
        }
    }

    pub(super) fn choose<T: Clone>(&self, items: &[T]) -> T {
        choose(&self.network, items)
    }

    /// Any time below `most`.
    pub(super) fn time(&self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_millis()).expect("lives are short");
        Duration::from_millis(self.network.random(most + 1))
    }
}

fn choose<T: Clone>(network: &Network, items: &[T]) -> T {
    let count = u64::try_from(items.len()).expect("it is small");
    items[usize::try_from(network.random(count)).expect("it is small")].clone()
}

/// The way takes time and cuts, timers are late, wake-ups are spurious; nothing is lost.
pub(super) fn faults() -> Faults {
    Faults {
        cut_per_mille: 100,
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
        background_timeout: 3_600 * SECOND,
        drain_bytes_max: choose(network, &[500, 256 * 1024]),
        pending_output_bytes_max: choose(network, &[1_000, 64 * 1024]),
        ..Limits::default()
    };
    Promises {
        limits,
        rate_min: choose(network, &[1, 240, 2_000]),
        rate_window: seconds(&[5, 30]),
        upgrade_idle: choose(network, &[None, Some(600 * SECOND), Some(3 * 3_600 * SECOND)]),
        lame_duck: seconds(&[0, 0, 2]),
        ..Promises::default()
    }
}
