//! HTTP/2 through the public types: table cases, cuts, attacks, and an oracle for HPACK.

mod abuse;
mod cases;
mod hpack;
mod play;
mod sending;
mod windows;
mod wire;
