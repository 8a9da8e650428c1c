//! Appends records to a connection's output.

use crate::connection_error::TlsSendError;
use crate::limits::{RECORD_OVERHEAD_BYTES, RECORD_PLAINTEXT_BYTES_MAX};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError, WriteTraffic,
};

pub(crate) type Traffic<'a> = WriteTraffic<'a, ServerConnectionData>;

/// Appends a record that rustls has prepared.
pub(crate) fn append_handshake(
    data: &mut EncodeTlsData<'_, ServerConnectionData>,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    // The first call has an empty buffer and returns the required size.
    let Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) =
        data.encode(&mut [])
    else {
        return;
    };
    out.resize(start + required_size, 0);
    let written = data.encode(&mut out[start..]).expect("the buffer has the required size");
    out.truncate(start + written);
}

/// Encrypts `plain` and appends the records.
pub(crate) fn append_encrypted(
    traffic: &mut Traffic<'_>,
    plain: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), TlsSendError> {
    let records = plain.len().div_ceil(RECORD_PLAINTEXT_BYTES_MAX);
    let size = plain.len() + records * RECORD_OVERHEAD_BYTES;
    append_with_retry(out, size, |buffer| traffic.encrypt(plain, buffer))
}

/// Appends a `close_notify`, after everything rustls has prepared.
pub(crate) fn append_close_notify(traffic: &mut Traffic<'_>, out: &mut Vec<u8>) {
    let alert_size = RECORD_OVERHEAD_BYTES + 2;
    append_with_retry(out, alert_size, |buffer| traffic.queue_close_notify(buffer))
        .expect("key limits do not apply to alerts");
}

/// Extends `out` by `size` bytes, or by more if `write` requires it, and calls `write` to fill
/// them. Then truncates `out` to the written part.
fn append_with_retry(
    out: &mut Vec<u8>,
    size: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, EncryptError>,
) -> Result<(), TlsSendError> {
    let start = out.len();
    out.resize(start + size, 0);
    let mut written = write(&mut out[start..]);
    if let Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size })) = written {
        out.resize(start + required_size, 0);
        written = write(&mut out[start..]);
    }
    out.truncate(start + *written.as_ref().unwrap_or(&0));
    written.map(|_| ()).map_err(|_| TlsSendError::KeysExhausted)
}

/// Appends the alerts that rustls has prepared for a rejected peer.
pub(crate) fn append_alerts(engine: &mut UnbufferedServerConnection, out: &mut Vec<u8>) {
    // After an error rustls must not see the offending bytes again. It reads its input only when it
    // has no output left.
    while engine.wants_write() {
        match engine.process_tls_records(&mut []).state {
            Ok(ConnectionState::EncodeTlsData(mut data)) => append_handshake(&mut data, out),
            _ => break,
        }
    }
}
