//! The kinds of scenarios: each takes a level and gives run files.

mod idle;
mod latency;
mod overload;
mod paired;
mod separate;
mod shutdown;

use peregrine_lab_model::RunFile;
use peregrine_lab_scenario::Kind;

use crate::error::RunError;
use crate::progress::Progress;
use crate::session::Level;

/// Measures one level of a scenario as its kind asks.
pub(crate) fn measure(
    level: &mut Level<'_>,
    progress: &mut dyn Progress,
) -> Result<Vec<RunFile>, RunError> {
    match &level.wanted.scenario.kind {
        Kind::Load if level.wanted.is_fresh() => Ok(vec![separate::measure(level, progress)?]),
        Kind::Load => Ok(vec![paired::measure(level, progress)?]),
        Kind::Latency { rates } => latency::measure(level, &rates.clone(), progress),
        Kind::Idle => Ok(vec![idle::measure(level, progress)?]),
        Kind::Overload { factor } => Ok(vec![overload::measure(level, *factor, progress)?]),
        Kind::Shutdown => Ok(vec![shutdown::measure(level, progress)?]),
        Kind::Micro(_) => Err(RunError::Invalid(format!(
            "{} is measured inside a process, not over connections",
            level.wanted.scenario.name
        ))),
    }
}
