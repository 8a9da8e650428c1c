//! What axum's own tests hold through a server, held against three servers at once: `axum::serve`,
//! and ours on both kernel drivers. The programs are our own.
//!
//! Each case asserts what axum promises, and that the three answer alike: status, fields, body and
//! trailers. Of the fields, `Date` counts as there or not there, and `Connection` is left out, since
//! it is a matter between neighbours and not of the application. So are the words behind a status
//! (RFC 9110 calls 413 "Content Too Large", the `http` crate "Payload Too Large") and the places
//! where a body is cut into chunks.
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

/// Makes a test of each case, and a list of them for the report.
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
