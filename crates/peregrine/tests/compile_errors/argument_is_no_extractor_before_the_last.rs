//! An argument before the last of a type that nothing makes of a request.

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
