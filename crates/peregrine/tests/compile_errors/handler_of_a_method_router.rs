//! An invalid handler in a method router.

use peregrine::prelude::*;
use peregrine::web::route;

pub struct Bird {
    pub name: String,
}

async fn show(bird: Bird) -> String {
    bird.name
}

pub fn app() -> App {
    App::new().route("/", route::get(|| "hello").post(show))
}
