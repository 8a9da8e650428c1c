//! An argument that reads the body stands before another.

use peregrine_web::App;
use peregrine_web::extract::{Json, MatchedPath};

async fn show(Json(name): Json<String>, MatchedPath(path): MatchedPath) -> String {
    name + &path
}

pub fn app() {
    let _ = App::new().get("/", show);
}

peregrine_web::check_handler!(async fn show(_, _));
