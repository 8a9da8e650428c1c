//! A metrics-exporter-prometheus recorder that is installed before the server: the application's
//! metrics go there, the server's own stay on the page of the admin listener, and the log says so.
//!
//! A separate test program, because the recorder is process-wide. `our_recorder.rs` has the reverse
//! order.
#![cfg(unix)]

mod admin;

use admin::{get, start};
use metrics_exporter_prometheus::PrometheusBuilder;
use peregrine::DriverChoice;
use peregrine::prelude::App;
use peregrine_ecosystem_tests::{base_url, end, in_runtime};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// The captured log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("the mutex is not poisoned").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_recorder_that_was_there_first_keeps_what_applications_count() {
    let log = Log::default();
    let lines = log.clone();
    tracing_subscriber::fmt().with_writer(move || lines.clone()).init();
    // With buckets, because histograms become summaries otherwise.
    let theirs =
        PrometheusBuilder::new().set_buckets(&[0.1, 1.0]).expect("the bucket list is not empty");
    let theirs = theirs.install_recorder().expect("no recorder was installed before");
    for (choice, driver) in [(DriverChoice::Tokio, "tokio"), (DriverChoice::Uring, "uring")] {
        let page = theirs.clone();
        let make = move || {
            let page = page.clone();
            App::new()
                .get("/order", move || {
                    metrics::counter!("orders_total", "driver" => driver).increment(1);
                    metrics::histogram!("order_seconds", "driver" => driver).record(0.5);
                    "ordered"
                })
                .get("/metrics", move || page.render())
        };
        let Some((running, admin)) = start(choice, make) else { continue };
        let base = base_url(&running);
        in_runtime(async {
            for _ in 0..3 {
                assert_eq!(get(&format!("{base}/order")).await, "ordered");
            }
            let page = get(&format!("{base}/metrics")).await;
            assert!(page.contains(&format!("orders_total{{driver=\"{driver}\"}} 3\n")), "{page}");
            let bucket = format!("order_seconds_bucket{{driver=\"{driver}\",le=\"1\"}} 3\n");
            assert!(page.contains(&bucket), "{page}");
            assert!(
                !page.contains("http_server_request"),
                "the server's metrics are not there: {page}"
            );
            let ours = get(&format!("{admin}/metrics")).await;
            let served = r#"http_server_request_duration_seconds_count{http_request_method="GET",http_route="/order","#;
            assert!(ours.contains(served), "{ours}");
            assert!(!ours.contains("orders_total"), "{ours}");
        });
        end(running);
    }
    let log = String::from_utf8(log.0.lock().expect("the mutex is not poisoned").clone())
        .expect("the bytes are UTF-8");
    assert!(log.contains("another recorder of the crate `metrics` is installed"), "{log}");
}
