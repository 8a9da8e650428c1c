//! Tower services and layers in Peregrine applications, and Peregrine applications as tower
//! services.

mod body_limits;
mod identities;
mod into_tower;
mod layers;
mod mounting;
mod send;
mod upgrades;
