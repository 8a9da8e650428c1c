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

/// Returns a buffer to this thread's pool, whichever thread it came from. Its content is discarded.
pub fn put(buffer: Vec<u8>) {
    Pool::put_local(&BUFFERS, buffer);
}
