//! The access log in the tree.

use super::server::ServerConfig;
use peregrine_config::{ConfigError, MaybeText, Size, Time};
use peregrine_server::{Form, Style};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The access log: a line for each request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AccessLogConfig {
    /// Where lines go: `stdout`, the path of a file, or `off`. A reload changes one place into another, but turns the
    /// log neither on nor off.
    #[serde(with = "MaybeText")]
    pub target: Option<String>,
    /// How a line looks: `common`, `combined`, or `json`. A reload changes it.
    pub form: LineForm,
    /// Whether queries are in it, which may hold secrets. A reload changes it.
    pub queries: bool,
    /// Patterns of routes whose requests have no line, such as `/health`. A reload changes them.
    pub routes_left_out: Vec<String>,
    /// Bytes of each worker that may wait to be written. What comes beyond is dropped and counted.
    #[serde(with = "Size")]
    pub queue_bytes_max: usize,
    /// How long the end of the server waits until all is written.
    #[serde(with = "Time")]
    pub end_timeout: Duration,
}

impl Default for AccessLogConfig {
    fn default() -> Self {
        Self {
            target: None,
            form: LineForm::Combined,
            queries: true,
            routes_left_out: Vec::new(),
            queue_bytes_max: 1 << 20,
            end_timeout: Duration::from_secs(5),
        }
    }
}

/// How a line of the access log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LineForm {
    /// The Common Log Format.
    Common,
    /// Common with the referring page and the client's name.
    #[default]
    Combined,
    /// A JSON object, with the names of OpenTelemetry.
    Json,
}

impl AccessLogConfig {
    /// How lines look.
    #[doc(hidden)]
    #[must_use]
    pub fn style(&self) -> Style {
        Style {
            form: match self.form {
                LineForm::Common => Form::Common,
                LineForm::Combined => Form::Combined,
                LineForm::Json => Form::Json,
            },
            leaves_queries_out: !self.queries,
            routes_left_out: self.routes_left_out.iter().cloned().collect(),
        }
    }

    /// What counts of `read` where this counted before: the log is there or not as it began, with its queue.
    #[doc(hidden)]
    #[must_use]
    pub fn changed_to(&self, read: &Self) -> Self {
        Self {
            target: read.target.clone().or_else(|| self.target.clone()),
            queue_bytes_max: self.queue_bytes_max,
            end_timeout: self.end_timeout,
            ..read.clone()
        }
    }
}

impl ServerConfig {
    pub(crate) fn check_access_log(&self) -> Result<(), ConfigError> {
        let wrong = |name: &str, text: &str| {
            Err(ConfigError::of_setting(&format!("access_log.{name}"), text))
        };
        let of = &self.access_log;
        // A line has at most some fields of 8 KiB.
        if of.queue_bytes_max < 1024 {
            return wrong("queue_bytes_max", "no line fits into less than `1 KiB`");
        }
        if let Some(pattern) = of.routes_left_out.iter().find(|pattern| !pattern.starts_with('/')) {
            let text = format!("`{pattern}` is no pattern of a route: it begins with `/`");
            return wrong("routes_left_out", &text);
        }
        Ok(())
    }
}
