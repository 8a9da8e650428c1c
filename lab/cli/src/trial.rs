//! One table of a published page: run with the page's method, then with the lab's.

use std::collections::BTreeMap;
use std::time::Duration;

use peregrine_lab_contender::Recipe;
use peregrine_lab_host::interrupt::is_interrupted;
use peregrine_lab_load::cross_check::{self, Tool};
use peregrine_lab_load::generator::{self, Plan, Watch};
use peregrine_lab_load::summary::Summary;
use peregrine_lab_model::RunFile;
use peregrine_lab_model::check::Outcome;
use peregrine_lab_reproduce::{
    Client, Corrected, CorrectedFigures, LatencyFigures, Method, Observed, OperationTime,
    PairMeasure, PlannedTrial, Published, PublishedFigures, Trial, judge_pairs,
};
use peregrine_lab_run::arms;
use peregrine_lab_run::facts::Facts;
use peregrine_lab_run::micro;
use peregrine_lab_run::progress::Progress as _;
use peregrine_lab_run::session::{self, Session};
use peregrine_lab_run::stage::Up;
use peregrine_lab_run::verify;
use peregrine_lab_run::wanted::Wanted;
use peregrine_lab_scenario::{Kind, OpenRate, Scenario};

use crate::bars::Bars;
use crate::command::reproduce::{Setting, TrialResult};
use crate::exit::Failure;
use crate::figures::{self, Figure};

/// The router benchmark: one run, all routers.
pub(crate) fn operations(
    setting: &Setting<'_>,
    facts: &Facts,
    trial: &Trial,
) -> Result<TrialResult, Failure> {
    let scenario =
        Scenario::find(&setting.places.scenarios(), &trial.scenario).map_err(Failure::usage)?;
    let Kind::Micro(benchmark) = &scenario.kind else {
        return Err(Failure::usage(format!("{} is no benchmark in a process", scenario.name)));
    };
    eprintln!("{}: the router benchmark ...", trial.id);
    let file = match micro::measure(&scenario, benchmark, facts) {
        Ok(file) => file,
        Err(error) => {
            // The claims about it then say that it was not measured.
            eprintln!("{error}");
            return Ok(TrialResult::default());
        }
    };
    let mut by_router: BTreeMap<&str, Vec<OperationTime>> = BTreeMap::new();
    // A route whose parameters nobody reads is not what pages time.
    for row in file.operations.iter().filter(|row| row.mode == "read") {
        let time =
            OperationTime { case: row.operation.clone(), ns: row.nanoseconds, interval_ns: None };
        by_router.entry(&row.contender).or_default().push(time);
    }
    let observed = by_router
        .into_iter()
        .map(|(router, operations)| Observed {
            trial: trial.id.clone(),
            contender: router.to_owned(),
            operations,
            ..Observed::default()
        })
        .collect();
    Ok(TrialResult { observed, files: vec![file], ..TrialResult::default() })
}

/// A table of requests: as published, then corrected.
pub(crate) fn load(
    setting: &Setting<'_>,
    facts: &Facts,
    (trial, design): (&Trial, &PlannedTrial),
    bars: &mut Bars,
) -> Result<TrialResult, Failure> {
    let Method::Load { published, corrected } = &trial.method else {
        return Ok(TrialResult::default());
    };
    let scenario =
        Scenario::find(&setting.places.scenarios(), &trial.scenario).map_err(Failure::usage)?;
    let recipes: Vec<Recipe> = trial
        .contenders
        .iter()
        .filter_map(|id| setting.recipes.iter().find(|recipe| recipe.name == *id).cloned())
        .collect();
    let mut result = TrialResult {
        observed: recipes
            .iter()
            .map(|recipe| Observed {
                trial: trial.id.clone(),
                contender: recipe.name.clone(),
                ..Observed::default()
            })
            .collect(),
        ..TrialResult::default()
    };
    as_published(setting, (&scenario, &recipes), (trial, published, design), &mut result, bars)?;
    if !result.is_partial {
        as_corrected(
            setting,
            facts,
            (&scenario, &recipes),
            (trial, corrected, design),
            &mut result,
            bars,
        )?;
    }
    Ok(result)
}

/// The page's method: one contender after the other, in the page's order, each with a fresh process.
fn as_published(
    setting: &Setting<'_>,
    (scenario, recipes): (&Scenario, &[Recipe]),
    (trial, published, design): (&Trial, &Published, &PlannedTrial),
    result: &mut TrialResult,
    bars: &mut Bars,
) -> Result<(), Failure> {
    for remark in &published.remarks {
        bars.say(&format!("{}: {remark}", trial.id));
    }
    let runs = u64::from(design.published_runs) * recipes.len() as u64;
    let about = Duration::from_secs_f64(design.published_s * runs as f64);
    bars.begin(&format!("{} as published", trial.id), runs, about);
    for _ in 0..design.published_runs {
        for (place, recipe) in recipes.iter().enumerate() {
            if is_interrupted() {
                result.is_partial = true;
                bars.end();
                return Ok(());
            }
            let run = one_published_run(setting, recipe, scenario, (published, design));
            match run {
                Ok(summary) => add(&mut result.observed[place].published, &summary),
                Err(failure) => bars.say(&format!("{}: {}", recipe.name, failure.text)),
            }
            bars.step();
        }
    }
    bars.end();
    Ok(())
}

fn one_published_run(
    setting: &Setting<'_>,
    recipe: &Recipe,
    scenario: &Scenario,
    (published, design): (&Published, &PlannedTrial),
) -> Result<Summary, Failure> {
    let up = setting.stage.start(recipe, &recipe.name)?;
    if let Some(failures) = verify::failures(&arms::gate(&recipe.name, &up, scenario)?) {
        return Err(Failure::usage(format!("it does not answer rightly:\n  {failures}")));
    }
    let summary = ask(setting, &up, scenario, (published, design));
    up.stop()?;
    summary
}

fn ask(
    setting: &Setting<'_>,
    up: &Up,
    scenario: &Scenario,
    (published, design): (&Published, &PlannedTrial),
) -> Result<Summary, Failure> {
    let exchange = scenario
        .exchange
        .as_ref()
        .ok_or_else(|| Failure::usage(format!("{} asks no server", scenario.name)))?;
    let is_tls = scenario.load.tls.is_some();
    let address = up.address(is_tls);
    let host = format!("localhost:{}", address.port());
    let question = exchange.question(&host, setting.options.bench.seed).map_err(Failure::usage)?;
    let connections = published.connections as usize;
    let cpus = setting.stage.client_cpus();
    let plan = Plan {
        tls: is_tls.then(|| verify::secured(false)),
        connections,
        // wrk's threads are those of the page; the lab's own client has one for each of its CPUs.
        threads: published.threads.map_or(cpus.len().min(connections), |count| count as usize),
        duration: Duration::from_secs_f64(design.published_s),
        warmup: Duration::from_secs_f64(published.warmup_s.min(2.0)),
        timeout: published.timeout_s.map_or(Duration::from_secs(5), Duration::from_secs_f64),
        ..Plan::new(address, question.into())
    };
    let scheme = if is_tls { "https" } else { "http" };
    let url = format!("{scheme}://{address}{}", exchange.wording.target);
    let tool = match published.client {
        Client::Wrk => Some(Tool::Wrk),
        Client::H2load => Some(Tool::H2load),
        Client::Oha => Some(Tool::Oha),
        Client::ClosedLoop { .. } => None,
    };
    if let Some(tool) = tool {
        match cross_check::ask(tool, &plan, &exchange.wording, &url) {
            Ok(summary) => return Ok(summary),
            Err(error) => eprintln!("{}: {error}; the lab's client asks instead", tool.program()),
        }
    }
    let threads = cpus.len().min(connections);
    let plan = Plan { threads, cpus, ..plan };
    let outcome = generator::run(&plan, &Watch::default())
        .map_err(|error| Failure::file("asking", &error))?;
    Ok(Summary::new(&plan, &outcome))
}

/// Adds a run: rates and latencies become means over the runs, errors sums.
fn add(figures: &mut Option<PublishedFigures>, run: &Summary) {
    let all = figures.get_or_insert_with(PublishedFigures::default);
    let before = f64::from(all.runs);
    let mean = |so_far: f64, new: f64| (so_far * before + new) / (before + 1.0);
    let mean_of = |so_far: Option<f64>, new: Option<f64>| match (so_far, new) {
        (Some(so_far), Some(new)) => Some(mean(so_far, new)),
        (None, new) if before == 0.0 => new,
        _ => None,
    };
    let percentile = |percent| run.percentile_ns(percent).map(|ns| ns as f64);
    all.requests_per_s = mean(all.requests_per_s, run.rate);
    all.mean_ns = mean_of(all.mean_ns, run.mean_ns);
    all.p50_ns = mean_of(all.p50_ns, percentile(50.0));
    all.p99_ns = mean_of(all.p99_ns, percentile(99.0));
    let longest = run.max_ns.map(|ns| ns as f64);
    all.max_ns = match (all.max_ns, longest) {
        (Some(one), Some(other)) => Some(one.max(other)),
        (one, other) => one.or(other),
    };
    for (kind, count) in &run.errors {
        let kind = kind.to_lowercase();
        let sum = if kind.contains("timeout") {
            &mut all.timeouts
        } else if ["status", "2xx", "wrong", "body"].iter().any(|word| kind.contains(word)) {
            &mut all.wrong_replies
        } else {
            &mut all.errors
        };
        *sum += count;
    }
    all.runs += 1;
}

/// The lab's method: paired slices, and latency at an equal rate where the page is about latency.
fn as_corrected(
    setting: &Setting<'_>,
    facts: &Facts,
    (scenario, recipes): (&Scenario, &[Recipe]),
    (trial, corrected, design): (&Trial, &Corrected, &PlannedTrial),
    result: &mut TrialResult,
    bars: &mut Bars,
) -> Result<(), Failure> {
    for remark in &corrected.remarks {
        bars.say(&format!("{}: {remark}", trial.id));
    }
    let closed = Wanted {
        connections: vec![corrected.connections as usize],
        blocks: Some(design.blocks as usize),
        slice: Some(Duration::from_secs_f64(design.slice_s)),
        seed: setting.options.bench.seed,
        look: setting.options.bench.look,
        is_noise_tolerated: setting.options.bench.tolerate_noise,
        ..Wanted::new(scenario.clone(), recipes.to_vec())
    };
    let mut wanted = vec![(closed, [PairMeasure::ServerCpu, PairMeasure::Throughput].as_slice())];
    if let Some(share) = corrected.equal_rate_share {
        let open = Wanted {
            scenario: Scenario {
                kind: Kind::Latency { rates: vec![OpenRate::Share(share)] },
                ..scenario.clone()
            },
            blocks: Some(design.rate_blocks.max(2) as usize),
            slice: Some(Duration::from_secs_f64(design.rate_slice_s)),
            ..wanted[0].0.clone()
        };
        let measures =
            [PairMeasure::LatencyMean, PairMeasure::LatencyMedian, PairMeasure::LatencyP99];
        wanted.push((open, measures.as_slice()));
        // The array lives as long as the list only in this scope.
        return measure_all(setting, facts, trial, wanted, result, bars);
    }
    measure_all(setting, facts, trial, wanted, result, bars)
}

fn measure_all(
    setting: &Setting<'_>,
    facts: &Facts,
    trial: &Trial,
    wanted: Vec<(Wanted, &[PairMeasure])>,
    result: &mut TrialResult,
    bars: &mut Bars,
) -> Result<(), Failure> {
    for (wanted, measures) in wanted {
        let mut session = Session { stage: &setting.stage, facts, folder: None, progress: bars };
        let done = session::measure(&mut session, &wanted)?;
        for file in &done.files {
            observe(file, result);
            for &measure in measures {
                judge(file, trial, measure, result);
            }
        }
        result.is_partial |= done.is_partial;
        result.files.extend(done.files);
        if result.is_partial {
            break;
        }
    }
    Ok(())
}

/// Puts the medians of a run file into what was observed.
fn observe(file: &RunFile, result: &mut TrialResult) {
    let is_open = file.plan.schedule.rate_per_s();
    for observed in &mut result.observed {
        let name = observed.contender.clone();
        if file.blocks_of(&name).next().is_none() {
            continue;
        }
        let median = |figure| figures::median(&figures::of(file, &name, figure));
        let corrected = observed.corrected.get_or_insert_with(CorrectedFigures::default);
        corrected.wrong_replies += file.blocks_of(&name).map(|b| b.errors_total()).sum::<u64>();
        if let Some(rate_per_s) = is_open {
            let figures = [Figure::LatencyMean, Figure::LatencyMedian, Figure::LatencyP99];
            if let [Some(mean_ns), Some(p50_ns), Some(p99_ns)] = figures.map(median) {
                corrected.latency = Some(LatencyFigures { rate_per_s, mean_ns, p50_ns, p99_ns });
            }
            continue;
        }
        corrected.server_cpu_ns = median(Figure::ServerCpu);
        corrected.requests_per_s = median(Figure::Throughput);
        corrected.is_client_bound = file.checks.iter().any(|check| {
            check.outcome == Outcome::ClientBound && check.contender.as_ref() == Some(&name)
        });
        let requests: u64 = file.blocks_of(&name).map(|block| block.requests).sum();
        let bytes: u64 = file.blocks_of(&name).map(|block| block.wire_bytes).sum();
        corrected.reply_bytes = (requests > 0).then(|| bytes as f64 / requests as f64);
    }
}

fn judge(file: &RunFile, trial: &Trial, measure: PairMeasure, result: &mut TrialResult) {
    let figure = match measure {
        PairMeasure::ServerCpu => Figure::ServerCpu,
        PairMeasure::Throughput => Figure::Throughput,
        PairMeasure::LatencyMean => Figure::LatencyMean,
        PairMeasure::LatencyMedian => Figure::LatencyMedian,
        PairMeasure::LatencyP99 => Figure::LatencyP99,
    };
    let Some(band) = figures::band(file, figure) else { return };
    let values: BTreeMap<String, Vec<f64>> = file
        .contenders
        .iter()
        .filter(|one| file.blocks_of(&one.name).next().is_some())
        .map(|one| (one.name.clone(), figures::of(file, &one.name, figure)))
        .collect();
    for pairs in [&trial.pairs, &trial.joined] {
        let judged = judge_pairs(&trial.id, measure, pairs, &values, band, file.plan.seed);
        result.judged.extend(judged);
    }
}
