//! What the peer sent and nobody has used yet.

use super::chunk_buffer::Inbox;
use super::transport::{Encrypted, Stage};
use bytes::Bytes;
use peregrine_tls::Reject;
use std::ops::Deref;

/// The receiving half of a busy connection: plaintext, in order.
#[derive(Debug)]
pub(crate) struct Reader<C> {
    inbox: Inbox<C>,
    /// The peer ended its sending side.
    is_ended: bool,
    /// Bytes that were received, before any decryption.
    received: u64,
    /// Bytes of plaintext that came.
    plain: u64,
    /// The most that those were with what had come of a record that was not complete: what brings nothing, as padding and
    /// empty records do, counts only once.
    brought: u64,
}

impl<C: Deref<Target = [u8]>> Reader<C> {
    pub(crate) fn new() -> Self {
        Self { inbox: Inbox::new(), is_ended: false, received: 0, plain: 0, brought: 0 }
    }

    /// Takes what the driver received. What TLS has to say to that goes to `replies`.
    ///
    /// # Errors
    /// The bytes are no TLS that the session accepts. An alert is in `replies`.
    pub(crate) fn take(
        &mut self,
        chunk: C,
        stage: &mut Stage,
        replies: &mut Vec<u8>,
    ) -> Result<(), Reject> {
        self.received += chunk.len() as u64;
        match stage {
            Stage::Plain => {
                self.brought += chunk.len() as u64;
                self.inbox.push(chunk);
                Ok(())
            }
            Stage::Tls(tls) => self.open(tls, &chunk, replies),
        }
    }

    /// Takes what is encrypted.
    fn open(
        &mut self,
        tls: &mut Encrypted,
        sealed: &[u8],
        replies: &mut Vec<u8>,
    ) -> Result<(), Reject> {
        let (taken, opened) = self.inbox.extend_by(|plain| {
            let before = plain.len();
            (tls.receive(sealed, plain, replies), plain.len() - before)
        });
        self.plain += opened as u64;
        self.brought = self.brought.max(self.plain + tls.incomplete_bytes());
        taken
    }

    /// What is unread came before the stage, and is given to it.
    ///
    /// # Errors
    /// As for [`Reader::take`].
    pub(crate) fn begin_stage(
        &mut self,
        stage: &mut Stage,
        replies: &mut Vec<u8>,
    ) -> Result<(), Reject> {
        let Stage::Tls(tls) = stage else { return Ok(()) };
        // What came before counts no more.
        self.plain = self.brought;
        let sealed = self.inbox.unread().to_vec();
        self.inbox.consume(sealed.len());
        self.open(tls, &sealed, replies)
    }

    /// The stage goes on with what it was given before.
    ///
    /// # Errors
    /// As for [`Reader::take`].
    pub(crate) fn go_on(&mut self, stage: &mut Stage, replies: &mut Vec<u8>) -> Result<(), Reject> {
        let Stage::Tls(tls) = stage else { return Ok(()) };
        self.open(tls, &[], replies)
    }

    /// The peer ended its sending side.
    pub(crate) fn end(&mut self) {
        self.is_ended = true;
    }

    /// Did the peer end its sending side, by TCP or by TLS?
    pub(crate) fn is_ended(&self, stage: &Stage) -> bool {
        self.is_ended || stage.is_closed()
    }

    /// Bytes received so far on this lease, whatever they bring: signs of life.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// The same of plaintext, and of the record that is not complete: what a rate is measured by.
    pub(crate) fn brought(&self) -> u64 {
        self.brought
    }

    pub(crate) fn unread(&self) -> &[u8] {
        self.inbox.unread()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.inbox.is_empty()
    }

    pub(crate) fn consume(&mut self, bytes: usize) {
        self.inbox.consume(bytes);
    }

    /// All unread bytes without a copy, if their memory may be kept.
    pub(crate) fn take_kept(
        &mut self,
        keep: impl FnOnce(C) -> Result<Vec<u8>, C>,
    ) -> Option<Bytes> {
        self.inbox.take_kept(keep)
    }

    /// Memory that is not the driver's.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.inbox.held_bytes()
    }

    /// Gives the driver's buffer back before the connection waits.
    pub(crate) fn settle(&mut self) {
        self.inbox.settle();
    }

    /// Gives the memory back, if nothing is unread.
    pub(crate) fn slim(&mut self, keep_bytes_max: usize) {
        if self.inbox.is_empty() {
            self.inbox.reset(keep_bytes_max);
        }
    }

    pub(crate) fn reset(&mut self, keep_bytes_max: usize) {
        self.inbox.reset(keep_bytes_max);
        (self.is_ended, self.received, self.plain, self.brought) = (false, 0, 0, 0);
    }
}
