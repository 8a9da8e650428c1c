//! Restarts without loss: upgrades in place, sockets of a service manager and what that is told, the
//! end of a pod, and trouble from outside. The servers are processes of their own: this program again.
#![cfg(target_os = "linux")]

mod estate;
mod faults;
mod load;
mod managed;
mod pod;
mod program;
mod trouble;
mod upgrade;

use std::time::Duration;

/// Only a hang takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Each case on each driver that uses the kernel.
macro_rules! on_both_drivers {
    ($($case:ident,)*) => {
        mod on_tokio {
            $(#[test] fn $case() { super::$case("tokio"); })*
        }
        mod on_uring {
            $(#[test] fn $case() {
                if crate::restart::program::has_uring() {
                    super::$case("uring");
                }
            })*
        }
    };
}
pub(crate) use on_both_drivers;

/// The other half of the tests here; it does nothing unless one of them started it.
#[test]
fn the_child_does_what_its_plan_says() {
    program::child();
}
