//! The settings of tracing, and of the collector that receives the spans.

use super::server::ServerConfig;
use peregrine_config::{ConfigError, HumanDuration, OptionalString, SecretString};
use peregrine_server::TraceConfig;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Traces of requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct TraceSection {
    /// Whether sampled requests get a span with OpenTelemetry's attributes.
    pub enabled: bool,
    /// The share of new traces that are sampled, from 0.0 (none) to 1.0 (all). Applied on reload.
    pub sample_ratio: f64,
    /// Whether a request follows the sampling decision of the trace that it belongs to. Set `false`
    /// if untrusted clients can reach the server: they could force it to record everything. Applied
    /// on reload.
    pub follow_remote_parents: bool,
    /// Sampling ratios for individual routes, by pattern: `"/health" = 0.0`. With 0.0, no request
    /// is sampled, even if its trace is. Applied on reload.
    pub route_sample_ratios: BTreeMap<String, f64>,
    /// The collector to send spans to. Needs the feature `otlp`.
    pub otlp: OtlpConfig,
}

impl Default for TraceSection {
    fn default() -> Self {
        Self {
            enabled: false,
            sample_ratio: 1.0,
            follow_remote_parents: true,
            route_sample_ratios: BTreeMap::new(),
            otlp: OtlpConfig::default(),
        }
    }
}

/// The OpenTelemetry collector that receives spans, by OTLP over HTTP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct OtlpConfig {
    /// The collector's URL, such as `http://collector:4318`; `off`: no spans are sent. A program
    /// with its own `tracing` subscriber adds the layer of `Otlp::from_config` to it.
    #[serde(with = "OptionalString")]
    pub endpoint: Option<String>,
    /// The service name; `off`: the value of `OTEL_SERVICE_NAME`.
    #[serde(with = "OptionalString")]
    pub service_name: Option<String>,
    /// Header fields of requests to the collector, for example for authentication:
    /// `authorization = "Bearer .."`. The values are never printed.
    pub headers: BTreeMap<String, SecretString>,
    /// The timeout for sending one batch of spans.
    #[serde(with = "HumanDuration")]
    pub export_timeout: Duration,
    /// How long shutdown waits until all spans are sent.
    #[serde(with = "HumanDuration")]
    pub flush_timeout: Duration,
}

impl Default for OtlpConfig {
    fn default() -> Self {
        Self {
            endpoint: None,
            service_name: None,
            headers: BTreeMap::new(),
            export_timeout: Duration::from_secs(10),
            flush_timeout: Duration::from_secs(5),
        }
    }
}

impl TraceSection {
    /// Builds the sampling settings, if traces are enabled.
    #[doc(hidden)]
    #[must_use]
    pub fn to_trace_config(&self) -> Option<TraceConfig> {
        self.enabled.then(|| {
            let traces = TraceConfig::new().sample_ratio(self.sample_ratio);
            let traces =
                if self.follow_remote_parents { traces } else { traces.ignore_remote_parents() };
            self.route_sample_ratios
                .iter()
                .fold(traces, |traces, (pattern, ratio)| traces.route_sample_ratio(pattern, *ratio))
        })
    }

    /// Returns these settings with the changes in `read` that a running server can apply: all
    /// except `enabled` and `otlp`.
    #[doc(hidden)]
    #[must_use]
    pub fn merge_reloadable(&self, read: &Self) -> Self {
        Self { enabled: self.enabled, otlp: self.otlp.clone(), ..read.clone() }
    }
}

impl ServerConfig {
    /// Checks the settings of tracing.
    pub(crate) fn check_traces(&self) -> Result<(), ConfigError> {
        let fail =
            |name: &str, text: &str| Err(ConfigError::for_key(&format!("traces.{name}"), text));
        let traces = &self.traces;
        let route_ratio =
            |(pattern, ratio): (&String, &f64)| (format!("route_sample_ratios.{pattern}"), *ratio);
        let routes = traces.route_sample_ratios.iter().map(route_ratio);
        let default_ratio = ("sample_ratio".to_owned(), traces.sample_ratio);
        for (name, ratio) in std::iter::once(default_ratio).chain(routes) {
            if !(0.0..=1.0).contains(&ratio) {
                let text = format!("{ratio} is out of range: use 0.0 (none) to 1.0 (all)");
                return fail(&name, &text);
            }
        }
        if traces.otlp.export_timeout.is_zero() {
            return fail("otlp.export_timeout", "a timeout of zero would send nothing");
        }
        for (name, value) in &traces.otlp.headers {
            let is_valid = http::HeaderName::try_from(name.as_str()).is_ok()
                && http::HeaderValue::try_from(value.expose_secret()).is_ok();
            if !is_valid {
                return fail(&format!("otlp.headers.{name}"), "not a valid HTTP header field");
            }
        }
        let Some(endpoint) = &traces.otlp.endpoint else { return Ok(()) };
        // The URL may contain a password, so the error does not show the URL.
        let url = http::Uri::try_from(endpoint.as_str()).ok();
        let url = url.filter(|url| matches!(url.scheme_str(), Some("http" | "https")));
        match url.as_ref().and_then(http::Uri::authority) {
            None => fail("otlp.endpoint", "write a URL, such as `http://collector:4318`"),
            Some(authority) if authority.as_str().contains('@') => {
                let text = "a password in a URL would be printed: set `authorization` in \
                            `traces.otlp.headers` instead";
                fail("otlp.endpoint", text)
            }
            Some(_) if cfg!(not(feature = "otlp")) => {
                let text = "this program was built without the feature `otlp` of `peregrine`";
                fail("otlp.endpoint", text)
            }
            Some(_) if !traces.enabled => {
                fail("enabled", "a collector is set, but traces are off: write `enabled = true`")
            }
            Some(_) => Ok(()),
        }
    }
}
