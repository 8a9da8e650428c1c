//! Where a server listens: addresses, sockets, and what applies to the connections of each.

pub(crate) mod admin;
pub(crate) mod bind;
pub(crate) mod listener;
pub(crate) mod listeners;
pub(crate) mod socket_file;
