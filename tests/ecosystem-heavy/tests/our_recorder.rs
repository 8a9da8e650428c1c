//! A server whose recorder is the first, and a program that installs that of metrics-exporter-prometheus afterwards: it is
//! told that it cannot, and what is counted is on the page of the admin listener.
//!
//! A file of its own, because the recorder is the process's. The reverse is in `their_recorder.rs`.
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
        let refused = PrometheusBuilder::new().install_recorder().expect_err("ours is there");
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
