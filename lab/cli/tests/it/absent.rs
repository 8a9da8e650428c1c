//! Contenders that cannot be measured here: each is listed with its reason, never left out silently.

use crate::bench::Bench;
use crate::server::Nature;

fn bench() -> Bench {
    let nature = Nature { end: "graceful".to_owned(), ..Nature::default() };
    Bench::new().contender("one", &nature).contender("other", &nature)
}

/// Recipes that cannot run, each with a part of the reason that is expected.
const ABSENT: [(&str, &str, &str); 4] = [
    (
        "unbuilt",
        "build = [\"sh\", \"-c\", \"exit 0\"]\nrun = [\"{target}/release/unbuilt\"]",
        "not built",
    ),
    (
        "needy",
        "run = [\"true\"]\nneeds = [{ command = [\"false\"], reason = \"a moon in the house\" }]",
        "a moon in the house",
    ),
    (
        "private",
        "run = [\"true\"]\nunobtainable = \"nobody publishes it\"\n\
         needs = [{ command = [\"false\"], reason = \"the program\" }]",
        "not obtainable here: nobody publishes it",
    ),
    ("plain", "run = [\"true\"]\nlacks = { json = \"it speaks no JSON\" }", "it speaks no JSON"),
];

#[test]
fn who_cannot_be_measured_is_listed_with_the_reason_in_file_and_report() {
    let mut bench = bench();
    for (name, text, _) in ABSENT {
        bench = bench.recipe(name, &format!("name = {name:?}\n{text}\n"));
    }
    let ended = bench
        .lab(
            "run json --contenders one,other,unbuilt,needy,private,plain --no-build --blocks 6 \
              --tolerate-noise --out runs",
        )
        .expect(0);
    let file = bench.file("runs/json-c4.json");
    let [markdown, html] = ["runs/report.md", "runs/report.html"].map(|path| bench.text(path));
    for (name, _, reason) in ABSENT {
        let said = file.contender(name).unwrap().skipped.clone().unwrap_or_default();
        assert!(said.contains(reason), "{name}: {said:?}");
        assert!(markdown.contains(reason) && html.contains(reason), "{name} is not in the report");
        ended.says(&[reason]);
        ended.complains(&[&format!("without {name}")]);
        assert_eq!(file.blocks_of(name).count(), 0);
    }
    assert_eq!(file.blocks_of("other").count(), 6);
}

#[test]
fn who_fails_to_build_is_listed_with_the_end_of_the_build_and_the_rest_is_measured() {
    let broken = "name = \"broken\"\nbuild = [\"sh\", \"-c\", \"echo the roof is missing >&2; \
                  exit 3\"]\nrun = [\"{target}/release/broken\"]\n";
    let bench = bench().recipe("broken", broken);
    let ended = bench
        .lab("run json --contenders one,other,broken --blocks 6 --tolerate-noise --out runs")
        .expect(0);
    ended.complains(&["building broken", "the roof is missing"]);
    let file = bench.file("runs/json-c4.json");
    let said = file.contender("broken").unwrap().skipped.clone().unwrap();
    assert!(said.contains("did not build") && said.contains("the roof is missing"), "{said}");
    assert!(bench.text("runs/report.md").contains("the roof is missing"));
    assert_eq!(file.blocks_of("other").count(), 6);
    let listed = bench.lab("contenders --build broken").expect(3);
    listed.says(&["broken", "build failed", "the roof is missing"]);
}

#[test]
fn a_contender_is_built_where_it_is_missing_and_then_listed_as_ready() {
    let recipe = "name = \"made\"\nrun = [\"{target}/release/made\"]\n\
                  build = [\"sh\", \"-c\", \"mkdir -p {target}/release; \
                  cp $(command -v env) {target}/release/made\"]\n";
    let bench = bench().recipe("made", recipe);
    bench.lab("contenders made").expect(0).says(&["made", "not built"]);
    bench.lab("contenders --build made").expect(0).says(&["made", "ready"]);
    bench.lab("contenders").expect(0).says(&["made", "one", "other"]);
}

#[test]
fn a_run_that_nobody_is_left_for_says_why_of_each() {
    let needy = "name = \"needy\"\nrun = [\"true\"]\n\
                 needs = [{ command = [\"false\"], reason = \"a moon in the house\" }]\n";
    let bench = Bench::new().recipe("needy", needy);
    let ended = bench.lab("run json --contenders needy --out runs").expect(64);
    ended.complains(&["nobody is left", "needy", "a moon in the house"]);
}

#[test]
fn a_reference_that_is_absent_is_refused_with_the_reason() {
    let needy = "name = \"needy\"\nrun = [\"true\"]\n\
                 needs = [{ command = [\"false\"], reason = \"a moon in the house\" }]\n";
    let bench = bench().recipe("needy", needy);
    let line = "run json --contenders one,needy --reference needy --out runs";
    bench.lab(line).expect(64).complains(&["needy cannot be the reference", "a moon"]);
    let line = "run json --contenders one,other --reference needy --out runs";
    bench.lab(line).expect(64).complains(&["needy is none of the contenders"]);
}

#[test]
fn a_contender_that_never_listens_is_left_out_with_what_it_printed() {
    let mute = "name = \"mute\"\ntls = false\nrun = [\"sh\", \"-c\", \"echo no port today\"]\n";
    let bench = bench().recipe("mute", mute);
    bench
        .lab("run json --contenders one,other,mute --blocks 6 --tolerate-noise --out runs")
        .expect(4);
    let file = bench.file("runs/json-c4.json");
    let said = file.contender("mute").unwrap().skipped.clone().unwrap();
    assert!(said.contains("ended before it answered") && said.contains("no port today"), "{said}");
    assert_eq!(file.blocks_of("other").count(), 6);
}
