//! Keys: which requests share a limit.

use peregrine_web::Parts;
use peregrine_web::head::decode_cookie_value;
use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Which requests share a limit: the result of the function passed to
/// [`RateLimit::key_by`](crate::RateLimit::key_by).
#[doc(alias = "KeyExtractor")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitKey(KeyKind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum KeyKind {
    ClientIp,
    Global,
    Value(Vec<u8>),
    Exempt,
}

impl RateLimitKey {
    /// Requests with the same value, such as a user ID or the name of a plan. The table stores only
    /// a hash, so secrets such as API keys are safe to use.
    pub fn from_value(value: impl AsRef<[u8]>) -> Self {
        Self(KeyKind::Value(value.as_ref().to_vec()))
    }

    /// Requests from the same client address, as by default.
    #[must_use]
    pub fn client_ip() -> Self {
        Self(KeyKind::ClientIp)
    }

    /// All requests together.
    #[must_use]
    pub fn global() -> Self {
        Self(KeyKind::Global)
    }

    /// Requests that this limit does not count.
    #[must_use]
    pub fn exempt() -> Self {
        Self(KeyKind::Exempt)
    }
}

/// How a limit derives the key of a request.
#[derive(Clone)]
pub(crate) enum KeyExtractor {
    ClientIp,
    Global,
    Header(String),
    Cookie(String),
    Function(Arc<dyn Fn(&Parts) -> RateLimitKey + Send + Sync>),
}

/// How many bits of an address identify a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IpPrefixLengths {
    pub(crate) v4: u8,
    pub(crate) v6: u8,
}

/// The key of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResolvedKey<'r> {
    /// A client without a known address.
    UnknownClient,
    Global,
    ClientIp(IpAddr),
    Header(Cow<'r, [u8]>),
    Cookie(Cow<'r, str>),
    Value(Cow<'r, [u8]>),
}

/// The kind is the first hashed byte, as in `ResolvedKey::digest`. A derived `Hash` would feed an
/// address to the hasher in four calls, each of which costs time.
impl Hash for ResolvedKey<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let mut bytes = |kind: u8, value: &[u8]| {
            hasher.write_u8(kind);
            hasher.write(value);
        };
        match self {
            Self::UnknownClient => hasher.write_u8(b'0'),
            Self::Global => hasher.write_u8(b'1'),
            Self::ClientIp(IpAddr::V4(address)) => {
                hasher.write_u64(u64::from(address.to_bits()) << 8 | u64::from(b'4'));
            }
            Self::ClientIp(IpAddr::V6(address)) => bytes(b'6', &address.octets()),
            Self::Header(value) => bytes(b'h', value),
            Self::Cookie(value) => bytes(b'c', value.as_bytes()),
            Self::Value(value) => bytes(b'o', value),
        }
    }
}

impl KeyExtractor {
    /// Returns the key of a request; `None` if the request is exempt.
    pub(crate) fn resolve<'r>(
        &self,
        parts: &'r Parts,
        prefixes: IpPrefixLengths,
    ) -> Option<ResolvedKey<'r>> {
        let client = || match parts.client().ip() {
            Some(address) => ResolvedKey::ClientIp(prefixes.mask(address)),
            None => ResolvedKey::UnknownClient,
        };
        Some(match self {
            Self::ClientIp => client(),
            Self::Global => ResolvedKey::Global,
            Self::Header(name) => match parts.head.header_bytes_untracked(name) {
                Some(value) if name.eq_ignore_ascii_case("authorization") => {
                    ResolvedKey::Header(normalize_credentials(value))
                }
                Some(value) => ResolvedKey::Header(value.into()),
                None => client(),
            },
            Self::Cookie(name) => match parts.head.cookie_untracked(name) {
                Some(value) => ResolvedKey::Cookie(decode_cookie_value(value)),
                None => client(),
            },
            Self::Function(function) => match function(parts).0 {
                KeyKind::ClientIp => client(),
                KeyKind::Global => ResolvedKey::Global,
                KeyKind::Value(value) => ResolvedKey::Value(value.into()),
                KeyKind::Exempt => return None,
            },
        })
    }
}

/// Returns the one spelling of all equivalent values of `Authorization`. Otherwise, a client could
/// get a new limit with each spelling of credentials that are valid.
// RFC 9110 §11.1, §11.4: the scheme is case-insensitive, and one or more spaces follow it.
fn normalize_credentials(value: &[u8]) -> Cow<'_, [u8]> {
    let end = value.iter().position(|byte| *byte == b' ').unwrap_or(value.len());
    let (scheme, rest) = value.split_at(end);
    [&scheme.to_ascii_lowercase()[..], b" ", rest.trim_ascii()].concat().into()
}

impl IpPrefixLengths {
    /// Masks an address to the part that identifies a client.
    fn mask(self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(address) => {
                let host = u32::MAX.checked_shr(self.v4.into()).unwrap_or(0);
                Ipv4Addr::from_bits(address.to_bits() & !host).into()
            }
            IpAddr::V6(address) => {
                let host = u128::MAX.checked_shr(self.v6.into()).unwrap_or(0);
                Ipv6Addr::from_bits(address.to_bits() & !host).into()
            }
        }
    }
}

#[cfg(feature = "redis")]
impl ResolvedKey<'_> {
    /// Returns a fixed-length text that does not reveal the key.
    pub(crate) fn digest(&self) -> String {
        use sha2::{Digest, Sha256};
        let mut hash = Sha256::new();
        match self {
            Self::UnknownClient => hash.update(b"0"),
            Self::Global => hash.update(b"1"),
            Self::ClientIp(IpAddr::V4(address)) => {
                hash.update(b"4");
                hash.update(address.octets());
            }
            Self::ClientIp(IpAddr::V6(address)) => {
                hash.update(b"6");
                hash.update(address.octets());
            }
            Self::Header(value) => {
                hash.update(b"h");
                hash.update(value);
            }
            Self::Cookie(value) => {
                hash.update(b"c");
                hash.update(value.as_bytes());
            }
            Self::Value(value) => {
                hash.update(b"o");
                hash.update(value);
            }
        }
        let digest = hash.finalize();
        // 128 bits suffice to avoid collisions.
        digest[..16].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for KeyExtractor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientIp => f.write_str("client"),
            Self::Global => f.write_str("everybody"),
            Self::Header(name) => write!(f, "header {name}"),
            Self::Cookie(name) => write!(f, "cookie {name}"),
            Self::Function(_) => f.write_str("function"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_have_the_same_key() {
        let network = |address: &str, v4, v6| {
            let address = address.parse().expect("an address");
            IpPrefixLengths { v4, v6 }.mask(address).to_string()
        };
        for (address, v4, v6, expected) in [
            ("192.0.2.77", 32, 64, "192.0.2.77"),
            ("192.0.2.77", 24, 64, "192.0.2.0"),
            ("192.0.2.77", 0, 64, "0.0.0.0"),
            ("2001:db8:1:2:3:4:5:6", 32, 64, "2001:db8:1:2::"),
            ("2001:db8:1:2ff:3:4:5:6", 32, 56, "2001:db8:1:200::"),
            ("2001:db8::6", 32, 128, "2001:db8::6"),
            ("2001:db8::6", 32, 0, "::"),
        ] {
            assert_eq!(network(address, v4, v6), expected);
        }
    }
}
