//! TLS in the tree.

use super::acme::AcmeConfig;
use peregrine_config::{MaybeText, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// TLS of listeners: certificates, who is asked for one, and what is offered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// Certificates with their keys, each by a label. A reload reads their files again.
    pub certificates: BTreeMap<String, CertificateConfig>,
    /// Certificates that the server gets itself, beside these.
    pub acme: AcmeConfig,
    /// The label of the certificate for clients that ask for no name, or for an unknown one; `off`: the first by label.
    #[serde(with = "MaybeText")]
    pub default_certificate: Option<String>,
    /// Reads certificates again when their files change. With the feature `tls-watch`.
    pub watch: bool,
    /// Whether clients are asked for certificates.
    pub client_auth: ClientAuthConfig,
    /// A file with the keys of session tickets; `off`: keys of this process alone.
    #[serde(with = "MaybeText")]
    pub ticket_keys: Option<String>,
    /// The oldest version that is spoken: `1.2` or `1.3`.
    pub minimum_version: MinimumVersion,
    /// Cipher suites, the preferred one first; empty: the server's own choice.
    pub cipher_suites: Vec<String>,
    /// Groups for the exchange of keys, the preferred one first; empty: the server's own choice.
    pub key_exchange_groups: Vec<String>,
    /// Application protocols, the preferred one first. Without `h2`, no client gets HTTP/2.
    pub alpn: Vec<String>,
    /// Answers requests for a host that the certificate does not name with 421.
    pub host_check: bool,
    /// How long before its end a certificate is warned of.
    #[serde(with = "Time")]
    pub expiry_warning: Duration,
    /// Writes the secrets of each connection to the file that the variable `SSLKEYLOGFILE` names. Never in production.
    pub key_log: bool,
}

impl Default for TlsConfig {
    fn default() -> Self {
        Self {
            certificates: BTreeMap::new(),
            acme: AcmeConfig::default(),
            default_certificate: None,
            watch: false,
            client_auth: ClientAuthConfig::default(),
            ticket_keys: None,
            minimum_version: MinimumVersion::Tls12,
            cipher_suites: Vec::new(),
            key_exchange_groups: Vec::new(),
            alpn: ["h2", "http/1.1", "http/1.0"].map(ToOwned::to_owned).to_vec(),
            host_check: false,
            expiry_warning: Duration::from_secs(14 * 86_400),
            key_log: false,
        }
    }
}

/// A certificate chain and its key, in PEM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CertificateConfig {
    /// The file of the chain, the server's own certificate first.
    pub certificate: String,
    /// The file of its key.
    pub key: String,
    /// The file of an OCSP response to send with it, in DER; `off`: none.
    #[serde(default, with = "MaybeText")]
    pub staple: Option<String>,
}

/// Whether clients are asked for certificates, and which are good.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ClientAuthConfig {
    /// `off`, `required`, or `optional`: then a route may demand one.
    pub mode: Clients,
    /// Files of the certificates of those who issue them.
    pub roots: Vec<String>,
    /// Files of lists of revoked ones.
    pub revoked: Vec<String>,
    /// Asks of no issuer between a client and a root whether it is revoked.
    pub revocation_of_clients_only: bool,
}

/// Whether clients have certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Clients {
    /// They are asked for none.
    #[default]
    #[serde(alias = "none")]
    Off,
    /// A client without one is refused.
    Required,
    /// A client may have none.
    Optional,
}

/// The oldest version of TLS that is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum MinimumVersion {
    /// TLS 1.2.
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    Tls13,
}
