//! Load generation for the lab: clients that verify every answer.
//!
//! It is a stranger to every server it measures: it knows a socket and what comes out of it, and
//! it shares no code with any framework, so that one bug cannot hide in both.
//!
//! It starts no server, reads no server's counters and compares nothing: that is for the crates
//! above it. A run that saw one wrong answer counts for nothing.
//!
//! Where to start: [`generator`] is the load generator, in open and closed loops, asking any
//! [`question`]; [`client`] is the cheaper loop on kept connections for short slices, asking a
//! [`workload`]. The program `load` offers the first, and `null-server` answers fixed bytes, for
//! [`calibration`].

#![deny(unsafe_code)]
#![cfg(target_os = "linux")]

pub mod calibration;
pub mod certificate;
pub mod client;
pub mod command;
pub mod cross_check;
pub mod echo;
pub mod generator;
pub mod http2;
pub mod latency;
pub mod null;
pub mod question;
pub mod schedule;
mod speech;
pub mod summary;
pub mod system;
pub mod websocket;
pub mod workload;
