//! A piece of data to send.

use std::fmt;
use std::fs::File;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;

/// Data that a driver holds until the kernel took it: its own bytes, shared bytes, or a part of a
/// file.
///
/// The bytes stay in place, unchanged, as long as the piece lives, even when it is moved.
#[derive(Debug)]
pub enum Piece {
    /// The driver's own memory, which it may reuse.
    Owned(Vec<u8>),
    /// Memory of the application. Boxed, because few connections ever use it.
    Shared(Box<Shared>),
    /// A part of a file, whose bytes are not in memory.
    File(Box<FilePart>),
}

impl Piece {
    /// Creates a piece of shared bytes.
    #[must_use]
    pub fn shared(bytes: Bytes) -> Self {
        Self::Shared(Box::new(Shared(Some(bytes))))
    }

    /// Creates a piece from a part of a file.
    #[must_use]
    pub fn file(part: FilePart) -> Self {
        Self::File(Box::new(part))
    }

    /// The number of bytes to send.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::File(part) => part.length,
            _ => self.bytes().len(),
        }
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes in memory; empty for a file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Shared(bytes) => bytes,
            Self::File(_) => &[],
        }
    }
}

impl Default for Piece {
    fn default() -> Self {
        Self::Owned(Vec::new())
    }
}

/// A range of a file, which stays open while the range lives.
#[derive(Clone, Debug)]
pub struct FilePart {
    /// The file.
    pub file: Arc<File>,
    /// The offset of its first byte in the file.
    pub at: u64,
    /// The number of bytes.
    pub length: usize,
}

impl FilePart {
    /// Returns whether this error number of a call that copies from a file to a socket is caused by
    /// the file. Other numbers are caused by the socket, or are temporary. The numbers are those of
    /// Linux.
    #[must_use]
    pub fn is_at_fault(code: i32) -> bool {
        const EIO: i32 = 5;
        const EINVAL: i32 = 22;
        const ESTALE: i32 = 116;
        matches!(code, EIO | EINVAL | ESTALE)
    }
}

/// Shared bytes that can be dropped anywhere: their owner, and its destructor, may be the
/// application's. A panic of the destructor is reported like every panic and then caught.
///
/// A driver drops these while none of its state is borrowed: a destructor may wake a task.
pub struct Shared(Option<Bytes>);

impl Deref for Shared {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let bytes = self.0.take();
        // The panic hook has reported it, and it cannot have touched the driver's state.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(bytes)));
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_that_panics_harms_nobody() {
        struct Bomb;
        impl AsRef<[u8]> for Bomb {
            fn as_ref(&self) -> &[u8] {
                b"bomb"
            }
        }
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("a panic in a destructor");
            }
        }
        let piece = Piece::shared(Bytes::from_owner(Bomb));
        assert_eq!((piece.bytes(), piece.len()), (&b"bomb"[..], 4));
        drop(piece);
    }

    #[test]
    fn a_piece_is_as_small_as_a_vector() {
        assert_eq!(size_of::<Piece>(), size_of::<Vec<u8>>());
    }
}
