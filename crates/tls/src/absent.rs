//! The stand-in for TLS in a build without it.
//!
//! These types have no values, so nobody can ask for TLS; code that handles it needs no conditions and
//! compiles to nothing.

use crate::facts::{Facts, Identity, Received};
use std::fmt;
use std::task::{Context, Poll};

/// The settings of a TLS server, of which there are none without the feature `rustls`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {}

/// A session, of which there are none.
#[derive(Debug)]
pub enum Session {}

/// The hosts that a certificate names.
#[derive(Debug)]
pub enum Hosts {}

/// What a peer can do wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reject {
    /// The peer speaks plain HTTP instead of TLS.
    PlainHttp,
}

/// Why nothing can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {}

/// What can be wrong with settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsError {}

impl Tls {
    /// Begins a session.
    #[must_use]
    pub fn session(&self) -> Session {
        match *self {}
    }
}

impl Session {
    /// Takes what the peer sent.
    ///
    /// # Errors
    ///
    /// None.
    pub fn receive(
        &mut self,
        _: &[u8],
        _: &mut Vec<u8>,
        _: &mut Vec<u8>,
    ) -> Result<Received, Reject> {
        match *self {}
    }

    /// Bytes that came of a record that is not complete.
    #[must_use]
    pub fn unread_bytes(&self) -> usize {
        match *self {}
    }

    /// Does the handshake wait for something?
    #[must_use]
    pub fn is_looking(&self) -> bool {
        match *self {}
    }

    /// Ready when it does not.
    pub fn poll_look(&mut self, _: &mut Context<'_>) -> Poll<()> {
        match *self {}
    }

    /// Encrypts bytes to send.
    ///
    /// # Errors
    ///
    /// None.
    pub fn send(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<(), SendError> {
        match *self {}
    }

    /// Tells the peer that nothing more will be sent.
    pub fn close(&mut self, _: &mut Vec<u8>) {
        match *self {}
    }

    /// What the handshake agreed on.
    #[must_use]
    pub fn facts(&self) -> Option<Facts<'_>> {
        match *self {}
    }

    /// Who the client is.
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
    /// Does the certificate name the host of `authority`?
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

    /// The alert that the peer sent, which is none.
    #[must_use]
    pub fn alert(&self) -> Option<&'static str> {
        None
    }

    /// What is wrong with the peer's certificate.
    #[must_use]
    pub fn client_fault(&self) -> Option<&'static str> {
        None
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("plain HTTP where TLS is spoken")
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
