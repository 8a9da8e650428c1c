//! [`Simulation`] runs a test with many seeds.

use super::failure::{Failure, RepeatResult, cause_of};
use super::faults::Faults;
use super::seeds::Seeds;
use super::sim::{Sim, panic_message};
use peregrine_driver::Options;
use peregrine_driver_sim::Network;
use peregrine_server::{Lifecycle, WorkerLocals};
use peregrine_web::panic;
use std::fmt::Debug;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Runs a test once for each of many seeds, with configurable faults and limits.
/// [`seeds`](super::seeds) is the short form, with the defaults.
///
/// ```
/// use peregrine::prelude::*;
/// use peregrine_simulate::{Faults, Simulation};
///
/// Simulation::seeds(0..20).faults(Faults::hostile()).run(async |sim| {
///     let server = sim.serve(|| App::new().get("/", || "hello"));
///     match server.client().get("/").send().await {
///         Ok(response) if response.status() == 200 => assert_eq!(response.text(), "hello"),
///         // On such a network, a request can arrive too late or be lost.
///         Ok(response) => assert_eq!(response.status(), 408),
///         Err(error) => sim.log(error.to_string()),
///     }
/// });
/// ```
#[derive(Clone, Debug)]
#[must_use = "a simulation does nothing until `run`"]
pub struct Simulation {
    seeds: Seeds,
    faults: Option<Faults>,
    time_max: Duration,
    steps_max: u64,
    allows_panics: bool,
    checks_determinism: bool,
}

/// The return value of a test: nothing, or a `Result` whose error fails the test.
pub trait TestOutcome {
    /// Returns the error, if there is one.
    #[doc(hidden)]
    fn failure(self) -> Option<String>;
}

impl TestOutcome for () {
    fn failure(self) -> Option<String> {
        None
    }
}

impl<E: Debug> TestOutcome for Result<(), E> {
    fn failure(self) -> Option<String> {
        self.err().map(|error| format!("the test returned an error: {error:?}"))
    }
}

/// A successful run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunReport {
    /// A digest of all events. Two runs with the same seed have the same digest, unless something
    /// other than the seed [affects them](crate#what-breaks-repetition).
    pub digest: u64,
    /// How long the run took, on the virtual clock.
    pub virtual_time: Duration,
    /// How often network tasks were polled.
    pub steps: u64,
}

impl Simulation {
    /// Runs the test once for each of these seeds. The environment variable `PEREGRINE_SEEDS` takes
    /// precedence.
    pub fn seeds(seeds: impl Into<Seeds>) -> Self {
        Self {
            seeds: seeds.into(),
            faults: None,
            time_max: Duration::from_secs(7 * 24 * 60 * 60),
            steps_max: 10_000_000,
            allows_panics: false,
            checks_determinism: false,
        }
    }

    /// Sets the network's faults for every seed. Default: [`Faults::harmless`], and none for seed
    /// 0.
    pub fn faults(self, faults: Faults) -> Self {
        Self { faults: Some(faults), ..self }
    }

    /// Sets the maximum time of a run on the virtual clock. A run that takes longer fails. Default:
    /// one week.
    pub fn time_max(self, time_max: Duration) -> Self {
        Self { time_max, ..self }
    }

    /// Sets how often the tasks of a run may be polled before it fails, not counting tasks of
    /// `tokio::spawn`. Default: 10 million.
    pub fn steps_max(self, steps_max: u64) -> Self {
        Self { steps_max, ..self }
    }

    /// Allows the application to panic, as in production, where the client then gets a 500.
    /// Default: a panic of the application fails the run.
    pub fn allow_panics(self) -> Self {
        Self { allows_panics: true, ..self }
    }

    /// Runs each seed twice, and fails if the two runs differ. If they differ, something other than
    /// the seed affects them, and failures cannot be reproduced.
    #[doc(alias = "determinism")]
    pub fn check_determinism(self) -> Self {
        Self { checks_determinism: true, ..self }
    }

    /// Runs `test` with all seeds, up to the first one with which it fails.
    ///
    /// # Panics
    /// If the test fails with one of the seeds, see [`seeds`](super::seeds); if `PEREGRINE_SEEDS`
    /// is invalid; or if there are no seeds.
    #[track_caller]
    pub fn run<V: TestOutcome>(&self, test: impl AsyncFn(Sim) -> V) {
        let seeds = match self.seeds.or_from_env() {
            Ok(seeds) => seeds,
            Err(text) => panic!("{text}"),
        };
        assert!(seeds.iter().next().is_some(), "a simulation needs a seed, such as `0..100`");
        if let Err(failure) = self.run_all(&seeds, &test) {
            panic!("{failure}");
        }
    }

    fn run_all<V: TestOutcome>(
        &self,
        seeds: &Seeds,
        test: &impl AsyncFn(Sim) -> V,
    ) -> Result<(), Box<Failure>> {
        for seed in seeds.iter() {
            let result = self.run_one(seed, test);
            let failure = match result {
                Ok(_) if !self.checks_determinism => continue,
                Ok(first_report) => match self.run_one(seed, test) {
                    Ok(second_report) if second_report == first_report => continue,
                    Ok(_) => Failure::nondeterministic(seed, test_name()),
                    Err(failure) => failure.with_repeat_result(RepeatResult::Passed, test_name()),
                },
                Err(failure) => {
                    eprintln!(
                        "seed {seed} fails; running it again, to see whether the failure repeats"
                    );
                    let repeat_result = match self.run_one(seed, test) {
                        Ok(_) => RepeatResult::Passed,
                        Err(second_failure) if second_failure == failure => RepeatResult::Same,
                        Err(second_failure) => {
                            RepeatResult::Different(second_failure.cause().to_owned())
                        }
                    };
                    failure.with_repeat_result(repeat_result, test_name())
                }
            };
            return Err(Box::new(failure));
        }
        Ok(())
    }

    /// Runs `test` with one seed.
    ///
    /// # Errors
    /// If the test fails.
    pub fn run_one<V: TestOutcome>(
        &self,
        seed: u64,
        test: &impl AsyncFn(Sim) -> V,
    ) -> Result<RunReport, Box<Failure>> {
        let faults = match &self.faults {
            Some(faults) => faults.clone(),
            None if seed == 0 => Faults::none(),
            None => Faults::harmless(),
        };
        let network = Network::new(seed, faults.to_network());
        network.set_time_max(self.time_max);
        network.set_polls_max(self.steps_max);
        network.suppress_panic_message();
        let sim = Sim::new(network.clone(), self.allows_panics);
        let hook_sim = sim.clone();
        let panic_hook = PanicHookGuard::install(move |message| hook_sim.on_app_panic(message));
        let run = || {
            network.run(&Options::default(), async |driver| {
                sim.set_driver(driver);
                run_test(&sim, test).await;
            })
        };
        let outcome = catch_unwind(AssertUnwindSafe(run));
        drop(panic_hook);
        let cause = match (outcome, network.failure(), sim.failure()) {
            (_, _, Some(cause)) => cause,
            (Err(_), Some(run_failure), _) => {
                cause_of(&run_failure, (self.time_max, self.steps_max))
            }
            (Err(panic), None, _) => uncaught_panic_cause(panic_message(&*panic)),
            (Ok(Ok(())), ..) => {
                let (digest, virtual_time) = (network.trace_digest(), network.now());
                return Ok(RunReport { digest, virtual_time, steps: network.polls() });
            }
            (Ok(Err(error)), ..) => format!("cannot create a tokio runtime: {error}"),
        };
        Err(Box::new(Failure::new(&network, cause, sim.pending_requests())))
    }
}

/// Runs the test and then shuts down its servers. Reports failures to `sim`.
async fn run_test<V: TestOutcome>(sim: &Sim, test: impl AsyncFn(Sim) -> V) {
    let (mut run_failure, mut test_future) =
        (pin!(sim.wait_for_failure()), pin!(test(sim.clone())));
    let has_passed = poll_fn(|cx| {
        if run_failure.as_mut().poll(cx).is_ready() {
            return Poll::Ready(false);
        }
        // Panics are caught here, so that the report shows the state before unwinding drops the
        // servers.
        let poll_test = AssertUnwindSafe(|| test_future.as_mut().poll(cx));
        let cause = match catch_unwind(poll_test) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(outcome)) => outcome.failure(),
            Err(panic) => Some(panic_message(&*panic)),
        };
        let has_passed = cause.is_none();
        cause.into_iter().for_each(|cause| sim.fail(cause));
        Poll::Ready(has_passed)
    });
    if !has_passed.await {
        return;
    }
    let servers = sim.shared().servers.take();
    servers.iter().for_each(|server| server.advance_lifecycle(Lifecycle::Draining));
    for server in &servers {
        let mut stopped = pin!(server.stopped());
        let has_stopped = poll_fn(|cx| match run_failure.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(false),
            Poll::Pending => stopped.as_mut().poll(cx).map(|()| true),
        });
        if !has_stopped.await {
            return;
        }
    }
}

/// Installs a panic hook for this thread. Dropping it restores the previous hook, and resets the
/// thread's worker state.
struct PanicHookGuard(Option<panic::PanicHook>);

impl PanicHookGuard {
    fn install(hook: impl Fn(&str) + 'static) -> Self {
        Self(panic::set_panic_hook(Some(Rc::new(hook))))
    }
}

impl Drop for PanicHookGuard {
    fn drop(&mut self) {
        drop(panic::set_panic_hook(self.0.take()));
        WorkerLocals::default().install();
    }
}

/// Returns the cause of a panic that was not caught in the run, with its fix if that is known.
fn uncaught_panic_cause(message: String) -> String {
    if message.contains("runtime from within a runtime") {
        return "a simulation creates its own runtime, but this thread is already in one: call it \
                from a plain #[test], not from #[tokio::test], and not from within another \
                simulation"
            .to_owned();
    }
    message
}

/// Returns the test's name, which is the name of its thread.
fn test_name() -> Option<String> {
    let thread = std::thread::current();
    thread.name().filter(|name| *name != "main").map(str::to_owned)
}
