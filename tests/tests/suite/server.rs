//! The server keeps its guarantees on every driver: one line per driver.

use peregrine::DriverChoice;
use peregrine_tests::{server_on_kernel, server_simulated};

// Nightly runs use 24 times as many seeds.
server_simulated!(sim, 0..16, 0..3);
server_on_kernel!(tokio, DriverChoice::Tokio);
server_on_kernel!(uring, DriverChoice::Uring);
