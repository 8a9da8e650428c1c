//! A closure with an argument whose type is not an extractor.

use peregrine::prelude::*;

pub struct Bird {
    pub name: String,
}

pub fn app() -> App {
    App::new().get("/", |bird: Bird| bird.name)
}
