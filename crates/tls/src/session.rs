//! One connection's TLS.

use crate::facts::{Facts, Identity, Received, Version};
use crate::hosts::Hosts;
use crate::identity;
use crate::limits::{HANDSHAKE_BYTES_MAX, RECORD_CIPHER_BYTES_MAX};
use crate::opening::{self, Opening};
use crate::records::{Traffic, close_notify, encode, encrypt, fetch_alerts};
use crate::reject::{PLAIN_HTTP_REPLY, Reject, SendError};
use crate::{challenge, choice, until};
use challenge::{Challenges, Examined};
use peregrine_slot::Pool;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::ConnectionState;
use rustls::{HandshakeKind, ProtocolVersion, ServerConfig};
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

thread_local! {
    /// Where received records are decrypted. Received bytes are on loan and read only, and rustls
    /// decrypts in place, so they are copied once. The copy lives as long as one call, so one buffer
    /// serves all sessions of a thread.
    static SCRATCH: Pool<Vec<u8>> = const { Pool::new(1) };
}

/// One connection's TLS state; made by [`Tls::session`](crate::Tls::session).
///
/// Its two directions are independent. The server gives what the peer sent to [`Session::receive`], and
/// what it wants to say to [`Session::send`] and [`Session::close`]. All three append to the caller's
/// buffers; send the bytes in `out` in their order, whatever the result says.
///
/// Receiving moves through these stages and never back:
///
/// | stage | `receive` may lead to |
/// |---|---|
/// | opening: too few bytes to tell the protocol | handshaking, open, rejected |
/// | handshaking | open, closed, rejected |
/// | open | closed, rejected |
/// | closed: the peer sent `close_notify` | - |
/// | rejected: the peer broke a rule | - |
///
/// A session between requests owns no buffers: only an incomplete record is held, until it is complete.
pub struct Session {
    stage: Stage,
    sending: Sending,
    /// Bytes received before the handshake was complete.
    handshake_bytes: usize,
    /// Received bytes that were not used yet: the beginning of a record or, decrypted already, of a
    /// handshake message that takes several records. Empty, and without memory, most of the time.
    unread: Vec<u8>,
}

/// What is known about the receiving side.
enum Stage {
    /// Too few bytes came to tell the protocol; there are fewer than 25 of them.
    Opening(Arc<ServerConfig>),
    /// The same while somebody may come to check a name, which the first record tells.
    Examining(Box<Examined>),
    /// The peer speaks TLS, and got as far as this.
    Live(Received, Box<Connection>),
    /// The peer broke a rule.
    Rejected(Box<Reject>),
}

/// Whether this side may still send.
#[derive(Clone, Copy, PartialEq)]
enum Sending {
    Open,
    Closed,
}

struct Connection {
    engine: UnbufferedServerConnection,
    server_name: Option<Box<str>>,
    /// The hosts to compare requests with, if that is asked for.
    hosts: Option<Hosts>,
    /// Until when the client's certificate is valid, while the handshake goes on.
    client_until: Option<u64>,
}

impl Session {
    pub(crate) fn new(config: Arc<ServerConfig>) -> Self {
        Self::at(Stage::Opening(config))
    }

    pub(crate) fn examining(usual: Arc<ServerConfig>, challenges: Arc<Challenges>) -> Self {
        Self::at(Stage::Examining(Box::new(Examined::new(usual, challenges))))
    }

    fn at(stage: Stage) -> Self {
        Self { stage, sending: Sending::Open, handshake_bytes: 0, unread: Vec::new() }
    }

    /// Takes all of `input`; appends the plaintext in it to `plain`, and bytes to send to `out`.
    ///
    /// Any cut of the same bytes gives the same plaintext. `plain` never grows by more than the bytes
    /// received and not yet used, so the caller bounds it by what it passes in.
    ///
    /// # Errors
    ///
    /// A [`Reject`] ends the session: send `out` and close the connection. Plaintext that arrived
    /// before the offence is in `plain`. Further calls give the same error.
    pub fn receive(
        &mut self,
        input: &[u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Received, Reject> {
        match &self.stage {
            Stage::Opening(_) | Stage::Examining(_) => self.open(input, plain, out),
            // RFC 8446 §6.1: data received after a closure alert MUST be ignored.
            Stage::Live(Received::Closed, _) => Ok(Received::Closed),
            Stage::Live(..) => self.take(input, plain, out),
            Stage::Rejected(reject) => Err(reject.as_ref().clone()),
        }
    }

    /// Encrypts `plain` into records of at most 16 KiB and appends them to `out`. Every call begins a
    /// new record, so the caller should gather small pieces.
    ///
    /// # Errors
    ///
    /// A [`SendError`] if the session cannot send.
    pub fn send(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), SendError> {
        let sent = self.with_traffic(out, |traffic, out| match encrypt(traffic, plain, out) {
            Ok(()) => Ok(()),
            Err(error) => {
                // The engine has made a close_notify, which this call fetches.
                close_notify(traffic, out);
                Err(error)
            }
        });
        if sent == Err(SendError::KeysExhausted) {
            self.sending = Sending::Closed;
        }
        sent
    }

    /// Tells the peer that nothing more will be sent, by a `close_notify` appended to `out`. Receiving
    /// is still possible. Appends nothing without a complete handshake, after an error, or a second
    /// time.
    // RFC 8446 §6.1: each party MUST send a "close_notify" before closing its write side, unless it
    // has already sent some error alert.
    pub fn close(&mut self, out: &mut Vec<u8>) {
        // An error says that there is nobody to tell, so a close can ignore it.
        let _ = self.with_traffic(out, |traffic, out| {
            close_notify(traffic, out);
            Ok(())
        });
        self.sending = Sending::Closed;
    }

    /// Bytes that came of a record that is not complete, or of several that are one message of a handshake.
    #[inline]
    #[must_use]
    pub fn unread_bytes(&self) -> usize {
        self.unread.len()
    }

    /// What the handshake agreed on; `None` before it is complete and after a [`Reject`].
    pub fn facts(&self) -> Option<Facts<'_>> {
        let Stage::Live(Received::Open | Received::Closed, connection) = &self.stage else {
            return None;
        };
        let engine = &connection.engine;
        let version = match engine.protocol_version()? {
            ProtocolVersion::TLSv1_3 => Version::Tls13,
            _ => Version::Tls12,
        };
        Some(Facts {
            version,
            cipher_suite: engine.negotiated_cipher_suite()?.suite().as_str()?,
            server_name: connection.server_name.as_deref(),
            alpn: engine.alpn_protocol(),
            resumed: engine.handshake_kind() == Some(HandshakeKind::Resumed),
        })
    }

    /// Who the client is, if it has shown a certificate, in this handshake or in the one of the session
    /// that it resumed; `None` before the handshake is complete. It is read anew with each call.
    pub fn client(&self) -> Option<Identity> {
        match &self.stage {
            Stage::Live(Received::Open | Received::Closed, connection) => {
                identity::read(connection.engine.peer_certificates()?)
            }
            _ => None,
        }
    }

    /// The hosts that the certificate names, if requests for others are refused.
    #[inline]
    pub fn hosts(&mut self) -> Option<&mut Hosts> {
        match &mut self.stage {
            Stage::Live(_, connection) => connection.hosts.as_mut(),
            Stage::Opening(_) | Stage::Examining(_) | Stage::Rejected(_) => None,
        }
    }

    /// Does the handshake wait until it is known whether another instance answers who checks this name? Then
    /// [`Session::poll_look`] says when to go on.
    #[inline]
    pub fn is_looking(&self) -> bool {
        matches!(&self.stage, Stage::Examining(examined) if examined.is_looking())
    }

    /// Ready when the handshake need not wait, or no longer: [`Session::receive`] goes on then, without new bytes too.
    pub fn poll_look(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.stage {
            Stage::Examining(examined) => examined.poll_look(context),
            _ => Poll::Ready(()),
        }
    }

    /// Recognises the protocol by the first bytes, and takes those of a TLS connection.
    fn open(
        &mut self,
        input: &[u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Received, Reject> {
        if !self.unread.is_empty() {
            self.unread.extend_from_slice(input);
        }
        let first = if self.unread.is_empty() { input } else { &self.unread };
        let judgement = opening::judge(first);
        let config = match &mut self.stage {
            Stage::Opening(config) => Some(Arc::clone(config)),
            Stage::Examining(examined) if judgement == Opening::Tls => examined.config(first),
            _ => None,
        };
        match judgement {
            // While something is looked up, the peer has nothing to say.
            Opening::Tls if first.len() > HANDSHAKE_BYTES_MAX && config.is_none() => {
                Err(self.reject(Reject::HandshakeTooLong))
            }
            Opening::Unsure => Ok(self.put_aside(input)),
            Opening::Tls => {
                let Some(config) = config else { return Ok(self.put_aside(input)) };
                let engine = UnbufferedServerConnection::new(config)
                    .expect("the configuration made a connection before");
                let connection =
                    Connection { engine, server_name: None, hosts: None, client_until: None };
                self.stage = Stage::Live(Received::Handshaking, Box::new(connection));
                // The first byte alone says that it is TLS, so nothing was put aside before, unless more
                // was looked at.
                if self.unread.is_empty() {
                    return self.take(input, plain, out);
                }
                let whole = std::mem::take(&mut self.unread);
                self.take(&whole, plain, out)
            }
            Opening::PlainHttp => {
                out.extend_from_slice(PLAIN_HTTP_REPLY);
                Err(self.reject(Reject::PlainHttp))
            }
            Opening::Unknown => {
                out.extend_from_slice(UNEXPECTED_MESSAGE_ALERT);
                Err(self.reject(Reject::NotTls))
            }
        }
    }

    /// Keeps what came until more has come.
    fn put_aside(&mut self, input: &[u8]) -> Received {
        if self.unread.is_empty() {
            self.unread.extend_from_slice(input);
        }
        Received::Handshaking
    }

    /// Takes bytes of a TLS connection: puts them where they can be changed, and keeps what is left.
    fn take(
        &mut self,
        input: &[u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Received, Reject> {
        let is_open = matches!(self.stage, Stage::Live(Received::Open, _));
        if !is_open {
            self.handshake_bytes += input.len();
        }
        if self.unread.is_empty() {
            if is_open && is_incomplete_record(input) {
                self.unread = input.to_vec();
                return Ok(Received::Open);
            }
            let mut bytes = Pool::take_local(&SCRATCH);
            bytes.extend_from_slice(input);
            let result = self.process(&mut bytes, plain, out);
            if let Ok((used, Received::Handshaking | Received::Open)) = result {
                self.unread = bytes[used..].to_vec();
            }
            Pool::give_local(&SCRATCH, bytes);
            self.check_limits(result)
        } else {
            self.unread.extend_from_slice(input);
            if is_open && is_incomplete_record(&self.unread) {
                return Ok(Received::Open);
            }
            let mut bytes = std::mem::take(&mut self.unread);
            let result = self.process(&mut bytes, plain, out);
            match result {
                Ok((0, _)) => self.unread = bytes,
                // Copying what is left frees the memory of the rest.
                Ok((used, Received::Handshaking | Received::Open)) => {
                    self.unread = bytes[used..].to_vec();
                }
                Ok((_, Received::Closed)) | Err(_) => {}
            }
            self.check_limits(result)
        }
    }

    /// Rejects a peer whose handshake, or unfinished handshake message, is too long.
    fn check_limits(
        &mut self,
        result: Result<(usize, Received), Reject>,
    ) -> Result<Received, Reject> {
        let (_, received) = result?;
        let handshake_bytes = match received {
            Received::Handshaking => self.handshake_bytes,
            Received::Open => self.unread.len(),
            Received::Closed => 0,
        };
        if handshake_bytes > HANDSHAKE_BYTES_MAX {
            return Err(self.reject(Reject::HandshakeTooLong));
        }
        Ok(received)
    }

    /// Lets rustls work on `bytes` until it needs more. Returns how many of them were used.
    fn process(
        &mut self,
        bytes: &mut [u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(usize, Received), Reject> {
        let Stage::Live(received, connection) = &mut self.stage else {
            unreachable!("only a live session is given bytes");
        };
        if *received == Received::Handshaking {
            until::set(connection.client_until);
        }
        let mut used = 0;
        let mut is_closed = false;
        let failure = loop {
            let mut is_data = false;
            let status = connection.engine.process_tls_records(&mut bytes[used..]);
            let mut discard = status.discard;
            match status.state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    is_data = true;
                    while let Some(Ok(record)) = traffic.next_record() {
                        plain.extend_from_slice(record.payload);
                        discard += record.discard;
                    }
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => encode(&mut data, out),
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::PeerClosed) => is_closed = true,
                Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => {
                    used += discard;
                    break None;
                }
                // The only state left is `Closed`, as early data is never accepted.
                Ok(_) => break None,
                Err(error) => break Some(error),
            }
            used += discard;
            // Data changes no state, so rustls need not be asked again after the last of it.
            if is_data && used == bytes.len() && !connection.engine.wants_write() {
                break None;
            }
        };
        if *received == Received::Handshaking {
            // The choice is taken after a failure too, so that it is not mistaken for another
            // session's.
            if let Some(choice) = choice::take() {
                connection.server_name = choice.server_name;
                connection.hosts = choice.certificate.map(Hosts::new);
            }
            connection.client_until = until::get();
        }
        if let Some(error) = failure {
            fetch_alerts(&mut connection.engine, out);
            return Err(self.reject(Reject::from(error)));
        }
        *received = if is_closed {
            Received::Closed
        } else if connection.engine.is_handshaking() {
            Received::Handshaking
        } else if *received == Received::Handshaking
            && connection.engine.alpn_protocol() == Some(challenge::ACME_TLS)
        {
            // RFC 8737 §3: nothing is said on this connection but its handshake.
            Received::Closed
        } else {
            Received::Open
        };
        Ok((used, *received))
    }

    /// Ends the session and frees what it holds.
    fn reject(&mut self, reject: Reject) -> Reject {
        self.unread = Vec::new();
        self.sending = Sending::Closed;
        self.stage = Stage::Rejected(Box::new(reject.clone()));
        reject
    }

    /// Calls `act` with the state that can encrypt, once everything made before is in `out`.
    fn with_traffic(
        &mut self,
        out: &mut Vec<u8>,
        act: impl FnOnce(&mut Traffic<'_>, &mut Vec<u8>) -> Result<(), SendError>,
    ) -> Result<(), SendError> {
        if self.sending == Sending::Closed {
            return Err(SendError::Closed);
        }
        let connection = match &mut self.stage {
            Stage::Opening(_) | Stage::Examining(_) | Stage::Live(Received::Handshaking, _) => {
                return Err(SendError::Handshaking);
            }
            Stage::Live(Received::Open | Received::Closed, connection) => connection,
            Stage::Rejected(_) => return Err(SendError::Closed),
        };
        loop {
            // rustls remembers positions in the bytes that are not used yet, so it must see them
            // here. It finds nothing in them that it did not find before.
            match connection.engine.process_tls_records(&mut self.unread).state {
                Ok(ConnectionState::WriteTraffic(mut traffic)) => return act(&mut traffic, out),
                Ok(ConnectionState::EncodeTlsData(mut data)) => encode(&mut data, out),
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(_) => return Err(SendError::Closed),
                // The waiting bytes were looked at when they came, so this does not happen; if it did,
                // going on would make rustls judge the same bytes twice.
                Err(error) => {
                    fetch_alerts(&mut connection.engine, out);
                    self.reject(Reject::from(error));
                    return Err(SendError::Closed);
                }
            }
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage: &dyn fmt::Debug = match &self.stage {
            Stage::Opening(_) | Stage::Examining(_) => &"Opening",
            Stage::Live(received, _) => received,
            Stage::Rejected(reject) => reject,
        };
        f.debug_struct("Session")
            .field("stage", stage)
            .field("unread_bytes", &self.unread.len())
            .finish_non_exhaustive()
    }
}

/// The content type of application data.
const APPLICATION_DATA: u8 = 23;

/// A fatal alert in clear text.
const UNEXPECTED_MESSAGE_ALERT: &[u8] = &[21, 3, 3, 0, 2, 2, 10];

/// Whether these are the first bytes of a record of application data, with which rustls could only
/// wait. They wait here uncopied; anything unusual is left to rustls.
fn is_incomplete_record(bytes: &[u8]) -> bool {
    match *bytes {
        [] | [APPLICATION_DATA] => true,
        [APPLICATION_DATA, 3] | [APPLICATION_DATA, 3, _] | [APPLICATION_DATA, 3, _, _] => true,
        [APPLICATION_DATA, 3, _, high, low, ref payload @ ..] => {
            let length = usize::from(u16::from_be_bytes([high, low]));
            length <= RECORD_CIPHER_BYTES_MAX && payload.len() < length
        }
        _ => false,
    }
}
