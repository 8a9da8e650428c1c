//! Features of applications, tested over real and simulated sockets. They share one program,
//! because each of so many would be linked separately.

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
