//! The server's timeouts and rates as the cases use them: only this file names the settings.

use peregrine::Limits;
use std::time::Duration;

/// The timeouts and rates that cases vary, and all other limits.
#[derive(Clone, Debug)]
pub struct ServerTimeouts {
    /// All other limits.
    pub limits: Limits,
    /// Bytes per second that a peer must send or read while the server waits for it.
    pub transfer_rate_min: u64,
    /// How far a peer may fall behind that rate, and how long it may transfer nothing.
    pub rate_window: Duration,
    /// How long an upgraded connection may be silent.
    pub upgrade_idle: Option<Duration>,
    /// How long a draining server keeps accepting and answering.
    pub lame_duck_period: Duration,
    /// How long a draining server keeps idle connections open.
    pub drain_idle: Duration,
    /// How long a peer that sends nothing more may delay the close of an answered connection.
    pub linger: Duration,
    /// How long any peer may delay that close.
    pub linger_time_max: Duration,
    /// The time limit of a whole exchange.
    pub exchange: Option<Duration>,
}

impl Default for ServerTimeouts {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            transfer_rate_min: 240,
            rate_window: Duration::from_secs(30),
            upgrade_idle: None,
            lame_duck_period: Duration::ZERO,
            drain_idle: Duration::from_secs(1),
            linger: Duration::from_secs(5),
            linger_time_max: Duration::from_secs(60),
            exchange: None,
        }
    }
}

impl ServerTimeouts {
    /// The limits of a server with these settings.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            transfer_rate_min: self.transfer_rate_min,
            transfer_rate_grace: self.rate_window,
            upgraded_idle_timeout: self.upgrade_idle,
            lame_duck_period: self.lame_duck_period,
            drain_idle_timeout: self.drain_idle,
            linger_timeout: self.linger,
            linger_time_max: self.linger_time_max,
            exchange_timeout: self.exchange,
            ..self.limits.clone()
        }
    }
}
