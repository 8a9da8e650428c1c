//! A working connection's way to its peer: fill the inbox, flush the outbox, close well.

use crate::deadline::Alarm;
use crate::ended::Ended;
use crate::inbox::Inbox;
use crate::stage::Stage;
use crate::worker::{Interrupt, Order, Until, Worker};
use peregrine_driver::{Driver, Stream};
use peregrine_tls::Reject as TlsReject;
use std::io;
use std::pin::pin;

/// Bytes read and thrown away, at the most, after an answer that ends the connection.
const LINGER_BYTES_MAX: usize = 1024 * 1024;

/// The peer, seen from the protocol: plaintext in, plaintext out.
pub(crate) struct Link<'c, D: Driver> {
    pub(crate) worker: &'c Worker<D>,
    pub(crate) stream: &'c D::Stream,
    pub(crate) stage: &'c mut Stage,
    pub(crate) alarm: &'c Alarm,
    pub(crate) inbox: &'c mut Inbox<<D::Stream as Stream>::Chunk>,
    /// Plaintext to be sent.
    pub(crate) outbox: &'c mut Vec<u8>,
    /// The same as TLS records, while it is being sent.
    pub(crate) wire: &'c mut Vec<u8>,
    /// The peer ended its sending side.
    pub(crate) is_ended: bool,
}

/// What waiting for input gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// The inbox has more than before.
    Bytes,
    /// The peer ended its sending side.
    End,
    /// Nothing came in time.
    Late,
}

impl<D: Driver> Link<'_, D> {
    /// Waits for more input. Dropping the future loses nothing.
    pub(crate) async fn fill(&mut self, until: Until) -> Result<Filled, Ended> {
        loop {
            if self.is_ended || self.stage.is_closed() {
                return Ok(Filled::End);
            }
            let recv = pin!(self.stream.recv());
            let chunk = match self.worker.within(self.alarm, until, Order::Cut, recv).await {
                Ok(chunk) => chunk.map_err(|error| Ended::Broken(error.kind()))?,
                Err(Interrupt::Deadline) => return Ok(Filled::Late),
                Err(Interrupt::Order) => return Err(Ended::Cut),
            };
            if chunk.is_empty() {
                self.is_ended = true;
                return Ok(Filled::End);
            }
            if self.take(chunk).await? {
                return Ok(Filled::Bytes);
            }
        }
    }

    /// Puts received bytes into the inbox. Did any plaintext come out of them?
    pub(crate) async fn take(
        &mut self,
        chunk: <D::Stream as Stream>::Chunk,
    ) -> Result<bool, Ended> {
        let Stage::Tls(tls) = &mut *self.stage else {
            self.inbox.push(chunk);
            return Ok(true);
        };
        let before = self.inbox.unread().len();
        let mut out = std::mem::take(self.wire);
        let result = self.inbox.extend_by(|plain| tls.receive(&chunk, plain, &mut out));
        drop(chunk);
        if out.is_empty() {
            *self.wire = out;
        } else {
            let sent = self.send(out).await;
            // What TLS has to say about an offence comes before what sending it led to.
            if result.is_ok() {
                *self.wire = sent?;
            }
        }
        match result {
            Ok(()) => Ok(self.inbox.unread().len() > before),
            Err(TlsReject::PlainHttp) => {
                Box::pin(self.linger()).await;
                Err(Ended::PlainOnTls)
            }
            Err(reject) => {
                Box::pin(self.linger()).await;
                Err(Ended::TlsFailed(reject.to_string()))
            }
        }
    }

    /// Waits until the peer's kernel or ours has taken everything written so far.
    pub(crate) async fn flush(&mut self) -> Result<(), Ended> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        let plain = std::mem::take(self.outbox);
        match &mut *self.stage {
            Stage::Plain => *self.outbox = self.send(plain).await?,
            Stage::Tls(tls) => {
                let mut out = std::mem::take(self.wire);
                let encrypted = tls.session.send(&plain, &mut out);
                *self.outbox = plain;
                self.outbox.clear();
                encrypted.map_err(|error| Ended::TlsFailed(error.to_string()))?;
                *self.wire = self.send(out).await?;
            }
        }
        Ok(())
    }

    async fn send(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Ended> {
        self.worker.observed.send();
        let until = Until::In(self.worker.limits.write_stall_timeout);
        let mut bytes = bytes;
        self.stream.send(&mut bytes);
        let send = pin!(self.stream.sent());
        match self.worker.within(self.alarm, until, Order::Cut, send).await {
            Ok(Ok(())) => Ok(bytes),
            Ok(Err(error)) => Err(Ended::Broken(error.kind())),
            Err(Interrupt::Deadline) => Err(Ended::WriteStalled),
            Err(Interrupt::Order) => Err(Ended::Cut),
        }
    }

    /// Has so much been written that it must be sent before more is produced?
    pub(crate) fn is_full(&self) -> bool {
        self.outbox.len() >= self.worker.limits.pending_output_bytes_max
    }

    /// Sends what is written, then says goodbye.
    ///
    /// `unread`: the peer may still be sending, so go on reading for a while. Closing a socket that
    /// has unread input makes the kernel send a reset, and a reset takes the answer away from a peer
    /// that has not read it yet (RFC 9112 §9.6).
    pub(crate) async fn close(&mut self, unread: bool) -> Result<(), Ended> {
        self.flush().await?;
        if let Stage::Tls(tls) = &mut *self.stage {
            let mut out = std::mem::take(self.wire);
            tls.session.close(&mut out);
            if !out.is_empty() {
                self.send(out).await?;
            }
        }
        if unread {
            Box::pin(self.linger()).await;
        }
        // Dropping the stream closes it, which ends our side too.
        Ok(())
    }

    async fn finish(&self) -> Result<(), Ended> {
        let until = Until::In(self.worker.limits.write_stall_timeout);
        self.stream.finish();
        let finish = pin!(self.stream.sent());
        match self.worker.within(self.alarm, until, Order::Cut, finish).await {
            Ok(Ok(())) => Ok(()),
            // The peer was faster.
            Ok(Err(error)) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            Ok(Err(error)) => Err(Ended::Broken(error.kind())),
            Err(Interrupt::Deadline) => Err(Ended::WriteStalled),
            Err(Interrupt::Order) => Err(Ended::Cut),
        }
    }

    /// Ends our side, then reads and throws away what still comes, within limits.
    async fn linger(&mut self) {
        if self.is_ended || self.finish().await.is_err() {
            return;
        }
        let timeout = self.worker.limits.linger_timeout;
        let until = Until::At(self.worker.driver.now().saturating_add(timeout));
        let mut left = LINGER_BYTES_MAX;
        loop {
            let recv = pin!(self.stream.recv());
            // A worker that drains waits too: to close over unread bytes resets the connection, and the
            // peer may lose the answer that it has not read yet.
            match self.worker.within(self.alarm, until, Order::Cut, recv).await {
                Ok(Ok(chunk)) if !chunk.is_empty() && chunk.len() <= left => left -= chunk.len(),
                _ => return,
            }
        }
    }
}
