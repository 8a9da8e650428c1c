//! What has to be run to try a page's claims again.

use std::collections::BTreeSet;

use peregrine_lab_audit::claim::{Claim, Document, Form, Measure, Row, Scenario};
use peregrine_lab_audit::statement::is_of_operations;
use serde::{Deserialize, Serialize};

use crate::method::{Corrected, Published, methods};
use crate::roster::{Available, Roster, State, entry, label};
use crate::stand_in::substituted;

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
    /// What the page names, or what is known from elsewhere, which then says so.
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
    /// What the page asked, in its transcriber's words.
    pub request: String,
    /// The lab's contenders to run: the page's in its order, then those that stand in for others.
    /// Empty for the router benchmark, which has its own.
    pub contenders: Vec<String>,
    /// The page's contenders that cannot be run, and why.
    pub missing: Vec<Missing>,
    /// The ids of the claims that this trial decides.
    pub claims: Vec<String>,
    /// The pairs that have to be judged, as one family.
    pub pairs: Vec<Pair>,
    /// Pairs with contenders that joined ([`Program::join`]): a family of their own, so that they
    /// make no claim harder to confirm.
    pub joined: Vec<Pair>,
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

    /// Adds a contender that the page does not have to every trial that it can serve, if it is
    /// ready: no claim is about it, but a reader sees where it stands.
    pub fn join(&mut self, contender: &Available) {
        let id = &contender.id;
        let can_join = |trial: &&mut Trial| {
            contender.state == State::Ready
                && !trial.is_operations()
                && !trial.contenders.contains(id)
                && !contender.lacks.contains_key(&trial.scenario)
        };
        for trial in self.trials.iter_mut().filter(can_join) {
            let others = trial.contenders.iter();
            trial.joined.extend(others.map(|other| Pair::new(id, other)));
            trial.contenders.push(id.clone());
        }
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
    program.trials.extend(router_trial(&roster, &program));
    program.trials.append(&mut without_claims);
    program
}

fn versions(roster: &Roster<'_>) -> Vec<Version> {
    let entries = roster.page.contenders.iter();
    entries
        .map(|entry| Version {
            id: entry.id.clone(),
            page: entry.version.as_ref().map(|fact| fact.text.clone()).or_else(|| {
                let version = entry.version_elsewhere.as_ref()?;
                Some(format!("{version}, which the page does not print"))
            }),
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
pub(crate) fn failures_text(row: &Row) -> Option<String> {
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
        request: scenario.request.clone(),
        contenders,
        missing,
        claims,
        pairs,
        joined: Vec::new(),
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

/// One trial for all tables of operations.
fn router_trial(roster: &Roster<'_>, program: &Program) -> Option<Trial> {
    let page = roster.page;
    if page.microbenchmarks.is_empty() {
        return None;
    }
    let claims = page.claims.iter().filter(|claim| is_of_operations(claim.measure));
    let claims = claims.map(|claim| claim.id.get_ref().clone());
    let columns = page.microbenchmarks.iter().flat_map(|table| &table.columns);
    let columns: BTreeSet<&String> = columns.collect();
    let missing = columns.into_iter().filter_map(|column| {
        let reason = roster.router_obstacle(column)?;
        Some(Missing { contender: column.clone(), reason })
    });
    Some(Trial {
        id: ROUTER.to_owned(),
        scenario: ROUTER.to_owned(),
        request: "lookups in tables of routes, in process".to_owned(),
        contenders: Vec::new(),
        missing: missing.collect(),
        claims: claims.filter(|claim| program.reason(claim).is_none()).collect(),
        pairs: Vec::new(),
        joined: Vec::new(),
        method: Method::Operations,
    })
}
