//! Runs that are broken off: by Ctrl-C, by SIGKILL, and gone on with afterwards.

use std::process::Command;
use std::time::Duration;

use peregrine_lab_model::RunFile;
use peregrine_lab_model::verdict::{Decision, Measure};

use crate::bench::{Bench, Ended, await_that, signal, verdict};
use crate::server::Nature;

const BOTH: &str = "--contenders one,other --tolerate-noise --out runs";

/// Far more than is waited for.
const LONG: &str = "run json --blocks 20000";

const FRESH: &str = "run json --repeats 6 --duration 60ms --warmup 20ms";

fn bench() -> Bench {
    let nature = Nature { end: "graceful".to_owned(), ..Nature::default() };
    Bench::new().contender("one", &nature).contender("other", &nature)
}

/// Lines of the journal after its head: finished blocks and levels.
fn finished(bench: &Bench) -> usize {
    bench.text("runs/json.journal").lines().count().saturating_sub(1)
}

#[test]
fn ctrl_c_within_a_paired_run_leaves_a_partial_file_a_report_and_no_process() {
    let bench = bench();
    let lab = bench.start(&format!("{LONG} {BOTH}"));
    // Looks ask one server after the other; only slices hold connections to all of them.
    await_that("slices have begun", || bench.connected_servers() == 3);
    // Three unmeasured slices of each and a first block, 20 ms each, take a quarter of a second.
    std::thread::sleep(Duration::from_secs(2));
    signal(lab.id(), "INT");
    Ended::of(lab).expect(130);
    assert_eq!(bench.processes(), []);
    let file = bench.file("runs/json-c4.json");
    assert!(file.is_partial && !file.blocks.is_empty(), "{} blocks", file.blocks.len());
    assert_eq!(file.blocks.len() % 3, 0, "a block has each arm once");
    assert!(bench.text("runs/report.html").contains("json"));
    let again = bench.lab("report runs --md --out elsewhere-missing");
    assert_eq!(again.code, Some(74), "a folder that is not there is told: {again:?}");
    bench.lab("report runs --md").expect(0).says(&["report.md"]);
}

#[test]
fn ctrl_c_before_the_first_block_leaves_no_process_either() {
    let bench = bench();
    let lab = bench.start(&format!("{LONG} {BOTH}"));
    await_that("a server is up", || bench.servers() > 0);
    signal(lab.id(), "INT");
    Ended::of(lab).expect(130);
    assert_eq!(bench.processes(), []);
}

#[test]
fn a_second_ctrl_c_ends_all_at_once() {
    let bench = bench();
    let lab = bench.start(&format!("run json --repeats 3 --duration 10m {BOTH}"));
    await_that("a server is up", || bench.servers() > 0);
    signal(lab.id(), "INT");
    std::thread::sleep(Duration::from_millis(300));
    // The first one may have been enough, where no slice had begun.
    let _ = Command::new("kill").args(["-s", "INT", &lab.id().to_string()]).output();
    Ended::of(lab).expect(130);
    await_that("no process is left", || bench.processes().is_empty());
}

#[test]
fn ctrl_c_within_a_build_ends_the_build() {
    let slow = "name = \"slow\"\nbuild = [\"sh\", \"-c\", \"sleep 97; exit 1\"]\n\
                run = [\"{target}/release/slow\"]\n";
    let bench = bench().recipe("slow", slow);
    for line in ["contenders --build slow", "run json --contenders slow,one --out runs"] {
        let lab = bench.start(line);
        await_that("it is being built", || {
            bench.processes().iter().any(|(_, line)| line.starts_with("sleep 97"))
        });
        signal(lab.id(), "INT");
        Ended::of(lab).expect(130);
        await_that("no process is left", || bench.processes().is_empty());
    }
}

#[test]
fn ctrl_c_between_fresh_processes_keeps_finished_blocks_and_the_same_command_goes_on() {
    let bench = bench();
    let line = format!("{FRESH} {BOTH}");
    let lab = bench.start(&line);
    await_that("some blocks are finished", || finished(&bench) >= 4);
    signal(lab.id(), "INT");
    Ended::of(lab).expect(130);
    assert_eq!(bench.processes(), []);
    let partial = bench.file("runs/json-c4.json");
    assert!(partial.is_partial && partial.blocks.len() >= 4);
    assert!(bench.text("runs/report.md").contains("json"));

    let other = bench.lab(&format!("{line} --seed 2")).expect(64);
    other.complains(&["runs/json.journal", "other settings", "another folder"]);

    bench.lab(&line).expect(0);
    let whole = bench.file("runs/json-c4.json");
    assert!(!whole.is_partial && whole.blocks.len() == 18);
    goes_on(&partial, &whole);
    assert_eq!(bench.text("runs/json.journal"), "", "what is finished needs no journal");
}

#[test]
fn a_killed_lab_leaves_no_server_and_the_same_command_goes_on() {
    let bench = bench();
    let line = format!("{FRESH} {BOTH}");
    let mut lab = bench.start(&line);
    await_that("some blocks are finished", || finished(&bench) >= 3);
    await_that("a server is up", || bench.servers() > 0);
    lab.kill().unwrap();
    lab.wait().unwrap();
    await_that("no server is left", || bench.processes().is_empty());
    let kept = finished(&bench);
    bench.lab(&line).expect(0);
    let whole = bench.file("runs/json-c4.json");
    assert_eq!(whole.blocks.len(), 18);
    // What was measured before the end and what was measured after it began anew.
    let restarts = whole.blocks.windows(2).filter(|two| two[1].started_ns < two[0].started_ns);
    assert_eq!(restarts.count(), 1, "{kept} blocks were kept");
}

#[test]
fn what_failed_before_a_run_was_broken_off_still_voids_it_afterwards() {
    let bench = bench();
    let line = format!("{FRESH} {BOTH}");
    let mut lab = bench.start(&line);
    await_that("some blocks are finished", || finished(&bench) >= 3);
    lab.kill().unwrap();
    lab.wait().unwrap();
    await_that("no server is left", || bench.processes().is_empty());
    let journal = bench.text("runs/json.journal");
    let failed = journal.replacen("\"outcome\":\"passed\"", "\"outcome\":\"failed\"", 1);
    assert_ne!(failed, journal, "the journal keeps what was checked");
    std::fs::write(bench.path("runs/json.journal"), failed).unwrap();
    bench.lab(&line).expect(4);
    let file = bench.file("runs/json-c4.json");
    let decision = verdict(&file, "other", Measure::ServerCpu).decision;
    assert_eq!(decision, Decision::Void);
}

#[test]
fn a_killed_paired_run_leaves_no_server_and_keeps_its_finished_levels() {
    let bench = bench();
    let line = format!("run json --blocks 8 --duration 40ms --concurrency 2,3 {BOTH}");
    let mut lab = bench.start(&line);
    await_that("the first level is finished", || finished(&bench) >= 1);
    await_that("servers are up again", || bench.servers() > 1);
    lab.kill().unwrap();
    lab.wait().unwrap();
    await_that("no server is left", || bench.processes().is_empty());
    let first = bench.text("runs/json-c2.json");
    bench.lab(&line).expect(0).says(&["2 connections", "3 connections"]);
    assert_eq!(bench.text("runs/json-c2.json"), first, "the first level was not measured again");
    assert!(!bench.file("runs/json-c3.json").is_partial);
}

/// Stops the test unless the blocks of the first file stand in the second as they were.
fn goes_on(partial: &RunFile, whole: &RunFile) {
    for block in &partial.blocks {
        let found =
            whole.blocks_of(&block.contender).find(|found| found.number == block.number).unwrap();
        assert_eq!(found.wall_ns, block.wall_ns, "block {} was measured again", block.number);
    }
}
