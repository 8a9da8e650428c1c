//! What a comparison may say, and what its exit code tells a program.

use peregrine_lab_model::verdict::{Decision, Measure};

use crate::bench::{Bench, verdict};
use crate::server::Nature;

/// Enough rounds that the work weighs more than the system calls around it.
const WORK: u64 = 100_000;

fn working(rounds: u64) -> Nature {
    Nature { burn: rounds, end: "graceful".to_owned(), ..Nature::default() }
}

fn bench() -> Bench {
    Bench::new()
        .contender("usual", &working(WORK))
        .contender("same", &working(WORK))
        .contender("heavier", &working(WORK * 3 / 2))
        // So much that no neighbour of the machine hides it.
        .contender("heavy", &working(WORK * 4))
}

#[test]
fn the_same_program_is_equivalent_or_cannot_be_told_apart_after_40_blocks() {
    let bench = bench();
    let mut wrong = Vec::new();
    // The interval has a confidence level of 95 %, so one run may be wrong, but hardly two.
    for out in ["first", "second"] {
        let ended = bench.lab(&format!(
            "compare same usual --scenario json --concurrency 4 --blocks 40 --tolerate-noise \
             --fail-if different --out {out}"
        ));
        let file = bench.file(&format!("{out}/json-c4.json"));
        let found = verdict(&file, "same", Measure::ServerCpu);
        match found.decision {
            Decision::Equivalent => ended.expect(0),
            Decision::CannotTell => ended.expect(2),
            _ => {
                wrong.push(format!("{found:?}"));
                continue;
            }
        };
        assert_eq!(found.blocks, 40);
        let again = file.again.unwrap();
        let names = (again.contender.as_str(), again.second.as_str());
        assert_eq!(names, ("usual", "usual (again)"));
        assert!(again.ratio.is_known() && again.band > 0.0, "{again:?}");
        return;
    }
    panic!("{wrong:?}");
}

#[test]
fn four_times_the_work_is_slower_and_fails_only_who_asked_for_that() {
    let bench = bench();
    let line = "compare heavy usual --scenario json --concurrency 4 --blocks 10 --tolerate-noise";
    bench.lab(&format!("{line} --fail-if slower --out runs")).expect(1).says(&["slower"]);
    let file = bench.file("runs/json-c4.json");
    let found = verdict(&file, "heavy", Measure::ServerCpu);
    assert_eq!(found.decision, Decision::Slower);
    assert!(found.ratio.low > 1.5 && found.ratio.high < 8.0, "{found:?}");
    bench.lab(line).expect(0).says(&["slower"]);
}

#[test]
fn half_as_much_work_again_is_slower_unless_the_noise_is_as_much() {
    let bench = bench();
    let ended = bench.lab(
        "compare heavier usual --scenario json --concurrency 4 --blocks 20 --tolerate-noise \
         --fail-if slower --out runs",
    );
    let file = bench.file("runs/json-c4.json");
    let found = verdict(&file, "heavier", Measure::ServerCpu);
    let noise = file.again.as_ref().unwrap().band;
    match found.decision {
        Decision::Slower => ended.expect(1),
        // The same program twice differs by too much, or the interval reaches into that.
        Decision::CannotTell if noise > 0.05 || found.ratio.low < 1.0 + noise => ended.expect(2),
        _ => panic!("{found:?}, {noise}"),
    };
    assert!(found.ratio.estimate > 1.05 && found.ratio.estimate < 2.0, "{found:?}");
}

#[test]
fn less_work_is_faster_and_no_failure_where_slower_would_be_one() {
    let bench = bench();
    let line = "compare usual heavy --scenario json --concurrency 4 --blocks 10 --tolerate-noise";
    bench.lab(&format!("{line} --fail-if slower")).expect(0).says(&["faster"]);
}

#[test]
fn too_few_blocks_cannot_tell_and_the_exit_code_says_so() {
    let bench = bench();
    let line = "compare heavy usual --scenario json --concurrency 4 --blocks 3 --tolerate-noise";
    bench.lab(&format!("{line} --fail-if slower")).expect(2).says(&["cannot tell"]);
}
