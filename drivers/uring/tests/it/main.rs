//! Tests of the io_uring driver beyond the suite for all drivers.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod accepting;
mod affinity;
mod descriptors;
mod harness;
mod limits;
mod own_process;
mod runtime;
mod slow;
mod streams;
