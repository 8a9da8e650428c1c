//! A JSON response of a type without `Serialize`.

use peregrine::prelude::*;

pub struct Bird {
    pub name: String,
}

async fn show() -> Json<Bird> {
    Json(Bird { name: String::from("kestrel") })
}

pub fn app() -> App {
    App::new().get("/", show)
}
