//! What must hold in every run, whatever the server does.

use serde::Serialize;

use super::Plan;
use super::outcome::Outcome;

/// How far Little's law may be off: rounding and the distance between two readings of the clock.
const LITTLE_TOLERANCE: f64 = 0.05;

/// A run this long must see the Date field move.
const DATE_SECONDS_MIN: f64 = 1.5;

/// The client must be able to do this many times what was measured.
pub(crate) const CEILING_RATIO_MIN: f64 = 2.0;

/// One rule, and whether it held.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// Whether it held; none if this run cannot tell.
    pub holds: Option<bool>,
    /// Whether the run counts for nothing if it did not hold. Otherwise it is a remark.
    pub is_voiding: bool,
    /// The figures behind the answer.
    pub detail: String,
}

/// What the same client can do against the null server.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ceiling {
    /// Replies per second.
    pub rate: f64,
    /// Microseconds of client CPU time per reply.
    pub client_us_per_reply: f64,
}

impl Ceiling {
    /// Whether the client was, or may have been, what limited a run at this rate.
    #[must_use]
    pub fn is_client_bound(&self, rate: f64) -> bool {
        self.rate < CEILING_RATIO_MIN * rate
    }
}

/// Every rule that the outcome of the plan can be held against.
#[must_use]
pub fn checks(plan: &Plan, outcome: &Outcome, ceiling: Option<&Ceiling>) -> Vec<Check> {
    let mut all = vec![answers(outcome), sums(outcome), little(plan, outcome)];
    // Messages of a WebSocket have no fields.
    if !plan.question.is_websocket {
        all.push(date(outcome));
    }
    if plan.is_http2 {
        all.push(streams(plan, outcome));
    }
    if plan.requests_per_connection.is_some() {
        all.push(Check {
            name: "close is obeyed",
            holds: Some(outcome.closes_ignored == 0),
            is_voiding: false,
            detail: format!("{} connections were left open", outcome.closes_ignored),
        });
    }
    if plan.tls.is_some() {
        all.push(Check {
            name: if plan.is_http2 { "h2 by ALPN" } else { "http/1.1 by ALPN" },
            holds: Some(outcome.alpn_missing == 0),
            is_voiding: false,
            detail: format!("missing on {} connections", outcome.alpn_missing),
        });
    }
    if !plan.schedule.is_closed() {
        all.push(kept_schedule(outcome));
    }
    if let Some(ceiling) = ceiling {
        let rate = outcome.rate();
        all.push(Check {
            name: "client headroom",
            holds: Some(!ceiling.is_client_bound(rate)),
            is_voiding: false,
            detail: format!(
                "{:.0}/s measured, the client can do {:.0}/s ({:.1}x, {CEILING_RATIO_MIN}x needed)",
                rate,
                ceiling.rate,
                ceiling.rate / rate
            ),
        });
    }
    all
}

fn answers(outcome: &Outcome) -> Check {
    Check {
        name: "every answer is right",
        holds: (!outcome.is_silent()).then_some(outcome.faults.total() == 0),
        is_voiding: true,
        detail: format!("{} right, faults: {}", outcome.replies, outcome.faults),
    }
}

fn sums(outcome: &Outcome) -> Check {
    let accounted = outcome.replies + outcome.failed + outcome.outstanding;
    Check {
        name: "sent = replies + failed + outstanding",
        holds: Some(outcome.sent == accounted),
        is_voiding: true,
        detail: format!(
            "{} = {} + {} + {}",
            outcome.sent, outcome.replies, outcome.failed, outcome.outstanding
        ),
    }
}

/// Little's law: requests under way, on average over time, are the rate at which they come times
/// how long they stay. Both sides are counted independently, and neither may exceed the places
/// that there are.
fn little(plan: &Plan, outcome: &Outcome) -> Check {
    let wall_ns = outcome.wall.as_nanos() as f64;
    let under_way = outcome.occupied_ns as f64 / wall_ns;
    let product = outcome.waited_ns as f64 / wall_ns;
    let places = (plan.connections * plan.depth) as f64;
    let is_equal = (product - under_way).abs() <= LITTLE_TOLERANCE * product.max(under_way) + 0.01;
    let has_places = product <= places * (1.0 + LITTLE_TOLERANCE);
    Check {
        name: "Little's law",
        holds: (outcome.sent > 0).then_some(is_equal && has_places),
        is_voiding: true,
        detail: format!("{under_way:.2} under way, rate x time {product:.2}, {places:.0} places"),
    }
}

fn date(outcome: &Outcome) -> Check {
    let dates = &outcome.dates;
    let has_time = outcome.asked.as_secs_f64() > DATE_SECONDS_MIN;
    let holds = match (dates.present, dates.missing) {
        (0, 0) => None,
        (_, 0) if has_time => Some(dates.changes > 0),
        (_, 0) => None,
        _ => Some(false),
    };
    Check {
        name: "Date is present and moves",
        holds,
        is_voiding: false,
        detail: format!(
            "present in {}, missing in {}, {} changes",
            dates.present, dates.missing, dates.changes
        ),
    }
}

/// Whether the server lets as many requests be under way as were asked for.
fn streams(plan: &Plan, outcome: &Outcome) -> Check {
    let asked = plan.depth;
    Check {
        name: "streams as asked",
        holds: Some(outcome.streams_max.is_none_or(|most| most >= asked)),
        is_voiding: false,
        detail: match outcome.streams_max {
            Some(most) if most < asked => {
                format!("{asked} asked for, but the server allows {most}: no more were under way")
            }
            Some(most) => format!("{asked} asked for, the server allows {most}"),
            None => format!("{asked} asked for, the server sets no limit"),
        },
    }
}

fn kept_schedule(outcome: &Outcome) -> Check {
    Check {
        name: "the schedule was kept",
        holds: Some(outcome.dropped == 0),
        is_voiding: false,
        detail: format!("{} dropped, {} more than 1 ms late", outcome.dropped, outcome.late),
    }
}
