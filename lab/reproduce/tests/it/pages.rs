//! The five founding pages as programs: what would be run, and what cannot be.

use std::collections::BTreeMap;
use std::path::Path;

use peregrine_lab_audit::claim::Document;
use peregrine_lab_audit::read;
use peregrine_lab_model::claim::Finding;
use peregrine_lab_reproduce::{
    Available, Budget, Client, Corrected, CorrectedFigures, Method, Observed, Pair, PairMeasure,
    Program, Published, PublishedFigures, RouterTimes, State, Trial, conclude, judge_pairs, plan,
    program, rows_again, stand_ins,
};

const PAGES: [&str; 5] =
    ["alos-https", "anvil-livebench", "rust-compare-2021", "rust-five-hello", "tako-hello"];

fn page(name: &str) -> Document {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../claims");
    read::file(&folder.join(format!("{name}.toml"))).unwrap_or_else(|error| panic!("{error}"))
}

fn available() -> Vec<Available> {
    let ready = [
        "peregrine",
        "actix-web",
        "axum",
        "hyper",
        "warp",
        "rocket",
        "gotham",
        "tako",
        "tako-jemalloc",
        "fiber",
        "gin",
        "echo",
        "iris",
        "net-http",
    ];
    let mut all: Vec<Available> =
        ready.iter().map(|id| Available::ready(id, Some("9.1.2"))).collect();
    for id in ["alos", "anvil-native", "anvil-std", "anvil-fiber"] {
        let state = State::NotObtainable("the module proxy does not have it".to_owned());
        all.push(Available { state, ..Available::ready(id, None) });
    }
    all
}

fn programmed(name: &str) -> Program {
    program(&page(name), &available())
}

fn methods(trial: &Trial) -> (&Published, &Corrected) {
    match &trial.method {
        Method::Load { published, corrected } => (published, corrected),
        Method::Operations => panic!("{} is no load", trial.id),
    }
}

/// Per trial: id, scenario, contenders, claims that it decides.
fn shape(program: &Program) -> Vec<(&str, &str, usize, usize)> {
    let trials = program.trials.iter();
    trials
        .map(|t| (t.id.as_str(), t.scenario.as_str(), t.contenders.len(), t.claims.len()))
        .collect()
}

#[test]
fn every_page_has_the_trials_that_its_tables_need() {
    let alos = programmed("alos-https");
    let expected = [
        ("A1", "https-json", 6, 0),
        ("A2", "https-json", 6, 0),
        ("router", "router", 0, 0),
        ("A3", "https-json", 6, 0),
        ("A4", "https-json", 6, 0),
    ];
    assert_eq!(shape(&alos), expected);
    assert_eq!(alos.untestable.len(), page("alos-https").claims.len());
    let anvil = programmed("anvil-livebench");
    let expected =
        [("B1", "project-work", 3, 0), ("B2", "project-work", 3, 0), ("B3", "project-work", 3, 0)];
    assert_eq!(shape(&anvil), expected);
    assert_eq!(anvil.untestable.len(), 6);
    let tako = programmed("tako-hello");
    assert_eq!(shape(&tako), [("C1", "hello", 4, 5)]);
    assert!(tako.untestable.is_empty());
    let five = programmed("rust-five-hello");
    assert_eq!(shape(&five), [("D", "hello", 5, 5)]);
    let compare = programmed("rust-compare-2021");
    let expected = [
        ("E1", "hello-12", 3, 2),
        ("E2", "example", 3, 2),
        ("E3", "json-sort", 3, 2),
        ("E4", "json-complex", 3, 2),
        ("E5-round-trip", "one-connection", 3, 0),
    ];
    assert_eq!(shape(&compare), expected);
    let unrepeated: Vec<&str> = compare.unrepeated.iter().map(|u| u.scenario.as_str()).collect();
    assert_eq!(unrepeated, ["E5-request", "E5-response"]);
}

#[test]
fn fifty_threads_on_thirty_connections_become_thirty_and_are_remarked_on() {
    let alos = programmed("alos-https");
    let (published, corrected) = methods(alos.trial("A1").unwrap());
    assert_eq!(published.client, Client::Wrk);
    assert_eq!((published.connections, published.threads), (30, Some(30)));
    assert_eq!((published.seconds, published.timeout_s), (9.0, Some(2.0)));
    assert!(published.remarks[0].contains("50 threads on 30 connections"), "{published:?}");
    assert_eq!(corrected.connections, 30);
    assert!(corrected.equal_rate_share.is_some(), "claims about means need an equal rate");
    let (published, corrected) = methods(alos.trial("A2").unwrap());
    assert_eq!((published.connections, published.threads), (500, Some(50)));
    assert!(published.remarks.is_empty() && corrected.equal_rate_share.is_none());
}

#[test]
fn one_request_in_flight_is_repeated_as_one_and_judged_with_more() {
    let compare = programmed("rust-compare-2021");
    let (published, corrected) = methods(compare.trial("E3").unwrap());
    assert_eq!((published.connections, corrected.connections), (1, 64));
    assert!(published.remarks[0].contains("1.00 requests in flight"), "{published:?}");
    assert!(
        matches!(&published.client, Client::ClosedLoop { instead_of } if !instead_of.is_empty())
    );
}

#[test]
fn repeats_and_warm_up_are_as_the_page_prints_them() {
    let anvil = programmed("anvil-livebench");
    let (published, _) = methods(&anvil.trials[0]);
    assert_eq!((published.repeats, published.warmup_s, published.seconds), (3, 2.0, 10.0));
    let tako = programmed("tako-hello");
    let (published, _) = methods(&tako.trials[0]);
    assert_eq!((published.repeats, published.warmup_s, published.seconds), (1, 0.0, 30.0));
}

#[test]
fn numbers_that_count_failures_are_not_compared_but_their_sentences_are() {
    let five = programmed("rust-five-hello");
    let ids: Vec<&str> = five.untestable.iter().map(|u| u.claim.as_str()).collect();
    assert_eq!(ids, ["rate-warp-over-hyper", "rate-rocket-over-hyper"]);
    assert!(five.untestable[0].reason.contains("4098580 replies other than 2xx"));
    assert!(five.untestable[1].reason.contains("929766 failed reads"));
    let d = five.trial("D").unwrap();
    assert!(d.claims.contains(&"rocket-under-hyper".to_owned()));
    assert!(d.contenders.contains(&"warp".to_owned()), "it still runs, with right replies");
    let hyper = five.versions.iter().find(|version| version.id == "hyper").unwrap();
    assert_eq!(hyper.page.as_deref(), Some("0.14, which the page does not print"));
    assert_eq!(hyper.today.as_deref(), Some("9.1.2"));
}

#[test]
fn a_skipped_contender_and_one_that_lacks_the_scenario_are_named_with_their_reasons() {
    let mut available = available();
    let of = |id: &str, all: &[Available]| all.iter().position(|a| a.id == id).unwrap();
    let (tako, axum) = (of("tako-jemalloc", &available), of("axum", &available));
    available[tako].state = State::Skipped("it needs Rust 1.99".to_owned());
    available[axum].lacks.insert("hello".to_owned(), "it has no greeting".to_owned());
    let program = program(&page("tako-hello"), &available);
    assert_eq!(program.trials[0].contenders, ["tako", "actix-web"]);
    let reason = |claim: &str| program.reason(claim).unwrap_or("");
    assert!(reason("jemalloc-within-noise").contains("is skipped here: it needs Rust 1.99"));
    assert!(reason("rate-tako-over-axum").contains("cannot serve this: it has no greeting"));
    assert_eq!(program.trials[0].claims, ["same-range-as-actix-web", "rate-tako-over-actix-web"]);
}

#[test]
fn every_claim_has_one_result_even_if_nothing_was_run() {
    for name in PAGES {
        let page = page(name);
        for available in [Vec::new(), available()] {
            let program = program(&page, &available);
            let results = conclude(&page, &program, &[], &[]);
            assert_eq!(results.len(), page.claims.len());
            for result in results {
                assert_eq!(result.finding, Finding::NotTestable, "{result:?}");
                assert!(!result.detail.is_empty() && !result.claim.is_empty(), "{result:?}");
                assert!(!result.detail.contains('{'), "a name is missing: {result:?}");
                assert!(!result.published.contains("NaN"), "{result:?}");
            }
        }
    }
}

#[test]
fn a_contender_that_is_not_the_pages_joins_with_pairs_of_its_own() {
    let mut program = programmed("rust-five-hello");
    let before = program.trials[0].pairs.clone();
    program.join(&Available::ready("peregrine", None));
    program.join(&Available::ready("peregrine", None));
    let trial = &program.trials[0];
    assert_eq!(trial.contenders.len(), 6);
    assert_eq!((&trial.pairs, trial.joined.len()), (&before, 5));
    assert!(trial.joined.iter().all(|pair| pair.contender == "peregrine"));
    let mut lacking = Available::ready("axum", None);
    lacking.lacks.insert("hello".to_owned(), "it has no greeting".to_owned());
    program.join(&lacking);
    let state = State::Skipped("it is not built".to_owned());
    program.join(&Available { state, ..Available::ready("ntex", None) });
    assert_eq!(program.trials[0].contenders.len(), 6);
    let mut alos = programmed("alos-https");
    alos.join(&Available::ready("peregrine", None));
    assert_eq!(alos, programmed("alos-https"), "it stands in already, and no router benchmark");
}

#[test]
fn every_printed_row_stands_beside_what_came_out_here() {
    let (page, program) = (page("alos-https"), programmed("alos-https"));
    let all = observed("A2", &[("peregrine", 1000.0), ("actix-web", 1300.0)]);
    let rows = rows_again(&page, &program, &all);
    // Six printed rows and one that stands in, of four tables.
    assert_eq!(rows.len(), 28);
    let of = |id: &str| rows.iter().find(|r| r.trial == "A2" && r.contender == id).unwrap();
    assert_eq!(of("alos").printed.as_ref().unwrap().rate.as_deref(), Some("240,707"));
    let missing = of("alos").missing.as_deref();
    assert_eq!(missing, Some("cannot be had: the module proxy does not have it"));
    assert!(of("actix-web").published.is_some() && of("actix-web").missing.is_none());
    assert!(of("fiber").published.is_none() && of("fiber").missing.is_none());
    assert_eq!(of("peregrine").printed, None);
    assert!(of("peregrine").corrected.is_some());
}

#[test]
fn fifteen_minutes_are_enough_for_every_page() {
    for name in PAGES {
        let program = programmed(name);
        let planned = plan(&program, &Budget::seconds(900.0));
        assert!(planned.dropped.is_empty(), "{name}: {:?}", planned.dropped);
        assert!(planned.seconds <= 900.0);
        for trial in planned.trials.iter().filter(|trial| trial.trial != "router") {
            let effect = trial.visible_effect.unwrap_or(f64::INFINITY);
            assert!(effect < 0.1, "{name}: {trial:?}");
        }
    }
}

/// Figures by which each contender of a trial costs so much per request.
fn observed(trial: &str, costs: &[(&str, f64)]) -> Vec<Observed> {
    let one = |&(id, ns): &(&str, f64)| Observed {
        trial: trial.to_owned(),
        contender: id.to_owned(),
        published: Some(PublishedFigures { requests_per_s: 1e9 / ns, ..Default::default() }),
        corrected: Some(CorrectedFigures {
            server_cpu_ns: Some(ns),
            requests_per_s: Some(1e9 / ns),
            reply_bytes: Some(100.0),
            ..Default::default()
        }),
        operations: Vec::new(),
    };
    costs.iter().map(one).collect()
}

fn values(costs: &[(&str, f64)]) -> BTreeMap<String, Vec<f64>> {
    let blocks = |ns: f64, shift: usize| {
        (0..20)
            .map(move |block| ns * (1.0 + ((block * 7 + shift * 3) % 5) as f64 / 1000.0))
            .collect()
    };
    let all = costs.iter().enumerate();
    all.map(|(shift, &(id, ns))| (id.to_owned(), blocks(ns, shift))).collect()
}

#[test]
fn a_run_from_costs_to_words() {
    let (page, program) = (page("tako-hello"), programmed("tako-hello"));
    let costs =
        [("tako", 1000.0), ("tako-jemalloc", 1000.0), ("axum", 1015.0), ("actix-web", 1100.0)];
    let pairs: &[Pair] = &program.trials[0].pairs;
    let judged = judge_pairs("C1", PairMeasure::ServerCpu, pairs, &values(&costs), 0.01, 7);
    assert_eq!(judged.len(), 3);
    let results = conclude(&page, &program, &observed("C1", &costs), &judged);
    let found: Vec<Finding> = results.iter().map(|result| result.finding).collect();
    // Tako is 1.5 % before axum, of which the page calls 2.6 % the same, and 10 % before actix-web,
    // of which the page printed 20.6 % and called it the same range.
    let expected = [
        Finding::Confirmed,
        Finding::Confirmed,
        Finding::Confirmed,
        Finding::Confirmed,
        Finding::Smaller,
    ];
    assert_eq!(found, expected, "{results:#?}");
    let last = &results[4];
    assert_eq!(last.published, "\u{d7}1.206 (~187,288 against ~155,307)");
    let as_published = last.as_published.as_deref().unwrap();
    assert!(
        as_published.starts_with("\u{d7}1.100: 1,000,000 requests/s against"),
        "{as_published}"
    );
    assert!(as_published.ends_with("(wrk, 4 threads, 100 connections)"), "{as_published}");
    let corrected = last.corrected.as_deref().unwrap();
    assert!(corrected.contains("requests per second of server CPU time, faster"), "{corrected}");
    assert!(last.detail.contains("Tako 9.1.2 (the page's: not printed)"), "{}", last.detail);
    assert_eq!(results, conclude(&page, &program, &observed("C1", &costs), &judged));
}

#[test]
fn what_stands_in_is_measured_and_said_to_test_nothing() {
    let (page, program) = (page("alos-https"), programmed("alos-https"));
    let costs = [("peregrine", 1000.0), ("actix-web", 1300.0), ("fiber", 2000.0)];
    let pairs = &program.trial("A2").unwrap().pairs;
    let judged = judge_pairs("A2", PairMeasure::ServerCpu, pairs, &values(&costs), 0.01, 7);
    let mut all = observed("A2", &costs);
    let json = r#"{"cases": [
        {"case": "mixed in turn hot", "mode": "match", "peregrine": 1.0, "trie": 9.0},
        {"case": "mixed in turn hot", "mode": "read", "peregrine": 20.0, "trie": 90.0}]}"#;
    let times: RouterTimes = serde_json::from_str(json).unwrap();
    all.extend(times.observed());
    let found = stand_ins(&page, &program, &all, &judged);
    let of = |claim: &str| found.iter().find(|s| s.claim.as_deref() == Some(claim)).unwrap();
    let first = of("rate-over-actix-web");
    assert_eq!(first.pair, Pair { contender: "peregrine".into(), reference: "actix-web".into() });
    assert!((first.published.unwrap() - 1.457).abs() < 1e-9);
    let measured = first.measured.unwrap();
    assert!((measured.estimate - 1.3).abs() < 0.01 && measured.low > 1.29, "{measured:?}");
    assert!(first.sentence.contains("ALOS HTTP published \u{d7}1.457 against Actix Web"));
    assert!(first.sentence.contains("] requests per second of server CPU time, faster."));
    assert!(first.sentence.ends_with("This does not test the published number."));
    assert_eq!(of("transfer-over-fiber").measured.map(|r| r.estimate > 1.9), Some(true));
    assert_eq!(of("rate-over-echo").measured, None, "it was not run");
    let router = of("mixed-over-trie");
    assert!((router.measured.unwrap().estimate - 20.0 / 90.0).abs() < 1e-9, "{router:?}");
    assert!(router.sentence.contains("the lab's trie router stands in for"), "{router:?}");
    assert!(found.iter().any(|s| s.claim.is_none() && s.trial == "A4"), "tables stand beside");
    let claims = conclude(&page, &program, &all, &judged);
    assert!(claims.iter().all(|claim| claim.finding == Finding::NotTestable));
    let mixed = claims.iter().find(|c| c.claim.contains("6\u{d7} faster than Trie")).unwrap();
    let text = "Other routers here: peregrine 20.0 ns, trie 90.0 ns.";
    assert!(mixed.detail.contains(text), "{}", mixed.detail);
}

#[test]
fn a_stand_in_may_take_both_places() {
    let (page, program) = (page("anvil-livebench"), programmed("anvil-livebench"));
    assert_eq!(program.trials[0].contenders, ["fiber", "peregrine", "net-http"]);
    let found = stand_ins(&page, &program, &[], &[]);
    let sentence = &found.iter().find(|s| s.claim.is_some()).unwrap().sentence;
    assert!(sentence.contains("Here Fiber v3 against Peregrine: not measured"), "{sentence}");
    assert!(sentence.contains("by its name, what this driver runs on"), "{sentence}");
}
