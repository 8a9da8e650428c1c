//! From what the generator saw to what a run file says.

use std::collections::BTreeMap;

use peregrine_lab_load::client::fault::{Fault, Faults};
use peregrine_lab_load::generator::{self, Ceiling, Outcome, Plan};
use peregrine_lab_load::latency::Latency;
use peregrine_lab_load::schedule::Schedule;
use peregrine_lab_model::check::{Check, Outcome as Word};
use peregrine_lab_model::histogram::Histogram;
use peregrine_lab_model::plan::Schedule as PlannedSchedule;

use crate::asker::Asked;

/// The name of the check whether the client was the limit of a rate.
pub const HEADROOM: &str = "client headroom";

/// What a slice of the generator saw, with its rules.
#[must_use]
pub fn asked(name: &str, plan: &Plan, outcome: &Outcome) -> Asked {
    Asked {
        requests: outcome.replies,
        sent: outcome.sent,
        late: outcome.late,
        dropped: outcome.dropped,
        wall: outcome.wall,
        client_cpu: outcome.client_cpu,
        wire_bytes: outcome.reply_bytes,
        body_bytes: outcome.body_bytes,
        latency: Some(histogram(&outcome.latency)),
        faults: outcome.faults,
        checks: checks(name, plan, outcome),
    }
}

/// The generator's rules as checks of a run file. The client's headroom is judged elsewhere.
#[must_use]
pub fn checks(name: &str, plan: &Plan, outcome: &Outcome) -> Vec<Check> {
    generator::checks(plan, outcome, None)
        .into_iter()
        .map(|rule| Check {
            name: rule.name.to_owned(),
            contender: Some(name.to_owned()),
            outcome: match (rule.holds, rule.is_voiding) {
                (Some(true), _) => Word::Passed,
                (Some(false), true) => Word::Failed,
                (Some(false), false) => Word::Warned,
                (None, _) => Word::Skipped,
            },
            detail: rule.detail,
        })
        .collect()
}

/// Adds checks of a further slice: of two with the same name about the same contender, the worse
/// one stays.
pub fn merge_checks(all: &mut Vec<Check>, more: Vec<Check>) {
    let weight = |check: &Check| match check.outcome {
        Word::Failed => 4,
        Word::ClientBound => 3,
        Word::Warned => 2,
        Word::Passed => 1,
        Word::Skipped | Word::Other => 0,
    };
    for check in more {
        let is_same = |one: &&mut Check| one.name == check.name && one.contender == check.contender;
        match all.iter_mut().find(is_same) {
            Some(one) if weight(one) >= weight(&check) => {}
            Some(one) => *one = check,
            None => all.push(check),
        }
    }
}

/// Whether the client was the limit of a rate, as a check.
#[must_use]
pub fn headroom(name: &str, rate: f64, ceiling: &Ceiling) -> Check {
    let is_bound = ceiling.is_client_bound(rate);
    Check {
        name: HEADROOM.to_owned(),
        contender: Some(name.to_owned()),
        outcome: if is_bound { Word::ClientBound } else { Word::Passed },
        detail: format!(
            "{rate:.0} requests/s measured, the client alone can do {:.0} ({:.1}x, 2x needed)",
            ceiling.rate,
            ceiling.rate / rate
        ),
    }
}

/// A distribution as a run file keeps it.
#[must_use]
pub fn histogram(latency: &Latency) -> Histogram {
    let mut histogram = Histogram::new(latency.buckets());
    histogram.censored = latency.censored();
    histogram
}

/// Every kind of fault with its count, those that were not seen included.
#[must_use]
pub fn errors(faults: &Faults) -> BTreeMap<String, u64> {
    Fault::ALL.iter().map(|&kind| (kind.words().to_owned(), faults.count(kind))).collect()
}

/// The kinds of faults that were seen, with their counts.
#[must_use]
pub fn errors_seen(faults: &Faults) -> BTreeMap<String, u64> {
    faults.seen().map(|(kind, count)| (kind.words().to_owned(), count)).collect()
}

/// A schedule as a run file keeps it.
#[must_use]
pub fn schedule(schedule: &Schedule, depth: usize) -> PlannedSchedule {
    match *schedule {
        Schedule::Closed => PlannedSchedule::Closed { depth: depth as u32 },
        Schedule::Constant { rate } => PlannedSchedule::Constant { rate_per_s: rate },
        Schedule::Poisson { rate } => PlannedSchedule::Poisson { rate_per_s: rate },
        Schedule::Ramp { from, to } => PlannedSchedule::Ramp { from_per_s: from, to_per_s: to },
        Schedule::Step { from, to, steps } => {
            let last = f64::from(steps.max(2) - 1);
            let rates = (0..steps).map(|step| from + (to - from) * f64::from(step) / last);
            PlannedSchedule::Steps { rates_per_s: rates.collect() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(contender: &str, outcome: Word, detail: &str) -> Check {
        Check {
            name: "Date moves".to_owned(),
            contender: Some(contender.to_owned()),
            outcome,
            detail: detail.to_owned(),
        }
    }

    #[test]
    fn of_many_slices_the_worst_word_stays() {
        let mut all = Vec::new();
        for (outcome, detail) in
            [(Word::Skipped, "1"), (Word::Passed, "2"), (Word::Failed, "3"), (Word::Passed, "4")]
        {
            merge_checks(&mut all, vec![check("a", outcome, detail)]);
        }
        merge_checks(&mut all, vec![check("b", Word::Passed, "5")]);
        let seen: Vec<&str> = all.iter().map(|check| check.detail.as_str()).collect();
        assert_eq!(seen, ["3", "5"]);
    }

    #[test]
    fn kinds_that_were_not_seen_stand_there_with_zero() {
        let mut faults = Faults::default();
        faults.record_many(Fault::Timeout, 3);
        let errors = errors(&faults);
        assert_eq!(errors.len(), Fault::ALL.len());
        assert_eq!(errors["timeout"], 3);
        assert_eq!(errors["connect"], 0);
    }

    #[test]
    fn the_client_is_the_limit_below_twice_the_rate() {
        let ceiling = Ceiling { rate: 100_000.0, client_us_per_reply: 5.0 };
        assert_eq!(headroom("a", 60_000.0, &ceiling).outcome, Word::ClientBound);
        assert_eq!(headroom("a", 40_000.0, &ceiling).outcome, Word::Passed);
    }
}
