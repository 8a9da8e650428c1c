//! Gaps in the description of the set-up, and what the page itself admits.

use crate::claim::{Document, Fact};
use crate::finding::{Check, Finding, Severity};

/// Whether the page prints something.
type IsPrinted = fn(&Document) -> bool;

/// What a page should print, what to say if it does not, and why it matters.
const WANTED: [(IsPrinted, &str, &str); 11] = [
    (
        |page| page.environment.processor.is_some(),
        "No processor is named.",
        "Rates differ several times over between machines.",
    ),
    (
        |page| page.environment.hardware_threads.is_some(),
        "No number of cores is printed.",
        "A rate cannot be put in relation to the machine.",
    ),
    (
        |page| page.environment.system.is_some(),
        "No operating system is named.",
        "The network stack is most of a small request's cost.",
    ),
    (
        |page| page.environment.kernel.is_some(),
        "No kernel version is printed.",
        "Network paths and mitigations change between versions.",
    ),
    (
        |page| page.environment.toolchain.is_some(),
        "No compiler or runtime version is printed.",
        "The same source differs by several per cent between versions.",
    ),
    (
        |page| page.tool.version.is_some(),
        "No version of the load tool is printed.",
        "Tools change how they count.",
    ),
    (
        |page| page.design.repeats.is_some(),
        "No number of repeats is printed.",
        "One run has no spread; any difference may be chance.",
    ),
    (
        |page| page.design.warm_up.is_some(),
        "No warm-up is mentioned.",
        "The first second holds page faults, allocation and connection set-up.",
    ),
    (
        |page| page.design.spread.is_some(),
        "No spread between runs is printed.",
        "Without it no difference can be told from noise.",
    ),
    (
        |page| page.design.order.is_some(),
        "The order of the runs is not printed.",
        "Heat and clock speed drift over a session and favour a position.",
    ),
    (
        |page| page.design.build.is_some(),
        "No build profile is printed.",
        "Optimisation settings move results more than most differences shown.",
    ),
];

/// Finds what a reader needs to judge or repeat the numbers and does not get.
///
/// A rate means nothing without the machine, the versions and the number of runs. Numbers given
/// by hand are not asked for these.
#[must_use]
pub fn not_printed(document: &Document) -> Vec<Finding> {
    if document.source.sha256.is_none() && document.source.text_file.is_none() {
        return Vec::new();
    }
    let gaps = WANTED.iter().filter(|(is_printed, _, _)| !is_printed(document));
    let mut findings: Vec<Finding> = gaps
        .map(|(_, summary, why)| {
            let (severity, check) = (Severity::Missing, Check::NotPrinted);
            Finding::new(severity, check, Vec::new(), summary, (*why).to_owned())
        })
        .collect();
    findings.extend(missing_versions(document));
    findings.extend(missing_connections(document));
    findings
}

fn missing_versions(document: &Document) -> Option<Finding> {
    let unnamed: Vec<&str> = document
        .contenders
        .iter()
        .filter(|contender| contender.version.is_none())
        .map(|contender| contender.label.as_str())
        .collect();
    let detail =
        format!("{} of {}: {}.", unnamed.len(), document.contenders.len(), unnamed.join(", "));
    let summary = "Contenders without a version.";
    (!unnamed.is_empty())
        .then(|| Finding::new(Severity::Missing, Check::NotPrinted, Vec::new(), summary, detail))
}

fn missing_connections(document: &Document) -> Option<Finding> {
    let unnamed: Vec<&str> = document
        .scenarios
        .iter()
        .filter(|scenario| scenario.connections.is_none())
        .map(|scenario| scenario.id.as_str())
        .collect();
    let detail =
        format!("Scenarios {}: neither load nor limits can be judged.", unnamed.join(", "));
    let summary = "No number of connections is printed.";
    (!unnamed.is_empty())
        .then(|| Finding::new(Severity::Missing, Check::NotPrinted, Vec::new(), summary, detail))
}

/// Repeats what the page itself admits: numbers taken back, runs chosen after measuring,
/// contenders that ran with a handicap.
///
/// Such words often stand far from the table; a reader of the table alone does not see them.
#[must_use]
pub fn admissions(document: &Document) -> Vec<Finding> {
    let place = |fact: &Fact| match fact.line {
        Some(line) => format!("\"{}\" (line {line}).", fact.text),
        None => format!("\"{}\".", fact.text),
    };
    let mut findings = Vec::new();
    if let Some(fact) = &document.source.withdrawn {
        let summary = "The author took the numbers back.";
        let (severity, check) = (Severity::Misleading, Check::Withdrawn);
        findings.push(Finding::new(severity, check, Vec::new(), summary, place(fact)));
    }
    if let Some(fact) = &document.design.selected {
        let summary = "The highlighted run or column was chosen after measuring.";
        let (severity, check) = (Severity::Misleading, Check::Selected);
        findings.push(Finding::new(severity, check, Vec::new(), summary, place(fact)));
    }
    for fact in &document.design.handicaps {
        let summary = "A contender did not run as it would in production.";
        let (severity, check) = (Severity::Misleading, Check::Handicap);
        findings.push(Finding::new(severity, check, Vec::new(), summary, place(fact)));
    }
    findings
}
