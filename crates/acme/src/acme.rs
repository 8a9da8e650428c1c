//! For which names certificates are got, from whom, and where they are kept.

use crate::client::Client;
use crate::error::AcmeError;
use crate::guarded::Guarded;
use crate::handle::AcmeHandle;
use crate::lookup::Lookup;
use crate::shared::Shared;
use crate::storage::{Folder, Storage};
use crate::stored::Stored;
use http::Uri;
use instant_acme::{ChallengeType, ExternalAccountKey, LetsEncrypt};
use peregrine_tls::{Certificate, Challenges, Tls};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The directory of Let's Encrypt, which is the default.
pub const LETS_ENCRYPT: &str = LetsEncrypt::Production.url();

/// The directory of Let's Encrypt for tries: no client trusts its certificates, and one may ask more often.
pub const LETS_ENCRYPT_STAGING: &str = LetsEncrypt::Staging.url();

/// How an authority sees that a name belongs to this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// By a TLS connection to port 443 (RFC 8737): a listener that has the [`Tls`] must be reached there.
    TlsAlpn01,
    /// By a request to port 80 (RFC 8555, section 8.3): any listener of the server must be reached there. The
    /// application does not see the request.
    Http01,
}

impl Challenge {
    /// As the protocol calls it.
    pub(crate) fn kind(self) -> ChallengeType {
        match self {
            Self::TlsAlpn01 => ChallengeType::TlsAlpn01,
            Self::Http01 => ChallengeType::Http01,
        }
    }
}

/// Gets certificates by ACME and renews them: for which names, from whom, and where they are kept.
///
/// Each name has a certificate of its own, so that one that fails keeps no other from being renewed. While a name has
/// none, clients that ask for it get the certificate of another one; while there is none at all, handshakes fail
/// with an alert. By using it you agree to the terms of service of the authority.
///
/// ```no_run
/// use peregrine::acme::{Acme, Challenge, LETS_ENCRYPT_STAGING};
/// use peregrine::tls::Version;
///
/// let tls = Acme::new(["example.org"])
///     .contact("admin@example.org")
///     .directory(LETS_ENCRYPT_STAGING)
///     .challenges(&[Challenge::TlsAlpn01])
///     .folder("/var/lib/example/acme")
///     .tls()?
///     .with_minimum_version(Version::Tls13)?;
/// # let _ = tls;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "it does nothing before a server has its `Tls`"]
pub struct Acme {
    names: Vec<String>,
    directory: String,
    contacts: Vec<String>,
    external: Option<(String, String)>,
    roots: Vec<PathBuf>,
    storage: Option<Arc<dyn Storage>>,
    /// Where that is, for errors.
    place: String,
    challenges: Vec<Challenge>,
    profile: Option<String>,
    pauses: (Duration, Duration),
}

impl Acme {
    /// For these DNS names, from [`LETS_ENCRYPT`]. The first one is for clients that ask for none.
    pub fn new<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        Self {
            names: names.into_iter().map(Into::into).collect(),
            directory: LETS_ENCRYPT.to_owned(),
            contacts: Vec::new(),
            external: None,
            roots: Vec::new(),
            storage: None,
            place: "the given storage".to_owned(),
            challenges: vec![Challenge::TlsAlpn01, Challenge::Http01],
            profile: None,
            pauses: (Duration::from_secs(60), Duration::from_secs(6 * 3_600)),
        }
    }

    /// The URL of the authority's directory, such as [`LETS_ENCRYPT_STAGING`] or one of your own.
    pub fn directory(mut self, url: impl Into<String>) -> Self {
        self.directory = url.into();
        self
    }

    /// An address of mail at which the authority may reach you. Default none. It is told of those that have changed
    /// since the account was made.
    pub fn contact(mut self, address: impl Into<String>) -> Self {
        self.contacts.push(address.into());
        self
    }

    /// Binds the account to one that exists elsewhere, where the authority asks for that: its identifier, and its
    /// HMAC key in base64url, as the authority shows it (RFC 8555, section 7.3.4). With another identifier than before,
    /// another account is made.
    pub fn external_account(mut self, id: impl Into<String>, key: impl Into<String>) -> Self {
        self.external = Some((id.into(), key.into()));
        self
    }

    /// Trusts the issuers in this PEM file, beside those that the system trusts, to tell who the directory is: for a
    /// directory of your own.
    pub fn root_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.roots.push(path.into());
        self
    }

    /// Keeps account and certificates in this folder, which is made if it is missing; see [`Folder`]. Instances that
    /// share it share the certificates, and answer the authority for each other.
    pub fn folder(mut self, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        self.place = path.display().to_string();
        self.storage = Some(Arc::new(Folder::new(path)));
        self
    }

    /// Keeps them elsewhere.
    pub fn storage(mut self, storage: impl Storage) -> Self {
        self.storage = Some(Arc::new(storage));
        self
    }

    /// The kinds of challenges that may be answered, the preferred one first. Default both, TLS first. After a
    /// failure the next one is tried.
    pub fn challenges(mut self, kinds: &[Challenge]) -> Self {
        self.challenges = kinds.to_vec();
        self
    }

    /// Asks for certificates of a profile that the authority offers, such as `shortlived`.
    pub fn profile(mut self, name: impl Into<String>) -> Self {
        self.profile = Some(name.into());
        self
    }

    /// How long to wait after a failure: from `first`, doubled each time, to `max`, each with jitter. Default from
    /// one minute to six hours. What the authority asks for counts as well.
    pub fn retry(mut self, first: Duration, max: Duration) -> Self {
        self.pauses = (first, max);
        self
    }

    /// TLS with the certificates that are stored, and with whatever keeps them: a server that is given it orders and
    /// renews them while it serves.
    ///
    /// # Errors
    /// A setting cannot be used, or nothing can be stored.
    pub fn tls(self) -> Result<Tls, AcmeError> {
        self.open().map(|(tls, _)| tls)
    }

    /// The same, with a handle by which names are added and removed while the server runs.
    ///
    /// # Errors
    /// As [`Acme::tls`].
    pub fn open(self) -> Result<(Tls, AcmeHandle), AcmeError> {
        if self.names.is_empty() {
            return Err(AcmeError::NoName);
        }
        let mut names: Vec<String> = Vec::new();
        for name in &self.names {
            let name = check_name(name)?;
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if self.challenges.is_empty() {
            return Err(AcmeError::NoChallenge);
        }
        if !is_directory(&self.directory) {
            return Err(AcmeError::BadDirectory { url: self.directory });
        }
        let contacts = self.contacts.iter().map(|contact| check_contact(contact));
        let contacts = contacts.collect::<Result<_, _>>()?;
        let external_id = self.external.as_ref().map(|(id, _)| id.clone());
        let external = self.external.map(|(id, key)| {
            let key = base64url(&key).ok_or(AcmeError::BadExternalKey)?;
            Ok::<_, AcmeError>(ExternalAccountKey::new(id, &key))
        });
        let external = external.transpose()?;
        let client = Client::new(&self.roots)?;
        let storage = Guarded::new(self.storage.ok_or(AcmeError::NoStorage)?);
        let stored = Stored::new(storage, &self.directory);
        check_storage(&stored, &self.place)?;
        let challenges = Challenges::new()?;
        let lookup = Box::new(Lookup::new(stored.clone(), &challenges));
        let has = |kind| self.challenges.contains(&kind);
        challenges.look_at(lookup, has(Challenge::TlsAlpn01), has(Challenge::Http01));
        let settings = Settings {
            directory: self.directory,
            contacts,
            external,
            external_id,
            client,
            stored,
            challenges: self.challenges,
            profile: self.profile,
            pauses: self.pauses,
        };
        let shared = Shared::new(settings, names, Arc::clone(&challenges));
        let mut tls = Tls::supplied(challenges, Arc::clone(&shared) as _)?;
        for name in shared.names() {
            if let Some(read) = shared.settings.stored.certificate(&name) {
                tls = tls.with(Certificate::from_pem(&read.pem, &read.pem).labelled(&name))?;
            }
        }
        Ok((tls, AcmeHandle::new(shared)))
    }
}

/// What does not change while the server runs.
pub(crate) struct Settings {
    pub(crate) directory: String,
    pub(crate) contacts: Vec<String>,
    pub(crate) external: Option<ExternalAccountKey>,
    pub(crate) external_id: Option<String>,
    pub(crate) client: Client,
    pub(crate) stored: Stored,
    pub(crate) challenges: Vec<Challenge>,
    pub(crate) profile: Option<String>,
    pub(crate) pauses: (Duration, Duration),
}

impl fmt::Debug for Acme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acme")
            .field("names", &self.names)
            .field("directory", &self.directory)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

/// A name in the form in which certificates have it.
// RFC 1035 §2.3.1 and §2.3.4: letters, digits and hyphens, and how many of them.
pub(crate) fn check_name(name: &str) -> Result<String, AcmeError> {
    let bad = |cause| Err(AcmeError::BadName { name: name.to_owned(), cause });
    let clean = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    if clean.starts_with("*.") {
        return bad(
            "wildcards are given by way of DNS only (dns-01), which a server cannot answer; \
            name each host, or have certbot or lego get it, and use Tls::from_pem_files",
        );
    }
    if clean.parse::<IpAddr>().is_ok() {
        return bad("it is an address; give DNS names");
    }
    if !clean.is_ascii() {
        return bad("it is not ASCII; write it as DNS has it (xn--...)");
    }
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(is_letter)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if clean.len() > 253 || !clean.split('.').all(is_label) {
        return bad("it is no DNS name; write it as www.example.org, without scheme, port or path");
    }
    Ok(clean)
}

// RFC 8555 §6.1: HTTPS is used for all of it.
fn is_directory(url: &str) -> bool {
    url.parse::<Uri>().is_ok_and(|uri| uri.scheme_str() == Some("https") && uri.host().is_some())
}

/// An address as a URL.
fn check_contact(contact: &str) -> Result<String, AcmeError> {
    let address = contact.strip_prefix("mailto:").unwrap_or(contact);
    let is_plain =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_graphic());
    match address.split_once('@') {
        // RFC 8555 §7.3: one address, without fields.
        Some((user, host)) if is_plain(user) && is_plain(host) && !address.contains([',', '?']) => {
            Ok(format!("mailto:{address}"))
        }
        _ => Err(AcmeError::BadContact { contact: contact.to_owned() }),
    }
}

/// What cannot be put right by waiting is an error; the rest is told, and certificates that are there are served.
fn check_storage(stored: &Stored, place: &str) -> Result<(), AcmeError> {
    let Err(error) = stored.probe() else { return Ok(()) };
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::TimedOut => {
            tracing::error!(target: "peregrine", place, %error,
                "ACME cannot keep anything at this moment; certificates that are stored are served");
            Ok(())
        }
        _ => Err(AcmeError::Storage { what: place.to_owned(), error }),
    }
}

/// The bytes of a text in base64url, with or without padding; authorities also show the other alphabet.
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
    // What is left is less than a byte, and less than a letter.
    (count < 6 && !bytes.is_empty()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(change: impl FnOnce(Acme) -> Acme) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let acme = Acme::new(["a.test"]).folder(folder.path());
        change(acme).open().map(|_| ()).expect_err("it cannot be used").to_string()
    }

    #[test]
    fn a_setting_that_cannot_be_used_is_an_error_that_names_it_and_the_remedy() {
        let none: [&str; 0] = [];
        let long = format!("{}.test", "a".repeat(64));
        for (text, expected) in [
            (fault(|_| Acme::new(none)), "name one"),
            (fault(|_| Acme::new(["a.test"])), "Acme::folder"),
            (fault(|acme| Acme { names: vec!["*.a.test".to_owned()], ..acme }), "dns-01"),
            (fault(|acme| Acme { names: vec!["127.0.0.1".to_owned()], ..acme }), "address"),
            (fault(|acme| Acme { names: vec!["bücher.test".to_owned()], ..acme }), "xn--"),
            (fault(|acme| Acme { names: vec!["https://a.test".to_owned()], ..acme }), "scheme"),
            (fault(|acme| Acme { names: vec!["a..test".to_owned()], ..acme }), "\"a..test\""),
            (fault(|acme| Acme { names: vec!["-a.test".to_owned()], ..acme }), "DNS name"),
            (fault(|acme| Acme { names: vec![long], ..acme }), "DNS name"),
            (fault(|acme| acme.directory("http://ca.test/dir")), "https://"),
            (fault(|acme| acme.directory("ca.test")), "\"ca.test\""),
            (fault(|acme| acme.contact("nobody")), "\"nobody\""),
            (fault(|acme| acme.contact("a@b, c@d")), "admin@example.org"),
            (fault(|acme| acme.challenges(&[])), "Challenge::TlsAlpn01"),
            (fault(|acme| acme.external_account("id", "no key!")), "base64url"),
            (fault(|acme| acme.root_file("/no/such.pem")), "/no/such.pem"),
            (fault(|acme| acme.folder("/proc/no/folder")), "/proc/no/folder"),
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn names_are_one_however_they_are_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let names = ["A.test", "a.test.", "b.test", "xn--bcher-kva.test"];
        let (tls, handle) = Acme::new(names).folder(folder.path()).open().expect("it can be used");
        assert!(tls.status().certificates.is_empty());
        let found: Vec<_> = handle.status().names.into_iter().map(|status| status.name).collect();
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
