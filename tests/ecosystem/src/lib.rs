//! What the tests of this folder share: servers on the kernel's drivers, a runtime for clients, and
//! programs of others that end with the test.
//!
//! `tests/libraries` has libraries of the tokio ecosystem inside handlers; `tests/axum_behaviour`
//! compares what axum answers under its own server and under this one.
//!
//! Start with [`on_both_drivers!`], then `tests/libraries/users.rs`.
#![forbid(unsafe_code)]

/// The code in the guide is compiled, and run, with the documentation's tests: sqlx is here.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/databases.md")]
mod databases {}

mod client;
mod program;
mod serve;

pub use client::client;
pub use program::{Program, find_program, user_id};
pub use serve::{base_url, end, in_runtime, pause, start};

/// Makes a test of each case on each driver that uses the kernel. Cases that need a program which not
/// every machine has begin with `ignored = "needs ..";`: they run when they are asked for, and then
/// fail where the program is missing.
#[macro_export]
macro_rules! on_both_drivers {
    (ignored = $reason:literal; $($case:ident,)*) => {
        $crate::on_both_drivers!(@tests [#[ignore = $reason]] $($case,)*);
    };
    ($($case:ident,)*) => {
        $crate::on_both_drivers!(@tests [] $($case,)*);
    };
    (@tests $attributes:tt $($case:ident,)*) => {
        mod on_tokio {
            $($crate::on_both_drivers!(@test $attributes $case Tokio);)*
        }
        mod on_uring {
            $($crate::on_both_drivers!(@test $attributes $case Uring);)*
        }
    };
    (@test [$($attribute:tt)*] $case:ident $driver:ident) => {
        #[test]
        $($attribute)*
        fn $case() {
            super::$case(::peregrine::DriverChoice::$driver);
        }
    };
}
