//! gRPC calls of every kind, as clients see them. Each case runs against tonic's own server and
//! against ours, on both kernel drivers, plain and over TLS; all responses must be the same.

mod calls;
mod cancelled;
mod compare;
mod neighbours;
mod web;
