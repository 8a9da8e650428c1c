//! What is found on machines that are not this one: folders that look like them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may say so by its line")]

mod cpu_sets;
mod doctor;
mod guard;
mod machine;
mod tune;
