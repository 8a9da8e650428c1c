//! An argument that is a reference.

use peregrine::prelude::*;

async fn show(text: &str) -> String {
    text.to_owned()
}

pub fn app() -> App {
    App::new().post("/", show)
}
