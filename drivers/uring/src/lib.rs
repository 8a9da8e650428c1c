//! The Linux io_uring driver.
