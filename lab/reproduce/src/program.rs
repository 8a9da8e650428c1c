//! What has to be run to try a page's claims again.

use std::collections::BTreeMap;

use peregrine_lab_audit::claim::{Claim, Document, Form, Measure, Row, Scenario};
use peregrine_lab_audit::statement::is_of_operations;
use serde::{Deserialize, Serialize};

use crate::roster::{Available, Roster, entry, label};
use crate::stand_in::substituted;

/// Connections of the corrected trial where the page had one request in flight: with so few, a
/// client measures its own loop.
pub const CONNECTIONS_CORRECTED: u32 = 64;

/// How long a run lasts if the page does not say, in seconds.
pub const PUBLISHED_SECONDS: f64 = 10.0;

/// The share of the slowest contender's own rate at which latencies are compared.
pub const EQUAL_RATE_SHARE: f64 = 0.5;

/// The scenario of the lab that runs the in-process router benchmark.
pub const ROUTER: &str = "router";

/// All that has to be run for one page.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Program {
    /// The trials: first those that claims need, then tables without claims, each in the page's
    /// order. With too small a budget the last are dropped first.
    pub trials: Vec<Trial>,
    /// Claims that no run can test here, and why.
    pub untestable: Vec<Untestable>,
    /// Tables that the lab does not repeat, and why.
    pub unrepeated: Vec<Unrepeated>,
    /// The versions of all contenders of the page, in its order.
    pub versions: Vec<Version>,
}

/// A claim that cannot be tested here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Untestable {
    /// The claim's id.
    pub claim: String,
    /// Why, in a sentence.
    pub reason: String,
}

/// A table that is not repeated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unrepeated {
    /// The page's id of the scenario.
    pub scenario: String,
    /// Why, in a sentence.
    pub reason: String,
}

/// One contender then and today.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// The contender's id.
    pub id: String,
    /// What the page, or the source it refers to, names.
    pub page: Option<String>,
    /// What the lab runs.
    pub today: Option<String>,
}

/// One table of the page, to be run as published and corrected.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The page's id of the scenario, such as `A2`, or [`ROUTER`] for all tables of operations.
    pub id: String,
    /// The name of the lab's scenario file, without ending.
    pub scenario: String,
    /// The lab's contenders to run: the page's in its order, then those that stand in for others.
    /// Empty for the router benchmark, which has its own.
    pub contenders: Vec<String>,
    /// The page's contenders that cannot be run, and why.
    pub missing: Vec<Missing>,
    /// The ids of the claims that this trial decides.
    pub claims: Vec<String>,
    /// The pairs that have to be judged, as one family.
    pub pairs: Vec<Pair>,
    /// How it is run.
    pub method: Method,
}

impl Trial {
    /// Connections in the corrected trial; none for the router benchmark.
    #[must_use]
    pub fn connections(&self) -> Option<u32> {
        match &self.method {
            Method::Load { corrected, .. } => Some(corrected.connections),
            Method::Operations => None,
        }
    }

    /// Whether it is the router benchmark.
    #[must_use]
    pub fn is_operations(&self) -> bool {
        matches!(self.method, Method::Operations)
    }
}

/// A contender that is not in its trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The contender's id.
    pub contender: String,
    /// Why, in a clause.
    pub reason: String,
}

/// Two contenders to be compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Pair {
    /// The one that is judged.
    pub contender: String,
    /// The one it is compared with.
    pub reference: String,
}

impl Pair {
    pub(crate) fn new(contender: &str, reference: &str) -> Self {
        Self { contender: contender.to_owned(), reference: reference.to_owned() }
    }

    fn is_same(&self, other: &Pair) -> bool {
        let reversed = (&self.contender, &self.reference) == (&other.reference, &other.contender);
        self == other || reversed
    }
}

/// How a trial is run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Requests to servers, twice.
    Load {
        /// With the page's method.
        published: Published,
        /// With the lab's.
        corrected: Corrected,
    },
    /// The in-process router benchmark, once.
    Operations,
}

/// The page's method, as near as it can be run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// What sends the requests.
    pub client: Client,
    /// Connections.
    pub connections: u32,
    /// Threads of the tool, never more than connections; none if the tool has no such setting.
    pub threads: Option<u32>,
    /// How long one run measures, in seconds.
    pub seconds: f64,
    /// The warm-up before it, in seconds; 0 if the page mentions none.
    pub warmup_s: f64,
    /// Runs per contender.
    pub repeats: u32,
    /// After how many seconds the tool gives up on a reply, if the page or the tool has a limit.
    pub timeout_s: Option<f64>,
    /// Whatever differs from the page, or is not printed there, in sentences.
    pub remarks: Vec<String>,
}

/// What sends the requests of the published method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Client {
    /// wrk itself.
    Wrk,
    /// h2load itself.
    H2load,
    /// oha itself.
    Oha,
    /// The lab's own client in a closed loop, because the page's tool cannot be had.
    ClosedLoop {
        /// The name of the page's tool.
        instead_of: String,
    },
}

/// The lab's method.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Corrected {
    /// Connections per contender, in paired slices of a closed loop.
    pub connections: u32,
    /// Whether latencies are to be compared as well, in an open loop at the same rate for all:
    /// this share of the slowest contender's rate (see [`crate::equal_rate`]). None if no number
    /// of the page is about latency.
    pub equal_rate_share: Option<f64>,
    /// Whatever differs from the page, in sentences.
    pub remarks: Vec<String>,
}

impl Program {
    /// The trial that decides a claim.
    #[must_use]
    pub fn trial_of(&self, claim: &str) -> Option<&Trial> {
        self.trials.iter().find(|trial| trial.claims.iter().any(|id| id == claim))
    }

    /// The trial with this id.
    #[must_use]
    pub fn trial(&self, id: &str) -> Option<&Trial> {
        self.trials.iter().find(|trial| trial.id == id)
    }

    /// Why a claim cannot be tested, if so.
    #[must_use]
    pub fn reason(&self, claim: &str) -> Option<&str> {
        let found = self.untestable.iter().find(|untestable| untestable.claim == claim);
        found.map(|untestable| untestable.reason.as_str())
    }

    /// Takes a trial out: its claims become untestable, for this reason (a sentence).
    pub fn remove_trial(&mut self, id: &str, reason: &str) {
        let Some(place) = self.trials.iter().position(|trial| trial.id == id) else { return };
        let trial = self.trials.remove(place);
        self.untestable.extend(
            trial.claims.into_iter().map(|claim| Untestable { claim, reason: reason.to_owned() }),
        );
        self.unrepeated.push(Unrepeated { scenario: trial.id, reason: reason.to_owned() });
    }
}

/// What has to be run to try the claims of `page` with those contenders that are ready.
#[must_use]
pub fn program(page: &Document, available: &[Available]) -> Program {
    let roster = Roster { page, available };
    let mut program = Program { versions: versions(&roster), ..Program::default() };
    for claim in &page.claims {
        if let Some(reason) = untestable(&roster, claim) {
            let claim = claim.id.get_ref().clone();
            program.untestable.push(Untestable { claim, reason });
        }
    }
    let mut without_claims = Vec::new();
    for scenario in &page.scenarios {
        match load_trial(&roster, &program, scenario) {
            Ok(trial) if is_claimed(page, scenario) => program.trials.push(trial),
            Ok(trial) => without_claims.push(trial),
            Err(reason) => {
                program.unrepeated.push(Unrepeated { scenario: scenario.id.clone(), reason });
            }
        }
    }
    program.trials.extend(router_trial(page, &program));
    program.trials.append(&mut without_claims);
    program
}

fn versions(roster: &Roster<'_>) -> Vec<Version> {
    let entries = roster.page.contenders.iter();
    entries
        .map(|entry| Version {
            id: entry.id.clone(),
            page: entry
                .version
                .as_ref()
                .map(|fact| fact.text.clone())
                .or_else(|| entry.version_elsewhere.clone()),
            today: roster.known(&entry.id).and_then(|known| known.version.clone()),
        })
        .collect()
}

fn is_claimed(page: &Document, scenario: &Scenario) -> bool {
    page.claims.iter().any(|claim| *claim.scenario.get_ref() == scenario.id)
}

/// Why no run here can test a claim, in a sentence.
fn untestable(roster: &Roster<'_>, claim: &Claim) -> Option<String> {
    let page = roster.page;
    let sides = [Some(&claim.subject), claim.object.as_ref()];
    let sides = sides.into_iter().flatten().map(|side| side.get_ref().as_str());
    let scenario = page.scenario(claim.scenario.get_ref());
    match claim.measure {
        Measure::Allocations => {
            return Some("The lab does not count allocations of single operations.".to_owned());
        }
        Measure::Max => {
            return Some(
                "A maximum is one sample: no run of a page's length repeats it.".to_owned(),
            );
        }
        _ => {}
    }
    if let Some(reason) = scenario.and_then(|scenario| scenario.unrepeatable.as_ref()) {
        return Some(format!("The lab does not repeat it: {reason}."));
    }
    for id in sides {
        let name = label(page, id);
        let obstacle = match scenario {
            Some(scenario) => roster.obstacle(id, &scenario.name),
            None => roster.router_obstacle(id),
        };
        if let Some(obstacle) = obstacle {
            return Some(format!("{name} {obstacle}."));
        }
        // A sentence without a number says who does worse, which can be tried. A number that
        // counts failures has nothing to be compared with.
        let has_number = !matches!(claim.form, Form::Worse | Form::Equivalent);
        let row = page.row(claim.scenario.get_ref(), id).filter(|_| has_number);
        if let Some(failures) = row.and_then(failures_text) {
            return Some(format!(
                "The published number of {name} counts failures ({failures}): right replies have \
                 nothing to be compared with."
            ));
        }
    }
    None
}

/// What a row says about its failures, if at least half of its requests failed.
fn failures_text(row: &Row) -> Option<String> {
    let requests = row.requests.as_ref()?;
    let kinds = [
        ("replies other than 2xx", &row.non_2xx),
        ("failed reads", &row.read_errors),
        ("failed writes", &row.write_errors),
        ("timeouts", &row.timeouts),
        ("errors", &row.errors),
    ];
    let (kind, count) = kinds
        .into_iter()
        .filter_map(|(kind, count)| Some((kind, count.as_ref()?)))
        .find(|(_, count)| count.value() * 2.0 >= requests.value() && count.value() > 0.0)?;
    Some(format!("{} {kind} for {} requests", count.text(), requests.text()))
}

fn load_trial(
    roster: &Roster<'_>,
    program: &Program,
    scenario: &Scenario,
) -> Result<Trial, String> {
    let page = roster.page;
    if let Some(reason) = &scenario.unrepeatable {
        return Err(format!("The lab does not repeat it: {reason}."));
    }
    let mut contenders: Vec<String> = Vec::new();
    let mut missing = Vec::new();
    let mut stand_ins = Vec::new();
    for row in page.rows_of(&scenario.id) {
        let id = row.contender.get_ref();
        match roster.obstacle(id, &scenario.name) {
            None => contenders.push(id.clone()),
            Some(reason) => {
                missing.push(Missing { contender: id.clone(), reason });
                let stand_in = entry(page, id).and_then(|entry| entry.stand_in.as_ref());
                stand_ins.extend(stand_in.map(|stand_in| stand_in.id.clone()));
            }
        }
    }
    stand_ins.retain(|id| roster.obstacle(id, &scenario.name).is_none());
    for id in stand_ins {
        if !contenders.contains(&id) {
            contenders.push(id);
        }
    }
    if contenders.is_empty() {
        return Err("None of its contenders can be run here.".to_owned());
    }
    let claims: Vec<String> = page
        .claims
        .iter()
        .filter(|claim| *claim.scenario.get_ref() == scenario.id)
        .map(|claim| claim.id.get_ref().clone())
        .filter(|claim| program.reason(claim).is_none())
        .collect();
    let pairs = pairs(page, scenario, &contenders);
    let (published, corrected) = methods(page, scenario);
    Ok(Trial {
        id: scenario.id.clone(),
        scenario: scenario.name.clone(),
        contenders,
        missing,
        claims,
        pairs,
        method: Method::Load { published, corrected },
    })
}

/// The pairs of all claims, then those of the table against the publisher's own entry or the
/// first row, with stand-ins in the place of those that are missing.
fn pairs(page: &Document, scenario: &Scenario, contenders: &[String]) -> Vec<Pair> {
    let claims = page.claims.iter().filter(|claim| *claim.scenario.get_ref() == scenario.id);
    let of_claims = claims.filter_map(|claim| {
        Some((claim.subject.get_ref().as_str(), claim.object.as_ref()?.get_ref().as_str()))
    });
    let rows: Vec<&str> =
        page.rows_of(&scenario.id).map(|row| row.contender.get_ref().as_str()).collect();
    let home = page.source.home.as_deref().filter(|home| rows.contains(home));
    let first = home.or(rows.first().copied());
    let of_table = rows.iter().filter_map(|&row| Some((first?, row)));
    let mut pairs: Vec<Pair> = Vec::new();
    for (contender, reference) in of_claims.chain(of_table) {
        let pair = Pair::new(
            substituted(page, contender, contenders),
            substituted(page, reference, contenders),
        );
        let can_run = [&pair.contender, &pair.reference].iter().all(|id| contenders.contains(id));
        let is_new = pair.contender != pair.reference && !pairs.iter().any(|p| p.is_same(&pair));
        if can_run && is_new {
            pairs.push(pair);
        }
    }
    pairs
}

fn methods(page: &Document, scenario: &Scenario) -> (Published, Corrected) {
    let mut remarks = Vec::new();
    let mut corrected_remarks = Vec::new();
    let connections = published_connections(page, scenario, &mut remarks);
    let connections_corrected = if connections == 1 {
        corrected_remarks.push(format!(
            "The page had one request in flight, with which a client measures itself: judged at \
             {CONNECTIONS_CORRECTED} connections."
        ));
        CONNECTIONS_CORRECTED
    } else {
        connections
    };
    let client = client(page, &mut remarks);
    let threads = threads(scenario, &client, connections, &mut remarks);
    let seconds = scenario.duration.as_ref().map(|printed| printed.value());
    if seconds.is_none() {
        remarks.push(format!("The page prints no duration: {PUBLISHED_SECONDS} s."));
    }
    let is_wrk = client == Client::Wrk;
    let published = Published {
        client,
        connections,
        threads,
        seconds: seconds.unwrap_or(PUBLISHED_SECONDS),
        warmup_s: page.design.warm_up.as_ref().map_or(0.0, |fact| leading_number(&fact.text)),
        repeats: page.design.repeats.unwrap_or(1).max(1),
        timeout_s: page.tool.timeout.as_ref().map(|t| t.value()).or(is_wrk.then_some(2.0)),
        remarks,
    };
    let corrected = Corrected {
        connections: connections_corrected,
        equal_rate_share: is_about_latency(page, scenario).then_some(EQUAL_RATE_SHARE),
        remarks: corrected_remarks,
    };
    (published, corrected)
}

/// The page's connections; where it prints none, as many requests as were in flight.
fn published_connections(page: &Document, scenario: &Scenario, remarks: &mut Vec<String>) -> u32 {
    if let Some(connections) = scenario.connections {
        return connections.max(1);
    }
    let in_flight = page
        .rows_of(&scenario.id)
        .filter_map(|row| Some(row.rate.as_ref()?.value() * row.mean.as_ref()?.value()))
        .fold(0.0, f64::max);
    if in_flight > 0.0 {
        remarks.push(format!(
            "The page prints no connections; rates times means give {in_flight:.2} requests in \
             flight."
        ));
    } else {
        remarks.push("The page prints no connections; one is used.".to_owned());
    }
    // Nobody publishes more than a few thousand; the cast saturates.
    (in_flight.round() as u32).max(1)
}

fn client(page: &Document, remarks: &mut Vec<String>) -> Client {
    match page.tool.name.as_str() {
        "wrk" => Client::Wrk,
        "h2load" => Client::H2load,
        "oha" => Client::Oha,
        name => {
            remarks.push(format!("In place of {name}: the lab's client, in a closed loop."));
            Client::ClosedLoop { instead_of: name.to_owned() }
        }
    }
}

fn threads(
    scenario: &Scenario,
    client: &Client,
    connections: u32,
    remarks: &mut Vec<String>,
) -> Option<u32> {
    if matches!(client, Client::ClosedLoop { .. } | Client::Oha) {
        return None;
    }
    let printed = scenario.threads.unwrap_or(1);
    if printed > connections {
        remarks.push(format!(
            "The page names {printed} threads on {connections} connections, which its tool \
             refuses: {connections} threads."
        ));
    }
    Some(printed.clamp(1, connections))
}

/// The number that a text such as `2s per driver` begins with, or 0.
fn leading_number(text: &str) -> f64 {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text[..end].parse().unwrap_or(0.0)
}

/// Whether a claim is about latency, or the table has nothing else.
fn is_about_latency(page: &Document, scenario: &Scenario) -> bool {
    let is_claimed = page.claims.iter().any(|claim| {
        *claim.scenario.get_ref() == scenario.id
            && matches!(claim.measure, Measure::Mean | Measure::P99)
    });
    is_claimed || page.rows_of(&scenario.id).all(|row| row.rate.is_none())
}

/// One trial for all tables of operations.
fn router_trial(page: &Document, program: &Program) -> Option<Trial> {
    if page.microbenchmarks.is_empty() {
        return None;
    }
    let claims = page.claims.iter().filter(|claim| is_of_operations(claim.measure));
    let claims = claims.map(|claim| claim.id.get_ref().clone());
    let mut missing: BTreeMap<String, String> = BTreeMap::new();
    for column in page.microbenchmarks.iter().flat_map(|table| &table.columns) {
        if let Some(reason) = entry(page, column).and_then(|entry| entry.unobtainable.clone()) {
            missing.insert(column.clone(), format!("cannot be had: {reason}"));
        }
    }
    Some(Trial {
        id: ROUTER.to_owned(),
        scenario: ROUTER.to_owned(),
        contenders: Vec::new(),
        missing: missing
            .into_iter()
            .map(|(contender, reason)| Missing { contender, reason })
            .collect(),
        claims: claims.filter(|claim| program.reason(claim).is_none()).collect(),
        pairs: Vec::new(),
        method: Method::Operations,
    })
}
