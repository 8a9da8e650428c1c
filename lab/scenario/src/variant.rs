//! The same scenario under another load: over TLS, or as an open loop. Names tell variants apart in
//! run files, and what a contender lacks is asked for by the file's own name.

use std::fmt;

use crate::scenario::{Kind, OpenRate, Scenario, TlsMode};

/// The rates at which an opened scenario asks, unless others are given.
pub const OPEN_RATES: [OpenRate; 2] = [OpenRate::Share(0.5), OpenRate::Share(0.8)];

/// Why a scenario has no such variant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VariantError {
    /// The scenario's name.
    pub scenario: String,
    /// What it is that does not fit.
    pub reason: &'static str,
}

impl fmt::Display for VariantError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.scenario, self.reason)
    }
}

impl std::error::Error for VariantError {}

impl Scenario {
    /// The same over TLS 1.3 with full handshakes, called `NAME-tls`. A scenario that asks over TLS
    /// by itself stays as it is.
    ///
    /// # Errors
    ///
    /// A micro benchmark has no connections.
    pub fn over_tls(mut self) -> Result<Scenario, VariantError> {
        if matches!(self.kind, Kind::Micro(_)) {
            return Err(self.refused("a micro benchmark has no connections; leave out --tls"));
        }
        if self.load.tls.is_none() {
            self.load.tls = Some(TlsMode::Full);
            self.name.push_str("-tls");
            self.title.push_str(", over TLS 1.3");
        }
        Ok(self)
    }

    /// The same as an open loop at these rates ([`OPEN_RATES`], if there are none), with latency from the
    /// intended start, called `NAME-open`. A scenario about latency keeps its name, and its own rates
    /// where none are given.
    ///
    /// # Errors
    ///
    /// Only a closed loop can be opened.
    pub fn opened(mut self, rates: &[OpenRate]) -> Result<Scenario, VariantError> {
        let or = |usual: &[OpenRate]| if rates.is_empty() { usual } else { rates }.to_vec();
        match &self.kind {
            Kind::Latency { rates } => self.kind = Kind::Latency { rates: or(rates) },
            Kind::Load => {
                self.kind = Kind::Latency { rates: or(&OPEN_RATES) };
                self.name.push_str("-open");
                self.title.push_str(", at equal rates");
            }
            _ => return Err(self.refused("only a closed loop can be opened; leave out --open")),
        }
        Ok(self)
    }

    fn refused(&self, reason: &'static str) -> VariantError {
        VariantError { scenario: self.name.clone(), reason }
    }
}
