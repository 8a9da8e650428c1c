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

/// How long a response is given if nothing withdraws it, because its process was killed.
const CHALLENGE_RESPONSE_TTL: Duration = Duration::from_secs(900);

/// The maximum number of stored responses. Usually there is one order at a time, unless a lease has
/// expired.
const CHALLENGE_RESPONSES_MAX: usize = 32;

/// The response to a challenge, given by whichever instance the authority reaches.
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
    pub(crate) fn http01(name: &str, token: &str, text: &str) -> Self {
        let [name, token, text] = [name, token, text].map(str::to_owned);
        Self { domain: name, token, key_authorization: text, is_tls_alpn: false, expires_at: 0 }
    }

    pub(crate) fn tls_alpn01(name: &str, token: &str, text: &str) -> Self {
        Self { is_tls_alpn: true, ..Self::http01(name, token, text) }
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

    /// The stored account.
    pub(crate) fn account(&self) -> io::Result<Option<Vec<u8>>> {
        self.storage.load(&self.key("account.json"))
    }

    pub(crate) fn store_account(&self, value: &[u8]) -> io::Result<()> {
        self.storage.store(&self.key("account.json"), value)
    }

    pub(crate) fn remove_account(&self) -> io::Result<()> {
        self.storage.remove(&self.key("account.json"))
    }

    /// The certificate of `name`. An unusable one is logged and counts as missing.
    pub(crate) fn certificate(&self, name: &str) -> Option<StoredCertificate> {
        let key = self.key(&format!("{name}.pem"));
        let cause = match self.storage.load(&key) {
            Ok(None) => return None,
            Ok(Some(pem)) => match parse_certificate(name, pem) {
                Ok(read) => return Some(read),
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

    /// The order in progress for `name`.
    pub(crate) fn pending_order(&self, name: &str) -> Option<PendingOrder> {
        let value = self.storage.load(&self.key(&format!("{name}.order.json"))).ok()??;
        serde_json::from_slice(&value).ok()
    }

    pub(crate) fn store_pending_order(&self, name: &str, begun: &PendingOrder) -> io::Result<()> {
        let value = serde_json::to_vec(begun)?;
        self.storage.store(&self.key(&format!("{name}.order.json")), &value)
    }

    pub(crate) fn remove_pending_order(&self, name: &str) -> io::Result<()> {
        self.storage.remove(&self.key(&format!("{name}.order.json")))
    }

    /// Takes the lock for orders; `None` if another instance holds it.
    pub(crate) fn try_lock(&self) -> io::Result<Option<StorageLock>> {
        self.storage.try_lock(&self.key("lock"), LOCK_LEASE)
    }

    /// All current responses. They are in one entry, so that each lookup reads the same entry,
    /// whatever clients ask for. The entry is emptied rather than removed, since network file
    /// systems cache the absence of a file for long.
    pub(crate) fn challenge_responses(
        &self,
        now: SystemTime,
    ) -> io::Result<Vec<ChallengeResponse>> {
        let Some(value) = self.storage.load(&self.key(CHALLENGE_RESPONSES_FILE))? else {
            return Ok(Vec::new());
        };
        let mut all: Vec<ChallengeResponse> = serde_json::from_slice(&value)?;
        all.retain(|answer| answer.expires_at > seconds(now));
        all.truncate(CHALLENGE_RESPONSES_MAX);
        Ok(all)
    }

    /// Adds a response, replacing others for its name.
    pub(crate) fn store_challenge_response(
        &self,
        answer: ChallengeResponse,
        now: SystemTime,
    ) -> io::Result<()> {
        let until = seconds(now + CHALLENGE_RESPONSE_TTL);
        self.update_challenge_responses(now, |all| {
            all.retain(|known| known.domain != answer.domain);
            all.insert(0, ChallengeResponse { expires_at: until, ..answer });
        })
    }

    /// Removes the response with this token.
    pub(crate) fn remove_challenge_response(&self, token: &str, now: SystemTime) -> io::Result<()> {
        self.update_challenge_responses(now, |all| all.retain(|known| known.token != token))
    }

    /// Changes the responses. Only the holder of the lock does this, so there are no concurrent
    /// changes.
    fn update_challenge_responses(
        &self,
        now: SystemTime,
        change: impl FnOnce(&mut Vec<ChallengeResponse>),
    ) -> io::Result<()> {
        // Incomplete data counts as missing.
        let mut all = self.challenge_responses(now).unwrap_or_default();
        change(&mut all);
        all.truncate(CHALLENGE_RESPONSES_MAX);
        self.storage.store(&self.key(CHALLENGE_RESPONSES_FILE), &serde_json::to_vec(&all)?)
    }

    /// How often the storage has panicked.
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

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Parses a certificate for `name`.
pub(crate) fn parse_certificate(name: &str, pem: Vec<u8>) -> Result<StoredCertificate, String> {
    let found =
        inspect_certificate(&pem, &pem).map_err(|error: TlsSetupError| error.to_string())?;
    let CertificateInfo { names, not_before, not_after, serial, authority_key_id: issuer } = found;
    if !names.iter().any(|found| matches_domain(found, name)) {
        return Err(format!("the certificate is for {}", names.join(", ")));
    }
    Ok(StoredCertificate {
        pem,
        current: CurrentCertificate { not_before, not_after, issuer, serial },
    })
}

fn matches_domain(found: &str, name: &str) -> bool {
    let parent = || name.split_once('.').map(|(_, parent)| parent);
    found == name || found.strip_prefix("*.").is_some_and(|rest| parent() == Some(rest))
}

/// The key prefix of a directory: its URL in characters that every file system supports.
fn directory_key(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let letter = |character: char| match character {
        'a'..='z' | '0'..='9' | '.' => character,
        'A'..='Z' => character.to_ascii_lowercase(),
        _ => '-',
    };
    let folder: String = rest.chars().map(letter).collect();
    let folder = folder.trim_matches(['-', '.']);
    if folder.is_empty() { "directory".to_owned() } else { folder.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::DirStorage;
    use std::sync::Arc;

    fn made(name: &str) -> Vec<u8> {
        let parameters =
            rcgen::CertificateParams::new([name.to_owned()]).expect("the name is valid");
        let key = rcgen::KeyPair::generate().expect("a key can be generated");
        let chain = parameters.self_signed(&key).expect("the key can sign").pem();
        format!("{chain}{}", key.serialize_pem()).into_bytes()
    }

    fn stored() -> (tempfile::TempDir, ScopedStorage) {
        let root = tempfile::tempdir().expect("a directory");
        let storage = PanicSafeStorage::new(Arc::new(DirStorage::new(root.path())));
        (root, ScopedStorage::new(storage, "https://ca.test:14000/dir"))
    }

    #[test]
    fn what_is_half_written_is_not_there() {
        let (_root, stored) = stored();
        assert!(stored.certificate("a.test").is_none());
        let pem = made("a.test");
        for end in (0..pem.trim_ascii_end().len()).step_by(11) {
            stored.store_certificate("a.test", &pem[..end]).expect("the disk has space");
            assert!(stored.certificate("a.test").is_none(), "cut at {end}");
        }
        stored.store_certificate("a.test", &pem).expect("the disk has space");
        assert_eq!(stored.certificate("a.test").expect("the value is complete").pem, pem);
        // A certificate with another one's key, and one for another name.
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("PEM is text");
        let (one, other) = (text(&pem), text(&made("a.test")));
        let key = other.find("-----BEGIN PRIVATE KEY").expect("the PEM has a key");
        let end = one.find("-----BEGIN PRIVATE KEY").expect("the PEM has a key");
        let mixed = format!("{}{}", &one[..end], &other[key..]);
        stored.store_certificate("a.test", mixed.as_bytes()).expect("the disk has space");
        assert!(stored.certificate("a.test").is_none());
        stored.store_certificate("a.test", &made("b.test")).expect("the disk has space");
        assert!(stored.certificate("a.test").is_none());
    }

    #[test]
    fn an_order_that_is_half_written_is_none() {
        let (root, stored) = stored();
        assert!(stored.pending_order("a.test").is_none());
        let begun = PendingOrder {
            order_url: "https://ca.test/1".to_owned(),
            private_key_pem: "key".to_owned(),
        };
        stored.store_pending_order("a.test", &begun).expect("the disk has space");
        assert_eq!(
            stored.pending_order("a.test").expect("the value is complete").order_url,
            begun.order_url
        );
        let path = root.path().join("ca.test-14000-dir/a.test.order.json");
        let whole = std::fs::read(&path).expect("the file exists");
        std::fs::write(&path, &whole[..whole.len() - 1]).expect("the disk has space");
        assert!(stored.pending_order("a.test").is_none());
        stored.remove_pending_order("a.test").expect("the file can be removed");
        assert!(!path.exists());
    }

    #[test]
    fn an_answer_is_given_until_it_is_taken_away_or_its_time_is_over() {
        let (_root, stored) = stored();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let tokens = |now| -> Vec<String> {
            let all = stored.challenge_responses(now).expect("the storage can be read");
            all.into_iter().map(|answer| answer.token).collect()
        };
        assert!(tokens(now).is_empty());
        for (name, token) in [("a.test", "1"), ("b.test", "2"), ("a.test", "3")] {
            let answer = ChallengeResponse::tls_alpn01(name, token, "text");
            stored.store_challenge_response(answer, now).expect("the disk has space");
        }
        assert_eq!(tokens(now), ["3", "2"], "one for each name");
        // Another instance has the lock, and removes its own response.
        let later = now + CHALLENGE_RESPONSE_TTL / 2;
        stored
            .store_challenge_response(ChallengeResponse::http01("c.test", "4", "text"), later)
            .expect("the disk has space");
        stored.remove_challenge_response("2", later).expect("the disk has space");
        stored.remove_challenge_response("2", later).expect("the disk has space");
        assert_eq!(tokens(later), ["4", "3"]);
        assert_eq!(tokens(now + CHALLENGE_RESPONSE_TTL), ["4"]);
        for number in 0..CHALLENGE_RESPONSES_MAX * 2 {
            let answer = ChallengeResponse::http01(&format!("{number}.test"), "5", "text");
            stored.store_challenge_response(answer, later).expect("the disk has space");
        }
        assert_eq!(tokens(later).len(), CHALLENGE_RESPONSES_MAX);
        stored
            .storage
            .store(&stored.key(CHALLENGE_RESPONSES_FILE), b"[{")
            .expect("the disk has space");
        assert!(stored.challenge_responses(now).is_err());
        stored
            .store_challenge_response(ChallengeResponse::http01("c.test", "6", "text"), now)
            .expect("the disk has space");
        assert_eq!(tokens(now), ["6"]);
    }

    #[cfg(unix)]
    #[test]
    fn what_cannot_be_read_is_not_there() {
        let (root, stored) = stored();
        // A directory in its place is unreadable even for root.
        let path = root.path().join("ca.test-14000-dir/a.test.pem");
        std::fs::create_dir_all(path).expect("the disk has space");
        assert!(stored.certificate("a.test").is_none());
        assert!(stored.store_certificate("a.test", b"x").is_err());
    }

    #[test]
    fn directories_have_folders_of_their_own() {
        for (url, folder) in [
            (
                "https://acme-v02.api.letsencrypt.org/directory",
                "acme-v02.api.letsencrypt.org-directory",
            ),
            ("https://localhost:14000/dir", "localhost-14000-dir"),
            ("https://[::1]:8443/../A?b", "1--8443-..-a-b"),
            ("https://../..", "directory"),
        ] {
            assert_eq!(directory_key(url), folder, "{url}");
        }
    }

    #[test]
    fn a_wildcard_is_for_names_with_one_label_more() {
        for (found, name, expected) in [
            ("a.test", "a.test", true),
            ("*.test", "a.test", true),
            ("*.test", "b.a.test", false),
            ("*.a.test", "a.test", false),
            ("b.test", "a.test", false),
        ] {
            assert_eq!(matches_domain(found, name), expected, "{found} {name}");
        }
    }
}
