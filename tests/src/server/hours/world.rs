//! State shared by all peers of a life: the network, the timeouts, the time of the shutdown
//! request, the failures.

use super::app::Ledger;
use crate::server::server_timeouts::ServerTimeouts;
use peregrine::Limits;
use peregrine_driver_sim::{Client, Faults, Network, SocketBuffers};
use peregrine_server::ForceClosed;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// The shared state of one life.
pub(super) struct World {
    pub(super) network: Network,
    pub(super) timeouts: ServerTimeouts,
    pub(super) ledger: Ledger,
    port: u64,
    /// When the shutdown was requested, and when remaining connections are aborted.
    shutdown_request: Cell<Option<(Duration, Duration)>>,
    /// Until when the worker was last blocked.
    stalled_until: Cell<Duration>,
    faults: RefCell<Vec<String>>,
    /// By address.
    records: RefCell<BTreeMap<String, PeerRecord>>,
    last_id: Cell<u64>,
}

/// A peer as it may appear in the shutdown report.
pub(super) struct PeerRecord {
    kind: &'static str,
    /// Since when it waits for a response that has not arrived.
    pub(super) waiting_since: Option<Duration>,
    /// When it disconnected, or saw the end.
    pub(super) ended_at: Option<Duration>,
    /// From when its connection may end for another reason: it disconnects, or its end is due.
    pub(super) may_end: Option<Duration>,
}

impl PeerRecord {
    pub(super) fn may_end_from(&mut self, at: Duration) {
        self.may_end = Some(self.may_end.map_or(at, |other| other.min(at)));
    }

    /// Whether the server has work to do for this peer for as long as it waits.
    fn must_be_reported(&self) -> bool {
        ["patient", "half head", "uploader", "unwanted", "listener", "upgraded"]
            .contains(&self.kind)
    }
}

impl World {
    /// How late a timer may be: the server's resolution, late driver timers, and the round trip.
    pub(super) const TICK: Duration = Duration::from_millis(150);
    /// How much earlier than the peer a server may start a timeout: the network delay.
    pub(super) const EARLY: Duration = Duration::from_millis(45);

    pub(super) fn new(network: &Network, port: u64) -> Self {
        Self {
            timeouts: timeouts(network),
            network: network.clone(),
            ledger: Ledger::default(),
            port,
            shutdown_request: Cell::default(),
            stalled_until: Cell::default(),
            faults: RefCell::default(),
            records: RefCell::default(),
            last_id: Cell::default(),
        }
    }

    /// A connection with these buffers, or a plain pipe.
    pub(super) fn connect(&self, sockets: Option<SocketBuffers>) -> Client {
        self.network.set_faults(Faults { socket_buffers: sockets, ..faults() });
        self.network.connect_to(self.port)
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
        let start = due.saturating_sub(time);
        let delayed_due =
            if stalled_until > start { stalled_until.saturating_add(time) } else { due };
        due.max(delayed_due).saturating_add(Self::TICK)
    }

    /// Asserts that no waiting connection holds a receive buffer.
    pub(super) fn check_loans(&self) {
        let chunks = self.network.outstanding_chunks();
        if chunks > 0 {
            self.record_failure(format!("{chunks} receive buffers are held across a wait"));
        }
    }

    /// Records that a handler will block the worker for `time`.
    pub(super) fn record_stall(&self, time: Duration) {
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
    pub(super) async fn wait_until_processed(&self) -> Duration {
        const STEP: Duration = Duration::from_millis(1);
        loop {
            let now = self.network.now();
            self.network.sleep(STEP).await;
            if self.network.now() == now + STEP {
                return now;
            }
        }
    }

    /// Records that the shutdown was requested, with an abort at `abort_at`.
    pub(super) fn record_shutdown(&self, abort_at: Duration) {
        let shutdown_request = self
            .shutdown_request
            .get()
            .map_or(self.network.now(), |(shutdown_request, _)| shutdown_request);
        self.shutdown_request.set(Some((shutdown_request, abort_at)));
    }

    /// Whether the shutdown was requested.
    pub(super) fn is_shutting_down(&self) -> bool {
        self.shutdown_request.get().is_some()
    }

    /// Whether a request made at this time must be answered in spite of a shutdown.
    pub(super) fn must_answer(&self, sent_at: Duration) -> bool {
        let now = self.network.now();
        self.shutdown_request
            .get()
            .is_none_or(|(at, abort_at)| sent_at < at && now + Self::TICK < abort_at)
    }

    pub(super) fn record_failure(&self, text: String) {
        self.faults.borrow_mut().push(text);
    }

    pub(super) fn faults(&self) -> Vec<String> {
        self.faults.take()
    }

    /// Records a peer of this kind.
    pub(super) fn add_peer(&self, kind: &'static str, address: SocketAddr) {
        let record = PeerRecord { kind, waiting_since: None, ended_at: None, may_end: None };
        self.records.borrow_mut().insert(address.to_string(), record);
    }

    /// Changes a peer's record, with the current time.
    pub(super) fn update_record(
        &self,
        client: &Client,
        change: impl FnOnce(&mut PeerRecord, Duration),
    ) {
        if let Some(record) = self.records.borrow_mut().get_mut(&client.address().to_string()) {
            change(record, self.network.now());
        }
    }

    /// Whether a peer may have several exchanges at a time.
    pub(super) fn is_multiplexed(&self, address: &str) -> bool {
        let multiplexed_kinds =
            ["multiplexer", "half frame", "resetter", "shut", "websocket of HTTP/2"];
        self.records
            .borrow()
            .get(address)
            .is_some_and(|record| multiplexed_kinds.contains(&record.kind))
    }

    /// How many peers of each kind there were.
    pub(super) fn kinds(&self) -> BTreeMap<&'static str, u64> {
        let mut kinds = BTreeMap::new();
        for record in self.records.borrow().values() {
            *kinds.entry(record.kind).or_default() += 1;
        }
        kinds
    }

    /// Checks the connections reported as aborted, after all peers are gone: each peer that waited
    /// for a response at that time and never got it must be reported, and no peer that had ended
    /// before. Every abort happened before `abort_deadline`.
    pub(super) fn check_aborted(&self, aborted: &[ForceClosed], abort_deadline: Duration) {
        let Some((shutdown_request, abort_at)) = self.shutdown_request.get() else { return };
        let is_reported = |address: &str| aborted.iter().any(|aborted| aborted.peer == address);
        for (address, record) in self.records.borrow().iter() {
            let had_ended =
                record.ended_at.is_some_and(|ended_at| ended_at + Self::TICK < abort_at);
            let was_connected = record.ended_at.is_none_or(|ended_at| ended_at >= abort_at)
                && record.may_end.is_none_or(|may_end| may_end > abort_deadline);
            let was_waiting =
                record.waiting_since.is_some_and(|since| since + Self::TICK < shutdown_request);
            let kind = record.kind;
            if record.must_be_reported() && was_waiting && was_connected && !is_reported(address) {
                self.record_failure(format!(
                    "{kind}, {address}, waits forever and is not reported as aborted"
                ));
            }
            // If a stream has nothing to send, or a handler does not read the body, the server
            // cannot detect that the peer closed.
            let may_go_unnoticed = ["employer", "listener", "unwanted"].contains(&kind);
            // Work marked to run to completion continues without its stream.
            let is_run_to_completion = |aborted: &&ForceClosed| {
                aborted.request.as_deref().is_some_and(|request| request.contains("/work/"))
            };
            let is_reported = aborted
                .iter()
                .filter(|aborted| !is_run_to_completion(aborted))
                .any(|aborted| aborted.peer == *address);
            if had_ended && !may_go_unnoticed && is_reported {
                self.record_failure(format!(
                    "{kind}, {address}, is reported as aborted but had ended before"
                ));
            }
        }
    }

    pub(super) fn choose<T: Clone>(&self, items: &[T]) -> T {
        choose(&self.network, items)
    }

    /// A random duration of at most `time_max`.
    pub(super) fn time(&self, time_max: Duration) -> Duration {
        let time_max = u64::try_from(time_max.as_millis()).expect("lives are short");
        Duration::from_millis(self.network.random_below(time_max + 1))
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

fn timeouts(network: &Network) -> ServerTimeouts {
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
    ServerTimeouts {
        limits,
        transfer_rate_min: choose(network, &[1, 240, 2_000]),
        rate_window: seconds(&[5, 30]),
        upgrade_idle: choose(network, &[None, Some(600 * SECOND), Some(3 * 3_600 * SECOND)]),
        lame_duck_period: seconds(&[0, 0, 2]),
        ..ServerTimeouts::default()
    }
}
