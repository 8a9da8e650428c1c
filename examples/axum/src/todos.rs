//! A todo list as JSON, with a time limit on every route.

use axum::error_handling::HandleErrorLayer;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, patch};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tower::timeout::error::Elapsed;
use tower::{BoxError, ServiceBuilder};
use tower_http::trace::TraceLayer;

/// The application, with a time limit of ten seconds.
pub fn app() -> Router {
    app_with_limit(Duration::from_secs(10))
}

/// The application with another time limit.
pub fn app_with_limit(limit: Duration) -> Router {
    Router::new()
        .route("/todos", get(list).post(create))
        .route("/todos/{id}", patch(update).delete(remove))
        .route("/todos/export", get(export))
        .layer(
            ServiceBuilder::new()
                .layer(HandleErrorLayer::new(answer_for))
                .timeout(limit)
                .layer(TraceLayer::new_for_http()),
        )
        .with_state(Todos::default())
}

async fn answer_for(error: BoxError) -> impl IntoResponse {
    if error.is::<Elapsed>() {
        (StatusCode::REQUEST_TIMEOUT, "The request timed out.".to_owned())
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, format!("The request failed: {error}"))
    }
}

#[derive(Clone, Default)]
struct Todos(Arc<Mutex<Stored>>);

#[derive(Default)]
struct Stored {
    last_id: u64,
    todos: BTreeMap<u64, Todo>,
}

impl Todos {
    fn lock(&self) -> MutexGuard<'_, Stored> {
        self.0.lock().expect("no panic while the lock is held")
    }
}

#[derive(Clone, Serialize)]
struct Todo {
    id: u64,
    text: String,
    done: bool,
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    offset: usize,
    limit: Option<usize>,
}

async fn list(Query(page): Query<Page>, State(todos): State<Todos>) -> Json<Vec<Todo>> {
    let stored = todos.lock();
    let wanted = stored.todos.values().skip(page.offset).take(page.limit.unwrap_or(usize::MAX));
    Json(wanted.cloned().collect())
}

#[derive(Deserialize)]
struct New {
    text: String,
}

async fn create(State(todos): State<Todos>, Json(new): Json<New>) -> impl IntoResponse {
    let mut stored = todos.lock();
    stored.last_id += 1;
    let todo = Todo { id: stored.last_id, text: new.text, done: false };
    stored.todos.insert(todo.id, todo.clone());
    (StatusCode::CREATED, Json(todo))
}

#[derive(Deserialize)]
struct Change {
    text: Option<String>,
    done: Option<bool>,
}

async fn update(
    Path(id): Path<u64>,
    State(todos): State<Todos>,
    Json(change): Json<Change>,
) -> Result<Json<Todo>, StatusCode> {
    let mut stored = todos.lock();
    let todo = stored.todos.get_mut(&id).ok_or(StatusCode::NOT_FOUND)?;
    if let Some(text) = change.text {
        todo.text = text;
    }
    if let Some(done) = change.done {
        todo.done = done;
    }
    Ok(Json(todo.clone()))
}

async fn remove(Path(id): Path<u64>, State(todos): State<Todos>) -> StatusCode {
    match todos.lock().todos.remove(&id) {
        Some(_) => StatusCode::NO_CONTENT,
        None => StatusCode::NOT_FOUND,
    }
}

#[derive(Deserialize)]
struct Pace {
    pause_ms: u64,
}

/// Returns all texts, with a pause before each, so that a long list exceeds the time limit.
async fn export(Query(pace): Query<Pace>, State(todos): State<Todos>) -> String {
    let texts: Vec<_> = todos.lock().todos.values().map(|todo| todo.text.clone()).collect();
    let mut lines = String::new();
    for text in texts {
        tokio::time::sleep(Duration::from_millis(pace.pause_ms)).await;
        lines.push_str(&text);
        lines.push('\n');
    }
    lines
}
