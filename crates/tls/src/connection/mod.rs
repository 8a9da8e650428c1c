//! The TLS state of one connection.

mod receive;

use crate::certificate_names::CertificateNames;
use crate::challenge::{ChallengeDetector, ChallengeResponses};
use crate::connection_error::{TlsConnectionError, TlsSendError};
use crate::handshake_info::{HandshakeInfo, PeerCertificate, TlsReadState, TlsVersion};
use crate::peer_certificate;
use crate::records::{
    Traffic, append_alerts, append_close_notify, append_encrypted, append_handshake,
};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::ConnectionState;
use rustls::{HandshakeKind, ProtocolVersion, ServerConfig};
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The TLS state of one connection; created by
/// [`TlsConfig::new_connection`](crate::TlsConfig::new_connection).
///
/// Its two directions are independent. The server passes bytes from the peer to
/// [`TlsConnection::receive`], and data for the peer to [`TlsConnection::send`] and
/// [`TlsConnection::close`]. All three append to the caller's buffers; always send the bytes in
/// `out`, in order, whatever the result is.
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
/// Between requests a connection owns no buffers, except for an incomplete record.
#[doc(alias = "ServerConnection")]
#[doc(alias = "TlsSession")]
pub struct TlsConnection {
    stage: ReceiveStage,
    write_state: WriteState,
    /// Bytes received before the handshake was complete.
    handshake_bytes: usize,
    /// Unprocessed bytes: the beginning of a record or, already decrypted, of a handshake message
    /// that spans several records. Usually empty and unallocated.
    incoming: Vec<u8>,
}

/// The stage of the receiving side.
enum ReceiveStage {
    /// Too few bytes to recognise the protocol; fewer than 25.
    Sniffing(Arc<ServerConfig>),
    /// The same while challenges are pending; the first record decides which configuration is used.
    DetectingChallenge(Box<ChallengeDetector>),
    /// The peer speaks TLS.
    Active(TlsReadState, Box<ActiveConnection>),
    /// The peer broke a rule.
    Failed(Box<TlsConnectionError>),
}

/// Whether this side may still send.
#[derive(Clone, Copy, PartialEq)]
enum WriteState {
    Open,
    Closed,
}

struct ActiveConnection {
    rustls: UnbufferedServerConnection,
    server_name: Option<Box<str>>,
    /// The hosts to check requests against, if configured.
    certificate_names: Option<CertificateNames>,
    /// When the client's certificate expires; used during the handshake.
    client_not_after: Option<u64>,
}

impl TlsConnection {
    pub(crate) fn new(config: Arc<ServerConfig>) -> Self {
        Self::with_state(ReceiveStage::Sniffing(config))
    }

    pub(crate) fn with_challenges(
        client_config: Arc<ServerConfig>,
        challenges: Arc<ChallengeResponses>,
    ) -> Self {
        Self::with_state(ReceiveStage::DetectingChallenge(Box::new(ChallengeDetector::new(
            client_config,
            challenges,
        ))))
    }

    fn with_state(stage: ReceiveStage) -> Self {
        Self { stage, write_state: WriteState::Open, handshake_bytes: 0, incoming: Vec::new() }
    }

    /// Processes all of `input`: appends the contained plaintext to `plain`, and bytes to send to
    /// `out`.
    ///
    /// The plaintext does not depend on how the bytes are split between calls. `plain` never grows
    /// by more than the bytes received and not yet processed, so the caller limits it by the size
    /// of `input`.
    ///
    /// # Errors
    ///
    /// A [`TlsConnectionError`] ends the TLS connection: send `out` and close the socket. Plaintext
    /// that arrived before the violation is in `plain`. Further calls return the same error.
    pub fn receive(
        &mut self,
        input: &[u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<TlsReadState, TlsConnectionError> {
        match &self.stage {
            ReceiveStage::Sniffing(_) | ReceiveStage::DetectingChallenge(_) => {
                self.detect_protocol(input, plain, out)
            }
            // RFC 8446 §6.1: data received after a closure alert MUST be ignored.
            ReceiveStage::Active(TlsReadState::PeerClosed, _) => Ok(TlsReadState::PeerClosed),
            ReceiveStage::Active(..) => self.process_input(input, plain, out),
            ReceiveStage::Failed(error) => Err(error.as_ref().clone()),
        }
    }

    /// Encrypts `plain` into records of at most 16 KiB and appends them to `out`. Each call starts
    /// a new record, so the caller should batch small writes.
    ///
    /// # Errors
    ///
    /// A [`TlsSendError`] if the connection cannot send.
    pub fn send(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), TlsSendError> {
        let result =
            self.with_traffic(out, |traffic, out| match append_encrypted(traffic, plain, out) {
                Ok(()) => Ok(()),
                Err(error) => {
                    // Appends the close_notify that rustls has prepared.
                    append_close_notify(traffic, out);
                    Err(error)
                }
            });
        if result == Err(TlsSendError::KeysExhausted) {
            self.write_state = WriteState::Closed;
        }
        result
    }

    /// Appends a `close_notify` to `out` and closes the sending side; receiving is still possible.
    /// Appends nothing before the handshake is complete, after an error, or when called again.
    // RFC 8446 §6.1: each party MUST send a "close_notify" before closing its write side, unless it
    // has already sent some error alert.
    pub fn close(&mut self, out: &mut Vec<u8>) {
        // On an error the close_notify cannot be sent, which is not an error for the caller.
        let _ = self.with_traffic(out, |traffic, out| {
            append_close_notify(traffic, out);
            Ok(())
        });
        self.write_state = WriteState::Closed;
    }

    /// The number of bytes buffered for an incomplete record or handshake message.
    #[inline]
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.incoming.len()
    }

    /// The negotiated parameters; `None` before the handshake is complete and after a
    /// [`TlsConnectionError`].
    pub fn handshake_info(&self) -> Option<HandshakeInfo<'_>> {
        let ReceiveStage::Active(TlsReadState::Established | TlsReadState::PeerClosed, connection) =
            &self.stage
        else {
            return None;
        };
        let engine = &connection.rustls;
        let version = match engine.protocol_version()? {
            ProtocolVersion::TLSv1_3 => TlsVersion::Tls13,
            _ => TlsVersion::Tls12,
        };
        Some(HandshakeInfo {
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
    pub fn peer_certificate(&self) -> Option<PeerCertificate> {
        match &self.stage {
            ReceiveStage::Active(
                TlsReadState::Established | TlsReadState::PeerClosed,
                connection,
            ) => peer_certificate::parse(connection.rustls.peer_certificates()?),
            _ => None,
        }
    }

    /// The hosts that the certificate is valid for, if requests for other hosts are rejected.
    #[inline]
    pub fn certificate_names(&mut self) -> Option<&mut CertificateNames> {
        match &mut self.stage {
            ReceiveStage::Active(_, connection) => connection.certificate_names.as_mut(),
            ReceiveStage::Sniffing(_)
            | ReceiveStage::DetectingChallenge(_)
            | ReceiveStage::Failed(_) => None,
        }
    }

    /// Returns whether the handshake waits for the lookup of another instance's ACME challenge. If
    /// so, [`TlsConnection::poll_lookup`] reports when to continue.
    #[inline]
    pub fn is_lookup_pending(&self) -> bool {
        matches!(&self.stage, ReceiveStage::DetectingChallenge(detector) if detector.is_lookup_pending())
    }

    /// Ready when the handshake is not waiting for a lookup. [`TlsConnection::receive`] then
    /// continues, even without new bytes.
    pub fn poll_lookup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.stage {
            ReceiveStage::DetectingChallenge(detector) => detector.poll_lookup(cx),
            _ => Poll::Ready(()),
        }
    }

    /// Ends the connection and frees its memory.
    fn fail(&mut self, error: TlsConnectionError) -> TlsConnectionError {
        self.incoming = Vec::new();
        self.write_state = WriteState::Closed;
        self.stage = ReceiveStage::Failed(Box::new(error.clone()));
        error
    }

    /// Calls `encrypt` with the encrypting state, after appending all pending output to `out`.
    fn with_traffic(
        &mut self,
        out: &mut Vec<u8>,
        encrypt: impl FnOnce(&mut Traffic<'_>, &mut Vec<u8>) -> Result<(), TlsSendError>,
    ) -> Result<(), TlsSendError> {
        if self.write_state == WriteState::Closed {
            return Err(TlsSendError::Closed);
        }
        let connection = match &mut self.stage {
            ReceiveStage::Sniffing(_)
            | ReceiveStage::DetectingChallenge(_)
            | ReceiveStage::Active(TlsReadState::Handshaking, _) => {
                return Err(TlsSendError::Handshaking);
            }
            ReceiveStage::Active(
                TlsReadState::Established | TlsReadState::PeerClosed,
                connection,
            ) => connection,
            ReceiveStage::Failed(_) => return Err(TlsSendError::Closed),
        };
        loop {
            // rustls remembers positions in the unprocessed bytes, so it must see them here. It
            // finds nothing new in them.
            match connection.rustls.process_tls_records(&mut self.incoming).state {
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    return encrypt(&mut traffic, out);
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => append_handshake(&mut data, out),
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(_) => return Err(TlsSendError::Closed),
                // The buffered bytes were processed when they arrived, so this does not happen. If
                // it did, continuing would make rustls process the same bytes twice.
                Err(error) => {
                    append_alerts(&mut connection.rustls, out);
                    self.fail(TlsConnectionError::from(error));
                    return Err(TlsSendError::Closed);
                }
            }
        }
    }
}

impl fmt::Debug for TlsConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage: &dyn fmt::Debug = match &self.stage {
            ReceiveStage::Sniffing(_) | ReceiveStage::DetectingChallenge(_) => &"Opening",
            ReceiveStage::Active(read_state, _) => read_state,
            ReceiveStage::Failed(error) => error,
        };
        f.debug_struct("TlsConnection")
            .field("stage", stage)
            .field("unread_bytes", &self.incoming.len())
            .finish_non_exhaustive()
    }
}
