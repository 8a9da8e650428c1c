//! Verification keys and the algorithms that each may be used with.

use super::jwks::RemoteJwks;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::Value;
use std::fmt;
use std::sync::Arc;

/// The maximum number of keys in a set; further ones are ignored.
const KEYS_MAX: usize = 100;

/// The keys that verify token signatures: a shared secret, an issuer's public keys, or the keys
/// that an issuer publishes ([`RemoteJwks`]).
#[derive(Clone, Debug)]
pub struct JwtKeys(pub(super) KeySource);

#[derive(Clone, Debug)]
pub(super) enum KeySource {
    Static(Arc<KeySet>),
    Remote(RemoteJwks),
}

/// Why a key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JwtKeyError {
    /// The secret is shorter than the output of the algorithm's hash, which RFC 7518 (section 3.2)
    /// forbids.
    SecretTooShort {
        /// The required length in bytes.
        bytes_min: usize,
    },
    /// The algorithm does not match the key: secrets work with HS256, HS384 and HS512 only, public
    /// keys with the others only.
    WrongAlgorithm,
    /// The document is not a key set (RFC 7517), for this reason.
    InvalidJwks(String),
    /// The set has no key that can verify signatures.
    NoUsableKey,
}

#[derive(Clone)]
pub(super) struct VerificationKey {
    pub(super) id: Option<String>,
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) key: DecodingKey,
}

/// The usable keys of one issuer.
#[derive(Clone, Debug, Default)]
pub(super) struct KeySet(pub(super) Vec<VerificationKey>);

impl JwtKeys {
    /// Uses a secret shared with the issuer, which is usually this server itself. HS256 needs at
    /// least 32 random bytes, HS384 needs 48 and HS512 needs 64.
    ///
    /// # Errors
    /// The secret is too short, or the algorithm does not use secrets.
    pub fn secret(algorithm: Algorithm, secret: impl AsRef<[u8]>) -> Result<Self, JwtKeyError> {
        let bytes_min = match algorithm {
            Algorithm::HS256 => 32,
            Algorithm::HS384 => 48,
            Algorithm::HS512 => 64,
            _ => return Err(JwtKeyError::WrongAlgorithm),
        };
        let secret = secret.as_ref();
        if secret.len() < bytes_min {
            return Err(JwtKeyError::SecretTooShort { bytes_min });
        }
        Ok(Self::single(algorithm, DecodingKey::from_secret(secret)))
    }

    /// Uses a public key.
    ///
    /// # Errors
    /// The algorithm does not match the key.
    pub fn public(algorithm: Algorithm, key: DecodingKey) -> Result<Self, JwtKeyError> {
        let is_secret = algorithm.family() == Algorithm::HS256.family();
        if is_secret || algorithm.family() != key.family() {
            return Err(JwtKeyError::WrongAlgorithm);
        }
        Ok(Self::single(algorithm, key))
    }

    /// Uses the public keys of a JWK set (RFC 7517). Symmetric keys and keys for other purposes are
    /// ignored.
    ///
    /// # Errors
    /// The document is not a JWK set, or has no usable key.
    pub fn from_jwks(document: &str) -> Result<Self, JwtKeyError> {
        let set = KeySet::parse(document.as_bytes())?;
        Ok(Self(KeySource::Static(Arc::new(set))))
    }

    /// Uses the keys that an issuer publishes and rotates.
    #[doc(alias = "jwks_url")]
    #[must_use]
    pub fn remote(keys: RemoteJwks) -> Self {
        Self(KeySource::Remote(keys))
    }

    fn single(algorithm: Algorithm, key: DecodingKey) -> Self {
        let key = VerificationKey { id: None, algorithms: vec![algorithm], key };
        Self(KeySource::Static(Arc::new(KeySet(vec![key]))))
    }
}

impl KeySet {
    pub(super) fn parse(document: &[u8]) -> Result<Self, JwtKeyError> {
        let document: Value = serde_json::from_slice(document)
            .map_err(|error| JwtKeyError::InvalidJwks(error.to_string()))?;
        let Some(keys) = document.get("keys").and_then(Value::as_array) else {
            return Err(JwtKeyError::InvalidJwks("it has no `keys` array".to_owned()));
        };
        // RFC 7517 §5: keys that are not understood are ignored and do not invalidate the set.
        let keys: Vec<_> =
            keys.iter().take(KEYS_MAX).filter_map(VerificationKey::from_jwk).collect();
        if keys.is_empty() {
            return Err(JwtKeyError::NoUsableKey);
        }
        Ok(Self(keys))
    }

    /// Finds the key for a token with this key ID and algorithm. A key without an ID matches every
    /// token whose ID no other key has. A token without an ID matches only if exactly one key fits
    /// its algorithm.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&VerificationKey> {
        let mut matching = self.0.iter().filter(|key| key.algorithms.contains(&algorithm));
        match id {
            Some(id) => {
                let named = matching.clone().find(|key| key.id.as_deref() == Some(id));
                named.or_else(|| matching.find(|key| key.id.is_none()))
            }
            None => {
                let key = matching.next()?;
                matching.next().is_none().then_some(key)
            }
        }
    }

    /// Whether a key has this ID, or has none and can match any token.
    pub(super) fn has_key_id(&self, id: &str) -> bool {
        self.0.iter().any(|key| key.id.as_deref().is_none_or(|key_id| key_id == id))
    }
}

impl VerificationKey {
    /// Parses a key that can verify signatures; `None` if it has another purpose or an unknown
    /// type.
    fn from_jwk(value: &Value) -> Option<Self> {
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
        let compatible: &[Algorithm] = match &jwk.algorithm {
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
            // RFC 8725 §3.1: anyone could sign tokens with a published secret.
            AlgorithmParameters::OctetKey(_) => return None,
        };
        let declared =
            common.key_algorithm.map(|declared| declared.to_string().parse::<Algorithm>());
        let algorithms = match declared {
            None => compatible.to_vec(),
            Some(Ok(declared)) if compatible.contains(&declared) => vec![declared],
            Some(_) => return None,
        };
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        Some(Self { id: common.key_id.clone(), algorithms, key })
    }
}

impl fmt::Debug for VerificationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerificationKey")
            .field("id", &self.id)
            .field("algorithms", &self.algorithms)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for JwtKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SecretTooShort { bytes_min } => write!(
                f,
                "the secret is too short for its algorithm: use at least {bytes_min} random bytes"
            ),
            Self::WrongAlgorithm => {
                f.write_str("the algorithm does not fit the key: use HS256, HS384 or HS512 with a secret and the others with a public key")
            }
            Self::InvalidJwks(reason) => write!(f, "the document is not a key set: {reason}"),
            Self::NoUsableKey => {
                f.write_str("the set has no public key that can verify signatures")
            }
        }
    }
}

impl std::error::Error for JwtKeyError {}
