//! Birds: one subject of the API, with its routes, types and handlers.

use garde::Validate;
use peregrine::openapi::{ApiScope, WithStatus};
use peregrine::prelude::*;
use peregrine::validate::Valid;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A kind of bird.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema, Validate)]
pub struct Bird {
    /// The common name.
    #[garde(length(min = 1, max = 100))]
    name: String,
    /// The wingspan, in centimetres.
    #[garde(range(min = 1, max = 400))]
    wingspan_cm: u32,
}

/// All birds, in the order they were added. All workers share them. Replace this with a database.
static BIRDS: Mutex<Vec<Bird>> = Mutex::new(Vec::new());

/// The routes, each described in the OpenAPI document.
pub(crate) fn routes(api: ApiScope) -> ApiScope {
    api.tag("birds")
        .get("/", list)
        .post("/", add)
        .get("/{id}", find)
}

/// All birds.
async fn list() -> Json<Vec<Bird>> {
    Json(birds().clone())
}

/// The bird with this id.
async fn find(Path(id): Path<usize>) -> Result<Json<Bird>, Problem> {
    let unknown = || {
        Problem::new(
            StatusCode::NOT_FOUND,
            "unknown-bird",
            format!("There is no bird {id}."),
        )
    };
    birds().get(id).cloned().map(Json).ok_or_else(unknown)
}

/// Adds a bird and returns its id.
async fn add(Valid(Json(bird)): Valid<Json<Bird>>) -> WithStatus<201, Json<usize>> {
    let mut birds = birds();
    birds.push(bird);
    WithStatus(Json(birds.len() - 1))
}

fn birds() -> MutexGuard<'static, Vec<Bird>> {
    // A panic cannot leave the list inconsistent, so a poisoned lock can be ignored.
    BIRDS.lock().unwrap_or_else(PoisonError::into_inner)
}
