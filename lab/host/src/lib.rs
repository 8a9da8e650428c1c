//! Host control for the lab: whether this machine is fit, which CPUs run what, what disturbed a
//! run, and servers as processes that never outlive it.
//!
//! It is not a load generator and judges no server: it knows processes, files and CPU counters, and
//! nothing of HTTP. It changes the host in [`tune`] alone, when asked to, and changes it back.
//!
//! Everything that is read from the kernel is read below a [`root::Root`], so that tests hand it a
//! folder that looks like another machine. What a kernel does not tell is said to be unknown.
//!
//! Where to start: [`doctor`] examines the machine, [`cpu_sets`] divides its CPUs, [`guard`]
//! compares two snapshots of a run, [`server`] starts and stops a contender, [`usage`] reads what
//! it used, [`environment`] says what a run file must say, [`plan`] fits a design into a budget,
//! and [`journal`] lets a run go on where it was broken off.

#![forbid(unsafe_code)]

pub mod cpu_list;
pub mod cpu_sets;
pub mod doctor;
pub mod environment;
pub mod guard;
pub mod journal;
pub mod plan;
pub mod ports;
pub mod processes;
pub mod root;
pub mod snapshot;
pub mod topology;
pub mod tune;

#[cfg(unix)]
pub mod interrupt;
#[cfg(unix)]
pub mod limits;
#[cfg(unix)]
mod output;
#[cfg(unix)]
pub mod server;
#[cfg(unix)]
pub mod usage;
