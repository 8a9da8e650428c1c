//! Time budgets: what fits, what does not, and what a plan says about itself.

use crate::bench::Bench;
use crate::server::Nature;

fn bench() -> Bench {
    let nature = Nature::default();
    Bench::new().contender("one", &nature).contender("other", &nature)
}

const BOTH: &str = "--contenders one,other --tolerate-noise --out runs";

#[test]
fn a_budget_that_is_too_short_is_refused_with_what_is_needed() {
    let bench = bench();
    let ended = bench.lab(&format!("run json --budget 2s {BOTH}")).expect(64);
    ended.complains(&["takes", "the budget is", "raise the budget"]);
    assert!(!bench.path("runs/json-c4.json").exists());
    let fresh = bench.lab(&format!("run json --repeats 50 --duration 10s --budget 1m {BOTH}"));
    fresh.expect(64).complains(&["the budget is"]);
}

#[test]
fn a_budget_decides_the_blocks_and_the_plan_says_which_effect_they_can_see() {
    let bench = bench();
    let ended = bench.lab(&format!("run json --budget 6s {BOTH}")).expect(0);
    let planned = ended
        .complaints
        .lines()
        .find(|line| line.starts_with("json: "))
        .unwrap_or_else(|| panic!("no plan in {}", ended.complaints));
    assert!(planned.contains("blocks at 1 level, about 0:"), "{planned}");
    assert!(planned.contains("differences of") && planned.contains("will probably show"));
    let file = bench.file("runs/json-c4.json");
    assert_eq!(file.plan.budget_s, Some(6.0));
    assert!(planned.contains(&format!("{} blocks", file.plan.blocks)), "{planned}");
    // What is planned is measured, and is more than the least.
    assert_eq!(file.blocks_of("other").count(), file.plan.blocks as usize);
    assert!(file.plan.blocks > 6, "{} blocks", file.plan.blocks);
}

#[test]
fn fewer_blocks_than_can_separate_anything_are_said_to_tell_nothing() {
    let bench = bench();
    let ended = bench.lab(&format!("run json --blocks 3 {BOTH}")).expect(0);
    ended.complains(&["too few blocks to tell any difference"]);
    ended.says(&["cannot tell"]);
}
