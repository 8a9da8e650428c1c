//! HTTP/2 attacks on real servers, on every driver. The memory that the servers hold is counted.

use peregrine::DriverChoice;
use peregrine_tests::server::{AnyBench, KernelBenches, SimulatedBenches, held};
use peregrine_tests::{attacks, isolated_case, overload};

/// One server per process, because the memory of all its servers is counted together.
struct Measured(KernelBenches);

impl Measured {
    fn check(&self, case: impl AsyncFn(&AnyBench)) {
        isolated_case(&case, || self.check_here(&case));
    }

    fn check_here(&self, case: impl AsyncFn(&AnyBench)) {
        held::begin();
        self.0.check(case);
    }
}

/// The same with little memory: less than some of the attacks use if they can.
struct Tight(Measured);

impl Tight {
    fn check(&self, case: impl AsyncFn(&AnyBench)) {
        isolated_case(&case, || {
            held::limit(Some(512 << 10));
            self.0.check_here(&case);
        });
    }
}

/// Client and server share a thread here, so memory is not counted.
struct Uncounted(SimulatedBenches);

impl Uncounted {
    fn check(&self, case: impl AsyncFn(&AnyBench)) {
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
