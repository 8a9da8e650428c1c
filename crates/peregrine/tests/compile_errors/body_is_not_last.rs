//! An argument that reads the body, before another argument.

use peregrine::prelude::*;

async fn show(Json(name): Json<String>, MatchedPath(path): MatchedPath) -> String {
    name + &path
}

pub fn app() -> App {
    App::new().post("/", show)
}
