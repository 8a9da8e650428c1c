//! Reports from outside.

mod report;
mod svg;
mod synthetic;
