//! Valid handlers and middleware, which compile.

use peregrine::prelude::*;
use std::cell::Cell;

#[derive(Clone, serde::Deserialize, serde::Serialize)]
pub struct Bird {
    pub name: String,
}

async fn show(Path(id): Path<u64>, Query(bird): Query<Bird>, State(_): State<Bird>) -> String {
    format!("{id} {}", bird.name)
}

async fn add(method: Method, bird: Option<Json<Bird>>) -> Result<impl IntoResponse, Problem> {
    let name = bird.map(|Json(bird)| bird.name).unwrap_or_default();
    Ok((StatusCode::CREATED, [("x-method", method.to_string())], name))
}

async fn change(form: Result<Form<Bird>, Problem>) -> Result<Json<Bird>, Problem> {
    form.map(|Form(bird)| Json(bird))
}

fn health() -> &'static str {
    "well"
}

async fn guard(_: HeaderMap, request: Request, next: Next<'_>) -> Response {
    next.run(request).await
}

pub fn app(bird: Bird) -> App {
    let (count, greeting) = (Cell::new(0), String::from("hello"));
    App::new()
        .wrap(guard)
        .wrap(from_fn(guard))
        .wrap(async |request: Request, next: Next<'_>| next.run(request).await)
        .get("/{id}", show)
        .post("/", add)
        .put("/", change)
        .get("/health", health)
        .get("/count", move || {
            count.set(count.get() + 1);
            count.get().to_string()
        })
        .get("/greeting", async move || greeting.clone())
        .post("/text", (async |text: String| text).body_limit(4))
        .state(bird)
}

check_handler!(async fn show(_, _, _));
check_handler!(async fn add(_, _));
check_handler!(async fn change(_));
check_handler!(fn health());
