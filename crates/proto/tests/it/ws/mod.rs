//! WebSocket through the public types: table cases, cuts, conversations, floods, compression, and
//! oracles.

mod cases;
mod compression;
mod conformance;
mod handshake;
mod inflater;
mod notation;
mod play;
mod sending;
mod utf8;
