//! The application. `main.rs` serves it, and the tests call it.

mod birds;

use peregrine::openapi::{OpenApi, describe};
use peregrine::prelude::*;

/// What each worker serves. The birds are shared by all of them.
pub fn app() -> App {
    App::new()
        .with(RequestId::new())
        .scope("/birds", describe(birds::routes))
        .add(OpenApi::new("Birds", env!("CARGO_PKG_VERSION")).all_described())
}
