//! A JSON body of a type without `Deserialize`.

use peregrine_web::App;
use peregrine_web::extract::Json;

pub struct Bird {
    pub name: String,
}

async fn show(Json(bird): Json<Bird>) -> String {
    bird.name
}

pub fn app() {
    let _ = App::new().post("/", show);
}

peregrine_web::check_handler!(async fn show(_));
