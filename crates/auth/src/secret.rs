//! Secrets that are compared.

use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;

/// A secret that requests are to bring, such as an API key. It is kept as its SHA-256, and compared in constant time: neither the memory of
/// the program nor the time of an answer tells it.
///
/// It is for secrets that nobody can guess, such as 16 random bytes. What people choose needs a hash that costs something: see the guide on passwords.
///
/// ```
/// use peregrine::auth::Secret;
///
/// let secret = Secret::new("4mQ0xV7bS2");
/// assert!(secret.is("4mQ0xV7bS2"));
/// assert!(!secret.is("4mQ0xV7bS3"));
/// assert_eq!(format!("{secret:?}"), "Secret(..)");
/// ```
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// This secret.
    #[must_use]
    pub fn new(secret: impl AsRef<[u8]>) -> Self {
        Self(Sha256::digest(secret.as_ref()).into())
    }

    /// The secret with this SHA-256, for programs that are not to know it.
    #[must_use]
    pub fn of_sha256(digest: [u8; 32]) -> Self {
        Self(digest)
    }

    /// Is it what was sent? It takes as long whatever was sent, but for its length.
    #[must_use]
    pub fn is(&self, sent: impl AsRef<[u8]>) -> bool {
        words(&self.0).ct_eq(&words(&Sha256::digest(sent.as_ref()).into())).into()
    }
}

/// The same in four numbers: a comparison in constant time costs as much for each as for a byte.
fn words(digest: &[u8; 32]) -> [u64; 4] {
    let (words, _) = digest.as_chunks();
    std::array::from_fn(|index| u64::from_ne_bytes(words[index]))
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
