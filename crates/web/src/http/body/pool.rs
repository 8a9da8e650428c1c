//! Buffers that a worker reuses instead of allocating: a thread's own small stock.

use peregrine_slot::Pool;

thread_local! {
    static BUFFERS: Pool<Vec<u8>> = const { Pool::new(64) };
}

/// An empty buffer with some capacity, from this thread's stock if there is one.
#[must_use]
pub fn take() -> Vec<u8> {
    Pool::take_local(&BUFFERS)
}

/// Gives a buffer to this thread's stock, whatever thread it came from. Its content is lost.
pub fn give(buffer: Vec<u8>) {
    Pool::give_local(&BUFFERS, buffer);
}
