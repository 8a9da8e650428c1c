//! Tests of whole servers, on every driver.
//!
//! Many of these tests start further processes: this program again, with `--exact` and the name of
//! a test that does nothing unless an environment variable marks it as a child.

mod abuse;
mod access_log;
mod acme;
mod applications;
mod axum_router;
mod certificates;
mod clients;
mod configuration;
mod dashboards;
mod driver_contract;
mod ending;
mod files;
mod identities;
mod isolated;
mod logs;
mod metrics;
mod mounted;
mod otlp;
mod overload;
mod protocols;
mod random;
mod resources;
mod restart;
mod server;
mod spreading;
mod starting;
mod table;
mod tokio_inside;
mod turns;
