//! An `async` closure returns what is no response.

use peregrine::prelude::*;

pub struct Bird;

pub fn app() -> App {
    App::new().get("/", async || Bird)
}
