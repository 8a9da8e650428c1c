//! Copies for those who keep something for long.
//!
//! What comes from a socket is often a small piece of a large buffer, which lives for as long as one of its pieces does.

use bytes::Bytes;
use http::{HeaderName, HeaderValue};

/// The content in memory of its own, and no more of it than it takes.
pub(crate) fn content(shared: &Bytes) -> Bytes {
    Bytes::copy_from_slice(shared)
}

/// A field in memory of its own.
pub(crate) fn field((name, shared): (&HeaderName, &HeaderValue)) -> (HeaderName, HeaderValue) {
    let value = HeaderValue::from_bytes(shared.as_bytes());
    let mut value = value.unwrap_or_else(|_| shared.clone());
    value.set_sensitive(shared.is_sensitive());
    (name.clone(), value)
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use std::sync::{Arc, Weak};

    /// Memory that tells when it is freed.
    struct Large {
        bytes: Vec<u8>,
        _alive: Arc<()>,
    }

    impl AsRef<[u8]> for Large {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    /// A small piece of a large buffer, as libraries give them that read from sockets.
    pub(crate) fn piece() -> (Bytes, Weak<()>) {
        let alive = Arc::new(());
        let weak = Arc::downgrade(&alive);
        let large = Large { bytes: vec![b'x'; 1 << 20], _alive: alive };
        (Bytes::from_owner(large).slice(7..17), weak)
    }
}
