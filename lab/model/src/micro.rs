//! Times of operations inside a process, without sockets.

use serde::{Deserialize, Serialize};

/// How long one operation of a micro benchmark takes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Operation {
    /// What was done, such as `2 parameters random`.
    pub operation: String,
    /// How it was timed, such as `match` (the lookup alone) or `read` (and every value read).
    pub mode: String,
    /// What did it.
    pub contender: String,
    /// Nanoseconds per operation: the median of the samples.
    pub nanoseconds: f64,
}
