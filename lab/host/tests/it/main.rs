//! The host: machines that are folders, and servers that are processes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may say so by its line")]

mod cpu_sets;
mod doctor;
mod guard;
mod machine;
#[cfg(target_os = "linux")]
mod server;
mod tune;
