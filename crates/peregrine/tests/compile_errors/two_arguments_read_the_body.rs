//! Two arguments that read the body.

use peregrine::prelude::*;

async fn show(Json(name): Json<String>, text: String) -> String {
    name + &text
}

pub fn app() -> App {
    App::new().post("/", show)
}
