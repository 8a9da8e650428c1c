//! What a server promises about time, as its settings: the one place that names them.

use peregrine::Limits;
use std::time::Duration;

/// Promises beside those that [`Limits`] has under the same name in every case.
#[derive(Clone, Debug)]
pub struct Promises {
    /// Everything else.
    pub limits: Limits,
    /// Bytes a second that a peer must send or take while the server waits for it.
    pub rate_min: u64,
    /// How far a peer may fall behind it.
    pub rate_window: Duration,
    /// How long an upgraded connection may be silent.
    pub upgrade_idle: Option<Duration>,
    /// How long a server that drains goes on accepting and answering.
    pub lame_duck: Duration,
    /// How long a server that drains keeps idle connections open.
    pub drain_idle: Duration,
    /// How long a peer that does not go on may keep an answered connection from being closed.
    pub linger: Duration,
    /// How long any peer may.
    pub linger_max: Duration,
    /// How long a whole exchange may take.
    pub exchange: Option<Duration>,
}

impl Default for Promises {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            rate_min: 240,
            rate_window: Duration::from_secs(30),
            upgrade_idle: None,
            lame_duck: Duration::ZERO,
            drain_idle: Duration::from_secs(1),
            linger: Duration::from_secs(5),
            linger_max: Duration::from_secs(60),
            exchange: None,
        }
    }
}

impl Promises {
    /// The settings of a server that keeps these promises.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            rate_min: self.rate_min,
            rate_slack: self.rate_window,
            upgraded_idle_timeout: self.upgrade_idle,
            lame_duck: self.lame_duck,
            drain_idle_timeout: self.drain_idle,
            linger_timeout: self.linger,
            linger_max: self.linger_max,
            exchange_timeout: self.exchange,
            ..self.limits.clone()
        }
    }
}
