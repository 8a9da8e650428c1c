//! The access log in the tree.

use super::tree::ServerConfig;
use crate::error::Error;
use crate::log::{self, Form, Log, Style};
use peregrine_config::{ConfigError, MaybeText, Size, Time};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The access log: a line for each request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
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
            queue_bytes_max: log::QUEUE_BYTES_MAX,
            end_timeout: log::END_TIMEOUT,
        }
    }
}

/// How a line of the access log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
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
    /// The log that is asked for, if one is.
    pub(super) fn made(&self) -> Option<Log> {
        let log = Self::at(self.target.as_ref()?);
        let log = log.style(self.style()).queue_bytes_max(self.queue_bytes_max);
        Some(log.end_timeout(self.end_timeout))
    }

    fn at(target: &str) -> Log {
        if target == "stdout" { Log::stdout() } else { Log::file(target) }
    }

    /// How lines look.
    pub(super) fn style(&self) -> Style {
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

    /// Opens the place where lines go.
    pub(super) fn open(&self) -> Result<Option<log::Sink>, Error> {
        self.target.as_ref().map(|target| Self::at(target).open()).transpose()
    }

    /// What counts of `read` where this counted before: the log is there or not as it began, with its queue.
    pub(super) fn changed_to(&self, read: &Self) -> Self {
        Self {
            target: read.target.clone().or_else(|| self.target.clone()),
            queue_bytes_max: self.queue_bytes_max,
            end_timeout: self.end_timeout,
            ..read.clone()
        }
    }
}

impl ServerConfig {
    pub(super) fn check_access_log(&self) -> Result<(), ConfigError> {
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
