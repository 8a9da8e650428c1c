//! `lab run`: contenders under scenarios, to run files and a report.

use peregrine_lab_host::interrupt::is_interrupted;
use peregrine_lab_model::RunFile;
use peregrine_lab_model::check::Outcome;
use peregrine_lab_model::histogram::Histogram;
use peregrine_lab_model::plan::{Design, Schedule};
use peregrine_lab_model::verdict::{Measure, Ratio};
use peregrine_lab_run::micro;
use peregrine_lab_run::session::{self, Done, Session};
use peregrine_lab_run::wanted::Wanted;
use peregrine_lab_scenario::{Kind, OpenRate, Scenario};

use super::report;
use crate::bars::Bars;
use crate::bench;
use crate::exit::{Exit, Failure};
use crate::options::Run;
use crate::places::{Asked, Places};

/// The fewest samples beyond a percentile for it to be told.
const BEYOND_MIN: u64 = 30;

pub(super) fn run(options: &Run, places: &Places) -> Result<Exit, Failure> {
    let (scenarios, beside) = scenarios(options, places)?;
    let recipes = bench::recipes(places, &options.contenders)?;
    if !options.bench.no_build {
        bench::build(&recipes, places)?;
    }
    let (stage, facts) = bench::stage(&options.bench, places)?;
    let mut bars = Bars::new();
    let mut all = Done::default();
    let count = scenarios.len() as u32;
    for scenario in scenarios {
        if let Kind::Micro(benchmark) = &scenario.kind {
            let file = micro::measure(&scenario, benchmark, &facts)?;
            std::fs::create_dir_all(&options.out)
                .map_err(|error| Failure::file(options.out.display(), &error))?;
            session::write_file(&options.out, &file)?;
            all.files.push(file);
            continue;
        }
        let wanted = Wanted {
            connections: options.concurrency.clone(),
            design: if options.repeats.is_some() { Design::Separate } else { Design::Paired },
            blocks: options.repeats.or(options.blocks),
            slice: options.duration,
            warmup: options.warmup,
            look: options.bench.look,
            budget: options.budget.map(|budget| budget / count),
            seed: options.bench.seed,
            is_noise_tolerated: options.bench.tolerate_noise,
            reference: options.reference.clone(),
            effect_min: options.min_effect,
            beside: beside.clone(),
            ..Wanted::new(scenario, recipes.clone())
        };
        let mut session = Session {
            stage: &stage,
            facts: &facts,
            folder: Some(&options.out),
            progress: &mut bars,
        };
        let done = session::measure(&mut session, &wanted)?;
        all.files.extend(done.files);
        all.refused.extend(done.refused);
        all.unmeasured.extend(done.unmeasured);
        all.is_voided |= done.is_voided;
        if done.is_partial || is_interrupted() {
            all.is_partial = true;
            break;
        }
    }
    for file in &all.files {
        tell(file);
    }
    if all.files.is_empty() && all.is_partial {
        eprintln!("interrupted before anything was measured");
    } else {
        for path in report::write(&all.files, &options.out, report::USUAL)? {
            println!("{}", path.display());
        }
    }
    Ok(exit(&all))
}

/// What is asked, each in a run of its own, and what beside each of them.
fn scenarios(options: &Run, places: &Places) -> Result<(Vec<Scenario>, Option<Scenario>), Failure> {
    let (is_tls, is_http2, streams) = (options.tls, options.http2, options.streams);
    let asked = Asked { is_tls, is_http2, streams };
    let rates: Vec<OpenRate> = options.rates.iter().copied().map(OpenRate::PerSecond).collect();
    let mut scenarios = Vec::with_capacity(options.scenarios.len());
    for name in &options.scenarios {
        let scenario = places.find_scenario(name, asked)?;
        scenarios.push(match options.open || !rates.is_empty() {
            true => scenario.opened(&rates).map_err(Failure::usage)?,
            false => scenario,
        });
    }
    let beside = options.beside.as_ref().map(|name| places.find_scenario(name, asked));
    Ok((scenarios, beside.transpose()?))
}

/// The headline of a run file in some lines.
pub(super) fn tell(file: &RunFile) {
    let plan = &file.plan;
    let rate = match plan.schedule {
        Schedule::Poisson { rate_per_s } => Some(rate_per_s),
        _ => None,
    };
    let offered = rate.map_or(String::new(), |rate| format!(", {rate:.0} requests/s offered"));
    println!("\n{}, {}{offered}, against {}:", plan.scenario, plan.level(), plan.reference);
    for contender in &file.contenders {
        let costs: Vec<f64> = file
            .blocks_of(&contender.name)
            .filter_map(|block| Some(block.server_ns_per_request()? / 1e3))
            .collect();
        let verdict = file.verdicts.iter().find(|verdict| {
            verdict.contender == contender.name && verdict.measure == Measure::ServerCpu
        });
        let word = match (&contender.skipped, verdict) {
            (Some(reason), _) => format!("not measured: {}", first_line(reason)),
            (None, Some(verdict)) => format!(
                "x {:.3} ({:.3} to {:.3}) {} {}",
                verdict.ratio.estimate,
                verdict.ratio.low,
                verdict.ratio.high,
                verdict.decision.words(),
                verdict.note
            ),
            (None, None) if contender.name == plan.reference => "the reference".to_owned(),
            (None, None) => String::new(),
        };
        let cost = match costs.is_empty() {
            true => "        -".to_owned(),
            false => format!("{:6.2} us", median(costs)),
        };
        println!("  {:24} {cost}  {word}", contender.name);
    }
    if rate.is_some() {
        tell_latencies(file);
    }
    if let Some(again) = &file.again {
        println!("  differences up to {:.1} % are noise here (A/A)", again.band * 100.0);
    }
    for check in file
        .checks
        .iter()
        .filter(|check| matches!(check.outcome, Outcome::Failed) || check.name.contains("under"))
    {
        let who = check.contender.as_deref().unwrap_or("the run");
        println!("  {who}: {}: {}", check.name, first_line(&check.detail));
    }
}

/// The percentiles over all blocks, from the intended start, and how they compare.
fn tell_latencies(file: &RunFile) {
    for contender in file.contenders.iter().filter(|one| one.skipped.is_none()) {
        let mut all = Histogram::default();
        let blocks = file.blocks_of(&contender.name);
        blocks.filter_map(|block| block.latency.as_ref()).for_each(|one| all.merge(one));
        let measures = [
            (0.5, "p50", Measure::LatencyMedian),
            (0.99, "p99", Measure::LatencyP99),
            (0.999, "p99.9", Measure::LatencyP999),
        ];
        let columns = measures.map(|(share, name, measure)| {
            let Some(latency) = all.at(share).filter(|_| all.beyond(share) >= BEYOND_MIN) else {
                return format!("{name} too few samples");
            };
            let ratio = file
                .verdicts
                .iter()
                .find(|one| one.contender == contender.name && one.measure == measure)
                .map(|one| one.ratio)
                .filter(Ratio::is_known);
            let ratio = ratio.map_or(String::new(), |ratio| {
                format!(" x {:.3} ({:.3} to {:.3})", ratio.estimate, ratio.low, ratio.high)
            });
            format!("{name} {:.3} ms{ratio}", latency as f64 / 1e6)
        });
        println!("  {:24} {}", contender.name, columns.join(", "));
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    }
}

fn exit(done: &Done) -> Exit {
    let has_failed = |file: &RunFile| file.checks.iter().any(|c| c.outcome == Outcome::Failed);
    if done.is_partial {
        Exit::Interrupted
    } else if done.is_voided {
        Exit::Unfit
    } else if !done.refused.is_empty() || done.files.iter().any(has_failed) {
        Exit::Wrong
    } else if !done.unmeasured.is_empty() {
        Exit::Inconclusive
    } else {
        Exit::Right
    }
}
