//! The thread that detects handlers that block their worker.

use crate::runtime::threads;
use peregrine_server::{Heartbeat, PollWatchdog};
use peregrine_web::panic::catch_log_panic;
use std::io;
use std::sync::Weak;
use std::thread;
use std::time::{Duration, Instant};

/// The minimum time between checks, so that the thread sleeps even if the threshold is zero.
const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Logs a warning for each handler that blocks its thread for longer than `threshold`, until all
/// workers have ended. While no handler is running, the thread sleeps.
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
                catch_log_panic(|| {
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
