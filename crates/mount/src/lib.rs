//! Runs tower services in Peregrine applications, and Peregrine applications as tower services.
//!
//! - [`tower`] makes a handler from a tower service over `http` that is `Clone` and accepts
//!   [`SendBody`], such as an axum `Router`; [`Mount::mount`] puts one under a prefix, beside
//!   native routes.
//! - [`layer()`] makes a middleware from a tower layer, such as those of `tower-http` and
//!   `tower-sessions`; [`layer_with_body`] does the same with a layer made for axum's bodies.
//! - [`into_tower`] and [`spawn_tower`] make a tower service from an application, for hyper and
//!   axum.
//!
//! This crate does not depend on axum: everything that axum requires of a server is in the traits
//! of `http-body` and `tower-service`, and in one type of hyper's, for upgrades.
//!
//! To read the code, start with the module `tower`, then `body`, which handles the main difference
//! between tower and Peregrine. For layers, read `layer`, then `passage`.
#![forbid(unsafe_code)]

mod bodied;
mod body;
mod body_channel;
mod call;
mod error;
mod facts;
mod grpc;
mod layer;
mod local;
mod nest;
mod origin;
mod passage;
mod reach;
mod remote;
mod request;
mod response;
mod rest;
mod restore;
mod timer;
mod tower;
mod upgrade;

pub use bodied::{InnerWithBody, InnerWithBodyFuture, OuterWithBody, WithBody, layer_with_body};
pub use body::SendBody;
pub use error::BoxError;
pub use layer::{Inner, InnerFuture, Layered, layer};
pub use local::{LocalFuture, LocalMake, LocalService, into_make_service, into_tower};
pub use nest::Mount;
pub use reach::{Direct, Failure, PerPeer, Reach, Waiting};
pub use remote::{RemoteFuture, RemoteService, SpawnError, spawn_tower};
pub use request::OriginalUri;
pub use tower::{IntoTower, Tower, ViaMake, ViaService, ViaTower, tower};
