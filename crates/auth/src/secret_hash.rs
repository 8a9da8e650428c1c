//! Secrets that are compared in constant time.

use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;

/// A secret that requests must present, such as an API key. Only its SHA-256 is kept, and it is
/// compared in constant time, so neither the program's memory nor its response times reveal the
/// secret.
///
/// Use it for secrets that cannot be guessed, such as 16 random bytes. Passwords chosen by people
/// need a slow hash: see the guide.
///
/// ```
/// use peregrine::auth::SecretHash;
///
/// let secret = SecretHash::new("4mQ0xV7bS2");
/// assert!(secret.verify("4mQ0xV7bS2"));
/// assert!(!secret.verify("4mQ0xV7bS3"));
/// assert_eq!(format!("{secret:?}"), "SecretHash(..)");
/// ```
#[doc(alias = "constant_time_eq")]
#[derive(Clone)]
pub struct SecretHash([u8; 32]);

impl SecretHash {
    /// Hashes this secret.
    #[must_use]
    pub fn new(secret: impl AsRef<[u8]>) -> Self {
        Self(Sha256::digest(secret.as_ref()).into())
    }

    /// The secret with this SHA-256 digest, for programs that should not contain the secret itself.
    #[must_use]
    pub fn from_sha256(digest: [u8; 32]) -> Self {
        Self(digest)
    }

    /// Whether `candidate` is the secret. The time depends only on the length of `candidate`.
    #[doc(alias = "verify_password")]
    #[must_use]
    pub fn verify(&self, candidate: impl AsRef<[u8]>) -> bool {
        digest_words(&self.0)
            .ct_eq(&digest_words(&Sha256::digest(candidate.as_ref()).into()))
            .into()
    }
}

/// The digest as four words: a constant-time comparison costs as much per word as per byte.
fn digest_words(digest: &[u8; 32]) -> [u64; 4] {
    let (words, _) = digest.as_chunks();
    std::array::from_fn(|index| u64::from_ne_bytes(words[index]))
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(..)")
    }
}
