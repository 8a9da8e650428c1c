//! `lab scenarios`: what can be asked.

use peregrine_lab_scenario::{Kind, Scenario};

use crate::exit::{Exit, Failure};
use crate::places::Places;

pub(super) fn scenarios(places: &Places) -> Result<Exit, Failure> {
    let all = Scenario::all(&places.scenarios()).map_err(Failure::usage)?;
    let width = all.iter().map(|one| one.name.len()).max().unwrap_or(0);
    for scenario in &all {
        println!("{:width$}  {:9}  {}", scenario.name, kind(&scenario.kind), scenario.title);
    }
    Ok(Exit::Right)
}

fn kind(kind: &Kind) -> &'static str {
    match kind {
        Kind::Load => "load",
        Kind::Latency { .. } => "latency",
        Kind::Idle => "idle",
        Kind::Overload { .. } => "overload",
        Kind::Shutdown => "shutdown",
        Kind::Micro(_) => "micro",
    }
}
