//! A thread-local pool of buffers, which a worker reuses instead of allocating.

use peregrine_slot::Pool;

thread_local! {
    static BUFFERS: Pool<Vec<u8>> = const { Pool::new(64) };
}

/// Takes an empty buffer with some capacity from this thread's pool, or allocates one.
#[must_use]
pub fn get() -> Vec<u8> {
    Pool::get_local(&BUFFERS)
}

/// Discards the content of a buffer and puts the buffer into this thread's pool, even if it came
/// from another thread. Frees it instead if the pool is full or the buffer too small or too large.
pub fn put(buffer: Vec<u8>) {
    Pool::put_local(&BUFFERS, buffer);
}
