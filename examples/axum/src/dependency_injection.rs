//! Handlers that are independent of their storage: through a trait object and through a type
//! parameter.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};

/// The application: the same routes twice, with one store.
pub fn app() -> Router {
    let store = InMemory::default();
    let by_object = Router::new()
        .route("/birds", post(create_by_object))
        .route("/birds/{id}", get(find_by_object))
        .with_state(Arc::new(store.clone()) as Object);
    let by_type = Router::new()
        .route("/birds", post(create_by_type::<InMemory>))
        .route("/birds/{id}", get(find_by_type::<InMemory>))
        .with_state(store);
    Router::new().nest("/object", by_object).nest("/type", by_type)
}

trait Birds: Send + Sync {
    fn add(&self, name: String) -> Bird;
    fn find(&self, id: usize) -> Option<Bird>;
}

type Object = Arc<dyn Birds>;

#[derive(Clone, Serialize)]
struct Bird {
    id: usize,
    name: String,
}

#[derive(Deserialize)]
struct New {
    name: String,
}

async fn create_by_object(State(birds): State<Object>, Json(new): Json<New>) -> Json<Bird> {
    Json(birds.add(new.name))
}

async fn find_by_object(
    State(birds): State<Object>,
    Path(id): Path<usize>,
) -> Result<Json<Bird>, StatusCode> {
    birds.find(id).map(Json).ok_or(StatusCode::NOT_FOUND)
}

async fn create_by_type<B: Birds>(State(birds): State<B>, Json(new): Json<New>) -> Json<Bird> {
    Json(birds.add(new.name))
}

async fn find_by_type<B: Birds>(
    State(birds): State<B>,
    Path(id): Path<usize>,
) -> Result<Json<Bird>, StatusCode> {
    birds.find(id).map(Json).ok_or(StatusCode::NOT_FOUND)
}

#[derive(Clone, Default)]
struct InMemory(Arc<Mutex<Vec<Bird>>>);

impl Birds for InMemory {
    fn add(&self, name: String) -> Bird {
        let mut birds = self.0.lock().expect("no panic while the lock is held");
        let bird = Bird { id: birds.len(), name };
        birds.push(bird.clone());
        bird
    }

    fn find(&self, id: usize) -> Option<Bird> {
        self.0.lock().expect("no panic while the lock is held").get(id).cloned()
    }
}
