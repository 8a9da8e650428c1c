//! Generates OpenAPI 3.1 documents from the argument and return types of handlers.
//!
//! Describe a route by calling [`described()`](DescribeExt::described) on its handler, or all
//! routes of a scope with [`describe`]. Types inside `Json`, `Path` and other extractors derive
//! [`JsonSchema`]. [`OpenApi`] describes the application as a whole, and adds `/openapi.json` and a
//! page. Documents are created when an application is built, and cost nothing per request. The
//! command `contract` reports which changes between two documents break clients ([`diff`]).
//!
//! `peregrine-web` knows nothing of this crate: descriptions are notes attached to routes. Start
//! reading with `handler.rs`, then `openapi.rs`.
#![forbid(unsafe_code)]

mod api;
mod argument;
pub mod diff;
mod document;
mod handler;
mod openapi;
mod operation;
mod parameter;
mod publish;
mod response;
mod schemas;
mod security;
mod template;
#[cfg(test)]
mod tests;

pub use api::{Api, describe};
pub use argument::DescribeArgument;
pub use document::{Document, HasOpenApi, OpenApiError};
pub use handler::{Describe, DescribeExt, Described, Note, for_all, hidden};
pub use openapi::{OpenApi, Undescribed, VERSION};
pub use operation::Operation;
pub use parameter::Parameter;
pub use response::{DescribeParts, DescribeResponse, Responses, StatusResponse as Status};
pub use schemars::{self, JsonSchema};
pub use schemas::Schemas;
pub use security::SecurityScheme;
