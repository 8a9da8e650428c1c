//! A handler with more arguments than allowed.

use peregrine::prelude::*;

type U = Uri;

async fn show(_: U, _: U, _: U, _: U, _: U, _: U, _: U, _: U, _: U, _: U, _: U, _: U, _: U) {}

pub fn app() -> App {
    App::new().get("/", show)
}
