//! Certificates by ACME in the tree.

use peregrine_config::{MaybeText, Secret};
use serde::{Deserialize, Serialize};

/// Certificates that the server gets and renews itself, by ACME, in place of files. With the feature `acme`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AcmeConfig {
    /// The names that certificates are for, the first one for clients that ask for none; empty: no ACME. By naming one you
    /// agree to the terms of service of the authority.
    pub domains: Vec<String>,
    /// The URL of the authority's directory. That of Let's Encrypt for tries is
    /// `https://acme-staging-v02.api.letsencrypt.org/directory`.
    pub directory: String,
    /// Addresses of mail at which the authority may reach you.
    pub contacts: Vec<String>,
    /// The folder in which account and certificates are kept. Instances that share it share the certificates.
    #[serde(with = "MaybeText")]
    pub folder: Option<String>,
    /// How the authority may see that a name is this server's, the preferred way first: `tls-alpn-01` needs this listener at
    /// port 443, `http-01` any at port 80.
    pub challenges: Vec<ChallengeKind>,
    /// A profile that the authority offers, such as `shortlived`; `off`: its default.
    #[serde(with = "MaybeText")]
    pub profile: Option<String>,
    /// Files of the issuers by which the directory is known, beside those that the system trusts.
    pub roots: Vec<String>,
    /// The account elsewhere that this one is bound to, where the authority asks for that.
    pub external_account: ExternalAccountConfig,
}

impl Default for AcmeConfig {
    fn default() -> Self {
        Self {
            domains: Vec::new(),
            directory: "https://acme-v02.api.letsencrypt.org/directory".to_owned(),
            contacts: Vec::new(),
            folder: None,
            challenges: vec![ChallengeKind::TlsAlpn01, ChallengeKind::Http01],
            profile: None,
            roots: Vec::new(),
            external_account: ExternalAccountConfig::default(),
        }
    }
}

/// An account that exists elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ExternalAccountConfig {
    /// Its identifier; `off`: there is none.
    #[serde(with = "MaybeText")]
    pub id: Option<String>,
    /// Its HMAC key in base64url, as the authority shows it. It is not shown.
    pub key: Secret,
}

impl Default for ExternalAccountConfig {
    fn default() -> Self {
        Self { id: None, key: Secret::new("") }
    }
}

/// How an authority sees that a name belongs to this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ChallengeKind {
    /// By a TLS connection to port 443.
    #[serde(rename = "tls-alpn-01")]
    TlsAlpn01,
    /// By a request to port 80.
    #[serde(rename = "http-01")]
    Http01,
}
