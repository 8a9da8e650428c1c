//! A server whose recorder is installed first, and a program that then tries to install
//! metrics-exporter-prometheus: the installation fails, and its metrics are on the page of the
//! admin listener.
//!
//! A separate test program, because the recorder is process-wide. `their_recorder.rs` has the
//! reverse order.
#![cfg(unix)]

mod admin;

use admin::{get, start};
use metrics_exporter_prometheus::PrometheusBuilder;
use peregrine::DriverChoice;
use peregrine::prelude::App;
use peregrine_ecosystem_tests::{base_url, end, in_runtime};

#[test]
fn a_recorder_that_comes_later_is_refused() {
    for (choice, driver) in [(DriverChoice::Tokio, "tokio"), (DriverChoice::Uring, "uring")] {
        let make = move || {
            App::new().get("/order", move || {
                metrics::counter!("orders_total", "driver" => driver).increment(1);
                "ordered"
            })
        };
        let Some((running, admin)) = start(choice, make) else { continue };
        let refused =
            PrometheusBuilder::new().install_recorder().expect_err("our recorder is installed");
        assert!(refused.to_string().contains("global recorder"), "{refused}");
        let base = base_url(&running);
        in_runtime(async {
            for _ in 0..3 {
                assert_eq!(get(&format!("{base}/order")).await, "ordered");
            }
            let page = get(&format!("{admin}/metrics")).await;
            assert!(page.contains(&format!("orders_total{{driver=\"{driver}\"}} 3\n")), "{page}");
        });
        end(running);
    }
}
