//! The settings of TLS.

use super::acme::AcmeConfig;
use peregrine_config::{MaybeText, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// TLS settings of listeners: certificates, client authentication, and protocol parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// Certificates with their keys, by label. A reload reads the files again.
    pub certificates: BTreeMap<String, CertificateConfig>,
    /// Certificates that the server obtains itself, in addition to `certificates`.
    pub acme: AcmeConfig,
    /// The label of the certificate for clients that send no server name or an unknown one; `off`:
    /// the first by label.
    #[serde(with = "MaybeText")]
    pub default_certificate: Option<String>,
    /// Reloads certificates when their files change. Needs the feature `tls-watch`.
    pub watch: bool,
    /// Client certificates (mutual TLS).
    pub client_auth: ClientAuthConfig,
    /// A file with session ticket keys; `off`: random keys that only this process knows.
    #[serde(with = "MaybeText")]
    pub ticket_keys: Option<String>,
    /// The oldest TLS version accepted: `1.2` or `1.3`.
    pub minimum_version: MinimumVersion,
    /// Cipher suites, preferred first; empty: the server's default.
    pub cipher_suites: Vec<String>,
    /// Key exchange groups, preferred first; empty: the server's default.
    pub key_exchange_groups: Vec<String>,
    /// ALPN protocols, preferred first. Without `h2`, clients cannot use HTTP/2.
    pub alpn: Vec<String>,
    /// Responds with 421 to requests for a host that the certificate does not cover.
    pub host_check: bool,
    /// How long before a certificate expires the server starts to log warnings.
    #[serde(with = "Time")]
    pub expiry_warning: Duration,
    /// Writes the secrets of each connection to the file named by `SSLKEYLOGFILE`. Never use it in
    /// production.
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

/// A PEM certificate chain and its key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CertificateConfig {
    /// The file of the chain, with the server's own certificate first.
    pub certificate: String,
    /// The file of the key.
    pub key: String,
    /// The file of a DER OCSP response to staple; `off`: none.
    #[serde(default, with = "MaybeText")]
    pub staple: Option<String>,
}

/// Whether clients must present certificates, and which certificates are accepted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ClientAuthConfig {
    /// `off`, `required`, or `optional`; with `optional`, individual routes can require a
    /// certificate.
    pub mode: Clients,
    /// Files with the root certificates that client certificates must chain to.
    pub roots: Vec<String>,
    /// Files with certificate revocation lists.
    pub revoked: Vec<String>,
    /// Checks only client certificates for revocation, not those of intermediate issuers.
    pub revocation_of_clients_only: bool,
}

/// Whether clients must present certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Clients {
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
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
pub enum MinimumVersion {
    /// TLS 1.2.
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    Tls13,
}

#[cfg(feature = "tls")]
mod made {
    use super::{Clients, MinimumVersion, TlsConfig};
    use crate::error::Error;
    use peregrine_tls::{Certificate, ClientAuth, TicketKeys, Tls, Version};

    impl TlsConfig {
        /// Builds the TLS settings from the files. `section` is the path of the section, for error
        /// messages.
        pub(in crate::config) fn make(&self, section: &str) -> Result<Tls, Error> {
            let wrong = |text: String| Error::Config(format!("`{section}`: {text}"));
            let known = |label: &String| self.certificates.contains_key(label);
            if let Some(label) = self.default_certificate.as_ref().filter(|label| !known(label)) {
                return Err(wrong(format!("`default_certificate = \"{label}\"` matches no label")));
            }
            let mut tls = self.certified(section)?;
            if let Some(clients) = self.clients().map_err(wrong)? {
                tls = tls.with_client_auth(clients)?;
            }
            if let Some(path) = &self.ticket_keys {
                tls = tls.with_ticket_keys(TicketKeys::from_file(path)?);
            }
            if self.minimum_version == MinimumVersion::Tls13 {
                tls = tls.with_minimum_version(Version::Tls13)?;
            }
            if !self.cipher_suites.is_empty() {
                tls = tls.with_cipher_suites(&texts(&self.cipher_suites))?;
            }
            if !self.key_exchange_groups.is_empty() {
                tls = tls.with_key_exchange_groups(&texts(&self.key_exchange_groups))?;
            }
            if self.alpn != Self::default().alpn {
                let alpn: Vec<&[u8]> = self.alpn.iter().map(String::as_bytes).collect();
                tls = tls.with_alpn(&alpn);
            }
            if self.host_check {
                tls = tls.with_host_check();
            }
            if self.key_log {
                tls = tls.with_key_log()?;
            }
            Ok(tls.with_expiry_warning(self.expiry_warning))
        }

        /// Builds TLS settings with all certificates and otherwise defaults.
        fn certified(&self, section: &str) -> Result<Tls, Error> {
            let first = self.default_certificate.as_ref().or(self.certificates.keys().next());
            let (mut tls, rest) = match (self.acme.domains.is_empty(), first) {
                (false, _) => (self.supplied(section)?, None),
                (true, Some(first)) => {
                    (Tls::from_certificate(self.certificate(first))?, Some(first))
                }
                (true, None) => {
                    return Err(Error::Config(format!(
                        "`{section}`: there is no certificate: set `certificate` and `key` in \
                         `[{section}.certificates.main]`"
                    )));
                }
            };
            for label in self.certificates.keys().filter(|label| Some(*label) != rest) {
                tls = tls.with(self.certificate(label))?;
            }
            Ok(tls)
        }

        #[cfg(feature = "acme")]
        fn supplied(&self, section: &str) -> Result<Tls, Error> {
            self.acme.made(section)
        }

        #[cfg(not(feature = "acme"))]
        fn supplied(&self, section: &str) -> Result<Tls, Error> {
            Err(crate::config::apply::missing(&format!("{section}.acme.domains"), "acme"))
        }

        fn certificate(&self, label: &str) -> Certificate {
            let of = &self.certificates[label];
            let certificate = Certificate::from_files(&of.certificate, &of.key).labelled(label);
            match &of.staple {
                Some(path) => certificate.staple_file(path),
                None => certificate,
            }
        }

        fn clients(&self) -> Result<Option<ClientAuth>, String> {
            let of = &self.client_auth;
            let clients = match of.mode {
                Clients::Off if !of.roots.is_empty() => {
                    let text = "`client_auth` names roots, but `client_auth.mode` is `off`: \
                                write `required` or `optional`";
                    return Err(text.to_owned());
                }
                Clients::Off => return Ok(None),
                Clients::Required => ClientAuth::required(),
                Clients::Optional => ClientAuth::optional(),
            };
            let clients = of.roots.iter().fold(clients, ClientAuth::roots_file);
            let clients = of.revoked.iter().fold(clients, ClientAuth::crl_file);
            Ok(Some(match of.revocation_of_clients_only {
                true => clients.revocation_of_clients_only(),
                false => clients,
            }))
        }
    }

    fn texts(all: &[String]) -> Vec<&str> {
        all.iter().map(String::as_str).collect()
    }
}
