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
    for file in files {
        judge_result(file, &mut reasons);
        judge_machine(file, &mut reasons);
    }
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
        None => add(reasons, Light::Red, format!("{run}: no A/A arm, so the noise is unknown")),
        Some(again) if again.band > BAND_MAX => {
            let band = numbers::percent(again.band);
            let text = format!("{run}: the same program twice differs by up to {band}");
            add(reasons, Light::Amber, text);
        }
        Some(_) => {}
    }
    for check in &file.checks {
        let who = check.contender.as_deref().unwrap_or("the run");
        let (light, words) = match check.outcome {
            Outcome::Failed => (Light::Red, "failed"),
            Outcome::Warned => (Light::Amber, "is odd"),
            Outcome::ClientBound => (Light::Amber, "shows that the client was the limit"),
            Outcome::Passed | Outcome::Skipped | Outcome::Other => continue,
        };
        add(reasons, light, format!("{run}: “{}” {words} for {who}", check.name));
    }
    for verdict in file.verdicts.iter().filter(judged) {
        let name = &verdict.contender;
        if file.blocks_of(name).any(|block| block.errors_total() > 0) {
            add(reasons, Light::Red, format!("{run}: {name} is judged in spite of its errors"));
        }
    }
    let fewest = file.verdicts.iter().filter(judged).map(|verdict| verdict.blocks).min();
    match fewest {
        None => add(reasons, Light::Amber, format!("{run}: nothing is compared")),
        Some(blocks) if blocks < BLOCKS_MIN => {
            add(reasons, Light::Amber, format!("{run}: a verdict rests on {blocks} blocks only"));
        }
        Some(_) => {}
    }
    if file.is_partial {
        add(reasons, Light::Amber, format!("{run}: stopped before its plan was done"));
    }
    if file.tool.is_modified || file.tool.commit.is_empty() {
        let text = "the lab was built from sources that no commit names";
        add(reasons, Light::Amber, text.to_owned());
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
    let disturbances =
        [(machine.stolen_share, "the host took"), (machine.foreign_share, "other programs used")];
    for (share, what) in disturbances {
        let Some(share) = share.filter(|share| *share > DISTURBED_MAX) else { continue };
        let light = if share > DISTURBED_RED { Light::Red } else { Light::Amber };
        let share = numbers::percent(share);
        add(reasons, light, format!("{run}: {what} {share} of the servers' CPU time"));
    }
    if let Some([load, ..]) = machine.load_before
        && load > LOAD_MAX * f64::from(machine.cpus)
    {
        let load = numbers::fixed(load, 2);
        add(reasons, Light::Amber, format!("{run}: the machine had a load of {load} before"));
    }
}

/// A reason that holds for several runs stands once.
fn add(reasons: &mut Vec<Reason>, light: Light, text: String) {
    let reason = Reason { light, text };
    if !reasons.contains(&reason) {
        reasons.push(reason);
    }
}
