//! A JSON body of a type without `Deserialize`.

use peregrine::prelude::*;

pub struct Bird {
    pub name: String,
}

async fn show(Json(bird): Json<Bird>) -> String {
    bird.name
}

pub fn app() -> App {
    App::new().post("/", show)
}
