//! How a failed run is told.

use peregrine_driver_sim::{Network, Stuck};
use std::fmt;
use std::time::Duration;

/// A run that failed: its cause, and what there is to know about it. Its text is what a test that fails says.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure {
    seed: u64,
    cause: String,
    now: Duration,
    steps: u64,
    pub(super) trace: u64,
    /// Requests without an answer, and how long they had waited.
    waiting: Vec<(String, Duration)>,
    story: Vec<(Duration, String)>,
    /// What became of the second run with this seed.
    repeated: Option<Repeated>,
    /// The name of the test, if it is known.
    test: Option<String>,
}

/// What became of the second run with a seed that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Repeated {
    /// The same.
    Same,
    /// It failed otherwise, for this cause.
    Otherwise(String),
    /// It did not fail.
    Passed,
}

impl Failure {
    pub(super) fn of(network: &Network, cause: String, asked: Vec<(String, Duration)>) -> Self {
        let now = network.stuck().map_or_else(|| network.now(), |stuck| stuck.since);
        let since = |(request, since): (String, Duration)| (request, now.saturating_sub(since));
        Self {
            seed: network.seed(),
            cause,
            now,
            steps: network.polls(),
            trace: network.trace(),
            waiting: asked.into_iter().map(since).collect(),
            story: network.story(),
            repeated: None,
            test: None,
        }
    }

    pub(super) fn repeated(self, repeated: Repeated, test: Option<String>) -> Self {
        Self { repeated: Some(repeated), test, ..self }
    }

    /// Two runs with one seed passed, and were not the same.
    pub(super) fn differing(seed: u64, test: Option<String>) -> Self {
        let cause = "two runs with this seed passed, but not by the same events".to_owned();
        let (waiting, story) = (Vec::new(), Vec::new());
        let (now, steps, trace) = (Duration::ZERO, 0, 0);
        let repeated = Some(Repeated::Passed);
        Self { seed, cause, now, steps, trace, waiting, story, repeated, test }
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// What went wrong: the message of a panic, or the limit that was reached.
    #[must_use]
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// The virtual time of the failure.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.now
    }

    /// The last events before it, with their virtual times.
    #[must_use]
    pub fn events(&self) -> &[(Duration, String)] {
        &self.story
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, now, steps, .. } = self;
        let now = now.as_secs_f64();
        writeln!(f, "seed {seed} fails at {now:.3} s of virtual time, after {steps} steps:")?;
        self.cause.lines().try_for_each(|line| writeln!(f, "  {line}"))?;
        if !self.waiting.is_empty() {
            writeln!(f, "requests without an answer:")?;
        }
        for (request, time) in &self.waiting {
            writeln!(f, "  {request}, for {:.3} s", time.as_secs_f64())?;
        }
        writeln!(f, "last events:")?;
        for (time, text) in &self.story {
            writeln!(f, "  {:>10.3} s  {text}", time.as_secs_f64())?;
        }
        match &self.repeated {
            None => return Ok(()),
            Some(Repeated::Same) => {
                writeln!(f, "A second run with this seed failed in the same way.")?
            }
            Some(Repeated::Otherwise(cause)) => writeln!(
                f,
                "A second run with this seed went another way, so that something decides that is not the seed (see \
                 \"What breaks repetition\" of peregrine_simulate). It failed: {cause}"
            )?,
            Some(Repeated::Passed) => writeln!(
                f,
                "Another run with this seed did not fail, so that something decides that is not the seed: see \
                 \"What breaks repetition\" of peregrine_simulate."
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

/// What a limit that was reached means, and what to do about it.
pub(super) fn cause_of(stuck: &Stuck, (time_max, steps_max): (Duration, u64)) -> String {
    let Stuck { what, tasks, tokio_tasks, waiting, .. } = stuck;
    let first = match *what {
        "deadlock" => "deadlock: the test waits, and nothing is left that could happen".to_owned(),
        "time is over" => format!(
            "the test is not over after {time_max:?} of virtual time; if it may take so long, raise \
             Simulation::time_max"
        ),
        _ => format!(
            "the test is not over after {steps_max} steps: something runs again and again; if it may take so many, raise \
             Simulation::steps_max"
        ),
    };
    format!(
        "{first}\nbeside the test, {tasks} tasks of the network and {tokio_tasks} of tokio are not over; waiting: {waiting}"
    )
}
