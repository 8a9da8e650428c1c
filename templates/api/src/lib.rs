//! The application, which `main.rs` serves and the tests call.

mod birds;

use peregrine::openapi::{OpenApi, describe};
use peregrine::prelude::*;

/// The application of one worker. All workers share the birds.
pub fn app() -> App {
    App::new()
        .with(RequestId::new())
        .scope("/birds", describe(birds::routes))
        .add(OpenApi::new("Birds", env!("CARGO_PKG_VERSION")).all_described())
}
