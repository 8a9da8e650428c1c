//! Handlers as they should be.

use http::{Method, StatusCode};
use peregrine_web::extract::{Form, Json, Path, Query, State};
use peregrine_web::{App, IntoResponse, Problem};

#[derive(Clone, serde::Deserialize, serde::Serialize)]
pub struct Bird {
    pub name: String,
}

async fn show(Path(id): Path<u64>, Query(bird): Query<Bird>, State(_): State<Bird>) -> String {
    format!("{id} {}", bird.name)
}

async fn add(method: Method, bird: Option<Json<Bird>>) -> Result<impl IntoResponse, Problem> {
    Ok((StatusCode::CREATED, [("x-method", method.to_string())], bird.map(|Json(bird)| bird.name).unwrap_or_default()))
}

async fn change(form: Result<Form<Bird>, Problem>) -> Result<Json<Bird>, Problem> {
    form.map(|Form(bird)| Json(bird))
}

pub fn app(bird: Bird) {
    let _ = App::new().get("/{id}", show).post("/", add).put("/", change).state(bird);
}

fn health() -> &'static str {
    "well"
}

peregrine_web::check_handler!(async fn show(_, _, _));
peregrine_web::check_handler!(async fn add(_, _));
peregrine_web::check_handler!(async fn change(_));
peregrine_web::check_handler!(fn health());
