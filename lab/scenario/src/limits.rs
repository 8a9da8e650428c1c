//! What keys may say: names, kinds with their own keys, and the limits of the load generator.

use std::path::Path;

use peregrine_lab_load::generator::{CONNECTIONS_MAX, DEPTH_MAX, REQUESTS_MAX};

use crate::error::Wrong;
use crate::exchange::Exchange;
use crate::keys::{FileKeys, KindKey, LoadKeys};
use crate::scenario::{Kind, Load, Micro, OpenRate};

const SHARES: [f64; 3] = [0.5, 0.8, 0.95];
const FACTOR: f64 = 2.0;
const FACTOR_MAX: f64 = 100.0;
const LEVELS_MAX: usize = 32;

/// Names, titles and the list of published figures.
pub(crate) fn check_names(keys: &FileKeys, file: &str) -> Result<(), Wrong> {
    let is_id = |id: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !id.is_empty() && id.bytes().all(is_plain)
    };
    if !is_id(&keys.name) || keys.name != keys.name.to_lowercase() {
        let cause = format!("{:?} is no name", keys.name);
        return Err(Wrong::new("name", cause, "use lower-case letters, digits and -"));
    }
    if keys.name != file {
        let cause = format!("the file is called {file:?}, the scenario {:?}", keys.name);
        return Err(Wrong::new("name", cause, "give both the same name"));
    }
    for (key, text) in [("title", &keys.title), ("about", &keys.about)] {
        if text.trim().is_empty() {
            return Err(Wrong::new(key, "it is empty", "say what a reader of the report needs"));
        }
    }
    let is_figure = |id: &String| {
        let (page, figure) = id.split_once('/').unwrap_or((id, "all"));
        is_id(page) && is_id(figure)
    };
    if let Some(id) = keys.published.iter().find(|id| !is_figure(id)) {
        let fix = "write a claim file's id, a slash and the id of one of its scenarios";
        return Err(Wrong::new("published", format!("{id:?} names no published figure"), fix));
    }
    Ok(())
}

/// Which exchanges a kind needs.
pub(crate) fn check_exchanges(
    kind: &Kind,
    exchange: Option<&Exchange>,
    probes: &[Exchange],
) -> Result<(), Wrong> {
    if matches!(kind, Kind::Micro(_)) {
        let is_clean = exchange.is_none() && probes.is_empty();
        let fix = "remove [request], [reply] and [[probe]]";
        return match is_clean {
            true => Ok(()),
            false => Err(Wrong::new("request", "a micro benchmark asks no server", fix)),
        };
    }
    let is_websocket = |exchange: &Exchange| exchange.wording.is_websocket;
    let is_for_messages = matches!(kind, Kind::Load | Kind::Latency { .. });
    if !is_for_messages && exchange.into_iter().chain(probes).any(is_websocket) {
        let fix = "say kind = \"load\" or \"latency\", or remove it";
        return Err(Wrong::new("request.websocket", "this kind is about requests", fix));
    }
    let Some(exchange) = exchange else {
        let fix = "add both tables";
        return Err(Wrong::new("request", "a load needs [request] and [reply]", fix));
    };
    if exchange.is_open() {
        let fix = "add one of text, lines, json, json_file, length and upload";
        return Err(Wrong::new("reply", "what is timed needs a body that can be judged", fix));
    }
    if probes.is_empty() {
        let fix = "add a [[probe]] with other values than those that are timed";
        return Err(Wrong::new("probe", "a scenario without probes believes any server", fix));
    }
    let mut names = std::collections::BTreeSet::new();
    match probes.iter().find(|probe| !names.insert(&probe.name)) {
        None => Ok(()),
        Some(probe) => {
            let cause = format!("two are called {:?}", probe.name);
            Err(Wrong::new("probe", cause, "give each a name of its own"))
        }
    }
}

/// The kind with its own keys, and the load.
pub(crate) fn kind_and_load(keys: &mut FileKeys, path: &Path) -> Result<(Kind, Load), Wrong> {
    if keys.kind == KindKey::Micro {
        if keys.echo {
            let fix = "remove it";
            return Err(Wrong::new("echo", "a micro benchmark asks no server", fix));
        }
        return Ok((Kind::Micro(micro(keys, path)?), Load::default()));
    }
    if keys.micro.is_some() {
        let fix = "remove it, or say kind = \"micro\"";
        return Err(Wrong::new("micro", "only a micro benchmark has this table", fix));
    }
    let Some(load) = keys.load.take() else {
        let fix = "add it, with at least `connections`";
        return Err(Wrong::new("load", "the table is missing", fix));
    };
    let kind = kind(keys.kind, &load).map_err(|wrong| wrong.within("load"))?;
    let load = check_load(keys.kind, load).map_err(|wrong| wrong.within("load"))?;
    Ok((kind, load))
}

fn micro(keys: &mut FileKeys, path: &Path) -> Result<Micro, Wrong> {
    if keys.load.is_some() {
        let fix = "remove it";
        return Err(Wrong::new("load", "a micro benchmark has no connections", fix));
    }
    let Some(micro) = keys.micro.take() else {
        let fix = "add it, with command, folder and result_variable";
        return Err(Wrong::new("micro", "the table is missing", fix));
    };
    if micro.command.first().is_none_or(String::is_empty) {
        return Err(Wrong::new("micro.command", "it is empty", "name the program to run"));
    }
    let is_variable = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let variable = micro.result_variable;
    if variable.is_empty() || !variable.bytes().all(is_variable) {
        let cause = format!("{variable:?} is no environment variable");
        return Err(Wrong::new("micro.result_variable", cause, "use letters, digits and _"));
    }
    let folder = path.parent().unwrap_or(Path::new("")).join(micro.folder);
    Ok(Micro { command: micro.command, folder, result_variable: variable })
}

fn kind(key: KindKey, load: &LoadKeys) -> Result<Kind, Wrong> {
    if load.shares.is_some() && key != KindKey::Latency {
        let fix = "remove it, or say kind = \"latency\"";
        return Err(Wrong::new("shares", "only a latency scenario has shares", fix));
    }
    if load.factor.is_some() && key != KindKey::Overload {
        let fix = "remove it, or say kind = \"overload\"";
        return Err(Wrong::new("factor", "only an overload has a factor", fix));
    }
    match key {
        KindKey::Load => Ok(Kind::Load),
        KindKey::Idle => Ok(Kind::Idle),
        KindKey::Shutdown => Ok(Kind::Shutdown),
        KindKey::Latency => {
            let shares = load.shares.clone().unwrap_or_else(|| SHARES.to_vec());
            let is_share = |share: &f64| *share > 0.0 && *share <= 1.0;
            if shares.is_empty() || !shares.iter().all(is_share) {
                let fix = "list numbers above 0 and at most 1; more is an overload";
                return Err(Wrong::new("shares", "a share is a part of the capacity", fix));
            }
            Ok(Kind::Latency { rates: shares.into_iter().map(OpenRate::Share).collect() })
        }
        KindKey::Overload => {
            let factor = load.factor.unwrap_or(FACTOR);
            if !(factor > 1.0 && factor <= FACTOR_MAX) {
                let fix = format!("give a number above 1 and at most {FACTOR_MAX}");
                return Err(Wrong::new("factor", format!("{factor} is no overload"), fix));
            }
            Ok(Kind::Overload { factor })
        }
        KindKey::Micro => unreachable!("a micro benchmark has no load"),
    }
}

/// The same limits as those of the generator's plan, so that no plan is refused at run time.
fn check_load(key: KindKey, keys: LoadKeys) -> Result<Load, Wrong> {
    let between = |key: &str, value: u64, low: u64, high: u64| match (low..=high).contains(&value) {
        true => Ok(()),
        false => {
            let fix = format!("give a number from {low} to {high}");
            Err(Wrong::new(key, format!("{value} is out of range"), fix))
        }
    };
    let load = Load {
        connections: keys.connections,
        tls: keys.tls,
        pipeline: keys.pipeline.unwrap_or(1),
        is_http2: false,
        requests_per_connection: keys.requests_per_connection,
        idle_connections: keys.idle_connections.unwrap_or(0),
        sent_again_share_max: keys.sent_again_share_max,
    };
    if !(1..=LEVELS_MAX).contains(&load.connections.len()) {
        let cause = format!("there are {} levels", load.connections.len());
        return Err(Wrong::new("connections", cause, format!("list 1 to {LEVELS_MAX} numbers")));
    }
    for &level in &load.connections {
        let room = CONNECTIONS_MAX.saturating_sub(load.idle_connections);
        between("connections", level as u64, 1, room as u64)?;
    }
    if !load.connections.windows(2).all(|pair| pair[0] < pair[1]) {
        let fix = "list each level once, the smallest first";
        return Err(Wrong::new("connections", "the levels do not rise", fix));
    }
    between("pipeline", load.pipeline as u64, 1, DEPTH_MAX as u64)?;
    if let Some(requests) = load.requests_per_connection {
        between("requests_per_connection", requests, 1, REQUESTS_MAX)?;
    }
    if let Some(share) = load.sent_again_share_max.filter(|share| !(0.0..=1.0).contains(share)) {
        let fix = "give a part of 1, as 0.01";
        return Err(Wrong::new("sent_again_share_max", format!("{share} is no share"), fix));
    }
    match (key == KindKey::Idle, load.idle_connections) {
        (true, 0) => {
            let fix = "say how many are held open";
            Err(Wrong::new("idle_connections", "an idle scenario needs them", fix))
        }
        (false, 1..) => {
            let fix = "remove it, or say kind = \"idle\"";
            Err(Wrong::new("idle_connections", "only an idle scenario has them", fix))
        }
        _ => Ok(load),
    }
}
