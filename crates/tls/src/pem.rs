//! Reads certificates, keys and revocation lists from files and from memory.

use crate::error::{PemOrigin, TlsSetupError};
use crate::limits::PEM_BYTES_MAX;
use crate::sha256::{Digest, sha256};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// A file, which can be read again, or bytes provided by the program.
#[derive(Clone)]
pub(crate) enum PemSource {
    File(Arc<Path>),
    Memory(Arc<[u8]>),
}

impl PemSource {
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

    pub(crate) fn read(&self) -> Result<Pem, TlsSetupError> {
        let path = match self {
            Self::Memory(text) => {
                return Ok(Pem { text: Arc::clone(text), origin: PemOrigin::Memory });
            }
            Self::File(path) => path,
        };
        let mut text = Vec::new();
        File::open(path)
            .and_then(|file| file.take(PEM_BYTES_MAX as u64 + 1).read_to_end(&mut text))
            .map_err(|error| TlsSetupError::Unreadable { path: path.to_path_buf(), error })?;
        if text.len() > PEM_BYTES_MAX {
            return Err(TlsSetupError::TooLarge { path: path.to_path_buf() });
        }
        Ok(Pem { text: text.into(), origin: PemOrigin::File(path.to_path_buf()) })
    }
}

/// Omits text in memory, which may be a key.
impl fmt::Debug for PemSource {
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
    pub(crate) origin: PemOrigin,
}

impl Pem {
    pub(crate) fn digest(&self) -> Digest {
        sha256(&self.text)
    }

    /// All certificates, the server's own first.
    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsSetupError> {
        let chain = CertificateDer::pem_slice_iter(&self.text)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| self.invalid_pem(error))?;
        if chain.is_empty() {
            let holds_key = PrivateKeyDer::from_pem_slice(&self.text).is_ok();
            return Err(TlsSetupError::NoCertificate { origin: self.origin.clone(), holds_key });
        }
        Ok(chain)
    }

    /// The first private key.
    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>, TlsSetupError> {
        // RFC 7468 §11 and RFC 1421 §4.6.1.1: the two ways in which PEM marks an encrypted key.
        for marker in ["-----BEGIN ENCRYPTED PRIVATE KEY-----", "Proc-Type: 4,ENCRYPTED"] {
            if self.text.windows(marker.len()).any(|window| window == marker.as_bytes()) {
                return Err(TlsSetupError::EncryptedKey { origin: self.origin.clone() });
            }
        }
        PrivateKeyDer::from_pem_slice(&self.text).map_err(|error| match error {
            pem::Error::NoItemsFound => TlsSetupError::NoKey {
                origin: self.origin.clone(),
                holds_certificate: CertificateDer::from_pem_slice(&self.text).is_ok(),
            },
            error => self.invalid_pem(error),
        })
    }

    /// All revocation lists: PEM, or a single one in DER, as certificate authorities publish them.
    pub(crate) fn crls(&self) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsSetupError> {
        if self.text.first() == Some(&crate::der::TAG_SEQUENCE) {
            return Ok(vec![self.text.to_vec().into()]);
        }
        let crls = CertificateRevocationListDer::pem_slice_iter(&self.text)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| self.invalid_pem(error))?;
        if crls.is_empty() {
            return Err(TlsSetupError::NoRevocationList { origin: self.origin.clone() });
        }
        Ok(crls)
    }

    fn invalid_pem(&self, error: pem::Error) -> TlsSetupError {
        TlsSetupError::InvalidPem { origin: self.origin.clone(), error }
    }
}
