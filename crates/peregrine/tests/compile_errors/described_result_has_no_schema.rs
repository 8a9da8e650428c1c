use peregrine::openapi::{Api, describe};
use peregrine::prelude::*;

#[derive(serde::Serialize)]
pub struct Bird {
    pub name: String,
}

async fn show(Path(id): Path<u32>) -> Result<Json<Bird>, Problem> {
    Ok(Json(Bird { name: id.to_string() }))
}

fn birds(api: Api) -> Api {
    api.get("/{id}", show)
}

pub fn app() -> App {
    App::new().scope("/birds", describe(birds))
}
