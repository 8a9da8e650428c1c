//! What stands behind the comparison: memory, errors, exclusions, and how to repeat it.

use peregrine_lab_model::contender::Contender;

use super::checks::unique;
use crate::chart::{Size, memory as memory_chart};
use crate::content::{Record, Report};
use crate::document::{Cell, Figure, Part, Section, Table};
use crate::numbers;

/// How many digits of a hash are shown; the JSON form has all.
const HASH_DIGITS: usize = 12;

/// More excluded blocks than this are shown on demand.
const EXCLUDED_SHOWN: usize = 6;

/// The most letters of a reason that are shown without being asked for.
const REASON_LETTERS: usize = 140;

/// More runs than this are shown on demand.
const RECORDS_SHOWN: usize = 12;

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

pub(crate) fn excluded(report: &Report) -> Section {
    let mut parts = Vec::new();
    if report.excluded.is_empty() {
        parts.push(Part::Text("No block was excluded.".to_owned()));
    } else {
        let again = report.excluded.iter().filter(|row| row.is_repeated).count();
        let all = report.excluded.len();
        let runs = unique(report.excluded.iter().map(|row| row.run.as_str())).len();
        let word = |count: usize, word: &str| {
            if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
        };
        parts.push(Part::Text(format!(
            "{} of {} did not count; {again} of them were measured again.",
            word(all, "block"),
            word(runs, "run")
        )));
        let table = Part::Table(voided(report));
        parts.push(match all {
            0..=EXCLUDED_SHOWN => table,
            _ => Part::Folded(format!("All {all} with their reasons"), vec![table]),
        });
    }
    parts.push(skipped(report));
    section("Excluded, and why", parts)
}

fn voided(report: &Report) -> Table {
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
    table
}

fn skipped(report: &Report) -> Part {
    if report.skipped.is_empty() {
        return Part::Text("No contender was skipped.".to_owned());
    }
    let measured = |record: &&Record| !record.contenders.is_empty();
    let runs = report.records.iter().filter(measured).count();
    let columns = [("contender not measured", "", false), ("why", "", false), ("runs", "", false)];
    let mut table = Table::new(&columns);
    for row in &report.skipped {
        let lines = brief(&row.reason);
        let place = if row.runs.len() == runs { "all".into() } else { row.runs.join(", ") };
        table.push([row.contender.as_str().into(), Cell::lines(&lines), place.into()]);
    }
    Part::Table(table)
}

/// The reason's first line, then the others. Of a long line its beginning is enough to begin with,
/// up to where a sentence or a thought ends.
fn brief(reason: &str) -> Vec<String> {
    let lines: Vec<String> = reason.lines().map(str::to_owned).collect();
    let Some(first) = lines.first().filter(|line| line.chars().count() > REASON_LETTERS) else {
        return lines;
    };
    let ends = [": ", "; ", ". ", ", ", " ("];
    let end = ends.iter().filter_map(|end| {
        let (before, _) = first.split_once(end)?;
        (before.chars().count() <= REASON_LETTERS).then_some(before)
    });
    let Some(beginning) = end.max_by_key(|before| before.len()) else { return lines };
    let mut brief = vec![format!("{beginning} …")];
    brief.extend(lines);
    brief
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
    let mut parts = vec![Part::Table(facts)];
    let tables = [("Plans", plans(records)), ("States of the machine", states(records))];
    for (title, table) in tables.into_iter().filter(|(_, table)| !table.rows.is_empty()) {
        parts.push(match table.rows.len() {
            0..=RECORDS_SHOWN => Part::Table(table),
            count => Part::Folded(format!("{title} of {count} runs"), vec![Part::Table(table)]),
        });
    }
    section("Environment", parts)
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
    for Record { run, plan, .. } in records.iter().filter(|record| record.plan.blocks > 0) {
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
    for Record { run, started_unix_s, took_s, machine, .. } in
        records.iter().filter(|one| !one.is_page)
    {
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
        if record.tool.version.is_empty() && record.tool.commit.is_empty() {
            return String::new();
        }
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
