//! An invalid handler with route options.

use peregrine::prelude::*;
use std::time::Duration;

pub struct Bird {
    pub name: String,
}

async fn show(bird: Bird) -> String {
    bird.name
}

pub fn app() -> App {
    App::new().get("/", show.timeout(Duration::from_secs(1)))
}
