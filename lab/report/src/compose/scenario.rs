//! One scenario under one number of connections: the table, and its charts.

use super::checks::{outcome, unique};
use crate::chart::{Size, dots, ladder, order, percentile};
use crate::content::{Row, Run, Section as Scenario, Series};
use crate::document::{Cell, Figure, Part, Section, Table};
use crate::numbers;

/// The share of an offered rate that counts as keeping up.
const KEPT_MIN: f64 = 0.99;

/// The fewest blocks that have quartiles.
const QUARTILES_MIN: usize = 4;

/// The fewest blocks in which a drift could be seen.
const ORDER_MIN: usize = 3;

pub(crate) fn section(scenario: &Scenario) -> Section {
    let mut parts = Vec::new();
    if !scenario.description.is_empty() {
        parts.push(Part::Text(scenario.description.clone()));
    }
    // Open loops at several rates share two charts; one of them would repeat the others' tables.
    let is_full = |run: &&Run| run.rate_per_s.is_none();
    let mut full: Vec<&Run> = scenario.runs.iter().filter(is_full).collect();
    if full.is_empty() {
        full.extend(equal_rate(scenario).or(scenario.runs.first()));
    }
    for run in &full {
        parts.push(Part::Heading(format!("{}: {}", run.run, run.load)));
        parts.extend(findings(run));
        if !is_timed(run) {
            // Nothing was timed in a run that only ends servers, so that no rate means anything.
            continue;
        }
        parts.push(Part::Table(costs(run)));
        parts.extend(bound_note(run).map(Part::Text));
        parts.extend(ranking_note(run).map(Part::Text));
        parts.extend(cpu_figure(run).map(Part::Figure));
        parts.extend(order_figure(run).map(Part::Figure));
        if let Some(table) = measures(run) {
            parts.push(Part::Heading("What else it took".to_owned()));
            parts.push(Part::Table(table));
        }
    }
    match equal_rate(scenario) {
        Some(run) => parts.extend(percentile_figure(run).map(Part::Figure)),
        None => {
            let timed = full.iter().filter(|run| is_timed(run));
            parts.extend(timed.filter_map(|run| percentile_figure(run)).map(Part::Figure));
        }
    }
    parts.extend(ladder_figure(scenario).map(Part::Figure));
    Section { title: super::name(scenario), parts }
}

/// Whether the cost of requests was counted, or nothing else is known of a run.
fn is_timed(run: &Run) -> bool {
    run.findings.is_empty() || run.rows.iter().any(|row| row.server_us.is_some())
}

/// What the scenario was made to find out, a table for each check.
fn findings(run: &Run) -> Vec<Part> {
    let mut parts = Vec::new();
    for name in unique(run.findings.iter().map(|found| found.name.as_str())) {
        let mut table = Table::new(&[
            ("contender", "", false),
            (name, "", false),
            ("what happened", "", false),
        ]);
        for found in run.findings.iter().filter(|found| found.name == name) {
            let who = found.contender.as_deref().unwrap_or("the run");
            let series = run.rows.iter().find(|row| row.contender == who).map(|row| row.series);
            let name = Cell { text: who.to_owned(), series, ..Cell::default() };
            table.push([name, outcome(found.outcome), found.detail.as_str().into()]);
        }
        parts.push(Part::Table(table));
    }
    parts
}

/// Said once where it holds for everybody, and in the rows otherwise.
fn bound_note(run: &Run) -> Option<String> {
    let bound = run.rows.iter().filter(|row| row.is_client_bound).count();
    let who = match bound {
        0 => return None,
        all if all == run.rows.len() => "every contender",
        _ => "those marked CLIENT-BOUND",
    };
    Some(format!(
        "The client was the limit for {who}: it could not ask {}. Their requests per second and \
         latencies say nothing about the servers; CPU per request stands.",
        if run.is_closed { "faster" } else { "as fast as was due" }
    ))
}

fn is_everybody_bound(run: &Run) -> bool {
    run.rows.iter().all(|row| row.is_client_bound)
}

fn contender(row: &Row) -> Cell {
    let mut cell = Cell::name(&row.contender, row.series);
    if row.class != "stock" {
        cell.labels.push(row.class);
    }
    if row.is_client_bound {
        cell.labels.push("CLIENT-BOUND");
    }
    if row.errors > 0 {
        cell.labels.push("ERRORS");
    }
    cell
}

/// A column: its title, its unit, how a figure is written, and who has one.
type Column = (&'static str, &'static str, fn(&Row) -> String, fn(&Row) -> bool);

/// What the ranking rests on.
const COSTS: &[Column] = &[
    (
        "server CPU",
        "µs/request",
        |row| us(row.server_us.map(|it| it.median)),
        |row| row.server_us.is_some(),
    ),
    ("p25 to p75", "µs/request", quartiles, |row| row.blocks.len() >= QUARTILES_MIN),
    ("user", "µs/request", |row| us(row.user_us), |row| row.user_us.is_some()),
    ("system", "µs/request", |row| us(system(row)), |row| row.user_us.is_some()),
    ("throughput", "requests/s", |row| numbers::fixed_or_dash(row.requests_per_s, 0), |_| true),
    ("errors", "", |row| numbers::count(row.errors), |_| true),
];

/// What else was measured.
const MEASURES: &[Column] = &[
    (
        "goodput",
        "MB/s",
        |row| numbers::fixed_or_dash(row.goodput_mb_per_s, 1),
        |row| row.goodput_mb_per_s.is_some_and(|goodput| goodput > 0.0),
    ),
    (
        "on the wire",
        "bytes/reply",
        |row| numbers::fixed_or_dash(row.wire_bytes_per_reply, 0),
        |row| row.wire_bytes_per_reply.is_some_and(|bytes| bytes > 0.0),
    ),
    (
        "peak memory",
        "MiB",
        |row| numbers::fixed_or_dash(row.memory_peak_bytes.map(mebibytes), 1),
        |row| row.memory_peak_bytes.is_some(),
    ),
    (
        "context switches",
        "per request",
        |row| numbers::fixed_or_dash(row.switches_per_request, 3),
        |row| row.switches_per_request.is_some(),
    ),
    (
        "busiest thread",
        "% of server CPU",
        |row| numbers::fixed_or_dash(row.busiest_share.map(|share| share * 100.0), 0),
        |row| row.busiest_share.is_some(),
    ),
    ("client CPU", "µs/request", |row| us(row.client_us), |row| row.client_us.is_some()),
    (
        "client headroom",
        "×",
        |row| numbers::fixed_or_dash(row.headroom, 1),
        |row| row.headroom.is_some(),
    ),
];

fn costs(run: &Run) -> Table {
    let mut table = figures(run, COSTS);
    if run.rows.iter().all(|row| row.rank.is_none()) {
        return table;
    }
    let rank = Table::new(&[("rank", "", true)]).columns;
    table.columns.splice(0..0, rank);
    for (cells, row) in table.rows.iter_mut().zip(&run.rows) {
        cells.insert(0, row.rank.map_or("–".into(), |rank| rank.to_string()).into());
    }
    table
}

fn measures(run: &Run) -> Option<Table> {
    Some(figures(run, MEASURES)).filter(|table| table.columns.len() > 1)
}

/// The contenders with these columns. Columns that nobody has a figure for are left out.
fn figures(run: &Run, columns: &[Column]) -> Table {
    let known: Vec<&Column> =
        columns.iter().filter(|(.., is_known)| run.rows.iter().any(is_known)).collect();
    let mut heads = vec![("contender", "", false)];
    heads.extend(known.iter().map(|(title, unit, ..)| (*title, *unit, true)));
    let mut table = Table::new(&heads);
    for row in &run.rows {
        let mut cells = vec![contender(row)];
        cells.extend(known.iter().map(|(_, _, figure, _)| Cell::from(figure(row))));
        table.push(cells);
    }
    table
}

fn quartiles(row: &Row) -> String {
    row.server_us.map_or("–".into(), |it| {
        let [low, high] = [it.quarter_low, it.quarter_high].map(|it| numbers::fixed(it, 2));
        format!("{low} to {high}")
    })
}

fn us(value: Option<f64>) -> String {
    numbers::fixed_or_dash(value, 2)
}

fn system(row: &Row) -> Option<f64> {
    Some(row.server_us?.median - row.user_us?)
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

fn ranking_note(run: &Run) -> Option<String> {
    if run.rows.len() < 2 {
        return None;
    }
    Some(match run.band {
        None => "No ranks: without a result of an A/A arm, no difference can be told from noise."
            .to_owned(),
        Some(_) if run.rows.iter().all(|row| row.rank.is_none()) => {
            "No ranks: too few blocks to tell anybody apart.".to_owned()
        }
        Some(band) => format!(
            "Ranks are by server CPU per request. Who cannot be told apart shares a rank: the \
             intervals have to be further apart than the noise of this run, {}.",
            numbers::percent(band)
        ),
    })
}

/// What a chart's lane says behind its figure.
fn word(run: &Run, row: &Row) -> &'static str {
    if row.errors > 0 {
        "µs  ERRORS"
    } else if row.is_client_bound && !is_everybody_bound(run) {
        "µs  CLIENT-BOUND"
    } else {
        "µs"
    }
}

fn cpu_figure(run: &Run) -> Option<Figure> {
    let rows: Vec<dots::Row<'_>> = run
        .rows
        .iter()
        .filter_map(|row| {
            Some(dots::Row {
                name: &row.contender,
                series: row.series,
                median: row.server_us?.median,
                user: row.user_us,
                blocks: row.blocks.iter().filter_map(|block| block.server_us).collect(),
                word: word(run, row),
            })
        })
        .collect();
    let is_split = rows.iter().any(|row| row.user.is_some());
    let split =
        if is_split { " The darker part is the program's own, the rest the kernel's." } else { "" };
    (!rows.is_empty()).then(|| Figure {
        title: "Server CPU per request".to_owned(),
        caption: format!("The bar is the median; each dot is a block.{split}"),
        wide: dots::draw(&rows, Size::Wide),
        narrow: dots::draw(&rows, Size::Narrow),
        legend: Vec::new(),
        table: None,
    })
}

fn order_figure(run: &Run) -> Option<Figure> {
    let rows: Vec<order::Row<'_>> = run
        .rows
        .iter()
        .filter_map(|row| {
            Some(order::Row {
                name: &row.contender,
                series: row.series,
                median: row.requests_per_s.filter(|rate| *rate > 0.0)?,
                blocks: row
                    .blocks
                    .iter()
                    .filter_map(|block| Some((block.started_s, block.requests_per_s?)))
                    .collect(),
            })
        })
        .collect();
    if rows.iter().all(|row| row.blocks.len() < ORDER_MIN) {
        return None;
    }
    let deviation = order::deviation(&rows) * 100.0;
    let mut table = Table::new(&[
        ("contender", "", false),
        ("slowest block", "requests/s", true),
        ("median", "requests/s", true),
        ("fastest block", "requests/s", true),
    ]);
    for row in &rows {
        let rates = || row.blocks.iter().map(|(_, rate)| *rate);
        table.push([
            Cell::name(row.name, row.series),
            numbers::fixed(rates().fold(f64::INFINITY, f64::min), 0).into(),
            numbers::fixed(row.median, 0).into(),
            numbers::fixed(rates().fold(0.0, f64::max), 0).into(),
        ]);
    }
    Some(Figure {
        title: "Throughput in run order".to_owned(),
        caption: format!(
            "Each dot is a block; the line is the contender's own median, and a lane reaches from \
             −{deviation:.0}\u{a0}% to +{deviation:.0}\u{a0}% of it. A slope in all lanes is the machine \
             drifting, in one lane it is the contender."
        ),
        wide: order::draw(&rows, Size::Wide),
        narrow: order::draw(&rows, Size::Narrow),
        legend: Vec::new(),
        table: Some(table),
    })
}

fn is_kept(row: &Row, rate: f64) -> bool {
    row.dropped == 0 && row.requests_per_s.is_some_and(|reached| reached >= rate * KEPT_MIN)
}

/// The open loop with the highest rate that every contender kept; the lowest rate if there is
/// none.
fn equal_rate(scenario: &Scenario) -> Option<&Run> {
    let has_latency = |run: &&Run| run.rows.iter().any(|row| row.latency.is_some());
    let open =
        || scenario.runs.iter().filter(has_latency).filter_map(|run| Some((run.rate_per_s?, run)));
    let kept = open().filter(|(rate, run)| run.rows.iter().all(|row| is_kept(row, *rate)));
    kept.max_by(|one, other| one.0.total_cmp(&other.0))
        .or_else(|| open().min_by(|one, other| one.0.total_cmp(&other.0)))
        .map(|(_, run)| run)
}

fn percentile_figure(run: &Run) -> Option<Figure> {
    let mut rows: Vec<&Row> = run.rows.iter().filter(|row| row.latency.is_some()).collect();
    if rows.is_empty() {
        return None;
    }
    let p99 = |row: &&Row| row.latency.as_ref().map_or(f64::INFINITY, |latency| latency.p99_ms);
    rows.sort_by(|one, other| p99(one).total_cmp(&p99(other)));
    let curves: Vec<percentile::Curve<'_>> = rows
        .iter()
        .filter_map(|row| {
            let points = &row.latency.as_ref()?.curve;
            Some(percentile::Curve { name: &row.contender, series: row.series, points })
        })
        .collect();
    let how = match (run.is_closed, run.rate_per_s) {
        (true, _) => "Closed loop: measured from sending, and a slow server is asked less often. \
                      This is not what users would wait."
            .to_owned(),
        (false, None) => "Measured from the intended start, but not at an equal rate: these lines \
                          say how late each is under its own load, not who is faster. Timeouts \
                          count as long as they were waited for."
            .to_owned(),
        (false, Some(rate)) => format!(
            "All contenders at {} requests/s, measured from the intended start. Timeouts count as \
             long as they were waited for.",
            numbers::fixed(rate, 0)
        ),
    };
    Some(Figure {
        title: "Latency by percentile".to_owned(),
        caption: format!(
            "{how} Both axes are logarithmic; a line ends where fewer than 1,000 samples lie beyond."
        ),
        wide: percentile::draw(&curves, Size::Wide),
        narrow: percentile::draw(&curves, Size::Narrow),
        legend: legend(rows.iter().map(|row| (&row.contender, row.series))),
        table: Some(latencies(&rows)),
    })
}

fn latencies(rows: &[&Row]) -> Table {
    let mut table = Table::new(&[
        ("contender", "", false),
        ("p50", "ms", true),
        ("p90", "ms", true),
        ("p99", "ms", true),
        ("p99.9", "ms", true),
        ("maximum", "ms", true),
        ("samples", "", true),
        ("beyond p99.9", "samples", true),
        ("timeouts", "", true),
        ("late", "", true),
        ("dropped", "", true),
    ]);
    for row in rows {
        let Some(latency) = &row.latency else { continue };
        let ms = |value: f64| Cell::from(numbers::fixed(value, 3));
        table.push([
            contender(row),
            ms(latency.p50_ms),
            ms(latency.p90_ms),
            ms(latency.p99_ms),
            latency.p99_9_ms.map_or("hidden".into(), ms),
            ms(latency.max_ms),
            numbers::count(latency.samples).into(),
            numbers::count(latency.beyond_p99_9).into(),
            numbers::count(latency.censored).into(),
            numbers::count(row.late).into(),
            numbers::count(row.dropped).into(),
        ]);
    }
    table
}

fn legend<'a>(rows: impl Iterator<Item = (&'a String, Series)>) -> Vec<(String, Series)> {
    rows.map(|(name, series)| (name.clone(), series)).collect()
}

fn ladder_figure(scenario: &Scenario) -> Option<Figure> {
    let mut runs: Vec<(f64, &Run)> =
        scenario.runs.iter().filter_map(|run| Some((run.rate_per_s?, run))).collect();
    runs.sort_by(|one, other| one.0.total_cmp(&other.0));
    if runs.len() < 2 {
        return None;
    }
    let mut climbs: Vec<ladder::Climb<'_>> = Vec::new();
    let mut table = Table::new(&[
        ("offered", "requests/s", true),
        ("contender", "", false),
        ("answered", "requests/s", true),
        ("p50", "ms", true),
        ("p99", "ms", true),
        ("dropped", "", true),
        ("server CPU", "µs/request", true),
    ]);
    for (rate, run) in &runs {
        for row in &run.rows {
            let Some(latency) = &row.latency else { continue };
            let is_kept = is_kept(row, *rate);
            let step = ladder::Step { rate_per_s: *rate, p99_ms: latency.p99_ms, is_kept };
            match climbs.iter_mut().find(|climb| climb.name == row.contender) {
                Some(climb) => climb.steps.push(step),
                None => climbs.push(ladder::Climb {
                    name: &row.contender,
                    series: row.series,
                    steps: vec![step],
                }),
            }
            table.push([
                numbers::fixed(*rate, 0).into(),
                Cell::name(&row.contender, row.series),
                numbers::fixed_or_dash(row.requests_per_s, 0).into(),
                numbers::fixed(latency.p50_ms, 3).into(),
                numbers::fixed(latency.p99_ms, 3).into(),
                numbers::count(row.dropped).into(),
                us(row.server_us.map(|it| it.median)).into(),
            ]);
        }
    }
    (!climbs.is_empty()).then(|| Figure {
        title: "Latency against offered load".to_owned(),
        caption: "p99 from the intended start. A hollow mark is a rate that the contender did not \
                  keep up with: fewer than 99\u{a0}% were answered, or requests were dropped."
            .to_owned(),
        wide: ladder::draw(&climbs, Size::Wide),
        narrow: ladder::draw(&climbs, Size::Narrow),
        legend: climbs.iter().map(|climb| (climb.name.to_owned(), climb.series)).collect(),
        table: Some(table),
    })
}
