//! The layer between the driver and the protocol: TLS, or nothing on a plain connection.

use peregrine_tls::{
    CertificateNames, PeerCertificate, TlsConnection, TlsConnectionError, TlsReadState, TlsVersion,
};
use peregrine_web::connection::{ClientIdentity, TlsInfo};
use peregrine_web::memory::MemoryReservation;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, UNIX_EPOCH};

/// The approximate memory of a TLS session, during and after its handshake.
const TLS_HANDSHAKE_BYTES: usize = 24 * 1024;
const TLS_SESSION_BYTES: usize = 8 * 1024;

/// The transport of a connection.
pub(crate) enum Transport {
    Plain,
    Tls(Box<TlsState>),
}

/// A TLS session and its state.
pub(crate) struct TlsState {
    pub(crate) session: TlsConnection,
    pub(crate) read_state: TlsReadState,
    reservation: MemoryReservation,
}

impl Transport {
    pub(crate) fn new(session: Option<TlsConnection>) -> Self {
        match session {
            None => Self::Plain,
            Some(session) => {
                let read_state = TlsReadState::Handshaking;
                let reservation = MemoryReservation::new(TLS_HANDSHAKE_BYTES);
                Self::Tls(Box::new(TlsState { session, read_state, reservation }))
            }
        }
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.read_state == TlsReadState::Handshaking)
    }

    /// Returns whether the handshake is waiting for an ACME challenge to be looked up.
    pub(crate) fn is_lookup_pending(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.session.is_lookup_pending())
    }

    /// Ready when no lookup of an ACME challenge is pending.
    pub(crate) fn poll_lookup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Plain => Poll::Ready(()),
            Self::Tls(tls) => tls.session.poll_lookup(cx),
        }
    }

    /// Returns whether the handshake agreed on HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        let Self::Tls(tls) = self else { return false };
        tls.session.handshake_info().is_some_and(|info| info.alpn == Some(b"h2"))
    }

    /// The number of received bytes of an incomplete record; 0 during the handshake.
    pub(crate) fn partial_record_bytes(&self) -> u64 {
        match self {
            Self::Plain => 0,
            Self::Tls(tls) => tls.partial_record_bytes(),
        }
    }

    /// Returns whether the peer has closed its sending side at the TLS level.
    pub(crate) fn is_read_closed(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.read_state == TlsReadState::PeerClosed)
    }

    /// The hosts that the certificate covers, if requests for other hosts must be rejected.
    #[inline]
    pub(crate) fn allowed_hosts(&mut self) -> Option<&mut CertificateNames> {
        match self {
            Self::Plain => None,
            Self::Tls(tls) => tls.session.certificate_names(),
        }
    }

    /// The result of the handshake.
    pub(crate) fn tls_info(&self) -> Option<TlsInfo> {
        let Self::Tls(tls) = self else { return None };
        let handshake = tls.session.handshake_info()?;
        Some(TlsInfo {
            version: match handshake.version {
                TlsVersion::Tls12 => "TLSv1.2",
                TlsVersion::Tls13 => "TLSv1.3",
            },
            cipher_suite: handshake.cipher_suite,
            server_name: handshake.server_name.map(str::to_owned),
            alpn_protocol: handshake.alpn.map(<[u8]>::to_vec),
            resumed: handshake.resumed,
            client_identity: tls
                .session
                .peer_certificate()
                .map(|certificate| Arc::new(to_client_identity(certificate))),
        })
    }
}

/// Converts the certificate of a client to the type that handlers use.
fn to_client_identity(certificate: PeerCertificate) -> ClientIdentity {
    let seconds = u64::try_from(certificate.not_after).unwrap_or(0);
    ClientIdentity {
        subject: certificate.subject,
        common_name: certificate.common_name,
        dns_names: certificate.dns_names,
        uris: certificate.uris,
        emails: certificate.emails,
        ip_addresses: certificate.addresses,
        serial_number: certificate.serial,
        not_after: UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(UNIX_EPOCH),
        fingerprint: certificate.fingerprint,
        certificate_chain: certificate.chain,
    }
}

impl TlsState {
    /// The number of received bytes of an incomplete record; 0 during the handshake.
    pub(crate) fn partial_record_bytes(&self) -> u64 {
        match self.read_state {
            TlsReadState::Handshaking => 0,
            _ => self.session.buffered_bytes() as u64,
        }
    }

    /// Processes received bytes; see
    /// [`TlsConnection::receive`](peregrine_tls::TlsConnection::receive).
    pub(crate) fn receive(
        &mut self,
        input: &[u8],
        plaintext: &mut Vec<u8>,
        replies: &mut Vec<u8>,
    ) -> Result<(), TlsConnectionError> {
        self.read_state = self.session.receive(input, plaintext, replies)?;
        let session_bytes = match self.read_state {
            TlsReadState::Handshaking => TLS_HANDSHAKE_BYTES,
            _ => TLS_SESSION_BYTES,
        };
        self.reservation.resize(session_bytes + self.session.buffered_bytes());
        Ok(())
    }
}
