//! Simulated runs of hours ("lives"): peers that obey the rules or break exactly one, days of
//! silence between them, and a shutdown at any moment. Each peer knows what it must receive, and
//! when.
//!
//! Beside what each peer of `peers.rs`, `flows.rs`, `many.rs` (HTTP/2), and `sockets.rs`
//! (WebSockets) asserts itself, every life asserts that:
//!
//! - every timer fires within its tick, and none early;
//! - every response that was written reaches a peer that reads, however slowly;
//! - every handler marked to run to completion did so, unless the shutdown deadline passed;
//! - the server ends in time, and reports exactly the connections it cut;
//! - no task, buffer, connection, or byte in the kernel is left over.
//!
//! Start with [`life`].

mod app;
mod flows;
mod many;
mod peers;
mod sockets;
mod talk;
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
        4 => Box::pin(peers::employer(world)),
        5 => Box::pin(peers::unheard(world)),
        6 | 7 => Box::pin(flows::uploader(world)),
        8 => Box::pin(flows::unwanted(world)),
        9 => Box::pin(flows::downloader(world)),
        10 => Box::pin(flows::listener(world)),
        11 => Box::pin(flows::deaf(world)),
        12 => Box::pin(flows::upgraded(world)),
        13 => Box::pin(many::half_frame(world)),
        14 => Box::pin(many::resetter(world)),
        15 => Box::pin(many::shut(world)),
        16 | 17 => Box::pin(sockets::talker(world, false)),
        18 => Box::pin(sockets::talker(world, true)),
        _ => Box::pin(many::multiplexer(world)),
    }
}

/// Starts peers, one after the other or together. The receiver is notified when the last one is
/// gone.
fn invite(world: &Rc<World>) -> mpsc::UnboundedReceiver<()> {
    let (done, all_done) = mpsc::unbounded_channel();
    let network = &world.network;
    let may_stall = network.random_below(6) == 0;
    let quiet = world.choose(&[Duration::ZERO, SECOND, 1_200 * SECOND, DAY, 30 * DAY]);
    let mut begins = Duration::ZERO;
    for _ in 0..1 + network.random_below(6) {
        begins += world.time(quiet);
        let (at, done, world) = (begins, done.clone(), Rc::clone(world));
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
    let limits = world.promises.limits();
    let application =
        app::app(world.ledger.clone()).into_built_app().expect("the application is valid");
    let (orders, receiver) = watch::channel(Lifecycle::Serving);
    let counting = Arc::new(WorkerMetrics::with_request_histograms());
    let observed = Rc::new(Instrumentation::with_metrics(Arc::default(), Arc::clone(&counting)));
    let listeners = vec![BoundListener::new(port)];
    let report = Rc::new(RefCell::new(None));
    let (told, driven) = (Rc::clone(&report), driver.clone());
    let counts = Rc::clone(&observed);
    network.spawn(async move {
        let serving = peregrine_server::run_worker(
            driven.clone(),
            listeners,
            application,
            limits,
            observed,
            receiver,
            None,
        );
        let report = serving.await.expect("the simulated network has free addresses");
        *told.borrow_mut() = Some((report, driven.now()));
    });
    let mut peers = invite(&world);
    // The order is given when all peers are gone, or at any moment.
    let patience = match network.random_below(3) {
        0 => world.time(world.choose(&[10 * SECOND, 1_200 * SECOND, DAY])),
        _ => 400 * DAY,
    };
    crate::first_of(peers.recv(), network.sleep(patience)).await;
    let cuts = shut_down(&world, &orders).await;
    let cuts_by = cuts.end + World::TICK;
    let due = cuts_by + SECOND / 10;
    while report.borrow().is_none() && (network.now() <= due || world.may_be_stalled()) {
        network.sleep(SECOND / 20).await;
    }
    let told = report.take();
    let Some((report, ended)) = told else {
        let faults = world.faults();
        let (seed, counts) = (network.seed(), counts.stats());
        panic!("seed {seed}: the server did not shut down by {due:?}: {counts:?}; {faults:?}");
    };
    counting.assert_idle();
    judge(&world, &report, ended, cuts.start);
    if driver.tokio_tasks() > 0 && ended < cuts.start {
        world.fault(format!("{} tasks are left", driver.tokio_tasks()));
    }
    while peers.recv().await.is_some() {}
    // Cut connections were cut before the worker reported its end.
    world.judge_cuts(&report.force_closed, cuts_by.min(ended));
    (report, world)
}

/// Requests the shutdown. Returns the time range in which remaining connections may be cut: a
/// blocked worker notices an order only when it continues.
async fn shut_down(world: &World, orders: &watch::Sender<Lifecycle>) -> Range<Duration> {
    let timeout = world.promises.limits.shutdown_timeout;
    let cuts_at = world.network.now() + timeout;
    world.order(cuts_at);
    orders.send_replace(Lifecycle::Draining);
    if world.network.random_below(4) > 0 {
        return cuts_at..world.heard().await + timeout;
    }
    let sooner = world.time(3 * SECOND);
    let cuts_at = cuts_at.min(world.network.now() + sooner);
    world.order(cuts_at);
    world.network.sleep(sooner).await;
    orders.send_replace(Lifecycle::ForceClosing);
    cuts_at..world.heard().await
}

/// Checks the server's report, and the handlers marked to run to completion.
fn judge(world: &World, report: &WorkerReport, ended: Duration, cuts_at: Duration) {
    let snapshot = &report.stats;
    let endings: u64 = snapshot.closed.values().sum();
    if endings != snapshot.accepted || snapshot.connections != 0 {
        world.fault(format!("of {} connections {endings} ended", snapshot.accepted));
    }
    let cut = snapshot.closed.get("force-closed").copied().unwrap_or(0);
    let all_cut = cut + snapshot.aborted_handlers as u64;
    // An HTTP/2 connection is reported once for each of its exchanges.
    let (many, others): (Vec<_>, Vec<_>) =
        report.force_closed.iter().partition(|cut| world.has_many(&cut.peer));
    let of_many: BTreeSet<_> = many.iter().map(|cut| &cut.peer).collect();
    let least = (others.len() + of_many.len()) as u64;
    if !(least..=report.force_closed.len() as u64).contains(&all_cut) {
        world.fault(format!("{all_cut} were cut, but {:?} are reported", report.force_closed));
    }
    if ended + World::EARLY < cuts_at && cut > 0 {
        world.fault(format!("{cut} were cut before the deadline"));
    }
    for (id, work) in world.ledger.works() {
        let due = work.began.saturating_add(work.takes);
        // A handler that still reads gets an error when its peer disconnects, then works, and is
        // recorded again.
        let is_reading = work.takes == Duration::MAX;
        let hears = work.left.filter(|_| is_reading).unwrap_or(Duration::MAX);
        let is_late = match work.ended {
            Some(at) => at < due || at > world.on_time(due, work.takes),
            None => due.min(hears).saturating_add(World::TICK) < cuts_at,
        };
        if is_late {
            world.fault(format!("work {id} did not run to completion: {work:?}"));
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
            world.fault("an operation is left over".to_owned());
        }
        (report, world)
    });
    let (report, world) = run.expect("a runtime without I/O starts");
    for (what, count) in [
        ("tasks panicked", network.panics()),
        ("buffers are lost", u64::from(network.outstanding_chunks())),
        ("connections are lost", network.connections() as u64),
        ("bytes are left in the kernel", network.orphaned_bytes() as u64),
    ] {
        if count > 0 {
            world.fault(format!("{count} {what}"));
        }
    }
    let (events, kinds, faults) = (network.trace_digest(), world.kinds(), world.faults());
    Trace { events, snapshot: report.stats, kinds, faults }
}
