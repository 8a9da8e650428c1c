//! The behaviour that axum's own tests check through a server, checked on three servers at once:
//! `axum::serve`, and Peregrine on both kernel drivers. The programs are our own.
//!
//! Each case asserts what axum guarantees, and that the three respond alike: status, fields, body
//! and trailers. `Date` only counts as present or absent, and `Connection` is left out, because it
//! is hop-by-hop and not the application's. Reason phrases (RFC 9110 calls 413 "Content Too Large",
//! the `http` crate "Payload Too Large") and chunk boundaries are left out too.
//!
//! `cargo test -p peregrine-ecosystem-tests --test it -- --ignored axum_behaviour` writes the table
//! in `docs/results/axum-behaviour`.
#![cfg(unix)]

mod bodies;
mod compare;
mod connections;
mod extractors;
mod fallbacks;
mod layers;
mod methods;
mod nesting;
mod reply;
mod report;
mod responses;
mod routing;
mod sockets;
mod streams;

/// Generates a test of each case, and a list of them for the report.
macro_rules! cases {
    ($($case:ident,)*) => {
        pub(crate) const CASES: &[(&str, crate::axum_behaviour::compare::Run)] =
            &[$((stringify!($case), $case),)*];

        mod on_three_servers {
            $(
                #[test]
                fn $case() {
                    crate::axum_behaviour::compare::check(super::$case);
                }
            )*
        }
    };
}
pub(crate) use cases;
