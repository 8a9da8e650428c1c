//! OpenAPI 3.1 from the handlers of an application: what they take and what they return is what the document says.
//!
//! A route is described by [`described()`](DescribeExt::described) on its handler, or with all others of its scope by
//! [`describe`]; what is inside of `Json`, `Path` and the others derives [`JsonSchema`]. [`OpenApi`] says what the
//! whole is, and adds `/openapi.json` and a page. Documents are made when an application is built; requests pay
//! nothing. The command `contract` tells what between two documents breaks clients ([`diff`]).
//!
//! Nothing here is known to `peregrine-web`: descriptions are notes beside routes. Start with `handler.rs`, then
//! `openapi.rs`.
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
