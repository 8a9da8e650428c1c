//! The settings of TLS.

use super::acme::AcmeConfig;
use peregrine_config::{HumanDuration, OptionalString};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// TLS settings of listeners: certificates, client authentication, and protocol parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct TlsSection {
    /// Certificates with their keys, by label. A reload reads the files again.
    pub certificates: BTreeMap<String, CertificateConfig>,
    /// Certificates that the server obtains itself, in addition to `certificates`.
    pub acme: AcmeConfig,
    /// The label of the certificate for clients that send no server name or an unknown one; `off`:
    /// the first by label.
    #[serde(with = "OptionalString")]
    pub default_certificate: Option<String>,
    /// Reloads certificates when their files change. Needs the feature `tls-watch`.
    pub watch_files: bool,
    /// Client certificates (mutual TLS).
    pub client_auth: ClientAuthConfig,
    /// A file with session ticket keys; `off`: random keys that only this process knows.
    #[serde(with = "OptionalString")]
    pub ticket_keys: Option<String>,
    /// The oldest TLS version accepted: `1.2` or `1.3`.
    pub min_version: MinTlsVersion,
    /// Cipher suites, preferred first; empty: the server's default.
    pub cipher_suites: Vec<String>,
    /// Key exchange groups, preferred first; empty: the server's default.
    pub key_exchange_groups: Vec<String>,
    /// ALPN protocols, preferred first. Without `h2`, clients cannot use HTTP/2.
    pub alpn: Vec<String>,
    /// Responds with 421 to requests for a host that the certificate does not cover.
    pub check_host: bool,
    /// How long before a certificate expires the server starts to log warnings.
    #[serde(with = "HumanDuration")]
    pub expiry_warning: Duration,
    /// Writes the secrets of each connection to the file named by `SSLKEYLOGFILE`. Never use it in
    /// production.
    pub key_log: bool,
}

impl Default for TlsSection {
    fn default() -> Self {
        Self {
            certificates: BTreeMap::new(),
            acme: AcmeConfig::default(),
            default_certificate: None,
            watch_files: false,
            client_auth: ClientAuthConfig::default(),
            ticket_keys: None,
            min_version: MinTlsVersion::Tls12,
            cipher_suites: Vec::new(),
            key_exchange_groups: Vec::new(),
            alpn: ["h2", "http/1.1", "http/1.0"].map(ToOwned::to_owned).to_vec(),
            check_host: false,
            expiry_warning: Duration::from_secs(14 * 86_400),
            key_log: false,
        }
    }
}

/// A PEM certificate chain and its key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CertificateConfig {
    /// The file of the chain, with the server's own certificate first.
    pub certificate: String,
    /// The file of the key.
    pub key: String,
    /// The file of a DER OCSP response to staple; `off`: none.
    #[serde(default, with = "OptionalString")]
    pub ocsp_response: Option<String>,
}

/// Whether clients must present certificates, and which certificates are accepted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ClientAuthConfig {
    /// `off`, `required`, or `optional`; with `optional`, individual routes can require a
    /// certificate.
    pub mode: ClientAuthMode,
    /// Files with the root certificates that client certificates must chain to.
    pub ca_files: Vec<String>,
    /// Files with certificate revocation lists.
    pub crl_files: Vec<String>,
    /// Checks only client certificates for revocation, not those of intermediate issuers.
    pub only_check_end_entity_revocation: bool,
}

/// Whether clients must present certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ClientAuthMode {
    /// The server requests no certificate.
    #[default]
    #[serde(alias = "none")]
    Off,
    /// Clients without a certificate are rejected.
    Required,
    /// Clients may connect without a certificate.
    Optional,
}

/// The oldest TLS version accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum MinTlsVersion {
    /// TLS 1.2.
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    Tls13,
}
