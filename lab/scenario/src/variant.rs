//! The same scenario under another load: over HTTP/2, over TLS, or as an open loop. Names tell variants apart in
//! run files, and what a contender lacks is asked for by the file's own name.

use std::fmt;

use peregrine_lab_load::generator::DEPTH_MAX;

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
    /// The same over HTTP/2, by prior knowledge or, over TLS, by ALPN, called `NAME-h2`, with so many
    /// streams under way on each connection. Without a number there are as many as the scenario has
    /// requests under way.
    ///
    /// # Errors
    ///
    /// A scenario about connections rather than requests is asked over HTTP/1.1 only, and a connection
    /// has 1 to 1024 streams.
    pub fn over_http2(mut self, streams: Option<usize>) -> Result<Scenario, VariantError> {
        match self.kind {
            Kind::Load | Kind::Latency { .. } => {}
            Kind::Micro(_) => {
                return Err(self.refused("a micro benchmark has no connections; leave out --http2"));
            }
            Kind::Idle | Kind::Overload { .. } | Kind::Shutdown => {
                return Err(
                    self.refused("its kind is measured over HTTP/1.1 only; leave out --http2")
                );
            }
        }
        if self.load.requests_per_connection.is_some() {
            let reason = "its connections are made anew, which is measured over HTTP/1.1 only";
            return Err(self.refused(reason));
        }
        if self.exchange.as_ref().is_some_and(|exchange| exchange.wording.is_websocket) {
            return Err(self.refused("its WebSockets are opened over HTTP/1.1; leave out --http2"));
        }
        let streams = streams.unwrap_or(self.load.pipeline);
        if !(1..=DEPTH_MAX).contains(&streams) {
            return Err(
                self.refused("a connection has 1 to 1024 streams; give --streams another number")
            );
        }
        self.load.pipeline = streams;
        self.load.is_http2 = true;
        self.name.push_str("-h2");
        self.title.push_str(", over HTTP/2");
        Ok(self)
    }

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
