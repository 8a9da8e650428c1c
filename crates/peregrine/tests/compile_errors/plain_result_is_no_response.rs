//! A non-`async` handler whose return type is not a response.

use peregrine::prelude::*;

pub struct Bird;

fn show() -> Bird {
    Bird
}

pub fn app() -> App {
    App::new().get("/", show)
}
