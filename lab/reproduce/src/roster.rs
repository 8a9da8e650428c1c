//! Who can be run here, and what keeps the others away.

use std::collections::BTreeMap;

use peregrine_lab_audit::claim::{Contender, Document};
use serde::{Deserialize, Serialize};

/// A contender that the lab knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Available {
    /// The name of its folder.
    pub id: String,
    /// The version that its lock file pins, if it is known.
    pub version: Option<String>,
    /// Whether it can be run.
    pub state: State,
    /// Scenarios, by the lab's names, that it cannot serve, with the reasons.
    pub lacks: BTreeMap<String, String>,
}

impl Available {
    /// A contender that is ready and serves every scenario.
    #[must_use]
    pub fn ready(id: &str, version: Option<&str>) -> Self {
        Self {
            id: id.to_owned(),
            version: version.map(str::to_owned),
            state: State::Ready,
            lacks: BTreeMap::new(),
        }
    }
}

/// Whether a contender can be run here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", content = "reason", rename_all = "kebab-case")]
pub enum State {
    /// It is built, or can be.
    Ready,
    /// It exists and is left out here, for this reason.
    Skipped(String),
    /// Nobody can get it, for this reason.
    NotObtainable(String),
}

/// The page's contenders against those that the lab has.
#[derive(Clone, Copy)]
pub(crate) struct Roster<'a> {
    pub(crate) page: &'a Document,
    pub(crate) available: &'a [Available],
}

impl<'a> Roster<'a> {
    /// The lab's contender of this name.
    pub(crate) fn known(&self, id: &str) -> Option<&'a Available> {
        self.available.iter().find(|contender| contender.id == id)
    }

    /// What keeps a contender from being run in a scenario of the lab, in a clause.
    pub(crate) fn obstacle(&self, id: &str, scenario: &str) -> Option<String> {
        match self.known(id) {
            None => {
                Some(match entry(self.page, id).and_then(|entry| entry.unobtainable.as_ref()) {
                    Some(reason) => format!("cannot be had: {reason}"),
                    None => "is not among the contenders of this lab".to_owned(),
                })
            }
            Some(known) => match &known.state {
                State::Skipped(reason) => Some(format!("is skipped here: {reason}")),
                State::NotObtainable(reason) => Some(format!("cannot be had: {reason}")),
                State::Ready => {
                    known.lacks.get(scenario).map(|reason| format!("cannot serve this: {reason}"))
                }
            },
        }
    }

    /// What keeps a router of a table of operations from being timed. The router benchmark has
    /// its own list, so that a name unknown to the lab may still be in it.
    pub(crate) fn router_obstacle(&self, id: &str) -> Option<String> {
        let is_unobtainable = entry(self.page, id).is_some_and(|e| e.unobtainable.is_some());
        if self.known(id).is_none() && !is_unobtainable {
            None
        } else {
            self.obstacle(id, "router")
        }
    }
}

/// The page's entry of a contender.
pub(crate) fn entry<'a>(page: &'a Document, id: &str) -> Option<&'a Contender> {
    page.contenders.iter().find(|contender| contender.id == id)
}

/// The name of a contender on the page, or its id.
pub(crate) fn label<'a>(page: &'a Document, id: &'a str) -> &'a str {
    entry(page, id).map_or(id, |contender| &contender.label)
}
