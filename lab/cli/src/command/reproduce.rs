//! `lab reproduce`: a published page, tried again as published and corrected.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use peregrine_lab_audit::claim::Document;
use peregrine_lab_audit::finding::Severity;
use peregrine_lab_audit::read;
use peregrine_lab_audit::report::Report as Audit;
use peregrine_lab_contender::{Recipe, State};
use peregrine_lab_host::interrupt::is_interrupted;
use peregrine_lab_model::RunFile;
use peregrine_lab_model::check::Outcome;
use peregrine_lab_model::claim::Audit as Audited;
use peregrine_lab_reproduce::{
    self as pages, Available, Budget, Observed, PairJudged, Planned, PlannedTrial, Program, Trial,
};
use peregrine_lab_run::facts::{Facts, now_unix_s};
use peregrine_lab_run::progress::Progress as _;
use peregrine_lab_run::session;
use peregrine_lab_run::stage::Stage;
use serde::{Deserialize, Serialize};

use super::report;
use crate::bars::Bars;
use crate::bench;
use crate::exit::{Exit, Failure};
use crate::options::Reproduce;
use crate::places::Places;
use crate::trial;

/// Contenders that no page has, and that every table shall be seen beside.
const JOINED: [&str; 2] = ["peregrine", "peregrine-tokio"];

/// What came of one trial, kept so that a broken run goes on behind it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct TrialResult {
    pub(crate) observed: Vec<Observed>,
    pub(crate) judged: Vec<PairJudged>,
    pub(crate) files: Vec<RunFile>,
    pub(crate) is_partial: bool,
}

pub(super) fn reproduce(options: &Reproduce, places: &Places) -> Result<Exit, Failure> {
    let path = places.claim(&options.claim);
    let page = read::file(&path).map_err(Failure::usage)?;
    let audit = Audit::of(&page);
    println!("{}\npaper check: {}\n", page.source.title, audit.summary());
    let recipes = bench::recipes(places, &["all".to_owned()])?;
    let wanted: Vec<Recipe> = recipes.into_iter().filter(|one| is_wanted(&page, one)).collect();
    if !options.bench.no_build {
        bench::build(&wanted, places)?;
    }
    let available = available(&wanted, places);
    let (program, planned) = plan(&page, &available, options.budget);
    tell_plan(&program, &planned);
    let out = options.out.clone().unwrap_or_else(|| PathBuf::from("runs").join(&page.id));
    fs::create_dir_all(&out).map_err(|error| Failure::file(out.display(), &error))?;
    let (stage, facts) = bench::stage(&options.bench, places)?;
    let began = Instant::now();
    let all = run(
        &Setting { options, places, stage, recipes: wanted, out: &out },
        &facts,
        &program,
        &planned,
    )?;
    let mut files = all.files;
    let mut summary = page_file(&page, &path, &audit, &facts);
    summary.claims = pages::conclude(&page, &program, &all.observed, &all.judged);
    summary.beside = pages::stand_ins(&page, &program, &all.observed, &all.judged)
        .into_iter()
        .map(|stand_in| stand_in.sentence)
        .collect();
    summary.is_partial = all.is_partial;
    summary.took_s = began.elapsed().as_secs_f64();
    session::write_file(&out, &summary)?;
    for claim in &summary.claims {
        println!("{:18} {}", claim.finding.words(), claim.claim);
        println!("{:18} {}", "", claim.detail);
    }
    for sentence in &summary.beside {
        println!("beside: {sentence}");
    }
    files.insert(0, summary);
    for path in report::write(&files, &out, report::USUAL)? {
        println!("{}", path.display());
    }
    Ok(if all.is_partial { Exit::Interrupted } else { Exit::Right })
}

/// What every trial needs.
pub(crate) struct Setting<'a> {
    pub(crate) options: &'a Reproduce,
    pub(crate) places: &'a Places,
    pub(crate) stage: Stage,
    pub(crate) recipes: Vec<Recipe>,
    pub(crate) out: &'a Path,
}

fn is_wanted(page: &Document, recipe: &Recipe) -> bool {
    let is_named = page.contenders.iter().any(|one| one.id == recipe.name);
    let stands_in = |one: &peregrine_lab_audit::claim::Contender| {
        one.stand_in.as_ref().is_some_and(|stand_in| stand_in.id == recipe.name)
    };
    is_named || JOINED.contains(&recipe.name.as_str()) || page.contenders.iter().any(stands_in)
}

fn available(recipes: &[Recipe], places: &Places) -> Vec<Available> {
    recipes
        .iter()
        .map(|recipe| {
            let state = recipe.state(&places.target);
            let version = recipe.identity(&places.target).version;
            Available {
                id: recipe.name.clone(),
                version: (!version.is_empty()).then_some(version),
                lacks: recipe.lacks.clone(),
                state: match state {
                    State::Ready { .. } => pages::State::Ready,
                    State::NotObtainable { reason } => pages::State::NotObtainable(reason),
                    State::Skipped { reason } => pages::State::Skipped(reason),
                    State::NotBuilt => pages::State::Skipped("it is not built".to_owned()),
                    State::BuildFailed { reason, .. } => {
                        pages::State::Skipped(format!("it did not build: {reason}"))
                    }
                },
            }
        })
        .collect()
}

fn plan(page: &Document, available: &[Available], budget: Duration) -> (Program, Planned) {
    let mut program = pages::program(page, available);
    for joined in available.iter().filter(|one| JOINED.contains(&one.id.as_str())) {
        program.join(joined);
    }
    let planned = pages::plan(&program, &Budget::seconds(budget.as_secs_f64()));
    for dropped in &planned.dropped {
        program.remove_trial(&dropped.scenario, &dropped.reason);
    }
    (program, planned)
}

fn tell_plan(program: &Program, planned: &Planned) {
    for trial in &planned.trials {
        println!("{trial}");
    }
    for unrepeated in &program.unrepeated {
        println!("{}: not repeated: {}", unrepeated.scenario, unrepeated.reason);
    }
    println!("about {:.0} minutes in all\n", planned.seconds / 60.0);
}

fn run(
    setting: &Setting<'_>,
    facts: &Facts,
    program: &Program,
    planned: &Planned,
) -> Result<TrialResult, Failure> {
    let mut all = TrialResult::default();
    let mut bars = Bars::new();
    let mut kept_files = Vec::new();
    for design in &planned.trials {
        let Some(trial) = program.trial(&design.trial) else { continue };
        let kept = setting.out.join(format!("{}.trial", trial.id));
        let key = serde_json::to_string(&(trial, design)).map_err(Failure::usage)?;
        let result = match kept_result(&kept, &key) {
            Some(result) => {
                bars.say(&format!("{}: finished before", trial.id));
                result
            }
            None => one_trial(setting, facts, (trial, design), &mut bars)?,
        };
        all.is_partial |= result.is_partial;
        for file in &result.files {
            session::write_file(setting.out, file)?;
        }
        if !result.is_partial {
            let text = serde_json::to_string(&(&key, &result)).map_err(Failure::usage)?;
            fs::write(&kept, text).map_err(|error| Failure::file(kept.display(), &error))?;
            kept_files.push(kept);
        }
        all.observed.extend(result.observed);
        all.judged.extend(result.judged);
        all.files.extend(result.files);
        if all.is_partial || is_interrupted() {
            all.is_partial = true;
            return Ok(all);
        }
    }
    for kept in kept_files {
        // The same command shall measure anew.
        fs::remove_file(&kept).map_err(|error| Failure::file(kept.display(), &error))?;
    }
    Ok(all)
}

/// What an earlier, broken run of the same plan found.
fn kept_result(path: &Path, key: &str) -> Option<TrialResult> {
    let text = fs::read_to_string(path).ok()?;
    let (found, result): (String, TrialResult) = serde_json::from_str(&text).ok()?;
    (found == key).then_some(result)
}

fn one_trial(
    setting: &Setting<'_>,
    facts: &Facts,
    (trial, design): (&Trial, &PlannedTrial),
    bars: &mut Bars,
) -> Result<TrialResult, Failure> {
    let mut result = if trial.is_operations() {
        trial::operations(setting, facts, trial)?
    } else {
        trial::load(setting, facts, (trial, design), bars)?
    };
    for file in &mut result.files {
        file.run = format!("{}-{}", trial.id, file.run);
    }
    Ok(result)
}

/// A run file about the page itself: its paper check, and later its claims.
fn page_file(page: &Document, path: &Path, audit: &Audit, facts: &Facts) -> RunFile {
    let mut file = RunFile::new("claims");
    file.started_unix_s = now_unix_s();
    file.tool = facts.tool.clone();
    file.machine = facts.machine.clone();
    file.plan.scenario.clone_from(&page.id);
    file.plan.description.clone_from(&page.source.title);
    let source = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    file.audits = audit
        .findings
        .iter()
        .map(|finding| Audited {
            source: source.clone(),
            subject: finding.concerns.join(", "),
            test: finding.check.name().to_owned(),
            published: String::new(),
            bound: String::new(),
            outcome: match finding.severity {
                Severity::Impossible => Outcome::Failed,
                Severity::Misleading => Outcome::Warned,
                Severity::Missing => Outcome::Skipped,
                Severity::Note => Outcome::Passed,
            },
            detail: format!("{}: {} {}", finding.severity.word(), finding.summary, finding.detail),
        })
        .collect();
    file
}
