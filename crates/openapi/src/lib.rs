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
mod input;
pub mod diff;
mod document;
mod operation_handler;
mod openapi;
mod operation;
mod parameter;
mod routes;
mod output;
mod schemas;
mod security;
mod path_template;
#[cfg(test)]
mod tests;

pub use api::{ApiScope, api_scope};
pub use input::OperationInput;
pub use document::{Document, OpenApiExt, OpenApiError};
pub use operation_handler::{OperationHandler, DescribeExt, Described, OperationMetadata, operation_defaults, hidden};
pub use openapi::{OpenApi, UndescribedRoute, OPENAPI_VERSION};
pub use operation::Operation;
pub use parameter::Parameter;
pub use output::{OperationOutputParts, OperationOutput, ResponsesBuilder, WithStatus};
pub use schemars::{self, JsonSchema};
pub use schemas::Schemas;
pub use security::SecurityScheme;
