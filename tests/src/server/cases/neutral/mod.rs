//! Rules for every protocol, written once: each case runs over HTTP/1.1 and HTTP/2, plain and with
//! TLS, on every driver.
//!
//! Where the protocols differ, a case states both results with [`Way::differs`]. The table of
//! `docs/protocols.md` has a row for each case, with the reason for each difference;
//! `tests/tests/suite/table.rs` checks that the two agree.

pub mod bodies;
pub mod ends;
pub mod faults;
pub mod heads;
pub mod large;
pub mod observability;
pub mod times;

use super::limits;
use crate::server::app::Shared;
use crate::server::bench::{Bench, Outcome, Served};
use crate::server::client::{Client, Way};
use crate::server::secure::server_tls;
use peregrine::{IntoBuiltApp, Limits};
use std::time::Duration;

/// A timeout that expires soon.
const SHORT: Duration = Duration::from_millis(700);
/// The content type of problem responses.
const PROBLEM: Option<&str> = Some("application/problem+json");

/// A server, and how clients connect to it.
struct Site<B: Bench> {
    server: B::Server,
    way: Way,
    shared: Shared,
}

/// A server with the application of all cases.
fn begin<B: Bench>(bench: &B, way: Way) -> Site<B> {
    begin_with(bench, way, limits())
}

/// A server with the application of all cases and these limits.
fn begin_with<B: Bench>(bench: &B, way: Way, limits: Limits) -> Site<B> {
    let shared = Shared::default();
    let server = bench.start(limits, way.is_secure().then(server_tls), shared.app());
    Site { server, way, shared }
}

/// A server with these limits and the application that `make` returns.
fn begin_app<B, A, M>(bench: &B, way: Way, limits: Limits, make: M) -> Site<B>
where
    B: Bench,
    A: IntoBuiltApp + 'static,
    M: Fn() -> A + Clone + Send + 'static,
{
    let server = bench.start(limits, way.is_secure().then(server_tls), make);
    Site { server, way, shared: Shared::default() }
}

impl<B: Bench> Site<B> {
    async fn client(&self) -> Client<B::Wire> {
        self.way.connect(&self.server).await
    }

    /// Ends the server and asserts that no connection was aborted.
    async fn end(self) -> Outcome {
        self.server.shut_down();
        let outcome = self.server.ended().await;
        assert_eq!(outcome.cut, [], "{:?}", self.way);
        outcome
    }
}
