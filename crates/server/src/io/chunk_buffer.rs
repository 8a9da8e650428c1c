//! Buffers received bytes that have not been parsed yet.

use bytes::Bytes;
use std::ops::Deref;

/// The unread bytes of one connection, contiguous.
///
/// The protocol parses a chunk in place, in the driver's buffer. The unread rest of a chunk is
/// copied only when more bytes follow it, or when the connection is about to wait and must return
/// the driver's buffer.
#[derive(Debug)]
pub(crate) struct ChunkBuffer<C> {
    chunk: Option<C>,
    /// Used only if there is no chunk.
    owned: Vec<u8>,
    /// How many bytes of the chunk or, if there is none, of `owned` were read.
    consumed: usize,
}

impl<C: Deref<Target = [u8]>> ChunkBuffer<C> {
    pub(crate) fn new() -> Self {
        Self { chunk: None, owned: Vec::new(), consumed: 0 }
    }

    /// The bytes that have not been read yet.
    pub(crate) fn unread(&self) -> &[u8] {
        match &self.chunk {
            Some(chunk) => &chunk[self.consumed..],
            None => &self.owned[self.consumed..],
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.unread().is_empty()
    }

    /// The memory of this buffer, not including the driver's buffer.
    #[inline]
    pub(crate) fn memory_bytes(&self) -> usize {
        self.owned.capacity()
    }

    /// Marks the first `bytes` unread bytes as read.
    pub(crate) fn consume(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.unread().len());
        self.consumed += bytes;
        if self.is_empty() {
            self.clear();
        }
    }

    /// Adds a chunk that the driver received.
    pub(crate) fn push(&mut self, chunk: C) {
        if self.is_empty() {
            self.clear();
            self.chunk = Some(chunk);
        } else {
            self.release_chunk();
            self.compact();
            self.owned.extend_from_slice(&chunk);
        }
    }

    /// Calls `fill`, which appends bytes, for example decrypted ones.
    pub(crate) fn append_with<T>(&mut self, fill: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        self.release_chunk();
        self.compact();
        fill(&mut self.owned)
    }

    /// Removes bytes that were read, if they are at least half of `owned`. Without this, the buffer
    /// would grow without limit if the reader never consumed all of it.
    fn compact(&mut self) {
        if self.chunk.is_none() && self.consumed > 0 && self.consumed >= self.owned.len() / 2 {
            self.owned.drain(..self.consumed);
            self.consumed = 0;
        }
    }

    /// Copies the unread bytes to `owned`, and returns the driver's buffer.
    pub(crate) fn release_chunk(&mut self) {
        if let Some(chunk) = self.chunk.take() {
            self.owned.clear();
            self.owned.extend_from_slice(&chunk[self.consumed..]);
            self.consumed = 0;
        }
    }

    /// Takes all unread bytes without a copy, if they are in a chunk and `try_into_vec` returns the
    /// memory of that chunk. Otherwise, nothing changes.
    pub(crate) fn take_without_copy(
        &mut self,
        try_into_vec: impl FnOnce(C) -> Result<Vec<u8>, C>,
    ) -> Option<Bytes> {
        match try_into_vec(self.chunk.take()?) {
            Ok(memory) => {
                let unread = Bytes::from(memory).split_off(self.consumed);
                self.clear();
                Some(unread)
            }
            Err(chunk) => {
                self.chunk = Some(chunk);
                None
            }
        }
    }

    /// Clears the buffer. Its memory is retained for the next connection if it is at most
    /// `retained_bytes_max`.
    pub(crate) fn reset(&mut self, retained_bytes_max: usize) {
        self.clear();
        if self.owned.capacity() > retained_bytes_max {
            self.owned = Vec::new();
        }
    }

    fn clear(&mut self) {
        self.chunk = None;
        self.owned.clear();
        self.consumed = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    /// Holds a reference to its owner, so that the tests can count the chunks that exist.
    struct TrackedChunk {
        _owner: Rc<()>,
        bytes: &'static [u8],
    }

    impl Deref for TrackedChunk {
        type Target = [u8];
        fn deref(&self) -> &[u8] {
            self.bytes
        }
    }

    fn tracked(owner: &Rc<()>, bytes: &'static [u8]) -> TrackedChunk {
        TrackedChunk { _owner: Rc::clone(owner), bytes }
    }

    #[test]
    fn unread_bytes_are_contiguous_across_chunks() {
        let owner = Rc::new(());
        let mut buffer = ChunkBuffer::new();
        buffer.push(tracked(&owner, b"hello "));
        buffer.consume(2);
        buffer.push(tracked(&owner, b"world"));
        assert_eq!(buffer.unread(), b"llo world");
        buffer.consume(4);
        assert_eq!(buffer.unread(), b"world");
        buffer.append_with(|bytes| bytes.extend_from_slice(b"!"));
        assert_eq!(buffer.unread(), b"world!");
        buffer.consume(6);
        assert!(buffer.is_empty());
    }

    #[test]
    fn memory_stays_bounded_while_some_bytes_are_always_unread() {
        let owner = Rc::new(());
        let mut buffer = ChunkBuffer::new();
        let mut appended: ChunkBuffer<TrackedChunk> = ChunkBuffer::new();
        for _ in 0..10_000 {
            buffer.push(tracked(&owner, b"some bytes"));
            buffer.consume(buffer.unread().len() - 4);
            appended.append_with(|bytes| bytes.extend_from_slice(b"some bytes"));
            appended.consume(appended.unread().len() - 4);
            assert_eq!((buffer.unread(), appended.unread()), (&b"ytes"[..], &b"ytes"[..]));
        }
        assert!(buffer.owned.capacity() + appended.owned.capacity() < 200);
    }

    #[test]
    fn take_without_copy_returns_only_the_unread_bytes() {
        let owner = Rc::new(());
        let mut buffer = ChunkBuffer::new();
        buffer.push(tracked(&owner, b"head, body"));
        buffer.consume(6);
        assert_eq!(buffer.take_without_copy(Err), None);
        assert_eq!(buffer.unread(), b"body");
        let taken = buffer.take_without_copy(|chunk| Ok(chunk.to_vec()));
        assert_eq!(taken.as_deref(), Some(&b"body"[..]));
        assert!(buffer.is_empty());
        assert_eq!(buffer.take_without_copy(|chunk| Ok(chunk.to_vec())), None);
        assert_eq!(Rc::strong_count(&owner), 1);
    }

    #[test]
    fn chunk_is_returned_once_it_is_read_or_copied() {
        let owner = Rc::new(());
        let mut buffer = ChunkBuffer::new();
        buffer.push(tracked(&owner, b"ab"));
        assert_eq!(Rc::strong_count(&owner), 2);
        buffer.consume(2);
        assert_eq!(Rc::strong_count(&owner), 1);
        buffer.push(tracked(&owner, b"cd"));
        buffer.consume(1);
        buffer.release_chunk();
        assert_eq!((Rc::strong_count(&owner), buffer.unread()), (1, &b"d"[..]));
    }
}
