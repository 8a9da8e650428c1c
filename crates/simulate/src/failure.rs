//! [`Failure`]: the report of a failed run.

use peregrine_driver_sim::{Network, RunFailure};
use std::fmt;
use std::time::Duration;

/// A failed run: its cause, and details about it. The `Display` form is the panic message of the
/// test.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure {
    seed: u64,
    cause: String,
    virtual_time: Duration,
    steps: u64,
    pub(super) digest: u64,
    /// Requests that were still waiting for their responses, and for how long.
    pending_requests: Vec<(String, Duration)>,
    events: Vec<(Duration, String)>,
    /// The outcome of the other run with this seed.
    repeat_result: Option<RepeatResult>,
    /// The name of the test, if it is known.
    test: Option<String>,
}

/// The outcome of the other run with the seed of a failed run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RepeatResult {
    /// It failed in the same way.
    Same,
    /// It failed in a different way, with this cause.
    Different(String),
    /// It passed.
    Passed,
}

impl Failure {
    pub(super) fn new(
        network: &Network,
        cause: String,
        pending_requests: Vec<(String, Duration)>,
    ) -> Self {
        let now =
            network.failure().map_or_else(|| network.now(), |run_failure| run_failure.idle_since);
        let with_waiting_time =
            |(request, since): (String, Duration)| (request, now.saturating_sub(since));
        Self {
            seed: network.seed(),
            cause,
            virtual_time: now,
            steps: network.polls(),
            digest: network.trace_digest(),
            pending_requests: pending_requests.into_iter().map(with_waiting_time).collect(),
            events: network.event_log(),
            repeat_result: None,
            test: None,
        }
    }

    pub(super) fn with_repeat_result(
        self,
        repeat_result: RepeatResult,
        test: Option<String>,
    ) -> Self {
        Self { repeat_result: Some(repeat_result), test, ..self }
    }

    /// Two runs with the same seed passed, but differed.
    pub(super) fn nondeterministic(seed: u64, test: Option<String>) -> Self {
        let cause = "two runs with this seed passed, but their events differ".to_owned();
        Self {
            seed,
            cause,
            virtual_time: Duration::ZERO,
            steps: 0,
            digest: 0,
            pending_requests: Vec::new(),
            events: Vec::new(),
            repeat_result: Some(RepeatResult::Passed),
            test,
        }
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the cause: the message of a panic, or the limit that was reached.
    #[must_use]
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// Returns the virtual time of the failure.
    #[must_use]
    pub fn virtual_time(&self) -> Duration {
        self.virtual_time
    }

    /// Returns the last events before the failure, with their virtual times.
    #[must_use]
    pub fn events(&self) -> &[(Duration, String)] {
        &self.events
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, virtual_time, steps, .. } = self;
        let virtual_time = virtual_time.as_secs_f64();
        writeln!(
            f,
            "seed {seed} fails at {virtual_time:.3} s of virtual time, after {steps} steps:"
        )?;
        self.cause.lines().try_for_each(|line| writeln!(f, "  {line}"))?;
        if !self.pending_requests.is_empty() {
            writeln!(f, "requests without a response:")?;
        }
        for (request, time) in &self.pending_requests {
            writeln!(f, "  {request}, for {:.3} s", time.as_secs_f64())?;
        }
        writeln!(f, "last events:")?;
        for (time, text) in &self.events {
            writeln!(f, "  {:>10.3} s  {text}", time.as_secs_f64())?;
        }
        match &self.repeat_result {
            None => return Ok(()),
            Some(RepeatResult::Same) => {
                writeln!(f, "A second run with this seed failed in the same way.")?
            }
            Some(RepeatResult::Different(cause)) => writeln!(
                f,
                "A second run with this seed failed differently, so something other than the seed \
                 affects the run (see \"What breaks repetition\" in peregrine_simulate): {cause}"
            )?,
            Some(RepeatResult::Passed) => writeln!(
                f,
                "Another run with this seed passed, so something other than the seed affects the \
                 run (see \"What breaks repetition\" in peregrine_simulate)."
            )?,
        }
        let test = self.test.as_deref().unwrap_or("NAME_OF_THE_TEST");
        write!(f, "To run it alone: PEREGRINE_SEEDS={seed} cargo test {test}")
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}

/// Explains why the network ended a run: a deadlock, or a limit, which can be raised.
pub(super) fn cause_of(failure: &RunFailure, (time_max, steps_max): (Duration, u64)) -> String {
    let RunFailure { cause, tasks, tokio_tasks, waiting, .. } = failure;
    let explanation = match *cause {
        "deadlock" => "deadlock: the test waits, but no event is pending".to_owned(),
        "time is over" => format!(
            "the test has not ended after {time_max:?} of virtual time; if this is expected, \
             raise Simulation::time_max"
        ),
        _ => format!(
            "the test has not ended after {steps_max} steps, so a task could be in an endless loop; \
             if this is expected, raise Simulation::steps_max"
        ),
    };
    format!(
        "{explanation}\nbesides the test, {tasks} network tasks and {tokio_tasks} tokio tasks have \
         not ended; waiting: {waiting}"
    )
}
