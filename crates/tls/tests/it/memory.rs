//! The memory of an idle session.
//!
//! The allocator counts what Rust code allocates. The cryptography library allocates by itself,
//! which shows only in the resident memory.

use crate::own_process;
use crate::peer::{Pair, TLS12, TLS13, server_and_client};
use peregrine_tls::rustls::ClientConfig;
use peregrine_tls::{TlsConfig, TlsConnection};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

struct CountingAllocator;

static HELD_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded unchanged to the system allocator, which upholds the contract;
// counting touches only the counter.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller guarantees a layout of non-zero size, which is all that is required.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller got the memory from `alloc` with this layout, which got it from the
        // system allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const SESSIONS: usize = 1_000;

/// The maximum that Rust code may hold for one idle session.
const HELD_BYTES_MAX: usize = 4_608;

/// The maximum resident memory for it, which includes fragmentation of the allocator.
const RESIDENT_BYTES_MAX: usize = 6_144;

fn held_bytes() -> usize {
    HELD_BYTES.load(Ordering::Relaxed)
}

/// The resident memory of the process, where the system reports it in pages of 4 KiB.
fn resident_bytes() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * 4_096)
}

/// Sessions that served a request and are idle; all buffers are freed.
fn idle_sessions(count: usize, tls: &TlsConfig, client: &Arc<ClientConfig>) -> Vec<TlsConnection> {
    (0..count)
        .map(|_| {
            let mut pair = Pair::connected(tls, client, "localhost");
            pair.piece_bytes = 4_096;
            pair.client_send(&[b'q'; 20_000]);
            assert_eq!(pair.plain.len(), 20_000);
            pair.session.send(&[b'a'; 20_000], &mut pair.out).unwrap();
            pair.session
        })
        .collect()
}

// In a separate process, because the counter includes the allocations of all threads.
#[test]
fn an_idle_session_holds_little_memory() {
    if own_process::delegate("memory::an_idle_session_holds_little_memory") {
        return;
    }
    // The resident memory is meaningful only in the first pass: the second reuses the memory that
    // the first freed.
    for (version, is_fresh) in [(TLS13, true), (TLS12, false)] {
        let (tls, client) = server_and_client(version);
        let client = Arc::new(client);
        drop(idle_sessions(10, &tls, &client));

        let (held_before, resident_before) = (held_bytes(), resident_bytes());
        let unused: Vec<TlsConnection> = (0..SESSIONS).map(|_| tls.new_connection()).collect();
        let unused_bytes = (held_bytes() - held_before) / SESSIONS;
        drop(unused);
        assert!(unused_bytes <= 64, "{unused_bytes} bytes for a peer that sent nothing");

        let sessions = idle_sessions(SESSIONS, &tls, &client);
        let idle_bytes = (held_bytes() - held_before) / SESSIONS;
        println!("{version:?}: {unused_bytes} bytes before the first byte, {idle_bytes} when idle");
        assert!(idle_bytes <= HELD_BYTES_MAX, "{idle_bytes} bytes are held");

        if let (Some(before), Some(after), true) = (resident_before, resident_bytes(), is_fresh) {
            let resident = after.saturating_sub(before) / SESSIONS;
            println!("{version:?}: {resident} bytes resident when idle");
            assert!(resident <= RESIDENT_BYTES_MAX, "{resident} bytes are resident");
        }
        drop(sessions);

        let unfreed = held_bytes().abs_diff(held_before);
        assert!(unfreed < 100_000, "{unfreed} bytes were not freed");
    }
}
