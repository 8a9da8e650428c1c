//! The `lab` program from outside: contenders and scenarios of the test's own in a folder that
//! vanishes, so that no framework has to be there. No claim here depends on how fast the machine is
//! or how quiet: where something is measured, disturbed blocks count.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "the helpers of tests may stop a test as well")]

mod absent;
mod bench;
mod budgets;
mod commands;
mod endings;
mod http2;
mod kinds;
mod lies;
mod server;
mod verdicts;
mod websocket;
