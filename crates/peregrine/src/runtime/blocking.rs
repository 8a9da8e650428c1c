//! The thread that detects handlers that block their worker.

use crate::runtime::threads;
use peregrine_server::{Heartbeat, PollWatchdog};
use peregrine_web::panic::catch_log_panic;
use std::io;
use std::sync::Weak;
use std::thread;
use std::time::{Duration, Instant};

/// The thread must sleep even if the budget is zero.
const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Logs a warning for each handler that blocks its thread for longer than `budget`, until all
/// workers have ended. While no handler is running, the thread sleeps.
pub(crate) fn start_blocking_watchdog(
    pulses: Vec<Weak<Heartbeat>>,
    budget: Duration,
) -> io::Result<()> {
    let start = Instant::now();
    let look = move || {
        let mut watch = PollWatchdog::new(pulses, budget, thread::current());
        while let Some(blocked) = watch.check(start.elapsed()) {
            for found in blocked {
                let (worker, route, time) = (found.worker, found.route, found.time);
                catch_log_panic(|| {
                    tracing::warn!(target: "peregrine", route, worker, ?time, ?budget,
                    "a handler blocks its thread, and all connections of the worker with it; use \
                     peregrine::spawn_blocking or tokio::task::spawn_blocking for blocking calls and \
                     long computations")
                });
            }
            match watch.next_check_in() {
                Some(pause) => thread::park_timeout(pause.max(INTERVAL_MIN)),
                None => thread::park(),
            }
        }
    };
    threads::spawn_thread("peregrine-watch", Box::new(look)).map(drop)
}
