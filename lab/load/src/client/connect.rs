//! How a connection of the client is made: it is ready to be asked on when it is handed over.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustls::{ClientConnection, Stream};

use super::fault::Fault;
use super::{Target, tls};
use crate::http2::Http2;

/// How long a connection may take to be made, its handshake included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection that was made.
pub(crate) struct Made {
    pub(crate) stream: TcpStream,
    pub(crate) session: Option<Box<ClientConnection>>,
    pub(crate) http2: Option<Box<Http2>>,
}

/// Connects, with the handshakes of TLS and of HTTP/2 where they are wanted.
pub(super) fn connect(target: &Target, is_http2: bool) -> Result<Made, Fault> {
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
    let http2 = match (is_http2, &mut session) {
        (false, _) => None,
        (true, None) => Some(greet(&mut stream)?),
        (true, Some(session)) if session.alpn_protocol() != Some(tls::HTTP2) => {
            return Err(Fault::Tls);
        }
        (true, Some(session)) => Some(greet(&mut Stream::new(session.as_mut(), &mut stream))?),
    };
    stream.set_read_timeout(None).map_err(|_| Fault::Connect)?;
    Ok(Made { stream, session, http2: http2.map(Box::new) })
}

/// Says what a client of HTTP/2 says first, and awaits the server's SETTINGS, in which its limits are.
fn greet(stream: &mut (impl Read + Write)) -> Result<Http2, Fault> {
    let mut out = Vec::new();
    let mut http2 = Http2::new(&mut out);
    let mut bytes = [0; 4096];
    loop {
        stream.write_all(&out).and_then(|()| stream.flush()).map_err(|_| Fault::Connect)?;
        if http2.is_ready() {
            return Ok(http2);
        }
        out.clear();
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => return Err(Fault::Connect),
            Ok(count) => http2.receive(&bytes[..count], &mut out, &mut |_, _| {})?,
        }
    }
}
