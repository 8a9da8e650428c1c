//! Data to send.

use std::fmt;
use std::fs::File;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;

/// Data that a driver holds until the kernel has accepted it: its own bytes, shared bytes, or a
/// range of a file.
///
/// The bytes stay in place, unchanged, as long as the `SendBuf` exists, even when it is moved.
#[derive(Debug)]
pub enum SendBuf {
    /// The driver's own memory, which it may reuse.
    Owned(Vec<u8>),
    /// Memory of the application. Boxed, because few connections ever use it.
    Shared(Box<SharedBytes>),
    /// A range of a file, whose bytes are not in memory.
    File(Box<FileRange>),
}

impl SendBuf {
    /// Creates a `SendBuf` from shared bytes.
    #[must_use]
    pub fn from_shared(bytes: Bytes) -> Self {
        Self::Shared(Box::new(SharedBytes(Some(bytes))))
    }

    /// Creates a `SendBuf` from a range of a file.
    #[must_use]
    pub fn from_file(range: FileRange) -> Self {
        Self::File(Box::new(range))
    }

    /// The number of bytes to send.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::File(range) => range.len,
            _ => self.as_bytes().len(),
        }
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes in memory; empty for a file.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Shared(bytes) => bytes,
            Self::File(_) => &[],
        }
    }
}

impl Default for SendBuf {
    fn default() -> Self {
        Self::Owned(Vec::new())
    }
}

/// A range of a file, which stays open while the range lives.
#[derive(Clone, Debug)]
pub struct FileRange {
    /// The file.
    pub file: Arc<File>,
    /// The offset of its first byte in the file.
    pub offset: u64,
    /// The number of bytes.
    pub len: usize,
}

impl FileRange {
    /// Returns whether this error number of a call that copies from a file to a socket is caused by
    /// the file. Other numbers are caused by the socket, or are temporary. The numbers are those of
    /// Linux.
    #[must_use]
    pub fn is_file_error(code: i32) -> bool {
        const EIO: i32 = 5;
        const EINVAL: i32 = 22;
        const ESTALE: i32 = 116;
        matches!(code, EIO | EINVAL | ESTALE)
    }
}

/// Shared bytes whose owner may be a type of the application, with a destructor that runs when the
/// driver drops them. A panic of that destructor is reported like any other, but does not unwind
/// into the driver.
///
/// A driver drops shared bytes only while none of its state is borrowed, because the destructor may
/// wake a task.
pub struct SharedBytes(Option<Bytes>);

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl Drop for SharedBytes {
    fn drop(&mut self) {
        let bytes = self.0.take();
        // The panic hook has reported the panic, and the destructor cannot access the driver's
        // state, so there is nothing left to do.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(bytes)));
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panicking_destructor_of_shared_bytes_is_caught() {
        struct PanicsOnDrop;
        impl AsRef<[u8]> for PanicsOnDrop {
            fn as_ref(&self) -> &[u8] {
                b"bomb"
            }
        }
        impl Drop for PanicsOnDrop {
            fn drop(&mut self) {
                panic!("a panic in a destructor");
            }
        }
        let buf = SendBuf::from_shared(Bytes::from_owner(PanicsOnDrop));
        assert_eq!((buf.as_bytes(), buf.len()), (&b"bomb"[..], 4));
        drop(buf);
    }

    #[test]
    fn a_send_buf_is_as_small_as_a_vec() {
        assert_eq!(size_of::<SendBuf>(), size_of::<Vec<u8>>());
    }
}
