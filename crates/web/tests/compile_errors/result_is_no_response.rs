//! A handler returns what is no response.

use peregrine_web::App;

pub struct Bird;

async fn show() -> Bird {
    Bird
}

pub fn app() {
    let _ = App::new().get("/", show);
}

peregrine_web::check_handler!(async fn show());
