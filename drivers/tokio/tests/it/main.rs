//! Tests of the portable driver beyond the suite for all drivers.

mod allocation;
mod running;
