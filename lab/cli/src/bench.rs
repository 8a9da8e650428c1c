//! What every measuring command does first: find contenders, build what is missing, divide the
//! CPUs.

use peregrine_lab_contender::{BuildError, Recipe, State, all, select};
use peregrine_lab_host::cpu_sets::Wish;
use peregrine_lab_host::interrupt;
use peregrine_lab_run::facts::Facts;
use peregrine_lab_run::stage::Stage;

use crate::exit::{Exit, Failure};
use crate::options::Bench;
use crate::places::Places;

/// The recipes of these names; `name=command` is one of its own.
pub(crate) fn recipes(places: &Places, wanted: &[String]) -> Result<Vec<Recipe>, Failure> {
    let mut chosen: Vec<Recipe> = Vec::new();
    let named: Vec<String> = wanted.iter().filter(|name| !name.contains('=')).cloned().collect();
    if !named.is_empty() {
        let known = all(&places.contenders()).map_err(Failure::usage)?;
        chosen.extend(select(&known, &named).map_err(Failure::usage)?.into_iter().cloned());
    }
    for text in wanted.iter().filter(|name| name.contains('=')) {
        chosen.push(Recipe::parse(text).map_err(Failure::usage)?);
    }
    Ok(chosen)
}

/// Builds what can be built and is not, and says so. What cannot be had stays in the list: the run
/// file tells why it was not measured.
pub(crate) fn build(recipes: &[Recipe], places: &Places) -> Result<(), Failure> {
    interrupt::watch().map_err(|error| Failure::file("catching Ctrl-C", &error))?;
    for recipe in recipes {
        match recipe.state(&places.target) {
            State::NotBuilt | State::BuildFailed { .. } => {}
            _ => continue,
        }
        eprintln!("building {} ...", recipe.name);
        match recipe.build(&places.target, &mut |_| {}) {
            Ok(()) => {}
            Err(BuildError::Interrupted) => {
                return Err(Failure { exit: Exit::Interrupted, text: "interrupted".to_owned() });
            }
            Err(error) => eprintln!("{error}"),
        }
    }
    Ok(())
}

/// Catches Ctrl-C, divides the CPUs, tunes the host if asked to, and reads what a run file says about
/// the machine. The host is as it was when the stage is dropped.
pub(crate) fn stage(bench: &Bench, places: &Places) -> Result<(Stage, Facts), Failure> {
    interrupt::watch().map_err(|error| Failure::file("catching Ctrl-C", &error))?;
    let wish = Wish {
        server: bench.server_cpus.clone(),
        client: bench.client_cpus.clone(),
        server_cores_max: None,
    };
    let mut stage = Stage::set(places.target.clone(), &wish, bench.workers)?;
    for remark in &stage.sets.remarks {
        eprintln!("{remark}");
    }
    if bench.tune {
        let tuning = stage.tune()?;
        for sentence in tuning.remarks().iter().chain(tuning.changes()) {
            eprintln!("tune: {sentence}");
        }
        if tuning.changes().is_empty() {
            eprintln!("tune: nothing had to be changed");
        }
    }
    let facts = Facts::capture(&stage, Some(&places.lab));
    Ok((stage, facts))
}
