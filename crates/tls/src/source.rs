//! Reads certificates, keys and revocation lists from files and from memory.

use crate::digest::{Digest, sha256};
use crate::error::{Origin, TlsError};
use crate::limits::PEM_BYTES_MAX;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// A file, which can be read again, or bytes provided by the program.
#[derive(Clone)]
pub(crate) enum Source {
    File(Arc<Path>),
    Memory(Arc<[u8]>),
}

impl Source {
    pub(crate) fn file(path: impl AsRef<Path>) -> Self {
        Self::File(path.as_ref().into())
    }

    pub(crate) fn memory(bytes: &[u8]) -> Self {
        Self::Memory(bytes.into())
    }

    /// The path of a file.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Memory(_) => None,
        }
    }

    pub(crate) fn read(&self) -> Result<Pem, TlsError> {
        let path = match self {
            Self::Memory(text) => {
                return Ok(Pem { text: Arc::clone(text), origin: Origin::Memory });
            }
            Self::File(path) => path,
        };
        let mut text = Vec::new();
        File::open(path)
            .and_then(|file| file.take(PEM_BYTES_MAX as u64 + 1).read_to_end(&mut text))
            .map_err(|error| TlsError::Unreadable { path: path.to_path_buf(), error })?;
        if text.len() > PEM_BYTES_MAX {
            return Err(TlsError::TooLarge { path: path.to_path_buf() });
        }
        Ok(Pem { text: text.into(), origin: Origin::File(path.to_path_buf()) })
    }
}

/// Does not print keys.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.fmt(f),
            Self::Memory(_) => f.write_str("(in memory)"),
        }
    }
}

/// PEM text and its source.
pub(crate) struct Pem {
    pub(crate) text: Arc<[u8]>,
    pub(crate) origin: Origin,
}

impl Pem {
    pub(crate) fn digest(&self) -> Digest {
        sha256(&self.text)
    }

    /// All certificates, the server's own first.
    pub(crate) fn chain(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let chain = CertificateDer::pem_slice_iter(&self.text)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| self.broken(error))?;
        if chain.is_empty() {
            let holds_key = PrivateKeyDer::from_pem_slice(&self.text).is_ok();
            return Err(TlsError::NoCertificate { origin: self.origin.clone(), holds_key });
        }
        Ok(chain)
    }

    /// The first private key.
    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        // RFC 7468 §11 and RFC 1421 §4.6.1.1: the two ways in which PEM marks an encrypted key.
        for mark in ["-----BEGIN ENCRYPTED PRIVATE KEY-----", "Proc-Type: 4,ENCRYPTED"] {
            if self.text.windows(mark.len()).any(|window| window == mark.as_bytes()) {
                return Err(TlsError::EncryptedKey { origin: self.origin.clone() });
            }
        }
        PrivateKeyDer::from_pem_slice(&self.text).map_err(|error| match error {
            pem::Error::NoItemsFound => TlsError::NoKey {
                origin: self.origin.clone(),
                holds_certificate: CertificateDer::from_pem_slice(&self.text).is_ok(),
            },
            error => self.broken(error),
        })
    }

    /// All revocation lists: PEM, or a single one in DER, as certificate authorities publish them.
    pub(crate) fn lists(&self) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
        if self.text.first() == Some(&crate::der::TAG_SEQUENCE) {
            return Ok(vec![self.text.to_vec().into()]);
        }
        let lists = CertificateRevocationListDer::pem_slice_iter(&self.text)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| self.broken(error))?;
        if lists.is_empty() {
            return Err(TlsError::NoRevocationList { origin: self.origin.clone() });
        }
        Ok(lists)
    }

    fn broken(&self, error: pem::Error) -> TlsError {
        TlsError::BrokenPem { origin: self.origin.clone(), error }
    }
}
