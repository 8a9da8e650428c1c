//! How a connection of the client is made: it is ready to be asked on when it is handed over.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustls::{ClientConnection, Stream};

use super::fault::Fault;
use super::{Target, tls};
use crate::speech::{Opening, Speech};
use crate::workload::Workload;

/// How long a connection may take to be made, its handshake included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection that was made.
pub(crate) struct Made {
    pub(crate) stream: TcpStream,
    pub(crate) session: Option<Box<ClientConnection>>,
    pub(crate) speech: Speech,
}

/// Connects, with the handshakes of TLS, of HTTP/2 and of WebSockets where they are wanted. `seed`
/// decides what differs from connection to connection.
pub(super) fn connect(target: &Target, workload: &Workload, seed: u64) -> Result<Made, Fault> {
    let prepare = || {
        let stream = TcpStream::connect_timeout(&target.address, CONNECT_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
        io::Result::Ok(stream)
    };
    let mut stream = prepare().map_err(|_| Fault::Connect)?;
    let mut session = match &target.tls {
        Some(config) => Some(tls::handshake(config, &mut stream).map_err(|_| Fault::Tls)?),
        None => None,
    };
    let opening = match workload {
        Workload { is_http2: true, .. } => Opening::Http2,
        Workload { is_websocket: true, request, .. } => Opening::WebSocket { request, seed },
        _ => Opening::Http1,
    };
    let speech = match &mut session {
        None => greet(&mut stream, opening)?,
        Some(session) if workload.is_http2 && session.alpn_protocol() != Some(tls::HTTP2) => {
            return Err(Fault::Tls);
        }
        Some(session) => greet(&mut Stream::new(session.as_mut(), &mut stream), opening)?,
    };
    stream.set_read_timeout(None).map_err(|_| Fault::Connect)?;
    Ok(Made { stream, session, speech })
}

/// Says what a client says first, and awaits what a server says first: over HTTP/2 its SETTINGS, in
/// which its limits are, and for a WebSocket that it takes the offer.
fn greet(stream: &mut (impl Read + Write), opening: Opening<'_>) -> Result<Speech, Fault> {
    let mut out = Vec::new();
    let mut speech = Speech::begin(opening, &mut out);
    let mut bytes = [0; 4096];
    loop {
        stream.write_all(&out).and_then(|()| stream.flush()).map_err(|_| Fault::Connect)?;
        if speech.is_ready() {
            return Ok(speech);
        }
        out.clear();
        match stream.read(&mut bytes) {
            Ok(0) => return Err(Fault::Connect),
            Ok(count) => speech.greet(&bytes[..count], &mut out)?,
            // The kernel may interrupt a read that has a timeout, for what a ring of this thread has done.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(Fault::Connect),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server's first words, which the kernel interrupts.
    struct Interrupted<'a>(Vec<&'a [u8]>);

    impl Read for Interrupted<'_> {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            match self.0.pop() {
                None => Ok(0),
                Some(b"") => Err(io::ErrorKind::Interrupted.into()),
                Some(piece) => {
                    bytes[..piece.len()].copy_from_slice(piece);
                    Ok(piece.len())
                }
            }
        }
    }

    impl Write for Interrupted<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_read_that_was_interrupted_is_made_again() {
        // SETTINGS without any, in two pieces: the last is read first.
        let mut server = Interrupted(vec![&[4, 0, 0, 0, 0, 0], b"", &[0, 0, 0], b""]);
        assert!(greet(&mut server, Opening::Http2).is_ok());
        assert!(greet(&mut Interrupted(vec![b""]), Opening::Http2).is_err(), "it ends");
    }
}
