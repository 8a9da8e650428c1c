//! The stored data: its keys and format. Incomplete data counts as missing.

use crate::panic_safe_storage::{PanicSafeStorage, StorageLock};
use crate::schedule::CurrentCertificate;
use peregrine_tls::{CertificateInfo, TlsSetupError, inspect_certificate};
use serde::{Deserialize, Serialize};
use std::io;
use std::time::{Duration, SystemTime};

/// The part of a storage for one directory: different authorities have different certificates.
#[derive(Clone)]
pub(crate) struct ScopedStorage {
    storage: PanicSafeStorage,
    directory: String,
}

/// The lease of the lock for an order. Orders end well before, so a holder never loses the lock
/// unnoticed.
pub(crate) const LOCK_LEASE: Duration = Duration::from_secs(900);

/// How long a response stays published if it is not removed, because its process was killed.
const CHALLENGE_RESPONSE_TTL: Duration = Duration::from_secs(900);

/// The maximum number of stored responses. Usually there is one order at a time, unless a lease has
/// expired.
const CHALLENGE_RESPONSES_MAX: usize = 32;

/// The response to a challenge. Any instance that the authority reaches sends it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct ChallengeResponse {
    pub(crate) domain: String,
    pub(crate) token: String,
    /// The key authorization.
    pub(crate) key_authorization: String,
    /// Whether it is for connections (tls-alpn-01) rather than requests (http-01).
    pub(crate) is_tls_alpn: bool,
    /// When it expires, in seconds since 1970.
    expires_at: u64,
}

impl ChallengeResponse {
    pub(crate) fn http01(domain: &str, token: &str, key_authorization: &str) -> Self {
        let [domain, token, key_authorization] =
            [domain, token, key_authorization].map(str::to_owned);
        Self { domain, token, key_authorization, is_tls_alpn: false, expires_at: 0 }
    }

    pub(crate) fn tls_alpn01(domain: &str, token: &str, key_authorization: &str) -> Self {
        Self { is_tls_alpn: true, ..Self::http01(domain, token, key_authorization) }
    }
}

/// A stored certificate: its chain, then its key, in PEM. The key comes last, so that truncated
/// text has no key.
#[derive(Clone)]
pub(crate) struct StoredCertificate {
    pub(crate) pem: Vec<u8>,
    pub(crate) current: CurrentCertificate,
}

/// An order in progress, which can be resumed after its process was killed.
#[derive(Clone, Deserialize, Serialize)]
pub(crate) struct PendingOrder {
    /// The order's URL.
    pub(crate) order_url: String,
    /// The key for the certificate, in PEM.
    pub(crate) private_key_pem: String,
}

impl ScopedStorage {
    pub(crate) fn new(storage: PanicSafeStorage, directory: &str) -> Self {
        Self { storage, directory: directory_key(directory) }
    }

    fn key(&self, file: &str) -> String {
        format!("{}/{file}", self.directory)
    }

    /// Loads the account.
    pub(crate) fn account(&self) -> io::Result<Option<Vec<u8>>> {
        self.storage.load(&self.key("account.json"))
    }

    pub(crate) fn store_account(&self, value: &[u8]) -> io::Result<()> {
        self.storage.store(&self.key("account.json"), value)
    }

    pub(crate) fn remove_account(&self) -> io::Result<()> {
        self.storage.remove(&self.key("account.json"))
    }

    /// Loads the certificate of `name`. If it is unusable, this is logged, and it counts as
    /// missing.
    pub(crate) fn certificate(&self, name: &str) -> Option<StoredCertificate> {
        let key = self.key(&format!("{name}.pem"));
        let cause = match self.storage.load(&key) {
            Ok(None) => return None,
            Ok(Some(pem)) => match parse_certificate(name, pem) {
                Ok(stored) => return Some(stored),
                Err(cause) => cause,
            },
            Err(error) => error.to_string(),
        };
        tracing::error!(target: "peregrine", name, key, cause,
            "the stored certificate cannot be used; a new one will be ordered");
        None
    }

    pub(crate) fn store_certificate(&self, name: &str, pem: &[u8]) -> io::Result<()> {
        self.storage.store(&self.key(&format!("{name}.pem")), pem)
    }

    /// Loads the order in progress for `name`.
    pub(crate) fn pending_order(&self, name: &str) -> Option<PendingOrder> {
        let value = self.storage.load(&self.key(&format!("{name}.order.json"))).ok()??;
        serde_json::from_slice(&value).ok()
    }

    pub(crate) fn store_pending_order(&self, name: &str, order: &PendingOrder) -> io::Result<()> {
        let value = serde_json::to_vec(order)?;
        self.storage.store(&self.key(&format!("{name}.order.json")), &value)
    }

    pub(crate) fn remove_pending_order(&self, name: &str) -> io::Result<()> {
        self.storage.remove(&self.key(&format!("{name}.order.json")))
    }

    /// Takes the lock for orders. Returns `None` if another instance holds it.
    pub(crate) fn try_lock(&self) -> io::Result<Option<StorageLock>> {
        self.storage.try_lock(&self.key("lock"), LOCK_LEASE)
    }

    /// Loads all current responses. They are in one entry, so that each lookup reads the same
    /// entry, regardless of what clients request. The entry is emptied rather than removed, since
    /// network file systems cache the absence of a file for a long time.
    pub(crate) fn challenge_responses(
        &self,
        now: SystemTime,
    ) -> io::Result<Vec<ChallengeResponse>> {
        let Some(value) = self.storage.load(&self.key(CHALLENGE_RESPONSES_FILE))? else {
            return Ok(Vec::new());
        };
        let mut responses: Vec<ChallengeResponse> = serde_json::from_slice(&value)?;
        responses.retain(|response| response.expires_at > unix_seconds(now));
        responses.truncate(CHALLENGE_RESPONSES_MAX);
        Ok(responses)
    }

    /// Adds a response, replacing others for its name.
    pub(crate) fn store_challenge_response(
        &self,
        response: ChallengeResponse,
        now: SystemTime,
    ) -> io::Result<()> {
        let expires_at = unix_seconds(now + CHALLENGE_RESPONSE_TTL);
        self.update_challenge_responses(now, |responses| {
            responses.retain(|other| other.domain != response.domain);
            responses.insert(0, ChallengeResponse { expires_at, ..response });
        })
    }

    /// Removes the response with this token.
    pub(crate) fn remove_challenge_response(&self, token: &str, now: SystemTime) -> io::Result<()> {
        self.update_challenge_responses(now, |responses| {
            responses.retain(|response| response.token != token)
        })
    }

    /// Changes the responses. Only the holder of the lock does this, so there are no concurrent
    /// changes.
    fn update_challenge_responses(
        &self,
        now: SystemTime,
        change: impl FnOnce(&mut Vec<ChallengeResponse>),
    ) -> io::Result<()> {
        // Incomplete data counts as missing.
        let mut responses = self.challenge_responses(now).unwrap_or_default();
        change(&mut responses);
        responses.truncate(CHALLENGE_RESPONSES_MAX);
        self.storage.store(&self.key(CHALLENGE_RESPONSES_FILE), &serde_json::to_vec(&responses)?)
    }

    /// Returns how often the storage has panicked.
    pub(crate) fn panics(&self) -> u64 {
        self.storage.panics()
    }

    /// Checks whether the storage is writable, with a value of realistic size: a full disk still
    /// accepts empty files.
    pub(crate) fn probe(&self) -> io::Result<()> {
        let key = self.key("probe");
        self.storage.store(&key, &[b'x'; 4096])?;
        self.storage.remove(&key)
    }
}

/// The key of the shared responses.
const CHALLENGE_RESPONSES_FILE: &str = "answers.json";

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Parses a certificate and checks that it is for `name`.
pub(crate) fn parse_certificate(name: &str, pem: Vec<u8>) -> Result<StoredCertificate, String> {
    let info = inspect_certificate(&pem, &pem).map_err(|error: TlsSetupError| error.to_string())?;
    let CertificateInfo { names, not_before, not_after, serial, authority_key_id: issuer } = info;
    if !names.iter().any(|pattern| matches_domain(pattern, name)) {
        return Err(format!("the certificate is for {}", names.join(", ")));
    }
    Ok(StoredCertificate {
        pem,
        current: CurrentCertificate { not_before, not_after, issuer, serial },
    })
}

fn matches_domain(pattern: &str, domain: &str) -> bool {
    let parent = || domain.split_once('.').map(|(_, parent)| parent);
    pattern == domain || pattern.strip_prefix("*.").is_some_and(|suffix| parent() == Some(suffix))
}

/// Returns the key prefix of a directory: its URL in characters that every file system supports.
fn directory_key(url: &str) -> String {
    let without_scheme = url.split_once("://").map_or(url, |(_, rest)| rest);
    let sanitize = |character: char| match character {
        'a'..='z' | '0'..='9' | '.' => character,
        'A'..='Z' => character.to_ascii_lowercase(),
        _ => '-',
    };
    let key: String = without_scheme.chars().map(sanitize).collect();
    let key = key.trim_matches(['-', '.']);
    if key.is_empty() { "directory".to_owned() } else { key.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::DirStorage;
    use std::sync::Arc;

    fn self_signed_pem(name: &str) -> Vec<u8> {
        let parameters =
            rcgen::CertificateParams::new([name.to_owned()]).expect("the name is valid");
        let key = rcgen::KeyPair::generate().expect("a key can be generated");
        let chain = parameters.self_signed(&key).expect("the key can sign").pem();
        format!("{chain}{}", key.serialize_pem()).into_bytes()
    }

    fn scoped_storage() -> (tempfile::TempDir, ScopedStorage) {
        let root = tempfile::tempdir().expect("the temporary directory is writable");
        let storage = PanicSafeStorage::new(Arc::new(DirStorage::new(root.path())));
        (root, ScopedStorage::new(storage, "https://ca.test:14000/dir"))
    }

    #[test]
    fn a_truncated_or_mismatched_certificate_counts_as_missing() {
        let (_root, storage) = scoped_storage();
        assert!(storage.certificate("a.test").is_none());
        let pem = self_signed_pem("a.test");
        for end in (0..pem.trim_ascii_end().len()).step_by(11) {
            storage.store_certificate("a.test", &pem[..end]).expect("the disk has space");
            assert!(storage.certificate("a.test").is_none(), "cut at {end}");
        }
        storage.store_certificate("a.test", &pem).expect("the disk has space");
        assert_eq!(storage.certificate("a.test").expect("the value is complete").pem, pem);
        // A certificate with another one's key, and one for another name.
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("PEM is text");
        let (first_pem, second_pem) = (text(&pem), text(&self_signed_pem("a.test")));
        let key = second_pem.find("-----BEGIN PRIVATE KEY").expect("the PEM has a key");
        let end = first_pem.find("-----BEGIN PRIVATE KEY").expect("the PEM has a key");
        let mixed = format!("{}{}", &first_pem[..end], &second_pem[key..]);
        storage.store_certificate("a.test", mixed.as_bytes()).expect("the disk has space");
        assert!(storage.certificate("a.test").is_none());
        storage
            .store_certificate("a.test", &self_signed_pem("b.test"))
            .expect("the disk has space");
        assert!(storage.certificate("a.test").is_none());
    }

    #[test]
    fn a_truncated_order_counts_as_missing() {
        let (root, storage) = scoped_storage();
        assert!(storage.pending_order("a.test").is_none());
        let order = PendingOrder {
            order_url: "https://ca.test/1".to_owned(),
            private_key_pem: "key".to_owned(),
        };
        storage.store_pending_order("a.test", &order).expect("the disk has space");
        assert_eq!(
            storage.pending_order("a.test").expect("the value is complete").order_url,
            order.order_url
        );
        let path = root.path().join("ca.test-14000-dir/a.test.order.json");
        let content = std::fs::read(&path).expect("the file exists");
        std::fs::write(&path, &content[..content.len() - 1]).expect("the disk has space");
        assert!(storage.pending_order("a.test").is_none());
        storage.remove_pending_order("a.test").expect("the file can be removed");
        assert!(!path.exists());
    }

    #[test]
    fn a_challenge_response_is_stored_until_it_is_removed_or_expires() {
        let (_root, storage) = scoped_storage();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let tokens = |now| -> Vec<String> {
            let responses = storage.challenge_responses(now).expect("the storage can be read");
            responses.into_iter().map(|response| response.token).collect()
        };
        assert!(tokens(now).is_empty());
        for (name, token) in [("a.test", "1"), ("b.test", "2"), ("a.test", "3")] {
            let response = ChallengeResponse::tls_alpn01(name, token, "text");
            storage.store_challenge_response(response, now).expect("the disk has space");
        }
        assert_eq!(tokens(now), ["3", "2"], "one for each name");
        // Another instance has the lock, and removes its own response.
        let later = now + CHALLENGE_RESPONSE_TTL / 2;
        storage
            .store_challenge_response(ChallengeResponse::http01("c.test", "4", "text"), later)
            .expect("the disk has space");
        storage.remove_challenge_response("2", later).expect("the disk has space");
        storage.remove_challenge_response("2", later).expect("the disk has space");
        assert_eq!(tokens(later), ["4", "3"]);
        assert_eq!(tokens(now + CHALLENGE_RESPONSE_TTL), ["4"]);
        for index in 0..CHALLENGE_RESPONSES_MAX * 2 {
            let response = ChallengeResponse::http01(&format!("{index}.test"), "5", "text");
            storage.store_challenge_response(response, later).expect("the disk has space");
        }
        assert_eq!(tokens(later).len(), CHALLENGE_RESPONSES_MAX);
        storage
            .storage
            .store(&storage.key(CHALLENGE_RESPONSES_FILE), b"[{")
            .expect("the disk has space");
        assert!(storage.challenge_responses(now).is_err());
        storage
            .store_challenge_response(ChallengeResponse::http01("c.test", "6", "text"), now)
            .expect("the disk has space");
        assert_eq!(tokens(now), ["6"]);
    }

    #[cfg(unix)]
    #[test]
    fn an_unreadable_certificate_counts_as_missing() {
        let (root, storage) = scoped_storage();
        // A directory in its place is unreadable even for root.
        let path = root.path().join("ca.test-14000-dir/a.test.pem");
        std::fs::create_dir_all(path).expect("the disk has space");
        assert!(storage.certificate("a.test").is_none());
        assert!(storage.store_certificate("a.test", b"x").is_err());
    }

    #[test]
    fn each_directory_url_has_its_own_key() {
        for (url, expected) in [
            (
                "https://acme-v02.api.letsencrypt.org/directory",
                "acme-v02.api.letsencrypt.org-directory",
            ),
            ("https://localhost:14000/dir", "localhost-14000-dir"),
            ("https://[::1]:8443/../A?b", "1--8443-..-a-b"),
            ("https://../..", "directory"),
        ] {
            assert_eq!(directory_key(url), expected, "{url}");
        }
    }

    #[test]
    fn a_wildcard_matches_exactly_one_label() {
        for (pattern, name, expected) in [
            ("a.test", "a.test", true),
            ("*.test", "a.test", true),
            ("*.test", "b.a.test", false),
            ("*.a.test", "a.test", false),
            ("b.test", "a.test", false),
        ] {
            assert_eq!(matches_domain(pattern, name), expected, "{pattern} {name}");
        }
    }
}
