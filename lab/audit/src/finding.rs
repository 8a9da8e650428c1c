//! What a check says.

use serde::Serialize;

/// How much a finding takes away from the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The printed numbers contradict each other or the tool: they cannot all be measurements.
    Impossible,
    /// The numbers may be true, but what a reader takes from them is not.
    Misleading,
    /// Something that one needs to judge or repeat the numbers is not printed.
    Missing,
    /// Worth knowing; takes nothing away.
    Note,
}

impl Severity {
    /// All severities, the gravest first.
    pub const ALL: [Self; 4] = [Self::Impossible, Self::Misleading, Self::Missing, Self::Note];

    /// The word in reports.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Impossible => "impossible",
            Self::Misleading => "misleading",
            Self::Missing => "missing",
            Self::Note => "note",
        }
    }
}

/// Which check a finding comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// Requests in flight against connections, by Little's law.
    LittleBound,
    /// Far fewer requests in flight than connections.
    BusyConnections,
    /// Every row has about one request in flight.
    OneInFlight,
    /// More threads than connections.
    ThreadsOverConnections,
    /// A maximum at the tool's timeout.
    MaximumAtTimeout,
    /// No word about errors.
    ErrorsNotShown,
    /// Failed requests in a ranked rate.
    ErrorsCounted,
    /// Replies of different size.
    BytesPerReply,
    /// Latencies on the grid of a coarse clock.
    ClockGrid,
    /// A median of zero.
    ZeroMedian,
    /// A gap in the description of the set-up.
    NotPrinted,
    /// Client and server on the same cores.
    SharedCores,
    /// A percentage or factor that does not follow from the rows.
    ClaimArithmetic,
    /// A percentage or factor whose words say something else than its number.
    ClaimWording,
    /// A claim that stands on impossible numbers.
    ClaimBasis,
    /// A number that is printed twice, differently.
    Restated,
    /// A ranking of differences that noise explains.
    Noise,
    /// Percentiles that fall, or a mean outside of its bounds.
    PercentileOrder,
    /// Totals that do not match their rates.
    Totals,
    /// The author took the numbers back.
    Withdrawn,
    /// The shown numbers were chosen after measuring.
    Selected,
    /// A table where the publisher's own entry loses, and no sentence says so.
    UnmentionedLoss,
    /// A contender did not run as it would in production.
    Handicap,
}

impl Check {
    /// The name in reports, the same as in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::LittleBound => "little-bound",
            Self::BusyConnections => "busy-connections",
            Self::OneInFlight => "one-in-flight",
            Self::ThreadsOverConnections => "threads-over-connections",
            Self::MaximumAtTimeout => "maximum-at-timeout",
            Self::ErrorsNotShown => "errors-not-shown",
            Self::ErrorsCounted => "errors-counted",
            Self::BytesPerReply => "bytes-per-reply",
            Self::ClockGrid => "clock-grid",
            Self::ZeroMedian => "zero-median",
            Self::NotPrinted => "not-printed",
            Self::SharedCores => "shared-cores",
            Self::ClaimArithmetic => "claim-arithmetic",
            Self::ClaimWording => "claim-wording",
            Self::ClaimBasis => "claim-basis",
            Self::Restated => "restated",
            Self::Noise => "noise",
            Self::PercentileOrder => "percentile-order",
            Self::Totals => "totals",
            Self::Withdrawn => "withdrawn",
            Self::Selected => "selected",
            Self::UnmentionedLoss => "unmentioned-loss",
            Self::Handicap => "handicap",
        }
    }
}

/// One result of a check, with its arithmetic in words that a reader can repeat.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// How grave it is.
    pub severity: Severity,
    /// The check that found it.
    pub check: Check,
    /// The rows or claims it is about, as `scenario/contender` or a claim's id; may be empty.
    pub concerns: Vec<String>,
    /// One sentence.
    pub summary: String,
    /// The arithmetic or the quotation behind it.
    pub detail: String,
}

impl Finding {
    /// A finding about some rows or claims.
    #[must_use]
    pub fn new(
        severity: Severity,
        check: Check,
        concerns: Vec<String>,
        summary: &str,
        detail: String,
    ) -> Self {
        Self { severity, check, concerns, summary: summary.to_owned(), detail }
    }
}
