//! Every driver satisfies the contract of `peregrine-driver`: one line per driver.

use peregrine_driver_tokio::Tokio;
use peregrine_tests::{Simulated, contract, contract_kernel};

contract_kernel!(tokio, Tokio);
contract!(sim, Simulated::seeds(0..64));
#[cfg(target_os = "linux")]
contract_kernel!(uring, peregrine_driver_uring::Uring);

// Of the workers that wait in a ring, the kernel wakes one at a time, in turn. Elsewhere the first
// worker to run accepts, and the server passes connections on.
#[cfg(target_os = "linux")]
contract!(
    @tests uring_in_turn, peregrine_tests::Kernel::<peregrine_driver_uring::Uring>::tcp();
    sharing::workers_that_share_a_listener_share_its_connections,
);
#[cfg(target_os = "linux")]
contract!(
    @tests uring_in_turn_unix, peregrine_tests::Kernel::<peregrine_driver_uring::Uring>::unix();
    sharing::workers_that_share_a_listener_share_its_connections,
);
