//! The server keeps its promises on every driver: a line each.

use peregrine::DriverChoice;
use peregrine_tests::server::SimulatedBenches;
use peregrine_tests::{server, server_on_kernel};

server!(sim, SimulatedBenches::seeds(0..100));
server_on_kernel!(tokio, DriverChoice::Tokio);
server_on_kernel!(uring, DriverChoice::Uring);
