//! Load generation for the lab: clients that verify every answer, and the paired design that
//! makes small differences visible on a noisy machine.
//!
//! It is a stranger to every server it measures: it knows a socket, a process and a file, and it
//! shares no code with any framework, so that one bug cannot hide in both.
//!
//! It is not a report generator for humans in a hurry: a run that saw one wrong answer ranks
//! nobody, and a difference below the noise of the same program against itself is called
//! "cannot tell".
//!
//! Where to start: [`slices`] holds the paired design, [`client`] the load loop, [`report`] what
//! is said about the slices, and [`workload`] what is asked and which answer is right. The
//! statistics are those of `peregrine-lab-stats`. The program `paired` puts them together.
//! [`generator`] is the load generator for latency and throughput, in open and closed loops,
//! asking any [`question`]; the program `load` offers it, and `null-server` answers fixed bytes,
//! for calibration.

#![deny(unsafe_code)]
#![cfg(target_os = "linux")]

pub mod calibration;
pub mod certificate;
pub mod client;
pub mod command;
pub mod contender;
pub mod cross_check;
mod forms;
pub mod generator;
pub mod host;
pub mod latency;
pub mod machine;
pub mod memory;
pub mod null;
pub mod process;
pub mod question;
pub mod report;
pub mod schedule;
pub mod slices;
pub mod summary;
pub mod workload;
