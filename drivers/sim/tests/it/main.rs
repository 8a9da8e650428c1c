//! Tests of the simulator beyond the suite for all drivers.

mod simulation;
mod sockets;
