//! How many bytes a server holds, in programs whose allocator counts them.
//!
//! A test program that wants to know has a global allocator that calls [`took`] and [`gave`]. What clients
//! allocate on their threads does not count.

use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering};

static HELD: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    static IS_CLIENT: Cell<bool> = const { Cell::new(false) };
    static MEASURES: Cell<bool> = const { Cell::new(false) };
    static LIMIT: Cell<Option<usize>> = const { Cell::new(None) };
}

fn count(bytes: isize) {
    // A thread that ends has no such thing any more.
    if !IS_CLIENT.try_with(Cell::get).unwrap_or(true) {
        HELD.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Counts memory that was allocated.
pub fn took(bytes: usize) {
    count(bytes.cast_signed());
}

/// Counts memory that was freed.
pub fn gave(bytes: usize) {
    count(-bytes.cast_signed());
}

/// From now on this thread's memory is that of clients, and it is told what servers hold.
pub fn begin() {
    MEASURES.set(true);
    this_is_a_client();
}

/// From now on this thread is told what is held, its own memory included: where a server runs on it.
pub fn begin_with_own() {
    MEASURES.set(true);
}

/// What this thread allocates from now on is no server's.
pub fn this_is_a_client() {
    IS_CLIENT.set(true);
}

/// The bytes that are held now, on a thread that is told.
pub fn bytes() -> Option<isize> {
    MEASURES.get().then(|| HELD.load(Ordering::Relaxed))
}

/// Sets what servers that this thread starts may hold for their peers.
pub fn limit(bytes_max: Option<usize>) {
    LIMIT.set(bytes_max);
}

/// What servers may hold for their peers, where this thread says so.
pub fn limited() -> Option<usize> {
    LIMIT.get()
}
