//! What is given as a middleware is none.

use peregrine::prelude::*;

pub struct Guard;

pub fn app() -> App {
    App::new().with(Guard).get("/", || "hello")
}
