//! What the simulator promises beyond the common suite.

mod simulation;
mod sockets;
