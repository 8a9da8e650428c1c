//! Runs one case against all servers.

use peregrine::tls::rustls::crypto::aws_lc_rs;
use peregrine::{DriverChoice, Limits};
use peregrine_grpc_tests::client::Client;
use peregrine_grpc_tests::serve::{Ours, Theirs, channel};
use peregrine_grpc_tests::service::Seen;
use std::sync::Arc;
use std::time::Duration;

/// A case that runs longer hangs. This is far more than the slowest machine needs.
const CASE_MAX: Duration = Duration::from_secs(200);

/// Runs the clients of a case.
pub(crate) fn in_runtime<F: Future>(case: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().expect("a runtime can be made");
    runtime.block_on(async {
        tokio::time::timeout(CASE_MAX, case).await.expect("the case finishes in time")
    })
}

/// Both kernel drivers.
pub(crate) const DRIVERS: [DriverChoice; 2] = [DriverChoice::Tokio, DriverChoice::Uring];

/// A case's server: a client for it, and its counters.
pub(crate) struct Case {
    pub(crate) client: Client,
    pub(crate) seen: Arc<Seen>,
}

/// A case's summary of its responses.
pub(crate) type Summary = Vec<String>;

/// Runs `case` against every server. Its summary must be the same for each.
pub(crate) fn same(case: impl AsyncFn(Case) -> Summary) {
    in_runtime(async {
        let theirs = Theirs::start().await;
        let client = Client::new(channel(theirs.address()).await);
        let expected = case(Case { client, seen: Arc::clone(&theirs.seen) }).await;
        on_ours(async |case_of_ours, name| {
            assert_eq!(case(case_of_ours).await, expected, "{name} responds differently");
        })
        .await;
    });
}

/// Runs `case` against our server, on each driver, plain and over TLS.
pub(crate) async fn on_ours(case: impl AsyncFn(Case, &str)) {
    for driver in DRIVERS {
        for is_secure in [false, true] {
            let Some(ours) = Ours::start(driver, Limits::default()) else { continue };
            let channel = if is_secure { ours.secure().await } else { ours.plain().await };
            let seen = Arc::clone(&ours.seen);
            let name = format!("{driver:?}, {}", if is_secure { "TLS" } else { "plain" });
            case(Case { client: Client::new(channel), seen }, &name).await;
            tokio::task::spawn_blocking(|| ours.end())
                .await
                .expect("the server shuts down cleanly");
        }
    }
}

/// Waits until `condition` returns true.
pub(crate) async fn wait_until(description: &str, condition: impl Fn() -> bool) {
    for _ in 0..3000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("timed out waiting until {description}");
}

/// An HTTP/1.1 client.
pub(crate) fn http1_client() -> reqwest::Client {
    // The first caller sets it for all tests of the program.
    let _already_set = aws_lc_rs::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().expect("the configuration is valid")
}

/// An HTTP/2 client with prior knowledge.
pub(crate) fn http2_client() -> reqwest::Client {
    let _already_set = aws_lc_rs::default_provider().install_default();
    let builder = reqwest::Client::builder().no_proxy().http2_prior_knowledge();
    builder.build().expect("the configuration is valid")
}
