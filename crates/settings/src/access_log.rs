//! The settings of the access log and of the program's log.

use super::server::ServerConfig;
use peregrine_config::{ByteSize, ConfigError, HumanDuration, OptionalString};
use peregrine_server::{AccessLogFormat, AccessLogStyle};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Settings of the program's log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct LoggingConfig {
    /// The filter of the program's log, in the syntax of `tracing-subscriber`: `info`, or
    /// `info,peregrine=debug`. The program must pass it to its subscriber.
    pub level: String,
}

impl Default for LoggingConfig {
    fn default() -> Self {
        Self { level: "info".to_owned() }
    }
}

/// The access log: one line per request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AccessLogConfig {
    /// Where to write lines: `stdout`, the path of a file, or `off`. A reload can change the
    /// target, but cannot turn the log on or off.
    #[serde(with = "OptionalString")]
    pub target: Option<String>,
    /// The line format: `common`, `combined`, or `json`. Applied on reload.
    pub format: LineFormat,
    /// Whether lines contain query strings, which may hold secrets. Applied on reload.
    pub include_query: bool,
    /// Patterns of routes whose requests are not logged, such as `/health`. Applied on reload.
    pub excluded_routes: Vec<String>,
    /// The size of each worker's queue of unwritten lines. Lines that do not fit are dropped and
    /// counted. A second queue of the same size receives the lines that are logged while the writer
    /// thread empties the first one, so up to twice as many bytes can wait.
    #[serde(with = "ByteSize")]
    pub queue_bytes_max: usize,
    /// How long shutdown waits until all lines are written.
    #[serde(with = "HumanDuration")]
    pub flush_timeout: Duration,
}

impl Default for AccessLogConfig {
    fn default() -> Self {
        Self {
            target: None,
            format: LineFormat::Combined,
            include_query: true,
            excluded_routes: Vec::new(),
            queue_bytes_max: 1 << 20,
            flush_timeout: Duration::from_secs(5),
        }
    }
}

/// The line format of the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LineFormat {
    /// The Common Log Format.
    Common,
    /// The Common Log Format with the `Referer` and `User-Agent` fields.
    #[default]
    Combined,
    /// A JSON object with OpenTelemetry's attribute names.
    Json,
}

impl AccessLogConfig {
    /// Returns the format and the selection of lines.
    #[doc(hidden)]
    #[must_use]
    pub fn style(&self) -> AccessLogStyle {
        AccessLogStyle {
            format: match self.format {
                LineFormat::Common => AccessLogFormat::Common,
                LineFormat::Combined => AccessLogFormat::Combined,
                LineFormat::Json => AccessLogFormat::Json,
            },
            omit_query: !self.include_query,
            excluded_routes: self.excluded_routes.iter().cloned().collect(),
        }
    }

    /// Returns these settings with the changes in `read` that a running server can apply. It cannot
    /// turn the log on or off, and cannot change the queue size and the flush timeout.
    #[doc(hidden)]
    #[must_use]
    pub fn merge_reloadable(&self, read: &Self) -> Self {
        Self {
            target: read.target.clone().or_else(|| self.target.clone()),
            queue_bytes_max: self.queue_bytes_max,
            flush_timeout: self.flush_timeout,
            ..read.clone()
        }
    }
}

impl ServerConfig {
    /// Checks the settings of the access log.
    pub(crate) fn check_access_log(&self) -> Result<(), ConfigError> {
        let fail =
            |name: &str, text: &str| Err(ConfigError::for_key(&format!("access_log.{name}"), text));
        let log = &self.access_log;
        // A line contains only a few fields of up to 8 KiB each.
        if log.queue_bytes_max < 1024 {
            return fail("queue_bytes_max", "too small for a line: use at least `1 KiB`");
        }
        if let Some(pattern) = log.excluded_routes.iter().find(|pattern| !pattern.starts_with('/'))
        {
            let text = format!("`{pattern}` is not a route pattern: patterns start with `/`");
            return fail("excluded_routes", &text);
        }
        Ok(())
    }
}
