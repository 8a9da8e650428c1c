//! An `async` handler returns what is no response.

use peregrine::prelude::*;

pub struct Bird;

async fn show() -> Bird {
    Bird
}

pub fn app() -> App {
    App::new().get("/", show)
}
