use peregrine::openapi::{ApiScope, api_scope};
use peregrine::prelude::*;

#[derive(serde::Serialize)]
pub struct Bird {
    pub name: String,
}

async fn show(Path(id): Path<u32>) -> Result<Json<Bird>, Problem> {
    Ok(Json(Bird { name: id.to_string() }))
}

fn birds(api: ApiScope) -> ApiScope {
    api.get("/{id}", show)
}

pub fn app() -> App {
    App::new().scope("/birds", api_scope(birds))
}
