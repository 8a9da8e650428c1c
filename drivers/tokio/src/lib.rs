//! The portable driver.
