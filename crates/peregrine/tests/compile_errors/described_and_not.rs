use peregrine::openapi::schemars;
use peregrine::openapi::{DescribeExt, JsonSchema, WithStatus};
use peregrine::prelude::*;

#[derive(serde::Deserialize, serde::Serialize, JsonSchema)]
pub struct Bird {
    pub name: String,
}

/// Does not implement `JsonSchema`.
#[derive(serde::Deserialize, serde::Serialize)]
pub struct Plain {
    pub name: String,
}

async fn create(Path(_): Path<u32>, Json(bird): Json<Bird>) -> Result<WithStatus<201, Json<Bird>>, Problem> {
    Ok(WithStatus(Json(bird)))
}

async fn plain(Json(plain): Json<Plain>) -> Json<Plain> {
    Json(plain)
}

pub fn app() -> App {
    App::new().post("/birds/{id}", create.described().body_limit(10).named("x")).post("/plain", plain)
}
