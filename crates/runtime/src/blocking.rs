//! The thread that detects handlers that block their worker.

use crate::threads;
use peregrine_server::{Heartbeat, PollWatchdog};
use peregrine_web::panic::catch_subscriber_panic;
use std::io;
use std::sync::Weak;
use std::thread;
use std::time::{Duration, Instant};

/// The minimum time between checks, so that the thread sleeps even if the threshold is zero.
const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Starts a thread that logs a warning when a handler blocks its worker for longer than
/// `threshold`, at most once a minute for each route. While no handler is running, the thread
/// sleeps. It ends when all workers have ended.
pub(crate) fn start_blocking_watchdog(
    heartbeats: Vec<Weak<Heartbeat>>,
    threshold: Duration,
) -> io::Result<()> {
    let start = Instant::now();
    let run = move || {
        let mut watchdog = PollWatchdog::new(heartbeats, threshold, thread::current());
        while let Some(blocked) = watchdog.check(start.elapsed()) {
            for poll in blocked {
                let (worker, route, time) = (poll.worker, poll.route, poll.time);
                catch_subscriber_panic(|| {
                    tracing::warn!(target: "peregrine", route, worker, ?time, budget = ?threshold,
                    "a handler blocks its thread, and all connections of the worker with it; use \
                    peregrine::spawn_blocking or tokio::task::spawn_blocking for blocking calls \
                    and long computations")
                });
            }
            match watchdog.next_check_in() {
                Some(interval) => thread::park_timeout(interval.max(INTERVAL_MIN)),
                None => thread::park(),
            }
        }
    };
    threads::spawn_thread("peregrine-watch", Box::new(run)).map(drop)
}
