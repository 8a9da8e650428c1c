//! What applications are made of, asked over real sockets and simulated ones. One program, since each of so many would be linked
//! for itself.

mod auth;
mod bodies;
mod browsers;
mod callers;
mod compression;
mod layered;
mod multipart;
mod openapi;
mod proxy;
mod proxy_limits;
mod proxy_paths;
mod proxy_tls;
mod rate_limits;
mod responses;
mod sessions;
mod validation;
