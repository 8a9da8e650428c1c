//! The sentences of a result.

use peregrine_lab_audit::claim::{Claim, Document, Form, Measure};
use peregrine_lab_audit::quantity::{digits_text, grouped_text, time_text};
use peregrine_lab_audit::statement::Statement;
use peregrine_lab_model::claim::Finding;
use peregrine_lab_model::verdict::{Decision, Ratio};

use crate::effect::{Effect, Published, Results};
use crate::method::Client;
use crate::observed::{PairMeasure, PublishedFigures};
use crate::program::{Method, Program, Trial};
use crate::roster::label;

/// The claim in a sentence.
pub(crate) fn claim(page: &Document, claim: &Claim) -> String {
    let subject = label(page, claim.subject.get_ref());
    let sides = match &claim.object {
        Some(object) => format!("{subject} against {}", label(page, object.get_ref())),
        None => subject.to_owned(),
    };
    let about = format!("{sides}, {}{}", measure(claim.measure), place(page, claim));
    match &claim.quote {
        Some(quote) => format!("\u{201c}{quote}\u{201d} ({about})"),
        None => format!("{about} (two rows of a table)"),
    }
}

/// Where a claim's numbers stand: connections, or the title of a table of operations.
pub(crate) fn place(page: &Document, claim: &Claim) -> String {
    let id = claim.scenario.get_ref();
    if let Some(table) = page.microbenchmarks.iter().find(|table| table.scenario == *id) {
        let operations = claim.operations.as_ref().map(|names| names.join(", "));
        let operations = operations.map_or_else(String::new, |names| format!(" / {names}"));
        return format!(", {}{operations}", table.title);
    }
    match page.scenario(id).map(|scenario| (scenario.connections, &scenario.name)) {
        Some((Some(connections), _)) => {
            format!(" at {} connections", grouped_text(f64::from(connections)))
        }
        Some((None, name)) => format!(", {name}"),
        None => String::new(),
    }
}

/// A measure in words.
pub(crate) fn measure(measure: Measure) -> &'static str {
    match measure {
        Measure::Rate => "requests per second",
        Measure::Mean => "mean latency",
        Measure::Max => "highest latency",
        Measure::P99 => "99th percentile of latency",
        Measure::Transfer => "bytes per second",
        Measure::TimePerOperation => "time per operation",
        Measure::Allocations => "allocations per operation",
    }
}

/// The published figure.
pub(crate) fn published(page: &Document, claim: &Claim) -> String {
    let printed = claim.printed.as_ref().map_or("", |printed| printed.get_ref().as_str());
    let printed_bare = printed.trim_start_matches('-');
    let ratio = Statement::of(claim).ok().and_then(Statement::ratio);
    let ratio = ratio.map_or_else(String::new, |ratio| {
        if matches!(claim.form, Form::FactorRange) {
            format!(" (\u{d7}{:.3} to \u{d7}{:.3})", ratio.low, ratio.high)
        } else {
            format!(" (\u{d7}{})", number(claim.ratio.unwrap_or(ratio.middle())))
        }
    });
    match claim.form {
        Form::PercentMore => format!("{printed_bare} more{ratio}"),
        Form::PercentLess => format!("{printed_bare} less{ratio}"),
        Form::Factor | Form::FactorRange => format!("{printed} faster{ratio}"),
        Form::Average => format!("{printed} on average"),
        Form::Span => printed.to_owned(),
        Form::Below => format!("below {printed}"),
        Form::Equivalent => "the same".to_owned(),
        Form::Worse => "worse".to_owned(),
        Form::Implied => {
            let texts = printed_rows(page, claim);
            let texts = texts.map_or_else(String::new, |(subject, object)| {
                format!(" ({subject} against {object})")
            });
            format!("\u{d7}{}{texts}", number(claim.ratio.unwrap_or(f64::NAN)))
        }
    }
}

/// The two printed numbers behind a claim.
fn printed_rows<'a>(page: &'a Document, claim: &Claim) -> Option<(&'a str, &'a str)> {
    let text = |id: &str| {
        let row = page.row(claim.scenario.get_ref(), id)?;
        match claim.measure {
            Measure::Rate => row.rate.as_ref().map(|printed| printed.text()),
            Measure::Mean => row.mean.as_ref().map(|printed| printed.text()),
            Measure::Max => row.max.as_ref().map(|printed| printed.text()),
            Measure::P99 => row.p99.as_ref().map(|printed| printed.text()),
            Measure::Transfer => row.transfer.as_ref().map(|printed| printed.text()),
            Measure::TimePerOperation | Measure::Allocations => None,
        }
    };
    Some((text(claim.subject.get_ref())?, text(claim.object.as_ref()?.get_ref())?))
}

/// What the published method gave, if it was run for one side at least.
pub(crate) fn as_published(
    page: &Document,
    trial: &Trial,
    results: Results<'_>,
    claim: &Claim,
) -> Option<String> {
    let Method::Load { published, .. } = &trial.method else { return None };
    let object = claim.object.as_ref()?.get_ref();
    let side = |id: &str| {
        let figures = results.observed(&trial.id, id)?.published.as_ref()?;
        Some((figure(figures, claim.measure).filter(|value| *value > 0.0)?, figures.failures()))
    };
    let (subject, object) = (claim.subject.get_ref().as_str(), object.as_str());
    let failures = |id: &str, count: u64| match count {
        0 => String::new(),
        count => format!("; {} failures of {}", grouped_text(count as f64), label(page, id)),
    };
    let text = |value: f64| value_text(claim.measure, value);
    let numbers = match (side(subject), side(object)) {
        (None, None) => return None,
        (Some((one, failed)), Some((other, failed_other))) => format!(
            "\u{d7}{}: {} against {}{}{}",
            number(one / other),
            text(one),
            text(other),
            failures(subject, failed),
            failures(object, failed_other)
        ),
        (Some((one, failed)), None) => {
            format!("only {}: {}{}", label(page, subject), text(one), failures(subject, failed))
        }
        (None, Some((other, failed))) => {
            format!("only {}: {}{}", label(page, object), text(other), failures(object, failed))
        }
    };
    let client = match &published.client {
        Client::Wrk => "wrk",
        Client::H2load => "h2load",
        Client::Oha => "oha",
        Client::ClosedLoop { .. } => "the lab's closed loop",
    };
    let threads = published.threads.map_or_else(String::new, |n| format!(", {n} threads"));
    let connections = match published.connections {
        1 => "1 connection".to_owned(),
        many => format!("{} connections", grouped_text(f64::from(many))),
    };
    Some(format!("{numbers} ({client}{threads}, {connections})"))
}

fn figure(figures: &PublishedFigures, measure: Measure) -> Option<f64> {
    match measure {
        Measure::Rate => Some(figures.requests_per_s),
        Measure::Mean => figures.mean_ns,
        Measure::Max => figures.max_ns,
        Measure::P99 => figures.p99_ns,
        Measure::Transfer => figures.bytes_per_s,
        Measure::TimePerOperation | Measure::Allocations => None,
    }
}

fn value_text(measure: Measure, value: f64) -> String {
    match measure {
        Measure::Rate => format!("{} requests/s", grouped_text(value)),
        Measure::Transfer => format!("{} bytes/s", grouped_text(value)),
        _ => time_text(value / 1e9),
    }
}

/// An effect with its interval and its word.
pub(crate) fn effect(effect: &Effect, unit: &str, note: Option<String>) -> String {
    let note = note.map_or_else(String::new, |note| format!("; {note}"));
    let more = match (effect.decision, effect.more_blocks) {
        (Decision::CannotTell, Some(more)) => format!(" (needs about {more} more blocks)"),
        _ => String::new(),
    };
    format!("{} {unit}, {}{more}{note}", ratio(&effect.ratio), effect.decision.words())
}

/// What the corrected method gave for a claim about two contenders under load.
pub(crate) fn corrected(
    trial: &Trial,
    results: Results<'_>,
    claim: &Claim,
    pair: (&str, &str),
    found: &Effect,
) -> String {
    let is_by_cpu = found.measure == Some(PairMeasure::ServerCpu);
    let beside = results.pair(&trial.id, pair, PairMeasure::Throughput).filter(|_| is_by_cpu);
    let is_client_bound = [pair.0, pair.1].iter().any(|id| {
        let observed = results.observed(&trial.id, id);
        observed.and_then(|o| o.corrected.as_ref()).is_some_and(|figures| figures.is_client_bound)
    });
    let note = beside.map(|judged| {
        let bound = if is_client_bound { ", CLIENT-BOUND" } else { "" };
        format!("requests/s {}{bound}", ratio(&judged.ratio))
    });
    effect(found, unit(found, claim.measure), note)
}

/// What the ratio of an effect is of.
pub(crate) fn unit(found: &Effect, of: Measure) -> &'static str {
    match found.measure {
        Some(PairMeasure::ServerCpu) if of == Measure::Transfer => {
            "bytes per second of server CPU time"
        }
        Some(PairMeasure::ServerCpu) => "requests per second of server CPU time",
        Some(PairMeasure::LatencyMean) => "mean latency at an equal rate",
        Some(PairMeasure::LatencyP99) => "99th percentile of latency at an equal rate",
        _ => measure(of),
    }
}

/// The corrected figures of those sides that ran, for a claim that cannot be tested.
pub(crate) fn corrected_parts(
    page: &Document,
    trial: &Trial,
    results: Results<'_>,
    claim: &Claim,
) -> Option<String> {
    let sides = [Some(&claim.subject), claim.object.as_ref()];
    let texts: Vec<String> = sides
        .into_iter()
        .flatten()
        .filter_map(|side| {
            let id = side.get_ref();
            let figures = results.observed(&trial.id, id)?.corrected.as_ref()?;
            let mut parts = Vec::new();
            parts.extend(
                figures
                    .server_cpu_ns
                    .map(|ns| format!("{} of server CPU time per request", time_text(ns / 1e9))),
            );
            let bound = if figures.is_client_bound { " (CLIENT-BOUND)" } else { "" };
            parts.extend(
                figures
                    .requests_per_s
                    .map(|rate| format!("{} requests/s{bound}", grouped_text(rate))),
            );
            parts.extend(figures.latency.as_ref().map(|latency| {
                format!(
                    "mean latency {} at {} requests/s",
                    time_text(latency.mean_ns / 1e9),
                    grouped_text(latency.rate_per_s)
                )
            }));
            (!parts.is_empty()).then(|| format!("{}: {}", label(page, id), parts.join(", ")))
        })
        .collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// Why a finding is what it is, in a sentence.
pub(crate) fn why(
    finding: Finding,
    published: Published,
    effect: &Effect,
    is_said_to_be_same: bool,
) -> String {
    let found = ratio(&effect.ratio);
    let band = percent(effect.band);
    let bytes = effect.reply_bytes.map_or_else(String::new, |factor| {
        format!(
            " Of this ratio, \u{d7}{} is the size of the replies, which is no speed.",
            number(factor)
        )
    });
    let text = match (published, finding) {
        (Published::Same(share), _) => {
            let share_text = percent(share.max(effect.band));
            let what = if is_said_to_be_same {
                format!("The page's own numbers, or the noise here, differ by up to {share_text}")
            } else {
                format!("The published ratio is 1 to within {share_text}")
            };
            let outcome = match finding {
                Finding::Confirmed => "no more than that is seen here",
                Finding::Reversed => "here the two are further apart",
                _ => "here it cannot be told whether they are closer",
            };
            format!("{what}, and {outcome}: {found}.")
        }
        (_, Finding::NotReproduced) => {
            let word = if effect.decision == Decision::Equivalent {
                "the two are equal"
            } else {
                "no difference is seen"
            };
            let hidden = if effect.hides(published) {
                " The published difference is itself within that."
            } else {
                ""
            };
            format!("Beyond the noise of {band} {word}: {found}.{hidden}")
        }
        (_, Finding::Reversed) => {
            format!("The difference is beyond the noise, in the other direction: {found}.")
        }
        (Published::Ratio(stated), Finding::Smaller) => format!(
            "The direction holds, and the whole interval {found} is short of the published \
             \u{d7}{}.",
            number(stated.middle())
        ),
        (Published::Ratio(stated), _) => {
            let covers = stated.high >= effect.ratio.low && stated.low <= effect.ratio.high;
            let word = if covers { "covers" } else { "is beyond" };
            format!("The interval {found} {word} the published \u{d7}{}.", number(stated.middle()))
        }
        (Published::Side(_), _) => format!("The direction holds: {found}."),
    };
    format!("{text}{bytes}")
}

/// A sentence if requests per second point the other way than CPU time, and are worth hearing.
pub(crate) fn contradiction(
    program: &Program,
    results: Results<'_>,
    claim: &Claim,
    pair: (&str, &str),
    found: &Effect,
) -> Option<String> {
    if found.measure != Some(PairMeasure::ServerCpu) {
        return None;
    }
    let trial = program.trial(claim.scenario.get_ref())?;
    let is_client_bound = [pair.0, pair.1].iter().any(|id| {
        let corrected = results.observed(&trial.id, id).and_then(|o| o.corrected.as_ref());
        corrected.is_none_or(|figures| figures.is_client_bound)
    });
    let cpu = results.pair(&trial.id, pair, PairMeasure::ServerCpu)?;
    let rate = results.pair(&trial.id, pair, PairMeasure::Throughput)?;
    let opposite = match cpu.decision {
        Decision::Faster => Decision::Slower,
        Decision::Slower => Decision::Faster,
        _ => return None,
    };
    (rate.decision == opposite && !is_client_bound).then(|| {
        format!(
            "Requests per second point the other way ({}): the cheaper server left CPU time \
             unused.",
            ratio(&rate.ratio)
        )
    })
}

/// The versions of a claim's contenders, then and today.
pub(crate) fn versions(page: &Document, program: &Program, claim: &Claim) -> Option<String> {
    let sides = [Some(&claim.subject), claim.object.as_ref()];
    let texts: Vec<String> = sides
        .into_iter()
        .flatten()
        .filter_map(|side| {
            let version = program.versions.iter().find(|version| version.id == *side.get_ref())?;
            let today = version.today.as_ref()?;
            let then = version.page.as_deref().unwrap_or("not printed");
            Some(format!("{} {today} (the page's: {then})", label(page, &version.id)))
        })
        .collect();
    (!texts.is_empty()).then(|| format!("Today's versions: {}.", texts.join(", ")))
}

/// A sentence with the names of subject and object in the place of their marks.
pub(crate) fn named(page: &Document, claim: &Claim, sentence: &str) -> String {
    let subject = label(page, claim.subject.get_ref());
    let object = claim.object.as_ref().map_or("", |object| label(page, object.get_ref()));
    sentence.replace("{subject}", subject).replace("{object}", object)
}

/// `×1.211 [1.190, 1.232]`, without the interval where there is none.
pub(crate) fn ratio(ratio: &Ratio) -> String {
    if ratio.is_known() {
        format!("\u{d7}{} [{}, {}]", number(ratio.estimate), number(ratio.low), number(ratio.high))
    } else {
        format!("\u{d7}{}", number(ratio.estimate))
    }
}

/// A ratio with three decimals, or four digits where it is small or large.
pub(crate) fn number(ratio: f64) -> String {
    if ratio.abs() < 0.1 || ratio >= 100.0 {
        return if ratio.abs() < 0.1 { format!("{ratio:.5}") } else { digits_text(ratio) };
    }
    format!("{ratio:.3}")
}

fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.1} %", share * 100.0) } else { "unknown size".to_owned() }
}
