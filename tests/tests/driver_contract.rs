//! Every driver keeps the contract of `peregrine-driver`: a line each.

use peregrine_driver_tokio::Tokio;
use peregrine_tests::{Simulated, contract, contract_kernel};

contract_kernel!(tokio, Tokio);
contract!(sim, Simulated::seeds(0..200));
#[cfg(target_os = "linux")]
contract_kernel!(uring, peregrine_driver_uring::Uring);
