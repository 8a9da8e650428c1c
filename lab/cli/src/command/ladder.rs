//! `lab ladder`: the highest rate that keeps a promise.

use peregrine_lab_contender::State;
use peregrine_lab_run::ladder::{Climb, Promise, climb};

use crate::bars::Bars;
use crate::bench;
use crate::exit::{Exit, Failure};
use crate::options::Ladder;
use crate::places::{Asked, Places};

pub(super) fn ladder(options: &Ladder, places: &Places) -> Result<Exit, Failure> {
    let promise = Promise::parse(&options.slo).map_err(Failure::usage)?;
    let scenario = places.find_scenario(&options.scenario, Asked::default())?;
    let recipes = bench::recipes(places, std::slice::from_ref(&options.contender))?;
    let [recipe] = &recipes[..] else {
        return Err(Failure::usage("a ladder is climbed by one contender"));
    };
    if !options.bench.no_build {
        bench::build(&recipes, places)?;
    }
    if let State::Ready { .. } = recipe.state(&places.target) {
    } else {
        let text = format!("{}: {}", recipe.name, recipe.state(&places.target));
        return Err(Failure { exit: Exit::Unfit, text });
    }
    let (stage, _) = bench::stage(&options.bench, places)?;
    let levels = (promise, options.concurrency);
    let found = climb(&stage, recipe, &scenario, levels, options.duration, &mut Bars::new())?;
    tell(options, &found);
    Ok(match (found.rate, found.is_client_bound) {
        (_, true) => Exit::ClientBound,
        (Some(_), false) => Exit::Right,
        (None, false) => Exit::Inconclusive,
    })
}

fn tell(options: &Ladder, found: &Climb) {
    println!(
        "{}, {}, {} connections; open loops (Poisson), {} s each; a closed loop reaches {:.0}/s",
        options.contender,
        options.scenario,
        options.concurrency,
        options.duration.as_secs_f64(),
        found.capacity
    );
    println!("{:>12}  {:>12}  {:>10}  kept", "rate/s", "latency", "CPU/request");
    for rung in &found.rungs {
        let latency = rung.latency_ns.map_or_else(
            || "too few".to_owned(),
            |latency| format!("{:.3} ms", latency as f64 / 1e6),
        );
        let word = match (rung.is_kept, rung.is_client_bound) {
            (true, _) => "yes",
            (false, true) => "no, CLIENT-BOUND",
            (false, false) => "no",
        };
        println!("{:>12.0}  {latency:>12}  {:>8.2} us  {word}", rung.rate, rung.server_us);
    }
    match found.rate {
        Some(rate) => println!("{} holds up to {rate:.0} requests/s", options.slo),
        None => println!("{} held at no rate that was tried", options.slo),
    }
    if found.is_client_bound {
        println!("CLIENT-BOUND: the client was late itself; the server may do more");
    }
}
