//! Errors in certificates and settings provided by the user, with how to fix them.

use crate::handshake_info::TlsVersion;
use crate::ocsp::OcspError;
use rustls_pki_types::pem;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Where PEM text came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PemOrigin {
    /// A file.
    File(PathBuf),
    /// Bytes provided by the program.
    Memory,
    /// Bytes provided by the program, with their label.
    Label(String),
}

impl fmt::Display for PemOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Memory => f.write_str("the given PEM text"),
            Self::Label(label) => write!(f, "the PEM text labelled \"{label}\""),
        }
    }
}

/// Why TLS could not be configured. It is never caused by a peer, and its text names the file, the
/// cause and the fix.
#[derive(Debug)]
#[non_exhaustive]
pub enum TlsSetupError {
    /// A file could not be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
    /// A file is larger than [`PEM_BYTES_MAX`](crate::PEM_BYTES_MAX).
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The text is not well-formed PEM.
    InvalidPem {
        /// The source of the text.
        origin: PemOrigin,
        /// The cause.
        error: pem::Error,
    },
    /// The text contains no certificate.
    NoCertificate {
        /// The source that should contain one.
        origin: PemOrigin,
        /// It contains a private key instead.
        holds_key: bool,
    },
    /// The text contains no private key.
    NoKey {
        /// The source that should contain one.
        origin: PemOrigin,
        /// It contains a certificate instead.
        holds_certificate: bool,
    },
    /// The private key is encrypted with a passphrase, which the server cannot prompt for.
    EncryptedKey {
        /// The source of the key.
        origin: PemOrigin,
    },
    /// The private key is of a kind or size that is not supported.
    UnsupportedKey {
        /// The source of the key.
        origin: PemOrigin,
        /// The error of the cryptography library.
        error: rustls::Error,
    },
    /// The first certificate cannot be used.
    BadCertificate {
        /// The source of the certificate.
        origin: PemOrigin,
        /// The cause.
        error: rustls::Error,
    },
    /// The key belongs to another certificate.
    KeyMismatch {
        /// The source of the certificate.
        certificate: PemOrigin,
        /// The source of the key.
        key: PemOrigin,
    },
    /// A self-signed certificate could not be created, usually because of an invalid name.
    SelfSignedFailed {
        /// The requested names.
        names: Vec<String>,
        /// The cause.
        error: rcgen::Error,
    },
    /// Certificates and settings cannot be added to an existing rustls configuration.
    ExternalConfig,
    /// A certificate that would replace one in use, or be added to a running server, has expired or
    /// is not valid yet.
    OutsideValidity {
        /// The cause.
        warning: TlsWarning,
    },
    /// The certificate cannot be removed because it is the only one.
    LastCertificate {
        /// Its label.
        label: String,
    },
    /// Client certificates are requested, but no issuers are trusted.
    NoRoots,
    /// The certificate of a client certificate issuer cannot be used.
    BadRoot {
        /// The source of the certificate.
        origin: PemOrigin,
        /// The cause.
        error: rustls::Error,
    },
    /// The text contains no revocation list.
    NoRevocationList {
        /// The source that should contain one.
        origin: PemOrigin,
    },
    /// A revocation list cannot be used.
    BadRevocationList {
        /// The sources of the lists.
        origins: Vec<String>,
        /// The error in one of them.
        error: String,
    },
    /// A revocation list that would replace one in use has itself expired.
    ExpiredRevocationList {
        /// The source of the list.
        origin: PemOrigin,
    },
    /// The keys for session tickets cannot be used.
    BadTicketKeys {
        /// The source of the keys.
        origin: PemOrigin,
        /// The invalid line; `None` if there are too few or too many keys.
        line: Option<usize>,
    },
    /// A cipher suite or key exchange group is unknown, or the list is empty.
    UnknownAlgorithm {
        /// The kind of name.
        kind: &'static str,
        /// The name.
        name: String,
        /// The names that are known.
        supported: String,
    },
    /// None of the enabled cipher suites is for the minimum version or a newer one.
    NoCipherSuite {
        /// The minimum version.
        minimum: TlsVersion,
    },
    /// The system returned no random bytes.
    RngFailed,
    /// The configuration accepts early data, which an attacker can replay.
    EarlyDataEnabled,
    /// rustls rejects the configuration.
    BadConfig(rustls::Error),
}

impl TlsSetupError {
    /// A short name, for metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "unreadable",
            Self::TooLarge { .. } => "too_large",
            Self::InvalidPem { .. } => "invalid_pem",
            Self::NoCertificate { .. } => "no_certificate",
            Self::NoKey { .. } => "no_key",
            Self::EncryptedKey { .. } => "encrypted_key",
            Self::UnsupportedKey { .. } => "unsupported_key",
            Self::BadCertificate { .. } => "bad_certificate",
            Self::KeyMismatch { .. } => "key_mismatch",
            Self::SelfSignedFailed { .. } => "self_signed_failed",
            Self::ExternalConfig => "external_config",
            Self::OutsideValidity { .. } => "outside_validity",
            Self::LastCertificate { .. } => "last_certificate",
            Self::NoRoots => "no_roots",
            Self::BadRoot { .. } => "bad_root",
            Self::NoRevocationList { .. } => "no_revocation_list",
            Self::BadRevocationList { .. } => "bad_revocation_list",
            Self::ExpiredRevocationList { .. } => "expired_revocation_list",
            Self::BadTicketKeys { .. } => "bad_ticket_keys",
            Self::UnknownAlgorithm { .. } => "unknown_algorithm",
            Self::NoCipherSuite { .. } => "no_cipher_suite",
            Self::RngFailed => "rng_failed",
            Self::EarlyDataEnabled => "early_data_enabled",
            Self::BadConfig(_) => "bad_config",
        }
    }
}

impl fmt::Display for TlsSetupError {
    #[expect(clippy::too_many_lines, reason = "a table: a text for each variant")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, error } => {
                write!(f, "cannot read {}: {error}; check the path and that ", path.display())?;
                f.write_str("the user the server runs as may read it")
            }
            Self::TooLarge { path } => {
                write!(f, "{} is larger than 1 MiB; give a PEM file ", path.display())?;
                f.write_str("that holds only the certificate chain or the key")
            }
            Self::InvalidPem { origin, error } => {
                write!(f, "{origin} is not well-formed PEM ({error}); it must hold whole blocks ")?;
                f.write_str("from \"-----BEGIN ...-----\" to \"-----END ...-----\"")
            }
            Self::NoCertificate { origin, holds_key: true } => {
                write!(f, "{origin} holds a private key where the certificate belongs; ")?;
                f.write_str("swap the two")
            }
            Self::NoCertificate { origin, holds_key: false } => {
                write!(f, "{origin} holds no certificate; it must hold a PEM block ")?;
                f.write_str("\"BEGIN CERTIFICATE\" (convert DER with: openssl x509 -inform der)")
            }
            Self::NoKey { origin, holds_certificate: true } => {
                write!(f, "{origin} holds a certificate but no private key; give the file with ")?;
                f.write_str("the block \"BEGIN PRIVATE KEY\" that belongs to it")
            }
            Self::NoKey { origin, holds_certificate: false } => {
                write!(f, "{origin} holds no private key; it must hold a PEM block ")?;
                f.write_str("\"BEGIN PRIVATE KEY\" (convert DER with: openssl pkey -inform der)")
            }
            Self::EncryptedKey { origin } => {
                write!(f, "the private key in {origin} is protected by a passphrase, which is ")?;
                f.write_str("not supported; remove it with: openssl pkey -in KEY -out PLAIN")
            }
            Self::UnsupportedKey { origin, error } => {
                write!(f, "the private key in {origin} is not supported ({error}); use ECDSA ")?;
                f.write_str("(P-256, P-384, P-521), Ed25519, or RSA of 2048 to 8192 bits")
            }
            Self::BadCertificate { origin, error } => {
                write!(f, "the first certificate in {origin} cannot be used ({error}); it must ")?;
                f.write_str("be the server's own X.509 version 3 certificate, its issuers after it")
            }
            Self::KeyMismatch { certificate, key } => {
                write!(f, "the private key in {key} does not belong to the first certificate in ")?;
                write!(f, "{certificate}; give the key that belongs to it, and put the server's ")?;
                f.write_str("own certificate before its issuers")
            }
            Self::SelfSignedFailed { names, error } => {
                write!(f, "cannot create a certificate for {names:?}: {error}; give DNS names ")?;
                f.write_str("or IP addresses")
            }
            Self::ExternalConfig => f.write_str(
                "certificates and settings cannot be added to a rustls configuration made \
                 elsewhere; create it with them, and give it a certificate resolver that knows all \
                 certificates",
            ),
            Self::OutsideValidity { warning } => write!(f, "rejected: {warning}"),
            Self::LastCertificate { label } => {
                write!(f, "the certificate \"{label}\" is the only one, and a server needs one; ")?;
                f.write_str("add another one before you remove it")
            }
            Self::NoRoots => f.write_str(
                "client certificates are requested, but no issuers are trusted; name a \
                 file with the issuers' certificates: ClientAuth::roots_file",
            ),
            Self::BadRoot { origin, error } => {
                write!(f, "a certificate in {origin} cannot be trusted as an issuer ({error}); ")?;
                f.write_str("it must hold the X.509 certificates of client certificate issuers")
            }
            Self::NoRevocationList { origin } => {
                write!(
                    f,
                    "{origin} holds no list of revoked certificates; it must hold PEM blocks "
                )?;
                f.write_str("\"BEGIN X509 CRL\", or one list in DER")
            }
            Self::BadRevocationList { origins, error } => {
                let origins = origins.join(", ");
                write!(f, "a list of revoked certificates in {origins} cannot be used: {error}; ")?;
                f.write_str("get a new one from its issuer")
            }
            Self::ExpiredRevocationList { origin } => {
                write!(f, "the list of revoked certificates in {origin} is not used: it should ")?;
                f.write_str("have been replaced before now; get a new one from its issuer")
            }
            Self::BadTicketKeys { origin, line } => {
                match line {
                    Some(line) => write!(f, "line {line} of {origin} is not a ticket key; ")?,
                    None => write!(f, "{origin} has no ticket key, or more than eight; ")?,
                }
                f.write_str("each key is a line of 64 hexadecimal digits, which is what ")?;
                f.write_str("\"openssl rand -hex 32\" writes")
            }
            Self::UnknownAlgorithm { kind, name, supported } if name.is_empty() => {
                write!(f, "no {kind} is given; choose from: {supported}")
            }
            Self::UnknownAlgorithm { kind, name, supported } => {
                write!(f, "\"{name}\" is not a known, safe {kind}; choose from: {supported}")
            }
            Self::NoCipherSuite { minimum } => {
                let version = match minimum {
                    TlsVersion::Tls12 => "TLS 1.2 or TLS 1.3",
                    TlsVersion::Tls13 => "TLS 1.3",
                };
                write!(f, "no cipher suite for {version} is left, which is the oldest version ")?;
                f.write_str("that is accepted; add one, or lower the minimum version")
            }
            Self::RngFailed => f.write_str("the system returned no random bytes; try again"),
            Self::EarlyDataEnabled => f.write_str(
                "the rustls configuration accepts early data, which can be replayed; \
                 set max_early_data_size to 0",
            ),
            Self::BadConfig(error) => write!(f, "rustls rejects its configuration: {error}"),
        }
    }
}

impl std::error::Error for TlsSetupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable { error, .. } => Some(error),
            Self::InvalidPem { error, .. } => Some(error),
            Self::UnsupportedKey { error, .. }
            | Self::BadCertificate { error, .. }
            | Self::BadRoot { error, .. }
            | Self::BadConfig(error) => Some(error),
            Self::SelfSignedFailed { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// A problem that does not prevent the server from starting.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsWarning {
    /// The certificate has expired; clients will reject it.
    Expired {
        /// The source of the certificate.
        origin: PemOrigin,
        /// The number of whole days since then.
        days: u64,
    },
    /// The certificate is not valid yet; clients will reject it.
    NotYetValid {
        /// The source of the certificate.
        origin: PemOrigin,
        /// The number of whole days until it becomes valid.
        days: u64,
    },
    /// The certificate expires soon.
    ExpiresSoon {
        /// The source of the certificate.
        origin: PemOrigin,
        /// The number of whole days until then.
        days: u64,
    },
    /// The configured OCSP response is not sent with the certificate.
    OcspNotStapled {
        /// The source of the certificate.
        origin: PemOrigin,
        /// The reason.
        reason: OcspError,
    },
    /// A revocation list has expired: clients whose certificates it covers are rejected.
    RevocationListExpired {
        /// The source of the list.
        origin: PemOrigin,
    },
    /// A certificate can never be chosen: it has no names, or earlier certificates have all of
    /// them.
    Shadowed {
        /// The source of the certificate.
        origin: PemOrigin,
    },
}

impl fmt::Display for TlsWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired { origin, days } => {
                write!(f, "the certificate in {origin} expired {days} days ago; renew it")
            }
            Self::NotYetValid { origin, days } => {
                write!(f, "the certificate in {origin} becomes valid in {days} days; ")?;
                f.write_str("check the clock of this machine")
            }
            Self::ExpiresSoon { origin, days } => {
                write!(f, "the certificate in {origin} expires in {days} days; renew it")
            }
            Self::OcspNotStapled { origin, reason } => {
                write!(f, "no OCSP response is sent with the certificate in {origin}: {reason}; ")?;
                f.write_str("get a new one from its issuer")
            }
            Self::RevocationListExpired { origin } => {
                write!(f, "the list of revoked certificates in {origin} has expired, and ")?;
                f.write_str("clients that it covers are rejected; get a new one from its issuer")
            }
            Self::Shadowed { origin } => {
                write!(f, "the certificate in {origin} will never be used: it names no host ")?;
                f.write_str("(subjectAltName) that an earlier certificate lacks")
            }
        }
    }
}
