//! Scenario files: the ones that the lab ships, and wrong ones.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "the helpers of tests may stop a test as well")]

mod errors;
mod shipped;
