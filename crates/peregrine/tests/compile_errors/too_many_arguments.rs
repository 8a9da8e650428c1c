//! More arguments than a handler may have.

use peregrine::prelude::*;

type U = Uri;

async fn show(_: U, _: U, _: U, _: U, _: U, _: U, _: U, _: U, _: U, _: U, _: U, _: U, _: U) {}

pub fn app() -> App {
    App::new().get("/", show)
}
