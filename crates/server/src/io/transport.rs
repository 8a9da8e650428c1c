//! The layer between the driver and the protocol: TLS, or nothing.

use peregrine_tls::{Hosts, Identity, Received, Reject, Session, Version};
use peregrine_web::account::Charge;
use peregrine_web::connection::{ClientIdentity, TlsInfo};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, UNIX_EPOCH};

/// The approximate memory of a TLS session, during and after its handshake.
const HANDSHAKE_BYTES: usize = 24 * 1024;
const SESSION_BYTES: usize = 8 * 1024;

/// The transport of a connection.
pub(crate) enum Stage {
    Plain,
    Tls(Box<Encrypted>),
}

/// A TLS session and its state.
pub(crate) struct Encrypted {
    pub(crate) session: Session,
    pub(crate) received: Received,
    charge: Charge,
}

impl Stage {
    pub(crate) fn new(session: Option<Session>) -> Self {
        match session {
            None => Self::Plain,
            Some(session) => {
                let received = Received::Handshaking;
                let charge = Charge::of(HANDSHAKE_BYTES);
                Self::Tls(Box::new(Encrypted { session, received, charge }))
            }
        }
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.received == Received::Handshaking)
    }

    /// Returns whether the handshake is waiting for an external lookup.
    pub(crate) fn is_looking(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.session.is_looking())
    }

    /// Ready when the handshake is not waiting for an external lookup.
    pub(crate) fn poll_look(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Plain => Poll::Ready(()),
            Self::Tls(tls) => tls.session.poll_look(context),
        }
    }

    /// Returns whether the handshake agreed on HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        let Self::Tls(tls) = self else { return false };
        tls.session.facts().is_some_and(|facts| facts.alpn == Some(b"h2"))
    }

    /// Received bytes of an incomplete record, after the handshake.
    pub(crate) fn incomplete_bytes(&self) -> u64 {
        match self {
            Self::Plain => 0,
            Self::Tls(tls) => tls.incomplete_bytes(),
        }
    }

    /// Returns whether the peer has closed its sending side at the TLS level.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.received == Received::Closed)
    }

    /// The hosts that the certificate covers, if requests for other hosts must be rejected.
    #[inline]
    pub(crate) fn hosts(&mut self) -> Option<&mut Hosts> {
        match self {
            Self::Plain => None,
            Self::Tls(tls) => tls.session.hosts(),
        }
    }

    /// The result of the handshake.
    pub(crate) fn info(&self) -> Option<TlsInfo> {
        let Self::Tls(tls) = self else { return None };
        let facts = tls.session.facts()?;
        Some(TlsInfo {
            version: match facts.version {
                Version::Tls12 => "TLSv1.2",
                Version::Tls13 => "TLSv1.3",
            },
            cipher_suite: facts.cipher_suite,
            server_name: facts.server_name.map(str::to_owned),
            protocol: facts.alpn.map(<[u8]>::to_vec),
            resumed: facts.resumed,
            client: tls.session.client().map(|client| Arc::new(identity(client))),
        })
    }
}

/// Converts a client's identity for handlers.
fn identity(client: Identity) -> ClientIdentity {
    let seconds = u64::try_from(client.not_after).unwrap_or(0);
    ClientIdentity {
        subject: client.subject,
        common_name: client.common_name,
        dns_names: client.dns_names,
        uris: client.uris,
        emails: client.emails,
        addresses: client.addresses,
        serial: client.serial,
        not_after: UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(UNIX_EPOCH),
        fingerprint: client.fingerprint,
        chain: client.chain,
    }
}

impl Encrypted {
    /// Received bytes of an incomplete record, after the handshake.
    pub(crate) fn incomplete_bytes(&self) -> u64 {
        match self.received {
            Received::Handshaking => 0,
            _ => self.session.unread_bytes() as u64,
        }
    }

    /// Processes received bytes; see [`Session::receive`].
    pub(crate) fn receive(
        &mut self,
        input: &[u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), Reject> {
        self.received = self.session.receive(input, plain, out)?;
        let session = match self.received {
            Received::Handshaking => HANDSHAKE_BYTES,
            _ => SESSION_BYTES,
        };
        self.charge.set(session + self.session.unread_bytes());
        Ok(())
    }
}
