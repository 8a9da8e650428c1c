//! Configuration errors of ACME, and how to fix them.

use peregrine_tls::TlsSetupError;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why ACME could not be set up. Later errors are logged and reported in
/// [`AcmeStatus`](crate::AcmeStatus).
#[derive(Debug)]
#[non_exhaustive]
pub enum AcmeSetupError {
    /// No name was configured.
    NoDomain,
    /// ACME cannot obtain a certificate for a name.
    InvalidDomain {
        /// The name.
        name: String,
        /// Why the name is invalid.
        cause: &'static str,
    },
    /// No storage was configured.
    NoStorage,
    /// No kind of challenge is enabled.
    NoChallenge,
    /// The directory URL is invalid.
    BadDirectory {
        /// The URL.
        url: String,
    },
    /// A contact address is invalid.
    BadContact {
        /// The address.
        contact: String,
    },
    /// The key of the external account is not base64url.
    InvalidExternalAccountKey,
    /// A file of trusted certificates cannot be read.
    BadRoots {
        /// The file.
        path: PathBuf,
        /// Why the file is unusable.
        cause: String,
    },
    /// There are no trusted certificates with which to verify the directory.
    NoRoots,
    /// The storage cannot be used.
    Storage {
        /// The location of the storage, or a file.
        what: String,
        /// The system's error.
        error: io::Error,
    },
    /// TLS cannot be set up.
    Tls(TlsSetupError),
}

impl fmt::Display for AcmeSetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDomain => f.write_str("ACME has no name to obtain a certificate for; name one"),
            Self::InvalidDomain { name, cause } => {
                write!(f, "ACME cannot obtain a certificate for {name:?}: {cause}")
            }
            Self::NoStorage => f.write_str(
                "ACME has no storage for its account and certificates, and authorities limit the number of \
                 orders; set Acme::state_dir to a directory that survives a restart",
            ),
            Self::NoChallenge => f.write_str(
                "ACME has no kind of challenge; enable Challenge::TlsAlpn01 or Challenge::Http01",
            ),
            Self::BadDirectory { url } => {
                write!(f, "{url:?} is not the URL of an ACME directory; an example is \
                    https://ca.example/acme/directory")
            }
            Self::BadContact { contact } => {
                write!(f, "{contact:?} is not an e-mail address; an example is \
                    admin@example.org")
            }
            Self::InvalidExternalAccountKey => f.write_str(
                "the key of the external account is not base64url; use the HMAC key as the authority \
                 shows it",
            ),
            Self::BadRoots { path, cause } => {
                write!(f, "the trusted certificates in {} cannot be used: {cause}; ", path.display())?;
                f.write_str("use the PEM file of the CA that issued the directory's own certificate")
            }
            Self::NoRoots => f.write_str(
                "this system has no trusted CA certificates, so the directory cannot be \
                 verified; install ca-certificates, or name a file with Acme::ca_file",
            ),
            Self::Storage { what, error } => {
                write!(f, "ACME cannot store data at {what}: {error}; ")?;
                f.write_str("the server's user must be able to write there")
            }
            Self::Tls(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AcmeSetupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Storage { error, .. } => Some(error),
            Self::Tls(error) => Some(error),
            _ => None,
        }
    }
}

impl From<TlsSetupError> for AcmeSetupError {
    fn from(error: TlsSetupError) -> Self {
        Self::Tls(error)
    }
}
