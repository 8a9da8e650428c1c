//! Figures to a document: which sections there are, in which order, and what they say.

mod appendix;
mod benchmark;
mod checks;
mod claims;
mod overview;
mod scenario;
mod verdicts;

use crate::collect;
use crate::content::{Light, Report, Section as Scenario};
use crate::document::Document;
use crate::numbers;

pub(crate) fn document(report: &Report) -> Document {
    let mut sections = Vec::new();
    sections.extend(claims::claims(report));
    sections.extend(verdicts::section(report));
    sections.extend(overview::forest(report));
    // Limits stand beside the verdicts that they limit, and behind figures without verdicts.
    let is_judged = !sections.is_empty();
    if is_judged {
        sections.push(overview::not_shown(report));
    }
    sections.extend(report.sections.iter().map(scenario::section));
    sections.extend(report.benchmarks.iter().map(benchmark::section));
    if !is_judged {
        sections.push(overview::not_shown(report));
    }
    sections.extend(appendix::memory(report));
    sections.extend(claims::audits(report));
    sections.push(appendix::errors(report));
    sections.push(checks::section(report));
    sections.push(appendix::excluded(report));
    sections.push(appendix::environment(report));
    sections.push(appendix::contenders(report));
    let reasons = &report.standing.reasons;
    Document {
        title: report.title.clone(),
        subtitle: subtitle(report),
        light: report.standing.light,
        light_words: match report.standing.light {
            Light::Green => "May be published",
            Light::Amber => "May be published with these reservations",
            Light::Red => "Must not be published as a comparison",
        },
        reasons: reasons.iter().map(|reason| (reason.light, reason.text.clone())).collect(),
        sections,
    }
}

pub(crate) fn forest_svg(report: &Report) -> String {
    overview::forest_svg(report)
}

fn subtitle(report: &Report) -> Vec<String> {
    let mut facts = vec![numbers::moment(report.started_unix_s)];
    let Some(record) = report.records.first() else { return facts };
    let machine = &record.machine;
    if !machine.cpu.is_empty() {
        let cpus = if machine.cpus == 1 { "CPU" } else { "CPUs" };
        facts.push(format!("{}, {} {cpus}", machine.cpu, machine.cpus));
    }
    if !machine.kernel.is_empty() {
        let release = machine.kernel.split(' ').next().unwrap_or_default();
        facts.push(format!("kernel {release}"));
    }
    if !record.tool.version.is_empty() {
        facts.push(format!("lab {}", record.tool.version));
    }
    facts
}

/// A scenario's name with its load, as headings say it.
fn name(scenario: &Scenario) -> String {
    let tls = if scenario.is_tls { ", TLS" } else { "" };
    let connections = numbers::count(u64::from(scenario.connections));
    let word = if scenario.connections == 1 { "connection" } else { "connections" };
    let streams = collect::streams(scenario.streams);
    format!("{}, {connections} {word}{streams}{tls}", scenario.scenario)
}
