//! A handler returns a `Result` whose error is not a response.

use peregrine::prelude::*;

async fn show() -> Result<String, std::io::Error> {
    std::fs::read_to_string("birds.txt")
}

pub fn app() -> App {
    App::new().get("/", show)
}
