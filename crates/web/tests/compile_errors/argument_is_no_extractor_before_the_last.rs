//! An argument before the last of a type that nothing makes of a request.

use peregrine_web::App;
use peregrine_web::extract::MatchedPath;

pub struct Bird {
    pub name: String,
}

async fn show(bird: Bird, MatchedPath(path): MatchedPath) -> String {
    bird.name + &path
}

pub fn app() {
    let _ = App::new().get("/", show);
}

peregrine_web::check_handler!(async fn show(_, _));
