//! Reports on invented runs, compared with committed files and looked at for what must hold.
//! The variable REWRITE_GOLDEN, set to anything, writes the files anew.

use std::fs;
use std::path::Path;

use peregrine_lab_model::check::Outcome;
use peregrine_lab_model::verdict::Ratio;
use peregrine_lab_model::{RunFile, pack};
use peregrine_lab_report::Report;

use crate::{svg, synthetic};

fn compare(name: &str, files: &[RunFile]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let report = Report::new(files);
    let forms = [
        ("html", report.html()),
        ("md", report.markdown()),
        ("json", report.json()),
        ("svg", report.forest_svg()),
    ];
    for (form, text) in forms {
        let path = folder.join(format!("{name}.{form}"));
        if std::env::var_os("REWRITE_GOLDEN").is_some() {
            fs::write(&path, &text).expect("the golden folder is writable");
            continue;
        }
        let golden = fs::read_to_string(&path).expect("the golden file is there");
        let differs = golden.lines().zip(text.lines()).position(|(old, new)| old != new);
        assert!(
            golden == text,
            "{name}.{form} differs from line {:?} on; set REWRITE_GOLDEN=1 and review the diff",
            differs.map(|line| line + 1)
        );
    }
}

#[test]
fn the_report_on_one_contender_is_as_committed() {
    compare("one", &synthetic::one());
}

#[test]
fn the_report_on_five_contenders_is_as_committed() {
    compare("five", &synthetic::five());
}

#[test]
fn the_report_on_twenty_contenders_is_as_committed() {
    compare("twenty", &synthetic::twenty());
}

#[test]
fn the_report_on_a_reproduction_is_as_committed() {
    compare("reproduction", &synthetic::page::reproduction());
}

#[test]
fn claims_stand_first_and_their_file_is_neither_a_run_nor_a_machine() {
    let markdown = Report::new(&synthetic::page::reproduction()).markdown();
    let first = markdown.split("\n## ").nth(1).unwrap();
    assert!(first.starts_with("Published claims, tried here"), "{first}");
    assert!(first.contains("1 confirmed, 1 smaller, 1 not reproduced, 1 reversed, 2 not testable"));
    assert!(first.contains("This tests no claim"), "{first}");
    assert!(!markdown.contains("load of up to 6.00"), "the page's file is no run");
    assert!(!markdown.contains("nothing was measured"));
    let alone = Report::new(&[synthetic::page::page()]).markdown();
    assert!(alone.contains("published numbers were looked at on paper"), "{alone}");
}

#[test]
fn who_is_void_for_the_same_reason_shares_a_sentence() {
    let markdown = Report::new(&synthetic::page::reproduction()).markdown();
    let verdicts = markdown.split("\n## Verdicts").nth(1).unwrap();
    let verdicts = verdicts.split("\n## ").next().unwrap();
    assert_eq!(verdicts.matches("the client was the limit").count(), 1, "{verdicts}");
    assert!(verdicts.contains("**Nobody** is judged by requests per second"));
}

#[test]
fn what_a_scenario_finds_out_stands_in_its_section_and_is_no_doubt_about_the_run() {
    let markdown = Report::new(&synthetic::page::reproduction()).markdown();
    let of = |title: &str| -> String {
        let section = markdown.split(title).nth(1).unwrap();
        section.split("\n## ").next().unwrap().to_owned()
    };
    assert!(of("\n## shutdown").contains("5 without a reply"));
    assert!(of("\n## overload-2x").contains("61 % of it answered rightly"));
    let badge = markdown.split("\n## ").next().unwrap();
    assert!(!badge.contains("shutdown under load") && !badge.contains("goodput"), "{badge}");
    assert!(badge.contains("hello-c64: guards voided all 18 blocks"), "{badge}");
}

#[test]
fn times_that_cannot_be_told_apart_are_marked_alike() {
    let markdown = Report::new(&synthetic::page::reproduction()).markdown();
    let row = markdown.lines().find(|line| line.starts_with("| static hot |")).unwrap();
    assert_eq!(row, "| static hot | **9.0** | **9.3** | 19.8 |");
}

#[test]
fn several_readings_of_memory_give_the_slope_of_their_medians() {
    let markdown = Report::new(&synthetic::page::reproduction()).markdown();
    let row = markdown.lines().find(|line| line.starts_with("| peregrine | 144\u{a0}B |"));
    assert!(row.is_some_and(|row| row.matches("10,000:").count() == 1), "{row:?}");
}

#[test]
fn slices_that_were_disturbed_and_counted_are_red() {
    let mut files = synthetic::twenty();
    files[0].blocks[0].guards.push("strangers used 20 % of a CPU".into());
    let markdown = Report::new(&files).markdown();
    assert!(markdown.contains("red: get-json-64: 1 of 420 slices were disturbed"), "{markdown}");
}

#[test]
fn one_block_has_no_interval_and_no_rank() {
    let mut files = synthetic::twenty();
    for verdict in &mut files[0].verdicts {
        verdict.ratio.low = verdict.ratio.estimate;
        verdict.ratio.high = verdict.ratio.estimate;
        verdict.decision = peregrine_lab_model::verdict::Decision::CannotTell;
    }
    let markdown = Report::new(&files).markdown();
    assert!(markdown.contains("(too few blocks for an interval): cannot tell"), "{markdown}");
    assert!(!markdown.contains("| 1 | peregrine |"), "nobody is ranked");
}

#[test]
fn who_is_not_told_from_the_reference_shares_its_rank() {
    let mut files = synthetic::twenty();
    for verdict in &mut files[0].verdicts {
        verdict.decision = peregrine_lab_model::verdict::Decision::CannotTell;
    }
    let markdown = Report::new(&files).markdown();
    let ranked = markdown.lines().filter(|line| line.starts_with("| 1 | ")).count();
    assert_eq!(ranked, 20, "{markdown}");
}

#[test]
fn many_verdicts_are_folded_and_none_is_lost() {
    let mut files = synthetic::twenty();
    assert!(!Report::new(&files).html().contains("11 more: 11 slower"));
    for connections in [256, 1500] {
        let mut more = files[0].clone();
        more.plan.connections = connections;
        files.push(more);
    }
    let page = Report::new(&files).html();
    assert_eq!(page.matches("11 more: 11 slower").count(), 3);
    assert_eq!(page.matches("the server CPU per request of peregrine").count(), 3 * 19);
}

#[test]
fn nobody_is_called_faster_by_memory() {
    let markdown = Report::new(&synthetic::page::reproduction()).markdown();
    let line = markdown.lines().find(|line| line.contains("the peak memory of hyper")).unwrap();
    assert!(line.ends_with(": more"), "{line}");
}

#[test]
fn the_forest_alone_is_well_formed_and_says_what_it_leaves_out() {
    for files in [synthetic::one(), synthetic::five(), hostile(), Vec::new()] {
        let picture = Report::new(&files).forest_svg();
        svg::check(&picture).unwrap();
        assert!(!picture.contains("var("), "{picture}");
    }
    let mut files = synthetic::twenty();
    for connections in [256, 1500] {
        let mut more = files[0].clone();
        more.plan.connections = connections;
        files.push(more);
    }
    let picture = Report::new(&files).forest_svg();
    assert_eq!(picture.matches("<title>").count(), 40);
    assert!(picture.contains("… and 20 more rows in the report"));
    assert!(picture.contains("Server CPU time per request against peregrine, less is better"));
}

#[test]
fn the_report_is_a_function_of_what_is_written_in_the_files() {
    let files = synthetic::five();
    let read: Vec<RunFile> =
        files.iter().map(|file| RunFile::read(&file.write()).unwrap()).collect();
    assert_eq!(Report::new(&files).html(), Report::new(&read).html());
}

#[test]
fn every_picture_is_well_formed() {
    for files in [synthetic::one(), synthetic::five(), synthetic::twenty(), hostile()] {
        let page = Report::new(&files).html();
        let pictures = svg::pictures(&page);
        assert!(pictures.len() >= 6, "only {} pictures", pictures.len());
        for picture in pictures {
            if let Err(error) = svg::check(picture) {
                panic!("{error} in {picture}");
            }
        }
    }
}

#[test]
fn the_page_stands_alone() {
    let page = Report::new(&synthetic::five()).html();
    for outside in [" src=", "@import", "url(", "<link", "<iframe", "fetch(", "XMLHttpRequest"] {
        assert!(!page.contains(outside), "the page has {outside}");
    }
    assert!(include_str!("../../src/script.js").lines().count() <= 150);
}

const NASTY: &str = "<script>alert('x')</script>\"&|`*";

/// A run in which every text that comes from outside tries to be markup.
fn hostile() -> Vec<RunFile> {
    let mut text =
        synthetic::five().iter().map(|file| file.write()).collect::<Vec<_>>().join("\u{1e}");
    let nasty = serde_json_text(NASTY);
    for word in
        ["actix-web", "get-json", "timeout", "wrong status", "loopback, MTU 65536", "lab, io_uring"]
    {
        text = text.replace(word, &nasty);
    }
    let mut files: Vec<RunFile> =
        text.split('\u{1e}').map(|text| RunFile::read(text).expect("still a run file")).collect();
    files.extend(synthetic::page::reproduction());
    for file in &mut files {
        for sentence in &mut file.beside {
            *sentence = NASTY.into();
        }
        for operation in &mut file.operations {
            operation.operation = NASTY.into();
            operation.mode = NASTY.into();
            operation.contender = format!("{NASTY}{}", operation.contender);
        }
        for contender in &mut file.contenders {
            contender.skipped = contender.skipped.as_ref().map(|_| format!("{NASTY}\n{NASTY}"));
        }
        file.plan.description = NASTY.into();
        file.machine.cpu = NASTY.into();
        file.machine.kernel = NASTY.into();
        file.machine.governor = NASTY.into();
        file.tool.commit = NASTY.into();
        file.tool.command = vec![NASTY.into()];
        for check in &mut file.checks {
            check.name = NASTY.into();
            check.detail = NASTY.into();
        }
        for claim in &mut file.claims {
            claim.claim = NASTY.into();
            claim.as_published = Some(NASTY.into());
            claim.detail = NASTY.into();
            claim.source = format!("javascript:{NASTY}");
        }
        for audit in &mut file.audits {
            audit.subject = NASTY.into();
            audit.detail = NASTY.into();
        }
        for excluded in &mut file.excluded {
            excluded.reason = NASTY.into();
        }
        for verdict in &mut file.verdicts {
            verdict.note = NASTY.into();
        }
        for contender in &mut file.contenders {
            contender.version = NASTY.into();
            contender.lock_sha256 = NASTY.into();
            contender.run = vec![NASTY.into()];
            contender.environment = [(NASTY.into(), NASTY.into())].into();
        }
    }
    files
}

fn serde_json_text(text: &str) -> String {
    text.replace('"', "\\\"")
}

#[test]
fn no_text_from_a_run_file_becomes_markup() {
    let report = Report::new(&hostile());
    let page = report.html();
    assert!(page.contains("&lt;script&gt;alert("), "the hostile name is shown as text");
    assert_eq!(page.matches("<script").count(), 1, "the page's own script is the only one");
    let is_inside_tag = page.split('<').skip(1).any(|tag| {
        let attributes = tag.split('>').next().unwrap_or_default();
        attributes.contains("alert(") && !attributes.contains("&lt;script&gt;")
    });
    assert!(!is_inside_tag, "a text has left its attribute");
    let markdown = report.markdown();
    assert!(!markdown.contains("<script"), "Markdown passes HTML through");
    let columns = |line: &str| {
        let unescaped = line.replace("\\\\", "").replace("\\|", "");
        unescaped.matches('|').count()
    };
    let mut previous: Option<usize> = None;
    for line in markdown.lines() {
        let here = line.starts_with('|').then(|| columns(line));
        if let (Some(previous), Some(here)) = (previous, here) {
            assert_eq!(previous, here, "a text has left its cell: {line}");
        }
        previous = here;
    }
}

#[test]
fn a_tail_is_hidden_with_fewer_than_a_thousand_samples_beyond() {
    let mut files = synthetic::one();
    let hidden = Report::new(&files).markdown();
    assert!(hidden.contains("| p99.9, ms |"));
    let samples: u64 =
        files[0].blocks.iter().filter_map(|block| Some(block.latency.as_ref()?.count())).sum();
    assert!(samples >= 1_000_000 && !hidden.contains("| hidden |"), "{samples} samples");
    files[0].blocks.truncate(2);
    assert!(Report::new(&files).markdown().contains("| hidden |"));
}

#[test]
fn zero_errors_are_shown_as_zero() {
    let markdown = Report::new(&synthetic::one()).markdown();
    let table = markdown.split("## Errors by kind").nth(1).unwrap();
    let row = table.lines().find(|line| line.contains("peregrine")).unwrap();
    assert_eq!(row.matches("| 0 ").count(), 6, "{row}");
}

#[test]
fn wrong_answers_are_never_ranked_or_called_fast() {
    let mut files = synthetic::five();
    let markdown = Report::new(&files).markdown();
    assert!(markdown.contains("**flaky** is not judged"));
    let row = markdown.lines().find(|line| line.contains("flaky **ERRORS**")).unwrap();
    assert!(row.starts_with("| – |"), "{row}");
    // A run file that judges it all the same is not publishable.
    for verdict in files.iter_mut().flat_map(|file| &mut file.verdicts) {
        verdict.decision = peregrine_lab_model::verdict::Decision::Faster;
    }
    let page = Report::new(&files).markdown();
    assert!(page.contains("**red: ") && page.contains("flaky is judged in spite of its errors"));
}

#[test]
fn runs_of_two_machines_in_one_report_are_told_apart() {
    let first = synthetic::twenty();
    let mut second = first.clone();
    second[0].run = "elsewhere".to_owned();
    second[0].machine.cpu = "Another processor".to_owned();
    let markdown = Report::new(&[first.clone(), second].concat()).markdown();
    let told = format!(
        "amber: {} on {}, elsewhere on Another processor: figures of different machines are no \
         comparison",
        first[0].run, first[0].machine.cpu
    );
    assert!(markdown.contains(&told), "{markdown}");
    assert!(!markdown.contains("on the one described at the end"));
    let alone = Report::new(&first).markdown();
    assert!(!alone.contains("different machines"));
    assert!(alone.contains("on the one described at the end"));
}

#[test]
fn a_failed_check_is_red_and_a_quiet_run_is_green() {
    let mut files = synthetic::twenty();
    files[0].machine.is_virtual = false;
    files[0].machine.stolen_share = Some(0.001);
    assert!(Report::new(&files).markdown().contains("**green: May be published**"));
    files[0].checks[0].outcome = Outcome::Failed;
    assert!(Report::new(&files).markdown().contains("**red: "));
}

#[test]
fn the_client_bound_are_labelled_in_their_rows() {
    let markdown = Report::new(&synthetic::five()).markdown();
    let section = markdown.split("\n## https-json").nth(1).unwrap();
    let row = section.lines().find(|line| line.contains("| hyper")).unwrap();
    assert!(row.contains("**CLIENT-BOUND**"), "{row}");
}

#[test]
fn figures_that_are_missing_or_absurd_break_no_picture() {
    let mut files = synthetic::five();
    for verdict in files.iter_mut().flat_map(|file| &mut file.verdicts) {
        verdict.ratio = Ratio { estimate: f64::NAN, low: 0.0, high: f64::INFINITY };
    }
    for (index, block) in files.iter_mut().flat_map(|file| &mut file.blocks).enumerate() {
        match index % 5 {
            0 => block.wall_ns = 0,
            1 => block.requests = 0,
            2 => block.server_cpu_ns = u64::from(u32::MAX) << 12,
            3 => block.latency = None,
            _ => block.server_user_ns = None,
        }
    }
    for again in files.iter_mut().filter_map(|file| file.again.as_mut()) {
        again.band = f64::NAN;
    }
    let report = Report::new(&files);
    for picture in svg::pictures(&report.html()) {
        svg::check(picture).unwrap();
    }
    let markdown = report.markdown();
    assert!(markdown.contains("too few blocks have both figures"));
    assert!(markdown.contains("the A/A arm has no result"));
    for word in ["NaN", "inf ", "infx"] {
        assert!(!markdown.contains(word), "{word}");
    }
}

#[test]
fn open_loops_alone_are_compared_at_the_highest_rate_that_all_kept() {
    let files = &synthetic::five()[1..7];
    let markdown = Report::new(files).markdown();
    assert!(markdown.contains("All contenders at 110,000 requests/s"), "{markdown}");
    assert!(markdown.contains("### Latency against offered load"));
}

#[test]
fn a_report_on_nothing_says_so() {
    let report = Report::new(&[]);
    assert!(report.markdown().contains("nothing was measured"));
    assert!(report.html().contains("Must not be published"));
    let bare = RunFile::new("stopped at once");
    assert!(Report::new(&[bare]).html().contains("nothing was measured"));
}

#[test]
fn packed_runs_are_reported_as_the_runs_are() {
    let reproduction = synthetic::page::reproduction();
    for files in [synthetic::one(), synthetic::five(), synthetic::twenty(), reproduction] {
        let packed = pack::read(&pack::write(&files).unwrap()).unwrap();
        let (before, after) = (Report::new(&files), Report::new(&packed));
        assert_eq!(before.markdown(), after.markdown());
        assert_eq!(before.html(), after.html());
        assert_eq!(before.forest_svg(), after.forest_svg());
    }
}

#[test]
fn short_and_uneven_runs_are_reported_packed_as_they_are() {
    for seed in 0..200 {
        let files = [synthetic::uneven(seed)];
        let packed = [files[0].clone().packed()];
        let (before, after) = (Report::new(&files), Report::new(&packed));
        assert_eq!(before.markdown(), after.markdown(), "seed {seed}");
        assert_eq!(before.html(), after.html(), "seed {seed}");
    }
}
