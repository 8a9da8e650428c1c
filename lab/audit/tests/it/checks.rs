//! Each check on small pages whose arithmetic is done by hand in the test.

use peregrine_lab_audit::checks;
use peregrine_lab_audit::claim::Document;
use peregrine_lab_audit::finding::{Check, Finding, Severity};
use peregrine_lab_audit::read;
use peregrine_lab_audit::report::Report;

/// A page with one scenario; `more` holds further tables, `rows` the rows of contenders a, b, c...
fn page(scenario: &str, tool: &str, rows: &[&str], more: &str) -> Document {
    let mut text = format!(
        "schema = 1\nid = \"page\"\n[source]\ntitle = \"A page\"\ntext_file = \"page.txt\"\n\
         [tool]\n{tool}\n"
    );
    let mut tables = String::new();
    for (index, row) in rows.iter().enumerate() {
        let id = char::from(b'a' + u8::try_from(index).expect("a page of a few rows"));
        text.push_str(&format!("[[contenders]]\nid = \"{id}\"\nlabel = \"{id}\"\n"));
        tables.push_str(&format!("[[rows]]\nscenario = \"S\"\ncontender = \"{id}\"\n{row}\n"));
    }
    text.push_str(&format!(
        "[[scenarios]]\nid = \"S\"\nname = \"s\"\nrequest = \"r\"\n{scenario}\n"
    ));
    text.push_str(&tables);
    text.push_str(more);
    read::document("page.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

const WRK: &str =
    "name = \"wrk\"\ndiscipline = \"closed\"\nerrors = \"never\"\ntimeout = { text = \"2 s\" }";
const OTHER: &str = "name = \"client\"\ndiscipline = \"closed\"\nerrors = \"never\"";
const OPEN: &str = "name = \"client\"\ndiscipline = \"open\"\nerrors = \"never\"";

fn key(name: &str, text: &str) -> String {
    format!("{name} = {{ text = \"{text}\" }}\n")
}

fn rate_and_mean(rate: &str, mean: &str) -> String {
    key("rate", rate) + &key("mean", mean)
}

fn of(findings: &[Finding]) -> Vec<(Severity, Vec<&str>)> {
    findings.iter().map(|f| (f.severity, f.concerns.iter().map(String::as_str).collect())).collect()
}

#[test]
fn a_mean_above_connections_by_rate_is_impossible() {
    // 1,000/s x 11.0 ms = 11 in flight on 10; the bound is 10 ms.
    let document = page("connections = 10", WRK, &[&rate_and_mean("1000", "11.0 ms")], "");
    let found = checks::little_bound(&document);
    assert_eq!(of(&found), [(Severity::Impossible, vec!["S/a"])]);
    assert!(
        found[0].detail.contains("10.00 ms") || found[0].detail.contains("10.01 ms"),
        "{}",
        found[0].detail
    );
}

#[test]
fn rounding_is_given_to_the_page() {
    // A printed 10 ms may be 9.5 ms: 9.5 in flight. A printed 10.6 ms may not be below 10.55.
    let within = page("connections = 10", WRK, &[&rate_and_mean("1000", "10 ms")], "");
    assert!(checks::little_bound(&within).is_empty());
    let beyond = page("connections = 10", WRK, &[&rate_and_mean("1000.0", "10.6 ms")], "");
    assert_eq!(checks::little_bound(&beyond)[0].severity, Severity::Impossible);
    // A printed ~10.6 ms with ~1000/s is about 10.6, within one per cent each: 10.39 at least.
    let about = page("connections = 10", WRK, &[&rate_and_mean("~1000", "~10.1 ms")], "");
    assert!(checks::little_bound(&about).is_empty());
}

#[test]
fn an_excess_that_the_edges_of_a_run_explain_is_a_note() {
    // 10.03 ms x 1,000/s = 10.03 on 10: three in a thousand.
    let document = page("connections = 10", WRK, &[&rate_and_mean("1000.00", "10.030 ms")], "");
    assert_eq!(checks::little_bound(&document)[0].severity, Severity::Note);
}

#[test]
fn an_open_loop_has_no_bound() {
    let document = page("connections = 10", OPEN, &[&rate_and_mean("1000", "50 ms")], "");
    assert!(checks::little_bound(&document).is_empty());
    assert!(checks::busy_connections(&document).is_empty());
}

#[test]
fn percentiles_alone_can_break_the_bound() {
    // Half of the requests took 30 ms or more, so the mean is 15 ms at least: 15 in flight on 10.
    let row = key("rate", "1000") + &key("p50", "30.0 ms");
    let document = page("connections = 10", WRK, &[&row], "");
    let found = checks::little_bound(&document);
    assert_eq!(of(&found), [(Severity::Impossible, vec!["S/a"])]);
    assert!(found[0].detail.contains("by its percentiles"), "{}", found[0].detail);
}

#[test]
fn few_busy_connections_are_questioned_and_many_are_not() {
    // 1,000/s x 2.0 ms = 2 of 10 connections; 1,000/s x 9.0 ms = 9 of 10.
    let rows = [rate_and_mean("1000", "2.0 ms"), rate_and_mean("1000", "9.0 ms")];
    let document = page("connections = 10", WRK, &[&rows[0], &rows[1]], "");
    assert_eq!(of(&checks::busy_connections(&document)), [(Severity::Misleading, vec!["S/a"])]);
}

#[test]
fn one_request_in_flight_everywhere_is_the_clients_limit() {
    // 8,000/s x 124 us = 0.99 and 7,000/s x 141 us = 0.99.
    let rows = [rate_and_mean("8000", "124 us"), rate_and_mean("7000", "141 us")];
    let document = page("", OTHER, &[&rows[0], &rows[1]], "");
    assert_eq!(of(&checks::one_in_flight(&document)), [(Severity::Misleading, vec!["S/a", "S/b"])]);
    let declared = page("connections = 1", OTHER, &[&rows[0], &rows[1]], "");
    assert!(checks::one_in_flight(&declared).is_empty(), "one connection was meant");
    let other = rate_and_mean("8000", "1 ms");
    let mixed = page("", OTHER, &[&rows[0], &other], "");
    assert!(checks::one_in_flight(&mixed).is_empty(), "eight in flight in one row");
}

#[test]
fn only_wrk_refuses_more_threads_than_connections() {
    let row = key("rate", "1");
    let scenario = "connections = 30\nthreads = 50";
    let refused = checks::threads_over_connections(&page(scenario, WRK, &[&row], ""));
    assert_eq!(of(&refused), [(Severity::Impossible, vec!["S/a"])]);
    assert!(checks::threads_over_connections(&page(scenario, OTHER, &[&row], "")).is_empty());
    let equal = "connections = 50\nthreads = 50";
    assert!(checks::threads_over_connections(&page(equal, WRK, &[&row], "")).is_empty());
}

#[test]
fn a_maximum_at_the_timeout_is_a_cut_tail() {
    let rows = [key("max", "2.00 s"), key("max", "1.99 s"), key("max", "1.43 s")];
    let document = page("", WRK, &[&rows[0], &rows[1], &rows[2]], "");
    assert_eq!(
        of(&checks::maximum_at_timeout(&document)),
        [(Severity::Misleading, vec!["S/a", "S/b"])]
    );
    let untimed = page("", OTHER, &[&rows[0]], "");
    assert!(checks::maximum_at_timeout(&untimed).is_empty(), "no timeout is known");
}

#[test]
fn shared_cores_are_reported_with_their_numbers() {
    let more =
        "[design]\nsame_machine = { text = \"loopback\" }\n[environment]\nhardware_threads = 8\n";
    let document = page("threads = 50\nconnections = 60", WRK, &[&key("rate", "1")], more);
    let found = checks::shared_cores(&document);
    assert!(
        found[0].detail.contains("50 threads") && found[0].detail.contains("8 hardware threads")
    );
    let apart = more.replace("[environment]", "client_cores = { text = \"4-7\" }\n[environment]");
    let document = page("threads = 50\nconnections = 60", WRK, &[&key("rate", "1")], &apart);
    assert!(checks::shared_cores(&document).is_empty());
}

#[test]
fn errors_are_asked_for_and_a_zero_is_an_answer() {
    let silent = page("", OTHER, &[&key("rate", "1")], "");
    assert_eq!(checks::errors_not_shown(&silent)[0].severity, Severity::Missing);
    let shown = page("", OTHER, &[&(key("rate", "1") + &key("errors", "0"))], "");
    assert!(checks::errors_not_shown(&shown).is_empty());
    assert!(checks::errors_counted(&shown).is_empty());
    let raw = OTHER.replace("never", "when_any");
    assert!(checks::errors_not_shown(&page("", &raw, &[&key("rate", "1")], "")).is_empty());
}

#[test]
fn counted_errors_are_reported_as_a_share_of_requests() {
    let row = key("rate", "100") + &key("requests", "1,000") + &key("non_2xx", "250");
    let document = page("", OTHER, &[&row], "");
    let found = checks::errors_counted(&document);
    assert_eq!(of(&found), [(Severity::Misleading, vec!["S/a"])]);
    assert!(found[0].detail.contains("250 of 1,000 (25.0 %)"), "{}", found[0].detail);
    // Without a total, rate x duration takes its place: 100/s x 10 s.
    let row = key("rate", "100") + &key("timeouts", "500");
    let document = page("duration = { text = \"10 s\" }", OTHER, &[&row], "");
    assert!(checks::errors_counted(&document)[0].detail.contains("500 of 1,000 (50.0 %)"));
}

#[test]
fn replies_of_unequal_size_are_found_beyond_rounding() {
    // 1.00 MB/s / 10,000/s is 99.5 to 100.5 bytes; 1.10 MB/s is 109.5 to 110.5.
    let row = |size: &str| key("rate", "10000") + &key("transfer", size);
    let unequal = page("", OTHER, &[&row("1.00 MB/s"), &row("1.10 MB/s")], "");
    let found = checks::bytes_per_reply(&unequal);
    assert!(
        found[0].detail.contains("a 99 to 101") || found[0].detail.contains("a 100"),
        "{}",
        found[0].detail
    );
    assert_eq!(of(&found), [(Severity::Misleading, vec!["S/a", "S/b"])]);
    let equal = page("", OTHER, &[&row("1.00 MB/s"), &row("1.01 MB/s")], "");
    assert!(checks::bytes_per_reply(&equal).is_empty());
}

#[test]
fn totals_that_contradict_their_rates_are_impossible() {
    // 1,000 requests in 10.0 s are 99.5 to 100.5 per second.
    let row =
        |rate: &str| key("rate", rate) + &key("requests", "1000") + &key("duration", "10.0 s");
    let document = page("", OTHER, &[&row("100"), &row("120")], "");
    assert_eq!(of(&checks::totals(&document)), [(Severity::Impossible, vec!["S/b"])]);
}

#[test]
fn a_clock_grid_is_found_and_a_spread_is_not() {
    let medians = |texts: [&str; 6]| texts.map(|text| key("p50", text));
    let grid = medians(["0.500 ms", "1.001 ms", "1.502 ms", "0.501 ms", "2.003 ms", "1.000 ms"]);
    let document = page("", OTHER, &grid.each_ref().map(String::as_str), "");
    let found = checks::clock_grid(&document);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].detail.contains("6 of 6") && found[0].detail.contains("500.0 µs"),
        "{}",
        found[0].detail
    );
    let spread = medians(["0.513 ms", "0.871 ms", "1.342 ms", "0.690 ms", "1.877 ms", "1.105 ms"]);
    let document = page("", OTHER, &spread.each_ref().map(String::as_str), "");
    assert!(checks::clock_grid(&document).is_empty());
    let coarse = medians(["1 ms", "2 ms", "3 ms", "1 ms", "2 ms", "1 ms"]);
    let document = page("", OTHER, &coarse.each_ref().map(String::as_str), "");
    assert!(checks::clock_grid(&document).is_empty(), "printed digits are no clock");
}

#[test]
fn a_median_of_zero_is_set_against_the_cycle() {
    // 10 connections / 20,000/s = 500 us.
    let document =
        page("connections = 10", OTHER, &[&(key("rate", "20000") + &key("p50", "0.000 ms"))], "");
    let found = checks::zero_median(&document);
    assert!(found[0].detail.contains("500.0 µs"), "{}", found[0].detail);
}

#[test]
fn a_falling_percentile_is_impossible() {
    let row = key("p50", "2.0 ms") + &key("p99", "1.9 ms") + &key("max", "5 ms");
    let found = page("", OTHER, &[&row], "");
    assert_eq!(checks::percentile_order(&found)[0].severity, Severity::Impossible);
    let rounded = key("p50", "2.0 ms") + &key("p99", "2 ms");
    assert!(checks::percentile_order(&page("", OTHER, &[&rounded], "")).is_empty());
}

#[test]
fn the_mean_lies_where_the_percentiles_allow() {
    // At least half of 10 ms and a hundredth of 20 ms more: 5.1 ms and above; at most
    // 0.5 x 10 + 0.49 x 20 + 0.01 x 30 = 15.1 ms.
    let row = |mean: &str| {
        key("p50", "10.00 ms")
            + &key("p99", "20.00 ms")
            + &key("max", "30.00 ms")
            + &key("mean", mean)
    };
    let severity = |mean: &str| {
        checks::mean_bounds(&page("", OTHER, &[&row(mean)], "")).first().map(|found| found.severity)
    };
    assert_eq!(severity("5.00 ms"), Some(Severity::Impossible));
    assert_eq!(severity("5.20 ms"), Some(Severity::Note), "below the median");
    assert_eq!(severity("12.00 ms"), None);
    assert_eq!(severity("15.00 ms"), None);
    assert_eq!(severity("15.40 ms"), Some(Severity::Impossible));
}

#[test]
fn neighbours_within_the_noise_are_not_ranked() {
    let rows = ["1040", "1000", "900"].map(|rate| key("rate", rate));
    let rows = rows.each_ref().map(String::as_str);
    let found = checks::ranked_noise(&page("", OTHER, &rows, ""));
    assert_eq!(of(&found), [(Severity::Misleading, vec!["S/a", "S/b"])]);
    assert!(found[0].detail.contains("a over b by 4.00 %"), "{}", found[0].detail);
    // Four repeats halve the noise to 2.5 %; a printed spread leaves the judgement to the reader.
    assert!(checks::ranked_noise(&page("", OTHER, &rows, "[design]\nrepeats = 4\n")).is_empty());
    let spread = "[design]\nspread = { text = \"1 %\" }\n";
    assert!(checks::ranked_noise(&page("", OTHER, &rows, spread)).is_empty());
}

/// A claim about a over b in scenario S.
fn claim(form: &str, printed: &str, ratio: &str, measure: &str) -> String {
    let printed =
        if printed.is_empty() { String::new() } else { format!("printed = \"{printed}\"\n") };
    format!(
        "[[claims]]\nid = \"c\"\nquote = \"{form} faster\"\nscenario = \"S\"\nmeasure = \"{measure}\"\n\
         subject = \"a\"\nobject = \"b\"\nform = \"{form}\"\n{printed}{ratio}\n"
    )
}

#[test]
fn percentages_and_factors_are_recomputed() {
    let follows = |claim: &str| {
        let rows = [rate_and_mean("1500", "2.0 ms"), rate_and_mean("1000", "5.0 ms")];
        let document = page("", OTHER, &[&rows[0], &rows[1]], claim);
        checks::claim_figures(&document)[0].follows.unwrap()
    };
    assert!(follows(&claim("percent_more", "50%", "ratio = 1.5", "rate")));
    assert!(!follows(&claim("percent_more", "52%", "ratio = 1.52", "rate")));
    assert!(follows(&claim("percent_less", "60%", "ratio = 0.4", "mean")));
    assert!(!follows(&claim("percent_less", "70%", "ratio = 0.3", "mean")));
    assert!(follows(&claim("factor", "2.5x", "ratio = 0.4", "mean")), "5.0 / 2.0");
    assert!(!follows(&claim("factor", "3.5x", "ratio = 0.286", "mean")));
    assert!(follows(&claim("factor", "1.5x", "ratio = 1.5", "rate")));
    assert!(!follows(&claim("equivalent", "", "ratio = 1.0", "rate")));
    assert!(!follows(&claim("worse", "", "", "rate")), "a is better");
    assert!(!follows(&claim("worse", "", "", "mean")), "a is better");
}

#[test]
fn faster_by_a_share_of_time_is_noted_with_the_speed() {
    let rows = [rate_and_mean("1500", "2.0 ms"), rate_and_mean("1000", "5.0 ms")];
    let more = claim("percent_less", "60%", "ratio = 0.4", "mean");
    let found = checks::claim_wording(&page("", OTHER, &[&rows[0], &rows[1]], &more));
    assert!(found[0].detail.contains("2.50 times, or 150 % faster"), "{}", found[0].detail);
}

#[test]
fn a_latency_claim_is_held_against_the_cycles_of_the_same_rows() {
    // Cycles of 10 / 1,100 = 9.09 ms and 10 / 1,000 = 10 ms differ by 9.1 %, the means by 60 %.
    let rows = [rate_and_mean("1100", "4.0 ms"), rate_and_mean("1000", "10.0 ms")];
    let more = claim("percent_less", "60%", "ratio = 0.4", "mean")
        .replace("measure", "connections = 10\nmeasure");
    let document = page("connections = 10", OTHER, &[&rows[0], &rows[1]], &more);
    let found = checks::claim_basis(&document);
    assert!(found[0].detail.contains("9.1 % less, not 60.0 %"), "{}", found[0].detail);
}

const TABLE: &str = "[[microbenchmarks]]\nscenario = \"M\"\ntitle = \"Lookups\"\ncolumns = [\"a\", \"b\"]\n\
    operations = [\n{ name = \"x\", times = [{ text = \"10 ns\" }, { text = \"30 ns\" }] },\n\
    { name = \"y\", times = [{ text = \"20 ns\" }, { text = \"15 ns\" }] },\n]\n";

#[test]
fn averages_and_spans_are_those_of_their_rows() {
    let follows = |form: &str, printed: &str| {
        let about = format!(
            "[[claims]]\nid = \"c\"\nquote = \"q\"\nscenario = \"M\"\nmeasure = \"time_per_operation\"\n\
             subject = \"a\"\nform = \"{form}\"\nprinted = \"{printed}\"\n"
        );
        let rows = [key("rate", "1"), key("rate", "1")];
        let document = page("", OTHER, &[&rows[0], &rows[1]], &(about + TABLE));
        checks::claim_figures(&document)[0].follows.unwrap()
    };
    assert!(follows("average", "15 ns"));
    assert!(!follows("average", "13 ns"));
    assert!(follows("span", "10–20 ns"));
    assert!(!follows("span", "10-15 ns"));
    assert!(follows("below", "25 ns"));
    assert!(!follows("below", "15 ns"));
}

#[test]
fn a_loss_of_the_publisher_is_noted_and_a_restatement_is_compared() {
    let rows = [key("rate", "1,234"), key("rate", "1")];
    let again = |text: &str| {
        format!(
            "[[restated]]\nscenario = \"S\"\ncontender = \"a\"\nmeasure = \"rate\"\ntext = \"{text}\"\nline = 1\n"
        )
    };
    let mut document = page("", OTHER, &[&rows[0], &rows[1]], &(again("1.2k") + TABLE));
    document.source.home = Some("a".to_owned());
    let losses = checks::unmentioned_losses(&document);
    assert_eq!(losses.len(), 1);
    assert!(losses[0].detail.contains("a 20 ns, b 15 ns"), "{}", losses[0].detail);
    assert!(checks::restated_numbers(&document).is_empty());
    let document = page("", OTHER, &[&rows[0], &rows[1]], &again("1.3k"));
    assert_eq!(checks::restated_numbers(&document)[0].check, Check::Restated);
}

#[test]
fn what_the_page_admits_and_what_it_lacks_is_repeated() {
    let more = "[design]\nselected = { text = \"best of five\", line = 3 }\nrepeats = 5\n\
                handicaps = [{ text = \"debug build\" }]\n";
    let document = page("connections = 1", OTHER, &[&key("rate", "1")], more);
    let admitted: Vec<Check> = checks::admissions(&document).iter().map(|f| f.check).collect();
    assert_eq!(admitted, [Check::Selected, Check::Handicap]);
    let gaps = checks::not_printed(&document);
    assert!(gaps.iter().all(|gap| gap.severity == Severity::Missing));
    assert!(gaps.iter().all(|gap| !gap.summary.contains("repeats")), "it is printed");
    assert!(gaps.iter().any(|gap| gap.summary.contains("processor")));
    assert!(gaps.iter().any(|gap| gap.summary.contains("without a version")));
}

#[test]
fn findings_come_gravest_first() {
    let rows = [rate_and_mean("1000", "20.0 ms"), rate_and_mean("1010", "1.0 ms")];
    let report = Report::of(&page("connections = 10", WRK, &[&rows[0], &rows[1]], ""));
    assert!(report.findings.is_sorted_by_key(|finding| finding.severity));
    assert!(report.is_impossible());
}
