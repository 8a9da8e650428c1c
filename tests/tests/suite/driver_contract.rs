//! Every driver keeps the contract of `peregrine-driver`: a line each.

use peregrine_driver_tokio::Tokio;
use peregrine_tests::{Simulated, contract, contract_kernel};

contract_kernel!(tokio, Tokio);
contract!(sim, Simulated::seeds(0..200));
#[cfg(target_os = "linux")]
contract_kernel!(uring, peregrine_driver_uring::Uring);

// Of workers that wait in the ring, the kernel wakes one at a time, in turn. Elsewhere who comes first accepts, and
// the server passes connections on.
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
