//! A type without `Middleware` as middleware.

use peregrine::prelude::*;

pub struct Guard;

pub fn app() -> App {
    App::new().wrap(Guard).get("/", || "hello")
}
