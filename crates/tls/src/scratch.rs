//! A buffer per thread, in which received records are decrypted.
//!
//! Received bytes are on loan and read only, and rustls decrypts in place, so they are copied once.
//! The copy lives as long as one call, hence one buffer serves all sessions of a thread.

use crate::limits::SCRATCH_BYTES_KEPT_MAX;
use std::cell::Cell;

thread_local! {
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The thread's buffer, empty. A second taker on the same thread gets a new one.
pub(crate) fn take() -> Vec<u8> {
    SCRATCH.take()
}

/// Gives the buffer back for the next call.
pub(crate) fn give_back(mut buffer: Vec<u8>) {
    if buffer.capacity() <= SCRATCH_BYTES_KEPT_MAX {
        buffer.clear();
        SCRATCH.set(buffer);
    }
}
