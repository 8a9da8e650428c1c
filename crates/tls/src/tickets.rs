//! The keys of session tickets.
//!
//! A *secret* is 32 bytes. Each secret has a name of 16 bytes, the HMAC-SHA-256 of a fixed text.
//! The format of a ticket is
//!
//! | bytes | content |
//! |---|---|
//! | 16 | the name of the secret |
//! | 16 | a random salt |
//! | the rest | sealed by AES-256-GCM: issue time (8), expiry (8), the session; a tag (16) |
//!
//! The ticket's key is HKDF-SHA-256 of secret and salt, so it seals only one ticket, and the nonce
//! is zero: a nonce is never reused with a key, even if many instances use the same secret and
//! issue many tickets. The *context*, a digest of the client authentication settings (roots and
//! revocation lists), is authenticated with the ticket. A ticket with another context is invalid.

use crate::client_not_after;
use crate::error::{PemOrigin, TlsSetupError};
use crate::limits::TICKET_SESSION_BYTES_MAX;
use crate::pem::PemSource;
use crate::sha256::Digest;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use aws_lc_rs::hmac;
use rustls::server::ProducesTickets;
use rustls_pki_types::UnixTime;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How long a ticket is accepted: 12 hours.
const TICKET_LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);

/// How long a generated secret seals tickets: half of the lifetime, so that three are enough.
const ROTATION_INTERVAL: Duration = Duration::from_secs(6 * 60 * 60);

/// The maximum number of secrets. The first seals new tickets, and all open tickets.
const KEYS_MAX: usize = 8;

/// The maximum number of generated secrets.
const GENERATED_KEYS_MAX: usize = 3;

const NAME_BYTES: usize = 16;
const SALT_BYTES: usize = 16;
const TIMES_BYTES: usize = 16;

/// The keys of session tickets. Cheap to clone; clones share the keys and can be used on any
/// thread.
///
/// Servers with the same keys accept each other's tickets: several instances behind one address,
/// and the next process after a restart. The first key seals new tickets, and all keys (at most
/// eight) open tickets. A ticket is accepted for twelve hours, and never after the client's
/// certificate has expired.
///
/// | created by | keys | changed by |
/// |---|---|---|
/// | [`TicketKeys::random`], the default | random | automatically, every six hours |
/// | [`TicketKeys::from_secrets`] | yours | [`TicketKeys::rotate`], [`TicketKeys::set_secrets`] |
/// | [`TicketKeys::from_file`] | in a file | a reload of [`TlsConfig`](crate::TlsConfig) |
///
/// # The file
///
/// One key per line: 64 hexadecimal digits, as written by `openssl rand -hex 32`. Empty lines and
/// lines that begin with `#` are ignored. To change keys shared by several instances: add the new
/// key as the second line everywhere, then make it the first, and remove the old key twelve hours
/// later. Change them at least daily: an attacker who learns a key can read the traffic of all TLS
/// 1.2 connections that were resumed with its tickets.
///
/// ```
/// use peregrine::tls::{TicketKeys, TlsConfig};
///
/// let keys = TicketKeys::from_secrets([[7; 32]])?;
/// let tls = TlsConfig::self_signed(&["localhost"])?.tls.with_ticket_keys(keys.clone());
/// keys.rotate()?; // the new key seals tickets, the previous one still opens existing ones
/// assert_eq!(keys.secrets().len(), 2);
/// # Ok::<(), peregrine::tls::TlsSetupError>(())
/// ```
#[derive(Clone)]
pub struct TicketKeys {
    ring: Arc<RwLock<KeyRing>>,
    /// The file or text with the keys.
    source: Option<PemSource>,
}

struct KeyRing {
    keys: Vec<TicketKey>,
    /// When to create the next key, if the keys rotate automatically.
    next_rotation: Option<Instant>,
}

#[derive(Clone)]
struct TicketKey {
    secret: [u8; 32],
    name: [u8; NAME_BYTES],
}

impl TicketKeys {
    /// Creates a random key, which is rotated every six hours.
    ///
    /// # Errors
    /// [`TlsSetupError::RngFailed`].
    pub fn random() -> Result<Self, TlsSetupError> {
        Ok(Self::from_keys(
            vec![TicketKey::random()?],
            Some(Instant::now() + ROTATION_INTERVAL),
            None,
        ))
    }

    /// Uses these keys, the sealing key first. They do not rotate.
    ///
    /// # Errors
    /// [`TlsSetupError::BadTicketKeys`] if there is none, or if there are more than eight.
    pub fn from_secrets(
        secrets: impl IntoIterator<Item = [u8; 32]>,
    ) -> Result<Self, TlsSetupError> {
        Ok(Self::from_keys(parse_keys(secrets)?, None, None))
    }

    /// Uses the keys in a file, which is read again on each reload.
    ///
    /// # Errors
    /// [`TlsSetupError::Unreadable`], or [`TlsSetupError::BadTicketKeys`] which names the line.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, TlsSetupError> {
        let source = PemSource::file(path);
        let keys = read_keys(&source)?;
        Ok(Self::from_keys(keys, None, Some(source)))
    }

    fn from_keys(
        keys: Vec<TicketKey>,
        next_rotation: Option<Instant>,
        source: Option<PemSource>,
    ) -> Self {
        Self { ring: Arc::new(RwLock::new(KeyRing { keys, next_rotation })), source }
    }

    /// Inserts a new random key before the others, and removes the oldest key if there are more
    /// than eight.
    ///
    /// # Errors
    /// [`TlsSetupError::RngFailed`].
    pub fn rotate(&self) -> Result<(), TlsSetupError> {
        let key = TicketKey::random()?;
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        ring.keys.insert(0, key);
        ring.keys.truncate(KEYS_MAX);
        Ok(())
    }

    /// Replaces all keys.
    ///
    /// # Errors
    /// As [`TicketKeys::from_secrets`]; the keys are then unchanged.
    pub fn set_secrets(
        &self,
        secrets: impl IntoIterator<Item = [u8; 32]>,
    ) -> Result<(), TlsSetupError> {
        self.replace_all(parse_keys(secrets)?);
        Ok(())
    }

    /// Replaces random keys with those of the previous process. They keep rotating. Keys that were
    /// configured, or are in a file, are not replaced; the result is then false.
    ///
    /// # Errors
    /// As [`TicketKeys::from_secrets`]; the keys are then unchanged.
    pub fn replace_generated_keys(
        &self,
        secrets: impl IntoIterator<Item = [u8; 32]>,
    ) -> Result<bool, TlsSetupError> {
        let keys = parse_keys(secrets)?;
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        let is_random = ring.next_rotation.is_some();
        if is_random {
            ring.keys = keys;
        }
        Ok(is_random)
    }

    /// All keys, the sealing key first, for handing them over to another process. Keep them secret.
    #[must_use]
    pub fn secrets(&self) -> Vec<[u8; 32]> {
        let ring = self.ring.read().unwrap_or_else(PoisonError::into_inner);
        ring.keys.iter().map(|key| key.secret).collect()
    }

    pub(crate) fn path(&self) -> Option<&Path> {
        self.source.as_ref()?.path()
    }

    /// Reads the file again, if there is one. [`TicketKeys::apply`] puts the keys into use.
    pub(crate) fn reload(&self) -> Result<Option<PendingKeys>, TlsSetupError> {
        self.source.as_ref().map(|source| read_keys(source).map(PendingKeys)).transpose()
    }

    /// Replaces all keys. Returns false if nothing has changed.
    pub(crate) fn apply(&self, PendingKeys(keys): PendingKeys) -> bool {
        let has_changed = !keys.iter().map(|key| key.secret).eq(self.secrets());
        if has_changed {
            self.replace_all(keys);
        }
        has_changed
    }

    fn replace_all(&self, keys: Vec<TicketKey>) {
        self.ring.write().unwrap_or_else(PoisonError::into_inner).keys = keys;
    }

    /// Creates a new key if it is due.
    fn rotate_if_due(&self, now: Instant) {
        let is_due = |ring: &KeyRing| ring.next_rotation.is_some_and(|next| next <= now);
        if !is_due(&self.ring.read().unwrap_or_else(PoisonError::into_inner)) {
            return;
        }
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have rotated already. Without random bytes the old key stays in use.
        if is_due(&ring)
            && let Ok(key) = TicketKey::random()
        {
            ring.keys.insert(0, key);
            ring.keys.truncate(GENERATED_KEYS_MAX);
            ring.next_rotation = Some(now + ROTATION_INTERVAL);
        }
    }

    fn seal(&self, context: &Digest, times: TicketTimes, session: &[u8]) -> Option<Vec<u8>> {
        let mut salt = [0; SALT_BYTES];
        aws_lc_rs::rand::fill(&mut salt).ok()?;
        let ring = self.ring.read().unwrap_or_else(PoisonError::into_inner);
        let key = ring.keys.first()?;
        let mut sealed = Vec::with_capacity(TIMES_BYTES + session.len() + AES_256_GCM.tag_len());
        sealed.extend_from_slice(&times.issued_at.to_be_bytes());
        sealed.extend_from_slice(&times.expires_at.to_be_bytes());
        sealed.extend_from_slice(session);
        key.derive_aead_key(&salt)?
            .seal_in_place_append_tag(zero_nonce(), Aad::from(context), &mut sealed)
            .ok()?;
        Some([&key.name[..], &salt, &sealed].concat())
    }

    fn open(&self, context: &Digest, ticket: &[u8]) -> Option<(TicketTimes, Vec<u8>)> {
        let (name, rest) = ticket.split_at_checked(NAME_BYTES)?;
        let (salt, sealed) = rest.split_at_checked(SALT_BYTES)?;
        let ring = self.ring.read().unwrap_or_else(PoisonError::into_inner);
        // Names are not secret.
        let key = ring.keys.iter().find(|key| key.name == name)?;
        let mut sealed = sealed.to_vec();
        let opened = key
            .derive_aead_key(salt)?
            .open_in_place(zero_nonce(), Aad::from(context), &mut sealed)
            .ok()?;
        let (issued_at, rest) = opened.split_first_chunk()?;
        let (expires_at, session) = rest.split_first_chunk()?;
        let times = TicketTimes {
            issued_at: u64::from_be_bytes(*issued_at),
            expires_at: u64::from_be_bytes(*expires_at),
        };
        Some((times, session.to_vec()))
    }
}

/// Omits the keys.
impl fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketKeys").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Keys that were read but are not in use yet.
pub(crate) struct PendingKeys(Vec<TicketKey>);

impl TicketKey {
    fn new(secret: [u8; 32]) -> Self {
        let mac = hmac::sign(
            &hmac::Key::new(hmac::HMAC_SHA256, &secret),
            b"peregrine: the name of a secret for tickets",
        );
        let (name, _) = mac.as_ref().split_first_chunk().expect("an HMAC has 32 bytes, a name 16");
        Self { secret, name: *name }
    }

    fn random() -> Result<Self, TlsSetupError> {
        let mut secret = [0; 32];
        aws_lc_rs::rand::fill(&mut secret).map_err(|_| TlsSetupError::RngFailed)?;
        Ok(Self::new(secret))
    }

    /// Derives the key for the ticket with this salt.
    fn derive_aead_key(&self, salt: &[u8]) -> Option<LessSafeKey> {
        let prk = Salt::new(HKDF_SHA256, salt).extract(&self.secret);
        let key = prk.expand(&[b"peregrine: the key of a ticket"], &AES_256_GCM).ok()?;
        Some(LessSafeKey::new(UnboundKey::from(key)))
    }
}

fn zero_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

fn parse_keys(
    secrets: impl IntoIterator<Item = [u8; 32]>,
) -> Result<Vec<TicketKey>, TlsSetupError> {
    let keys: Vec<_> = secrets.into_iter().take(KEYS_MAX + 1).map(TicketKey::new).collect();
    check_count(keys, &PemOrigin::Memory)
}

fn check_count(keys: Vec<TicketKey>, origin: &PemOrigin) -> Result<Vec<TicketKey>, TlsSetupError> {
    if (1..=KEYS_MAX).contains(&keys.len()) {
        return Ok(keys);
    }
    Err(TlsSetupError::BadTicketKeys { origin: origin.clone(), line: None })
}

fn read_keys(source: &PemSource) -> Result<Vec<TicketKey>, TlsSetupError> {
    let file = source.read()?;
    let bad_line =
        |line| TlsSetupError::BadTicketKeys { origin: file.origin.clone(), line: Some(line) };
    let mut keys = Vec::new();
    for (index, line) in file.text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        keys.push(TicketKey::new(parse_secret(line).ok_or_else(|| bad_line(index + 1))?));
    }
    check_count(keys, &file.origin)
}

fn parse_secret(line: &[u8]) -> Option<[u8; 32]> {
    let mut secret = [0; 32];
    let digits = std::str::from_utf8(line).ok().filter(|text| text.len() == 64)?;
    for (byte, pair) in secret.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()?;
    }
    Some(secret)
}

/// When a ticket was issued and when it expires, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TicketTimes {
    issued_at: u64,
    expires_at: u64,
}

impl TicketTimes {
    /// The times of a ticket issued now to a client whose certificate expires at
    /// `certificate_not_after`.
    fn from_now(now: u64, certificate_not_after: Option<u64>) -> Self {
        let lifetime_end = now.saturating_add(TICKET_LIFETIME.as_secs());
        Self {
            issued_at: now,
            expires_at: certificate_not_after
                .map_or(lifetime_end, |not_after| not_after.min(lifetime_end)),
        }
    }

    /// Returns whether the ticket is valid at `now`. A clock that was set back, or that differs
    /// from the clock of the issuing instance, cannot extend a ticket to more than twice its
    /// lifetime.
    fn is_valid_at(self, now: u64) -> bool {
        now < self.expires_at && self.issued_at <= now.saturating_add(TICKET_LIFETIME.as_secs())
    }
}

/// Issues and opens the tickets of one configuration.
#[derive(Debug)]
pub(crate) struct Ticketer {
    pub(crate) keys: TicketKeys,
    /// The digest of the client authentication settings.
    pub(crate) client_auth_digest: Digest,
}

impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(TICKET_LIFETIME.as_secs()).expect("a few hours fit into 32 bits")
    }

    fn encrypt(&self, session: &[u8]) -> Option<Vec<u8>> {
        // Without a ticket, the client performs a full handshake the next time.
        if session.len() > TICKET_SESSION_BYTES_MAX {
            return None;
        }
        self.keys.rotate_if_due(Instant::now());
        let times = TicketTimes::from_now(UnixTime::now().as_secs(), client_not_after::get());
        self.keys.seal(&self.client_auth_digest, times, session)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (times, session) = self.keys.open(&self.client_auth_digest, ticket)?;
        if !times.is_valid_at(UnixTime::now().as_secs()) {
            return None;
        }
        // Only the client's certificate makes a ticket expire before its lifetime. A ticket that
        // replaces it must expire at the same time.
        if times.expires_at < times.issued_at.saturating_add(TICKET_LIFETIME.as_secs()) {
            client_not_after::set(Some(times.expires_at));
        }
        Some(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: Digest = [1; 32];
    const TIMES: TicketTimes = TicketTimes { issued_at: 1_000, expires_at: 2_000 };

    #[test]
    fn a_ticket_opens_only_with_its_key_and_the_same_client_auth() {
        let keys = TicketKeys::from_secrets([[1; 32], [2; 32]]).unwrap();
        let ticket = keys.seal(&CONTEXT, TIMES, b"session").unwrap();
        let expected = Some((TIMES, b"session".to_vec()));
        assert_eq!(keys.open(&CONTEXT, &ticket), expected);
        let reordered = TicketKeys::from_secrets([[2; 32], [1; 32]]).unwrap();
        assert_eq!(reordered.open(&CONTEXT, &ticket), expected, "each of the keys opens it");
        let other_keys = TicketKeys::from_secrets([[2; 32]]).unwrap();
        assert_eq!(other_keys.open(&CONTEXT, &ticket), None);
        assert_eq!(keys.open(&[2; 32], &ticket), None, "the roots have changed");
    }

    #[test]
    fn replaced_random_keys_keep_rotating_and_configured_keys_are_not_replaced() {
        let predecessor = TicketKeys::random().expect("the system returns random bytes");
        let keys = TicketKeys::random().expect("the system returns random bytes");
        assert!(keys.replace_generated_keys(predecessor.secrets()).expect("the keys are valid"));
        assert_eq!(keys.secrets(), predecessor.secrets());
        keys.rotate_if_due(Instant::now() + 2 * ROTATION_INTERVAL);
        assert_eq!(keys.secrets()[1..], predecessor.secrets());
        assert!(keys.replace_generated_keys([[0; 32]; KEYS_MAX + 1]).is_err());
        let configured = TicketKeys::from_secrets([[7; 32]]).expect("the key is valid");
        assert!(
            !configured.replace_generated_keys(predecessor.secrets()).expect("the keys are valid")
        );
        assert_eq!(configured.secrets(), [[7; 32]]);
    }

    #[test]
    fn a_modified_or_truncated_ticket_does_not_open() {
        let keys = TicketKeys::random().unwrap();
        let ticket = keys.seal(&CONTEXT, TIMES, b"session").unwrap();
        for index in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[index] ^= 1;
            assert_eq!(keys.open(&CONTEXT, &changed), None, "at {index}");
            assert_eq!(keys.open(&CONTEXT, &ticket[..index]), None, "cut at {index}");
        }
        let second_ticket = keys.seal(&CONTEXT, TIMES, b"session").unwrap();
        assert_ne!(ticket, second_ticket, "tickets of the same session differ");
    }

    #[test]
    fn rotate_keeps_previous_keys_up_to_the_limit() {
        let keys = TicketKeys::random().unwrap();
        let ticket = keys.seal(&CONTEXT, TIMES, b"session").unwrap();
        for _ in 1..KEYS_MAX {
            keys.rotate().unwrap();
            assert!(keys.open(&CONTEXT, &ticket).is_some());
        }
        keys.rotate().unwrap();
        assert!(keys.open(&CONTEXT, &ticket).is_none());
        assert_eq!(keys.secrets().len(), KEYS_MAX);
    }

    #[test]
    fn random_keys_rotate_and_are_kept_for_the_lifetime_of_their_tickets() {
        let keys = TicketKeys::random().unwrap();
        let (start, first_key) = (Instant::now(), keys.secrets()[0]);
        keys.rotate_if_due(start);
        assert_eq!(keys.secrets(), [first_key]);
        let mut now = start;
        for _ in 1..GENERATED_KEYS_MAX {
            now += ROTATION_INTERVAL + Duration::from_secs(1);
            keys.rotate_if_due(now);
            assert_ne!(keys.secrets()[0], first_key);
            assert!(keys.secrets().contains(&first_key));
        }
        assert!(now - start >= TICKET_LIFETIME, "all tickets of the first key have expired");
        keys.rotate_if_due(now + ROTATION_INTERVAL + Duration::from_secs(1));
        assert!(!keys.secrets().contains(&first_key));
    }

    #[test]
    fn a_ticket_expires_with_its_lifetime_or_certificate_despite_clock_changes() {
        let lifetime = TICKET_LIFETIME.as_secs();
        let now = 1_000_000;
        assert_eq!(
            TicketTimes::from_now(now, None),
            TicketTimes { issued_at: now, expires_at: now + lifetime }
        );
        assert_eq!(TicketTimes::from_now(now, Some(now + 60)).expires_at, now + 60);
        assert_eq!(TicketTimes::from_now(now, Some(u64::MAX)).expires_at, now + lifetime);
        let times = TicketTimes::from_now(now, None);
        for (later, is_valid) in [
            (now, true),
            (now + lifetime - 1, true),
            (now + lifetime, false),
            // The clock was set back, or the issuing instance's clock is ahead.
            (now - 60, true),
            (now - lifetime, true),
            (now - lifetime - 1, false),
            (0, false),
        ] {
            assert_eq!(times.is_valid_at(later), is_valid, "{later}");
        }
    }

    #[test]
    fn a_key_file_has_one_key_per_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tickets.keys");
        let (first_key, second_key) = ("01".repeat(32), "aB".repeat(32));
        std::fs::write(&path, format!("# new\n{first_key}\r\n\n  {second_key}")).unwrap();
        let keys = TicketKeys::from_file(&path).unwrap();
        assert_eq!(keys.secrets(), [[1; 32], [0xab; 32]]);
        for (text, line) in [
            (String::new(), None),
            ("# nothing\n".to_owned(), None),
            (format!("{first_key}\n").repeat(KEYS_MAX + 1), None),
            (format!("{first_key}\n{}", &second_key[1..]), Some(2)),
            (format!("\n\n{first_key}0"), Some(3)),
            (format!("{}g", &first_key[1..]), Some(1)),
        ] {
            std::fs::write(&path, &text).unwrap();
            let error = TicketKeys::from_file(&path).unwrap_err();
            let TlsSetupError::BadTicketKeys { line: found_line, .. } = &error else {
                panic!("{error:?}")
            };
            assert_eq!(*found_line, line, "{text}");
            assert!(error.to_string().contains("openssl rand -hex 32"), "{error}");
        }
    }

    #[test]
    fn debug_output_does_not_contain_keys() {
        let keys = TicketKeys::from_secrets([[0x77; 32]]).unwrap();
        assert!(!format!("{keys:?}").contains("77"), "{keys:?}");
        assert!(!format!("{keys:?}").contains("119"), "{keys:?}");
    }
}
