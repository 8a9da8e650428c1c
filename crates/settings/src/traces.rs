//! Traces in the tree, and the collector that they are sent to.

use super::server::ServerConfig;
use peregrine_config::{ConfigError, MaybeText, Secret, Time};
use peregrine_server::Traces;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Traces of requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct TracesConfig {
    /// Whether requests that are sampled have a span with OpenTelemetry's attributes.
    pub enabled: bool,
    /// How many of the requests that begin a trace are sampled, from 0.0 for none to 1.0 for all. A reload changes it.
    pub ratio: f64,
    /// Whether a request follows what was decided where its trace began. `false` for servers that strangers reach: they
    /// could have everything recorded. A reload changes it.
    pub follow_parents: bool,
    /// The ratios of routes that have their own, by pattern: `"/health" = 0.0`. At 0.0 none is sampled, whatever its
    /// trace says. A reload changes them.
    pub routes: BTreeMap<String, f64>,
    /// The collector that spans are sent to. With the feature `otlp`.
    pub otlp: OtlpConfig,
}

impl Default for TracesConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            ratio: 1.0,
            follow_parents: true,
            routes: BTreeMap::new(),
            otlp: OtlpConfig::default(),
        }
    }
}

/// The collector of OpenTelemetry that spans are sent to, by OTLP over HTTP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct OtlpConfig {
    /// Its address, such as `http://collector:4318`; `off`: nothing is sent. A program with a subscriber of its own adds
    /// `Otlp::from_config` to that.
    #[serde(with = "MaybeText")]
    pub endpoint: Option<String>,
    /// The name of the service; `off`: what `OTEL_SERVICE_NAME` says.
    #[serde(with = "MaybeText")]
    pub service: Option<String>,
    /// Fields of the requests to it, for those that ask who sends: `authorization = "Bearer .."`. They are not shown.
    pub headers: BTreeMap<String, Secret>,
    /// How long sending one batch of spans may take.
    #[serde(with = "Time")]
    pub send_timeout: Duration,
    /// How long the end of the server waits until all is sent.
    #[serde(with = "Time")]
    pub end_timeout: Duration,
}

impl Default for OtlpConfig {
    fn default() -> Self {
        Self {
            endpoint: None,
            service: None,
            headers: BTreeMap::new(),
            send_timeout: Duration::from_secs(10),
            end_timeout: Duration::from_secs(5),
        }
    }
}

impl TracesConfig {
    /// Which requests are sampled, if any may be.
    #[doc(hidden)]
    #[must_use]
    pub fn made(&self) -> Option<Traces> {
        self.enabled.then(|| {
            let traces = Traces::new().ratio(self.ratio);
            let traces = if self.follow_parents { traces } else { traces.ignore_parents() };
            self.routes
                .iter()
                .fold(traces, |traces, (pattern, ratio)| traces.route(pattern, *ratio))
        })
    }

    /// What counts of `read` where this counted before: there are traces or not as it began, and one collector.
    #[doc(hidden)]
    #[must_use]
    pub fn changed_to(&self, read: &Self) -> Self {
        Self { enabled: self.enabled, otlp: self.otlp.clone(), ..read.clone() }
    }
}

impl ServerConfig {
    pub(crate) fn check_traces(&self) -> Result<(), ConfigError> {
        let wrong =
            |name: &str, text: &str| Err(ConfigError::of_setting(&format!("traces.{name}"), text));
        let of = &self.traces;
        let routes = of.routes.iter().map(|(pattern, ratio)| (format!("routes.{pattern}"), *ratio));
        for (name, ratio) in std::iter::once(("ratio".to_owned(), of.ratio)).chain(routes) {
            if !(0.0..=1.0).contains(&ratio) {
                let text = format!("{ratio} is no ratio: take one from 0.0 (none) to 1.0 (all)");
                return wrong(&name, &text);
            }
        }
        if of.otlp.send_timeout.is_zero() {
            return wrong("otlp.send_timeout", "with no time at all, nothing would be sent");
        }
        for (name, value) in &of.otlp.headers {
            let is_field = http::HeaderName::try_from(name.as_str()).is_ok()
                && http::HeaderValue::try_from(value.expose()).is_ok();
            if !is_field {
                return wrong(&format!("otlp.headers.{name}"), "no field of HTTP can be so");
            }
        }
        let Some(endpoint) = &of.otlp.endpoint else { return Ok(()) };
        // What is wrong with it is not shown: it may hold a password.
        let url = http::Uri::try_from(endpoint.as_str()).ok();
        let url = url.filter(|url| matches!(url.scheme_str(), Some("http" | "https")));
        match url.as_ref().and_then(http::Uri::authority) {
            None => wrong("otlp.endpoint", "write a URL, such as `http://collector:4318`"),
            Some(authority) if authority.as_str().contains('@') => {
                let text = "a password in an address would be shown: say it in `traces.otlp.headers`, as \
                            `authorization`";
                wrong("otlp.endpoint", text)
            }
            Some(_) if cfg!(not(feature = "otlp")) => {
                let text = "this program is built without it: the feature `otlp` of `peregrine`";
                wrong("otlp.endpoint", text)
            }
            Some(_) if !of.enabled => {
                wrong("enabled", "spans are to be sent to a collector: write `enabled = true`")
            }
            Some(_) => Ok(()),
        }
    }
}
