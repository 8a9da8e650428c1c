//! `lab compare A B`: one verdict, with an exit code for programs.

use std::fs;

use peregrine_lab_model::plan::Design;
use peregrine_lab_model::verdict::{Decision, Measure, Verdict};
use peregrine_lab_run::session::{self, Session};
use peregrine_lab_run::wanted::Wanted;

use super::{report, run};
use crate::bars::Bars;
use crate::bench;
use crate::exit::{Exit, Failure};
use crate::options::{Compare, FailIf};
use crate::places::{Asked, Places};

pub(super) fn compare(options: &Compare, places: &Places) -> Result<Exit, Failure> {
    let (is_tls, is_http2, streams) = (options.tls, options.http2, options.streams);
    let asked = Asked { is_tls, is_http2, streams };
    let scenario = places.find_scenario(&options.scenario, asked)?;
    let names = [options.other.clone(), options.one.clone()];
    let mut recipes = Vec::new();
    for name in &names {
        recipes.extend(bench::recipes(places, std::slice::from_ref(name))?);
    }
    let [other, one] = &recipes[..] else {
        return Err(Failure::usage("compare needs two contenders, each by its own name"));
    };
    let (one, other) = (one.name.clone(), other.name.clone());
    if one == other {
        let text = format!("{one} against itself: the A/A arm of every run shows that already");
        return Err(Failure::usage(text));
    }
    if !options.bench.no_build {
        bench::build(&recipes, places)?;
    }
    let (stage, facts) = bench::stage(&options.bench, places)?;
    let mut bars = Bars::new();
    let mut session = Session {
        stage: &stage,
        facts: &facts,
        folder: options.out.as_deref(),
        progress: &mut bars,
    };
    let wanted = Wanted {
        connections: vec![options.concurrency],
        design: Design::Paired,
        blocks: Some(options.blocks),
        slice: options.duration,
        seed: options.bench.seed,
        look: options.bench.look,
        is_noise_tolerated: options.bench.tolerate_noise,
        reference: Some(other),
        effect_min: Some(options.min_effect),
        ..Wanted::new(scenario, recipes)
    };
    let done = session::measure(&mut session, &wanted)?;
    let file = done.files.first().ok_or(Failure {
        exit: Exit::Interrupted,
        text: "interrupted before anything was measured".to_owned(),
    })?;
    run::tell(file);
    if let Some(out) = &options.out {
        fs::create_dir_all(out).map_err(|error| Failure::file(out.display(), &error))?;
        report::write(&done.files, out, report::USUAL)?;
    }
    if done.is_partial {
        return Ok(Exit::Interrupted);
    }
    if done.is_voided {
        return Ok(Exit::Unfit);
    }
    let verdict = file
        .verdicts
        .iter()
        .find(|verdict| verdict.contender == one && verdict.measure == Measure::ServerCpu);
    Ok(verdict.map_or(Exit::Wrong, |verdict| exit(verdict, options.fail_if)))
}

fn exit(verdict: &Verdict, fail_if: Option<FailIf>) -> Exit {
    match (verdict.decision, fail_if) {
        (Decision::Void | Decision::Other, _) => Exit::Wrong,
        (Decision::CannotTell, _) => Exit::Inconclusive,
        (Decision::Slower, Some(FailIf::Slower | FailIf::Different))
        | (Decision::Faster, Some(FailIf::Faster | FailIf::Different)) => Exit::Regression,
        _ => Exit::Right,
    }
}

#[cfg(test)]
mod tests {
    use peregrine_lab_model::verdict::Ratio;

    use super::*;

    #[test]
    fn a_verdict_becomes_the_exit_code_that_was_asked_for() {
        let verdict = |decision| Verdict {
            contender: "a".to_owned(),
            reference: "b".to_owned(),
            measure: Measure::ServerCpu,
            ratio: Ratio { estimate: 1.0, low: 1.0, high: 1.0 },
            decision,
            blocks: 10,
            p_value: None,
            more_blocks: None,
            note: String::new(),
        };
        let table = [
            (Decision::Slower, Some(FailIf::Slower), Exit::Regression),
            (Decision::Slower, Some(FailIf::Faster), Exit::Right),
            (Decision::Slower, None, Exit::Right),
            (Decision::Faster, Some(FailIf::Different), Exit::Regression),
            (Decision::Equivalent, Some(FailIf::Different), Exit::Right),
            (Decision::CannotTell, Some(FailIf::Slower), Exit::Inconclusive),
            (Decision::Void, None, Exit::Wrong),
        ];
        for (decision, fail_if, expected) in table {
            assert_eq!(exit(&verdict(decision), fail_if), expected, "{decision:?} {fail_if:?}");
        }
    }
}
