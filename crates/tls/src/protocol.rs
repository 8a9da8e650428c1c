//! Versions, cipher suites and key exchange groups, by their usual names.

use crate::error::TlsSetupError;
use crate::handshake_info::TlsVersion;
use rustls::crypto::aws_lc_rs::{cipher_suite as suite, kx_group as group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs};
use rustls::version::{TLS12, TLS13};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};

/// The offered versions, cipher suites and groups.
#[derive(Clone, Debug)]
pub(crate) struct ProtocolSettings {
    pub(crate) minimum: TlsVersion,
    suites: Vec<SupportedCipherSuite>,
    groups: Vec<&'static dyn SupportedKxGroup>,
}

impl Default for ProtocolSettings {
    fn default() -> Self {
        Self {
            minimum: TlsVersion::Tls12,
            suites: SUITES.iter().map(|(suite, _)| *suite).collect(),
            groups: aws_lc_rs::DEFAULT_KX_GROUPS.to_vec(),
        }
    }
}

impl ProtocolSettings {
    pub(crate) fn set_suites(&mut self, names: &[&str]) -> Result<(), TlsSetupError> {
        let supported = || SUITES.iter().map(|(_, names)| names[0]);
        self.suites = select_named("cipher suite", names, supported, |name| {
            let mut suites = SUITES.iter();
            suites.find(|(_, names)| contains_ignore_case(names, name)).map(|(suite, _)| *suite)
        })?;
        Ok(())
    }

    pub(crate) fn set_groups(&mut self, names: &[&str]) -> Result<(), TlsSetupError> {
        let supported = || GROUPS.iter().map(|(_, names)| names[0]);
        self.groups = select_named("key exchange group", names, supported, |name| {
            let mut groups = GROUPS.iter();
            groups.find(|(_, names)| contains_ignore_case(names, name)).map(|(group, _)| *group)
        })?;
        Ok(())
    }

    pub(crate) fn provider(&self) -> CryptoProvider {
        CryptoProvider {
            cipher_suites: self.suites.clone(),
            kx_groups: self.groups.clone(),
            ..aws_lc_rs::default_provider()
        }
    }

    /// The versions to offer.
    ///
    /// # Errors
    /// An enabled version has no cipher suite.
    pub(crate) fn versions(&self) -> Result<Vec<&'static SupportedProtocolVersion>, TlsSetupError> {
        let has_suite_for = |version: &SupportedProtocolVersion| {
            self.suites.iter().any(|suite| suite.version().version == version.version)
        };
        match (self.minimum, has_suite_for(&TLS12), has_suite_for(&TLS13)) {
            (TlsVersion::Tls12, true, true) => Ok(vec![&TLS13, &TLS12]),
            (TlsVersion::Tls12 | TlsVersion::Tls13, _, true) => Ok(vec![&TLS13]),
            (TlsVersion::Tls12, true, false) => Ok(vec![&TLS12]),
            (minimum, _, false) => Err(TlsSetupError::NoCipherSuite { minimum }),
        }
    }
}

/// Resolves `names` in their order, without duplicates.
fn select_named<'k, T: Copy, K: Iterator<Item = &'k str>>(
    kind: &'static str,
    names: &[&str],
    supported: impl Fn() -> K,
    find: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, TlsSetupError> {
    let unknown = |name: &str| TlsSetupError::UnknownAlgorithm {
        kind,
        name: name.to_owned(),
        supported: supported().collect::<Vec<_>>().join(", "),
    };
    if names.is_empty() {
        return Err(unknown(""));
    }
    let mut chosen: Vec<T> = Vec::with_capacity(names.len());
    for (index, name) in names.iter().enumerate() {
        let item = find(name).ok_or_else(|| unknown(name))?;
        if !names[..index].iter().any(|previous| previous.eq_ignore_ascii_case(name)) {
            chosen.push(item);
        }
    }
    Ok(chosen)
}

fn contains_ignore_case(names: &[&str], name: &str) -> bool {
    names.iter().any(|other| other.eq_ignore_ascii_case(name))
}

/// All cipher suites in order of preference. AES-128 comes before AES-256, because it is faster,
/// and because with hardware support its SHA-256 is faster than the SHA-384 that AES-256 uses. The
/// names are rustls' name, the registered name where it differs, and OpenSSL's name.
static SUITES: &[(SupportedCipherSuite, &[&str])] = &[
    (suite::TLS13_AES_128_GCM_SHA256, &["TLS13_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"]),
    (suite::TLS13_AES_256_GCM_SHA384, &["TLS13_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"]),
    (
        suite::TLS13_CHACHA20_POLY1305_SHA256,
        &["TLS13_CHACHA20_POLY1305_SHA256", "TLS_CHACHA20_POLY1305_SHA256"],
    ),
    (
        suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        &["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"],
    ),
    (
        suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        &["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"],
    ),
    (
        suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        &["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"],
    ),
    (
        suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        &["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"],
    ),
    (
        suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        &["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"],
    ),
    (
        suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        &["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"],
    ),
];

/// All groups, by their registered names and OpenSSL's.
static GROUPS: &[(&dyn SupportedKxGroup, &[&str])] = &[
    (group::X25519MLKEM768, &["X25519MLKEM768"]),
    (group::X25519, &["X25519"]),
    (group::SECP256R1, &["secp256r1", "P-256", "prime256v1"]),
    (group::SECP384R1, &["secp384r1", "P-384"]),
];

#[cfg(test)]
mod tests {
    use super::{ProtocolSettings, SUITES, TlsVersion};

    #[test]
    fn suites_and_groups_are_selected_by_each_of_their_names() {
        let mut protocol = ProtocolSettings::default();
        for (suite, names) in SUITES {
            for name in *names {
                protocol.set_suites(&[name, &name.to_lowercase()]).unwrap();
                assert_eq!(protocol.suites, [*suite]);
            }
        }
        protocol.set_groups(&["P-384", "x25519"]).unwrap();
        let names: Vec<_> = protocol.groups.iter().map(|group| group.name()).collect();
        assert_eq!(format!("{names:?}"), "[secp384r1, X25519]");
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_supported_names() {
        let mut protocol = ProtocolSettings::default();
        let error = protocol.set_suites(&["ECDHE-RSA-AES128-SHA"]).unwrap_err().to_string();
        for part in ["ECDHE-RSA-AES128-SHA", "cipher suite", "TLS13_AES_128_GCM_SHA256"] {
            assert!(error.contains(part), "{error}");
        }
        let error = protocol.set_groups(&["secp521r1"]).unwrap_err().to_string();
        assert!(error.contains("key exchange group") && error.contains("X25519"), "{error}");
        assert!(protocol.set_groups(&[]).is_err());
    }

    #[test]
    fn a_version_without_a_suite_is_disabled_or_an_error_if_it_is_the_minimum() {
        let mut protocol = ProtocolSettings::default();
        let version_count =
            |protocol: &ProtocolSettings| protocol.versions().map(|versions| versions.len()).ok();
        assert_eq!(version_count(&protocol), Some(2));
        protocol.minimum = TlsVersion::Tls13;
        assert_eq!(version_count(&protocol), Some(1));
        protocol.set_suites(&["ECDHE-RSA-AES128-GCM-SHA256"]).unwrap();
        let error = protocol.versions().unwrap_err().to_string();
        assert!(error.contains("TLS 1.3"), "{error}");
        protocol.minimum = TlsVersion::Tls12;
        assert_eq!(version_count(&protocol), Some(1));
    }
}
