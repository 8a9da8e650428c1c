//! Processes received bytes: recognises TLS, passes records to rustls, and limits the size of
//! handshakes.

use super::{ActiveConnection, ReceiveStage, TlsConnection};
use crate::certificate_names::CertificateNames;
use crate::connection_error::{PLAIN_HTTP_REPLY, TlsConnectionError};
use crate::handshake_info::TlsReadState;
use crate::limits::{HANDSHAKE_BYTES_MAX, RECORD_CIPHERTEXT_BYTES_MAX};
use crate::records::{append_alerts, append_handshake};
use crate::sniff::{self, SniffedProtocol};
use crate::{challenge, client_not_after, resolver};
use peregrine_slot::Pool;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::ConnectionState;
use std::sync::Arc;

thread_local! {
    /// Where received records are decrypted. Received bytes are borrowed and read-only, and rustls
    /// decrypts in place, so they are copied once. The copy exists only during one call, so all
    /// connections of a thread share one buffer.
    static SCRATCH: Pool<Vec<u8>> = const { Pool::new(1) };
}

impl TlsConnection {
    /// Recognises the protocol by the first bytes, and starts the handshake of a TLS connection.
    pub(super) fn detect_protocol(
        &mut self,
        input: &[u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<TlsReadState, TlsConnectionError> {
        if !self.incoming.is_empty() {
            self.incoming.extend_from_slice(input);
        }
        let received = if self.incoming.is_empty() { input } else { &self.incoming };
        let protocol = sniff::sniff(received);
        let config = match &mut self.stage {
            ReceiveStage::Sniffing(config) => Some(Arc::clone(config)),
            ReceiveStage::DetectingChallenge(detector) if protocol == SniffedProtocol::Tls => {
                detector.choose_config(received)
            }
            _ => None,
        };
        match protocol {
            // During the lookup, the peer has nothing to send.
            SniffedProtocol::Tls if received.len() > HANDSHAKE_BYTES_MAX && config.is_none() => {
                Err(self.fail(TlsConnectionError::HandshakeTooLong))
            }
            SniffedProtocol::NeedMore => Ok(self.buffer_input(input)),
            SniffedProtocol::Tls => {
                let Some(config) = config else { return Ok(self.buffer_input(input)) };
                let engine = UnbufferedServerConnection::new(config)
                    .expect("the configuration was checked to create connections");
                let connection = ActiveConnection {
                    rustls: engine,
                    server_name: None,
                    certificate_names: None,
                    client_not_after: None,
                };
                self.stage = ReceiveStage::Active(TlsReadState::Handshaking, Box::new(connection));
                // The first byte is enough to recognise TLS, so nothing was buffered before, except
                // while the first record was inspected.
                if self.incoming.is_empty() {
                    return self.process_input(input, plain, out);
                }
                let buffered = std::mem::take(&mut self.incoming);
                self.process_input(&buffered, plain, out)
            }
            SniffedProtocol::PlainHttp => {
                out.extend_from_slice(PLAIN_HTTP_REPLY);
                Err(self.fail(TlsConnectionError::PlainHttp))
            }
            SniffedProtocol::Unknown => {
                out.extend_from_slice(UNEXPECTED_MESSAGE_ALERT);
                Err(self.fail(TlsConnectionError::NotTls))
            }
        }
    }

    /// Buffers `input` until more bytes arrive.
    fn buffer_input(&mut self, input: &[u8]) -> TlsReadState {
        if self.incoming.is_empty() {
            self.incoming.extend_from_slice(input);
        }
        TlsReadState::Handshaking
    }

    /// Processes bytes of a TLS connection: copies them to a mutable buffer, and stores the
    /// unprocessed rest.
    pub(super) fn process_input(
        &mut self,
        input: &[u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<TlsReadState, TlsConnectionError> {
        let is_established =
            matches!(self.stage, ReceiveStage::Active(TlsReadState::Established, _));
        if !is_established {
            self.handshake_bytes += input.len();
        }
        if self.incoming.is_empty() {
            if is_established && is_incomplete_record(input) {
                self.incoming = input.to_vec();
                return Ok(TlsReadState::Established);
            }
            let mut bytes = Pool::get_local(&SCRATCH);
            bytes.extend_from_slice(input);
            let result = self.process_records(&mut bytes, plain, out);
            if let Ok((consumed, TlsReadState::Handshaking | TlsReadState::Established)) = result {
                self.incoming = bytes[consumed..].to_vec();
            }
            Pool::put_local(&SCRATCH, bytes);
            self.check_limits(result)
        } else {
            self.incoming.extend_from_slice(input);
            if is_established && is_incomplete_record(&self.incoming) {
                return Ok(TlsReadState::Established);
            }
            let mut bytes = std::mem::take(&mut self.incoming);
            let result = self.process_records(&mut bytes, plain, out);
            match result {
                Ok((0, _)) => self.incoming = bytes,
                // Copying the rest frees the memory of the processed part.
                Ok((consumed, TlsReadState::Handshaking | TlsReadState::Established)) => {
                    self.incoming = bytes[consumed..].to_vec();
                }
                Ok((_, TlsReadState::PeerClosed)) | Err(_) => {}
            }
            self.check_limits(result)
        }
    }

    /// Rejects a peer whose handshake or incomplete handshake message is too long.
    fn check_limits(
        &mut self,
        result: Result<(usize, TlsReadState), TlsConnectionError>,
    ) -> Result<TlsReadState, TlsConnectionError> {
        let (_, read_state) = result?;
        let handshake_bytes = match read_state {
            TlsReadState::Handshaking => self.handshake_bytes,
            TlsReadState::Established => self.incoming.len(),
            TlsReadState::PeerClosed => 0,
        };
        if handshake_bytes > HANDSHAKE_BYTES_MAX {
            return Err(self.fail(TlsConnectionError::HandshakeTooLong));
        }
        Ok(read_state)
    }

    /// Lets rustls process `bytes` until it needs more. Returns how many were consumed.
    fn process_records(
        &mut self,
        bytes: &mut [u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(usize, TlsReadState), TlsConnectionError> {
        let ReceiveStage::Active(read_state, connection) = &mut self.stage else {
            unreachable!("only an active connection processes bytes");
        };
        if *read_state == TlsReadState::Handshaking {
            client_not_after::set(connection.client_not_after);
        }
        let mut consumed = 0;
        let mut is_closed = false;
        let failure = loop {
            let mut is_data = false;
            let status = connection.rustls.process_tls_records(&mut bytes[consumed..]);
            let mut discard = status.discard;
            match status.state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    is_data = true;
                    while let Some(Ok(record)) = traffic.next_record() {
                        plain.extend_from_slice(record.payload);
                        discard += record.discard;
                    }
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => append_handshake(&mut data, out),
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::PeerClosed) => is_closed = true,
                Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => {
                    consumed += discard;
                    break None;
                }
                // The only remaining state is `Closed`, because early data is never accepted.
                Ok(_) => break None,
                Err(error) => break Some(error),
            }
            consumed += discard;
            // Data does not change the state, so there is no need to call rustls again after the
            // last of it.
            if is_data && consumed == bytes.len() && !connection.rustls.wants_write() {
                break None;
            }
        };
        if *read_state == TlsReadState::Handshaking {
            // Take the result even after an error, so that it is not attributed to another
            // connection.
            if let Some(resolved) = resolver::take_last() {
                connection.server_name = resolved.server_name;
                connection.certificate_names = resolved.certificate.map(CertificateNames::new);
            }
            connection.client_not_after = client_not_after::get();
        }
        if let Some(error) = failure {
            append_alerts(&mut connection.rustls, out);
            return Err(self.fail(TlsConnectionError::from(error)));
        }
        *read_state = if is_closed {
            TlsReadState::PeerClosed
        } else if connection.rustls.is_handshaking() {
            TlsReadState::Handshaking
        } else if *read_state == TlsReadState::Handshaking
            && connection.rustls.alpn_protocol() == Some(challenge::ACME_TLS_ALPN)
        {
            // RFC 8737 §3: a validation connection carries only its handshake.
            TlsReadState::PeerClosed
        } else {
            TlsReadState::Established
        };
        Ok((consumed, *read_state))
    }
}

/// Whether these are the first bytes of an application data record, with which rustls could only
/// wait for the rest. They stay in `incoming`; anything unusual is passed to rustls.
fn is_incomplete_record(bytes: &[u8]) -> bool {
    match *bytes {
        [] | [APPLICATION_DATA] => true,
        [APPLICATION_DATA, 3] | [APPLICATION_DATA, 3, _] | [APPLICATION_DATA, 3, _, _] => true,
        [APPLICATION_DATA, 3, _, high, low, ref payload @ ..] => {
            let length = usize::from(u16::from_be_bytes([high, low]));
            length <= RECORD_CIPHERTEXT_BYTES_MAX && payload.len() < length
        }
        _ => false,
    }
}

/// The content type of application data.
const APPLICATION_DATA: u8 = 23;

/// A fatal alert in clear text.
const UNEXPECTED_MESSAGE_ALERT: &[u8] = &[21, 3, 3, 0, 2, 2, 10];
