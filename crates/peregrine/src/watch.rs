//! The thread that looks for handlers which block their worker's.

use peregrine_server::{Pulse, Watch};
use std::io;
use std::sync::Weak;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// A budget of nothing must not become a thread that never sleeps, and one of hours none that goes on
/// for hours after the last worker.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Warns of handlers that keep their thread for longer than `budget`, until all workers have ended.
/// Unparking the thread makes it look at once.
pub(crate) fn start(pulses: Vec<Weak<Pulse>>, budget: Duration) -> io::Result<Thread> {
    let mut watch = Watch::new(pulses, budget);
    let pause = watch.pause().clamp(PAUSE_MIN, PAUSE_MAX);
    let start = Instant::now();
    let look = move || {
        while let Some(blocked) = watch.look(start.elapsed()) {
            for found in blocked {
                let (worker, route, time) = (found.worker, found.route, found.time);
                tracing::warn!(target: "peregrine", route, worker, ?time, ?budget,
                    "a handler blocks its thread, and all connections of the worker with it; use \
                     peregrine::offload or tokio::task::spawn_blocking for what blocks or computes \
                     for long");
            }
            thread::park_timeout(pause);
        }
    };
    let thread = thread::Builder::new().name("peregrine-watch".to_owned()).spawn(look)?;
    Ok(thread.thread().clone())
}
