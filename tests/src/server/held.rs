//! How many bytes a server holds, in programs whose allocator counts them.
//!
//! Such a test program installs a global allocator that calls [`record_alloc`] and
//! [`record_dealloc`]. Memory that clients allocate on their threads does not count.

use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering};

static HELD: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    static IS_CLIENT: Cell<bool> = const { Cell::new(false) };
    static MEASURES: Cell<bool> = const { Cell::new(false) };
    static LIMIT: Cell<Option<usize>> = const { Cell::new(None) };
}

fn count(bytes: isize) {
    // The thread-local is gone once the thread is exiting.
    if !IS_CLIENT.try_with(Cell::get).unwrap_or(true) {
        HELD.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Counts memory that was allocated.
pub fn record_alloc(bytes: usize) {
    count(bytes.cast_signed());
}

/// Counts memory that was freed.
pub fn record_dealloc(bytes: usize) {
    count(-bytes.cast_signed());
}

/// Marks this thread as a client, and makes it see the count of server memory.
pub fn begin() {
    MEASURES.set(true);
    this_is_a_client();
}

/// Makes this thread see the count, and counts its own memory too, because the server runs on it.
pub fn begin_with_own() {
    MEASURES.set(true);
}

/// Excludes what this thread allocates from now on.
pub fn this_is_a_client() {
    IS_CLIENT.set(true);
}

/// The bytes that servers hold, on a thread that sees the count.
pub fn bytes() -> Option<isize> {
    MEASURES.get().then(|| HELD.load(Ordering::Relaxed))
}

/// Sets the memory limit of servers that this thread starts.
pub fn limit(bytes_max: Option<usize>) {
    LIMIT.set(bytes_max);
}

/// The memory limit of servers, if this thread set one.
pub fn limited() -> Option<usize> {
    LIMIT.get()
}
