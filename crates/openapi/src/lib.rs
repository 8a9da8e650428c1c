//! Generates OpenAPI 3.1 documents from the argument and return types of handlers.
//!
//! Describe a route by calling [`described()`](DescribeExt::described) on its handler, or all
//! routes of a scope with [`api_scope`]. Types inside `Json`, `Path` and other extractors derive
//! [`JsonSchema`]. [`OpenApi`] describes the application as a whole, and adds `/openapi.json` and a
//! page. Documents are created when an application is built, and cost nothing per request. The
//! command `contract` reports which changes between two documents break clients ([`diff`]).
//!
//! `peregrine-web` does not depend on this crate: it stores descriptions as opaque metadata of
//! routes. Start reading with `operation_handler.rs`, then `openapi.rs`.
#![forbid(unsafe_code)]

mod api;
pub mod diff;
mod document;
mod input;
mod openapi;
mod operation;
mod operation_handler;
mod output;
mod parameter;
mod path_template;
mod routes;
mod schemas;
mod security;
#[cfg(test)]
mod tests;

pub use api::{ApiScope, api_scope};
pub use document::{Document, OpenApiError, OpenApiExt};
pub use input::OperationInput;
pub use openapi::{OPENAPI_VERSION, OpenApi, UndescribedRoute};
pub use operation::Operation;
pub use operation_handler::{
    DescribeExt, Described, OperationHandler, OperationMetadata, hidden, operation_defaults,
};
pub use output::{OperationOutput, OperationOutputParts, ResponsesBuilder, WithStatus};
pub use parameter::Parameter;
pub use schemars::{self, JsonSchema};
pub use schemas::Schemas;
pub use security::SecurityScheme;
