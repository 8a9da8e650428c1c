//! Tower services and layers inside Peregrine, and Peregrine inside tower.

mod body_limits;
mod identities;
mod layers;
mod mounting;
mod send;
mod upgrades;
mod way_out;
