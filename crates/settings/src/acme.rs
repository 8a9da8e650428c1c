//! The settings of ACME certificates.

use peregrine_config::{OptionalString, SecretString};
use serde::{Deserialize, Serialize};

/// Certificates that the server obtains and renews itself by ACME, instead of reading them from
/// files. Needs the feature `acme`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AcmeConfig {
    /// The domain names to get certificates for. Clients that send no server name get the
    /// certificate of the first one. Empty: ACME is off. By setting this you agree to the
    /// authority's terms of service.
    pub domains: Vec<String>,
    /// The URL of the authority's directory. For testing, Let's Encrypt has
    /// `https://acme-staging-v02.api.letsencrypt.org/directory`.
    pub directory_url: String,
    /// E-mail addresses at which the authority can reach you.
    pub contacts: Vec<String>,
    /// The directory that stores the account and the certificates. Instances that share the
    /// directory share the certificates.
    #[serde(with = "OptionalString")]
    pub state_dir: Option<String>,
    /// How to prove control of a domain to the authority, preferred first: `tls-alpn-01` needs this
    /// listener to be reachable at port 443, `http-01` needs any listener at port 80.
    pub challenges: Vec<ChallengeKind>,
    /// A certificate profile offered by the authority, such as `shortlived`; `off`: the authority's
    /// default.
    #[serde(with = "OptionalString")]
    pub profile: Option<String>,
    /// PEM files of additional root certificates to trust when connecting to the authority.
    pub ca_files: Vec<String>,
    /// The external account to bind the ACME account to, if the authority requires it.
    pub external_account_binding: ExternalAccountBindingConfig,
}

impl Default for AcmeConfig {
    fn default() -> Self {
        Self {
            domains: Vec::new(),
            directory_url: "https://acme-v02.api.letsencrypt.org/directory".to_owned(),
            contacts: Vec::new(),
            state_dir: None,
            challenges: vec![ChallengeKind::TlsAlpn01, ChallengeKind::Http01],
            profile: None,
            ca_files: Vec::new(),
            external_account_binding: ExternalAccountBindingConfig::default(),
        }
    }
}

/// Credentials for binding the ACME account to an account held elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ExternalAccountBindingConfig {
    /// The key identifier; `off`: no external account.
    #[serde(with = "OptionalString")]
    pub key_id: Option<String>,
    /// The HMAC key in base64url, as the authority shows it. It is never printed.
    pub mac_key: SecretString,
}

impl Default for ExternalAccountBindingConfig {
    fn default() -> Self {
        Self { key_id: None, mac_key: SecretString::new("") }
    }
}

/// How to prove control of a domain to the authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ChallengeKind {
    /// With a TLS connection to port 443.
    #[serde(rename = "tls-alpn-01")]
    TlsAlpn01,
    /// With a request to port 80.
    #[serde(rename = "http-01")]
    Http01,
}
