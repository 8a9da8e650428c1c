//! Scenarios that are more than a load.

use peregrine_lab_model::check::Outcome;
use peregrine_lab_model::plan::{Design, Schedule};
use peregrine_lab_model::verdict::Measure;

use crate::bench::{Bench, check, verdict};
use crate::server::Nature;

fn graceful() -> Nature {
    Nature { end: "graceful".to_owned(), ..Nature::default() }
}

const OPTIONS: &str = "--tolerate-noise --out runs";

#[test]
fn a_graceful_shutdown_passes_and_an_abrupt_one_is_told_with_its_lost_requests() {
    let bench =
        Bench::new().contender("graceful", &graceful()).contender("abrupt", &Nature::default());
    bench
        .lab(&format!(
            "run shutdown --contenders graceful,abrupt --repeats 2 --duration 600ms {OPTIONS}"
        ))
        .expect(0)
        .says(&["graceful: shutdown under load", "abrupt: shutdown under load"]);
    let file = bench.file("runs/shutdown-c8.json");
    let graceful = check(&file, "graceful", "shutdown under load");
    assert_eq!(graceful.outcome, Outcome::Passed, "{}", graceful.detail);
    assert!(graceful.detail.contains(" 0 without a reply"), "{}", graceful.detail);
    let abrupt = check(&file, "abrupt", "shutdown under load");
    assert_eq!(abrupt.outcome, Outcome::Warned, "{}", abrupt.detail);
    assert!(!abrupt.detail.contains(" 0 without a reply"), "{}", abrupt.detail);
    assert!(abrupt.detail.contains("signal: 15"), "{}", abrupt.detail);
    // Nothing is compared here, so nothing runs twice.
    assert!(file.contenders.iter().all(|one| !one.name.contains("again")));
    assert_eq!(file.blocks.len(), 4);
}

#[test]
fn overload_has_a_row_for_the_goodput_of_each() {
    let bench = Bench::new().contender("one", &graceful()).contender("other", &graceful());
    bench
        .lab(&format!("run overload --contenders one,other --repeats 2 --duration 250ms {OPTIONS}"))
        .expect(0);
    let file = bench.file("runs/overload-c4.json");
    for name in ["one", "other"] {
        let goodput = check(&file, name, "goodput under overload");
        assert!(
            goodput.detail.contains("offered") && goodput.detail.contains("right replies/s"),
            "{}",
            goodput.detail
        );
    }
    let Schedule::Poisson { rate_per_s } = file.plan.schedule else { panic!("{:?}", file.plan) };
    assert!(rate_per_s > 0.0);
    assert_eq!(file.plan.design, Design::Separate);
    assert!(bench.text("runs/report.md").contains("goodput"));
}

#[test]
fn idle_connections_are_counted_and_their_memory_is_read() {
    let run = || {
        let bench = Bench::new().contender("one", &graceful()).contender("other", &graceful());
        bench
            .lab(&format!("run idle --contenders one,other --repeats 2 --duration 100ms {OPTIONS}"))
            .expect(0);
        bench.file("runs/idle-c2.json")
    };
    // Where the machine has much else to do, some take longer to open than is waited for, and the report says so.
    let mut file = run();
    for _ in 0..4 {
        let is_late = |name: &&str| {
            check(&file, name, "idle connections stay open").detail.contains("timeout")
        };
        if !["one", "other"].iter().any(is_late) {
            break;
        }
        file = run();
    }
    for name in ["one", "other"] {
        let open = check(&file, name, "idle connections stay open");
        assert_eq!(open.outcome, Outcome::Passed, "{}", open.detail);
        assert!(open.detail.contains("100 of 100"), "{}", open.detail);
        let readings: Vec<_> =
            file.memory.iter().filter(|reading| reading.contender == name).collect();
        assert_eq!(readings.len(), 4, "two for each process");
        let sum = |connections: u32| -> u64 {
            let own = readings.iter().filter(|reading| reading.connections == connections);
            own.map(|reading| reading.bytes).sum()
        };
        // A thread for each connection costs at least a page of its stack.
        assert!(sum(100) > sum(0) + 100 * 4096, "{readings:?}");
    }
}

#[test]
fn latency_is_measured_at_equal_rates_and_each_rate_is_a_file() {
    let bench = Bench::new().contender("one", &graceful()).contender("other", &graceful());
    // An earlier run had other rates; its files would stand beside those of this one.
    std::fs::create_dir(bench.path("runs")).unwrap();
    std::fs::write(bench.path("runs/latency-c4-r7.json"), "an earlier run").unwrap();
    bench
        .lab(&format!(
            "run latency --contenders one,other --blocks 2 --duration 60ms --look 250ms {OPTIONS}"
        ))
        .expect(0);
    let files = bench.files("runs");
    assert_eq!(files.len(), 3);
    let mut rates = Vec::new();
    for file in &files {
        let Schedule::Poisson { rate_per_s } = file.plan.schedule else { panic!("{file:?}") };
        rates.push(rate_per_s);
        assert!(file.run.ends_with(&format!("-r{rate_per_s:.0}")), "{}", file.run);
        for name in ["one", "other"] {
            assert_eq!(file.blocks_of(name).count(), 2);
            assert!(file.blocks_of(name).all(|block| block.latency.is_some()));
        }
        verdict(file, "other", Measure::LatencyMedian);
        verdict(file, "other", Measure::LatencyP99);
    }
    rates.sort_by(f64::total_cmp);
    assert!((rates[1] / rates[0] - 2.0).abs() < 0.01, "{rates:?}");
    assert!((rates[2] / rates[0] - 3.0).abs() < 0.01, "{rates:?}");
}

#[test]
fn a_closed_loop_is_opened_at_each_level_for_its_latency() {
    let bench = Bench::new().contender("one", &graceful()).contender("other", &graceful());
    let line = "run relay --open --contenders one,other --concurrency 2,4 --blocks 2";
    bench.lab(&format!("{line} --duration 60ms --look 250ms {OPTIONS}")).expect(0).says(&[
        "relay-open, 2 connections, ",
        "relay-open, 4 connections, ",
        " requests/s offered, against one:",
        "p50 ",
        "p99.9 ",
    ]);
    let files = bench.files("runs");
    assert_eq!(files.len(), 4);
    for pair in files.chunks(2) {
        let rates = [&pair[0], &pair[1]].map(|file| match file.plan.schedule {
            Schedule::Poisson { rate_per_s } => rate_per_s,
            _ => panic!("{file:?}"),
        });
        let (low, high) = (rates[0].min(rates[1]), rates[0].max(rates[1]));
        assert!((high / low - 0.8 / 0.5).abs() < 0.01, "{rates:?}");
    }
    for file in &files {
        assert_eq!(file.plan.scenario, "relay-open");
        assert!(file.run.starts_with(&format!("relay-open-c{}-r", file.plan.connections)));
        verdict(file, "other", Measure::LatencyP99);
        assert_eq!(check(file, "other", "over the echo server").outcome, Outcome::Passed);
    }
    let ended = bench.lab(&format!("run shutdown --open --contenders one {OPTIONS}")).expect(64);
    ended.complains(&["shutdown: only a closed loop can be opened"]);
}

#[test]
fn rates_that_are_given_are_offered_and_none_beyond_what_all_can_answer() {
    let bench = Bench::new().contender("one", &graceful()).contender("other", &graceful());
    let line = "run json --contenders one,other --concurrency 2 --blocks 2 --duration 250ms";
    // Few enough for a machine with much else to do.
    bench.lab(&format!("{line} --rates 8,0.02k {OPTIONS}")).expect(0).says(&[
        "json-open, 2 connections, 8 requests/s offered",
        "json-open, 2 connections, 20 requests/s offered",
    ]);
    let files = bench.files("runs");
    let runs: Vec<&str> = files.iter().map(|file| &*file.run).collect();
    assert_eq!(runs, ["json-open-c2-r20", "json-open-c2-r8"]);
    for file in &files {
        verdict(file, "other", Measure::ServerCpu);
    }
    let ended = bench.lab(&format!("{line} --rates 10000k {OPTIONS}")).expect(64);
    ended.complains(&["10000000 requests/s are more than the ", "ask at lower rates"]);
}

#[test]
fn over_tls_who_speaks_none_is_left_out_with_that_reason() {
    let bench = Bench::new().contender("one", &graceful());
    let ended = bench.lab(&format!("run json --tls --contenders one {OPTIONS}")).expect(64);
    ended.complains(&["one: it cannot serve HTTPS"]);
    bench.lab("verify one --scenario json --tls").expect(0).says(&["json-tls: it cannot serve"]);
    let ended = bench.lab("verify http://127.0.0.1:1/ --tls").expect(64);
    ended.complains(&["leave out --tls"]);
}

#[test]
fn a_benchmark_inside_a_process_is_run_and_its_figures_are_reported() {
    let bench = Bench::new().contender("one", &graceful());
    let scenario = |script: &str| {
        let text = format!(
            "name = \"micro\"\ntitle = \"a trial\"\nabout = \"It shows nothing.\"\n\
             kind = \"micro\"\n[micro]\ncommand = [\"sh\", \"-c\", {script:?}]\n\
             folder = \".\"\nresult_variable = \"TRIAL_RESULT\"\n"
        );
        std::fs::write(bench.path("lab/scenarios/micro.toml"), text).unwrap();
    };
    scenario(
        r#"echo '{"unit":"ns","cases":[{"case":"/a","mode":"hot","trie":12.5}]}' > $TRIAL_RESULT"#,
    );
    bench.lab(&format!("run micro --contenders one {OPTIONS}")).expect(0);
    let file = bench.file("runs/micro.json");
    assert_eq!(file.operations.len(), 1);
    assert_eq!(file.operations[0].contender, "trie");
    assert!(bench.text("runs/report.md").contains("trie"));
    scenario("echo the trie is empty >&2; exit 1");
    let ended = bench.lab(&format!("run micro --contenders one {OPTIONS}")).expect(4);
    ended.complains(&["the benchmark of micro failed", "the trie is empty"]);
}

#[test]
fn connections_that_are_made_anew_are_paired_as_well() {
    let bench = Bench::new().contender("one", &graceful()).contender("other", &graceful());
    bench
        .lab(&format!("run churn --contenders one,other --blocks 6 --duration 60ms {OPTIONS}"))
        .expect(0);
    let file = bench.file("runs/churn-c2.json");
    assert_eq!(file.plan.design, Design::Paired);
    assert_eq!(file.blocks_of("other").count(), 6);
    // On a busy machine a slice may be too short for any reply; it is no part of what is judged then.
    assert!(verdict(&file, "other", Measure::ServerCpu).blocks <= 6);
}

#[test]
fn a_time_too_short_for_any_reply_is_not_measured_and_not_called_wrong() {
    // Under load it answers later than a client looks that was kept waiting for its processor.
    let late = Nature {
        lie: "late".to_owned(),
        from: "load".to_owned(),
        calls: "honest".to_owned(),
        ..graceful()
    };
    let bench = Bench::new().contender("one", &late).contender("other", &late);
    // Longer times are tried, of which the longest is too short for a connection.
    let line = "run churn --contenders one,other --blocks 2 --duration 0.1us --look 0.1us";
    let ended = bench.lab(&format!("{line} {OPTIONS}")).expect(2);
    ended.complains(&["cannot be timed", "neither right nor wrong"]);
}

#[test]
fn fresh_processes_are_measured_with_their_memory_and_without_the_order_mattering() {
    let bench = Bench::new().contender("one", &graceful()).contender("other", &graceful());
    bench
        .lab(&format!(
            "run json --contenders one,other --repeats 3 --duration 60ms --warmup 20ms {OPTIONS}"
        ))
        .expect(0);
    let file = bench.file("runs/json-c4.json");
    assert_eq!(file.plan.design, Design::Separate);
    assert_eq!(file.blocks.len(), 9);
    assert!(file.blocks.iter().all(|block| block.memory_peak_bytes.is_some_and(|bytes| bytes > 0)));
    assert!(file.blocks.iter().all(|block| block.context_switches.is_some()));
    verdict(&file, "other", Measure::Memory);
    let first: Vec<&str> = file.blocks.chunks(3).map(|three| three[0].contender.as_str()).collect();
    assert!(first.iter().any(|name| *name != first[0]), "the same one began each time: {first:?}");
}

#[test]
fn the_cost_of_a_request_holds_nothing_of_the_warm_up() {
    // Most of the server's work is its own, and the same for each request.
    let busy = Nature { burn: 200_000, ..graceful() };
    let bench = Bench::new().contender("one", &busy);
    let cost = |warmup: &str, out: &str| {
        let line = "run json --contenders one --repeats 2 --duration 50ms --tolerate-noise";
        bench.lab(&format!("{line} --warmup {warmup} --out {out}")).expect(0);
        let file = bench.file(&format!("{out}/json-c4.json"));
        let costs = file.blocks_of("one").filter_map(|block| block.server_ns_per_request());
        costs.fold(f64::INFINITY, f64::min)
    };
    // With the warm-up in it, the cost would be ten times as high.
    let (short, long) = (cost("5ms", "short"), cost("500ms", "long"));
    assert!(long < 4.0 * short, "{long:.0} ns instead of {short:.0} ns");
}

#[test]
fn a_ladder_finds_a_rate_and_confirms_it() {
    let bench = Bench::new().contender("one", &graceful());
    let ended =
        bench.lab("ladder one --scenario json --slo p50<500ms --concurrency 4 --duration 200ms");
    assert!(matches!(ended.code, Some(0 | 5)), "{ended:?}");
    ended.says(&["a closed loop reaches", "rate/s", "holds up to"]);
    let held = ended.out.lines().filter(|line| line.ends_with("yes")).count();
    assert!(held >= 3, "a rate is confirmed:\n{}", ended.out);
    assert_eq!(bench.processes(), []);
    bench.lab("ladder one --slo fast").expect(64).complains(&["p99<5ms"]);
}

#[test]
fn a_promise_that_nobody_can_keep_holds_at_no_rate_and_is_no_success() {
    let bench = Bench::new().contender("one", &graceful());
    let line = "ladder one --scenario shutdown --slo p50<1us --concurrency 2 --duration 100ms";
    let ended = bench.lab(line);
    // On a disturbed machine the client is late itself, which is told instead.
    assert!(matches!(ended.code, Some(2 | 5)), "{ended:?}");
    ended.says(&["held at no rate"]);
}
