//! Stand-ins for the TLS types in a build without the feature `rustls`.
//!
//! These types have no values, so the code that handles TLS needs no conditional compilation and is
//! compiled to nothing.

use crate::handshake_info::{HandshakeInfo, PeerCertificate, TlsReadState};
use std::fmt;
use std::task::{Context, Poll};

/// The settings of a TLS server. Has no values without the feature `rustls`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsConfig {}

/// A TLS connection. Has no values.
#[derive(Debug)]
pub enum TlsConnection {}

/// The hosts that a certificate is valid for.
#[derive(Debug)]
pub enum CertificateNames {}

/// How a peer can break the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsConnectionError {
    /// The peer speaks plain HTTP instead of TLS.
    PlainHttp,
}

/// Why data cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsSendError {}

/// Errors in the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsSetupError {}

impl TlsConfig {
    /// Creates the state of a new connection.
    #[must_use]
    pub fn new_connection(&self) -> TlsConnection {
        match *self {}
    }
}

impl TlsConnection {
    /// Processes bytes from the peer.
    ///
    /// # Errors
    ///
    /// Never fails.
    pub fn receive(
        &mut self,
        _: &[u8],
        _: &mut Vec<u8>,
        _: &mut Vec<u8>,
    ) -> Result<TlsReadState, TlsConnectionError> {
        match *self {}
    }

    /// The number of bytes buffered for an incomplete record.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        match *self {}
    }

    /// Returns whether the handshake waits for a lookup.
    #[must_use]
    pub fn is_lookup_pending(&self) -> bool {
        match *self {}
    }

    /// Ready when the lookup is done.
    pub fn poll_lookup(&mut self, _: &mut Context<'_>) -> Poll<()> {
        match *self {}
    }

    /// Encrypts data to send.
    ///
    /// # Errors
    ///
    /// Never fails.
    pub fn send(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<(), TlsSendError> {
        match *self {}
    }

    /// Sends `close_notify`: nothing more will be sent.
    pub fn close(&mut self, _: &mut Vec<u8>) {
        match *self {}
    }

    /// The negotiated parameters.
    #[must_use]
    pub fn handshake_info(&self) -> Option<HandshakeInfo<'_>> {
        match *self {}
    }

    /// The identity in the client's certificate.
    #[must_use]
    pub fn peer_certificate(&self) -> Option<PeerCertificate> {
        match *self {}
    }

    /// The hosts that requests may be for.
    pub fn certificate_names(&mut self) -> Option<&mut CertificateNames> {
        match *self {}
    }
}

impl CertificateNames {
    /// Returns whether the certificate is valid for the host of `authority`.
    pub fn matches(&mut self, _: &str) -> bool {
        match *self {}
    }
}

impl TlsConnectionError {
    /// A short name for logs and metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        "plain_http"
    }

    /// The alert sent by the peer.
    #[must_use]
    pub fn alert(&self) -> Option<&'static str> {
        None
    }

    /// Why the peer's certificate was rejected.
    #[must_use]
    pub fn client_certificate_error(&self) -> Option<&'static str> {
        None
    }
}

impl fmt::Display for TlsConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("plain HTTP on a TLS port")
    }
}

impl fmt::Display for TlsSendError {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl fmt::Display for TlsSetupError {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl std::error::Error for TlsConnectionError {}
impl std::error::Error for TlsSendError {}
impl std::error::Error for TlsSetupError {}
