//! Figures of speed in the pages that users read, against the run files behind them.
//!
//! A comment stands behind the numbers that it is about and names the run and a field for each of
//! them: the last number before it is the last field's.
//!
//! ```text
//! 3.96, 5.20 and 31 %<!-- figures: first-flight json-c64: us:peregrine us:hyper more:hyper -->
//! ```
//!
//! Every number with a per cent sign or a unit has to have one, and where the page is about speed
//! every number with a decimal point. A section that says "no run file" to its reader is believed.
//!
//! What is set and not measured is no figure: a number in brackets, or after a comma, behind the name of
//! what it is the default of, as in "`poll_budget` (100 ms)". Elsewhere a comment names it, and is believed:
//!
//! ```text
//! After 15 s<!-- figures: set: Sse::keep_alive --> without an event
//! ```

use crate::results;
use peregrine_lab_model::block::Block;
use peregrine_lab_model::micro::Operation;
use peregrine_lab_model::verdict::Measure;
use peregrine_lab_model::{RunFile, pack};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The pages, beside those of the guide.
const PAGES: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/performance.md"];

/// The guide's folder.
const GUIDE: &str = "docs/guide";

/// The page, and the section of others, that are about speed.
const SPEED: (&str, &str) = ("docs/performance.md", "## How fast it is");

/// How a comment begins.
const OPEN: &str = "<!-- figures: ";

/// What a section says whose figures cannot be traced.
const NO_RUN_FILE: &str = "no run file";

/// In the place of a run: the number is no measurement, and the field says what sets it.
const SET: &str = "set";

/// How the text before a number ends that is the default of what was named.
const NAMED: [&str; 2] = ["` (", "`, "];

/// What makes a whole number a figure when it stands behind it.
const UNITS: [&str; 22] = [
    "%",
    "ns",
    "us",
    "ms",
    "s",
    "second",
    "seconds",
    "minute",
    "minutes",
    "hour",
    "hours",
    "B",
    "KB",
    "MB",
    "GB",
    "KiB",
    "MiB",
    "GiB",
    "bytes",
    "times",
    "microseconds",
    "allocations",
];

/// Stands before a number below zero: behind a hyphen a number is part of a word.
pub(crate) const MINUS: char = '\u{2212}';

/// A number behind this is a version.
const VERSIONED: [&str; 5] = ["TLS ", "HTTP/", "Rust ", "Linux ", "axum "];

/// Every figure of the pages is what its run file says.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut runs = Runs { root, folders: BTreeMap::new() };
    let mut complaints = Vec::new();
    for page in pages(root) {
        let Ok(text) = fs::read_to_string(root.join(&page)) else {
            complaints.push(format!("{page}: cannot be read; `tidy/src/figures.rs` names it"));
            continue;
        };
        for section in sections(&text) {
            let of_speed = page == SPEED.0 || section.starts_with(SPEED.1);
            let found = check_section(section, of_speed, |run, field| runs.value(run, field));
            complaints.extend(found.into_iter().map(|found| format!("{page}: {found}")));
        }
    }
    complaints
}

fn pages(root: &Path) -> Vec<String> {
    let guide = fs::read_dir(root.join(GUIDE)).into_iter().flatten().flatten();
    let guide = guide.map(|entry| format!("{GUIDE}/{}", entry.file_name().to_string_lossy()));
    // What makes a book of them is no page.
    let guide = guide.filter(|page| page.ends_with(".md"));
    let mut pages: Vec<_> = PAGES.map(str::to_owned).into_iter().chain(guide).collect();
    pages.sort();
    pages
}

/// The text cut before each heading. What looks like one within a block of code is a comment there.
fn sections(text: &str) -> Vec<&str> {
    let (mut starts, mut at, mut is_code) = (vec![0], 0, false);
    for line in text.split_inclusive('\n') {
        is_code ^= line.starts_with("```");
        if !is_code && line.starts_with('#') && at > 0 {
            starts.push(at);
        }
        at += line.len();
    }
    starts.push(text.len());
    starts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

/// What is wrong in one section, by a function from a run and a field to its value.
fn check_section(
    section: &str,
    of_speed: bool,
    mut value: impl FnMut(&str, &str) -> Result<f64, String>,
) -> Vec<String> {
    let (mut complaints, mut untraced) = (Vec::new(), Vec::new());
    let section = without_code(section);
    let may_be_untraced = section.contains(NO_RUN_FILE);
    let mut pieces = section.split(OPEN);
    let mut text = pieces.next().unwrap_or_default();
    for piece in pieces {
        let (comment, behind) = piece.split_once("-->").unwrap_or((piece, ""));
        let mut numbers = numbers(text);
        let (run, fields) = comment.split_once(": ").unwrap_or((comment, ""));
        let fields: Vec<&str> = fields.split_whitespace().collect();
        if fields.is_empty() || fields.len() > numbers.len() {
            let (wanted, there) = (fields.len(), numbers.len());
            complaints.push(format!("“{comment}” has {wanted} fields for {there} numbers"));
        } else {
            let traced = numbers.split_off(numbers.len() - fields.len());
            for (number, field) in traced.iter().zip(fields).filter(|_| run != SET) {
                match value(run, field) {
                    Ok(value) if number.is(value) => {}
                    Ok(value) => complaints.push(format!(
                        "{} stands for {run}: {field}, which is {value:.5}",
                        number.text
                    )),
                    Err(error) => complaints.push(error),
                }
            }
        }
        untraced.extend(numbers.iter().filter_map(|number| number.untraced(of_speed)));
        text = behind;
    }
    untraced.extend(numbers(text).iter().filter_map(|number| number.untraced(of_speed)));
    if !may_be_untraced {
        complaints.append(&mut untraced);
    }
    complaints
}

/// The text without blocks and spans of code, and without the targets of links.
fn without_code(text: &str) -> String {
    let blocks: Vec<&str> = text.split("```").step_by(2).collect();
    let spans: String = blocks.join(" ").split('`').step_by(2).collect::<Vec<_>>().join("`");
    let mut pieces = spans.split("](");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| text + "]" + piece.split_once(')').map_or("", |it| it.1))
}

/// A number of a text, with what stands around it.
#[derive(Debug)]
struct Number<'a> {
    text: &'a str,
    before: &'a str,
    behind: &'a str,
}

/// The numbers of a text. Digits within words, versions of three parts and dates are none.
fn numbers(text: &str) -> Vec<Number<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(step) = text[at..].find(|c: char| c.is_ascii_digit()) {
        let start = at + step;
        let is_part = |c: char| c.is_ascii_digit() || c == ',' || c == '.';
        let length = text[start..].find(|c| !is_part(c)).unwrap_or(text.len() - start);
        let number = text[start..start + length].trim_end_matches([',', '.']);
        at = start + length;
        let is_in_word =
            text[..start].ends_with(|c: char| c.is_alphanumeric() || "_-/".contains(c));
        if !is_in_word && number.matches('.').count() < 2 {
            let (before, behind) = (&text[..start], &text[start + number.len()..]);
            found.push(Number { text: number, before, behind });
        }
    }
    found
}

impl Number<'_> {
    /// Whether it is this value, rounded as it is.
    fn is(&self, value: f64) -> bool {
        let decimals = self.text.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        let sign = if self.before.ends_with(MINUS) { "-" } else { "" };
        format!("{value:.decimals$}") == format!("{sign}{}", self.text.replace(',', ""))
    }

    /// The complaint about a figure that nothing is said about.
    fn untraced(&self, of_speed: bool) -> Option<String> {
        let is_level = self.behind.starts_with(" % interval");
        let is_version = VERSIONED.iter().any(|word| self.before.ends_with(word));
        let is_default = NAMED.iter().any(|named| self.before.ends_with(named));
        let behind = self.behind.trim_start();
        let has_unit = UNITS.iter().any(|unit| {
            behind.strip_prefix(unit).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
        });
        let is_figure = has_unit || (of_speed && self.text.contains('.'));
        (is_figure && !is_version && !is_level && !is_default).then(|| {
            let line = self.before.lines().next_back().unwrap_or_default();
            let behind = self.behind.lines().next().unwrap_or_default();
            let line = format!("{line}{}{behind}", self.text);
            let line = line.trim();
            format!(
                "{} has no run file: write `{OPEN}FOLDER RUN: FIELD -->` behind it, `{OPEN}{SET}: NAME -->` \
                 if it is not measured, or “{NO_RUN_FILE}” in its section: {line}",
                self.text
            )
        })
    }
}

/// The run files that were read.
struct Runs<'a> {
    root: &'a Path,
    folders: BTreeMap<String, Vec<RunFile>>,
}

impl Runs<'_> {
    /// A field's value in a run, which is named by its folder and its name.
    fn value(&mut self, run: &str, field: &str) -> Result<f64, String> {
        let (folder, name) = run.split_once(' ').ok_or(format!("“{run}” is no FOLDER RUN"))?;
        let files = match self.folders.entry(folder.to_owned()) {
            std::collections::btree_map::Entry::Occupied(there) => there.into_mut(),
            std::collections::btree_map::Entry::Vacant(vacant) => {
                let path = self.root.join(results::FOLDER).join(folder);
                if results::is_red(&path) {
                    return Err(format!("{folder} has a red report: take its figures out"));
                }
                let bytes = fs::read(path.join(pack::NAME))
                    .map_err(|error| format!("{folder}: {error}"))?;
                let files = pack::read(&bytes).map_err(|error| format!("{folder}: {error}"))?;
                vacant.insert(files)
            }
        };
        let file = files.iter().find(|file| file.run == name);
        let file = file.ok_or_else(|| format!("{folder} has no run “{name}”"))?;
        field_of(file, field).ok_or_else(|| format!("{run} has no field “{field}”"))
    }
}

/// `us:NAME`: the median of the blocks, in microseconds of server CPU time per request.
/// `ratio:NAME`, `low:NAME`, `high:NAME`: its cost against the reference's, with the interval.
/// `more:NAME`, `less:NAME`: how far that is above or below 1, in per cent.
/// `saved:NAME`: how much less than it the reference needs, in per cent. `noise`: in per cent.
/// `added:NAME:BASE`, `added-low:NAME:BASE`, `added-high:NAME:BASE`: how many microseconds it costs more than the other one,
/// by the median over the blocks that have both, and the 95 % interval of that.
/// `memory:NAME`: what a further idle connection takes, in bytes, by the median readings.
/// `ns:OPERATION:MODE:NAME`: of a benchmark inside a process; spaces of an operation are `_`.
/// A space of a name, as in `peregrine (echo)`, is `+`.
pub(crate) fn field_of(file: &RunFile, field: &str) -> Option<f64> {
    let (kind, name) = field.split_once(':').unwrap_or((field, ""));
    let name = &*name.replace('+', " ");
    if kind == "noise" {
        return file.again.as_ref().map(|again| again.band * 100.0);
    }
    if let Some(place) = ["added-low", "added", "added-high"].iter().position(|one| *one == kind) {
        let (name, base) = name.split_once(':')?;
        return Some(added(file, name, base)?[place]);
    }
    if kind == "memory" {
        return bytes_per_connection(file, name);
    }
    if kind == "ns" {
        let mut words = name.split(':');
        let (operation, mode, name) =
            (words.next()?.replace('_', " "), words.next()?, words.next()?);
        let is_meant =
            |of: &&Operation| of.operation == operation && of.mode == mode && of.contender == name;
        return file.operations.iter().find(is_meant).map(|of| of.nanoseconds);
    }
    if kind == "us" {
        let mut costs: Vec<f64> =
            file.blocks_of(name).filter_map(|block| block.server_ns_per_request()).collect();
        costs.sort_unstable_by(f64::total_cmp);
        let middle = costs.len() / 2;
        let below = costs.get(middle.checked_sub(1 - costs.len() % 2)?)?;
        return Some((below + costs.get(middle)?) / 2.0 / 1e3);
    }
    let judged = file.verdicts.iter().find(|verdict| {
        verdict.contender == name
            && verdict.measure == Measure::ServerCpu
            && verdict.reference == file.plan.reference
    });
    let ratio = judged?.ratio;
    match kind {
        "ratio" => Some(ratio.estimate),
        "low" => Some(ratio.low),
        "high" => Some(ratio.high),
        "more" => Some((ratio.estimate - 1.0) * 100.0),
        "less" => Some((1.0 - ratio.estimate) * 100.0),
        "saved" => Some((1.0 - 1.0 / ratio.estimate) * 100.0),
        _ => None,
    }
}

/// What a contender costs more than another one in the same block, in microseconds: the median, between the bounds of its
/// interval. The interval is that of the sign test, by ranks, which assumes nothing about how costs are spread.
fn added(file: &RunFile, name: &str, base: &str) -> Option<[f64; 3]> {
    let cost = |block: &Block| Some((block.number, block.server_ns_per_request()?));
    let bases: BTreeMap<u32, f64> = file.blocks_of(base).filter_map(cost).collect();
    let both = file.blocks_of(name).filter_map(cost);
    let more = both.filter_map(|(number, cost)| Some((cost - bases.get(&number)?) / 1e3));
    let mut more: Vec<f64> = more.collect();
    more.sort_unstable_by(f64::total_cmp);
    let last = more.len().checked_sub(1)?;
    // How likely it is that so few of the differences, or fewer, lie below the true median.
    let mut chance = 0.5_f64.powi(i32::try_from(more.len()).ok()?);
    let (mut sum, mut rank) = (chance, 0);
    while sum <= 0.025 {
        rank += 1;
        chance *= (more.len() - rank + 1) as f64 / rank as f64;
        sum += chance;
    }
    let low = rank.saturating_sub(1);
    Some([more[low], (more[last / 2] + more[more.len() / 2]) / 2.0, more[last - low]])
}

/// The slope between the fewest and the most connections, each by the median of its readings.
fn bytes_per_connection(file: &RunFile, name: &str) -> Option<f64> {
    let mut readings: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for reading in file.memory.iter().filter(|reading| reading.contender == name) {
        readings.entry(reading.connections).or_default().push(reading.bytes);
    }
    let middle = |values: &Vec<u64>| {
        let mut values = values.clone();
        values.sort_unstable();
        values.get((values.len() - 1) / 2).copied()
    };
    let (fewest, few) = readings.first_key_value()?;
    let (most, many) = readings.last_key_value()?;
    let connections = most.checked_sub(*fewest).filter(|connections| *connections > 0)?;
    Some((middle(many)? as f64 - middle(few)? as f64) / f64::from(connections))
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_lab_model::block::MemoryReading;

    fn complaints(text: &str) -> Vec<String> {
        check_section(text, true, |run, field| match (run, field) {
            ("folder run", "us:a") => Ok(3.956),
            ("folder run", "more:b") => Ok(31.2),
            ("folder run", "added:c:d") => Ok(-0.25),
            _ => Err(format!("{run} has no field “{field}”")),
        })
    }

    #[test]
    fn a_figure_is_its_field_rounded_as_it_is_printed() {
        let comment = "<!-- figures: folder run: us:a more:b -->";
        assert_eq!(complaints(&format!("64 connections: 3.96 us, 31 % more{comment}.")), [""; 0]);
        assert_eq!(complaints(&format!("| 64 | 3.956 | 31.2 {comment} |")), [""; 0]);
        let wrong = complaints(&format!("3.95 us, 32 %{comment}"));
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].starts_with("3.95 stands for folder run: us:a, which is 3.956"));
        assert!(complaints(&format!("31 %{comment}"))[0].contains("2 fields for 1 numbers"));
        assert!(complaints("3.96<!-- figures: folder run: ms:a -->")[0].contains("no field"));
    }

    #[test]
    fn a_number_behind_a_minus_is_below_zero() {
        let comment = "<!-- figures: folder run: added:c:d -->";
        assert_eq!(complaints(&format!("adds \u{2212}0.25{comment}.")), [""; 0]);
        assert_eq!(complaints(&format!("adds 0.25{comment}.")).len(), 1);
    }

    #[test]
    fn a_comment_in_a_block_of_code_begins_no_section() {
        let text = "# One\n```toml\n# two\nidle = \"75s\"\n```\nthree\n## Four\n";
        assert_eq!(sections(text).len(), 2);
        assert_eq!(sections("Words.\n# One\n"), ["Words.\n", "# One\n"]);
    }

    #[test]
    fn a_figure_without_a_field_is_named() {
        for text in [
            "costs 3.96",
            "some 31 % less",
            "606 bytes",
            "| 10,115 us | 1 |",
            "7 MB",
            "2 times",
            "9\ns",
        ] {
            assert_eq!(complaints(text).len(), 1, "{text}");
        }
        let words =
            "64 connections, TLS 1.3, HTTP/1.1, 0.1.0, `3.96`, [x](y/3.96.md), h2\n```\n1.5\n```\n";
        assert_eq!(complaints(words), [""; 0]);
        assert_eq!(complaints("3.95 and 31 %, of which there is no run file"), [""; 0]);
    }

    #[test]
    fn what_is_set_is_no_figure() {
        for text in ["`poll_budget` (100 ms)", "`a::b`, 75 s", "15 s<!-- figures: set: a -->"] {
            assert_eq!(complaints(text), [""; 0]);
        }
        for text in ["`x` needs 100 ms", "15 s, 9 s<!-- figures: set: a -->"] {
            assert_eq!(complaints(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn a_page_that_is_not_about_speed_may_have_versions() {
        let value = |_: &str, _: &str| Err(String::new());
        assert_eq!(check_section("Rust (1.95 or newer), 16 sockets", false, value), [""; 0]);
        assert_eq!(check_section("1.95 us", false, value).len(), 1);
    }

    #[test]
    fn figures_of_a_red_run_are_refused() {
        let root = std::env::temp_dir().join(format!("tidy-figures-{}", std::process::id()));
        let folder = root.join(results::FOLDER).join("some");
        fs::create_dir_all(&folder).unwrap();
        let mut file = RunFile::new("json-c64");
        file.blocks = [3_000, 1_000, 2_000, 2_500].map(block).to_vec();
        fs::write(folder.join(pack::NAME), pack::write(&[file]).unwrap()).unwrap();
        let value = |run, field| Runs { root: &root, folders: BTreeMap::new() }.value(run, field);
        assert_eq!(value("some json-c64", "us:a"), Ok(2.25));
        assert!(value("some json-c65", "us:a").unwrap_err().contains("no run"));
        assert!(value("some json-c64", "us:b").unwrap_err().contains("no field"));
        fs::write(folder.join("report.md"), "**red: Must not be published as a comparison**")
            .unwrap();
        assert!(value("some json-c64", "us:a").unwrap_err().contains("red report"));
        fs::remove_dir_all(&root).unwrap();
    }

    fn block(server_cpu_ns: u64) -> Block {
        Block { contender: "a".to_owned(), requests: 1, server_cpu_ns, ..Block::default() }
    }

    #[test]
    fn memory_is_the_slope_of_the_median_readings() {
        let reading =
            |connections, bytes| MemoryReading { contender: "a".to_owned(), connections, bytes };
        let memory = [(0, 1_000), (0, 9_000), (10, 7_000), (10, 6_000), (10, 99_000), (0, 2_000)];
        let mut file = RunFile::new("idle");
        file.memory = memory.map(|(connections, bytes)| reading(connections, bytes)).to_vec();
        assert_eq!(field_of(&file, "memory:a"), Some(500.0));
        assert_eq!(field_of(&file, "memory:b"), None);
    }

    #[test]
    fn a_lookup_is_named_by_operation_mode_and_router() {
        let mut file = RunFile::new("router");
        file.operations = vec![Operation {
            operation: "static hot".to_owned(),
            mode: "match".to_owned(),
            contender: "a".to_owned(),
            nanoseconds: 8.5,
        }];
        assert_eq!(field_of(&file, "ns:static_hot:match:a"), Some(8.5));
        assert_eq!(field_of(&file, "ns:static_hot:read:a"), None);
        assert_eq!(field_of(&file, "ns:static_hot"), None);
    }

    #[test]
    fn a_page_is_cut_at_its_headings() {
        assert_eq!(sections("a\n# b\nc\n## d\n"), ["a\n", "# b\nc\n", "## d\n"]);
    }
}
