//! The configuration of ACME: names, authority, storage and challenges.

use crate::challenge_lookup::StorageChallengeLookup;
use crate::error::AcmeSetupError;
use crate::handle::AcmeHandle;
use crate::http_client::AcmeHttpClient;
use crate::panic_safe_storage::PanicSafeStorage;
use crate::scoped_storage::ScopedStorage;
use crate::shared::AcmeShared;
use crate::storage::{DirStorage, Storage};
use http::Uri;
use instant_acme::{ChallengeType, ExternalAccountKey, LetsEncrypt};
use peregrine_tls::{Certificate, ChallengeResponses, TlsConfig};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The directory of Let's Encrypt, the default.
pub const LETS_ENCRYPT_PRODUCTION: &str = LetsEncrypt::Production.url();

/// The staging directory of Let's Encrypt, for experiments: no client trusts its certificates, and
/// its rate limits are higher.
pub const LETS_ENCRYPT_STAGING: &str = LetsEncrypt::Staging.url();

/// How the authority verifies that a name belongs to this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// With a TLS connection to port 443 (RFC 8737), which must reach a listener with the
    /// [`TlsConfig`].
    TlsAlpn01,
    /// With a request to port 80 (RFC 8555, section 8.3), which must reach any listener of the
    /// server. The application does not see the request.
    Http01,
}

impl Challenge {
    /// Returns the name of the challenge in the protocol.
    pub(crate) fn to_protocol(self) -> ChallengeType {
        match self {
            Self::TlsAlpn01 => ChallengeType::TlsAlpn01,
            Self::Http01 => ChallengeType::Http01,
        }
    }
}

/// Obtains certificates by ACME and renews them.
///
/// Each name has its own certificate, so that a failing name does not block the renewal of others.
/// While a name has no certificate, clients that request it get the certificate of another name;
/// while there is none at all, handshakes fail with an alert. Using this means that you agree to
/// the authority's terms of service.
///
/// ```no_run
/// use peregrine::acme::{Acme, Challenge, LETS_ENCRYPT_STAGING};
/// use peregrine::tls::TlsVersion;
///
/// let tls = Acme::new(["example.org"])
///     .contact("admin@example.org")
///     .directory_url(LETS_ENCRYPT_STAGING)
///     .challenges(&[Challenge::TlsAlpn01])
///     .state_dir("/var/lib/example/acme")
///     .build()?
///     .with_min_version(TlsVersion::Tls13)?;
/// # let _ = tls;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "letsencrypt")]
#[doc(alias = "autocert")]
#[doc(alias = "certbot")]
#[must_use = "it does nothing until a server uses its `TlsConfig`"]
pub struct Acme {
    domains: Vec<String>,
    directory: String,
    contacts: Vec<String>,
    external_account_binding: Option<(String, String)>,
    roots: Vec<PathBuf>,
    storage: Option<Arc<dyn Storage>>,
    /// The location of the storage, for errors.
    storage_name: String,
    challenges: Vec<Challenge>,
    profile: Option<String>,
    retry_backoff: (Duration, Duration),
}

impl Acme {
    /// Requests certificates for these DNS names from [`LETS_ENCRYPT_PRODUCTION`]. Clients that
    /// send no name get the certificate of the first one.
    pub fn new<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        Self {
            domains: names.into_iter().map(Into::into).collect(),
            directory: LETS_ENCRYPT_PRODUCTION.to_owned(),
            contacts: Vec::new(),
            external_account_binding: None,
            roots: Vec::new(),
            storage: None,
            storage_name: "the given storage".to_owned(),
            challenges: vec![Challenge::TlsAlpn01, Challenge::Http01],
            profile: None,
            retry_backoff: (Duration::from_secs(60), Duration::from_secs(6 * 3_600)),
        }
    }

    /// Sets the URL of the authority's directory, such as [`LETS_ENCRYPT_STAGING`] or a private
    /// one.
    pub fn directory_url(mut self, url: impl Into<String>) -> Self {
        self.directory = url.into();
        self
    }

    /// Adds an e-mail address at which the authority can reach you. By default there is none. Later
    /// changes are sent to the authority.
    pub fn contact(mut self, address: impl Into<String>) -> Self {
        self.contacts.push(address.into());
        self
    }

    /// Binds the account to an external one, if the authority requires that: its identifier, and
    /// its HMAC key in base64url as the authority shows it (RFC 8555, section 7.3.4). A new
    /// identifier creates a new account.
    #[doc(alias = "eab")]
    pub fn external_account_binding(
        mut self,
        id: impl Into<String>,
        key: impl Into<String>,
    ) -> Self {
        self.external_account_binding = Some((id.into(), key.into()));
        self
    }

    /// Adds the certificates in this PEM file to the system's trust store when connecting to the
    /// directory. Use this for private directories.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.roots.push(path.into());
        self
    }

    /// Stores the account and the certificates in this directory, which is created if it is
    /// missing; see [`DirStorage`]. Instances that share it share the certificates, and respond to
    /// each other's challenges.
    #[doc(alias = "cache")]
    #[doc(alias = "DirCache")]
    pub fn state_dir(mut self, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        self.storage_name = path.display().to_string();
        self.storage = Some(Arc::new(DirStorage::new(path)));
        self
    }

    /// Stores the account and the certificates in this storage.
    pub fn storage(mut self, storage: impl Storage) -> Self {
        self.storage = Some(Arc::new(storage));
        self
    }

    /// Sets the kinds of challenges to use, in order of preference. The default is both, TLS first.
    /// After a failure, the next kind is tried.
    pub fn challenges(mut self, kinds: &[Challenge]) -> Self {
        self.challenges = kinds.to_vec();
        self
    }

    /// Requests certificates with a profile that the authority offers, such as `shortlived`.
    pub fn profile(mut self, name: impl Into<String>) -> Self {
        self.profile = Some(name.into());
        self
    }

    /// Sets the delay after a failure: it starts at `first` and doubles up to `max`, with jitter.
    /// The default is one minute to six hours. Delays requested by the authority apply in addition.
    pub fn retry_backoff(mut self, first: Duration, max: Duration) -> Self {
        self.retry_backoff = (first, max);
        self
    }

    /// Creates a `TlsConfig` with the stored certificates. A server that uses it obtains and renews
    /// them while it runs.
    ///
    /// # Errors
    /// If a setting is invalid, or the storage cannot be written.
    pub fn build(self) -> Result<TlsConfig, AcmeSetupError> {
        self.build_with_handle().map(|(tls, _)| tls)
    }

    /// Like [`Acme::build`], with a handle that adds and removes names while the server runs.
    ///
    /// # Errors
    /// As for [`Acme::build`].
    pub fn build_with_handle(self) -> Result<(TlsConfig, AcmeHandle), AcmeSetupError> {
        if self.domains.is_empty() {
            return Err(AcmeSetupError::NoDomain);
        }
        let mut names: Vec<String> = Vec::new();
        for name in &self.domains {
            let name = check_domain(name)?;
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if self.challenges.is_empty() {
            return Err(AcmeSetupError::NoChallenge);
        }
        if !is_directory_url(&self.directory) {
            return Err(AcmeSetupError::BadDirectory { url: self.directory });
        }
        let contacts = self.contacts.iter().map(|contact| check_contact(contact));
        let contacts = contacts.collect::<Result<_, _>>()?;
        let external_account_id = self.external_account_binding.as_ref().map(|(id, _)| id.clone());
        let external_account_binding = self.external_account_binding.map(|(id, key)| {
            let key = decode_base64url(&key).ok_or(AcmeSetupError::InvalidExternalAccountKey)?;
            Ok::<_, AcmeSetupError>(ExternalAccountKey::new(id, &key))
        });
        let external_account_binding = external_account_binding.transpose()?;
        let client = AcmeHttpClient::new(&self.roots)?;
        let storage = PanicSafeStorage::new(self.storage.ok_or(AcmeSetupError::NoStorage)?);
        let scoped_storage = ScopedStorage::new(storage, &self.directory);
        check_storage(&scoped_storage, &self.storage_name)?;
        let challenges = ChallengeResponses::new()?;
        let lookup = Box::new(StorageChallengeLookup::new(scoped_storage.clone(), &challenges));
        let is_enabled = |kind| self.challenges.contains(&kind);
        challenges.set_remote_lookup(
            lookup,
            is_enabled(Challenge::TlsAlpn01),
            is_enabled(Challenge::Http01),
        );
        let settings = AcmeSettings {
            directory: self.directory,
            contacts,
            external_account_binding,
            external_account_id,
            client,
            storage: scoped_storage,
            challenges: self.challenges,
            profile: self.profile,
            retry_backoff: self.retry_backoff,
        };
        let shared = AcmeShared::new(settings, names, Arc::clone(&challenges));
        let mut tls = TlsConfig::with_provider(challenges, Arc::clone(&shared) as _)?;
        for name in shared.domains() {
            if let Some(stored) = shared.settings.storage.certificate(&name) {
                tls = tls.with_certificate(
                    Certificate::from_pem(&stored.pem, &stored.pem).label(&name),
                )?;
            }
        }
        Ok((tls, AcmeHandle::new(shared)))
    }
}

/// The settings that do not change while the server runs.
pub(crate) struct AcmeSettings {
    pub(crate) directory: String,
    pub(crate) contacts: Vec<String>,
    pub(crate) external_account_binding: Option<ExternalAccountKey>,
    pub(crate) external_account_id: Option<String>,
    pub(crate) client: AcmeHttpClient,
    pub(crate) storage: ScopedStorage,
    pub(crate) challenges: Vec<Challenge>,
    pub(crate) profile: Option<String>,
    pub(crate) retry_backoff: (Duration, Duration),
}

impl fmt::Debug for Acme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acme")
            .field("names", &self.domains)
            .field("directory", &self.directory)
            .field("place", &self.storage_name)
            .finish_non_exhaustive()
    }
}

/// Checks and normalizes a name.
// RFC 1035 §2.3.1 and §2.3.4: letters, digits and hyphens, and the length limits.
pub(crate) fn check_domain(name: &str) -> Result<String, AcmeSetupError> {
    let invalid = |cause| Err(AcmeSetupError::InvalidDomain { name: name.to_owned(), cause });
    let normalized = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    if normalized.starts_with("*.") {
        return invalid(
            "wildcards need the challenge dns-01, which a web server cannot respond to; \
            name each host, or obtain it with certbot or lego, and use TlsConfig::from_pem_files",
        );
    }
    if normalized.parse::<IpAddr>().is_ok() {
        return invalid("it is an IP address; use DNS names");
    }
    if !normalized.is_ascii() {
        return invalid("it is not ASCII; use its encoded form (xn--...)");
    }
    let is_label_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(is_label_byte)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if normalized.len() > 253 || !normalized.split('.').all(is_label) {
        return invalid(
            "it is not a DNS name; use the form www.example.org, without scheme, port or path",
        );
    }
    Ok(normalized)
}

// RFC 8555 §6.1: all communication uses HTTPS.
fn is_directory_url(url: &str) -> bool {
    url.parse::<Uri>().is_ok_and(|uri| uri.scheme_str() == Some("https") && uri.host().is_some())
}

/// Checks an address and returns its `mailto:` URL.
fn check_contact(contact: &str) -> Result<String, AcmeSetupError> {
    let address = contact.strip_prefix("mailto:").unwrap_or(contact);
    let is_printable =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_graphic());
    match address.split_once('@') {
        // RFC 8555 §7.3: one address, without header fields.
        Some((user, host))
            if is_printable(user) && is_printable(host) && !address.contains([',', '?']) =>
        {
            Ok(format!("mailto:{address}"))
        }
        _ => Err(AcmeSetupError::BadContact { contact: contact.to_owned() }),
    }
}

/// Checks the storage. A temporary error is only logged, and stored certificates are served; any
/// other error is returned.
fn check_storage(storage: &ScopedStorage, location: &str) -> Result<(), AcmeSetupError> {
    let Err(error) = storage.probe() else { return Ok(()) };
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::TimedOut => {
            tracing::error!(target: "peregrine", place = location, %error,
                "the ACME storage is currently not writable; stored certificates are served");
            Ok(())
        }
        _ => Err(AcmeSetupError::Storage { what: location.to_owned(), error }),
    }
}

/// Decodes base64url, with or without padding; the standard alphabet is accepted too, since some
/// authorities show it.
fn decode_base64url(text: &str) -> Option<Vec<u8>> {
    let (mut bits, mut bit_count, mut bytes) = (0_u32, 0_u32, Vec::new());
    for byte in text.trim().trim_end_matches('=').bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'-' | b'+' => 62,
            b'_' | b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        bit_count += 6;
        if bit_count >= 8 {
            bit_count -= 8;
            bytes.push((bits >> bit_count) as u8);
        }
    }
    // There must be fewer leftover bits than one character has.
    (bit_count < 6 && !bytes.is_empty()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_error(configure: impl FnOnce(Acme) -> Acme) -> String {
        let dir = tempfile::tempdir().expect("the temporary directory is writable");
        let acme = Acme::new(["a.test"]).state_dir(dir.path());
        configure(acme)
            .build_with_handle()
            .map(|_| ())
            .expect_err("the setting is invalid")
            .to_string()
    }

    #[test]
    fn an_invalid_setting_is_an_error_that_names_it_and_the_fix() {
        let no_domains: [&str; 0] = [];
        let long_domain = format!("{}.test", "a".repeat(64));
        for (text, expected) in [
            (build_error(|_| Acme::new(no_domains)), "name one"),
            (build_error(|_| Acme::new(["a.test"])), "Acme::state_dir"),
            (build_error(|acme| Acme { domains: vec!["*.a.test".to_owned()], ..acme }), "dns-01"),
            (build_error(|acme| Acme { domains: vec!["127.0.0.1".to_owned()], ..acme }), "address"),
            (build_error(|acme| Acme { domains: vec!["bücher.test".to_owned()], ..acme }), "xn--"),
            (
                build_error(|acme| Acme { domains: vec!["https://a.test".to_owned()], ..acme }),
                "scheme",
            ),
            (
                build_error(|acme| Acme { domains: vec!["a..test".to_owned()], ..acme }),
                "\"a..test\"",
            ),
            (build_error(|acme| Acme { domains: vec!["-a.test".to_owned()], ..acme }), "DNS name"),
            (build_error(|acme| Acme { domains: vec![long_domain], ..acme }), "DNS name"),
            (build_error(|acme| acme.directory_url("http://ca.test/dir")), "https://"),
            (build_error(|acme| acme.directory_url("ca.test")), "\"ca.test\""),
            (build_error(|acme| acme.contact("nobody")), "\"nobody\""),
            (build_error(|acme| acme.contact("a@b, c@d")), "admin@example.org"),
            (build_error(|acme| acme.challenges(&[])), "Challenge::TlsAlpn01"),
            (build_error(|acme| acme.external_account_binding("id", "no key!")), "base64url"),
            (build_error(|acme| acme.ca_file("/no/such.pem")), "/no/such.pem"),
            (build_error(|acme| acme.state_dir("/proc/no/folder")), "/proc/no/folder"),
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn equal_names_in_different_notations_are_merged() {
        let dir = tempfile::tempdir().expect("the temporary directory is writable");
        let names = ["A.test", "a.test.", "b.test", "xn--bcher-kva.test"];
        let (tls, handle) = Acme::new(names)
            .state_dir(dir.path())
            .build_with_handle()
            .expect("the settings are valid");
        assert!(tls.status().certificates.is_empty());
        let domains: Vec<_> =
            handle.status().domains.into_iter().map(|status| status.domain).collect();
        assert_eq!(domains, ["a.test", "b.test", "xn--bcher-kva.test"]);
    }

    #[test]
    fn decodes_base64_in_both_alphabets() {
        for (text, expected) in [
            ("AQID", Some(&[1, 2, 3][..])),
            ("AQIDBA", Some(&[1, 2, 3, 4])),
            ("AQIDBA==", Some(&[1, 2, 3, 4])),
            ("-_8", Some(&[0xfb, 0xff])),
            ("+/8=", Some(&[0xfb, 0xff])),
            ("", None),
            ("A", None),
            ("AQIDB", None),
            ("A QID", None),
        ] {
            assert_eq!(decode_base64url(text).as_deref(), expected, "{text}");
        }
    }
}
