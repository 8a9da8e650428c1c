use peregrine::openapi::DescribeExt;
use peregrine::prelude::*;

#[derive(serde::Deserialize)]
pub struct Bird {
    pub name: String,
}

async fn create(Path(id): Path<u32>, Json(bird): Json<Bird>) -> String {
    format!("{id} {}", bird.name)
}

pub fn app() -> App {
    App::new().post("/birds/{id}", create.described())
}
