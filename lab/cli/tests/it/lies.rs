//! Servers that lie: each lie is caught and named, voids what was measured of the liar, and leaves
//! the rest of the run standing.

use peregrine_lab_model::check::{Check, Outcome};
use peregrine_lab_model::verdict::{Decision, Measure};

use crate::bench::{Bench, check, has_failures, verdict, why_void};
use crate::server::{ENTRY, Nature};

fn honest() -> Nature {
    Nature { calls: "honest".to_owned(), end: "graceful".to_owned(), ..Nature::default() }
}

fn liar(lie: &str, from: &str) -> Nature {
    Nature { lie: lie.to_owned(), from: from.to_owned(), ..honest() }
}

/// Lies, and how the report calls them.
const LIES: [(&str, &str); 7] = [
    ("wrong-body", "wrong body"),
    ("wrong-length", "wrong"),
    ("wrong-status", "wrong status"),
    ("wrong-field", "wrong header"),
    ("short-body", "short body"),
    ("closed", "closed"),
    ("garbage", "malformed"),
];

#[test]
fn a_lie_that_begins_while_it_is_timed_voids_the_liar_alone_and_is_named() {
    let mut bench = Bench::new().contender("honest", &honest()).contender("other", &honest());
    for (lie, _) in LIES {
        bench = bench.contender(lie, &liar(lie, "slices"));
    }
    let names = LIES.map(|(lie, _)| lie).join(",");
    let line = format!(
        "run json --contenders honest,other,{names} --blocks 6 \
         --tolerate-noise --out runs"
    );
    let ended = bench.lab(&line);
    let file = bench.file("runs/json-c4.json");
    for (lie, kind) in LIES {
        let why = why_void(&file, lie);
        assert!(why.contains(kind), "{lie} is called {why:?}");
        ended.says(&[&why]);
    }
    let other = verdict(&file, "other", Measure::ServerCpu);
    assert_ne!(other.decision, Decision::Void, "{other:?}");
    assert_eq!(other.blocks, 6);
    assert!(bench.text("runs/report.md").contains("wrong status"));
    ended.expect(4);
}

#[test]
fn a_lie_under_load_is_turned_away_before_it_is_timed_and_the_rest_is_measured() {
    let bench = Bench::new()
        .contender("honest", &honest())
        .contender("other", &honest())
        .contender("body", &liar("wrong-body", "load"))
        .contender("early", &liar("closed", "load"));
    let ended = bench.lab(
        "run json --contenders honest,other,body,early --blocks 6 --tolerate-noise --out runs",
    );
    let file = bench.file("runs/json-c4.json");
    for (name, kind) in [("body", "wrong body"), ("early", "closed")] {
        let reason = file.contender(name).unwrap().skipped.clone().unwrap();
        assert!(reason.contains("under load") && reason.contains(kind), "{reason}");
        assert_eq!(file.blocks_of(name).count(), 0);
        assert!(bench.text("runs/report.md").contains(name));
    }
    assert_ne!(verdict(&file, "other", Measure::ServerCpu).decision, Decision::Void);
    ended.expect(4);
}

#[test]
fn who_lies_at_the_gate_is_never_timed_and_who_ignores_close_is_told() {
    let keeps_open = Nature { habits: "keeps-open".to_owned(), ..honest() };
    let bench = Bench::new()
        .contender("honest", &honest())
        .contender("other", &honest())
        .contender("status", &liar("wrong-status", "gate"))
        .contender("open", &keeps_open);
    let ended = bench.lab(
        "run json --contenders honest,status,open,other --blocks 6 --tolerate-noise --out runs",
    );
    let file = bench.file("runs/json-c4.json");
    let reason = file.contender("status").unwrap().skipped.clone().unwrap();
    assert!(reason.contains("wrong status"), "{reason}");
    assert!(has_failures(&file, "status"));
    assert_eq!(file.blocks_of("status").count(), 0);
    // The load keeps its connections, so that nobody gains by leaving one open.
    let is_told = |check: &Check| {
        check.name.contains("close is obeyed")
            && check.contender.as_deref() == Some("open")
            && check.outcome == Outcome::Warned
    };
    assert!(file.checks.iter().any(is_told));
    assert_eq!(file.contender("open").unwrap().skipped, None);
    assert!(file.blocks_of("open").count() > 0);
    assert_ne!(verdict(&file, "other", Measure::ServerCpu).decision, Decision::Void);
    ended.expect(4);
}

#[test]
fn who_ignores_close_is_turned_away_where_connections_are_made_anew() {
    let keeps_open = Nature { habits: "keeps-open".to_owned(), ..honest() };
    let bench = Bench::new()
        .contender("honest", &honest())
        .contender("other", &honest())
        .contender("open", &keeps_open);
    bench
        .lab("run churn --contenders honest,other,open --blocks 6 --tolerate-noise --out runs")
        .expect(4);
    let file = bench.file("runs/churn-c2.json");
    let reason = file.contender("open").unwrap().skipped.clone().unwrap();
    assert!(reason.contains("close is obeyed"), "{reason}");
    assert_ne!(verdict(&file, "other", Measure::ServerCpu).decision, Decision::Void);
}

#[test]
fn a_reference_that_lies_ends_the_run_with_its_lie() {
    let bench =
        Bench::new().contender("liar", &liar("wrong-body", "gate")).contender("honest", &honest());
    let ended = bench
        .lab("run json --contenders liar,honest --blocks 6 --tolerate-noise --out runs")
        .expect(4);
    ended.complains(&["reference cannot be timed", "liar", "wrong body"]);
}

#[test]
fn replies_in_the_wrong_order_are_called_reordered() {
    let bench = Bench::new()
        .contender("honest", &honest())
        .contender("other", &honest())
        .contender("liar", &liar("reordered", "load"));
    bench
        .lab("run echo --contenders honest,other,liar --blocks 6 --tolerate-noise --out runs")
        .expect(4);
    let file = bench.file("runs/echo-c2.json");
    let reason = file.contender("liar").unwrap().skipped.clone().unwrap();
    assert!(reason.contains("reordered"), "{reason}");
    assert_ne!(verdict(&file, "other", Measure::ServerCpu).decision, Decision::Void);
}

#[test]
fn replies_without_a_call_of_a_handler_void_a_verdict() {
    let cheat = Nature { calls: "cheating".to_owned(), ..honest() };
    let no_date = Nature { habits: "no-date".to_owned(), ..honest() };
    let bench = Bench::new()
        .contender("honest", &honest())
        .contender("cheat", &cheat)
        .contender("undated", &no_date);
    bench
        .lab("run json --contenders honest,cheat,undated --blocks 6 --tolerate-noise --out runs")
        .expect(4);
    let file = bench.file("runs/json-c4.json");
    assert_eq!(check(&file, "honest", "handler's call").outcome, Outcome::Passed);
    assert_eq!(check(&file, "cheat", "handler's call").outcome, Outcome::Failed);
    let found = verdict(&file, "cheat", Measure::ServerCpu);
    assert_eq!(found.decision, Decision::Void, "{found:?}");
    // A missing Date is a remark, not a void: the founding systems differ in it.
    assert_eq!(check(&file, "undated", "Date is sent").outcome, Outcome::Warned);
    assert_ne!(verdict(&file, "undated", Measure::ServerCpu).decision, Decision::Void);
}

#[test]
fn replies_that_did_not_pass_the_echo_server_void_a_verdict() {
    let liar = Nature { habits: "no-relay".to_owned(), ..honest() };
    let bench = Bench::new()
        .contender("honest", &honest())
        .contender("other", &honest())
        .contender("liar", &liar);
    bench
        .lab("run relay --contenders honest,other,liar --blocks 6 --tolerate-noise --out runs")
        .expect(4);
    let file = bench.file("runs/relay-c4.json");
    assert_eq!(check(&file, "honest", "over the echo server").outcome, Outcome::Passed);
    let failed = check(&file, "liar", "over the echo server");
    assert!(failed.outcome == Outcome::Failed && failed.detail.ends_with(" 0 bytes echoed"));
    let found = verdict(&file, "liar", Measure::ServerCpu);
    assert_eq!(found.decision, Decision::Void, "{found:?}");
    assert_ne!(verdict(&file, "other", Measure::ServerCpu).decision, Decision::Void);
}

#[test]
fn a_contender_that_dies_while_it_is_timed_is_void_and_the_rest_of_the_run_stands() {
    let bench = Bench::new()
        .contender("honest", &honest())
        .contender("other", &honest())
        .contender("mortal", &liar("dies", "slices"));
    let ended = bench
        .lab("run json --contenders honest,other,mortal --blocks 6 --tolerate-noise --out runs");
    let file = bench.file("runs/json-c4.json");
    why_void(&file, "mortal");
    let other = verdict(&file, "other", Measure::ServerCpu);
    assert_ne!(other.decision, Decision::Void);
    assert_eq!(other.blocks, 6);
    ended.expect(4);
}

#[test]
fn a_contender_that_does_not_start_again_is_void_and_the_rest_of_the_run_stands() {
    let program = std::env::current_exe().unwrap();
    // It starts for its gate and for one block.
    let script = format!(
        "echo >> starts; [ $(wc -l < starts) -le 2 ] || {{ echo out of order; exit 1; }}; \
         exec {} {ENTRY} --exact --ignored",
        program.display()
    );
    let recipe = format!("name = \"tired\"\ntls = false\nrun = [\"sh\", \"-c\", {script:?}]\n");
    let bench = Bench::new()
        .contender("honest", &honest())
        .contender("other", &honest())
        .recipe("tired", &recipe);
    let ended = bench.lab(
        "run json --contenders honest,other,tired --repeats 3 --duration 60ms --warmup 20ms \
         --tolerate-noise --out runs",
    );
    let file = bench.file("runs/json-c4.json");
    let found = verdict(&file, "tired", Measure::ServerCpu);
    assert_eq!(found.decision, Decision::Void, "{found:?}");
    assert!(found.note.contains("out of order"), "{}", found.note);
    assert_eq!(verdict(&file, "other", Measure::ServerCpu).blocks, 3);
    ended.expect(4);
}

#[test]
fn fresh_processes_that_lie_or_die_are_void_and_the_rest_of_the_run_stands() {
    let bench = Bench::new()
        .contender("honest", &honest())
        .contender("other", &honest())
        .contender("liar", &liar("wrong-body", "60"))
        .contender("mortal", &liar("dies", "60"));
    let ended = bench.lab(
        "run json --contenders honest,other,liar,mortal --repeats 2 --duration 200ms \
         --warmup 50ms --tolerate-noise --out runs",
    );
    let file = bench.file("runs/json-c4.json");
    for name in ["liar", "mortal"] {
        let found = verdict(&file, name, Measure::ServerCpu);
        assert_eq!(found.decision, Decision::Void, "{found:?}");
    }
    assert!(verdict(&file, "liar", Measure::ServerCpu).note.contains("wrong body"));
    let other = verdict(&file, "other", Measure::ServerCpu);
    assert_ne!(other.decision, Decision::Void);
    assert_eq!(other.blocks, 2);
    ended.expect(4);
}
