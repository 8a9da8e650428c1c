//! A piece of what is to be sent.

use std::fmt;
use std::fs::File;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;

/// What a driver holds until the kernel took it: bytes of its own, bytes that others have too, or a part of a file.
///
/// Bytes stay where they are, unchanged, for as long as the piece lives, also when it is moved.
#[derive(Debug)]
pub enum Piece {
    /// The driver's own memory, which it may use again.
    Owned(Vec<u8>),
    /// Memory of the application. Boxed, because few connections ever hold any.
    Shared(Box<Shared>),
    /// A part of a file, whose bytes are not here.
    File(Box<FilePart>),
}

impl Piece {
    /// A piece of shared bytes.
    #[must_use]
    pub fn shared(bytes: Bytes) -> Self {
        Self::Shared(Box::new(Shared(Some(bytes))))
    }

    /// A part of a file.
    #[must_use]
    pub fn file(part: FilePart) -> Self {
        Self::File(Box::new(part))
    }

    /// How many bytes it is to send.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::File(part) => part.length,
            _ => self.bytes().len(),
        }
    }

    /// Is there nothing in it?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that are here: none of a file.
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

/// Some bytes of a file that stays open while anybody has the part.
#[derive(Clone, Debug)]
pub struct FilePart {
    /// The file.
    pub file: Arc<File>,
    /// Where its first byte is in the file.
    pub at: u64,
    /// How many bytes it has.
    pub length: usize,
}

impl FilePart {
    /// Does this error number of a call that takes from a file and gives to a socket speak of the file? What else
    /// there may be speaks of the socket, or of the moment. The numbers are Linux's.
    #[must_use]
    pub fn is_at_fault(code: i32) -> bool {
        const EIO: i32 = 5;
        const EINVAL: i32 = 22;
        const ESTALE: i32 = 116;
        matches!(code, EIO | EINVAL | ESTALE)
    }
}

/// Shared bytes that can be dropped anywhere: their owner may be the application's, and what its
/// destructor does. A panic of it is reported as every panic is, and ends here.
///
/// A driver drops these while it has nothing of its own borrowed: a destructor may wake a task.
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
        // The hook has told of the panic, and nothing of the driver was touched by it.
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
                panic!("it went off");
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
