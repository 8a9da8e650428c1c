//! Keys, and what each of them may be used for.

use super::jwks::Jwks;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::Value;
use std::fmt;
use std::sync::Arc;

/// Keys of one set beyond these are left out.
const KEYS_MAX: usize = 100;

/// What tokens are signed by: a secret, the public keys of an issuer, or those that it publishes ([`Jwks`]).
#[derive(Clone, Debug)]
pub struct JwtKeys(pub(super) Source);

#[derive(Clone, Debug)]
pub(super) enum Source {
    Fixed(Arc<KeySet>),
    Published(Jwks),
}

/// A key that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The secret is shorter than what the algorithm makes of it, which RFC 7518 (section 3.2) forbids: so many bytes are needed.
    SecretTooShort {
        /// How many bytes there must be.
        bytes_min: usize,
    },
    /// A secret is for HS256, HS384 and HS512 only, and a public key for the others only.
    WrongAlgorithm,
    /// The text is no set of keys (RFC 7517): why.
    NoSet(String),
    /// The set has no key that signatures can be checked with.
    NoUsableKey,
}

/// One key.
#[derive(Clone)]
pub(super) struct Key {
    pub(super) id: Option<String>,
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) key: DecodingKey,
}

/// The keys of an issuer.
#[derive(Clone, Debug, Default)]
pub(super) struct KeySet(pub(super) Vec<Key>);

impl JwtKeys {
    /// A secret that the issuer has as well: this server itself, mostly. With HS256 it has 32 random bytes at least.
    ///
    /// # Errors
    /// The secret is too short, or the algorithm is not for secrets.
    pub fn secret(algorithm: Algorithm, secret: impl AsRef<[u8]>) -> Result<Self, KeyError> {
        let bytes_min = match algorithm {
            Algorithm::HS256 => 32,
            Algorithm::HS384 => 48,
            Algorithm::HS512 => 64,
            _ => return Err(KeyError::WrongAlgorithm),
        };
        let secret = secret.as_ref();
        if secret.len() < bytes_min {
            return Err(KeyError::SecretTooShort { bytes_min });
        }
        Ok(Self::fixed(algorithm, DecodingKey::from_secret(secret)))
    }

    /// A public key.
    ///
    /// # Errors
    /// The algorithm does not fit the key.
    pub fn public(algorithm: Algorithm, key: DecodingKey) -> Result<Self, KeyError> {
        let is_secret = algorithm.family() == Algorithm::HS256.family();
        if is_secret || algorithm.family() != key.family() {
            return Err(KeyError::WrongAlgorithm);
        }
        Ok(Self::fixed(algorithm, key))
    }

    /// The public keys of a set (RFC 7517), as a document. Secrets in it are left out, and keys for other uses.
    ///
    /// # Errors
    /// It is no such set, or there is no key in it that can be used.
    pub fn jwk_set(document: &str) -> Result<Self, KeyError> {
        let set = KeySet::read(document.as_bytes())?;
        Ok(Self(Source::Fixed(Arc::new(set))))
    }

    /// The keys that an issuer publishes, which change.
    #[must_use]
    pub fn published(keys: Jwks) -> Self {
        Self(Source::Published(keys))
    }

    fn fixed(algorithm: Algorithm, key: DecodingKey) -> Self {
        let key = Key { id: None, algorithms: vec![algorithm], key };
        Self(Source::Fixed(Arc::new(KeySet(vec![key]))))
    }
}

impl KeySet {
    pub(super) fn read(document: &[u8]) -> Result<Self, KeyError> {
        let document: Value =
            serde_json::from_slice(document).map_err(|error| KeyError::NoSet(error.to_string()))?;
        let Some(keys) = document.get("keys").and_then(Value::as_array) else {
            return Err(KeyError::NoSet("it has no list `keys`".to_owned()));
        };
        // RFC 7517 §5: keys that one does not understand are left out, and do not spoil the set.
        let keys: Vec<_> = keys.iter().take(KEYS_MAX).filter_map(Key::read).collect();
        if keys.is_empty() {
            return Err(KeyError::NoUsableKey);
        }
        Ok(Self(keys))
    }

    /// The key of a token with this id and algorithm. A key without an id is for all tokens whose id no other one has. Without an id it is the
    /// only one for the algorithm, if there is only one.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&Key> {
        let mut fit = self.0.iter().filter(|key| key.algorithms.contains(&algorithm));
        match id {
            Some(id) => {
                let named = fit.clone().find(|key| key.id.as_deref() == Some(id));
                named.or_else(|| fit.find(|key| key.id.is_none()))
            }
            None => {
                let found = fit.next()?;
                fit.next().is_none().then_some(found)
            }
        }
    }

    /// Is there a key of this name, or one for all?
    pub(super) fn knows(&self, id: &str) -> bool {
        self.0.iter().any(|key| key.id.as_deref().is_none_or(|own| own == id))
    }
}

impl Key {
    /// A key that signatures can be checked with; `None`: it is for something else, or nobody knows what.
    fn read(value: &Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value.clone()).ok()?;
        let common = &jwk.common;
        let is_for_signatures =
            matches!(common.public_key_use, None | Some(PublicKeyUse::Signature));
        let operations = common.key_operations.as_deref();
        let may_verify =
            operations.is_none_or(|operations| operations.contains(&KeyOperations::Verify));
        if !is_for_signatures || !may_verify {
            return None;
        }
        let fit: &[Algorithm] = match &jwk.algorithm {
            AlgorithmParameters::EllipticCurve(key) => match key.curve {
                EllipticCurve::P256 => &[Algorithm::ES256],
                EllipticCurve::P384 => &[Algorithm::ES384],
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(key) => match key.curve {
                EllipticCurve::Ed25519 => &[Algorithm::EdDSA],
                _ => return None,
            },
            AlgorithmParameters::RSA(_) => &[
                Algorithm::RS256,
                Algorithm::RS384,
                Algorithm::RS512,
                Algorithm::PS256,
                Algorithm::PS384,
                Algorithm::PS512,
            ],
            // RFC 8725 §3.1: a published secret would be one that everybody signs with.
            AlgorithmParameters::OctetKey(_) => return None,
        };
        let said = common.key_algorithm.map(|said| said.to_string().parse::<Algorithm>());
        let algorithms = match said {
            None => fit.to_vec(),
            Some(Ok(said)) if fit.contains(&said) => vec![said],
            Some(_) => return None,
        };
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        Some(Self { id: common.key_id.clone(), algorithms, key })
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("id", &self.id)
            .field("algorithms", &self.algorithms)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SecretTooShort { bytes_min } => write!(
                f,
                "the secret is too short for its algorithm: take {bytes_min} random bytes or more"
            ),
            Self::WrongAlgorithm => {
                f.write_str("the algorithm does not fit the key: HS256 and its like are for secrets, all others for public keys")
            }
            Self::NoSet(why) => write!(f, "the document is no set of keys: {why}"),
            Self::NoUsableKey => {
                f.write_str("the set has no public key that signatures can be checked with")
            }
        }
    }
}

impl std::error::Error for KeyError {}
