//! Counters with one writer each, and the page on which Prometheus reads them.
//!
//! A worker counts in memory of its own, by plain loads and stores: no lock, no atomic addition, no
//! allocation, and no line of the cache that another worker writes to. Whoever writes a page reads the
//! counters of all workers from another thread and adds them up.
//!
//! It is not a registry: what is counted, and by which names it is shown, is decided by whoever counts.
//! There is no clock and no I/O here.
//!
//! Start with `count.rs`; `page.rs` writes pages in both formats that Prometheus reads.
#![forbid(unsafe_code)]

mod count;
mod few;
mod format;
mod histogram;
mod page;
mod table;

pub use count::{Count, Level};
pub use few::Few;
pub use format::Format;
pub use histogram::{Buckets, Histogram};
pub use page::{Family, Kind, Labels, Page, Value};
pub use table::Table;
