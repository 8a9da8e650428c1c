//! Traces of requests on every driver.

use peregrine::prelude::*;
use peregrine::trace::TraceConfig;
use peregrine::{DriverChoice, Error};
use peregrine_tests::server::{KernelBenches, SimulatedBenches};
use peregrine_tests::traced;

traced!(sim, SimulatedBenches::seeds(0..10));
traced!(tokio, KernelBenches::tcp(DriverChoice::Tokio));
traced!(uring, KernelBenches::tcp(DriverChoice::Uring));

#[test]
fn settings_that_cannot_be_are_errors_at_start() {
    for (traces, says) in [
        (TraceConfig::new().sample_ratio(2.0), "from 0.0 (none) to 1.0 (all)"),
        (TraceConfig::new().route_sample_ratio("/nowhere", 0.5), "no such route; it has /hello"),
    ] {
        let server = Server::bind("127.0.0.1:0").traces(traces).quiet();
        let error = server
            .start(|| App::new().get("/hello", || "hello"))
            .expect_err("the server does not start");
        assert!(matches!(error, Error::Config(_)) && error.to_string().contains(says), "{error}");
    }
}
