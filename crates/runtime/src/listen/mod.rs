//! Listeners: their addresses and sockets, and the settings of their connections.

pub(crate) mod admin;
pub(crate) mod bind;
pub(crate) mod listener;
pub(crate) mod listeners;
pub(crate) mod socket_file;
