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
    /// The protocol's name.
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
#[must_use = "it does nothing before a server has its `TlsConfig`"]
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
    /// Certificates for these DNS names, from [`LETS_ENCRYPT_PRODUCTION`]. Clients that send no
    /// name get the certificate of the first one.
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
    /// directory. For private directories.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.roots.push(path.into());
        self
    }

    /// Stores account and certificates in this directory, which is created if it is missing; see
    /// [`DirStorage`]. Instances that share it share the certificates, and answer each other's
    /// challenges.
    #[doc(alias = "cache")]
    #[doc(alias = "DirCache")]
    pub fn state_dir(mut self, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        self.storage_name = path.display().to_string();
        self.storage = Some(Arc::new(DirStorage::new(path)));
        self
    }

    /// Stores account and certificates elsewhere.
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
        let external_id = self.external_account_binding.as_ref().map(|(id, _)| id.clone());
        let external = self.external_account_binding.map(|(id, key)| {
            let key = base64url(&key).ok_or(AcmeSetupError::InvalidExternalAccountKey)?;
            Ok::<_, AcmeSetupError>(ExternalAccountKey::new(id, &key))
        });
        let external = external.transpose()?;
        let client = AcmeHttpClient::new(&self.roots)?;
        let storage = PanicSafeStorage::new(self.storage.ok_or(AcmeSetupError::NoStorage)?);
        let stored = ScopedStorage::new(storage, &self.directory);
        check_storage(&stored, &self.storage_name)?;
        let challenges = ChallengeResponses::new()?;
        let lookup = Box::new(StorageChallengeLookup::new(stored.clone(), &challenges));
        let has = |kind| self.challenges.contains(&kind);
        challenges.set_remote_lookup(lookup, has(Challenge::TlsAlpn01), has(Challenge::Http01));
        let settings = AcmeSettings {
            directory: self.directory,
            contacts,
            external_account_binding: external,
            external_account_id: external_id,
            client,
            storage: stored,
            challenges: self.challenges,
            profile: self.profile,
            retry_backoff: self.retry_backoff,
        };
        let shared = AcmeShared::new(settings, names, Arc::clone(&challenges));
        let mut tls = TlsConfig::with_provider(challenges, Arc::clone(&shared) as _)?;
        for name in shared.domains() {
            if let Some(read) = shared.settings.storage.certificate(&name) {
                tls =
                    tls.with_certificate(Certificate::from_pem(&read.pem, &read.pem).label(&name))?;
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

/// Normalizes a name.
// RFC 1035 §2.3.1 and §2.3.4: letters, digits and hyphens, and the length limits.
pub(crate) fn check_domain(name: &str) -> Result<String, AcmeSetupError> {
    let bad = |cause| Err(AcmeSetupError::InvalidDomain { name: name.to_owned(), cause });
    let clean = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    if clean.starts_with("*.") {
        return bad("wildcards need the challenge dns-01, which a server cannot answer; \
            name each host, or obtain it with certbot or lego, and use TlsConfig::from_pem_files");
    }
    if clean.parse::<IpAddr>().is_ok() {
        return bad("it is an IP address; use DNS names");
    }
    if !clean.is_ascii() {
        return bad("it is not ASCII; use its encoded form (xn--...)");
    }
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(is_letter)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if clean.len() > 253 || !clean.split('.').all(is_label) {
        return bad(
            "it is not a DNS name; use the form www.example.org, without scheme, port or path",
        );
    }
    Ok(clean)
}

// RFC 8555 §6.1: all communication uses HTTPS.
fn is_directory_url(url: &str) -> bool {
    url.parse::<Uri>().is_ok_and(|uri| uri.scheme_str() == Some("https") && uri.host().is_some())
}

/// The `mailto:` URL of an address.
fn check_contact(contact: &str) -> Result<String, AcmeSetupError> {
    let address = contact.strip_prefix("mailto:").unwrap_or(contact);
    let is_plain =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_graphic());
    match address.split_once('@') {
        // RFC 8555 §7.3: one address, without header fields.
        Some((user, host)) if is_plain(user) && is_plain(host) && !address.contains([',', '?']) => {
            Ok(format!("mailto:{address}"))
        }
        _ => Err(AcmeSetupError::BadContact { contact: contact.to_owned() }),
    }
}

/// Checks the storage. A temporary error is only logged, and stored certificates are served; any
/// other error is returned.
fn check_storage(stored: &ScopedStorage, place: &str) -> Result<(), AcmeSetupError> {
    let Err(error) = stored.probe() else { return Ok(()) };
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::TimedOut => {
            tracing::error!(target: "peregrine", place, %error,
                "the ACME storage is currently not writable; stored certificates are served");
            Ok(())
        }
        _ => Err(AcmeSetupError::Storage { what: place.to_owned(), error }),
    }
}

/// Decodes base64url, with or without padding; the standard alphabet is accepted too, since some
/// authorities show it.
fn base64url(text: &str) -> Option<Vec<u8>> {
    let (mut bits, mut count, mut bytes) = (0_u32, 0_u32, Vec::new());
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
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    // The leftover bits must be fewer than those of one character.
    (count < 6 && !bytes.is_empty()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(change: impl FnOnce(Acme) -> Acme) -> String {
        let folder = tempfile::tempdir().expect("a directory");
        let acme = Acme::new(["a.test"]).state_dir(folder.path());
        change(acme)
            .build_with_handle()
            .map(|_| ())
            .expect_err("the setting is invalid")
            .to_string()
    }

    #[test]
    fn a_setting_that_cannot_be_used_is_an_error_that_names_it_and_the_remedy() {
        let none: [&str; 0] = [];
        let long = format!("{}.test", "a".repeat(64));
        for (text, expected) in [
            (fault(|_| Acme::new(none)), "name one"),
            (fault(|_| Acme::new(["a.test"])), "Acme::folder"),
            (fault(|acme| Acme { domains: vec!["*.a.test".to_owned()], ..acme }), "dns-01"),
            (fault(|acme| Acme { domains: vec!["127.0.0.1".to_owned()], ..acme }), "address"),
            (fault(|acme| Acme { domains: vec!["bücher.test".to_owned()], ..acme }), "xn--"),
            (fault(|acme| Acme { domains: vec!["https://a.test".to_owned()], ..acme }), "scheme"),
            (fault(|acme| Acme { domains: vec!["a..test".to_owned()], ..acme }), "\"a..test\""),
            (fault(|acme| Acme { domains: vec!["-a.test".to_owned()], ..acme }), "DNS name"),
            (fault(|acme| Acme { domains: vec![long], ..acme }), "DNS name"),
            (fault(|acme| acme.directory_url("http://ca.test/dir")), "https://"),
            (fault(|acme| acme.directory_url("ca.test")), "\"ca.test\""),
            (fault(|acme| acme.contact("nobody")), "\"nobody\""),
            (fault(|acme| acme.contact("a@b, c@d")), "admin@example.org"),
            (fault(|acme| acme.challenges(&[])), "Challenge::TlsAlpn01"),
            (fault(|acme| acme.external_account_binding("id", "no key!")), "base64url"),
            (fault(|acme| acme.ca_file("/no/such.pem")), "/no/such.pem"),
            (fault(|acme| acme.state_dir("/proc/no/folder")), "/proc/no/folder"),
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn names_are_one_however_they_are_written() {
        let folder = tempfile::tempdir().expect("a directory");
        let names = ["A.test", "a.test.", "b.test", "xn--bcher-kva.test"];
        let (tls, handle) = Acme::new(names)
            .state_dir(folder.path())
            .build_with_handle()
            .expect("the settings are valid");
        assert!(tls.status().certificates.is_empty());
        let found: Vec<_> =
            handle.status().domains.into_iter().map(|status| status.domain).collect();
        assert_eq!(found, ["a.test", "b.test", "xn--bcher-kva.test"]);
    }

    #[test]
    fn keys_are_read_in_both_alphabets() {
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
            assert_eq!(base64url(text).as_deref(), expected, "{text}");
        }
    }
}
