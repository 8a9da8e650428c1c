//! Copies data into buffers of exactly its size before it is stored.
//!
//! Data from a socket is often a small slice of a large buffer. A stored slice would keep the whole
//! buffer alive.

use bytes::Bytes;
use http::{HeaderName, HeaderValue};

/// Copies content into a buffer of its exact size.
pub(crate) fn compact_bytes(slice: &Bytes) -> Bytes {
    Bytes::copy_from_slice(slice)
}

/// Copies a field's value into its own buffer.
pub(crate) fn compact_field(
    (name, slice): (&HeaderName, &HeaderValue),
) -> (HeaderName, HeaderValue) {
    let value = HeaderValue::from_bytes(slice.as_bytes());
    let mut value = value.unwrap_or_else(|_| slice.clone());
    value.set_sensitive(slice.is_sensitive());
    (name.clone(), value)
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use std::sync::{Arc, Weak};

    /// A buffer that reports when it is freed.
    struct Large {
        bytes: Vec<u8>,
        _alive: Arc<()>,
    }

    impl AsRef<[u8]> for Large {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    /// A small slice of a large buffer, as libraries that read from sockets produce it.
    pub(crate) fn slice_of_large_buffer() -> (Bytes, Weak<()>) {
        let alive = Arc::new(());
        let weak = Arc::downgrade(&alive);
        let large = Large { bytes: vec![b'x'; 1 << 20], _alive: alive };
        (Bytes::from_owner(large).slice(7..17), weak)
    }
}
