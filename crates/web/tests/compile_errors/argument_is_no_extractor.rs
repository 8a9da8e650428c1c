//! An argument of a type that nothing makes of a request.

use peregrine_web::App;

pub struct Bird {
    pub name: String,
}

async fn show(bird: Bird) -> String {
    bird.name
}

pub fn app() {
    let _ = App::new().get("/", show);
}

peregrine_web::check_handler!(async fn show(_));
