//! Who takes part: contenders that can be had, started, and that answer rightly; the rest is kept
//! with its reason.

use std::path::Path;

use peregrine_lab_contender::{Recipe, State};
use peregrine_lab_model::check::Check;
use peregrine_lab_model::contender::Contender;
use peregrine_lab_scenario::Scenario;

use crate::conduct;
use crate::error::RunError;
use crate::stage::{Stage, Up};
use crate::verify::{self, Door};
use crate::wanted::Wanted;

/// What is added to the name of the second start of the A/A pair.
const AGAIN: &str = " (again)";

/// One of the things compared in a block.
#[derive(Debug, Clone)]
pub struct Arm {
    /// The contender's name, or that of its second start.
    pub name: String,
    /// How it is started.
    pub recipe: Recipe,
    /// Whether it is asked the scenario beside the one that the run is about.
    pub is_beside: bool,
}

impl Arm {
    /// What it is asked.
    #[must_use]
    pub fn scenario<'a>(&self, wanted: &'a Wanted) -> &'a Scenario {
        wanted.beside.as_ref().filter(|_| self.is_beside).unwrap_or(&wanted.scenario)
    }
}

/// Everyone who was to take part.
#[derive(Debug, Clone, Default)]
pub struct Lineup {
    /// Who does.
    pub arms: Vec<Arm>,
    /// Everyone as a run file lists them, those that were left out included.
    pub contenders: Vec<Contender>,
    /// What the gate found.
    pub checks: Vec<Check>,
    /// Who was turned away by the gate.
    pub refused: Vec<String>,
    /// Who was not heard of in time.
    pub unmeasured: Vec<String>,
    /// The arms of the A/A pair.
    pub pair: Option<(String, String)>,
}

impl Lineup {
    /// Everyone who can be had and who can serve the scenario, with a second start of the reference
    /// (the first one if none is named). Whoever can serve the scenario beside has an arm for it as
    /// well. What is not built is not built here.
    ///
    /// # Errors
    ///
    /// [`RunError::Invalid`] if the reference is not among them or nobody is left.
    pub fn of(wanted: &Wanted, target: &Path) -> Result<Lineup, RunError> {
        let mut lineup = Lineup::default();
        let scenarios = [Some(&wanted.scenario), wanted.beside.as_ref()];
        for (is_beside, scenario) in [false, true].into_iter().zip(scenarios) {
            let Some(scenario) = scenario else { continue };
            for recipe in &wanted.recipes {
                let mut contender = recipe.identity(target);
                if is_beside {
                    contender.name = format!("{} ({})", recipe.name, scenario.name);
                }
                contender.skipped = obstacle(recipe, scenario, target);
                if contender.skipped.is_none() {
                    let (name, recipe) = (contender.name.clone(), recipe.clone());
                    lineup.arms.push(Arm { name, recipe, is_beside });
                }
                lineup.contenders.push(contender);
            }
        }
        let first = match wanted.reference.as_deref() {
            Some(name) => {
                let found = lineup.arms.iter().find(|arm| arm.name == name);
                found.cloned().ok_or_else(|| lineup.no_reference(name))?
            }
            None => lineup.arms.first().cloned().ok_or_else(|| lineup.nobody())?,
        };
        let second = format!("{}{AGAIN}", first.name);
        lineup.pair = Some((first.name.clone(), second.clone()));
        let twin = lineup.contenders.iter().find(|one| one.name == first.name).cloned();
        if let Some(mut twin) = twin {
            twin.name.clone_from(&second);
            lineup.contenders.push(twin);
        }
        lineup.arms.push(Arm { name: second, ..first });
        Ok(lineup)
    }

    /// The contender that the others are compared with.
    #[must_use]
    pub fn reference(&self) -> &str {
        self.pair.as_ref().map_or("", |(first, _)| first)
    }

    /// The names of the arms.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.arms.iter().map(|arm| arm.name.clone()).collect()
    }

    /// Starts every arm and lets it through the gate. Who fails is left out and said why; if it is
    /// the reference, nothing can be compared.
    ///
    /// # Errors
    ///
    /// [`RunError::NotReady`] if the reference fails or nobody is left.
    pub fn start(&mut self, stage: &Stage, wanted: &Wanted) -> Result<Vec<Up>, RunError> {
        let mut ups = Vec::new();
        for arm in std::mem::take(&mut self.arms) {
            match self.start_one(stage, arm.scenario(wanted), &arm) {
                Ok(up) => {
                    self.arms.push(arm);
                    ups.push(up);
                }
                Err(RunError::Interrupted) => return Err(RunError::Interrupted),
                Err(error) => self.refuse(&arm.name, &error)?,
            }
        }
        Ok(ups)
    }

    /// Starts one arm and lets it through the gate.
    ///
    /// # Errors
    ///
    /// [`RunError::NotReady`] with what was wrong.
    pub fn start_one(
        &mut self,
        stage: &Stage,
        scenario: &Scenario,
        arm: &Arm,
    ) -> Result<Up, RunError> {
        let up = stage.start(&arm.recipe, &arm.name)?;
        if let Some(contender) = self.contenders.iter_mut().find(|one| one.name == arm.name) {
            // Its commands stay as the recipe has them: ports and folders are those of one start on
            // one machine, and tell a reader nothing.
            contender.workers = stage.workers as u32;
        }
        let is_known = self.checks.iter().any(|check| check.contender.as_ref() == Some(&arm.name));
        if !is_known {
            let checks = gate(&arm.name, &up, scenario)?;
            let failures = verify::failures(&checks);
            self.checks.extend(checks);
            if let Some(failures) = failures {
                let text = format!("{} does not answer rightly:\n  {failures}", arm.name);
                return Err(RunError::NotReady(text));
            }
        }
        Ok(up)
    }

    /// Leaves an arm out for this reason.
    ///
    /// # Errors
    ///
    /// The reason itself, if the arm is one of the A/A pair.
    pub fn refuse(&mut self, name: &str, error: &RunError) -> Result<(), RunError> {
        let is_pair = self.pair.as_ref().is_some_and(|(one, two)| one == name || two == name);
        let is_silent = matches!(error, RunError::NotMeasured(_));
        if is_pair {
            let text = format!("the reference cannot be timed: {error}");
            let reason = if is_silent { RunError::NotMeasured } else { RunError::NotReady };
            return Err(reason(text));
        }
        let whose = if is_silent { &mut self.unmeasured } else { &mut self.refused };
        whose.push(name.to_owned());
        if let Some(contender) = self.contenders.iter_mut().find(|one| one.name == name) {
            contender.skipped = Some(error.to_string());
        }
        Ok(())
    }

    fn no_reference(&self, name: &str) -> RunError {
        let skipped = self.contenders.iter().find(|one| one.name == name);
        RunError::Invalid(match skipped.and_then(|one| one.skipped.as_ref()) {
            Some(reason) => format!("{name} cannot be the reference: {reason}"),
            None => format!("the reference {name} is none of the contenders"),
        })
    }

    fn nobody(&self) -> RunError {
        let reasons = self
            .contenders
            .iter()
            .filter_map(|one| Some(format!("\n  {}: {}", one.name, one.skipped.as_ref()?)));
        RunError::Invalid(format!("nobody is left to be measured:{}", reasons.collect::<String>()))
    }
}

/// What stands in the way of a contender, if anything does.
fn obstacle(recipe: &Recipe, scenario: &Scenario, target: &Path) -> Option<String> {
    let load = &scenario.load;
    if let Some(reason) = recipe.lacks(&scenario.base, load.tls.is_some(), load.is_http2) {
        return Some(reason);
    }
    match recipe.state(target) {
        State::Ready { .. } => None,
        State::NotBuilt => Some("it is not built".to_owned()),
        State::Skipped { reason } => Some(reason),
        State::NotObtainable { reason } => Some(format!("not obtainable here: {reason}")),
        State::BuildFailed { reason, log } => {
            Some(format!("it did not build: {reason} (all of it: {})", log.display()))
        }
    }
}

/// Everything that has to be right before a server is timed.
///
/// # Errors
///
/// Only what keeps the client from going on.
pub fn gate(name: &str, up: &Up, scenario: &Scenario) -> Result<Vec<Check>, RunError> {
    let (is_tls, is_http2) = (scenario.load.tls.is_some(), scenario.load.is_http2);
    let door = Door { address: up.address(is_tls), is_tls, is_http2 };
    let mut checks = verify::scenario(name, door, scenario)?;
    // The suite of conduct is about requests of HTTP/1.1.
    if is_http2 {
        return Ok(checks);
    }
    if let Some(exchange) = &scenario.exchange
        && !exchange.wording.is_websocket
        && let Ok(question) = exchange.question("localhost", 1)
    {
        let is_closing = scenario.load.requests_per_connection.is_some();
        checks.extend(conduct::checks(name, up.plain, &question, is_closing));
    }
    Ok(checks)
}
