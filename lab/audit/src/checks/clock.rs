//! Clocks too coarse for what they measured.

use crate::claim::{Document, Row};
use crate::figures::RowFigures;
use crate::finding::{Check, Finding, Severity};
use crate::quantity::{Printed, Time, digits_text, time_text};

/// The steps of clocks and timers that benchmark clients are known to read, in seconds: the tick
/// of Windows, of a 100 Hz kernel, a millisecond timer, and the half-millisecond tick of Windows'
/// finest timer setting.
const STEPS: [f64; 4] = [15.625e-3, 10e-3, 1e-3, 0.5e-3];

/// How far from a multiple a value may lie, as a share of the step: ticks drift a little against
/// the clock that prints them.
const TOLERANCE: f64 = 0.05;

/// Values above so many steps are not looked at: the drift of many ticks blurs the grid.
const MULTIPLE_MAX: f64 = 8.0;

/// A grid is reported if chance would put so many values on it less often than this.
const CHANCE_MAX: f64 = 1e-4;

/// One latency of a row.
type Column = fn(&Row) -> Option<&Printed<Time>>;

/// Finds latencies that were read from a coarse clock.
///
/// If nearly all medians of a page are multiples of half a millisecond, although they are printed
/// in microseconds, the clock moved in such steps: digits after the step mean nothing, short
/// replies read as zero, and percentiles of fast servers cannot be compared.
///
/// Evenly spread values fall within a twentieth of a step around a multiple one time in ten; the
/// finding gives the probability that as many do by chance.
#[must_use]
pub fn clock_grid(document: &Document) -> Vec<Finding> {
    let columns: [(&str, Column); 5] = [
        ("p50", |row| row.p50.as_ref()),
        ("mean", |row| row.mean.as_ref()),
        ("min", |row| row.min.as_ref()),
        ("p95", |row| row.p95.as_ref()),
        ("p99", |row| row.p99.as_ref()),
    ];
    let mut findings = Vec::new();
    for (name, column) in columns {
        let values: Vec<(String, &Printed<Time>)> =
            document.rows.iter().filter_map(|row| Some((row.name(), column(row)?))).collect();
        // The coarsest step that explains the values is the clock's.
        let grid = STEPS.iter().find_map(|step| grid_of(&values, *step));
        if let Some(grid) = grid {
            findings.push(grid.finding(name));
        }
    }
    findings
}

struct Grid {
    step: f64,
    on: Vec<String>,
    texts: Vec<String>,
    looked_at: usize,
    chance: f64,
}

fn grid_of(values: &[(String, &Printed<Time>)], step: f64) -> Option<Grid> {
    let looked_at: Vec<_> = values
        .iter()
        .filter(|(_, printed)| {
            printed.step() <= TOLERANCE * step && printed.value() <= MULTIPLE_MAX * step
        })
        .collect();
    let on: Vec<_> = looked_at
        .iter()
        .filter(|(_, printed)| {
            let multiple = printed.value() / step;
            (multiple - multiple.round()).abs() <= TOLERANCE
        })
        .collect();
    // All values on zero is no grid but a clock that never moved; `zero_median` speaks of that.
    let beyond_zero = on.iter().filter(|(_, printed)| printed.value() > step / 2.0).count();
    let chance = binomial_tail(looked_at.len(), on.len(), 2.0 * TOLERANCE);
    if looked_at.len() < 5 || beyond_zero < 2 || chance > CHANCE_MAX {
        return None;
    }
    Some(Grid {
        step,
        on: on.iter().map(|(row, _)| row.clone()).collect(),
        texts: on.iter().map(|(_, printed)| printed.text().to_owned()).collect(),
        looked_at: looked_at.len(),
        chance,
    })
}

impl Grid {
    fn finding(self, column: &str) -> Finding {
        let detail = format!(
            "{} of {} {column} values lie on multiples of {} (within {} of a step): {}. Chance would \
             do this with a probability of {}. Digits below the step are not measured.",
            self.on.len(),
            self.looked_at,
            time_text(self.step),
            digits_text(TOLERANCE),
            self.texts.join(", "),
            digits_text(self.chance),
        );
        let summary = "Latencies lie on the grid of a coarse clock.";
        Finding::new(Severity::Misleading, Check::ClockGrid, self.on, summary, detail)
    }
}

/// The probability that at least `hits` of `trials` independent events of probability `p` happen.
fn binomial_tail(trials: usize, hits: usize, p: f64) -> f64 {
    let mut total = 0.0;
    for k in hits..=trials {
        let ways: f64 = (0..k).map(|i| (trials - i) as f64 / (k - i) as f64).product();
        total += ways * p.powf(k as f64) * (1.0 - p).powf((trials - k) as f64);
    }
    total
}

/// Finds medians of zero.
///
/// No request over a socket takes no time. A median that is printed as zero says that the clock
/// did not move during half of the requests; the mean time of a connection's cycle, connections /
/// rate, tells how long they really took.
#[must_use]
pub fn zero_median(document: &Document) -> Vec<Finding> {
    let mut rows = Vec::new();
    let mut details = Vec::new();
    for row in &document.rows {
        let Some(median) = row.p50.as_ref().filter(|median| median.value() == 0.0) else {
            continue;
        };
        let cycle = RowFigures::of(document, row).cycle_seconds.map_or_else(String::new, |cycle| {
            format!(", while a connection's cycle took {} on average", time_text(cycle.middle()))
        });
        details.push(format!(
            "{} prints {}: half of the requests in less than {}{cycle}",
            row.name(),
            median.text(),
            time_text(median.interval().high)
        ));
        rows.push(row.name());
    }
    if rows.is_empty() {
        return Vec::new();
    }
    let detail = format!("{}.", details.join("; "));
    let summary = "A median of zero: the clock did not move during half of the requests.";
    vec![Finding::new(Severity::Misleading, Check::ZeroMedian, rows, summary, detail)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binomial_tail_is_that_of_a_table() {
        assert!((binomial_tail(3, 2, 0.5) - 0.5).abs() < 1e-12);
        assert!((binomial_tail(9, 8, 0.1) - 8.2e-8).abs() < 1e-10);
        assert!((binomial_tail(4, 0, 0.3) - 1.0).abs() < 1e-12);
    }
}
