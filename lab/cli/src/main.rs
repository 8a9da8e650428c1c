//! `lab`: published benchmark claims, reproduced honestly on this machine.
//!
//! Each command is a file in `command`; what they measure is in `peregrine-lab-run`, and what they
//! say in `peregrine-lab-report`. `lab help` lists the commands and the exit codes.

#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
mod bars;
#[cfg(target_os = "linux")]
mod bench;
#[cfg(target_os = "linux")]
mod command;
#[cfg(target_os = "linux")]
mod exit;
#[cfg(target_os = "linux")]
mod figures;
#[cfg(target_os = "linux")]
mod options;
#[cfg(target_os = "linux")]
mod places;
#[cfg(target_os = "linux")]
mod trial;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    command::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("lab: the load generator and the counters need Linux");
    std::process::exit(3);
}
