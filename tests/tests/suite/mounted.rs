//! Mounted tower services keep the server's guarantees on every driver.

use peregrine::DriverChoice;
use peregrine_tests::server::{KernelBenches, SimulatedBenches};
use peregrine_tests::{mounted, mounted_http2, mounted_ways};

mounted!(sim, SimulatedBenches::seeds(0..10));
mounted!(tokio, KernelBenches::tcp(DriverChoice::Tokio));
mounted!(uring, KernelBenches::tcp(DriverChoice::Uring));
mounted_http2!(sim_http2, SimulatedBenches::seeds(0..10));
mounted_http2!(tokio_http2, KernelBenches::tcp(DriverChoice::Tokio));
mounted_http2!(uring_http2, KernelBenches::tcp(DriverChoice::Uring));
mounted_ways!(sim_ways, SimulatedBenches::seeds(0..6));
mounted_ways!(tokio_ways, KernelBenches::tcp(DriverChoice::Tokio));
mounted_ways!(uring_ways, KernelBenches::tcp(DriverChoice::Uring));
