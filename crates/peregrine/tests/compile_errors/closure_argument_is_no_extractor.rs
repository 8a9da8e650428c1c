//! A closure with an argument that nothing makes of a request.

use peregrine::prelude::*;

pub struct Bird {
    pub name: String,
}

pub fn app() -> App {
    App::new().get("/", |bird: Bird| bird.name)
}
