//! The error in a handler's `Result` is no response.

use peregrine::prelude::*;

async fn show() -> Result<String, std::io::Error> {
    std::fs::read_to_string("birds.txt")
}

pub fn app() -> App {
    App::new().get("/", show)
}
