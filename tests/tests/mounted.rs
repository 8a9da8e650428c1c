//! Tower services keep the server's promises on every driver.

use peregrine::DriverChoice;
use peregrine_tests::mounted;
use peregrine_tests::server::{KernelBenches, SimulatedBenches};

mounted!(sim, SimulatedBenches::seeds(0..30));
mounted!(tokio, KernelBenches::tcp(DriverChoice::Tokio));
mounted!(uring, KernelBenches::tcp(DriverChoice::Uring));
