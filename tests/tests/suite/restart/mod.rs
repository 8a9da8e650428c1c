//! Restarts without loss: upgrades in place, sockets and notifications of a service manager, the
//! end of a pod, and external faults. The servers are separate processes: this program again.
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

/// Only a hang takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Each case on each kernel driver.
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

/// The child of tests here; it does nothing unless one of them started it.
#[test]
fn the_child_does_what_its_plan_says() {
    program::child();
}
