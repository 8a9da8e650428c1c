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
use tokio::sync::watch as watched;

/// The number of checks in each half of the manager's timeout.
const CHECKS_PER_HALF: u32 = 2;
/// The minimum time between checks, however short the manager's timeout is.
const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Checks that the workers respond.
#[derive(Debug)]
pub struct Watchdog {
    /// The manager's timeout, after which it kills the process.
    timeout: Duration,
    ping: watched::Sender<u64>,
    pongs: Vec<Arc<AtomicU64>>,
}

/// A worker's side of the watchdog.
#[derive(Debug)]
pub struct WatchdogResponder {
    ping: watched::Receiver<u64>,
    pong: Arc<AtomicU64>,
}

impl Watchdog {
    /// Creates a watchdog if the manager's environment variables request one for this process.
    pub(crate) fn from_environment() -> Option<Self> {
        let variable = |name| env::var(name).ok();
        let patience = watchdog_interval(variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"))?;
        Some(Self { timeout: patience, ping: watched::Sender::new(0), pongs: Vec::new() })
    }

    /// Adds a worker to check.
    pub fn responder(&mut self) -> WatchdogResponder {
        let answer = Arc::<AtomicU64>::default();
        self.pongs.push(Arc::clone(&answer));
        WatchdogResponder { ping: self.ping.subscribe(), pong: answer }
    }

    /// Runs the checks on their own thread until a shutdown is requested.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(mut self, host: impl UpgradeHost + 'static) -> io::Result<()> {
        let name = "peregrine-watchdog".to_owned();
        let look = move || {
            let half = self.timeout / 2;
            let mut told = Instant::now();
            loop {
                thread::sleep((half / CHECKS_PER_HALF).max(INTERVAL_MIN));
                let order = host.lifecycle();
                if order > Lifecycle::Serving {
                    return;
                }
                let is_time = told.elapsed() + half / CHECKS_PER_HALF / 2 >= half;
                // Until this process serves, its predecessor notifies the manager.
                let is_service = order == Lifecycle::Serving;
                if self.check() && is_time && is_service {
                    told = Instant::now();
                    host.restart()
                        .service_manager()
                        .into_iter()
                        .for_each(|manager| manager.watchdog());
                }
            }
        };
        thread::Builder::new().name(name).spawn(look).map(drop)
    }

    /// Returns whether all workers have responded since the last check, and then starts another
    /// one.
    fn check(&mut self) -> bool {
        let question = *self.ping.borrow();
        let is_answered = |answer: &Arc<AtomicU64>| answer.load(Ordering::Relaxed) >= question;
        let all = self.pongs.iter().all(is_answered);
        if all {
            self.ping.send_replace(question + 1);
        }
        all && question > 0
    }
}

impl WatchdogResponder {
    /// Responds until a shutdown is requested or the watchdog has ended.
    pub async fn run(mut self, mut orders: watched::Receiver<Lifecycle>) {
        let ordered =
            async move { drop(orders.wait_for(|order| *order > Lifecycle::Serving).await) };
        let answers = async move {
            while self.ping.changed().await.is_ok() {
                let question = *self.ping.borrow_and_update();
                self.pong.store(question, Ordering::Relaxed);
            }
        };
        let (mut ordered, mut answers) = (pin!(ordered), pin!(answers));
        poll_fn(|cx| match ordered.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => answers.as_mut().poll(cx),
        })
        .await;
    }
}

/// The manager's timeout, if the variables apply to this process.
fn watchdog_interval(microseconds: Option<String>, process: Option<String>) -> Option<Duration> {
    let is_own = process.is_none_or(|process| process.parse() == Ok(std::process::id()));
    let microseconds = microseconds?.parse().ok().filter(|time| *time > 0)?;
    is_own.then(|| Duration::from_micros(microseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_is_for_the_process_that_it_names() {
        let own = std::process::id();
        for (time, process, expected) in [
            (None, None, None),
            (Some("30000000"), None, Some(30)),
            (Some("30000000"), Some(own), Some(30)),
            (Some("30000000"), Some(own + 1), None),
            (Some("0"), None, None),
            (Some("soon"), None, None),
        ] {
            let process = process.map(|process| process.to_string());
            let found =
                watchdog_interval(time.map(str::to_owned), process).map(|time| time.as_secs());
            assert_eq!(found, expected, "{time:?}");
        }
    }

    #[test]
    fn one_worker_that_does_not_answer_is_enough() {
        let asked = watched::Sender::new(0);
        let mut watchdog = Watchdog { timeout: INTERVAL_MIN, ping: asked, pongs: Vec::new() };
        let [first, second] = [(), ()].map(|()| watchdog.responder());
        assert!(!watchdog.check(), "no check was started");
        first.pong.store(1, Ordering::Relaxed);
        assert!(!watchdog.check() && !watchdog.check());
        second.pong.store(1, Ordering::Relaxed);
        assert!(watchdog.check());
        assert!(!watchdog.check(), "that response was to the previous check");
    }
}
