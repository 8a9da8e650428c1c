//! The statistics from outside: properties, reference values, simulations and verdicts.

mod properties;
mod reference;
mod simulation;
mod verdicts;
