//! The load generator: closed and open loops over HTTP/1.1, HTTP/2 or WebSockets, every reply judged.
//!
//! An open loop starts requests by its schedule, whatever the server does, and counts latency
//! from the *intended* start: a request that had to wait for a free connection was slow, and is
//! not excused. A closed loop asks when it was answered, is called so in every output, and is
//! never "corrected" into something else. What takes longer than the timeout stays in the
//! histogram as a censored sample of at least that length.

mod checks;
mod judge;
mod lane;
mod lanes;
mod outcome;
mod worker;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use rustls::pki_types::ServerName;

pub use checks::{Ceiling, Check, checks};
pub use outcome::{Dates, LATE_NS, Outcome};
use worker::Worker;

use crate::client::EngineKind;
use crate::client::fault::Faults;
use crate::client::tls;
use crate::question::Question;
use crate::schedule::Schedule;
use crate::system::pin_this_thread;

/// The longest run, warm-up included.
pub const DURATION_MAX: Duration = Duration::from_secs(3600);

/// The most connections of a run.
pub const CONNECTIONS_MAX: usize = 100_000;

/// The most requests of a run.
pub const REQUESTS_MAX: u64 = 10_000_000_000;

/// The most requests under way on one connection.
pub const DEPTH_MAX: usize = 1024;

/// The highest rate of a schedule, in requests per second.
pub const RATE_MAX: f64 = 100e6;

/// Everything that decides a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where the server listens.
    pub address: SocketAddr,
    /// TLS 1.3, if the bytes go through it.
    pub tls: Option<Secured>,
    /// What is asked, and which answer is right.
    pub question: Arc<Question>,
    /// How many connections; the default is 64.
    pub connections: usize,
    /// How many requests a connection may have under way; the default is 1.
    pub depth: usize,
    /// Whether HTTP/2 is spoken, each request on a stream of its own: by ALPN over TLS, by prior
    /// knowledge without. The default is HTTP/1.1.
    pub is_http2: bool,
    /// After how many requests a connection is closed and made anew; none: never. The last one
    /// carries `Connection: close`. In a closed loop the latency of the first one includes
    /// connecting; in an open loop connections are made ahead, and a request that finds none
    /// waits, which its latency includes.
    pub requests_per_connection: Option<u64>,
    /// When requests start; the default is the closed loop.
    pub schedule: Schedule,
    /// How long requests are started, without the warm-up; the default is 10 seconds.
    pub duration: Duration,
    /// How long before that requests are started and not counted; the default is none.
    pub warmup: Duration,
    /// How long a reply may take; the default is 5 seconds.
    pub timeout: Duration,
    /// After how many requests the run ends; the default is [`REQUESTS_MAX`].
    pub requests_max: u64,
    /// Open loop: how many requests may wait for a free connection before further ones are
    /// dropped (and counted); the default is 10,000.
    pub waiting_max: usize,
    /// How many threads share the connections and the schedule; the default is 1.
    pub threads: usize,
    /// The CPUs of the threads, in turn; empty: wherever the kernel likes.
    pub cpus: Vec<usize>,
    /// How to talk to the kernel; none: the cheapest way that works.
    pub engine: Option<EngineKind>,
    /// Decides Poisson schedules.
    pub seed: u64,
    /// Whether a target beyond the loopback interface may be loaded.
    pub is_own_target: bool,
    /// CPU time that each reply is made to cost the client in addition: a way to test whether a
    /// client that is too slow is noticed.
    pub burn: Duration,
}

/// How TLS is spoken. Certificates are not judged: this measures speed, not identity.
#[derive(Debug, Clone)]
pub struct Secured {
    /// The name that the server is asked for.
    pub server_name: ServerName<'static>,
    /// Whether later connections of the run resume sessions of earlier ones. Nothing is resumed
    /// from one run to the next.
    pub is_resuming: bool,
}

impl Plan {
    /// A plan with all defaults.
    #[must_use]
    pub fn new(address: SocketAddr, question: Arc<Question>) -> Plan {
        Plan {
            address,
            tls: None,
            question,
            connections: 64,
            depth: 1,
            is_http2: false,
            requests_per_connection: None,
            schedule: Schedule::Closed,
            duration: Duration::from_secs(10),
            warmup: Duration::ZERO,
            timeout: Duration::from_secs(5),
            requests_max: REQUESTS_MAX,
            waiting_max: 10_000,
            threads: 1,
            cpus: Vec::new(),
            engine: None,
            seed: 1,
            is_own_target: false,
            burn: Duration::ZERO,
        }
    }

    /// Whether the plan may be run.
    ///
    /// # Errors
    ///
    /// A sentence that says what is not allowed, and how it would be.
    pub fn check(&self) -> Result<(), String> {
        if !self.address.ip().is_loopback() && !self.is_own_target {
            return Err(format!(
                "{} is not this machine. Loading a server that is not yours is an attack; if it \
                 is yours, say so with --i-own-this-target",
                self.address.ip()
            ));
        }
        let is_rate = |rate: f64| rate.is_finite() && (0.0..=RATE_MAX).contains(&rate);
        let (has_rate, is_step) = match self.schedule {
            Schedule::Closed => (true, true),
            Schedule::Constant { rate } | Schedule::Poisson { rate } => {
                (is_rate(rate) && rate > 0.0, true)
            }
            Schedule::Ramp { from, to } => {
                (is_rate(from) && is_rate(to) && from.max(to) > 0., true)
            }
            Schedule::Step { from, to, steps } => {
                (is_rate(from) && is_rate(to) && from.max(to) > 0.0, (1..=1000).contains(&steps))
            }
        };
        let rules = [
            (self.duration.is_zero(), "a run needs a duration".to_owned()),
            (
                self.duration.saturating_add(self.warmup) > DURATION_MAX,
                format!("a run may take {} seconds at most", DURATION_MAX.as_secs()),
            ),
            (
                !(1..=CONNECTIONS_MAX).contains(&self.connections),
                format!("a run has 1 to {CONNECTIONS_MAX} connections"),
            ),
            (
                !(1..=DEPTH_MAX).contains(&self.depth),
                format!("a connection has 1 to {DEPTH_MAX} requests under way"),
            ),
            (
                !(1..=REQUESTS_MAX).contains(&self.requests_max),
                format!("a run has 1 to {REQUESTS_MAX} requests"),
            ),
            (
                self.requests_per_connection == Some(0),
                "a connection carries at least one request".to_owned(),
            ),
            (
                self.threads == 0 || self.threads > self.connections,
                "each thread needs a connection".to_owned(),
            ),
            (
                self.is_http2 && self.requests_per_connection.is_some(),
                "connections are made anew over HTTP/1.1 only".to_owned(),
            ),
            (
                self.question.is_websocket
                    && (self.is_http2 || self.requests_per_connection.is_some()),
                "a WebSocket is opened over HTTP/1.1, and stays".to_owned(),
            ),
            (self.timeout.is_zero(), "a reply needs some time".to_owned()),
            (!has_rate, format!("a rate is above 0 and at most {RATE_MAX} requests per second")),
            (!is_step, "a schedule has 1 to 1000 steps".to_owned()),
        ];
        match rules.into_iter().find(|(is_broken, _)| *is_broken) {
            Some((_, text)) => Err(text),
            None => Ok(()),
        }
    }
}

/// What others may see of a run, and how they end it early.
#[derive(Debug, Default)]
pub struct Watch {
    /// Set it to end the run: what is under way is awaited no longer, and the outcome holds what
    /// was measured so far.
    pub is_stopped: Arc<AtomicBool>,
    sent: AtomicU64,
    replies: AtomicU64,
    faults: AtomicU64,
}

impl Watch {
    /// Counters of its own for a second run, which ends when the other one is stopped.
    #[must_use]
    pub fn stopped_by(other: &Watch) -> Watch {
        Watch { is_stopped: other.is_stopped.clone(), ..Watch::default() }
    }

    /// Requests sent so far, warm-up included.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Right replies so far, warm-up included.
    #[must_use]
    pub fn replies(&self) -> u64 {
        self.replies.load(Ordering::Relaxed)
    }

    /// Faults so far, warm-up included.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    fn add(&self, sent: u64, replies: u64, faults: &Faults, seen: &mut [u64; 3]) {
        let now = [sent, replies, faults.total()];
        for ((counter, now), seen) in
            [&self.sent, &self.replies, &self.faults].into_iter().zip(now).zip(seen)
        {
            if now > *seen {
                counter.fetch_add(now - *seen, Ordering::Relaxed);
            }
            *seen = now;
        }
    }
}

/// Runs the plan to its end, or until it is stopped.
///
/// # Errors
///
/// `InvalidInput` if the plan may not be run, or the kernel's if the client itself cannot go on.
/// Whatever a server does wrong is in the outcome instead.
pub fn run(plan: &Plan, watch: &Watch) -> io::Result<Outcome> {
    run_counted(plan, watch, &|| ())
}

/// The same, with a call when the warm-up is over and what counts begins: the place to read a
/// server's counters, so that they belong to the requests that count. It is made once, by one of the
/// threads that ask, which asks nothing meanwhile.
///
/// # Errors
///
/// As [`run`].
pub fn run_counted(plan: &Plan, watch: &Watch, at_warm: &(dyn Fn() + Sync)) -> io::Result<Outcome> {
    let once = Once::new();
    let once = &once;
    plan.check().map_err(|text| io::Error::new(io::ErrorKind::InvalidInput, text))?;
    let config = plan.tls.as_ref().map(|secured| match secured.is_resuming {
        _ if plan.is_http2 => tls::http2_config(),
        true => tls::resuming_config(),
        false => tls::config(),
    });
    let config = config.as_ref();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.threads)
            .map(|thread| {
                scope.spawn(move || {
                    if !plan.cpus.is_empty() {
                        pin_this_thread(&[plan.cpus[thread % plan.cpus.len()]])?;
                    }
                    Worker::new(plan, config, thread)?.run(watch, &|| once.call_once(at_warm))
                })
            })
            .collect();
        let mut whole: io::Result<Outcome> = Ok(Outcome::default());
        for thread in threads {
            let part = thread.join().expect("a worker does not panic");
            match (&mut whole, part) {
                (Ok(whole), Ok(part)) => whole.add(&part),
                (_, Err(error)) => {
                    watch.is_stopped.store(true, Ordering::Relaxed);
                    whole = Err(error);
                }
                (Err(_), Ok(_)) => {}
            }
        }
        whole
    })
}
