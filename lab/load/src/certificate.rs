//! A certificate for the run: P-256, self-signed, for `localhost` and the loopback addresses.

use std::io;
use std::path::{Path, PathBuf};

/// The two files that a TLS server is given, in PEM.
#[derive(Debug, Clone)]
pub struct CertificateFiles {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key (PKCS #8).
    pub key: PathBuf,
}

/// Makes a certificate and writes `cert.pem` and `key.pem` into `folder`, which is made if it
/// does not exist.
///
/// # Errors
///
/// The file system's, or that of the key generation.
pub fn write(folder: &Path) -> io::Result<CertificateFiles> {
    let names = ["localhost", "127.0.0.1", "::1"].map(String::from);
    // The default key of rcgen is ECDSA on P-256.
    let made = rcgen::generate_simple_self_signed(names).map_err(io::Error::other)?;
    std::fs::create_dir_all(folder)?;
    let files =
        CertificateFiles { certificate: folder.join("cert.pem"), key: folder.join("key.pem") };
    std::fs::write(&files.certificate, made.cert.pem())?;
    std::fs::write(&files.key, made.signing_key.serialize_pem())?;
    Ok(files)
}
