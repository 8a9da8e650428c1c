//! The service manager's watchdog: notifies the manager as long as every worker responds.
//!
//! Workers respond from their own threads, so a worker whose thread is blocked does not respond.

use crate::host::UpgradeHost;
use peregrine_server::Lifecycle;
use std::env;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The number of checks in each half of the manager's timeout.
const CHECKS_PER_HALF: u32 = 2;
/// The minimum time between checks, even if the manager's timeout is shorter.
const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Checks that the workers respond.
#[derive(Debug)]
pub struct Watchdog {
    /// The manager's timeout, after which it kills the process.
    timeout: Duration,
    ping: watch::Sender<u64>,
    pongs: Vec<Arc<AtomicU64>>,
}

/// A worker's side of the watchdog.
#[derive(Debug)]
pub struct WatchdogResponder {
    ping: watch::Receiver<u64>,
    pong: Arc<AtomicU64>,
}

impl Watchdog {
    /// Creates a watchdog if the manager's environment variables request one for this process.
    pub(crate) fn from_environment() -> Option<Self> {
        let variable = |name| env::var(name).ok();
        let timeout = watchdog_interval(variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"))?;
        Some(Self { timeout, ping: watch::Sender::new(0), pongs: Vec::new() })
    }

    /// Adds a worker to check. Returns the worker's side of the watchdog.
    pub fn responder(&mut self) -> WatchdogResponder {
        let pong = Arc::<AtomicU64>::default();
        self.pongs.push(Arc::clone(&pong));
        WatchdogResponder { ping: self.ping.subscribe(), pong }
    }

    /// Runs the checks on a separate thread until a shutdown is requested.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(mut self, host: impl UpgradeHost + 'static) -> io::Result<()> {
        let name = "peregrine-watchdog".to_owned();
        let run_checks = move || {
            let half = self.timeout / 2;
            let mut last_notified = Instant::now();
            loop {
                thread::sleep((half / CHECKS_PER_HALF).max(INTERVAL_MIN));
                let lifecycle = host.lifecycle();
                if lifecycle > Lifecycle::Serving {
                    return;
                }
                // With a tolerance of half the time between checks.
                let is_due = last_notified.elapsed() + half / CHECKS_PER_HALF / 2 >= half;
                // Until this process serves, its predecessor notifies the manager.
                let is_serving = lifecycle == Lifecycle::Serving;
                if self.check() && is_due && is_serving {
                    last_notified = Instant::now();
                    host.restart()
                        .service_manager()
                        .into_iter()
                        .for_each(|manager| manager.notify_watchdog());
                }
            }
        };
        thread::Builder::new().name(name).spawn(run_checks).map(drop)
    }

    /// Returns whether all workers have responded to the last check. If so, starts another one.
    fn check(&mut self) -> bool {
        let ping = *self.ping.borrow();
        let has_responded = |pong: &Arc<AtomicU64>| pong.load(Ordering::Relaxed) >= ping;
        let all_responded = self.pongs.iter().all(has_responded);
        if all_responded {
            self.ping.send_replace(ping + 1);
        }
        all_responded && ping > 0
    }
}

impl WatchdogResponder {
    /// Responds until a shutdown is requested or the watchdog has ended.
    pub async fn run(mut self, mut lifecycle: watch::Receiver<Lifecycle>) {
        let shutdown =
            async move { drop(lifecycle.wait_for(|state| *state > Lifecycle::Serving).await) };
        let responses = async move {
            while self.ping.changed().await.is_ok() {
                let ping = *self.ping.borrow_and_update();
                self.pong.store(ping, Ordering::Relaxed);
            }
        };
        let (mut shutdown, mut responses) = (pin!(shutdown), pin!(responses));
        poll_fn(|cx| match shutdown.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => responses.as_mut().poll(cx),
        })
        .await;
    }
}

/// Returns the manager's timeout, if the variables apply to this process.
fn watchdog_interval(microseconds: Option<String>, pid: Option<String>) -> Option<Duration> {
    let is_this_process = pid.is_none_or(|pid| pid.parse() == Ok(std::process::id()));
    let microseconds = microseconds?.parse().ok().filter(|time| *time > 0)?;
    is_this_process.then(|| Duration::from_micros(microseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_applies_only_to_the_process_in_watchdog_pid() {
        let this_pid = std::process::id();
        for (microseconds, pid, expected) in [
            (None, None, None),
            (Some("30000000"), None, Some(30)),
            (Some("30000000"), Some(this_pid), Some(30)),
            (Some("30000000"), Some(this_pid + 1), None),
            (Some("0"), None, None),
            (Some("soon"), None, None),
        ] {
            let pid = pid.map(|pid| pid.to_string());
            let seconds = watchdog_interval(microseconds.map(str::to_owned), pid)
                .map(|microseconds| microseconds.as_secs());
            assert_eq!(seconds, expected, "{microseconds:?}");
        }
    }

    #[test]
    fn check_fails_if_one_worker_does_not_respond() {
        let ping = watch::Sender::new(0);
        let mut watchdog = Watchdog { timeout: INTERVAL_MIN, ping, pongs: Vec::new() };
        let [first, second] = [(), ()].map(|()| watchdog.responder());
        assert!(!watchdog.check(), "no check was started");
        first.pong.store(1, Ordering::Relaxed);
        assert!(!watchdog.check() && !watchdog.check());
        second.pong.store(1, Ordering::Relaxed);
        assert!(watchdog.check());
        assert!(!watchdog.check(), "that response was to the previous check");
    }
}
