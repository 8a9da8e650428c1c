//! A server with an admin listener, and its pages.

use peregrine::prelude::{App, Server};
use peregrine::{DriverChoice, Error, Limits, ListenAddr, RunningServer};
use peregrine_ecosystem_tests::client;
use std::num::NonZeroUsize;
use std::time::Duration;

/// The server, and the URL of its admin listener; `None` if the kernel refuses the driver.
pub(crate) fn start<M>(choice: DriverChoice, make: M) -> Option<(RunningServer, String)>
where
    M: Fn() -> App + Clone + Send + 'static,
{
    // The client's tasks outlive the first of several servers.
    let limits = Limits { background_task_timeout: Duration::ZERO, ..Limits::default() };
    let server = Server::bind("127.0.0.1:0").admin("127.0.0.1:0").driver(choice);
    let server = server.workers(NonZeroUsize::MIN).limits(limits).quiet();
    let running = match server.start(make) {
        Err(error @ Error::Driver { .. }) => {
            eprintln!("skipped: {error}");
            return None;
        }
        running => running.expect("the server starts"),
    };
    let admin = match running.admin_address() {
        Some(ListenAddr::Tcp(address)) => format!("http://{address}"),
        other => panic!("the admin listener has no TCP address: {other:?}"),
    };
    Some((running, admin))
}

/// The body of a page.
pub(crate) async fn get(url: &str) -> String {
    let response = client(None).get(url).send().await.expect("the server responds");
    assert_eq!(response.status(), 200, "{url}");
    response.text().await.expect("a body")
}
