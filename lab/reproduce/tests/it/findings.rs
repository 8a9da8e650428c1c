//! The five words, by table: what was measured against what was published.

use peregrine_lab_audit::claim::Document;
use peregrine_lab_audit::read;
use peregrine_lab_model::claim::{ClaimResult, Finding};
use peregrine_lab_model::verdict::{Decision, Ratio};
use peregrine_lab_reproduce::{
    Available, CorrectedFigures, LatencyFigures, Observed, OperationTime, PairJudged, PairMeasure,
    conclude, program,
};

const CPU: PairMeasure = PairMeasure::ServerCpu;
const RATE: PairMeasure = PairMeasure::Throughput;
const MEAN: PairMeasure = PairMeasure::LatencyMean;

/// A page with one claim of `one` against `two`.
fn page(claim: &str) -> Document {
    let text = format!(
        r#"
schema = 1
id = "test"
source = {{ title = "a page" }}
tool = {{ name = "wrk", discipline = "closed", errors = "always" }}
contenders = [{{ id = "one", label = "One" }}, {{ id = "two", label = "Two" }}]
scenarios = [{{ id = "S", name = "hello", request = "GET /", connections = 64 }}]
rows = [
    {{ scenario = "S", contender = "one", rate = {{ text = "110" }} }},
    {{ scenario = "S", contender = "two", rate = {{ text = "100" }} }},
]
[[microbenchmarks]]
scenario = "M"
title = "Table"
columns = ["one", "two"]
operations = [{{ name = "a", case = "a hot", times = [{{ text = "10 ns" }}, {{ text = "20 ns" }}] }}]
[[claims]]
id = "c"
subject = "one"
{claim}
"#
    );
    read::document("test", &text).unwrap_or_else(|error| panic!("{error}"))
}

const LOAD: &str = "scenario = \"S\"\nconnections = 64\nobject = \"two\"\nquote = \"so it is\"\n";

fn percent_more() -> Document {
    page(&format!(
        "{LOAD}measure = \"rate\"\nform = \"percent_more\"\nprinted = \"45.7%\"\nratio = 1.457"
    ))
}

fn percent_less() -> Document {
    page(&format!(
        "{LOAD}measure = \"mean\"\nform = \"percent_less\"\nprinted = \"60%\"\nratio = 0.400"
    ))
}

fn with_form(form: &str) -> Document {
    let ratio = if form == "equivalent" { "ratio = 1.0" } else { "" };
    page(&format!("{LOAD}measure = \"rate\"\nform = \"{form}\"\n{ratio}"))
}

fn observed(id: &str) -> Observed {
    let latency = LatencyFigures { rate_per_s: 10.0, mean_ns: 1.0, p50_ns: 1.0, p99_ns: 1.0 };
    Observed {
        trial: "S".to_owned(),
        contender: id.to_owned(),
        corrected: Some(CorrectedFigures {
            server_cpu_ns: Some(1000.0),
            requests_per_s: Some(1000.0),
            reply_bytes: Some(100.0),
            latency: Some(latency),
            ..CorrectedFigures::default()
        }),
        ..Observed::default()
    }
}

/// `one` over `two`; the word follows from the interval and a band of 2 %.
fn pair(measure: PairMeasure, low: f64, estimate: f64, high: f64) -> PairJudged {
    let is_more = measure == RATE;
    let decision = if low > 1.02 {
        if is_more { Decision::Faster } else { Decision::Slower }
    } else if high < 1.0 / 1.02 {
        if is_more { Decision::Slower } else { Decision::Faster }
    } else if low >= 1.0 / 1.02 && high <= 1.02 {
        Decision::Equivalent
    } else {
        Decision::CannotTell
    };
    PairJudged {
        trial: "S".to_owned(),
        contender: "one".to_owned(),
        reference: "two".to_owned(),
        measure,
        ratio: Ratio { estimate, low, high },
        decision,
        band: 0.02,
        blocks: 40,
        more_blocks: (decision == Decision::CannotTell).then_some(30),
        note: String::new(),
    }
}

fn concluded(page: &Document, observed: &[Observed], judged: &[PairJudged]) -> ClaimResult {
    let available = [Available::ready("one", Some("2.0")), Available::ready("two", None)];
    let program = program(page, &available);
    let mut results = conclude(page, &program, observed, judged);
    assert_eq!(results.len(), 1);
    results.remove(0)
}

fn found(page: &Document, judged: PairJudged) -> Finding {
    concluded(page, &[observed("one"), observed("two")], &[judged]).finding
}

/// Server CPU time per request whose inverse has this interval.
fn cpu(low: f64, estimate: f64, high: f64) -> PairJudged {
    pair(CPU, 1.0 / high, 1.0 / estimate, 1.0 / low)
}

#[test]
fn more_throughput_is_judged_by_requests_per_cpu_second() {
    let page = percent_more();
    let table = [
        (cpu(1.40, 1.45, 1.50), Finding::Confirmed), // covers it
        (cpu(1.40, 1.43, 1.4566), Finding::Confirmed), // up to the rounding of 45.7 %
        (cpu(1.80, 1.90, 2.00), Finding::Confirmed), // more than published
        (cpu(1.40, 1.43, 1.4560), Finding::Smaller), // just short of it
        (cpu(1.03, 1.05, 1.07), Finding::Smaller),   // far short
        (cpu(0.99, 1.00, 1.01), Finding::NotReproduced), // equivalent
        (cpu(0.90, 1.20, 1.60), Finding::NotReproduced), // cannot tell, although it covers it
        (cpu(0.80, 0.85, 0.90), Finding::Reversed),
    ];
    for (judged, expected) in table {
        assert_eq!(found(&page, judged.clone()), expected, "{judged:?}");
        assert_eq!(found(&page, judged.reversed()), expected, "either order of the pair will do");
    }
}

#[test]
fn less_latency_is_judged_at_an_equal_rate_and_never_by_a_closed_loop() {
    let page = percent_less();
    let table = [
        (pair(MEAN, 0.35, 0.38, 0.42), Finding::Confirmed),
        (pair(MEAN, 0.20, 0.25, 0.30), Finding::Confirmed),
        (pair(MEAN, 0.45, 0.50, 0.60), Finding::Smaller),
        (pair(MEAN, 0.99, 1.00, 1.01), Finding::NotReproduced),
        (pair(MEAN, 0.70, 0.90, 1.10), Finding::NotReproduced),
        (pair(MEAN, 1.10, 1.20, 1.30), Finding::Reversed),
        (pair(CPU, 0.20, 0.25, 0.30), Finding::NotTestable),
        (pair(RATE, 2.00, 3.00, 4.00), Finding::NotTestable),
    ];
    for (judged, expected) in table {
        assert_eq!(found(&page, judged.clone()), expected, "{judged:?}");
    }
}

#[test]
fn without_cpu_time_the_rate_decides_unless_the_client_was_the_limit() {
    let page = percent_more();
    assert_eq!(found(&page, pair(RATE, 1.40, 1.45, 1.50)), Finding::Confirmed);
    assert_eq!(found(&page, pair(RATE, 0.80, 0.85, 0.90)), Finding::Reversed);
    let mut bound = [observed("one"), observed("two")];
    bound[1].corrected.as_mut().unwrap().is_client_bound = true;
    let result = concluded(&page, &bound, &[pair(RATE, 1.40, 1.45, 1.50)]);
    assert_eq!(result.finding, Finding::NotTestable);
    assert!(result.detail.contains("The client was the limit"), "{}", result.detail);
    let both = [cpu(1.40, 1.45, 1.50), pair(RATE, 0.99, 1.00, 1.01)];
    let result = concluded(&page, &bound, &both);
    assert_eq!(result.finding, Finding::Confirmed, "CPU time decides all the same");
    assert!(result.corrected.unwrap().contains("CLIENT-BOUND"));
}

#[test]
fn a_rate_that_points_the_other_way_is_mentioned() {
    let judged = [cpu(1.40, 1.45, 1.50), pair(RATE, 0.80, 0.85, 0.90)];
    let result = concluded(&percent_more(), &[observed("one"), observed("two")], &judged);
    assert_eq!(result.finding, Finding::Confirmed);
    assert!(result.detail.contains("point the other way"), "{}", result.detail);
}

#[test]
fn what_the_page_calls_the_same_is_judged_by_its_own_difference() {
    // The rows are 110 and 100: whoever calls these the same means 11.1 % at least.
    let page = with_form("equivalent");
    let table = [
        (cpu(0.99, 1.00, 1.01), Finding::Confirmed),
        (cpu(1.04, 1.05, 1.06), Finding::Confirmed),
        (cpu(1.05, 1.10, 1.20), Finding::NotReproduced),
        (cpu(0.80, 1.00, 1.20), Finding::NotReproduced),
        (cpu(1.20, 1.25, 1.30), Finding::Reversed),
        (cpu(0.50, 0.55, 0.60), Finding::Reversed),
    ];
    for (judged, expected) in table {
        assert_eq!(found(&page, judged.clone()), expected, "{judged:?}");
    }
}

#[test]
fn a_sentence_without_a_number_needs_a_direction_only() {
    let page = with_form("worse");
    assert_eq!(found(&page, cpu(0.90, 0.92, 0.94)), Finding::Confirmed);
    assert_eq!(found(&page, cpu(0.95, 0.99, 1.03)), Finding::NotReproduced);
    assert_eq!(found(&page, cpu(1.10, 1.20, 1.30)), Finding::Reversed);
}

#[test]
fn a_published_difference_within_the_noise_is_said_to_be_one() {
    let page = page(&format!(
        "{LOAD}measure = \"rate\"\nform = \"percent_more\"\nprinted = \"0.6%\"\nratio = 1.006"
    ));
    let result = concluded(&page, &[observed("one"), observed("two")], &[cpu(0.995, 1.00, 1.005)]);
    assert_eq!(result.finding, Finding::NotReproduced);
    assert!(result.detail.contains("is itself within that"), "{}", result.detail);
}

#[test]
fn bytes_per_second_count_the_size_of_the_replies_and_say_so() {
    let page = page(&format!(
        "{LOAD}measure = \"transfer\"\nform = \"percent_more\"\nprinted = \"50%\"\nratio = 1.5"
    ));
    let mut both = [observed("one"), observed("two")];
    both[0].corrected.as_mut().unwrap().reply_bytes = Some(150.0);
    let result = concluded(&page, &both, &[cpu(0.99, 1.00, 1.01)]);
    assert_eq!(result.finding, Finding::Confirmed, "{result:?}");
    assert!(result.detail.contains("\u{d7}1.500 is the size of the replies"), "{}", result.detail);
    both[0].corrected.as_mut().unwrap().reply_bytes = None;
    let result = concluded(&page, &both, &[cpu(0.99, 1.00, 1.01)]);
    assert_eq!(result.finding, Finding::NotTestable);
}

#[test]
fn what_cannot_be_judged_says_why() {
    let page = percent_more();
    let both = || [observed("one"), observed("two")];
    let good = cpu(1.40, 1.45, 1.50);
    let mut wrong = both();
    wrong[1].corrected.as_mut().unwrap().wrong_replies = 3;
    let void = PairJudged {
        decision: Decision::Void,
        note: "the A/A arm was disturbed".to_owned(),
        ..good.clone()
    };
    let noisy = PairJudged { band: f64::INFINITY, ..good.clone() };
    let nan = Ratio { estimate: f64::NAN, low: f64::NAN, high: f64::NAN };
    let unknown = PairJudged { ratio: nan, ..good.clone() };
    let other = PairJudged { trial: "T".to_owned(), ..good.clone() };
    let cases: [(&[Observed], &[PairJudged], &str); 7] = [
        (&[], &[], "no figures of One"),
        (&[observed("one")], std::slice::from_ref(&good), "no figures of Two"),
        (&both(), &[other], "One and Two were not compared"),
        (&wrong, std::slice::from_ref(&good), "Two gave 3 wrong replies"),
        (&both(), &[void], "void: the A/A arm was disturbed."),
        (&both(), &[noisy], "noise of this run is not known"),
        (&both(), &[unknown], "gave no ratio"),
    ];
    for (observed, judged, reason) in cases {
        let result = concluded(&page, observed, judged);
        assert_eq!(result.finding, Finding::NotTestable, "{reason}");
        assert!(result.detail.contains(reason), "{reason}: {}", result.detail);
    }
}

#[test]
fn a_side_that_ran_alone_is_still_reported() {
    let result = concluded(&percent_more(), &[observed("two")], &[]);
    assert_eq!(result.finding, Finding::NotTestable);
    let corrected = result.corrected.unwrap();
    assert!(corrected.starts_with("Two: 1.000 \u{b5}s of server CPU time"), "{corrected}");
}

fn router(id: &str, ns: f64, share: Option<f64>) -> Observed {
    let interval_ns = share.map(|share| (ns * (1.0 - share), ns * (1.0 + share)));
    Observed {
        trial: "router".to_owned(),
        contender: id.to_owned(),
        operations: vec![OperationTime { case: "a hot".to_owned(), ns, interval_ns }],
        ..Observed::default()
    }
}

#[test]
fn routers_are_judged_by_their_times_if_these_have_a_spread() {
    let claim =
        "scenario = \"M\"\nmeasure = \"time_per_operation\"\nobject = \"two\"\nquote = \"q\"\n";
    let twice = page(&format!("{claim}form = \"factor\"\nprinted = \"2\u{d7}\"\nratio = 0.5"));
    let found = |one: f64, two: f64, share| {
        concluded(&twice, &[router("one", one, share), router("two", two, share)], &[]).finding
    };
    assert_eq!(found(10.0, 20.0, Some(0.01)), Finding::Confirmed);
    assert_eq!(found(15.0, 20.0, Some(0.01)), Finding::Smaller);
    assert_eq!(found(20.0, 20.0, Some(0.01)), Finding::NotReproduced);
    assert_eq!(found(30.0, 20.0, Some(0.01)), Finding::Reversed);
    assert_eq!(found(10.0, 20.0, None), Finding::NotTestable);
}

#[test]
fn the_times_of_one_router_are_held_against_their_limit() {
    let claim = "scenario = \"M\"\nmeasure = \"time_per_operation\"\nquote = \"q\"\n";
    let table = [
        ("below", "12 ns", 11.9, Finding::Confirmed),
        ("below", "12 ns", 12.1, Finding::NotReproduced),
        ("average", "12 ns", 12.4, Finding::Confirmed),
        ("average", "12 ns", 12.6, Finding::NotReproduced),
        ("span", "7-12 ns", 12.4, Finding::Confirmed),
        ("span", "7-12 ns", 13.0, Finding::NotReproduced),
    ];
    for (form, printed, ns, expected) in table {
        let page = page(&format!("{claim}form = \"{form}\"\nprinted = \"{printed}\""));
        let result = concluded(&page, &[router("one", ns, None)], &[]);
        assert_eq!(result.finding, expected, "{form} {ns}");
        assert!(result.detail.contains("one machine beside that of another"), "{}", result.detail);
        let result = concluded(&page, &[], &[]);
        assert_eq!(result.finding, Finding::NotTestable);
    }
}
