//! `cargo tidy batteries` writes the table of what each battery costs into `docs/performance.md`, out of the run files in
//! `docs/results/batteries`. Each row ends with the comment by which `cargo tidy figures` checks it.

use crate::figures::{MINUS, field_of};
use crate::results;
use peregrine_lab_model::{RunFile, pack};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// The folder of the run files, within the results.
const FOLDER: &str = "batteries";

const FRAMEWORKS: [&str; 3] = ["peregrine", "axum", "actix-web"];

/// How rows begin, the runs that they are of, and the batteries; none: the rows have no other to be compared with.
const ROWS: [(&str, &str, Option<&str>); 21] = [
    ("GET /json, no battery", "battery-json-c64", None),
    ("request id", "battery-json-c64", Some("request-id")),
    ("CORS, a page of another origin", "battery-json-c64", Some("cors")),
    ("security headers", "battery-json-c64", Some("security-headers")),
    ("signed cookie, read and set", "battery-json-c64", Some("signed-cookie")),
    ("session in memory, read", "battery-json-c64", Some("session")),
    ("Bearer token", "battery-json-c64", Some("bearer")),
    ("rate limit by address", "battery-json-c64", Some("rate-limit")),
    ("access log", "battery-json-c64", Some("access-log")),
    ("a span for each request", "battery-json-c64", Some("trace")),
    ("timeout", "battery-json-c64", Some("timeout")),
    ("catch panic", "battery-json-c64", Some("catch-panic")),
    ("compression of what is too short for it", "battery-json-c64", Some("gzip")),
    ("entity tag", "battery-json-c64", Some("etag")),
    ("GET /json, two cookies", "battery-session-cookie-c64", None),
    ("session in the cookie, read", "battery-session-cookie-c64", Some("session-cookie")),
    ("GET /items, 9 kB of JSON", "battery-gzip-c32", None),
    ("gzip at level 1", "battery-gzip-c32", Some("gzip")),
    ("POST /people, JSON", "battery-post-c64", None),
    ("validation", "battery-post-c64", Some("validate")),
    ("body limit", "battery-post-c64", Some("body-limit")),
];

/// What has no other to be compared with, and one row.
const WHOLE: [(&str, &str); 2] = [
    ("a file of a thousand bytes", "battery-file-c64"),
    ("a form with a file of twenty MiB, received", "battery-form-c1"),
];

/// The page with the table, and what stands around it there.
const PAGE: &str = "docs/performance.md";
const AROUND: [&str; 2] = ["<!-- batteries -->\n", "<!-- /batteries -->"];

/// Writes the table into its page.
pub(crate) fn write(root: &Path) -> Result<(), String> {
    let (page, table) = (root.join(PAGE), table(root)?);
    let text = fs::read_to_string(&page).map_err(|error| format!("{PAGE}: {error}"))?;
    let places = AROUND.map(|mark| text.find(mark));
    let [Some(start), Some(end)] = places else {
        return Err(format!("{PAGE}: write {AROUND:?} where the table is to stand"));
    };
    let text = [&text[..start + AROUND[0].len()], &table, &text[end..]].concat();
    fs::write(&page, text).map_err(|error| format!("{PAGE}: {error}"))
}

fn table(root: &Path) -> Result<String, String> {
    let path = root.join(results::FOLDER).join(FOLDER).join(pack::NAME);
    let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let bytes = fs::read(&path).map_err(|error| told(&error))?;
    let files = pack::read(&bytes).map_err(|error| told(&error))?;
    let mut table = format!("| us per request | {} |\n|---|---|---|---|\n", FRAMEWORKS.join(" | "));
    let whole = WHOLE.iter().map(|&(title, run)| (title, run, None));
    for (title, run, battery) in ROWS.into_iter().chain(whole) {
        let file = files.iter().find(|file| file.run == run);
        let file = file.ok_or(format!("{} has no run {run}", path.display()))?;
        writeln!(table, "{}", row(file, title, battery)).expect("a string takes any text");
    }
    Ok(table)
}

/// A row, with the fields of its numbers behind it. A cell without a contender is empty.
fn row(file: &RunFile, title: &str, battery: Option<&str>) -> String {
    let (mut cells, mut fields) = (Vec::new(), Vec::new());
    for framework in FRAMEWORKS {
        let base = format!("batteries-{framework}");
        let name = battery.map_or(base.clone(), |battery| format!("{base}-{battery}"));
        let Some(cost) = field_of(file, &format!("us:{name}")) else {
            cells.push(String::new());
            continue;
        };
        let mut cell = written(cost, cost);
        fields.push(format!("us:{name}"));
        if battery.is_some() {
            let of =
                ["added", "added-low", "added-high"].map(|kind| format!("{kind}:{name}:{base}"));
            let [added, low, high] = of.each_ref().map(|field| {
                field_of(file, field).map_or_else(String::new, |value| written(value, cost))
            });
            write!(cell, ", adds {added} ({low} to {high})").expect("a string takes any text");
            fields.extend(of);
        }
        cells.push(cell);
    }
    let (cells, fields) = (cells.join(" | "), fields.join(" "));
    format!("| {title} | {cells} <!-- figures: {FOLDER} {}: {fields} --> |", file.run)
}

/// A number of microseconds, with as many decimals as one of this size has.
fn written(value: f64, size: f64) -> String {
    let decimals = match size {
        1000.0.. => 0,
        100.0.. => 1,
        _ => 2,
    };
    format!("{value:.decimals$}").replace('-', &MINUS.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_lab_model::block::Block;

    #[test]
    fn a_row_has_what_a_battery_adds_in_the_blocks_of_both() {
        let mut file = RunFile::new("run");
        let block = |number: u32, contender: &str, server_cpu_ns: u64| Block {
            number,
            contender: contender.to_owned(),
            requests: 1,
            server_cpu_ns,
            ..Block::default()
        };
        for number in 0..9 {
            // The machine gets slower and slower, and the second one is cheaper by ever more.
            let drift = u64::from(number) * 1_000;
            file.blocks.push(block(number, "batteries-peregrine", 4_000 + drift));
            file.blocks.push(block(number, "batteries-peregrine-cors", 4_100 + drift));
            file.blocks.push(block(number, "batteries-axum", 5_000 + drift));
            let less = u64::from(number) * 10;
            file.blocks.push(block(number, "batteries-axum-cors", 5_000 + drift - less));
        }
        let row = row(&file, "CORS", Some("cors"));
        let (cells, comment) = row.split_once(" <!-- ").unwrap();
        assert_eq!(
            cells,
            "| CORS | 8.10, adds 0.10 (0.10 to 0.10) | 8.96, adds \u{2212}0.04 (\u{2212}0.07 to \u{2212}0.01) | "
        );
        assert!(comment.starts_with(
            "figures: batteries run: us:batteries-peregrine-cors added:batteries-peregrine-cors:batteries-peregrine "
        ));
    }
}
