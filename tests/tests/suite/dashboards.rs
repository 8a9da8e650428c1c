//! Monitoring files for operators: every metric and label that the dashboard and the alert rules
//! name is on the page of a real server.

use peregrine::prelude::*;
use peregrine::{ListenAddr, access_log::AccessLogOptions};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::path::Path;

const DASHBOARD: &str = include_str!("../../../deploy/grafana/peregrine.json");
const RULES: &str = include_str!("../../../deploy/prometheus/alerts.yml");
const RUNBOOK: &str = include_str!("../../../docs/operations.md");

/// Labels that Prometheus itself adds.
const OF_PROMETHEUS: [&str; 2] = ["job", "instance"];

fn ask(address: SocketAddr, path: &str) -> String {
    let mut peer = TcpStream::connect(address).expect("the server accepts connections");
    let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    peer.write_all(head.as_bytes()).expect("connected");
    let mut reply = String::new();
    peer.read_to_string(&mut reply).expect("text");
    reply
}

/// The names of samples on a server's page, with the labels that they may have.
fn page() -> BTreeMap<String, BTreeSet<String>> {
    let server = Server::bind("127.0.0.1:0")
        .listen_tls("127.0.0.1:0", peregrine_tests::server::secure::server_tls());
    let server = server.access_log(AccessLogOptions::writer(io::sink())).admin("127.0.0.1:0");
    let app = || App::new().get("/hello", || "hello");
    let running = server.workers(NonZeroUsize::MIN).quiet().start(app).expect("the server starts");
    let Some(ListenAddr::Tcp(admin)) = running.admin_address() else { panic!("no address") };
    let (address, secure) = (
        running.http_address().expect("the server has an HTTP listener"),
        running.https_address().expect("and HTTPS"),
    );
    // A sample of everything that has labels: requests, a broken rule, a failed handshake.
    ask(address, "/hello");
    let _ = ask(address, "/a b");
    let mut plain = TcpStream::connect(secure).expect("the server accepts connections");
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("connected");
    let _ = plain.read_to_end(&mut Vec::new());
    let page = ask(*admin, "/metrics");
    running.graceful_shutdown().expect("the shutdown succeeds");
    let mut names = BTreeMap::<String, BTreeSet<String>>::new();
    for line in page.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a name and a kind");
            let suffixes: &[&str] =
                if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            for suffix in suffixes {
                names.entry(format!("{name}{suffix}")).or_default();
            }
        } else if let Some((name, rest)) = line.split_once('{').filter(|_| !line.starts_with('#')) {
            let labels = rest.split("\",").filter_map(|label| label.split_once("=\""));
            let labels = labels.map(|(label, _)| label.to_owned());
            names.entry(name.to_owned()).or_default().extend(labels);
        }
    }
    // Labels of events that did not occur here: the guide lists them.
    for (name, labels) in [
        ("peregrine_tls_handshakes_total", &["version", "cipher", "resumed"][..]),
        ("peregrine_tls_reload_errors_total", &["reason"]),
        ("peregrine_config_reloads_total", &["result"]),
        ("peregrine_limits_hit_total", &["limit"]),
        ("peregrine_requests_shed_total", &["reason"]),
        ("peregrine_acme_failures", &["name"]),
        ("peregrine_acme_next_order_timestamp_seconds", &["name"]),
    ] {
        names
            .get_mut(name)
            .expect("the file exists")
            .extend(labels.iter().map(|label| (*label).to_owned()));
    }
    names
}

/// The words of an expression, outside of quotes, that are names of metrics or labels.
fn words(expression: &str) -> BTreeSet<String> {
    let unquoted: String = expression
        .split('"')
        .enumerate()
        .filter(|(at, _)| at % 2 == 0)
        .map(|(_, text)| format!("{text} "))
        .collect();
    let is_part = |character: char| character.is_ascii_alphanumeric() || "_$".contains(character);
    let words = unquoted.split(|character| !is_part(character)).map(str::to_owned);
    words.filter(|word| word.starts_with(|first: char| first.is_ascii_lowercase())).collect()
}

/// Words of the query language, except durations.
const LANGUAGE: [&str; 23] = [
    "sum",
    "rate",
    "by",
    "le",
    "histogram_quantile",
    "increase",
    "and",
    "on",
    "or",
    "vector",
    "clamp_min",
    "max",
    "min",
    "avg",
    "count",
    "changes",
    "label_values",
    "up",
    "without",
    "unless",
    "offset",
    "time",
    "e",
];

fn check(place: &str, expression: &str, names: &BTreeMap<String, BTreeSet<String>>) {
    let words = words(expression);
    let (metrics, rest): (Vec<_>, Vec<_>) =
        words.iter().partition(|word| names.contains_key(*word));
    let rest: Vec<_> = rest.into_iter().filter(|word| !LANGUAGE.contains(&&***word)).collect();
    assert!(!metrics.is_empty() || words.contains("up"), "{place} names no metric: {expression}");
    for word in rest {
        let is_label = OF_PROMETHEUS.contains(&&**word)
            || metrics.iter().any(|metric| names[*metric].contains(word));
        assert!(is_label, "{place}: the page has no metric or label {word}: {expression}");
    }
}

#[test]
fn the_dashboard_names_what_a_server_tells() {
    let (names, dashboard) =
        (page(), serde_json::from_str::<Value>(DASHBOARD).expect("the text is JSON"));
    let panels = dashboard["panels"].as_array().expect("the dashboard has panels");
    let (mut ids, mut checked) = (BTreeSet::new(), 0);
    for panel in panels {
        assert!(
            ids.insert(panel["id"].as_u64().expect("an id")),
            "two panels share an id: {panel}"
        );
        for target in panel["targets"].as_array().into_iter().flatten() {
            let (title, expression) =
                (panel["title"].as_str().unwrap(), target["expr"].as_str().unwrap());
            check(title, expression, &names);
            checked += 1;
        }
    }
    for variable in dashboard["templating"]["list"].as_array().expect("the dashboard has variables")
    {
        if let Some(query) = variable["query"]["query"].as_str() {
            check("a variable", query, &names);
        }
    }
    assert!(checked > 40, "{checked}");
}

#[test]
fn the_alert_rules_name_what_a_server_tells() {
    let names = page();
    // The expressions of a file in our own format: one line, or the following lines that are
    // indented further.
    let (mut lines, mut checked) = (RULES.lines().peekable(), 0);
    let mut alert = "";
    while let Some(line) = lines.next() {
        if let Some((_, name)) = line.split_once("- alert: ") {
            alert = name;
        }
        let Some((indent, first)) = line.split_once("expr: ") else { continue };
        let mut expression = first.trim_start_matches('|').to_owned();
        while let Some(more) = lines.next_if(|line| line.starts_with(&format!("{indent}  "))) {
            expression.push_str(more);
        }
        check(alert, &expression, &names);
        checked += 1;
    }
    assert_eq!(checked, RULES.matches("- alert: ").count());
}

#[test]
fn every_alert_leads_to_its_section_of_the_runbook_and_no_section_is_left_over() {
    const PAGE: &str = "https://github.com/peregrine-http/peregrine/blob/main/docs/operations.md#";
    let (_, sections) = RUNBOOK.split_once("\n## Alerts\n").expect("the runbook has the section");
    let sections = sections.split("\n## ").next().expect("split yields at least one item");
    let mut sections: BTreeSet<_> =
        sections.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    for rule in RULES.split("- alert: ").skip(1) {
        let (name, rest) = rule.split_once('\n').expect("the rule has more lines");
        let link = format!("runbook_url: {PAGE}{}\n", name.to_lowercase());
        assert!(rest.contains(&link), "{name} has no {link}");
        assert!(sections.remove(name), "the runbook has no section for {name}");
    }
    assert!(sections.is_empty(), "sections without an alert: {sections:?}");
}

/// The contents of all Rust files below a folder.
fn sources(folder: &Path) -> String {
    let entries = std::fs::read_dir(folder).expect("the folder exists");
    let paths = entries.map(|entry| entry.expect("the folder is readable").path());
    let texts = paths.map(|path| match path.is_dir() {
        true => sources(&path),
        false if path.extension().is_some_and(|extension| extension == "rs") => {
            std::fs::read_to_string(path).expect("text")
        }
        false => String::new(),
    });
    texts.collect()
}

#[test]
fn every_test_that_the_runbook_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let tests = sources(&root.join("tests/tests")) + &sources(&root.join("crates/tls/tests"));
    let (_, faults) =
        RUNBOOK.split_once("\n## External failures\n").expect("the runbook has the section");
    let names = faults.split('`').filter(|name| name.matches('_').count() > 2);
    let names: Vec<_> = names.filter(|name| !name.starts_with("peregrine_")).collect();
    for name in &names {
        assert!(tests.contains(&format!("fn {name}(")), "there is no test {name}");
    }
    assert!(names.len() > 15, "{names:?}");
}

#[test]
fn every_metric_that_tells_of_trouble_has_a_panel() {
    let shown: BTreeSet<_> = words(&DASHBOARD.replace("\\\"", " ").replace('"', " "));
    for name in page().into_keys() {
        let base =
            name.trim_end_matches("_bucket").trim_end_matches("_sum").trim_end_matches("_count");
        let is_shown = [
            base.to_owned(),
            format!("{base}_bucket"),
            format!("{base}_count"),
            format!("{base}_sum"),
        ]
        .iter()
        .any(|name| shown.contains(name));
        // Process metrics that do not indicate trouble.
        let is_plain = [
            "process_cpu_seconds_total",
            "process_virtual_memory_bytes",
            "peregrine_access_log_reopens_total",
        ];
        assert!(is_shown || is_plain.contains(&&*name), "no panel has {name}");
    }
}
