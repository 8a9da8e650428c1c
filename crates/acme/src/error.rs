//! What can be wrong with the settings of ACME, and how to put it right.

use peregrine_tls::TlsError;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why ACME could not be set up. What goes wrong later is in the log and in
/// [`AcmeStatus`](crate::AcmeStatus).
#[derive(Debug)]
#[non_exhaustive]
pub enum AcmeError {
    /// No name is given.
    NoName,
    /// A name cannot have a certificate from here.
    BadName {
        /// The name.
        name: String,
        /// What is wrong with it.
        cause: &'static str,
    },
    /// It is not said where account and certificates are kept.
    NoStorage,
    /// No kind of challenge is left.
    NoChallenge,
    /// The URL of the directory cannot be used.
    BadDirectory {
        /// The URL.
        url: String,
    },
    /// An address of contact cannot be used.
    BadContact {
        /// The address.
        contact: String,
    },
    /// The key of the external account is not what the authority gave.
    BadExternalKey,
    /// The certificates of issuers cannot be read.
    BadRoots {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// Nobody is trusted to tell who the authority is.
    NoRoots,
    /// The storage cannot be used.
    Storage {
        /// What is kept there, or a file.
        what: String,
        /// What the system said.
        error: io::Error,
    },
    /// TLS cannot be set up.
    Tls(TlsError),
}

impl fmt::Display for AcmeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoName => f.write_str("ACME has no name to get a certificate for; name one"),
            Self::BadName { name, cause } => {
                write!(f, "ACME cannot get a certificate for {name:?}: {cause}")
            }
            Self::NoStorage => f.write_str(
                "ACME has nowhere to keep its account and certificates, and authorities limit how often \
                 one may ask; name a folder that survives a restart: Acme::folder",
            ),
            Self::NoChallenge => f.write_str(
                "ACME may answer no kind of challenge; leave Challenge::TlsAlpn01 or Challenge::Http01",
            ),
            Self::BadDirectory { url } => {
                write!(f, "{url:?} is no URL of an ACME directory; write it as \
                    https://ca.example/acme/directory")
            }
            Self::BadContact { contact } => {
                write!(f, "{contact:?} is no address to be reached at by an authority; write \
                    admin@example.org")
            }
            Self::BadExternalKey => f.write_str(
                "the key of the external account is not base64url; give the HMAC key as the authority \
                 shows it",
            ),
            Self::BadRoots { path, cause } => {
                write!(f, "the certificates of issuers in {} cannot be used: {cause}; ", path.display())?;
                f.write_str("give the PEM file of whoever issued the directory's own certificate")
            }
            Self::NoRoots => f.write_str(
                "this system trusts no issuer of certificates, so nobody knows whether the directory is \
                 who it should be; install ca-certificates, or name a file: Acme::root_file",
            ),
            Self::Storage { what, error } => {
                write!(f, "ACME cannot keep anything at {what}: {error}; ")?;
                f.write_str("the user the server runs as must be able to write there")
            }
            Self::Tls(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AcmeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Storage { error, .. } => Some(error),
            Self::Tls(error) => Some(error),
            _ => None,
        }
    }
}

impl From<TlsError> for AcmeError {
    fn from(error: TlsError) -> Self {
        Self::Tls(error)
    }
}
