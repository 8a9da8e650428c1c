//! The keys of a scenario file, as they are written. A key that is not here is refused.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use crate::error::Wrong;
use crate::scenario::TlsMode;

/// A whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileKeys {
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) about: String,
    #[serde(default)]
    pub(crate) published: Vec<String>,
    pub(crate) kind: KindKey,
    #[serde(default)]
    pub(crate) echo: bool,
    pub(crate) request: Option<RequestKeys>,
    pub(crate) reply: Option<ReplyKeys>,
    #[serde(default, rename = "probe")]
    pub(crate) probes: Vec<ProbeKeys>,
    pub(crate) load: Option<LoadKeys>,
    pub(crate) micro: Option<MicroKeys>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum KindKey {
    Load,
    Latency,
    Idle,
    Overload,
    Shutdown,
    Micro,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestKeys {
    pub(crate) method: Option<String>,
    pub(crate) target: String,
    #[serde(default)]
    pub(crate) websocket: bool,
    #[serde(default)]
    pub(crate) fields: BTreeMap<String, String>,
    pub(crate) fields_total: Option<usize>,
    pub(crate) body: Option<String>,
    pub(crate) body_file: Option<PathBuf>,
    pub(crate) body_size: Option<usize>,
    pub(crate) form_file_size: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplyKeys {
    pub(crate) status: Option<u16>,
    #[serde(default)]
    pub(crate) fields: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) trailers: BTreeMap<String, String>,
    pub(crate) text: Option<String>,
    pub(crate) lines: Option<usize>,
    pub(crate) json: Option<String>,
    pub(crate) json_file: Option<PathBuf>,
    pub(crate) length: Option<usize>,
    pub(crate) upload: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProbeKeys {
    pub(crate) name: String,
    pub(crate) request: RequestKeys,
    pub(crate) reply: ReplyKeys,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoadKeys {
    pub(crate) connections: Vec<usize>,
    pub(crate) tls: Option<TlsMode>,
    pub(crate) pipeline: Option<usize>,
    pub(crate) requests_per_connection: Option<u64>,
    pub(crate) idle_connections: Option<usize>,
    pub(crate) sent_again_share_max: Option<f64>,
    pub(crate) shares: Option<Vec<f64>>,
    pub(crate) factor: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MicroKeys {
    pub(crate) command: Vec<String>,
    pub(crate) folder: PathBuf,
    pub(crate) result_variable: String,
}

/// Reads the keys.
pub(crate) fn read(text: &str) -> Result<FileKeys, Wrong> {
    toml::from_str(text).map_err(|error| {
        let message = error.message().trim().replace('\n', " ");
        let quoted = message.split('`').nth(1).unwrap_or_default();
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = text[..at].matches('\n').count() + 1;
        let (key, fix) = if message.starts_with("missing field") {
            (quoted.to_owned(), "add the key; lab/scenarios/README.md explains all of them")
        } else if message.starts_with("unknown field") {
            (quoted.to_owned(), "remove it, or spell it as in lab/scenarios/README.md")
        } else {
            let found = text.lines().nth(line - 1).unwrap_or_default();
            let key = found.split('=').next().unwrap_or_default().trim();
            (key.to_owned(), "lab/scenarios/README.md says what each key takes")
        };
        Wrong::new(key, format!("line {line}: {message}"), fix)
    })
}
