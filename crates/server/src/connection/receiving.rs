//! What comes from the peer of a busy connection.

use super::session::Session;
use super::{Connection, Event};
use peregrine_driver::{Driver, Stream};
use peregrine_tls::Reject as TlsReject;
use std::task::{Context, Poll, ready};

impl<D: Driver> Connection<D> {
    /// Waits for bytes, or for the peer's end, unless that has come.
    pub(super) fn poll_bytes(
        &mut self,
        session: &mut Session<D>,
        context: &mut Context<'_>,
    ) -> Poll<Event> {
        if session.io.reader.is_ended(&self.stage) {
            return Poll::Pending;
        }
        Poll::Ready(match ready!(self.stream.poll_recv(context)) {
            Ok(chunk) if chunk.is_empty() => {
                session.io.reader.end();
                Event::Woken
            }
            Ok(chunk) => match self.take(session, chunk) {
                Ok(()) => Event::Woken,
                Err(reject) => Event::NoTls(reject),
            },
            Err(error) => Event::Broken(error.kind()),
        })
    }

    /// Takes what the driver received.
    ///
    /// # Errors
    /// The bytes are no TLS.
    pub(super) fn take(
        &mut self,
        session: &mut Session<D>,
        chunk: <D::Stream as Stream>::Chunk,
    ) -> Result<(), TlsReject> {
        let io = &mut session.io;
        self.worker.observed.receive(chunk.len());
        io.reader.take(chunk, &mut self.stage, &mut io.writer.records)
    }
}
