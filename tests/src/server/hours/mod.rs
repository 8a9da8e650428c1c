//! Simulated runs of hours ("lives"): peers that follow the protocol or violate exactly one rule,
//! days of silence between them, and a shutdown at any moment. Each peer knows what it must
//! receive, and when.
//!
//! Beside what each peer of `peers.rs`, `flows.rs`, `http2_peers.rs` (HTTP/2), and `sockets.rs`
//! (WebSockets) asserts itself, every life asserts that:
//!
//! - every timer fires within its tick, and none early;
//! - every response that was written reaches a peer that reads, however slowly;
//! - every handler marked to run to completion did so, unless the shutdown deadline passed;
//! - the server ends in time, and reports exactly the connections it aborted;
//! - no task, buffer, connection, or byte in the kernel remains.
//!
//! Start with [`life`].

mod app;
mod flows;
mod http1_peer;
mod http2_peers;
mod peers;
mod sockets;
mod world;

use peregrine::IntoBuiltApp;
use peregrine_driver::{Driver, Options};
use peregrine_driver_sim::{Network, Sim};
use peregrine_server::{
    BoundListener, Instrumentation, Lifecycle, WorkerMetrics, WorkerReport, WorkerStats,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use world::World;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// The results of a life.
#[derive(Debug, PartialEq, Eq)]
pub struct Trace {
    /// A digest of every event on the network.
    pub events: u64,
    /// The server's counts.
    pub snapshot: WorkerStats,
    /// How many peers of each kind there were.
    pub kinds: BTreeMap<&'static str, u64>,
    /// Assertions that failed.
    pub faults: Vec<String>,
}

type Peer = Pin<Box<dyn Future<Output = ()>>>;

/// Any peer. If a worker may be blocked, only of a kind that tolerates it.
fn any_peer(world: &Rc<World>, may_stall: bool) -> Peer {
    let kinds = if may_stall { 3 } else { 21 };
    let world = Rc::clone(world);
    match world.network.random_below(kinds) {
        0 => Box::pin(peers::silent(world)),
        1 => Box::pin(peers::half_head(world)),
        2 if may_stall => Box::pin(peers::staller(world)),
        2 => Box::pin(peers::patient(world)),
        3 => Box::pin(peers::panicker(world)),
        4 => Box::pin(peers::run_to_completion_requester(world)),
        5 => Box::pin(peers::unread_upload(world)),
        6 | 7 => Box::pin(flows::uploader(world)),
        8 => Box::pin(flows::unread_body_uploader(world)),
        9 => Box::pin(flows::downloader(world)),
        10 => Box::pin(flows::slow_response_reader(world)),
        11 => Box::pin(flows::non_reader(world)),
        12 => Box::pin(flows::upgraded(world)),
        13 => Box::pin(http2_peers::half_frame(world)),
        14 => Box::pin(http2_peers::resetter(world)),
        15 => Box::pin(http2_peers::closed_windows(world)),
        16 | 17 => Box::pin(sockets::talker(world, false)),
        18 => Box::pin(sockets::talker(world, true)),
        _ => Box::pin(http2_peers::multiplexer(world)),
    }
}

/// Starts peers, one after the other or together. The receiver is notified when the last one is
/// gone.
fn spawn_peers(world: &Rc<World>) -> mpsc::UnboundedReceiver<()> {
    let (done, all_done) = mpsc::unbounded_channel();
    let network = &world.network;
    let may_stall = network.random_below(6) == 0;
    let pause_max = world.choose(&[Duration::ZERO, SECOND, 1_200 * SECOND, DAY, 30 * DAY]);
    let mut start = Duration::ZERO;
    for _ in 0..1 + network.random_below(6) {
        start += world.time(pause_max);
        let (at, done, world) = (start, done.clone(), Rc::clone(world));
        // A peer may be dropped at any of its awaits, which closes its connection.
        let per_mille = if network.random_below(5) == 0 { 40 } else { 0 };
        network.clone().spawn(async move {
            world.network.sleep(at).await;
            let peer = any_peer(&world, may_stall);
            world.network.drop_at(per_mille, peer).await;
            drop(done);
        });
    }
    all_done
}

/// One life.
async fn live(driver: Sim) -> (WorkerReport, Rc<World>) {
    let network = driver.network().clone();
    let port = network.bind();
    let world = Rc::new(World::new(&network, port.id()));
    let limits = world.timeouts.limits();
    let application =
        app::app(world.ledger.clone()).into_built_app().expect("the application is valid");
    let (lifecycle, receiver) = watch::channel(Lifecycle::Serving);
    let metrics = Arc::new(WorkerMetrics::with_request_histograms());
    let instrumentation =
        Rc::new(Instrumentation::with_metrics(Arc::default(), Arc::clone(&metrics)));
    let listeners = vec![BoundListener::new(port)];
    let report = Rc::new(RefCell::new(None));
    let (result_slot, worker_driver) = (Rc::clone(&report), driver.clone());
    let worker_metrics = Rc::clone(&instrumentation);
    network.spawn(async move {
        let serving = peregrine_server::run_worker(
            worker_driver.clone(),
            listeners,
            application,
            limits,
            instrumentation,
            receiver,
            None,
        );
        let report = serving.await.expect("the simulated network has free addresses");
        *result_slot.borrow_mut() = Some((report, worker_driver.now()));
    });
    let mut peers = spawn_peers(&world);
    // The shutdown is requested when all peers are gone, or at any moment.
    let shutdown_delay = match network.random_below(3) {
        0 => world.time(world.choose(&[10 * SECOND, 1_200 * SECOND, DAY])),
        _ => 400 * DAY,
    };
    crate::first_of(peers.recv(), network.sleep(shutdown_delay)).await;
    let abort_range = shut_down(&world, &lifecycle).await;
    let abort_deadline = abort_range.end + World::TICK;
    let due = abort_deadline + SECOND / 10;
    while report.borrow().is_none() && (network.now() <= due || world.may_be_stalled()) {
        network.sleep(SECOND / 20).await;
    }
    let result_slot = report.take();
    let Some((report, ended_at)) = result_slot else {
        let faults = world.faults();
        let (seed, worker_metrics) = (network.seed(), worker_metrics.stats());
        panic!(
            "seed {seed}: the server did not shut down by {due:?}: {worker_metrics:?}; {faults:?}"
        );
    };
    metrics.assert_idle();
    check_report(&world, &report, ended_at, abort_range.start);
    if driver.tokio_tasks() > 0 && ended_at < abort_range.start {
        world.record_failure(format!("{} tasks remain", driver.tokio_tasks()));
    }
    while peers.recv().await.is_some() {}
    // Connections were aborted before the worker reported its end.
    world.check_aborted(&report.force_closed, abort_deadline.min(ended_at));
    (report, world)
}

/// Requests the shutdown. Returns the time range in which remaining connections may be aborted: a
/// blocked worker notices a request only when it continues.
async fn shut_down(world: &World, lifecycle: &watch::Sender<Lifecycle>) -> Range<Duration> {
    let timeout = world.timeouts.limits.shutdown_timeout;
    let abort_at = world.network.now() + timeout;
    world.record_shutdown(abort_at);
    lifecycle.send_replace(Lifecycle::Draining);
    if world.network.random_below(4) > 0 {
        return abort_at..world.wait_until_processed().await + timeout;
    }
    let delay = world.time(3 * SECOND);
    let abort_at = abort_at.min(world.network.now() + delay);
    world.record_shutdown(abort_at);
    world.network.sleep(delay).await;
    lifecycle.send_replace(Lifecycle::ForceClosing);
    abort_at..world.wait_until_processed().await
}

/// Checks the server's report, and the handlers marked to run to completion.
fn check_report(world: &World, report: &WorkerReport, ended_at: Duration, abort_at: Duration) {
    let snapshot = &report.stats;
    let endings: u64 = snapshot.closed.values().sum();
    if endings != snapshot.accepted || snapshot.connections != 0 {
        world.record_failure(format!("of {} connections {endings} ended", snapshot.accepted));
    }
    let aborted = snapshot.closed.get("force-closed").copied().unwrap_or(0);
    let aborted_count = aborted + snapshot.aborted_handlers as u64;
    // An HTTP/2 connection is reported once for each of its exchanges.
    let (multiplexed, others): (Vec<_>, Vec<_>) =
        report.force_closed.iter().partition(|aborted| world.is_multiplexed(&aborted.peer));
    let multiplexed_peers: BTreeSet<_> = multiplexed.iter().map(|aborted| &aborted.peer).collect();
    let aborted_min = (others.len() + multiplexed_peers.len()) as u64;
    if !(aborted_min..=report.force_closed.len() as u64).contains(&aborted_count) {
        world.record_failure(format!(
            "{aborted_count} were aborted, but {:?} are reported",
            report.force_closed
        ));
    }
    if ended_at + World::EARLY < abort_at && aborted > 0 {
        world.record_failure(format!("{aborted} were aborted before the deadline"));
    }
    for (id, work) in world.ledger.entries() {
        let due = work.started_at.saturating_add(work.wait_time);
        // A handler that still reads gets an error when its peer disconnects, then works, and is
        // recorded again.
        let is_reading = work.wait_time == Duration::MAX;
        let error_at = work.disconnected_at.filter(|_| is_reading).unwrap_or(Duration::MAX);
        let is_late = match work.ended_at {
            Some(at) => at < due || at > world.on_time(due, work.wait_time),
            None => due.min(error_at).saturating_add(World::TICK) < abort_at,
        };
        if is_late {
            world.record_failure(format!("work {id} did not run to completion: {work:?}"));
        }
    }
}

/// Runs the life that `seed` determines.
///
/// # Panics
/// If it does not complete. The message names the seed.
#[must_use]
pub fn life(seed: u64) -> Trace {
    let network = Network::new(seed, world::faults());
    network.set_time_max(3_000 * DAY);
    let run = network.run(&Options::default(), async |driver| {
        let (report, world) = live(driver.clone()).await;
        if driver.stats().in_flight > 0 {
            world.record_failure("an operation is still in flight".to_owned());
        }
        (report, world)
    });
    let (report, world) = run.expect("a runtime without I/O starts");
    for (problem, count) in [
        ("tasks panicked", network.panics()),
        ("buffers are lost", u64::from(network.outstanding_chunks())),
        ("connections are lost", network.connections() as u64),
        ("bytes remain in the kernel", network.orphaned_bytes() as u64),
    ] {
        if count > 0 {
            world.record_failure(format!("{count} {problem}"));
        }
    }
    let (events, kinds, faults) = (network.trace_digest(), world.kinds(), world.faults());
    Trace { events, snapshot: report.stats, kinds, faults }
}
