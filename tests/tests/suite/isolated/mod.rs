//! Tests that change or measure process-wide state.
//!
//! Each of them runs in its own child process (see `peregrine_tests::isolated`), so that they can
//! run concurrently. The allocator of this program counts what servers hold.

mod attacks;
mod broken_log;
mod descriptors;
mod idle_memory;
mod layered_log;
mod listening;
mod locked_memory;
mod traces;

use peregrine_tests::server::held;
use std::alloc::{GlobalAlloc, Layout, System};

struct CountingAllocator;

#[expect(unsafe_code, reason = "only a global allocator can count allocated bytes")]
// SAFETY: every call is forwarded unchanged to the system allocator, which upholds the contract.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        held::record_alloc(layout.size());
        // SAFETY: the caller upholds the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        held::record_dealloc(layout.size());
        // SAFETY: `pointer` was allocated above by the system allocator with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
