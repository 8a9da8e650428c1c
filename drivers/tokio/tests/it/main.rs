//! What the portable driver does beyond the common suite.

mod allocation;
mod running;
