//! The same behaviour on every protocol, and the table that documents it.

use peregrine::DriverChoice;
use peregrine_tests::server::{KernelBenches, SimulatedBenches};
use peregrine_tests::ways;

ways!(sim, SimulatedBenches::seeds(0..8));
ways!(tokio, KernelBenches::tcp(DriverChoice::Tokio));
ways!(uring, KernelBenches::tcp(DriverChoice::Uring));
ways!(@plain tokio_unix, KernelBenches::unix(DriverChoice::Tokio));
ways!(@plain uring_unix, KernelBenches::unix(DriverChoice::Uring));
