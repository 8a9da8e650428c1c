//! What stands behind the comparison: memory, claims, errors, checks, exclusions, and how to
//! repeat it.

use peregrine_lab_model::check::Outcome;
use peregrine_lab_model::contender::Contender;

use crate::chart::{Size, memory as memory_chart};
use crate::content::{Record, Report};
use crate::document::{Cell, Figure, Part, Section, Table};
use crate::numbers;

/// How many digits of a hash are shown; the JSON form has all.
const HASH_DIGITS: usize = 12;

fn section(title: &str, parts: Vec<Part>) -> Section {
    Section { title: title.to_owned(), parts }
}

pub(crate) fn memory(report: &Report) -> Option<Section> {
    if report.memory.is_empty() {
        return None;
    }
    let mut table = Table::new(&[
        ("contender", "", false),
        ("per connection", "", true),
        ("readings", "connections: memory", false),
    ]);
    for line in &report.memory {
        let readings: Vec<String> = line
            .points
            .iter()
            .map(|(connections, bytes)| {
                format!(
                    "{}: {}",
                    numbers::count((*connections).into()),
                    numbers::bytes(*bytes as f64)
                )
            })
            .collect();
        table.push([
            Cell::name(&line.contender, line.series),
            line.bytes_per_connection.map_or("–".to_owned(), numbers::bytes).into(),
            readings.join(", ").into(),
        ]);
    }
    let lines = &report.memory;
    let figure = Figure {
        title: "Memory against open connections".to_owned(),
        caption:
            "The server's own memory with idle connections, each after one request. The slope \
                  is the price of a connection."
                .to_owned(),
        wide: memory_chart::draw(lines, Size::Wide),
        narrow: memory_chart::draw(lines, Size::Narrow),
        legend: lines.iter().map(|line| (line.contender.clone(), line.series)).collect(),
        table: Some(table),
    };
    Some(section("Memory", vec![Part::Figure(figure)]))
}

pub(crate) fn claims(report: &Report) -> Option<Section> {
    let mut table = Table::new(&[
        ("claim", "", false),
        ("finding", "", false),
        ("published", "", true),
        ("as published, here", "", true),
        ("corrected, here", "", true),
        ("why", "", false),
        ("source", "", false),
    ]);
    for claim in &report.claims {
        let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "–".to_owned());
        table.push([
            claim.claim.as_str().into(),
            claim.finding.words().into(),
            claim.published.as_str().into(),
            or_dash(&claim.as_published).into(),
            or_dash(&claim.corrected).into(),
            claim.detail.as_str().into(),
            claim.source.as_str().into(),
        ]);
    }
    (!report.claims.is_empty()).then(|| section("Published claims", vec![Part::Table(table)]))
}

pub(crate) fn audits(report: &Report) -> Option<Section> {
    let mut table = Table::new(&[
        ("subject", "", false),
        ("test", "", false),
        ("published", "", true),
        ("bound", "", true),
        ("result", "", false),
        ("what follows", "", false),
        ("source", "", false),
    ]);
    for audit in &report.audits {
        table.push([
            audit.subject.as_str().into(),
            audit.test.as_str().into(),
            audit.published.as_str().into(),
            audit.bound.as_str().into(),
            outcome(audit.outcome),
            audit.detail.as_str().into(),
            audit.source.as_str().into(),
        ]);
    }
    let text = "A paper check: what can be said of published numbers without running anything.";
    let parts = vec![Part::Text(text.to_owned()), Part::Table(table)];
    (!report.audits.is_empty()).then(|| section("Audit of published numbers", parts))
}

/// A result that needs attention is a label, the others are plain words.
fn outcome(outcome: Outcome) -> Cell {
    match outcome {
        Outcome::Failed | Outcome::Warned | Outcome::ClientBound => {
            Cell { labels: vec![outcome.words()], ..Cell::default() }
        }
        Outcome::Passed | Outcome::Skipped | Outcome::Other => outcome.words().into(),
    }
}

pub(crate) fn errors(report: &Report) -> Section {
    let errors = &report.errors;
    if errors.kinds.is_empty() {
        let text = "No kind of error was looked for in these run files.".to_owned();
        return section("Errors by kind", vec![Part::Text(text)]);
    }
    let mut columns = vec![("contender", "", false), ("right replies", "", true)];
    columns.extend(errors.kinds.iter().map(|kind| (kind.as_str(), "", true)));
    let mut table = Table::new(&columns);
    for (name, requests, counts) in &errors.rows {
        let mut cells: Vec<Cell> = vec![name.as_str().into(), numbers::count(*requests).into()];
        cells.extend(counts.iter().map(|count| Cell::from(numbers::count(*count))));
        table.push(cells);
    }
    section("Errors by kind", vec![Part::Table(table)])
}

pub(crate) fn checks(report: &Report) -> Section {
    if report.checks.is_empty() {
        let text = "The run files hold no checks.".to_owned();
        return section("Validity checks", vec![Part::Text(text)]);
    }
    let of = |wanted: Outcome| report.checks.iter().filter(|row| row.outcome == wanted).count();
    let text = format!(
        "{} of {} checks passed, {} failed, {} odd, {} client-bound, {} could not be made.",
        of(Outcome::Passed),
        report.checks.len(),
        of(Outcome::Failed),
        of(Outcome::Warned),
        of(Outcome::ClientBound),
        of(Outcome::Skipped) + of(Outcome::Other),
    );
    let new = || {
        Table::new(&[
            ("run", "", false),
            ("check", "", false),
            ("contender", "", false),
            ("result", "", false),
            ("figures", "", false),
        ])
    };
    let (mut odd, mut all) = (new(), new());
    for row in &report.checks {
        let cells = || -> [Cell; 5] {
            [
                row.run.as_str().into(),
                row.name.as_str().into(),
                row.contender.as_deref().unwrap_or("the run").into(),
                outcome(row.outcome),
                row.detail.as_str().into(),
            ]
        };
        if row.outcome != Outcome::Passed {
            odd.push(cells());
        }
        all.push(cells());
    }
    let mut parts = vec![Part::Text(text)];
    if !odd.rows.is_empty() {
        parts.push(Part::Table(odd));
    }
    parts.push(Part::Folded("All checks".to_owned(), all));
    section("Validity checks", parts)
}

pub(crate) fn excluded(report: &Report) -> Section {
    let mut parts = Vec::new();
    if report.excluded.is_empty() {
        parts.push(Part::Text("No block was excluded.".to_owned()));
    } else {
        let mut table = Table::new(&[
            ("run", "", false),
            ("block", "", true),
            ("contender", "", false),
            ("why", "", false),
            ("measured again", "", false),
        ]);
        for row in &report.excluded {
            let who = if row.contender.is_empty() { "all" } else { &row.contender };
            table.push([
                row.run.as_str().into(),
                row.block.to_string().into(),
                who.into(),
                row.reason.as_str().into(),
                if row.is_repeated { "yes" } else { "no" }.into(),
            ]);
        }
        parts.push(Part::Table(table));
    }
    if report.skipped.is_empty() {
        parts.push(Part::Text("No contender was skipped.".to_owned()));
    } else {
        let columns =
            [("contender not measured", "", false), ("why", "", false), ("run", "", false)];
        let mut table = Table::new(&columns);
        for row in &report.skipped {
            table.push([row.contender.as_str(), &row.reason, &row.run].map(Cell::from));
        }
        parts.push(Part::Table(table));
    }
    section("Excluded, and why", parts)
}

pub(crate) fn environment(report: &Report) -> Section {
    let records = &report.records;
    let mut facts = Table::new(&[("fact", "", false), ("value", "", false)]);
    for (name, value) in FACTS {
        let mut values: Vec<String> = records.iter().map(value).collect();
        values.retain(|value| !value.is_empty());
        values.dedup();
        if !values.is_empty() {
            facts.push([Cell::from(*name), values.join(" / ").into()]);
        }
    }
    let tables = [facts, plans(records), states(records)];
    section("Environment", tables.into_iter().map(Part::Table).collect())
}

fn plans(records: &[Record]) -> Table {
    let mut table = Table::new(&[
        ("run", "", false),
        ("seed", "", true),
        ("blocks", "", true),
        ("block", "", true),
        ("warm-up", "", true),
        ("timeout", "", true),
        ("budget", "s", true),
        ("smallest effect", "", true),
        ("scenario file", "SHA-256", false),
    ]);
    let time = |nanoseconds: u64| numbers::latency(nanoseconds as f64 / 1e6);
    for Record { run, plan, .. } in records {
        table.push([
            run.as_str().into(),
            plan.seed.to_string().into(),
            plan.blocks.to_string().into(),
            time(plan.block_ns).into(),
            time(plan.warmup_ns).into(),
            plan.timeout_ns.map_or("–".to_owned(), time).into(),
            numbers::fixed_or_dash(plan.budget_s, 0).into(),
            percent(plan.effect_min).into(),
            hash(&plan.scenario_sha256),
        ]);
    }
    table
}

fn states(records: &[Record]) -> Table {
    let mut table = Table::new(&[
        ("run", "", false),
        ("began", "", false),
        ("took", "s", true),
        ("load before", "", true),
        ("load after", "", true),
        ("stolen by the host", "", true),
        ("foreign CPU", "", true),
    ]);
    let load = |load: Option<[f64; 3]>| numbers::fixed_or_dash(load.map(|load| load[0]), 2);
    for Record { run, started_unix_s, took_s, machine, .. } in records {
        table.push([
            run.as_str().into(),
            numbers::moment(*started_unix_s).into(),
            numbers::fixed(*took_s, 0).into(),
            load(machine.load_before).into(),
            load(machine.load_after).into(),
            percent(machine.stolen_share).into(),
            percent(machine.foreign_share).into(),
        ]);
    }
    table
}

fn percent(share: Option<f64>) -> String {
    share.map_or("–".to_owned(), numbers::percent)
}

type Fact = fn(&Record) -> String;

/// What is said of the machine and the lab; several values stand for runs that differ.
const FACTS: &[(&str, Fact)] = &[
    ("CPU", |record| record.machine.cpu.clone()),
    ("CPUs", |record| record.machine.cpus.to_string()),
    ("virtual", |record| if record.machine.is_virtual { "yes" } else { "no" }.to_owned()),
    ("memory", |record| numbers::bytes(record.machine.memory_bytes as f64)),
    ("system", |record| record.machine.system.clone()),
    ("kernel", |record| record.machine.kernel.clone()),
    ("governor", |record| record.machine.governor.clone()),
    ("turbo", |record| record.machine.turbo.clone()),
    ("SMT", |record| record.machine.smt.clone()),
    ("clock source", |record| record.machine.clock_source.clone()),
    ("mitigations", |record| record.machine.mitigations.join("; ")),
    ("network", |record| record.machine.network.clone()),
    ("CPUs of servers", |record| list(&record.machine.server_cpus)),
    ("CPUs of the client", |record| list(&record.machine.client_cpus)),
    ("limits", |record| pairs(record.machine.limits.iter(), " ")),
    ("client", |record| record.plan.client.clone()),
    ("lab", |record| {
        let modified = if record.tool.is_modified { ", modified" } else { "" };
        let commit = if record.tool.commit.is_empty() { "unknown" } else { &record.tool.commit };
        format!("{}, commit {commit}{modified}", record.tool.version)
    }),
    ("command", |record| record.tool.command.join(" ")),
];

fn list(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

fn pairs<'a>(pairs: impl Iterator<Item = (&'a String, &'a String)>, between: &str) -> String {
    pairs.map(|(name, value)| format!("{name}{between}{value}")).collect::<Vec<_>>().join("; ")
}

fn hash(hash: &str) -> Cell {
    if hash.is_empty() {
        return "–".into();
    }
    Cell::code(hash.chars().take(HASH_DIGITS).collect::<String>())
}

pub(crate) fn contenders(report: &Report) -> Section {
    let mut seen: Vec<&Contender> = Vec::new();
    for contender in report.records.iter().flat_map(|record| &record.contenders) {
        let is_measured = contender.skipped.is_none();
        if is_measured && !seen.contains(&contender) {
            seen.push(contender);
        }
    }
    let mut versions = Table::new(&[
        ("contender", "", false),
        ("class", "", false),
        ("version", "", false),
        ("toolchain", "", false),
        ("allocator", "", false),
        ("workers", "", true),
        ("lock file", "SHA-256", false),
        ("program", "SHA-256", false),
    ]);
    let mut commands = Table::new(&[
        ("contender", "", false),
        ("built by", "", false),
        ("started by", "", false),
        ("environment", "", false),
    ]);
    for contender in seen {
        let workers = match contender.workers {
            0 => "–".to_owned(),
            workers => workers.to_string(),
        };
        versions.push([
            contender.name.as_str().into(),
            contender.class.word().into(),
            contender.version.as_str().into(),
            contender.toolchain.as_str().into(),
            contender.allocator.as_str().into(),
            workers.into(),
            hash(&contender.lock_sha256),
            hash(&contender.program_sha256),
        ]);
        commands.push([
            contender.name.as_str().into(),
            Cell::code(contender.build.join(" ")),
            Cell::code(contender.run.join(" ")),
            Cell::code(pairs(contender.environment.iter(), "=")),
        ]);
    }
    let heading = Part::Heading("Commands".to_owned());
    let parts = vec![Part::Table(versions), heading, Part::Table(commands)];
    section("Contenders", parts)
}
