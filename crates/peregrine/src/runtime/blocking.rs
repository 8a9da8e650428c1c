//! The thread that detects handlers that block their worker.

use crate::runtime::threads;
use peregrine_server::{Pulse, Watch};
use peregrine_web::panics::contained;
use std::io;
use std::sync::Weak;
use std::thread;
use std::time::{Duration, Instant};

/// The thread must sleep even if the budget is zero.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// Logs a warning for each handler that blocks its thread for longer than `budget`, until all
/// workers have ended. While no handler is running, the thread sleeps.
pub(crate) fn start(pulses: Vec<Weak<Pulse>>, budget: Duration) -> io::Result<()> {
    let start = Instant::now();
    let look = move || {
        let mut watch = Watch::new(pulses, budget, thread::current());
        while let Some(blocked) = watch.look(start.elapsed()) {
            for found in blocked {
                let (worker, route, time) = (found.worker, found.route, found.time);
                contained(|| {
                    tracing::warn!(target: "peregrine", route, worker, ?time, ?budget,
                    "a handler blocks its thread, and all connections of the worker with it; use \
                     peregrine::offload or tokio::task::spawn_blocking for blocking calls and \
                     long computations")
                });
            }
            match watch.pause() {
                Some(pause) => thread::park_timeout(pause.max(PAUSE_MIN)),
                None => thread::park(),
            }
        }
    };
    threads::start("peregrine-watch", Box::new(look)).map(drop)
}
