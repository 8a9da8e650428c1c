//! The highest rate that keeps a promise about latency: a search over open loops.

use std::sync::OnceLock;
use std::time::Duration;

use peregrine_lab_contender::Recipe;
use peregrine_lab_host::interrupt::is_interrupted;
use peregrine_lab_load::generator::{Outcome, Plan, Watch, run, run_counted};
use peregrine_lab_load::schedule::Schedule;
use peregrine_lab_scenario::Scenario;

use crate::arms::gate;
use crate::error::RunError;
use crate::progress::Progress;
use crate::stage::Stage;
use crate::verify;

/// How long a rate is offered before it counts, unless a step is shorter.
const WARMUP: Duration = Duration::from_millis(300);

/// How many rates are tried between the ends of the search.
const STEPS: u32 = 7;

/// How often the found rate has to keep the promise before it is believed.
const CONFIRMATIONS: u32 = 3;

/// The part of the requests that has to be answered in time for the rate to count as kept.
const ANSWERED_SHARE_MIN: f64 = 0.99;

/// The client has to notice starts this promptly (at the 99th percentile), or it is the limit.
const LAG_NS_MAX: u64 = 1_000_000;

/// A promise, such as `p99<5ms`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Promise {
    /// Which percentile, from 0 to 100.
    pub percent: f64,
    /// What it does not exceed.
    pub limit: Duration,
}

impl Promise {
    /// Reads `p99<5ms`, `p50<800us` or `p99.9<1s`.
    ///
    /// # Errors
    ///
    /// A sentence that shows the form.
    pub fn parse(text: &str) -> Result<Promise, String> {
        let read = || {
            let (percent, limit) = text.strip_prefix('p')?.split_once('<')?;
            let percent: f64 = percent.parse().ok().filter(|p| (0.0..100.0).contains(p))?;
            let digits = limit.find(|c: char| c.is_ascii_alphabetic())?;
            let (number, unit) = limit.split_at(digits);
            let number: f64 = number.parse().ok().filter(|number| *number > 0.0)?;
            let seconds = match unit {
                "us" => number / 1e6,
                "ms" => number / 1e3,
                "s" => number,
                _ => return None,
            };
            Some(Promise { percent, limit: Duration::from_secs_f64(seconds) })
        };
        read().ok_or_else(|| format!("{text:?} is no promise such as p99<5ms"))
    }
}

/// One rate that was tried.
#[derive(Debug, Clone)]
pub struct Rung {
    /// Requests per second that were offered.
    pub rate: f64,
    /// What the promise is about, in nanoseconds; none if too few samples.
    pub latency_ns: Option<u64>,
    /// Whether the promise was kept, and everything answered rightly.
    pub is_kept: bool,
    /// Whether the client itself was late.
    pub is_client_bound: bool,
    /// What was seen.
    pub outcome: Outcome,
    /// Server CPU time per right reply, in microseconds.
    pub server_us: f64,
}

/// What a ladder found.
#[derive(Debug, Clone)]
pub struct Climb {
    /// The highest rate that kept the promise each time it was tried; none if none did.
    pub rate: Option<f64>,
    /// Everything that was tried, in order.
    pub rungs: Vec<Rung>,
    /// The capacity of a closed loop, from which the search began.
    pub capacity: f64,
    /// Whether the client's limit ended the search, and not the server's.
    pub is_client_bound: bool,
}

/// Looks for the highest rate at which the contender keeps the promise with the scenario's
/// requests: a bisection of open loops of `duration` each, the found rate confirmed by more runs.
///
/// # Errors
///
/// A [`RunError`]: a contender that does not answer rightly, or what keeps the client from going on.
pub fn climb(
    stage: &Stage,
    recipe: &Recipe,
    scenario: &Scenario,
    (promise, connections): (Promise, usize),
    duration: Duration,
    progress: &mut dyn Progress,
) -> Result<Climb, RunError> {
    let up = stage.start(recipe, &recipe.name)?;
    if let Some(failures) = verify::failures(&gate(&recipe.name, &up, scenario)?) {
        return Err(RunError::NotReady(format!("{}:\n  {failures}", recipe.name)));
    }
    let exchange = scenario
        .exchange
        .as_ref()
        .ok_or_else(|| RunError::Invalid(format!("{} asks no server", scenario.name)))?;
    let address = up.address(scenario.load.tls.is_some());
    let question = exchange
        .question(&format!("localhost:{}", address.port()), 1)
        .map_err(|error| RunError::Invalid(error.to_string()))?;
    let cpus = stage.client_cpus();
    let plan = Plan {
        tls: scenario.load.tls.map(|_| verify::secured(false)),
        connections,
        duration,
        threads: cpus.len().min(connections),
        cpus,
        ..Plan::new(address, question.into())
    };
    progress.begin("ladder", u64::from(STEPS + CONFIRMATIONS + 1), duration * STEPS);
    let asking = || RunError::io(format!("asking {}", recipe.name));
    let closed = run(&plan, &Watch::default()).map_err(asking())?;
    progress.step();
    let capacity = closed.rate();
    let mut climb = Climb { rate: None, rungs: Vec::new(), capacity, is_client_bound: false };
    let mut try_rate = |rate: f64, climb: &mut Climb| -> Result<bool, RunError> {
        let warmup = WARMUP.min(duration);
        let plan = Plan { schedule: Schedule::Poisson { rate }, warmup, ..plan.clone() };
        let warm = OnceLock::new();
        let before = up.read();
        let at_warm = || drop(warm.set(up.read()));
        let outcome = run_counted(&plan, &Watch::default(), &at_warm).map_err(asking())?;
        let used = up.read().since(warm.get().unwrap_or(&before));
        progress.step();
        let rung = judge(promise, rate, outcome, used.used_ns);
        let is_kept = rung.is_kept;
        climb.is_client_bound |= !is_kept && rung.is_client_bound;
        climb.rungs.push(rung);
        Ok(is_kept && !is_interrupted())
    };
    let (mut low, mut high) = (0.0, capacity * 1.1);
    for _ in 0..STEPS {
        let middle = if low == 0.0 { high / 2.0 } else { f64::midpoint(low, high) };
        if try_rate(middle, &mut climb)? {
            low = middle;
        } else {
            high = middle;
        }
        if is_interrupted() {
            break;
        }
    }
    // A rate that was kept once by luck is not the answer: go down until it is kept each time.
    let mut rate = low;
    while rate > capacity * 0.01 && !is_interrupted() {
        let mut is_kept = true;
        for _ in 0..CONFIRMATIONS {
            is_kept = is_kept && try_rate(rate, &mut climb)?;
        }
        if is_kept {
            climb.rate = Some(rate);
            break;
        }
        rate *= 0.95;
    }
    progress.end();
    up.stop()?;
    Ok(climb)
}

fn judge(promise: Promise, rate: f64, outcome: Outcome, server_ns: u64) -> Rung {
    let latency_ns = outcome.latency.percentile(promise.percent).nanoseconds;
    let limit = promise.limit.as_nanos();
    let is_fast = latency_ns.is_some_and(|latency| u128::from(latency) <= limit);
    // Of what the schedule really asked for: in a short run chance alone moves its rate by per cents.
    let is_answered = outcome.replies_in_time as f64 >= outcome.sent as f64 * ANSWERED_SHARE_MIN
        && outcome.dropped == 0;
    let is_client_bound =
        outcome.lag.percentile(99.0).nanoseconds.is_some_and(|lag| lag > LAG_NS_MAX);
    Rung {
        rate,
        latency_ns,
        is_kept: is_fast && is_answered && outcome.is_valid(),
        is_client_bound,
        server_us: server_ns as f64 / 1e3 / outcome.replies.max(1) as f64,
        outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_are_read_with_their_units() {
        let promise = |percent, limit| Ok(Promise { percent, limit });
        assert_eq!(Promise::parse("p99<5ms"), promise(99.0, Duration::from_millis(5)));
        assert_eq!(Promise::parse("p99.9<1s"), promise(99.9, Duration::from_secs(1)));
        assert_eq!(Promise::parse("p50<250us"), promise(50.0, Duration::from_micros(250)));
        for text in ["", "p99", "99<5ms", "p101<5ms", "p99<5", "p99<-1ms", "p99<5h"] {
            assert!(Promise::parse(text).unwrap_err().contains("p99<5ms"), "{text}");
        }
    }
}
