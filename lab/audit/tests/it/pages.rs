//! The five founding pages: their audits compared with golden files, the facts that must be found
//! in them, and the transcription compared with the stored texts where those are at hand.
//!
//! `PEREGRINE_BLESS=1 cargo test -p peregrine-lab-audit` writes the golden files anew.

use std::fs;
use std::path::{Path, PathBuf};

use peregrine_lab_audit::claim::Document;
use peregrine_lab_audit::command::{self, Format};
use peregrine_lab_audit::finding::{Check, Finding, Severity};
use peregrine_lab_audit::read;
use peregrine_lab_audit::report::Report;
use sha2::{Digest, Sha256};

const PAGES: [&str; 5] =
    ["alos-https", "anvil-livebench", "rust-compare-2021", "rust-five-hello", "tako-hello"];

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn claim_file(page: &str) -> PathBuf {
    folder().join("../claims").join(format!("{page}.toml"))
}

fn page(name: &str) -> Document {
    read::file(&claim_file(name)).unwrap_or_else(|error| panic!("{error}"))
}

fn audit(name: &str) -> Report {
    Report::of(&page(name))
}

fn concerns(report: &Report, severity: Severity, check: Check) -> Vec<&str> {
    let found = report.findings.iter().filter(|f| f.severity == severity && f.check == check);
    found.flat_map(|finding| finding.concerns.iter().map(String::as_str)).collect()
}

fn finding<'a>(report: &'a Report, check: Check, row: &str) -> &'a Finding {
    let found = report
        .findings
        .iter()
        .find(|f| f.check == check && (row.is_empty() || f.concerns.iter().any(|c| c == row)));
    found.unwrap_or_else(|| panic!("no {check:?} about {row} in {}", report.id))
}

fn compare_with_golden(name: &str, found: &str) {
    let path = folder().join("tests/golden").join(name);
    if std::env::var_os("PEREGRINE_BLESS").is_some() {
        fs::create_dir_all(path.with_file_name("")).expect("the tests may write their folder");
        fs::write(&path, found).expect("the tests may write their folder");
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    let differs = expected.lines().zip(found.lines()).position(|(a, b)| a != b);
    assert!(
        expected == found,
        "{name} differs from its golden file from line {} on; if that is meant, set \
         PEREGRINE_BLESS=1 and review the difference",
        differs.unwrap_or(expected.lines().count().min(found.lines().count())) + 1
    );
}

#[test]
fn every_audit_reads_as_its_golden_file() {
    for name in PAGES {
        compare_with_golden(&format!("{name}.txt"), &command::written(&audit(name), Format::Text));
    }
    let tako = audit("tako-hello");
    compare_with_golden("tako-hello.md", &command::written(&tako, Format::Markdown));
    compare_with_golden("tako-hello.json", &command::written(&tako, Format::Json));
}

#[test]
fn every_claim_file_in_the_folder_is_tested() {
    let mut found: Vec<String> = fs::read_dir(folder().join("../claims"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".toml").map(str::to_owned))
        .collect();
    found.sort();
    assert_eq!(found, PAGES);
    for name in PAGES {
        assert_eq!(page(name).id, name);
    }
}

#[test]
fn alos_prints_means_that_its_connections_cannot_have() {
    let report = audit("alos-https");
    let rows = concerns(&report, Severity::Impossible, Check::LittleBound);
    let expected = [
        "A1/actix-web",
        "A1/fiber",
        "A1/gin",
        "A1/echo",
        "A1/iris", // 30 connections
        "A2/actix-web",
        "A2/fiber",
        "A2/gin",
        "A2/echo",
        "A2/iris", // 500
        "A3/actix-web",
        "A3/fiber",
        "A3/gin", // 5,000
        "A4/alos",
        "A4/fiber",
        "A4/gin",
        "A4/iris", // 8,000
    ];
    assert_eq!(rows, expected);
    // 144,342/s x 4.99 ms = 720.3 on 500 connections, which allow 500 / 144,342/s = 3.464 ms.
    let fiber = finding(&report, Check::LittleBound, "A2/fiber");
    assert!(fiber.detail.contains("3.464 ms") && fiber.detail.contains("1.44"), "{}", fiber.detail);
    // 8,004 of 8,000 is within what a run's edges explain.
    assert_eq!(concerns(&report, Severity::Note, Check::LittleBound), ["A4/actix-web"]);
}

#[test]
fn alos_names_a_command_that_wrk_refuses() {
    let report = audit("alos-https");
    let found = finding(&report, Check::ThreadsOverConnections, "A1/alos");
    assert_eq!(found.severity, Severity::Impossible);
    assert!(found.detail.contains("50 threads > 30 connections"), "{}", found.detail);
    assert_eq!(concerns(&report, Severity::Impossible, Check::ThreadsOverConnections).len(), 6);
}

#[test]
fn alos_leaves_half_of_its_own_connections_idle() {
    let report = audit("alos-https");
    let rows = concerns(&report, Severity::Misleading, Check::BusyConnections);
    assert_eq!(rows, ["A1/alos", "A2/alos", "A3/alos"]);
    assert!(finding(&report, Check::BusyConnections, "A1/alos").detail.contains("14.59 of 30"));
}

#[test]
fn alos_cuts_its_tail_hides_errors_and_sends_unequal_replies() {
    let report = audit("alos-https");
    let cut = concerns(&report, Severity::Misleading, Check::MaximumAtTimeout);
    assert_eq!(cut.len(), 6, "{cut:?}");
    assert!(cut.iter().all(|row| row.starts_with("A4/")), "{cut:?}");
    assert_eq!(finding(&report, Check::ErrorsNotShown, "").severity, Severity::Missing);
    let sizes = &finding(&report, Check::BytesPerReply, "A2/echo").detail;
    assert!(
        sizes.contains("alos 139, actix-web 123, fiber 123, gin 138, echo 124, iris 139"),
        "{sizes}"
    );
    let cores = &finding(&report, Check::SharedCores, "").detail;
    assert!(cores.contains("50 threads") && cores.contains("8 hardware threads"), "{cores}");
}

#[test]
fn alos_headlines_are_recomputed() {
    let report = audit("alos-https");
    let follows = |id: &str| report.claims.iter().find(|claim| claim.id == id).unwrap().follows;
    for id in ["rate-over-actix-web", "rate-over-fiber", "rate-over-echo", "transfer-over-echo"] {
        assert_eq!(follows(id), Some(true), "{id}");
    }
    let broken: Vec<&str> = concerns(&report, Severity::Misleading, Check::ClaimArithmetic);
    let expected = [
        "static-over-trie",
        "static-over-map",
        "parameters-over-trie",
        "static-average-alos",
        "static-average-linear",
        "static-average-regex",
    ];
    assert_eq!(broken, expected);
    // 1 - (30 / 165,573) / (30 / 156,699) = 5.4 %, where the page says 67.6 %.
    let basis = &finding(&report, Check::ClaimBasis, "mean-under-actix-web").detail;
    assert!(basis.contains("5.4 % less, not 67.6 %"), "{basis}");
    let wording = &finding(&report, Check::ClaimWording, "mean-under-actix-web").detail;
    assert!(wording.contains("3.09 times, or 209 % faster"), "{wording}");
}

#[test]
fn alos_claims_can_be_run() {
    let document = page("alos-https");
    let claim = document.claims.iter().find(|c| c.id.get_ref() == "rate-over-actix-web").unwrap();
    assert_eq!(claim.connections, Some(500));
    assert_eq!(claim.subject.get_ref(), "alos");
    assert_eq!(claim.object.as_ref().unwrap().get_ref(), "actix-web");
    assert_eq!(claim.ratio, Some(1.457));
    assert_eq!(document.scenario(claim.scenario.get_ref()).unwrap().name, "https-json");
}

#[test]
fn anvil_reads_a_clock_of_half_milliseconds() {
    let report = audit("anvil-livebench");
    let grid = finding(&report, Check::ClockGrid, "B3/anvil-std");
    assert!(
        grid.detail.contains("8 of 9 p50 values") && grid.detail.contains("500.0 µs"),
        "{}",
        grid.detail
    );
    let zero = concerns(&report, Severity::Misleading, Check::ZeroMedian);
    assert_eq!(zero, ["B1/anvil-fiber", "B2/anvil-fiber", "B2/anvil-native"]);
    assert!(finding(&report, Check::ZeroMedian, "").detail.contains("242.3 µs"));
    assert!(!report.is_impossible(), "the page's rates and errors are consistent");
}

#[test]
fn tako_names_no_hardware_and_ranks_noise() {
    let report = audit("tako-hello");
    let missing: Vec<&str> =
        report.of_severity(Severity::Missing).map(|finding| finding.summary.as_str()).collect();
    for gap in [
        "No processor is named.",
        "No number of cores is printed.",
        "No operating system is named.",
    ] {
        assert!(missing.contains(&gap), "{gap} is not among {missing:?}");
    }
    let noise = &finding(&report, Check::Noise, "C1/tako").detail;
    assert!(noise.contains("tako over axum by 0.59 %"), "{noise}");
    assert!(!report.is_impossible());
}

#[test]
fn the_five_rank_error_replies_and_broken_connections() {
    let report = audit("rust-five-hello");
    let warp = &finding(&report, Check::ErrorsCounted, "D/warp").detail;
    assert!(warp.contains("4,098,580 of 4,098,580 (100.0 %)"), "{warp}");
    let rocket = &finding(&report, Check::ErrorsCounted, "D/rocket").detail;
    assert!(rocket.contains("929,766 of 929,792"), "{rocket}");
    let idle = &finding(&report, Check::BusyConnections, "D/rocket").detail;
    assert!(idle.contains("47.56 of 200"), "{idle}");
    let rows = concerns(&report, Severity::Impossible, Check::LittleBound);
    assert_eq!(rows, ["D/actix-web", "D/gotham"]);
    assert!(
        concerns(&report, Severity::Impossible, Check::Totals).is_empty(),
        "wrk's totals agree"
    );
}

#[test]
fn the_comparison_of_2021_had_one_request_in_flight() {
    let report = audit("rust-compare-2021");
    let rows = concerns(&report, Severity::Misleading, Check::OneInFlight);
    assert_eq!(rows.len(), 12, "{rows:?}");
    assert_eq!(finding(&report, Check::Withdrawn, "").severity, Severity::Misleading);
    assert!(!report.is_impossible());
}

#[test]
fn no_number_is_restated_differently_on_any_page() {
    for name in PAGES {
        let report = audit(name);
        assert!(report.findings.iter().all(|finding| finding.check != Check::Restated), "{name}");
    }
}

#[test]
fn the_json_report_carries_the_same_findings() {
    let report = audit("alos-https");
    let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
    assert_eq!(json["findings"].as_array().unwrap().len(), report.findings.len());
    assert_eq!(json["findings"][0]["severity"], "impossible");
    assert_eq!(json["findings"][0]["check"], "little-bound");
    assert_eq!(json["claims"][0]["subject"], "alos");
}

/// The folder of the stored pages, which are not part of the repository.
fn seeds() -> Option<PathBuf> {
    let near = ["../../../shared/seeds", "../../../../shared/seeds"];
    near.iter().map(|path| folder().join(path)).find(|path| path.is_dir())
}

#[test]
fn every_number_stands_on_the_line_that_the_claim_file_names() {
    let Some(seeds) = seeds() else {
        println!("skipped: the folder of stored pages is not beside the repository");
        return;
    };
    for name in PAGES {
        let source = page(name).source;
        let bytes = fs::read(seeds.join(source.text_file.unwrap())).unwrap();
        let hash: String =
            Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(Some(hash), source.sha256, "{name} transcribes another text");
        let text = String::from_utf8(bytes).unwrap();
        let lines: Vec<&str> = text.split('\n').collect();
        let table: toml::Table = fs::read_to_string(claim_file(name)).unwrap().parse().unwrap();
        let mut places = Vec::new();
        collect_places(&toml::Value::Table(table), &mut places);
        assert!(places.len() > 15, "{name} has only {} places", places.len());
        for (words, line) in places {
            let printed = lines[line - 1];
            assert!(
                stands_on(&words, printed),
                "{name}: `{words}` is not on line {line}: {printed}"
            );
        }
    }
}

/// Every `text` or `quote` with its `line`.
fn collect_places(value: &toml::Value, places: &mut Vec<(String, usize)>) {
    match value {
        toml::Value::Array(items) => items.iter().for_each(|item| collect_places(item, places)),
        toml::Value::Table(table) => {
            let words =
                table.get("text").or_else(|| table.get("quote")).and_then(toml::Value::as_str);
            let line = table.get("line").and_then(toml::Value::as_integer);
            if let (Some(words), Some(line)) = (words, line) {
                places.push((
                    words.to_owned(),
                    usize::try_from(line).expect("lines are counted from 1"),
                ));
            }
            table.values().for_each(|item| collect_places(item, places));
        }
        _ => {}
    }
}

/// Whether the words, or the number they begin with, stand on the line as a whole.
fn stands_on(words: &str, line: &str) -> bool {
    let end = words.find(|c: char| !matches!(c, '0'..='9' | ',' | '.')).unwrap_or(words.len());
    let number = &words[..end];
    if number.is_empty() {
        return line.contains(words);
    }
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit() || c == ',' || c == '.');
    line.match_indices(number).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = &line[at + number.len()..];
        // A comma or stop after the number belongs to it only if a digit follows.
        let goes_on = is_part(after.chars().next())
            && after.chars().nth(1).is_some_and(|c| c.is_ascii_digit())
            || after.starts_with(|c: char| c.is_ascii_digit());
        !is_part(before) && !goes_on
    })
}
