//! Whether a result may be published: green, amber or red, with the reasons.

use peregrine_lab_model::RunFile;
use peregrine_lab_model::check::{Check, Outcome};
use peregrine_lab_model::verdict::{Decision, Verdict};

use crate::content::{Light, Reason, Standing};
use crate::numbers;
use crate::subject::{self, Subject};

/// The fewest blocks that an interval should rest on.
const BLOCKS_MIN: u32 = 20;

/// The widest noise band that is no reason for doubt, as a share.
const BAND_MAX: f64 = 0.05;

/// Foreign or stolen CPU time that is no reason for doubt, as a share.
const DISTURBED_MAX: f64 = 0.01;

/// Foreign or stolen CPU time at which a run says nothing, as a share.
const DISTURBED_RED: f64 = 0.05;

/// The most contenders that a reason names.
const NAMES_MAX: usize = 5;

/// The load per CPU before a run that is no reason for doubt.
const LOAD_MAX: f64 = 0.5;

pub(crate) fn standing(files: &[RunFile]) -> Standing {
    let mut reasons = Vec::new();
    let of = |wanted: Subject| files.iter().filter(move |file| subject::of(file) == wanted);
    if of(Subject::Load).all(|file| file.blocks.is_empty()) {
        judge_nothing(files, &mut reasons);
    } else if files.iter().all(|file| file.verdicts.is_empty()) {
        add(&mut reasons, Light::Amber, "nothing is compared with anything".to_owned());
    }
    for file in of(Subject::Load) {
        judge_result(file, &mut reasons);
        judge_machine(file, &mut reasons);
    }
    for file in of(Subject::Operations) {
        judge_machine(file, &mut reasons);
    }
    for file in files {
        if file.is_partial {
            let text = format!("{}: stopped before its plan was done", file.run);
            add(&mut reasons, Light::Amber, text);
        }
    }
    judge_machines(files, &mut reasons);
    judge_degrees(files, &mut reasons);
    judge_checks(files, &mut reasons);
    judge_quiet(files, &mut reasons);
    reasons.sort_by_key(|reason| std::cmp::Reverse(reason.light));
    let light = reasons.first().map_or(Light::Green, |reason| reason.light);
    if reasons.is_empty() {
        let text = "every run has an A/A arm, enough blocks, no errors, and a quiet machine";
        add(&mut reasons, Light::Green, text.to_owned());
    }
    Standing { light, reasons }
}

/// Why no server was measured. A paper check and a benchmark inside a process need none.
fn judge_nothing(files: &[RunFile], reasons: &mut Vec<Reason>) {
    let is_any = |wanted: Subject| files.iter().any(|file| subject::of(file) == wanted);
    if is_any(Subject::Load) || files.is_empty() {
        add(reasons, Light::Red, "nothing was measured".to_owned());
    } else if is_any(Subject::Operations) {
        let text = "times of operations have no A/A arm: what is noise there is unknown";
        add(reasons, Light::Amber, text.to_owned());
    } else {
        let text = "nothing was measured here: published numbers were looked at on paper";
        add(reasons, Light::Amber, text.to_owned());
    }
}

fn judge_result(file: &RunFile, reasons: &mut Vec<Reason>) {
    let run = &file.run;
    if file.blocks.is_empty() {
        if let Some(first) = file.excluded.first() {
            let (count, reason) = (file.excluded.len(), &first.reason);
            let text =
                format!("{run}: guards voided all {count} blocks, the first because {reason}");
            add(reasons, Light::Red, text);
        }
        return;
    }
    match &file.again {
        None if file.verdicts.is_empty() => {}
        None => add(reasons, Light::Red, format!("{run}: no A/A arm, so the noise is unknown")),
        Some(again) if !again.band.is_finite() => {
            add(reasons, Light::Red, format!("{run}: the A/A arm has no result"));
        }
        Some(_) => {}
    }
    for verdict in file.verdicts.iter().filter(is_judged) {
        let name = &verdict.contender;
        if file.blocks_of(name).any(|block| block.errors_total() > 0) {
            add(reasons, Light::Red, format!("{run}: {name} is judged in spite of its errors"));
        }
    }
    if file.tool.is_modified || file.tool.commit.is_empty() {
        let text = "the lab was built from sources that no commit names";
        add(reasons, Light::Amber, text.to_owned());
    }
}

fn is_judged(verdict: &&Verdict) -> bool {
    !matches!(verdict.decision, Decision::Void | Decision::Other)
}

/// What holds for many runs in different degrees is one reason, with the worst degree.
fn judge_degrees(files: &[RunFile], reasons: &mut Vec<Reason>) {
    let is_disturbed = |file: &&RunFile| file.blocks.iter().any(|block| !block.guards.is_empty());
    let disturbed: Vec<&RunFile> = files.iter().filter(is_disturbed).collect();
    if !disturbed.is_empty() {
        let blocks = || disturbed.iter().flat_map(|file| &file.blocks);
        let count = blocks().filter(|block| !block.guards.is_empty()).count();
        let (all, place) = (blocks().count(), place(&disturbed));
        let text =
            format!("{place}: {count} of {all} slices were disturbed and count all the same");
        add(reasons, Light::Red, text);
    }
    let band = |file: &RunFile| file.again.as_ref().map_or(0.0, |again| again.band);
    let is_noisy = |file: &&RunFile| band(file).is_finite() && band(file) > BAND_MAX;
    let noisy: Vec<&RunFile> = files.iter().filter(is_noisy).collect();
    if !noisy.is_empty() {
        let worst = numbers::percent(noisy.iter().map(|file| band(file)).fold(0.0, f64::max));
        let text = format!("{}: the same program twice differs by up to {worst}", place(&noisy));
        add(reasons, Light::Amber, text);
    }
    let fewest =
        |file: &RunFile| file.verdicts.iter().filter(is_judged).map(|one| one.blocks).min();
    let is_small = |file: &&RunFile| fewest(file).is_some_and(|blocks| blocks < BLOCKS_MIN);
    let small: Vec<&RunFile> = files.iter().filter(is_small).collect();
    if let Some(blocks) = small.iter().filter_map(|file| fewest(file)).min() {
        let word = if blocks == 1 { "block" } else { "blocks" };
        let text = format!("{}: a verdict rests on {blocks} {word} only", place(&small));
        add(reasons, Light::Amber, text);
    }
}

fn place(files: &[&RunFile]) -> String {
    match files {
        [file] => file.run.clone(),
        _ => format!("{} runs", files.len()),
    }
}

/// A check that went wrong for several contenders, in several runs, is one reason.
fn judge_checks(files: &[RunFile], reasons: &mut Vec<Reason>) {
    let mut seen: Vec<(&str, Outcome)> = Vec::new();
    let odd = || files.iter().flat_map(|file| file.checks.iter().map(move |check| (file, check)));
    for (_, check) in odd() {
        let (light, words) = match check.outcome {
            Outcome::Failed => (Light::Red, "failed"),
            Outcome::Warned if subject::is_remark(check) => continue,
            Outcome::Warned => (Light::Amber, "is odd"),
            Outcome::ClientBound => (Light::Amber, ""),
            Outcome::Passed | Outcome::Skipped | Outcome::Other => continue,
        };
        if seen.contains(&(&check.name, check.outcome)) {
            continue;
        }
        seen.push((&check.name, check.outcome));
        let (mut names, mut runs): (Vec<&str>, Vec<&RunFile>) = (Vec::new(), Vec::new());
        let is_same = |other: &Check| other.name == check.name && other.outcome == check.outcome;
        for (file, other) in odd().filter(|(_, other)| is_same(other)) {
            let name = other.contender.as_deref().unwrap_or("the run");
            if !names.contains(&name) {
                names.push(name);
            }
            if runs.iter().all(|run| run.run != file.run) {
                runs.push(file);
            }
        }
        let place = place(&runs);
        let who = match names.len() {
            0..=NAMES_MAX => names.join(", "),
            count => format!("{count} contenders"),
        };
        let text = match check.outcome {
            Outcome::ClientBound => format!(
                "{place}: the client was the limit for {who}: rates and latencies there say \
                 nothing about the server, CPU per request stands"
            ),
            _ => format!("{place}: “{}” {words} for {who}", check.name),
        };
        add(reasons, light, text);
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
}

/// Runs of several machines lie in one report where somebody put them together.
fn judge_machines(files: &[RunFile], reasons: &mut Vec<Reason>) {
    let machines = machines(files);
    if machines.len() < 2 {
        return;
    }
    let told: Vec<_> =
        machines.iter().map(|(cpu, runs)| format!("{} on {cpu}", place(runs))).collect();
    let text = format!("{}: figures of different machines are no comparison", told.join(", "));
    add(reasons, Light::Amber, text);
}

/// The processors that servers ran on, each with its runs.
pub(crate) fn machines(files: &[RunFile]) -> Vec<(&str, Vec<&RunFile>)> {
    let mut machines: Vec<(&str, Vec<&RunFile>)> = Vec::new();
    for file in files.iter().filter(|file| subject::of(file) != Subject::Page) {
        let cpu = file.machine.cpu.as_str();
        match machines.iter_mut().find(|(known, _)| *known == cpu) {
            Some((_, runs)) => runs.push(file),
            None => machines.push((cpu, vec![file])),
        }
    }
    machines
}

/// The worst of all runs is one reason, whatever they are called.
fn judge_quiet(files: &[RunFile], reasons: &mut Vec<Reason>) {
    type Share = fn(&RunFile) -> Option<f64>;
    let loads = files.iter().filter(|file| subject::of(file) != Subject::Page).filter_map(|file| {
        let [load, ..] = file.machine.load_before?;
        (load > LOAD_MAX * f64::from(file.machine.cpus)).then_some(load)
    });
    let loads: Vec<f64> = loads.collect();
    if !loads.is_empty() {
        let most = numbers::fixed(loads.iter().copied().fold(0.0, f64::max), 2);
        let runs =
            if loads.len() == 1 { "one run".into() } else { format!("{} runs", loads.len()) };
        let text = format!("the machine had a load of up to {most} before {runs}");
        add(reasons, Light::Amber, text);
    }
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
