//! `lab verify`: does a contender or a URL answer rightly?

use std::net::{SocketAddr, ToSocketAddrs};

use peregrine_lab_contender::State;
use peregrine_lab_load::question::{Question, Wording};
use peregrine_lab_model::check::{Check, Outcome};
use peregrine_lab_run::{arms, conduct, verify};
use peregrine_lab_scenario::{Kind, Scenario};

use crate::bench;
use crate::exit::{Exit, Failure};
use crate::options::Verify;
use crate::places::{Asked, Places};

pub(super) fn verify(options: &Verify, places: &Places) -> Result<Exit, Failure> {
    let checks = match options.subject.starts_with("http://") {
        true => url(options, places)?,
        false => contender(options, places)?,
    };
    for check in &checks {
        println!("{:12} {}: {}", check.outcome.words(), check.name, check.detail);
    }
    let count = |outcome| checks.iter().filter(|check| check.outcome == outcome).count();
    println!(
        "{}: {} passed, {} warned, {} failed",
        options.subject,
        count(Outcome::Passed),
        count(Outcome::Warned),
        count(Outcome::Failed)
    );
    Ok(if count(Outcome::Failed) > 0 { Exit::Wrong } else { Exit::Right })
}

fn scenarios(options: &Verify, places: &Places) -> Result<Vec<Scenario>, Failure> {
    if !options.scenario.is_empty() {
        let named = options.scenario.iter();
        return named.map(|name| places.find_scenario(name, asked(options))).collect();
    }
    let all = Scenario::all(&places.scenarios()).map_err(Failure::usage)?;
    let asking = all.into_iter().filter(|scenario| !matches!(scenario.kind, Kind::Micro(_)));
    // Of all scenarios, those that HTTP/2 has no form of are left out.
    let asking = asking.filter_map(|scenario| match options.http2 {
        true => scenario.over_http2(None).ok(),
        false => Some(scenario),
    });
    if !options.tls {
        return Ok(asking.collect());
    }
    asking.map(Scenario::over_tls).collect::<Result<_, _>>().map_err(Failure::usage)
}

fn asked(options: &Verify) -> Asked {
    Asked { is_tls: options.tls, is_http2: options.http2, streams: None }
}

fn contender(options: &Verify, places: &Places) -> Result<Vec<Check>, Failure> {
    let recipes = bench::recipes(places, std::slice::from_ref(&options.subject))?;
    let [recipe] = &recipes[..] else {
        return Err(Failure::usage("one contender is verified at a time"));
    };
    if !options.bench.no_build {
        bench::build(&recipes, places)?;
    }
    let state = recipe.state(&places.target);
    if !matches!(state, State::Ready { .. }) {
        return Err(Failure { exit: Exit::Unfit, text: format!("{}: {state}", recipe.name) });
    }
    let (stage, _) = bench::stage(&options.bench, places)?;
    let up = stage.start(recipe, &recipe.name)?;
    let mut checks = Vec::new();
    let mut has_conduct = false;
    for scenario in scenarios(options, places)? {
        if matches!(scenario.kind, Kind::Micro(_)) {
            continue;
        }
        let load = &scenario.load;
        if let Some(reason) = recipe.lacks(&scenario.base, load.tls.is_some(), load.is_http2) {
            checks.push(skipped(&scenario.name, &reason));
            continue;
        }
        let all = arms::gate(&recipe.name, &up, &scenario)?;
        let (conduct, answers): (Vec<Check>, Vec<Check>) =
            all.into_iter().partition(|check| check.name.starts_with("conduct: "));
        checks.extend(answers.into_iter().map(|check| within(&scenario.name, check)));
        if !has_conduct {
            checks.extend(conduct);
            has_conduct = true;
        }
    }
    up.stop()?;
    Ok(checks)
}

/// A server that runs already: its conduct, with the URL's own target, and those scenarios that
/// were named.
fn url(options: &Verify, places: &Places) -> Result<Vec<Check>, Failure> {
    if options.tls || options.http2 {
        return Err(Failure::usage("a URL is asked as it says; leave out --tls and --http2"));
    }
    let rest = options.subject.trim_start_matches("http://");
    let (authority, target) = match rest.find('/') {
        Some(slash) => rest.split_at(slash),
        None => (rest, "/"),
    };
    let address: SocketAddr = authority
        .to_socket_addrs()
        // RFC 9110 §4.2.1: without a port, http means port 80.
        .or_else(|_| format!("{authority}:80").to_socket_addrs())
        .ok()
        .and_then(|mut addresses| addresses.next())
        .ok_or_else(|| {
            Failure::usage(format!("{authority} is no address such as 127.0.0.1:8080"))
        })?;
    if !address.ip().is_loopback() {
        let text = format!("{} is not this machine; verify asks loopback only", address.ip());
        return Err(Failure::usage(text));
    }
    let wording =
        Wording { target: target.to_owned(), host: authority.to_owned(), ..Wording::default() };
    let question = Question::new(&wording).map_err(Failure::usage)?;
    let mut checks = conduct::checks(authority, address, &question, false);
    if !options.scenario.is_empty() {
        for scenario in scenarios(options, places)? {
            let door = verify::Door { address, is_tls: false, is_http2: false };
            let answers = verify::scenario(authority, door, &scenario)?;
            checks.extend(answers.into_iter().map(|check| within(&scenario.name, check)));
        }
    }
    Ok(checks)
}

fn within(scenario: &str, check: Check) -> Check {
    Check { name: format!("{scenario}: {}", check.name), ..check }
}

fn skipped(scenario: &str, reason: &str) -> Check {
    Check {
        name: scenario.to_owned(),
        contender: None,
        outcome: Outcome::Skipped,
        detail: reason.to_owned(),
    }
}
