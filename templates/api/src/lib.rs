//! The application, which `main.rs` serves and the tests call.

mod birds;

use peregrine::openapi::{OpenApi, api_scope};
use peregrine::prelude::*;

/// The application of one worker. All workers share the birds.
pub fn app() -> App {
    App::new()
        .wrap(RequestId::new())
        .scope("/birds", api_scope(birds::routes))
        .register(OpenApi::new("Birds", env!("CARGO_PKG_VERSION")).require_descriptions())
}
