//! An `async` closure whose return type is not a response.

use peregrine::prelude::*;

pub struct Bird;

pub fn app() -> App {
    App::new().get("/", async || Bird)
}
