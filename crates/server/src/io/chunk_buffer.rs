//! Buffers received bytes that were not parsed yet.

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
    /// How many bytes of the chunk or, without a chunk, of `owned` were read.
    consumed: usize,
}

impl<C: Deref<Target = [u8]>> ChunkBuffer<C> {
    pub(crate) fn new() -> Self {
        Self { chunk: None, owned: Vec::new(), consumed: 0 }
    }

    /// The bytes that were not read yet.
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

    /// Lets `fill` append bytes, such as decrypted ones.
    pub(crate) fn append_with<T>(&mut self, fill: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        self.release_chunk();
        self.compact();
        fill(&mut self.owned)
    }

    /// Removes read bytes if they are at least half of `owned`. Without this, the buffer would grow
    /// without limit if the reader never consumed all of it.
    fn compact(&mut self) {
        if self.chunk.is_none() && self.consumed > 0 && self.consumed >= self.owned.len() / 2 {
            self.owned.drain(..self.consumed);
            self.consumed = 0;
        }
    }

    /// Returns the driver's buffer to the driver, and keeps a copy of the unread bytes.
    pub(crate) fn release_chunk(&mut self) {
        if let Some(chunk) = self.chunk.take() {
            self.owned.clear();
            self.owned.extend_from_slice(&chunk[self.consumed..]);
            self.consumed = 0;
        }
    }

    /// Takes all unread bytes without a copy, if they are in a chunk and `keep` returns the memory
    /// of that chunk. Otherwise, nothing changes.
    pub(crate) fn take_owned(
        &mut self,
        keep: impl FnOnce(C) -> Result<Vec<u8>, C>,
    ) -> Option<Bytes> {
        match keep(self.chunk.take()?) {
            Ok(kept) => {
                let unread = Bytes::from(kept).split_off(self.consumed);
                self.clear();
                Some(unread)
            }
            Err(chunk) => {
                self.chunk = Some(chunk);
                None
            }
        }
    }

    /// Clears the buffer, and keeps its memory for the next connection if it is small.
    pub(crate) fn reset(&mut self, keep_bytes_max: usize) {
        self.clear();
        if self.owned.capacity() > keep_bytes_max {
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

    /// Counts as lent until it is dropped.
    struct Lent {
        _on_loan: Rc<()>,
        bytes: &'static [u8],
    }

    impl Deref for Lent {
        type Target = [u8];
        fn deref(&self) -> &[u8] {
            self.bytes
        }
    }

    fn lent(by: &Rc<()>, bytes: &'static [u8]) -> Lent {
        Lent { _on_loan: Rc::clone(by), bytes }
    }

    #[test]
    fn the_unread_bytes_are_contiguous_whatever_the_cuts() {
        let owner = Rc::new(());
        let mut inbox = ChunkBuffer::new();
        inbox.push(lent(&owner, b"hello "));
        inbox.consume(2);
        inbox.push(lent(&owner, b"world"));
        assert_eq!(inbox.unread(), b"llo world");
        inbox.consume(4);
        assert_eq!(inbox.unread(), b"world");
        inbox.append_with(|bytes| bytes.extend_from_slice(b"!"));
        assert_eq!(inbox.unread(), b"world!");
        inbox.consume(6);
        assert!(inbox.is_empty());
    }

    #[test]
    fn what_was_read_is_not_kept_though_something_is_always_unread() {
        let owner = Rc::new(());
        let mut inbox = ChunkBuffer::new();
        let mut sealed: ChunkBuffer<Lent> = ChunkBuffer::new();
        for _ in 0..10_000 {
            inbox.push(lent(&owner, b"some bytes"));
            inbox.consume(inbox.unread().len() - 4);
            sealed.append_with(|plain| plain.extend_from_slice(b"some bytes"));
            sealed.consume(sealed.unread().len() - 4);
            assert_eq!((inbox.unread(), sealed.unread()), (&b"ytes"[..], &b"ytes"[..]));
        }
        assert!(inbox.owned.capacity() + sealed.owned.capacity() < 200);
    }

    #[test]
    fn what_is_kept_is_what_was_not_read() {
        let owner = Rc::new(());
        let mut inbox = ChunkBuffer::new();
        inbox.push(lent(&owner, b"head, body"));
        inbox.consume(6);
        assert_eq!(inbox.take_owned(Err), None);
        assert_eq!(inbox.unread(), b"body");
        let kept = inbox.take_owned(|chunk| Ok(chunk.to_vec()));
        assert_eq!(kept.as_deref(), Some(&b"body"[..]));
        assert!(inbox.is_empty());
        assert_eq!(inbox.take_owned(|chunk| Ok(chunk.to_vec())), None);
        assert_eq!(Rc::strong_count(&owner), 1);
    }

    #[test]
    fn a_chunk_goes_back_as_soon_as_it_is_read_or_settled() {
        let owner = Rc::new(());
        let mut inbox = ChunkBuffer::new();
        inbox.push(lent(&owner, b"ab"));
        assert_eq!(Rc::strong_count(&owner), 2);
        inbox.consume(2);
        assert_eq!(Rc::strong_count(&owner), 1);
        inbox.push(lent(&owner, b"cd"));
        inbox.consume(1);
        inbox.release_chunk();
        assert_eq!((Rc::strong_count(&owner), inbox.unread()), (1, &b"d"[..]));
    }
}
