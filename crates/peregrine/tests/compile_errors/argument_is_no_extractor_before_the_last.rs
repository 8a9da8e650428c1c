//! An argument before the last whose type is not an extractor.

use peregrine::prelude::*;

pub struct Bird {
    pub name: String,
}

fn show(bird: Bird, MatchedPath(path): MatchedPath) -> String {
    bird.name + &path
}

pub fn app() -> App {
    App::new().get("/", show)
}
