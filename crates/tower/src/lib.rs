//! Runs tower services in Peregrine applications, and Peregrine applications as tower services.
//!
//! - [`tower`] converts a tower service, such as an axum `Router`, into a handler. The service must
//!   be `Clone` and accept an `http::Request` with a [`SendBody`]. [`Mount::mount`] mounts a
//!   service under a prefix, beside native routes.
//! - [`layer()`] converts a tower layer into a middleware, such as a layer of `tower-http` or
//!   `tower-sessions`. [`layer_with_body`] does the same for a layer that requires axum's body
//!   type.
//! - [`into_tower`] and [`spawn_tower`] convert an application into a tower service, which hyper
//!   and axum can run.
//!
//! This crate does not depend on axum. To run an axum router, it needs only the traits of
//! `http-body` and `tower-service`, and hyper's `OnUpgrade` type for upgrades.
//!
//! To read the code, start with the module `handler`, then read `body`: tower services usually
//! require bodies that are `Send`, and Peregrine's bodies are not. For layers, read `layer`, then
//! `request_table`.
#![forbid(unsafe_code)]

mod after_response;
mod app_service;
mod body;
mod body_channel;
mod call;
mod dispatch;
mod error;
mod extensions;
mod grpc;
mod handler;
mod layer;
mod nest;
mod original;
mod request;
mod request_table;
mod response;
mod restore;
mod spawned;
mod timer;
mod upgrade;
mod with_body;

pub use app_service::{AppFuture, AppService, MakeAppService, into_make_service, into_tower};
pub use body::SendBody;
pub use dispatch::{Dispatch, OneshotFuture, PerConnection, SharedService, TowerError};
pub use error::BoxError;
pub use handler::{IntoTowerHandler, TowerHandler, ViaMake, ViaService, ViaTowerHandler, tower};
pub use layer::{LayerMiddleware, NextFuture, NextService, layer};
pub use nest::Mount;
pub use request::OriginalUri;
pub use spawned::{SpawnError, SpawnedFuture, SpawnedService, spawn_tower};
pub use with_body::{
    LayerWithBody, NextFutureWithBody, NextServiceWithBody, ServiceWithBody, layer_with_body,
};
