//! SHA-256, for fingerprints and to detect changes.

use aws_lc_rs::digest::{Context, SHA256, digest};

pub(crate) type Digest = [u8; 32];

pub(crate) fn sha256(bytes: &[u8]) -> Digest {
    digest(&SHA256, bytes).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// Hashes several parts, including their lengths, so that different lists of parts have different
/// digests.
pub(crate) fn sha256_parts<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> Digest {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}
