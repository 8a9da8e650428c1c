//! A measured effect in the sense of a claim, and the word that follows from the two.

use std::cmp::Ordering;

use peregrine_lab_audit::claim::Measure;
use peregrine_lab_audit::quantity::Interval;
use peregrine_lab_model::claim::Finding;
use peregrine_lab_model::verdict::{Decision, Ratio};

use crate::observed::{CorrectedFigures, Observed, PairJudged, PairMeasure};

/// What a claim says about the subject's number divided by the object's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Published {
    /// It lies in the interval, which does not hold 1.
    Ratio(Interval),
    /// It is 1, give or take this share.
    Same(f64),
    /// It is on this side of 1.
    Side(Ordering),
}

/// What was measured of the subject's number divided by the object's.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Effect {
    pub(crate) ratio: Ratio,
    /// On which side of 1 the ratio is, if that is beyond the noise.
    pub(crate) side: Option<Ordering>,
    /// The share up to which differences are noise.
    pub(crate) band: f64,
    pub(crate) decision: Decision,
    pub(crate) more_blocks: Option<u32>,
    /// By which measure it was judged; none for times of operations.
    pub(crate) measure: Option<PairMeasure>,
    /// By what the ratio of requests was multiplied: the ratio of the bytes per reply.
    pub(crate) reply_bytes: Option<f64>,
}

/// Everything that was observed, to look things up in.
#[derive(Clone, Copy)]
pub(crate) struct Results<'a> {
    pub(crate) observed: &'a [Observed],
    pub(crate) judged: &'a [PairJudged],
}

impl<'a> Results<'a> {
    pub(crate) fn observed(&self, trial: &str, contender: &str) -> Option<&'a Observed> {
        self.observed.iter().find(|found| found.trial == trial && found.contender == contender)
    }

    fn corrected(&self, trial: &str, contender: &str) -> Option<&'a CorrectedFigures> {
        self.observed(trial, contender)?.corrected.as_ref()
    }

    /// The pair as judged, turned round if need be.
    pub(crate) fn pair(
        &self,
        trial: &str,
        (contender, reference): (&str, &str),
        measure: PairMeasure,
    ) -> Option<PairJudged> {
        let of_trial = self.judged.iter().filter(|p| p.trial == trial && p.measure == measure);
        let is = |pair: &PairJudged, one: &str, other: &str| {
            pair.contender == one && pair.reference == other
        };
        let mut of_trial = of_trial.filter_map(|pair| {
            if is(pair, contender, reference) {
                Some(pair.clone())
            } else if is(pair, reference, contender) {
                Some(pair.reversed())
            } else {
                None
            }
        });
        of_trial.next()
    }

    /// The effect that decides a claim about `measure`.
    ///
    /// # Errors
    ///
    /// Why there is none, in a sentence; `{subject}` and `{object}` stand for the names.
    pub(crate) fn effect(
        &self,
        trial: &str,
        pair: (&str, &str),
        measure: Measure,
    ) -> Result<Effect, String> {
        let figures = |id: &str, name: &str| {
            let figures = self.corrected(trial, id);
            let figures =
                figures.ok_or(format!("The corrected method has no figures of {name}."))?;
            match figures.wrong_replies {
                0 => Ok(figures),
                wrong => Err(format!("{name} gave {wrong} wrong replies here: nothing is judged.")),
            }
        };
        let subject = figures(pair.0, "{subject}")?;
        let object = figures(pair.1, "{object}")?;
        match measure {
            Measure::Rate => self.throughput(trial, pair, subject, object),
            Measure::Transfer => {
                let bytes = subject.reply_bytes.zip(object.reply_bytes);
                let (of_subject, of_object) = bytes
                    .filter(|(one, other)| *one > 0.0 && *other > 0.0)
                    .ok_or("The bytes per reply were not counted.")?;
                let effect = self.throughput(trial, pair, subject, object)?;
                Ok(effect.times(of_subject / of_object))
            }
            Measure::Mean => self.latency(trial, pair, PairMeasure::LatencyMean),
            Measure::P99 => self.latency(trial, pair, PairMeasure::LatencyP99),
            Measure::Max | Measure::TimePerOperation | Measure::Allocations => {
                Err("No load can measure this.".to_owned())
            }
        }
    }

    /// Requests per second of server CPU time decide. Where no counter could be read, requests
    /// per second do, unless the client was the limit.
    fn throughput(
        &self,
        trial: &str,
        pair: (&str, &str),
        subject: &CorrectedFigures,
        object: &CorrectedFigures,
    ) -> Result<Effect, String> {
        if let Some(judged) = self.pair(trial, pair, PairMeasure::ServerCpu) {
            let cost = Effect::of(&judged)?;
            let inverse = Ratio {
                estimate: 1.0 / cost.ratio.estimate,
                low: 1.0 / cost.ratio.high,
                high: 1.0 / cost.ratio.low,
            };
            return Ok(Effect { ratio: inverse, side: cost.side.map(Ordering::reverse), ..cost });
        }
        let judged = self
            .pair(trial, pair, PairMeasure::Throughput)
            .ok_or("{subject} and {object} were not compared by the corrected method.")?;
        if subject.is_client_bound || object.is_client_bound {
            return Err("The client was the limit, and server CPU time was not counted: requests \
                        per second say nothing about the servers."
                .to_owned());
        }
        Effect::of(&judged)
    }

    fn latency(
        &self,
        trial: &str,
        pair: (&str, &str),
        measure: PairMeasure,
    ) -> Result<Effect, String> {
        let judged = self.pair(trial, pair, measure).ok_or(
            "{subject} and {object} were not compared at an equal rate, and means of a closed \
             loop say nothing about latency.",
        )?;
        Effect::of(&judged)
    }
}

impl Effect {
    fn of(judged: &PairJudged) -> Result<Self, String> {
        if judged.decision == Decision::Void {
            let why = if judged.note.is_empty() { "no reason given" } else { &judged.note };
            return Err(format!("The comparison is void: {}.", why.trim_end_matches('.')));
        }
        if !judged.band.is_finite() {
            return Err("The noise of this run is not known: its A/A arm gave no ratio.".to_owned());
        }
        if !judged.ratio.is_known() {
            return Err("The comparison gave no ratio.".to_owned());
        }
        let more_is_better = judged.measure.more_is_better();
        let side = match judged.decision {
            Decision::Faster if more_is_better => Some(Ordering::Greater),
            Decision::Slower if !more_is_better => Some(Ordering::Greater),
            Decision::Faster | Decision::Slower => Some(Ordering::Less),
            _ => None,
        };
        Ok(Self {
            ratio: judged.ratio,
            side,
            band: judged.band,
            decision: judged.decision,
            more_blocks: judged.more_blocks,
            measure: Some(judged.measure),
            reply_bytes: None,
        })
    }

    /// The effect times a number that is known exactly. The word was about the ratio before, so
    /// the side follows from the interval and the band.
    fn times(self, factor: f64) -> Self {
        let Ratio { estimate, low, high } = self.ratio;
        let ratio = Ratio { estimate: estimate * factor, low: low * factor, high: high * factor };
        let side = side_of(&ratio, self.band);
        // The word was about the ratio of requests.
        let decision = match side {
            None if is_within(&ratio, self.band) => Decision::Equivalent,
            None => Decision::CannotTell,
            Some(Ordering::Greater) => Decision::Faster,
            Some(_) => Decision::Slower,
        };
        Self { ratio, side, decision, more_blocks: None, reply_bytes: Some(factor), ..self }
    }

    /// The word that follows. `Smaller` is for the same direction only.
    pub(crate) fn finding(&self, published: Published) -> Finding {
        match published {
            Published::Same(share) => {
                let share = share.max(self.band);
                if self.decision == Decision::Equivalent || is_within(&self.ratio, share) {
                    Finding::Confirmed
                } else if self.side.is_some() && side_of(&self.ratio, share).is_some() {
                    Finding::Reversed
                } else {
                    Finding::NotReproduced
                }
            }
            Published::Side(side) => match self.side {
                None => Finding::NotReproduced,
                Some(found) if found == side => Finding::Confirmed,
                Some(_) => Finding::Reversed,
            },
            Published::Ratio(published) => {
                let side = if published.low > 1.0 { Ordering::Greater } else { Ordering::Less };
                match self.side {
                    None => Finding::NotReproduced,
                    Some(found) if found != side => Finding::Reversed,
                    Some(Ordering::Greater) if self.ratio.high < published.low => Finding::Smaller,
                    Some(Ordering::Less) if self.ratio.low > published.high => Finding::Smaller,
                    Some(_) => Finding::Confirmed,
                }
            }
        }
    }
}

/// On which side of 1 the whole interval is, beyond a share.
pub(crate) fn side_of(ratio: &Ratio, share: f64) -> Option<Ordering> {
    if ratio.low > 1.0 + share {
        Some(Ordering::Greater)
    } else if ratio.high < 1.0 / (1.0 + share) {
        Some(Ordering::Less)
    } else {
        None
    }
}

/// Whether the whole interval is within a share of 1.
pub(crate) fn is_within(ratio: &Ratio, share: f64) -> bool {
    ratio.low >= 1.0 / (1.0 + share) && ratio.high <= 1.0 + share
}
