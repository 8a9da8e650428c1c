//! Single-writer counters, and their export in the Prometheus text format.
//!
//! A worker counts in its own memory with plain loads and stores: without locks, atomic additions
//! or allocations, and without cache lines that another worker writes to. To write a page, another
//! thread reads the counters of all workers and adds them up.
//!
//! This is not a registry: the code that counts chooses the events and the exported names. This
//! crate uses neither a clock nor I/O.
//!
//! Start with `counter.rs`; `exposition.rs` writes pages in both formats that Prometheus reads.
#![forbid(unsafe_code)]

mod counter;
mod counter_set;
mod exposition;
mod format;
mod histogram;
mod metric_map;

pub use counter::{Counter, Gauge};
pub use counter_set::CounterSet;
pub use exposition::{Exposition, Labels, MetricFamily, MetricType, SampleValue};
pub use format::ExpositionFormat;
pub use histogram::{Histogram, HistogramSnapshot};
pub use metric_map::MetricMap;
