//! Overloaded servers on every driver.

use peregrine::DriverChoice;
use peregrine_tests::overload;
use peregrine_tests::server::{KernelBenches, SimulatedBenches, SimulatedOnly};

overload!(sim, SimulatedBenches::seeds(0..8));
overload!(@virtual sim_virtual, SimulatedOnly(SimulatedBenches::seeds(0..3)));
overload!(tokio, KernelBenches::tcp(DriverChoice::Tokio));
overload!(@tcp tokio_tcp, KernelBenches::tcp(DriverChoice::Tokio));
overload!(@kernel tokio_kernel, KernelBenches::tcp(DriverChoice::Tokio));
overload!(uring, KernelBenches::tcp(DriverChoice::Uring));
overload!(@tcp uring_tcp, KernelBenches::tcp(DriverChoice::Uring));
overload!(@kernel uring_kernel, KernelBenches::tcp(DriverChoice::Uring));
#[cfg(unix)]
overload!(tokio_unix, KernelBenches::unix(DriverChoice::Tokio));
