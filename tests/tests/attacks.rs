//! Attacks by HTTP/2 on real servers, on every driver. What the servers hold is counted.

use peregrine::DriverChoice;
use peregrine_tests::server::{KernelBench, KernelBenches, SimulatedBench, SimulatedBenches, held};
use peregrine_tests::{attacks, overload};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::{Mutex, PoisonError};

struct Counting;

#[expect(unsafe_code, reason = "only a global allocator can count what is held")]
// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        held::took(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        held::gave(layout.size());
        // SAFETY: the pointer came from `alloc` above, and so from the system, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One server at a time, because the bytes of all are counted together.
struct Measured(KernelBenches);

impl Measured {
    fn check(&self, case: impl AsyncFn(&KernelBench)) {
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        held::begin();
        self.0.check(case);
    }
}

/// The same with little memory: less than some of the attacks take where there is enough.
struct Tight(Measured);

impl Tight {
    fn check(&self, case: impl AsyncFn(&KernelBench)) {
        held::limit(Some(512 << 10));
        self.0.check(case);
    }
}

/// Client and server share a thread there, so nothing is counted.
struct Uncounted(SimulatedBenches);

impl Uncounted {
    fn check(&self, case: impl AsyncFn(&SimulatedBench)) {
        held::this_is_a_client();
        self.0.check(case);
    }
}

attacks!(sim, Uncounted(SimulatedBenches::seeds(0..4)));
attacks!(tokio, Measured(KernelBenches::tcp(DriverChoice::Tokio)));
attacks!(uring, Measured(KernelBenches::tcp(DriverChoice::Uring)));
attacks!(tokio_tight, Tight(Measured(KernelBenches::tcp(DriverChoice::Tokio))));
attacks!(uring_tight, Tight(Measured(KernelBenches::tcp(DriverChoice::Uring))));
overload!(@memory tokio_memory, Measured(KernelBenches::tcp(DriverChoice::Tokio)));
overload!(@memory uring_memory, Measured(KernelBenches::tcp(DriverChoice::Uring)));
