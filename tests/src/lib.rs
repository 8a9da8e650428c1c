//! Suites that run on every driver.
