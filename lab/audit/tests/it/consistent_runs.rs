//! A closed loop that could have happened is never called impossible, however it is printed.

use peregrine_lab_audit::finding::Severity;
use peregrine_lab_audit::hand;
use peregrine_lab_audit::report::Report;
use proptest::prelude::*;

/// Prints a time as load tools do, in the unit that fits and with two decimals.
fn printed_time(seconds: f64, decimals: usize) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.decimals$}s"),
        s if s >= 1e-3 => format!("{:.decimals$}ms", s * 1e3),
        s => format!("{:.decimals$}us", s * 1e6),
    }
}

fn audited(options: &[(&str, String)]) -> Report {
    let arguments: Vec<String> =
        options.iter().flat_map(|(name, value)| [(*name).to_owned(), value.clone()]).collect();
    Report::of(&hand::document(&arguments).expect("the options are good"))
}

fn impossible(report: &Report) -> Vec<String> {
    report.of_severity(Severity::Impossible).map(|finding| finding.detail.clone()).collect()
}

proptest! {
    #[test]
    fn a_run_with_at_most_as_many_requests_in_flight_as_connections_is_possible(
        connections in 1_u32..20_000,
        rate in 0.5_f64..2_000_000.0,
        busy in 0.0_f64..=1.0,
        decimals in 0_usize..4,
    ) {
        let mean = f64::from(connections) * busy / rate;
        let report = audited(&[
            ("--connections", connections.to_string()),
            ("--rate", format!("{rate:.decimals$}")),
            ("--mean", printed_time(mean, decimals)),
        ]);
        prop_assert!(impossible(&report).is_empty(), "{:?}", impossible(&report));
    }

    #[test]
    fn a_run_far_beyond_its_connections_is_impossible(
        connections in 1_u32..20_000,
        rate in 100.0_f64..2_000_000.0,
        excess in 1.05_f64..10.0,
    ) {
        let mean = f64::from(connections) * excess / rate;
        let report = audited(&[
            ("--connections", connections.to_string()),
            ("--rate", format!("{rate:.2}")),
            ("--mean", format!("{:.6}us", mean * 1e6)),
        ]);
        prop_assert!(report.is_impossible());
    }

    #[test]
    fn numbers_computed_from_real_latencies_contradict_nothing(
        mut latencies in prop::collection::vec(1e-6_f64..0.5, 100..400),
        connections in 1_u32..64,
        decimals in 0_usize..4,
    ) {
        // Each connection sends its share of the requests one after another; the run ends when
        // the slowest connection has finished.
        let mut ends = vec![0.0_f64; connections as usize];
        for (index, latency) in latencies.iter().enumerate() {
            ends[index % connections as usize] += latency;
        }
        let duration = ends.iter().copied().fold(0.0, f64::max);
        let count = latencies.len() as f64;
        let mean = latencies.iter().sum::<f64>() / count;
        latencies.sort_by(f64::total_cmp);
        // The nearest rank: at least that share of the requests is at or below it.
        let at = |share: f64| latencies[((share * count).ceil() as usize).clamp(1, latencies.len()) - 1];
        let report = audited(&[
            ("--connections", connections.to_string()),
            ("--rate", format!("{:.2}", count / duration)),
            ("--mean", printed_time(mean, decimals)),
            ("--min", printed_time(latencies[0], decimals)),
            ("--p50", printed_time(at(0.5), decimals)),
            ("--p90", printed_time(at(0.9), decimals)),
            ("--max", printed_time(at(1.0), decimals)),
        ]);
        prop_assert!(impossible(&report).is_empty(), "{:?}", impossible(&report));
    }
}
