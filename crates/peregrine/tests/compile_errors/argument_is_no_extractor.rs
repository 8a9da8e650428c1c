//! A last argument whose type is not an extractor.

use peregrine::prelude::*;

pub struct Bird {
    pub name: String,
}

async fn show(bird: Bird) -> String {
    bird.name
}

pub fn app() -> App {
    App::new().get("/", show)
}
