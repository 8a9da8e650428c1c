//! Shared parts of the tests in this folder: servers on the kernel drivers, a runtime for clients,
//! and third-party programs that end with the test.
//!
//! `tests/it/libraries` uses libraries of the tokio ecosystem inside handlers;
//! `tests/it/axum_behaviour` compares how axum responds under its own server and under this one.
//!
//! Start with [`on_both_drivers!`], then `tests/it/libraries/users.rs`.
#![forbid(unsafe_code)]

/// The code in the guide is compiled and run with the documentation tests here, where sqlx is a
/// dependency.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/databases.md")]
mod databases {}

mod client;
mod program;
mod serve;

pub use client::client;
pub use program::{Program, find_program, user_id};
pub use serve::{base_url, end, in_runtime, pause, start};

/// Generates a test of each case on each kernel driver. Cases that need a program which not every
/// machine has begin with `ignored = "needs ..";`: they run only on request, and then fail if the
/// program is missing.
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
