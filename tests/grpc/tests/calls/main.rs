//! gRPC calls: every kind of them, as clients see them. Each case runs against tonic's own server and
//! against ours, on both drivers that use the kernel, plain and over TLS; all answers must be the same.

mod calls;
mod cancelled;
mod compare;
mod neighbours;
mod web;
