//! Stand-ins for the TLS types in a build without the feature `rustls`.
//!
//! These types have no values, so the code that handles TLS needs no conditional compilation and is
//! compiled to nothing.

use crate::facts::{Facts, Identity, Received};
use std::fmt;
use std::task::{Context, Poll};

/// The settings of a TLS server. Has no values without the feature `rustls`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {}

/// A TLS session. Has no values.
#[derive(Debug)]
pub enum Session {}

/// The hosts that a certificate is valid for.
#[derive(Debug)]
pub enum Hosts {}

/// How a peer can break the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reject {
    /// The peer speaks plain HTTP instead of TLS.
    PlainHttp,
}

/// Why data cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {}

/// Errors in the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsError {}

impl Tls {
    /// Creates a session.
    #[must_use]
    pub fn session(&self) -> Session {
        match *self {}
    }
}

impl Session {
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
    ) -> Result<Received, Reject> {
        match *self {}
    }

    /// The number of bytes buffered for an incomplete record.
    #[must_use]
    pub fn unread_bytes(&self) -> usize {
        match *self {}
    }

    /// Returns whether the handshake waits for a lookup.
    #[must_use]
    pub fn is_looking(&self) -> bool {
        match *self {}
    }

    /// Ready when the lookup is done.
    pub fn poll_look(&mut self, _: &mut Context<'_>) -> Poll<()> {
        match *self {}
    }

    /// Encrypts data to send.
    ///
    /// # Errors
    ///
    /// Never fails.
    pub fn send(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<(), SendError> {
        match *self {}
    }

    /// Sends `close_notify`: nothing more will be sent.
    pub fn close(&mut self, _: &mut Vec<u8>) {
        match *self {}
    }

    /// The negotiated parameters.
    #[must_use]
    pub fn facts(&self) -> Option<Facts<'_>> {
        match *self {}
    }

    /// The identity in the client's certificate.
    #[must_use]
    pub fn client(&self) -> Option<Identity> {
        match *self {}
    }

    /// The hosts that requests may be for.
    pub fn hosts(&mut self) -> Option<&mut Hosts> {
        match *self {}
    }
}

impl Hosts {
    /// Returns whether the certificate is valid for the host of `authority`.
    pub fn cover(&mut self, _: &str) -> bool {
        match *self {}
    }
}

impl Reject {
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
    pub fn client_fault(&self) -> Option<&'static str> {
        None
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("plain HTTP on a TLS port")
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl std::error::Error for Reject {}
impl std::error::Error for SendError {}
impl std::error::Error for TlsError {}
