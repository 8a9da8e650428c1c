//! A handler that is not `async` returns what is no response.

use peregrine::prelude::*;

pub struct Bird;

fn show() -> Bird {
    Bird
}

pub fn app() -> App {
    App::new().get("/", show)
}
