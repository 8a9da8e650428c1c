//! Lookup times in nanoseconds for six route tables, compared with six other routers.
//!
//! Each case is measured *hot* (one constant path, or a few in turn) and in *random* order, and
//! both for the match alone and with every parameter read by its name. All routers get the same
//! requests, and their results are compared before measuring. The routers of a case are measured
//! alternately for several rounds, so that changes of the machine's speed affect all of them.
//!
//! `PEREGRINE_BENCH_JSON=<file>` also writes the medians as JSON. As with criterion, a word on the
//! command line selects the cases whose names contain it.

mod rivals;
mod service;
mod tables;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use criterion::Criterion;

use crate::rivals::{Contender, Linear, Map, Matchit, Peregrine, Regexes, Trie, Wayfind};
use crate::tables::{Case, Request, Table};

const ROUTERS: [&str; 7] = ["peregrine", "matchit", "wayfind", "trie", "map", "regex", "linear"];
const ROUNDS: usize = 2;

/// Nanoseconds per lookup of every sample, by case, mode and router.
type Samples = BTreeMap<(usize, String, &'static str, usize), Vec<f64>>;

fn main() {
    let mut criterion = Criterion::default()
        .without_plots()
        .sample_size(10)
        .nresamples(1_000)
        .warm_up_time(Duration::from_millis(20))
        .measurement_time(Duration::from_millis(80))
        .configure_from_args();
    let samples = RefCell::new(Samples::new());
    for (table_index, table) in tables::all().iter().enumerate() {
        let contenders = contenders(table);
        for (case_index, case) in table.cases.iter().enumerate() {
            check(&contenders, case);
            for _ in 0..ROUNDS {
                for (router, contender) in contenders.iter().enumerate() {
                    let order = table_index * 100 + case_index;
                    measure(&mut criterion, &samples, (order, table, case), router, &**contender);
                }
            }
        }
    }
    let medians = medians(samples.into_inner());
    print(&medians);
    if let Some(file) = std::env::var_os("PEREGRINE_BENCH_JSON") {
        std::fs::write(&file, json(&medians))
            .expect("the file of PEREGRINE_BENCH_JSON is writable");
    }
}

fn contenders(table: &Table) -> [Box<dyn Contender>; 7] {
    let routes = &table.routes;
    [
        Box::new(Peregrine::new(routes)),
        Box::new(Matchit::new(routes)),
        Box::new(Wayfind::new(routes)),
        Box::new(Trie::new(routes)),
        Box::new(Map::new(routes)),
        Box::new(Regexes::new(routes)),
        Box::new(Linear::new(routes)),
    ]
}

/// Asserts that all routers return the same results: otherwise the measurement is meaningless.
fn check(contenders: &[Box<dyn Contender>; 7], case: &Case) {
    for Request { method, path } in &case.requests {
        let expected = contenders[0].read(*method, path);
        assert_eq!(expected.is_some(), case.hits, "{} of {}", path, case.name);
        for (contender, name) in contenders.iter().zip(ROUTERS) {
            assert_eq!(contender.read(*method, path), expected, "{name} reads {path}");
            let found = contender.find(*method, path);
            assert_eq!(found, expected.map(|(route, _)| route), "{name} finds {path}");
        }
    }
}

fn measure(
    criterion: &mut Criterion,
    samples: &RefCell<Samples>,
    (order, table, case): (usize, &Table, &Case),
    router: usize,
    contender: &dyn Contender,
) {
    for mode in ["match", "read"] {
        let name = format!("{}/{}/{mode}/{}", table.name, case.name, ROUTERS[router]);
        // The list includes samples of the warm-up; they hardly affect the median.
        criterion.bench_function(&name, |bencher| {
            bencher.iter_custom(|iterations| {
                let elapsed = if mode == "match" {
                    contender.time_find(&case.requests, iterations)
                } else {
                    contender.time_read(&case.requests, iterations)
                };
                let lookups = iterations as f64 * case.requests.len() as f64;
                let key = (order, case.name.clone(), mode, router);
                let nanoseconds = elapsed.as_nanos() as f64 / lookups;
                samples.borrow_mut().entry(key).or_default().push(nanoseconds);
                elapsed
            });
        });
    }
}

/// The medians of all routers for one case and mode, in the order of [`ROUTERS`].
struct Row {
    case: String,
    mode: &'static str,
    nanoseconds: [Option<f64>; ROUTERS.len()],
}

fn medians(samples: Samples) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for ((_, case, mode, router), mut values) in samples {
        values.sort_by(f64::total_cmp);
        let is_same_row = rows.last().is_some_and(|row| row.case == case && row.mode == mode);
        if !is_same_row {
            rows.push(Row { case, mode, nanoseconds: [None; ROUTERS.len()] });
        }
        let row = rows.last_mut().expect("a row exists or was just added");
        row.nanoseconds[router] = Some(values[values.len() / 2]);
    }
    rows
}

fn print(rows: &[Row]) {
    print!("\nns per lookup (median)        mode ");
    ROUTERS.iter().for_each(|name| print!("{name:>10}"));
    for row in rows {
        print!("\n{:<29} {:<5}", row.case, row.mode);
        for value in row.nanoseconds {
            value.map_or_else(|| print!("{:>10}", "-"), |value| print!("{value:>10.1}"));
        }
    }
    println!();
}

fn json(rows: &[Row]) -> String {
    let mut out = String::from("{\n  \"unit\": \"ns per lookup, median\",\n  \"cases\": [");
    for (index, row) in rows.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let (case, mode) = (&row.case, row.mode);
        let _ = write!(out, "{comma}\n    {{\"case\": \"{case}\", \"mode\": \"{mode}\"");
        for (name, value) in ROUTERS.iter().zip(row.nanoseconds) {
            if let Some(value) = value {
                let _ = write!(out, ", \"{name}\": {value:.2}");
            }
        }
        out.push('}');
    }
    out.push_str("\n  ]\n}\n");
    out
}
