//! Whether a result may be published: green, amber or red, with the reasons.

use peregrine_lab_model::RunFile;
use peregrine_lab_model::check::Outcome;
use peregrine_lab_model::verdict::Decision;

use crate::content::{Light, Reason, Standing};
use crate::numbers;

/// The fewest blocks that an interval should rest on.
const BLOCKS_MIN: u32 = 20;

/// The widest noise band that is no reason for doubt, as a share.
const BAND_MAX: f64 = 0.05;

/// Foreign or stolen CPU time that is no reason for doubt, as a share.
const DISTURBED_MAX: f64 = 0.01;

/// Foreign or stolen CPU time at which a run says nothing, as a share.
const DISTURBED_RED: f64 = 0.05;

/// The load per CPU before a run that is no reason for doubt.
const LOAD_MAX: f64 = 0.5;

pub(crate) fn standing(files: &[RunFile]) -> Standing {
    let mut reasons = Vec::new();
    if files.iter().all(|file| file.blocks.is_empty()) {
        add(&mut reasons, Light::Red, "nothing was measured".to_owned());
    }
    if files.iter().all(|file| file.verdicts.is_empty()) {
        add(&mut reasons, Light::Amber, "nothing is compared with anything".to_owned());
    }
    for file in files {
        judge_result(file, &mut reasons);
        judge_machine(file, &mut reasons);
    }
    judge_quiet(files, &mut reasons);
    reasons.sort_by_key(|reason| std::cmp::Reverse(reason.light));
    let light = reasons.first().map_or(Light::Green, |reason| reason.light);
    if reasons.is_empty() {
        let text = "every run has an A/A arm, enough blocks, no errors, and a quiet machine";
        add(&mut reasons, Light::Green, text.to_owned());
    }
    Standing { light, reasons }
}

fn judge_result(file: &RunFile, reasons: &mut Vec<Reason>) {
    if file.blocks.is_empty() {
        return;
    }
    let run = &file.run;
    let judged = |verdict: &&peregrine_lab_model::verdict::Verdict| {
        !matches!(verdict.decision, Decision::Void | Decision::Other)
    };
    match &file.again {
        None if file.verdicts.is_empty() => {}
        None => add(reasons, Light::Red, format!("{run}: no A/A arm, so the noise is unknown")),
        Some(again) if !again.band.is_finite() => {
            add(reasons, Light::Red, format!("{run}: the A/A arm has no result"));
        }
        Some(again) if again.band > BAND_MAX => {
            let band = numbers::percent(again.band);
            let text = format!("{run}: the same program twice differs by up to {band}");
            add(reasons, Light::Amber, text);
        }
        Some(_) => {}
    }
    judge_checks(file, reasons);
    for verdict in file.verdicts.iter().filter(judged) {
        let name = &verdict.contender;
        if file.blocks_of(name).any(|block| block.errors_total() > 0) {
            add(reasons, Light::Red, format!("{run}: {name} is judged in spite of its errors"));
        }
    }
    let fewest = file.verdicts.iter().filter(judged).map(|verdict| verdict.blocks).min();
    match fewest {
        Some(blocks) if blocks < BLOCKS_MIN => {
            add(reasons, Light::Amber, format!("{run}: a verdict rests on {blocks} blocks only"));
        }
        Some(_) | None => {}
    }
    if file.is_partial {
        add(reasons, Light::Amber, format!("{run}: stopped before its plan was done"));
    }
    if file.tool.is_modified || file.tool.commit.is_empty() {
        let text = "the lab was built from sources that no commit names";
        add(reasons, Light::Amber, text.to_owned());
    }
}

/// A check that went wrong for several contenders is one reason.
fn judge_checks(file: &RunFile, reasons: &mut Vec<Reason>) {
    let mut seen: Vec<(&str, Outcome)> = Vec::new();
    for check in &file.checks {
        let (light, words) = match check.outcome {
            Outcome::Failed => (Light::Red, "failed"),
            Outcome::Warned => (Light::Amber, "is odd"),
            Outcome::ClientBound => (Light::Amber, "shows that the client was the limit"),
            Outcome::Passed | Outcome::Skipped | Outcome::Other => continue,
        };
        if seen.contains(&(&check.name, check.outcome)) {
            continue;
        }
        seen.push((&check.name, check.outcome));
        let same = file
            .checks
            .iter()
            .filter(|other| other.name == check.name && other.outcome == check.outcome);
        let names: Vec<&str> =
            same.map(|other| other.contender.as_deref().unwrap_or("the run")).collect();
        let (run, check, names) = (&file.run, &check.name, names.join(", "));
        add(reasons, light, format!("{run}: “{check}” {words} for {names}"));
    }
}

fn judge_machine(file: &RunFile, reasons: &mut Vec<Reason>) {
    let machine = &file.machine;
    let run = &file.run;
    if machine.is_virtual {
        add(reasons, Light::Amber, "the machine is a virtual one".to_owned());
    }
    if !matches!(machine.governor.as_str(), "performance" | "none") {
        let governor = if machine.governor.is_empty() { "unknown" } else { &machine.governor };
        add(reasons, Light::Amber, format!("the frequency governor is “{governor}”"));
    }
    if machine.smt == "on" {
        add(reasons, Light::Amber, "CPUs share cores (SMT is on)".to_owned());
    }
    let shared = machine.server_cpus.iter().any(|cpu| machine.client_cpus.contains(cpu));
    if shared {
        add(reasons, Light::Red, format!("{run}: client and servers share a CPU"));
    }
    if let Some([load, ..]) = machine.load_before
        && load > LOAD_MAX * f64::from(machine.cpus)
    {
        let load = numbers::fixed(load, 2);
        add(reasons, Light::Amber, format!("{run}: the machine had a load of {load} before"));
    }
}

/// The worst of all runs is one reason, whatever they are called.
fn judge_quiet(files: &[RunFile], reasons: &mut Vec<Reason>) {
    type Share = fn(&RunFile) -> Option<f64>;
    let disturbances: [(Share, &str); 2] = [
        (|file| file.machine.stolen_share, "the host took"),
        (|file| file.machine.foreign_share, "other programs used"),
    ];
    for (share, what) in disturbances {
        let disturbed: Vec<f64> =
            files.iter().filter_map(share).filter(|share| *share > DISTURBED_MAX).collect();
        let worst = disturbed.iter().copied().fold(0.0, f64::max);
        if disturbed.is_empty() {
            continue;
        }
        let light = if worst > DISTURBED_RED { Light::Red } else { Light::Amber };
        let (worst, count) = (numbers::percent(worst), disturbed.len());
        let text = match count {
            1 => format!("{what} {worst} of the servers' CPU time in one run"),
            _ => format!("{what} up to {worst} of the servers' CPU time in {count} runs"),
        };
        add(reasons, light, text);
    }
}

/// A reason that holds for several runs stands once.
fn add(reasons: &mut Vec<Reason>, light: Light, text: String) {
    let reason = Reason { light, text };
    if !reasons.contains(&reason) {
        reasons.push(reason);
    }
}
