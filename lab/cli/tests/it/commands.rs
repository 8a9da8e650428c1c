//! Commands and their exit codes.

use peregrine_lab_model::RunFile;

use crate::bench::Bench;
use crate::server::{Nature, serve};

fn bench() -> Bench {
    let nature = Nature { end: "graceful".to_owned(), ..Nature::default() };
    let liar = Nature {
        lie: "wrong-body".to_owned(),
        from: "gate".to_owned(),
        habits: "no-date".to_owned(),
        ..nature.clone()
    };
    Bench::new().contender("right", &nature).contender("liar", &liar)
}

#[test]
fn verify_passes_who_answers_rightly_and_names_what_is_wrong_with_others() {
    let bench = bench();
    let ended = bench.lab("verify right --scenario json,echo").expect(0);
    ended.says(&["passed", "json: answers", "echo: answers", "0 failed", "close is obeyed"]);
    let ended = bench.lab("verify liar --scenario json").expect(4);
    ended.says(&["failed", "wrong body", "Date is sent", "it said:"]);
    assert_eq!(bench.processes(), []);
}

#[test]
fn verify_asks_all_scenarios_unless_some_are_named() {
    let ended = bench().lab("verify right").expect(0);
    ended.says(&["json: ", "echo: ", "churn: ", "shutdown: ", "idle: ", "latency: "]);
}

#[test]
fn verify_takes_a_url_and_scenarios_for_it() {
    let bench = bench();
    let right = serve(Nature::default());
    bench.lab(&format!("verify http://{right}/json")).expect(0).says(&["0 failed"]);
    let ended = bench.lab(&format!("verify http://{right}/json --scenario json,echo"));
    ended.expect(0).says(&["json: answers", "echo: answers"]);
    // Keeping a closing connection open is told; a wrong answer is a failure.
    let rude = serve(Nature { habits: "keeps-open".to_owned(), ..Nature::default() });
    let ended = bench.lab(&format!("verify http://{rude}/json")).expect(0);
    ended.says(&["warned", "it left the connection open"]);
    let wrong =
        Nature { lie: "wrong-body".to_owned(), from: "gate".to_owned(), ..Nature::default() };
    let liar = serve(wrong);
    let ended = bench.lab(&format!("verify http://{liar}/json --scenario json")).expect(4);
    ended.says(&["failed", "wrong body"]);
    bench.lab("verify http://192.0.2.1/").expect(64).complains(&["192.0.2.1", "loopback only"]);
    bench.lab("verify http://nowhere").expect(64).complains(&["no address such as"]);
}

#[test]
fn names_that_nobody_has_are_answered_with_those_that_are_near() {
    let bench = bench();
    let ended = bench.lab("run json --contenders rihgt --out runs").expect(64);
    ended.complains(&["no contender \"rihgt\"", "did you mean right?"]);
    bench.lab("run jsno --contenders right --out runs").expect(64).complains(&["jsno", "json"]);
    bench.lab("compare right rite").expect(64).complains(&["right"]);
    bench.lab("verify right --scenario ehco").expect(64).complains(&["echo"]);
    bench.lab("reprot runs").expect(64).complains(&["report"]);
    bench.lab("compare right right").expect(64).complains(&["A/A"]);
}

#[test]
fn cpus_that_do_not_exist_make_a_machine_unfit() {
    let ended = bench().lab(
        "run json --contenders right --server-cpus 9999 --client-cpus 0 --blocks 6 --out runs",
    );
    ended.expect(3).complains(&["9999"]);
}

#[test]
fn a_report_is_written_from_a_folder_of_run_files_and_from_single_ones() {
    let bench = bench();
    let run = "run json --contenders right --blocks 6 --tolerate-noise --out runs";
    bench.lab(run).expect(0);
    for name in ["report.html", "report.md", "report.json"] {
        assert!(!bench.text(&format!("runs/{name}")).is_empty(), "{name}");
    }
    let first = bench.text("runs/report.html");
    let ended = bench.lab("report runs --html --md --json").expect(0);
    ended.says(&["report.html", "report.md", "report.json"]);
    assert_eq!(bench.text("runs/report.html"), first, "a report depends on run files alone");
    std::fs::create_dir(bench.path("apart")).unwrap();
    bench.lab("report runs/json-c4.json --md --out apart").expect(0);
    assert!(bench.text("apart/report.md").contains("right"));
    assert!(!bench.path("apart/report.html").exists());
}

#[test]
fn a_packed_folder_is_reported_as_the_folder_is() {
    let bench = bench();
    bench.lab("run json --contenders right --blocks 6 --tolerate-noise --out runs").expect(0);
    bench.lab("pack runs --out kept --svg").expect(0).says(&["runs.json.xz", "report.md", "svg"]);
    assert!(bench.path("runs/json-c4.json").exists(), "the folder stays as it is");
    bench.lab("report kept --html --md --svg").expect(0);
    bench.lab("report runs --svg").expect(0);
    for name in ["report.html", "report.md", "forest.svg"] {
        assert_eq!(bench.text(&format!("kept/{name}")), bench.text(&format!("runs/{name}")));
    }
    std::fs::write(bench.path("kept/runs.json.xz"), "[]").unwrap();
    bench.lab("report kept").expect(64).complains(&["runs.json.xz", "not a packed run file"]);
}

#[test]
fn a_report_on_what_is_no_run_file_says_so() {
    let bench = bench();
    bench.lab("report nowhere").expect(74).complains(&["nowhere"]);
    std::fs::create_dir(bench.path("empty")).unwrap();
    bench.lab("report empty").expect(64).complains(&["no run files", "lab run"]);
    std::fs::write(bench.path("empty/broken.json"), "{").unwrap();
    bench.lab("report empty").expect(64).complains(&["broken.json"]);
    let mut newer = serde_json::to_value(RunFile::new("newer")).unwrap();
    newer["schema"] = 99.into();
    std::fs::write(bench.path("empty/broken.json"), newer.to_string()).unwrap();
    bench.lab("report empty").expect(64).complains(&["broken.json", "99"]);
}

#[test]
fn a_run_that_cannot_write_its_files_says_where() {
    let bench = bench();
    std::fs::write(bench.path("taken"), "a file").unwrap();
    let ended = bench.lab("run json --contenders right --blocks 6 --tolerate-noise --out taken");
    ended.expect(74).complains(&["taken"]);
}

#[test]
fn a_command_line_is_a_contender_as_well() {
    let bench = bench();
    // Its reply has no Date, which is a remark, and answers every path, which is wrong.
    let program = env!("CARGO_BIN_EXE_lab");
    bench
        .lab_with("verify --scenario json", &format!("null={program} null"))
        .expect(4)
        .says(&["json: answers: asked: 3 right answers", "a path that nobody knows"]);
}

#[test]
fn a_slow_client_is_called_client_bound() {
    let bench = bench();
    let server = serve(Nature::default());
    let line = format!("load http://{server}/json --closed 2 --duration 600ms --burn 20ms");
    bench.lab(&line).expect(5).says(&["CLIENT-BOUND"]);
}

#[test]
fn the_generator_alone_tells_wrong_answers_and_wrong_usage() {
    let bench = bench();
    let server = serve(Nature::default());
    let line = format!("load http://{server}/json --duration 100ms --no-calibration");
    bench.lab(&line).expect(0);
    bench.lab(&format!("{line} --expect-body hallo")).expect(4).says(&["wrong length", "VOID"]);
    bench.lab("load http://192.0.2.1/").expect(64).complains(&["--i-own-this-target"]);
    bench.lab(&format!("{line} --no-such-option")).expect(64);
}

#[test]
fn the_doctor_speaks_json_to_programs_and_sends_nothing() {
    let ended = bench().lab("doctor --json");
    assert!(matches!(ended.code, Some(0 | 3)), "{ended:?}");
    let diagnosis: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    let badge = diagnosis["badge"].as_str().unwrap().to_lowercase();
    assert_eq!(ended.code == Some(3), badge == "red", "{badge}");
}

#[test]
fn the_paper_check_is_passed_its_arguments() {
    let bench = bench();
    let ended = bench.lab("audit --connections 500 --rps 144342 --mean 4.99ms");
    assert_eq!(ended.code, Some(3), "the mean is impossible: {ended:?}");
    ended.says(&["impossible"]);
    let ended = bench.lab("audit --connections 64 --rps 10000 --mean 6.4ms");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    bench.lab("audit --help").expect(0).says(&["--rps"]);
}

#[test]
fn scenarios_are_listed_and_a_broken_one_names_its_key() {
    let bench = bench();
    bench.lab("--lab lab scenarios").expect(0).says(&["json", "shutdown", "idle", "a trial"]);
    let path = bench.path("lab/scenarios/json.toml");
    let text = std::fs::read_to_string(&path).unwrap().replace("[load]", "[laod]");
    std::fs::write(path, text).unwrap();
    bench.lab("run json --contenders right --out runs").expect(64).complains(&["laod", "load"]);
}

#[test]
fn the_help_has_every_exit_code_and_the_command_line_is_refused_with_64() {
    let bench = bench();
    let help = bench.lab("--help").expect(0);
    help.says(&["0 all right", "1 a", "2 inc", "3 the", "4 wrong", "5 the", "64", "74", "130"]);
    bench.lab("--version").expect(0);
    bench.lab("").expect(64);
    bench.lab("run").expect(64);
    bench.lab("run json --blocks many").expect(64).complains(&["many"]);
    bench.lab("run json --budget 10").expect(64).complains(&["unit"]);
    bench.lab("run json --repeats 3 --paired").expect(64);
    bench.lab("--lab nowhere scenarios").expect(64).complains(&["nowhere", "--lab FOLDER"]);
}
