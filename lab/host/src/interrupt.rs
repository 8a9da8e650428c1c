//! Ctrl-C as a value: the first one asks the lab to end in good order, the second one ends it.
//!
//! Servers run in process groups of their own, so the terminal's signal does not reach them: what
//! ends them is the lab. At the second signal it ends them at once, puts the host's settings back,
//! and leaves.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::tune;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static LIVE_GROUPS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
static WATCHING: Once = Once::new();

/// Begins to catch SIGINT, SIGTERM and SIGHUP, once for the whole program. Without it the first
/// Ctrl-C ends the program at once; servers are ended even then, by the watchers beside them.
///
/// # Errors
///
/// The kernel's, if no handler can be set.
pub fn watch() -> io::Result<()> {
    let mut result = Ok(());
    WATCHING.call_once(|| {
        result = Signals::new([SIGINT, SIGTERM, SIGHUP]).and_then(|mut signals| {
            let wait = move || signals.forever().for_each(receive);
            std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop)
        });
    });
    result
}

/// Whether a signal asked the program to end. Long waits ask this and break off.
#[must_use]
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

fn receive(signal: i32) {
    if !INTERRUPTED.swap(true, Ordering::Relaxed) {
        return;
    }
    for &group in LIVE_GROUPS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        if let Some(group) = Pid::from_raw(group) {
            // It may have ended by itself meanwhile.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
    tune::restore_all();
    std::process::exit(128 + signal);
}

/// A process group that the second signal ends. It is forgotten when this is dropped.
#[derive(Debug)]
pub(crate) struct Enlisted(i32);

pub(crate) fn enlist(group: Pid) -> Enlisted {
    let group = group.as_raw_nonzero().get();
    LIVE_GROUPS.lock().unwrap_or_else(PoisonError::into_inner).insert(group);
    Enlisted(group)
}

impl Drop for Enlisted {
    fn drop(&mut self) {
        LIVE_GROUPS.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}
