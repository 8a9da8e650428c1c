//! The TLS state of one connection.

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
    /// Where received records are decrypted. Received bytes are borrowed and read-only, and rustls
    /// decrypts in place, so they are copied once. The copy lives only as long as one call, so one
    /// buffer serves all sessions of a thread.
    static SCRATCH: Pool<Vec<u8>> = const { Pool::new(1) };
}

/// The TLS state of one connection; created by [`Tls::session`](crate::Tls::session).
///
/// Its two directions are independent. The server passes bytes from the peer to
/// [`Session::receive`], and data for the peer to [`Session::send`] and [`Session::close`]. All
/// three append to the caller's buffers; always send the bytes in `out`, in order, whatever the
/// result is.
///
/// Receiving only moves forward through these stages:
///
/// | stage | `receive` may lead to |
/// |---|---|
/// | opening: too few bytes to recognise the protocol | handshaking, open, rejected |
/// | handshaking | open, closed, rejected |
/// | open | closed, rejected |
/// | closed: the peer sent `close_notify` | - |
/// | rejected: the peer broke a rule | - |
///
/// Between requests a session owns no buffers, except for an incomplete record.
pub struct Session {
    stage: Stage,
    sending: Sending,
    /// Bytes received before the handshake was complete.
    handshake_bytes: usize,
    /// Unprocessed bytes: the beginning of a record or, already decrypted, of a handshake message
    /// that spans several records. Usually empty and unallocated.
    unread: Vec<u8>,
}

/// The state of the receiving side.
enum Stage {
    /// Too few bytes to recognise the protocol; fewer than 25.
    Opening(Arc<ServerConfig>),
    /// The same while challenges are pending; the first record decides.
    Examining(Box<Examined>),
    /// The peer speaks TLS.
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
    /// The hosts to check requests against, if configured.
    hosts: Option<Hosts>,
    /// When the client's certificate expires; used during the handshake.
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

    /// Processes all of `input`: appends the contained plaintext to `plain`, and bytes to send to
    /// `out`.
    ///
    /// However the same bytes are cut, the plaintext is the same. `plain` never grows by more than
    /// the bytes received and not yet processed, so the caller limits it by the size of `input`.
    ///
    /// # Errors
    ///
    /// A [`Reject`] ends the session: send `out` and close the connection. Plaintext that arrived
    /// before the violation is in `plain`. Further calls return the same error.
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

    /// Encrypts `plain` into records of at most 16 KiB and appends them to `out`. Each call starts
    /// a new record, so the caller should batch small writes.
    ///
    /// # Errors
    ///
    /// A [`SendError`] if the session cannot send.
    pub fn send(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), SendError> {
        let sent = self.with_traffic(out, |traffic, out| match encrypt(traffic, plain, out) {
            Ok(()) => Ok(()),
            Err(error) => {
                // Appends the close_notify that rustls has prepared.
                close_notify(traffic, out);
                Err(error)
            }
        });
        if sent == Err(SendError::KeysExhausted) {
            self.sending = Sending::Closed;
        }
        sent
    }

    /// Appends a `close_notify` to `out`: nothing more will be sent. Receiving is still possible.
    /// Appends nothing before the handshake is complete, after an error, or when called again.
    // RFC 8446 §6.1: each party MUST send a "close_notify" before closing its write side, unless it
    // has already sent some error alert.
    pub fn close(&mut self, out: &mut Vec<u8>) {
        // On an error the close_notify cannot be sent, which is not an error for the caller.
        let _ = self.with_traffic(out, |traffic, out| {
            close_notify(traffic, out);
            Ok(())
        });
        self.sending = Sending::Closed;
    }

    /// The number of bytes buffered for an incomplete record or handshake message.
    #[inline]
    #[must_use]
    pub fn unread_bytes(&self) -> usize {
        self.unread.len()
    }

    /// The negotiated parameters; `None` before the handshake is complete and after a [`Reject`].
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

    /// The client's identity, if it presented a certificate in this handshake or in that of the
    /// session it resumed; `None` before the handshake is complete. The certificate is parsed on
    /// each call.
    pub fn client(&self) -> Option<Identity> {
        match &self.stage {
            Stage::Live(Received::Open | Received::Closed, connection) => {
                identity::read(connection.engine.peer_certificates()?)
            }
            _ => None,
        }
    }

    /// The hosts that the certificate is valid for, if requests for other hosts are rejected.
    #[inline]
    pub fn hosts(&mut self) -> Option<&mut Hosts> {
        match &mut self.stage {
            Stage::Live(_, connection) => connection.hosts.as_mut(),
            Stage::Opening(_) | Stage::Examining(_) | Stage::Rejected(_) => None,
        }
    }

    /// Returns whether the handshake waits for the lookup of another instance's ACME challenge. If
    /// so, [`Session::poll_look`] reports when to continue.
    #[inline]
    pub fn is_looking(&self) -> bool {
        matches!(&self.stage, Stage::Examining(examined) if examined.is_looking())
    }

    /// Ready when the handshake is not waiting. [`Session::receive`] then continues, even without
    /// new bytes.
    pub fn poll_look(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.stage {
            Stage::Examining(examined) => examined.poll_look(context),
            _ => Poll::Ready(()),
        }
    }

    /// Recognises the protocol by the first bytes, and processes those of a TLS connection.
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
            // During the lookup, the peer has nothing to send.
            Opening::Tls if first.len() > HANDSHAKE_BYTES_MAX && config.is_none() => {
                Err(self.reject(Reject::HandshakeTooLong))
            }
            Opening::Unsure => Ok(self.put_aside(input)),
            Opening::Tls => {
                let Some(config) = config else { return Ok(self.put_aside(input)) };
                let engine = UnbufferedServerConnection::new(config)
                    .expect("the configuration was checked to create connections");
                let connection =
                    Connection { engine, server_name: None, hosts: None, client_until: None };
                self.stage = Stage::Live(Received::Handshaking, Box::new(connection));
                // The first byte is enough to recognise TLS, so nothing was buffered before, except
                // while the first record was inspected.
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

    /// Buffers `input` until more bytes arrive.
    fn put_aside(&mut self, input: &[u8]) -> Received {
        if self.unread.is_empty() {
            self.unread.extend_from_slice(input);
        }
        Received::Handshaking
    }

    /// Processes bytes of a TLS connection: copies them to a mutable buffer, and keeps the
    /// unprocessed rest.
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
                // Copying the rest frees the memory of the processed part.
                Ok((used, Received::Handshaking | Received::Open)) => {
                    self.unread = bytes[used..].to_vec();
                }
                Ok((_, Received::Closed)) | Err(_) => {}
            }
            self.check_limits(result)
        }
    }

    /// Rejects a peer whose handshake or incomplete handshake message is too long.
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

    /// Lets rustls process `bytes` until it needs more. Returns how many were consumed.
    fn process(
        &mut self,
        bytes: &mut [u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(usize, Received), Reject> {
        let Stage::Live(received, connection) = &mut self.stage else {
            unreachable!("only a live session processes bytes");
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
                // The only remaining state is `Closed`, because early data is never accepted.
                Ok(_) => break None,
                Err(error) => break Some(error),
            }
            used += discard;
            // Data does not change the state, so there is no need to call rustls again after the
            // last of it.
            if is_data && used == bytes.len() && !connection.engine.wants_write() {
                break None;
            }
        };
        if *received == Received::Handshaking {
            // Take the choice even after an error, so that it is not attributed to another session.
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
            // RFC 8737 §3: a validation connection carries only its handshake.
            Received::Closed
        } else {
            Received::Open
        };
        Ok((used, *received))
    }

    /// Ends the session and frees its memory.
    fn reject(&mut self, reject: Reject) -> Reject {
        self.unread = Vec::new();
        self.sending = Sending::Closed;
        self.stage = Stage::Rejected(Box::new(reject.clone()));
        reject
    }

    /// Calls `act` with the encrypting state, after appending all pending output to `out`.
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
            // rustls remembers positions in the unprocessed bytes, so it must see them here. It
            // finds nothing new in them.
            match connection.engine.process_tls_records(&mut self.unread).state {
                Ok(ConnectionState::WriteTraffic(mut traffic)) => return act(&mut traffic, out),
                Ok(ConnectionState::EncodeTlsData(mut data)) => encode(&mut data, out),
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(_) => return Err(SendError::Closed),
                // The buffered bytes were processed when they arrived, so this does not happen. If
                // it did, continuing would make rustls process the same bytes twice.
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

/// Whether these are the first bytes of an application data record, of which rustls could only wait
/// for the rest. They stay here without being copied; anything unusual is passed to rustls.
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
