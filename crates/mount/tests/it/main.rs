//! Tower services and layers inside Peregrine, and Peregrine inside tower.

mod layers;
mod mounting;
mod send;
mod upgrades;
mod way_out;
